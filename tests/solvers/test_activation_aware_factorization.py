"""Factors of a weight by the error of its outputs: against the SVD, and best among others."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.activation_aware_factorization import activation_aware_factorization


def example(seed, rows, columns, samples=50):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, columns)) @ rng.standard_normal((columns, columns))
    return rng.standard_normal((rows, columns)), X


def output_error(X, weight, other):
    return np.linalg.norm(X @ (weight - other).T) / np.linalg.norm(X @ weight.T)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_reaches_the_bound_of_the_singular_values(seed, rows, columns, rank):
    weight, X = example(seed, rows, columns)
    found = activation_aware_factorization(weight, X.T @ X, rank=rank)
    sizes = np.linalg.svd(X @ weight.T, compute_uv=False)[: min(rows, columns)]
    kept = min(rank, rows, columns)
    assert found.rank == kept
    best = np.sqrt(np.sum(sizes[kept:] ** 2) / np.sum(sizes**2))
    assert output_error(X, weight, found.dense()) == pytest.approx(best, abs=1e-7)
    assert found.errors[kept] == pytest.approx(best, abs=1e-7)
    assert np.allclose(found.left.T @ found.left, np.eye(kept))


def test_unit_gram_is_the_plain_decomposition():
    weight, _ = example(1, 7, 5)
    u, s, vt = np.linalg.svd(weight)
    found = activation_aware_factorization(weight, np.eye(5), rank=2)
    assert np.allclose(found.dense(), (u[:, :2] * s[:2]) @ vt[:2])


def test_outputs_are_closer_than_those_of_the_plain_decomposition():
    weight, X = example(2, 30, 20)
    X = X * np.logspace(0, -3, 20)
    aware = activation_aware_factorization(weight, X.T @ X, rank=5).dense()
    plain = activation_aware_factorization(weight, np.eye(20), rank=5).dense()
    assert output_error(X, weight, aware) < 0.7 * output_error(X, weight, plain)


@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_the_tolerance_takes_the_smallest_rank(shape):
    weight, X = example(3, *shape)
    found = activation_aware_factorization(weight, X.T @ X, rtol=0.2)
    assert output_error(X, weight, found.dense()) <= 0.2 < found.errors[found.rank - 1]


def test_a_dead_column_and_a_zero_gram():
    weight, X = example(4, 6, 5)
    X[:, 2] = 0.0
    found = activation_aware_factorization(weight, X.T @ X, rank=6)
    assert output_error(X, weight, found.dense()) < 1e-7
    nothing = activation_aware_factorization(weight, np.zeros((5, 5)), rank=2)
    assert np.isfinite(nothing.dense()).all()
    assert not nothing.errors.any()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_arrays_of_another_library(shape):
    weight, X = example(5, *shape)
    own = activation_aware_factorization(weight, X.T @ X, rank=3).dense()
    arrays = [array_api_strict.asarray(a) for a in (weight, X.T @ X)]
    other = activation_aware_factorization(*arrays, rank=3).dense()
    assert isinstance(other, type(arrays[0]))
    assert np.allclose(np.asarray(other), own)


def test_precision_is_kept_and_size_does_not_matter():
    weight, X = example(6, 4, 5)
    found = activation_aware_factorization(weight.astype(np.float32), X.T @ X, rank=2)
    assert found.left.dtype == found.right.dtype == np.float32
    own = activation_aware_factorization(weight, X.T @ X, rank=2).dense()
    large = activation_aware_factorization(weight * 1e200, X.T @ X * 1e250, rank=2).dense()
    assert np.allclose(large / 1e200, own)


def test_bad_input_is_named():
    weight, gram = np.ones((2, 3)), np.eye(3)
    with pytest.raises(ShapeError, match="gram"):
        activation_aware_factorization(weight, np.eye(2))
    with pytest.raises(ValueError, match="rank"):
        activation_aware_factorization(weight, gram, rank=0)
    with pytest.raises(ValueError, match="rtol"):
        activation_aware_factorization(weight, gram, rtol=-1.0)
    with pytest.raises(ValueError, match="weight must be finite"):
        activation_aware_factorization(weight * np.nan, gram)
