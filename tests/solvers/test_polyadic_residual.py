"""Residuals against the plain dense formula, in every layout."""

import math
from types import SimpleNamespace

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.solvers import polyadic_residual
from tensoralg.solvers.polyadic_residual import (
    model_squared_norm,
    relative_residual,
    squared_norm,
)
from tensoralg.solvers.polyadic_solution import PolyadicSolution


def dense_model(factors):
    rank = factors[0].shape[1]
    total = np.zeros(tuple(f.shape[0] for f in factors))
    for s in range(rank):
        term = np.ones(())
        for factor in factors:
            term = np.multiply.outer(term, np.asarray(factor[:, s], dtype=np.float64))
        total += term
    return total


def make(shape, rank, seed=0, noise=0.3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((n, rank)) for n in shape]
    tensor = dense_model(factors) + noise * rng.standard_normal(shape)
    return tensor.astype(dtype), factors


class Slabs:
    """A tensor that can be read by slabs only."""

    def __init__(self, tensor, rows):
        self.tensor, self.rows = tensor, rows
        self.shape, self.dtype, self.ndim = tensor.shape, tensor.dtype, tensor.ndim

    def slabs(self, max_bytes):
        for start in range(0, len(self.tensor), self.rows):
            part = self.tensor[start : start + self.rows]
            yield start, start + len(part), part


SHAPES = [(7,), (4, 5), (3, 4, 5), (5, 1, 2), (2, 3, 4, 5), (2, 2, 2, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [1, 7, 24, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_the_plain_formula_however_the_blocks_are_cut(monkeypatch, shape, limit, dtype):
    monkeypatch.setattr(polyadic_residual, "_HOST_BLOCK", limit)
    tensor, factors = make(shape, 3, dtype=dtype)
    wide = tensor.astype(np.float64)
    expected = np.linalg.norm(wide - dense_model(factors)) / np.linalg.norm(wide)
    assert relative_residual(tensor, factors) == pytest.approx(expected, rel=1e-12)
    assert squared_norm(tensor) == pytest.approx(float((wide**2).sum()), rel=1e-13)


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    rank=st.integers(1, 4),
    seed=st.integers(0, 1000),
    limit=st.integers(1, 40),
)
def test_masked_cells_are_left_out_whatever_they_hold(shape, rank, seed, limit):
    tensor, factors = make(tuple(shape), rank, seed)
    rng = np.random.default_rng(seed)
    mask = rng.random(tensor.shape) < 0.6
    mask.flat[0] = True
    error = np.linalg.norm((tensor - dense_model(factors))[mask])
    expected = error / np.linalg.norm(tensor[mask])
    tensor[~mask] = rng.choice([np.nan, np.inf, 1e300], size=int((~mask).sum()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polyadic_residual, "_HOST_BLOCK", limit)
        assert relative_residual(tensor, factors, mask=mask) == pytest.approx(expected, rel=1e-11)
        assert squared_norm(tensor, mask=mask) == pytest.approx((tensor[mask] ** 2).sum())


@pytest.mark.parametrize("masked", [False, True])
def test_another_array_library_gives_the_same(masked, monkeypatch):
    monkeypatch.setattr(polyadic_residual, "_DEVICE_BLOCK", 10)
    tensor, factors = make((4, 3, 5), 2)
    mask = np.random.default_rng(1).random(tensor.shape) < 0.7 if masked else None
    there = strict.asarray(tensor.astype(np.float32)), [strict.asarray(f) for f in factors]
    got = relative_residual(*there, mask=None if mask is None else strict.asarray(mask))
    here = relative_residual(tensor.astype(np.float32), factors, mask=mask)
    assert got == pytest.approx(here, rel=1e-13)


def test_slabs_give_the_same_with_and_without_a_mask():
    tensor, factors = make((7, 4, 3), 2)
    mask = np.random.default_rng(2).random(tensor.shape) < 0.5
    blocks = Slabs(tensor, 3)
    assert relative_residual(blocks, factors) == pytest.approx(relative_residual(tensor, factors))
    assert relative_residual(blocks, factors, mask=mask) == pytest.approx(
        relative_residual(tensor, factors, mask=mask)
    )
    assert squared_norm(blocks) == pytest.approx(squared_norm(tensor))


def test_sparse_entries_and_their_zeros():
    tensor, factors = make((6, 5, 4), 2)
    tensor[np.random.default_rng(3).random(tensor.shape) < 0.8] = 0.0
    coordinates = np.array(np.nonzero(tensor))
    sparse = SimpleNamespace(
        coordinates=coordinates, values=tensor[tuple(coordinates)], shape=tensor.shape
    )
    assert relative_residual(sparse, factors) == pytest.approx(relative_residual(tensor, factors))
    assert squared_norm(sparse) == pytest.approx(squared_norm(tensor))
    with pytest.raises(ValueError, match="mask"):
        relative_residual(sparse, factors, mask=tensor != 0)


def test_an_exact_model_of_float32_data_leaves_the_rounding_of_the_data_alone():
    tensor, factors = make((20, 21, 22), 3, noise=0.0)
    assert relative_residual(tensor, factors) < 1e-15
    rounded = tensor.astype(np.float32)
    expected = np.linalg.norm(rounded - tensor) / np.linalg.norm(tensor)
    assert relative_residual(rounded, factors) == pytest.approx(expected, rel=1e-6)
    assert 1e-9 < expected < 6e-8


def test_a_zero_tensor_has_residual_zero_or_infinity():
    zero = [np.zeros((2, 1)), np.zeros((3, 1))]
    ones = [np.ones((2, 1)), np.ones((3, 1))]
    assert relative_residual(np.zeros((2, 3)), zero) == 0.0
    assert relative_residual(np.zeros((2, 3)), ones) == math.inf


def test_khatri_rao_and_the_norm_of_a_model():
    _, factors = make((3, 4, 5), 2)
    expected = np.einsum("is,js,ks->ijks", *factors).reshape(-1, 2)
    np.testing.assert_allclose(khatri_rao(factors), expected)
    assert khatri_rao(factors[:1]) is factors[0]
    assert model_squared_norm(factors) == pytest.approx((dense_model(factors) ** 2).sum())


def test_a_solution_tells_its_shape():
    _, factors = make((3, 4, 5), 2)
    solution = PolyadicSolution(tuple(factors), 0.5, "max_iter", 3, np.zeros(3), "")
    assert (solution.shape, solution.rank, solution.converged) == ((3, 4, 5), 2, False)
