"""Alternating least squares against the textbook's, and what it says when it stops."""

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.gpu.namespaces import to_numpy
from tensoralg.gpu.precision import precision_policy
from tensoralg.gpu.sparse_tensor import SparseTensor
from tensoralg.gpu.tensor_blocks import TensorBlocks
from tensoralg.solvers import alternating_sweeps
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.polyadic_residual import relative_residual


def dense_model(factors):
    letters = "abcdefgh"[: len(factors)]
    return np.einsum(",".join(f"{k}z" for k in letters) + "->" + letters, *factors)


def textbook(tensor, factors, sweeps):
    """Unfold, form the Khatri-Rao product, solve; float64, nothing shared."""
    factors = [np.array(f, dtype=np.float64) for f in factors]
    fits = []
    for _ in range(sweeps):
        for mode in range(tensor.ndim):
            columns = []
            for s in range(factors[0].shape[1]):
                column = np.ones(1)
                for k, factor in enumerate(factors):
                    if k != mode:
                        column = np.kron(column, factor[:, s])
                columns.append(column)
            khatri_rao = np.array(columns).T
            unfolding = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
            factors[mode] = np.linalg.lstsq(khatri_rao, unfolding.T, rcond=None)[0].T
        error = np.linalg.norm(tensor - dense_model(factors))
        fits.append(1.0 - error / np.linalg.norm(tensor))
    return factors, fits


def make(shape, rank, *, seed=0, noise=0.1, draw="standard_normal"):
    rng = np.random.default_rng(seed)
    truth = [getattr(rng, draw)((n, rank)) for n in shape]
    clean = dense_model(truth)
    spread = rng.standard_normal(shape)
    tensor = clean + noise * np.linalg.norm(clean) / np.linalg.norm(spread) * spread
    start = [getattr(rng, draw)((n, rank)) for n in shape]
    return tensor, start, truth


@given(
    shape=st.lists(st.integers(2, 6), min_size=2, max_size=5),
    rank=st.integers(1, 2),
    seed=st.integers(0, 50),
)
def test_iterates_are_the_textbooks(shape, rank, seed):
    tensor, start, _ = make(tuple(shape), rank, seed=seed, noise=0.5)
    solution = alternating_least_squares(tensor, start, max_iter=4, tol=0.0, accelerate=False)
    factors, fits = textbook(tensor, start, 4)
    np.testing.assert_allclose(solution.history, fits, atol=1e-7)
    scale = np.abs(tensor).max()
    np.testing.assert_allclose(
        dense_model(solution.factors), dense_model(factors), atol=1e-6 * scale
    )
    assert solution.fit == pytest.approx(fits[-1], abs=1e-12)


@pytest.mark.parametrize("shape", [(6, 7, 8), (5, 4, 3, 6), (3, 3, 3, 3, 3)])
def test_float32_iterates_are_the_textbooks_to_its_rounding(shape):
    tensor, start, _ = make(shape, 3)
    tensor = tensor.astype(np.float32)
    solution = alternating_least_squares(tensor, start, max_iter=6, tol=0.0, accelerate=False)
    _, fits = textbook(tensor.astype(np.float64), start, 6)
    np.testing.assert_allclose(solution.history, fits, atol=3e-6)
    assert all(factor.dtype == np.float64 for factor in solution.factors)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"accelerate": False}, {"nonnegative": True}])
def test_the_reported_fit_is_the_true_one_and_the_history_ends_with_it(dtype, options):
    tensor, start, _ = make((9, 8, 7), 3, draw="random")
    tensor = tensor.astype(dtype)
    solution = alternating_least_squares(tensor, start, **options)
    model = dense_model(solution.factors)
    error = np.linalg.norm(tensor - model) / np.linalg.norm(tensor.astype(np.float64))
    assert solution.fit == pytest.approx(1.0 - error, abs=1e-13)
    assert solution.history[-1] == solution.fit
    assert len(solution.history) == solution.n_iter
    assert solution.status == "converged"


def test_an_exact_float32_tensor_reports_what_is_really_left():
    tensor, start, _ = make((12, 13, 14), 3, noise=0.0)
    tensor = tensor.astype(np.float32)
    solution = alternating_least_squares(tensor, start, max_iter=300, tol=1e-12)
    true = relative_residual(tensor, solution.factors)
    assert solution.fit == pytest.approx(1.0 - true, abs=1e-15)
    assert 1e-9 < true < 1e-6


