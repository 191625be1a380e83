import array_api_strict as strict
import numpy as np
import pytest

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.tensor_blocks import as_blocks
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.compressed_polyadic import compressed_polyadic
from tensoralg.solvers.polyadic_residual import relative_residual


def dense(factors):
    return khatri_rao(factors).sum(axis=1).reshape([len(f) for f in factors])


def random_factors(shape, rank, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, rank)) for n in shape]


def collinear_factors(shape, rank, collinearity, seed):
    rng = np.random.default_rng(seed)
    gram = np.full((rank, rank), collinearity) + (1 - collinearity) * np.eye(rank)
    root = np.linalg.cholesky(gram).T
    return [np.linalg.qr(rng.normal(size=(n, rank)))[0] @ root for n in shape]


def noisy(factors, level, seed):
    tensor = dense(factors)
    noise = np.random.default_rng(seed).normal(size=tensor.shape)
    return tensor + level * np.linalg.norm(tensor) / np.linalg.norm(noise) * noise


def match(truth, found):
    """Smallest absolute cosine, over all modes, of matched terms."""
    cosines = np.ones((truth[0].shape[1], found[0].shape[1]))
    for a, b in zip(truth, found, strict=True):
        cosines *= np.abs((a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0)))
    assert len(set(cosines.argmax(axis=1))) == len(cosines)
    return cosines.max(axis=1).min()


@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((30, 40, 35), 5),
        ((18, 17, 16, 15), 4),
        ((10, 9, 8, 7, 6), 3),
        ((60, 2, 90), 2),
        ((90, 120), 3),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_tensors(shape, rank, dtype):
    truth = random_factors(shape, rank, 0)
    tensor = dense(truth).astype(dtype)
    found = compressed_polyadic(tensor, rank, rng=1)
    assert found.status == "converged"
    assert "compressed to" in found.message
    residual = relative_residual(tensor, found.factors)
    assert 1 - found.fit == pytest.approx(residual, abs=1e-12)
    assert residual < (1e-7 if dtype == np.float32 else 1e-13)
    assert found.history.shape == (found.n_iter,)


def test_noise_ends_where_exact_sweeps_end():
    truth = random_factors((30, 32, 34), 4, 0)
    tensor = noisy(truth, 0.1, 1)
    found = compressed_polyadic(tensor.astype(np.float32), 4, rng=2)
    oracle = alternating_least_squares(tensor, truth, tol=1e-12, max_iter=2000)
    assert found.fit == pytest.approx(oracle.fit, abs=1e-7)
    assert match(truth, found.factors) > 0.99


@pytest.mark.parametrize("seed", range(3))
def test_swamp(seed):
    truth = collinear_factors((50, 50, 50), 6, 0.95, seed)
    tensor = noisy(truth, 0.01, seed)
    found = compressed_polyadic(tensor.astype(np.float32), 6, rng=seed)
    assert found.fit > 1 - relative_residual(tensor, truth)
    assert match(truth, found.factors) > 0.98


@pytest.mark.parametrize(
    ("rank", "first", "then"), [(3, "13 x 13 x 13", None), (9, "17 x 17 x 17", "22 x 22 x 22")]
)
def test_spectrum_without_a_gap_gets_wider_bases(rank, first, then):
    # many terms of slowly falling weight: the best few are not in the leading space
    truth = random_factors((48, 48, 48), 48, 0)
    truth[0] = truth[0] * np.arange(1, 49) ** -1.0
    tensor = dense(truth)
    found = compressed_polyadic(tensor, rank, rng=1, n_starts=2)
    assert f"compressed to {first}" in found.message
    assert "fits of the starts" in found.message
    assert ("then to" in found.message) == (then is not None)
    assert then is None or f"then to {then}" in found.message
    oracle = alternating_least_squares(tensor, found.factors, tol=1e-13, max_iter=2000)
    assert oracle.fit - found.fit < 1e-6


@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((6, 7, 5), 3),
        ((5, 6, 4), 7),
        ((13, 4, 12, 8), 2),
        ((4, 1, 6), 2),
        ((3, 2, 4), 2),
        ((8, 9), 3),
    ],
)
def test_small_tensors_are_not_compressed(shape, rank):
    tensor = dense(random_factors(shape, rank, 0))
    found = compressed_polyadic(tensor, rank, rng=1)
    assert "not compressed" in found.message
    assert 1 - found.fit < 1e-9
    assert 1 - found.fit == pytest.approx(relative_residual(tensor, found.factors), abs=1e-12)


