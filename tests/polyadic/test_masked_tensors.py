"""Tensors with missing cells are not copied at the border, whatever those cells hold."""

import numpy as np
import pytest

from tensoralg import KruskalTensor
from tensoralg.polyadic import decompose
from tensoralg.polyadic.inputs import prepare_tensor

SHAPE = (7, 6, 5)


def holed(filler: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = KruskalTensor(None, [rng.standard_normal((n, 2)) for n in SHAPE]).to_dense()
    mask = rng.random(SHAPE) < 0.8
    return np.where(mask, X, filler), mask


@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e300])
def test_a_masked_tensor_is_not_copied(filler: float) -> None:
    X, mask = holed(filler)
    prepared = prepare_tensor(X, mask)
    assert prepared.data is X
    assert prepared.exponent == 0


def test_only_observed_cells_decide_the_scale() -> None:
    X, mask = holed(1e300)
    prepared = prepare_tensor(X * 1e-200, mask)
    assert 0.25 <= np.abs(prepared.data[mask]).max() <= 1.0
    assert np.array_equal(prepared.data[mask] * 2.0**prepared.exponent, (X * 1e-200)[mask])


@pytest.mark.parametrize("filler", [np.nan, 1e300])
def test_singular_vectors_do_not_see_missing_cells(filler: float) -> None:
    X, mask = holed(filler)
    result = decompose(X, 2, mask=mask, init="svd", rng=0, max_iter=2000)
    assert result.fit > 1 - 1e-4


def test_a_vector_with_missing_cells() -> None:
    x = np.array([1.0, np.nan, 3.0])
    result = decompose(x, 1, mask=~np.isnan(x))
    assert result.fit == 1.0
    assert result.tensor.to_dense() == pytest.approx([1.0, 0.0, 3.0])


def test_missing_cells_do_not_hide_that_the_rest_is_zero() -> None:
    X = np.zeros(SHAPE)
    X[0, 0, 0] = np.nan
    result = decompose(X, 2, mask=~np.isnan(X))
    assert result.fit == 1.0
    assert not result.tensor.to_dense().any()