def test_float64_reaches_machine_precision():
    tensor, start, _ = make((12, 13, 14), 3, noise=0.0)
    solution = alternating_least_squares(tensor, start, max_iter=300, tol=1e-14)
    assert 1.0 - solution.fit < 1e-11


def collinear(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.full((6, 6), 0.9) + 0.1 * np.eye(6))
    truth = [np.linalg.qr(rng.standard_normal((30, 6)))[0] @ root.T for _ in range(3)]
    tensor = dense_model(truth)
    tensor += 0.01 / 165.0 * np.linalg.norm(tensor) * rng.standard_normal(tensor.shape)
    return tensor.astype(dtype), [rng.standard_normal((30, 6)) for _ in range(3)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixing_saves_sweeps_in_a_swamp_and_never_ends_lower(dtype):
    for seed in range(3):
        tensor, start = collinear(seed, dtype)
        plain = alternating_least_squares(tensor, start, max_iter=2000, accelerate=False)
        mixed = alternating_least_squares(tensor, start, max_iter=2000)
        assert mixed.n_iter < 0.5 * plain.n_iter
        assert mixed.fit > plain.fit - 1e-5
        if dtype == np.float64:
            assert np.diff(mixed.history).min() > -1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rank_two_of_an_exact_rank_one_tensor(dtype):
    tensor = np.einsum("i,j,k->ijk", [1.0, 2.0, 3.0], [1.0, -1.0], [0.5, 1.0, 1.5, 2.0])
    rng = np.random.default_rng(0)
    start = [rng.standard_normal((n, 2)) for n in tensor.shape]
    solution = alternating_least_squares(tensor.astype(dtype), start)
    assert solution.fit == pytest.approx(1.0, abs=1e-6)
    assert np.isfinite(solution.factors[0]).all()
    same = [np.repeat(f[:, :1], 2, axis=1) for f in start]
    solution = alternating_least_squares(tensor.astype(dtype), same)
    assert solution.fit == pytest.approx(1.0, abs=1e-6)
    # minimum norm: equal terms share what there is
    np.testing.assert_allclose(solution.factors[2][:, 0], solution.factors[2][:, 1], rtol=1e-5)


@pytest.mark.parametrize("rank", [1, 4, 9])
def test_ranks_above_every_dimension_size_one_modes_and_matrices(rank):
    for shape in ((3, 1, 4), (4, 5), (2, 2, 2, 2)):
        tensor, start, _ = make(shape, rank)
        solution = alternating_least_squares(tensor, start, max_iter=200)
        assert solution.fit == pytest.approx(1 - relative_residual(tensor, solution.factors))
        if rank == 9:
            assert solution.fit > 1 - 1e-6


def test_a_matrix_gets_its_best_approximation():
    tensor, start, _ = make((8, 9), 3)
    singular = np.linalg.svd(tensor, compute_uv=False)
    best = 1.0 - np.linalg.norm(singular[3:]) / np.linalg.norm(singular)
    solution = alternating_least_squares(tensor, start, tol=1e-12)
    assert solution.fit == pytest.approx(best, abs=1e-8)


def test_the_zero_tensor_has_a_defined_fit():
    start = [np.ones((n, 2)) for n in (3, 4, 5)]
    solution = alternating_least_squares(np.zeros((3, 4, 5)), start)
    assert (solution.fit, solution.status, solution.n_iter) == (1.0, "converged", 0)
    assert not any(factor.any() for factor in solution.factors)


def test_zero_columns_in_a_start_come_back_to_life():
    tensor, start, _ = make((6, 7, 8), 2, noise=0.0)
    start[1][:, 0] = 0.0
    for accelerate in (False, True):
        solution = alternating_least_squares(tensor, start, accelerate=accelerate)
        assert solution.fit > 1 - 1e-6


# stopping


def test_the_callback_sees_every_sweep_and_stops():
    tensor, start, _ = make((6, 7, 8), 2)
    seen = []

    def callback(iteration, fit, factors):
        seen.append((iteration, fit, relative_residual(tensor, factors)))
        return iteration == 5

    solution = alternating_least_squares(tensor, start, tol=0.0, callback=callback)
    assert (solution.status, solution.n_iter) == ("stopped", 5)
    assert [entry[0] for entry in seen] == [1, 2, 3, 4, 5]
    for _, fit, residual in seen:
        assert fit == pytest.approx(1 - residual, abs=1e-9)
    assert solution.fit >= seen[-1][1] - 1e-12


def test_few_sweeps_are_reported_as_such():
    tensor, start, _ = make((6, 7, 8), 2)
    solution = alternating_least_squares(tensor, start, max_iter=1)
    assert (solution.status, solution.n_iter) == ("max_iter", 1)
    assert "max_iter" in solution.message
    solution = alternating_least_squares(tensor, start, max_iter=0)
    assert solution.fit == pytest.approx(1 - relative_residual(tensor, start))


def test_a_float32_tensor_does_not_stop_in_a_swamp_before_it_is_really_slow():
    tensor, start = collinear(1, np.float32)
    tol = 1e-7
    solution = alternating_least_squares(tensor, start, max_iter=3000, tol=tol, accelerate=False)
    wide = tensor.astype(np.float64)
    further = alternating_least_squares(
        wide, solution.factors, max_iter=1, tol=0.0, accelerate=False
    )
    assert solution.status == "converged"
    assert further.fit - solution.fit < 2 * tol


def test_a_tensor_without_a_best_model_is_called_degenerate():
    # rank 3, border rank 2
    a, b = np.eye(2)
    tensor = sum(np.einsum("i,j,k->ijk", *vectors) for vectors in ((a, a, b), (a, b, a), (b, a, a)))
    rng = np.random.default_rng(1)
    start = [rng.standard_normal((2, 2)) for _ in range(3)]
    solution = alternating_least_squares(tensor, start, max_iter=500, tol=0.0)
    assert solution.status == "degenerate"
    assert "cancel" in solution.message


# nonnegativity, masks, other layouts


@pytest.mark.parametrize("library", [np, strict])
def test_nonnegative_factors_recover_a_nonnegative_model(library):
    tensor, start, _ = make((8, 9, 10), 3, noise=0.0, draw="random")
    convert = library.asarray
    solution = alternating_least_squares(
        convert(tensor), [convert(f) for f in start], nonnegative=True, max_iter=400, tol=1e-10
    )
    assert all(to_numpy(factor).min() >= 0.0 for factor in solution.factors)
    assert solution.fit > 1 - 1e-3


def test_nonnegative_fits_never_fall_and_negative_starts_are_refused():
    tensor, start, _ = make((8, 9, 10), 4, noise=0.0)
    start = [np.abs(f) for f in start]
    solution = alternating_least_squares(tensor, start, nonnegative=True, max_iter=60)
    assert np.diff(solution.history).min() > -1e-9
    assert all(factor.min() >= 0.0 for factor in solution.factors)
    start[1][0, 0] = -1.0
    with pytest.raises(ValueError, match="nonnegative"):
        alternating_least_squares(tensor, start, nonnegative=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("listed", [True, False])
def test_missing_cells_are_recovered_whatever_they_hold(monkeypatch, dtype, filler, listed):
    monkeypatch.setattr(alternating_sweeps, "is_worth_listing", lambda *arguments: listed)
    tensor, start, _ = make((10, 11, 12), 2, noise=0.0)
    mask = np.random.default_rng(5).random(tensor.shape) < 0.7
    holed = np.where(mask, tensor, filler).astype(dtype)
    solution = alternating_least_squares(holed, start, mask=mask, max_iter=1000, tol=1e-10)
    assert relative_residual(tensor, solution.factors) < 1e-4
    assert solution.fit == pytest.approx(
        1 - relative_residual(holed, solution.factors, mask=mask), abs=1e-12
    )


def test_missing_cells_in_another_library(monkeypatch):
    monkeypatch.setattr(alternating_sweeps, "is_worth_listing", lambda *arguments: False)
    tensor, start, _ = make((6, 7, 8), 2, noise=0.0)
    mask = np.random.default_rng(5).random(tensor.shape) < 0.8
    holed = np.where(mask, tensor, np.nan)
    options = {"max_iter": 30, "tol": 0.0, "accelerate": False}
    here = alternating_least_squares(holed, start, mask=mask, **options)
    there = alternating_least_squares(
        strict.asarray(holed),
        [strict.asarray(f) for f in start],
        mask=strict.asarray(mask),
        **options,
    )
    np.testing.assert_allclose(there.history, here.history, atol=1e-9)


@pytest.mark.parametrize("listed", [True, False])
def test_a_full_mask_changes_nothing(monkeypatch, listed):
    monkeypatch.setattr(alternating_sweeps, "is_worth_listing", lambda *arguments: listed)
    tensor, start, _ = make((6, 7, 8), 2)
    options = {"max_iter": 20, "tol": 0.0, "accelerate": False}
    plain = alternating_least_squares(tensor, start, **options)
    masked = alternating_least_squares(tensor, start, mask=np.ones(tensor.shape, bool), **options)
    np.testing.assert_allclose(masked.history, plain.history, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 7), (3, 4, 3, 4)])