def test_rank_above_every_dimension_of_a_large_tensor():
    tensor = dense(random_factors((22, 21, 23), 26, 0))
    found = compressed_polyadic(tensor, 26, rng=1)
    assert "not compressed" in found.message
    assert 1 - found.fit < 1e-8


def test_missing_cells_are_not_read():
    tensor = dense(random_factors((15, 14, 13), 3, 0))
    mask = np.random.default_rng(1).random(tensor.shape) < 0.8
    holed = np.where(mask, tensor, np.nan)
    for given_tensor in (holed, np.asfortranarray(holed)):
        found = compressed_polyadic(given_tensor, 3, rng=2, mask=mask)
        assert "cells are missing" in found.message
        assert 1 - found.fit < 1e-7
        assert relative_residual(tensor, found.factors) < 1e-6


def test_rank_one_tensor_asked_for_two_terms():
    tensor = dense(random_factors((30, 20, 40), 1, 0))
    found = compressed_polyadic(tensor, 2, rng=1)
    assert found.status == "converged"
    assert 1 - found.fit < 1e-9


def test_zero_tensor():
    found = compressed_polyadic(np.zeros((40, 30, 20)), 2, rng=1)
    assert found.status == "converged"
    assert found.fit == 1.0
    assert all(not f.any() for f in found.factors)


def test_fortran_order_and_slabs_give_the_answer_of_the_array():
    truth = random_factors((40, 30, 20), 3, 0)
    tensor = noisy(truth, 0.05, 1)
    expected = compressed_polyadic(tensor, 3, rng=2)
    turned = compressed_polyadic(np.asfortranarray(tensor), 3, rng=2)
    blocks = compressed_polyadic(as_blocks(tensor), 3, rng=2)
    for other in (turned, blocks):
        assert other.fit == pytest.approx(expected.fit, abs=1e-9)
        assert [f.shape for f in other.factors] == [(n, 3) for n in tensor.shape]
        assert relative_residual(tensor, other.factors) == pytest.approx(1 - other.fit, abs=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_array_of_another_library(dtype):
    tensor = noisy(random_factors((40, 30, 20), 3, 0), 0.05, 1).astype(dtype)
    expected = compressed_polyadic(tensor, 3, rng=2)
    found = compressed_polyadic(strict.asarray(tensor), 3, rng=2)
    assert found.fit == pytest.approx(expected.fit, abs=1e-9)
    for factor, wanted in zip(found.factors, expected.factors, strict=True):
        assert factor.dtype == strict.float64
        np.testing.assert_allclose(np.asarray(factor), wanted, atol=1e-4)
    small = compressed_polyadic(strict.asarray(tensor[:5, :6, :7]), 2, rng=2)
    assert "not compressed" in small.message
    assert isinstance(small.factors[0], type(strict.asarray(tensor)))


def test_same_seed_same_factors():
    tensor = noisy(random_factors((30, 31, 32), 3, 0), 0.1, 1)
    one, two = (compressed_polyadic(tensor, 3, rng=7) for _ in range(2))
    for a, b in zip(one.factors, two.factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_callback_sees_full_factors_and_stops():
    tensor = noisy(random_factors((30, 31, 32), 3, 0), 0.1, 1)
    seen = []

    def callback(k, fit, factors):
        assert [f.shape for f in factors] == [(30, 3), (31, 3), (32, 3)]
        assert 1 - relative_residual(tensor, factors) == pytest.approx(fit, abs=1e-9)
        seen.append(k)
        return k == 3

    found = compressed_polyadic(tensor, 3, rng=0, tol=0.0, callback=callback)
    assert found.status == "stopped"
    assert seen == [1, 2, 3]
    assert 1 - found.fit == pytest.approx(relative_residual(tensor, found.factors), abs=1e-12)


def test_few_iterations_are_not_called_converged():
    tensor = noisy(collinear_factors((30, 30, 30), 8, 0.95, 0), 0.01, 1)
    found = compressed_polyadic(tensor, 8, rng=0, max_iter=5)
    assert found.status == "max_iter"
    assert 1 - found.fit == pytest.approx(relative_residual(tensor, found.factors), abs=1e-12)
