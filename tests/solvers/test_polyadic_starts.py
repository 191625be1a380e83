"""Starts: reproducible, of the right span, refused where they do not fit."""

from types import SimpleNamespace

import array_api_strict as strict
import numpy as np
import pytest

from tensoralg.solvers import polyadic_starts
from tensoralg.solvers.polyadic_starts import polyadic_start, singular_vector_start

RNG = np.random.default_rng(0)
TENSOR = RNG.standard_normal((5, 6, 7, 2))


def leading_subspace(tensor, mode, rank):
    unfolding = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
    return np.linalg.svd(unfolding, full_matrices=False)[0][:, :rank]


def test_a_seed_gives_the_same_numbers_in_every_library():
    here = polyadic_start(TENSOR, 3, rng=5)
    again = polyadic_start(TENSOR.astype(np.float32), 3, rng=5)
    there = polyadic_start(strict.asarray(TENSOR), 3, rng=5)
    other = polyadic_start(TENSOR, 3, rng=6)
    for a, b, c, d in zip(here, again, there, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.dtype == np.float64
        np.testing.assert_array_equal(a, np.from_dlpack(c))
        assert not np.array_equal(a, d)


@pytest.mark.parametrize("slab", [1, 13, 2**20])
@pytest.mark.parametrize("order", ["C", "F"])
def test_singular_vectors_are_those_of_the_unfoldings(monkeypatch, slab, order):
    monkeypatch.setattr(polyadic_starts, "_SLAB", slab)
    start = singular_vector_start(np.asarray(TENSOR, order=order), 4, rng=0)
    for mode in range(4):
        expected = leading_subspace(TENSOR, mode, 4)
        kept = expected.shape[1]
        cosines = np.abs(np.sum(expected * start[mode][:, :kept], axis=0))
        np.testing.assert_allclose(cosines, 1.0, atol=1e-10)
        assert start[mode].shape == (TENSOR.shape[mode], 4)
        assert np.linalg.norm(start[mode], axis=0).min() > 0.05


def test_singular_vectors_in_another_library():
    start = singular_vector_start(strict.asarray(TENSOR, dtype=strict.float32), 2, rng=0)
    expected = leading_subspace(TENSOR, 2, 2)
    assert start[2].dtype == strict.float64
    cosines = np.abs(np.sum(expected * np.from_dlpack(start[2]), axis=0))
    np.testing.assert_allclose(cosines, 1.0, atol=1e-6)


def test_singular_vectors_of_slabs_span_those_of_a_low_rank_tensor():
    factors = [RNG.standard_normal((n, 2)) for n in (9, 8, 7)]
    tensor = np.einsum("is,js,ks->ijk", *factors)
    blocks = SimpleNamespace(
        shape=tensor.shape,
        slabs=lambda size: ((i, min(i + 4, 9), tensor[i : i + 4]) for i in range(0, 9, 4)),
    )
    start = singular_vector_start(blocks, 2, rng=0)
    for mode in range(3):
        expected = leading_subspace(tensor, mode, 2)
        singular = np.linalg.svd(expected.T @ start[mode], compute_uv=False)
        np.testing.assert_allclose(singular, 1.0, atol=1e-8)


def test_a_given_start_keeps_the_model_and_is_copied():
    factors = [RNG.standard_normal((n, 2)).astype(np.float32) for n in TENSOR.shape]
    init = SimpleNamespace(weights=np.array([2.0, -3.0]), factors=factors)
    start = polyadic_start(TENSOR, 2, init=init)
    np.testing.assert_allclose(start[0], factors[0] * [2.0, -3.0], rtol=1e-7)
    start[1][:] = 0.0
    assert np.abs(factors[1]).min() > 0.0
    assert all(f.dtype == np.float64 for f in start)


def test_nonnegative_starts():
    for init in ("random", "svd"):
        for factor in polyadic_start(TENSOR, 3, init=init, rng=0, nonnegative=True):
            assert factor.min() >= 0.0


@pytest.mark.parametrize(
    ("init", "error", "message"),
    [
        ("nvecs", ValueError, "nvecs"),
        (3, TypeError, "int"),
        (SimpleNamespace(factors=[np.ones((5, 2))]), ValueError, "order 4"),
        (SimpleNamespace(factors=[np.ones(n) for n in TENSOR.shape]), ValueError, r"\(5,\)"),
        (
            SimpleNamespace(factors=[np.ones((n, 3)) for n in TENSOR.shape]),
            ValueError,
            r"factor 0 .*\(5, 3\).*\(5, 2\)",
        ),
        (
            SimpleNamespace(factors=[strict.ones((n, 2)) for n in TENSOR.shape]),
            TypeError,
            "array_api_strict",
        ),
    ],
)
def test_what_does_not_fit_is_refused(init, error, message):
    with pytest.raises(error, match=message):
        polyadic_start(TENSOR, 2, init=init)


def test_a_start_on_another_device_is_refused():
    there = strict.Device("device1")
    init = SimpleNamespace(factors=[strict.ones((n, 2), device=there) for n in TENSOR.shape])
    with pytest.raises(TypeError, match="device"):
        polyadic_start(strict.asarray(TENSOR), 2, init=init)


def test_no_singular_vectors_of_a_sparse_tensor():
    with pytest.raises(ValueError, match="sparse"):
        singular_vector_start(SimpleNamespace(coordinates=None, shape=(2, 3)), 1)