def test_another_array_library_gives_the_same_iterates(dtype, shape):
    tensor, start, _ = make(shape, 2)
    there = alternating_least_squares(
        strict.asarray(tensor, dtype=getattr(strict, dtype)),
        [strict.asarray(f) for f in start],
        max_iter=8,
        tol=0.0,
        accelerate=False,
    )
    here = alternating_least_squares(
        tensor.astype(dtype), start, max_iter=8, tol=0.0, accelerate=False
    )
    np.testing.assert_allclose(there.history, here.history, atol=2e-6)
    assert isinstance(there.factors[0], type(strict.asarray(0.0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slabs_and_sparse_entries_give_the_dense_iterates(dtype):
    tensor, start, _ = make((8, 6, 7), 3)
    tensor[np.random.default_rng(2).random(tensor.shape) < 0.5] = 0.0
    tensor = tensor.astype(dtype)
    options = {"max_iter": 15, "tol": 0.0, "accelerate": False}
    dense = alternating_least_squares(tensor, start, **options)
    slabs = alternating_least_squares(TensorBlocks(tensor), start, **options)
    np.testing.assert_allclose(slabs.history, dense.history, atol=2e-6)
    coordinates = np.array(np.nonzero(tensor))
    sparse = SparseTensor(coordinates, tensor[tuple(coordinates)], tensor.shape)
    entries = alternating_least_squares(sparse, start, **options)
    np.testing.assert_allclose(entries.history, dense.history, atol=2e-6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_order_does_not_matter(order):
    tensor, start, _ = make((5, 6, 7), 2)
    options = {"max_iter": 8, "tol": 0.0, "accelerate": False}
    given = alternating_least_squares(np.asarray(tensor, order=order), start, **options)
    plain = alternating_least_squares(tensor, start, **options)
    np.testing.assert_allclose(given.history, plain.history, atol=1e-10)


def test_what_cannot_be_answered_is_refused():
    tensor, start, _ = make((5, 6, 7), 2)
    with pytest.raises(ValueError, match=r"factors: .*\(5, 6, 7\)"):
        alternating_least_squares(tensor, start[:2])
    with pytest.raises(ValueError, match="two modes"):
        alternating_least_squares(np.ones(5), [np.ones((5, 1))])
    with pytest.raises(ValueError, match="mask"):
        alternating_least_squares(TensorBlocks(tensor), start, mask=tensor > 0)


@pytest.mark.parametrize(
    "name", ["float64", "float32", "tf32", "bfloat16", "float16", "int8", "float8"]
)
def test_every_precision_comes_to_rest_and_two_exact_sweeps_repair_it(name):
    tensor, start, _ = make((20, 21, 22), 3, noise=0.02)
    exact = alternating_least_squares(tensor, start)
    tensor = tensor.astype(np.float32)
    coarse = alternating_least_squares(tensor, start, policy=precision_policy(name))
    assert coarse.status == "converged"
    assert coarse.fit == pytest.approx(1 - relative_residual(tensor, coarse.factors), abs=1e-12)
    assert coarse.fit > exact.fit - {"float8": 3e-2, "int8": 1e-3}.get(name, 1e-4)
    if name in ("int8", "float8"):
        assert coarse.fit < exact.fit - 1e-6
    repaired = alternating_least_squares(
        tensor, coarse.factors, max_iter=2, tol=0.0, accelerate=False
    )
    assert repaired.fit == pytest.approx(exact.fit, abs=1e-5)
