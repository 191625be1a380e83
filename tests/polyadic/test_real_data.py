"""Measured tensors that come with TensorLy: at least the fits that are known, masks included."""

from typing import Any

import numpy as np
import pytest
from tensorly.cp_tensor import cp_to_tensor
from tensorly.datasets import load_covid19_serology, load_IL2data, load_kinetic
from tensorly.decomposition import parafac

from tensoralg.polyadic import decompose


def peer_fit(X: Any, rank: int, mask: Any = None, **options: Any) -> float:
    """What TensorLy's alternating least squares reaches."""
    filled = X if mask is None else np.where(mask, X, 0.0)
    model = cp_to_tensor(parafac(filled, rank, mask=mask, random_state=0, **options))
    error = (model - filled) if mask is None else (model - filled)[mask]
    return float(1 - np.linalg.norm(error) / np.linalg.norm(filled))


@pytest.mark.parametrize("rank", [2, 4])
def test_serology_of_covid_19(rank: int) -> None:
    X = np.asarray(load_covid19_serology().tensor)
    result = decompose(X, rank, rng=0)
    assert result.status == "converged"
    assert result.fit >= peer_fit(X, rank, init="svd", n_iter_max=200) - 1e-5


@pytest.mark.parametrize("rank", [2, 3])
def test_interleukin_responses_with_missing_cells(rank: int) -> None:
    X = np.asarray(load_IL2data().tensor)
    mask = np.isfinite(X)
    assert (~mask).sum() == 192
    result = decompose(X, rank, mask=mask, rng=0, n_starts=3, max_iter=2000)
    assert result.fit >= peer_fit(X, rank, mask, init="random", n_iter_max=100) - 1e-5


def test_kinetic_fluorescence_of_order_four() -> None:
    X = np.asarray(load_kinetic().tensor)
    result = decompose(X, 3, rng=0)
    assert result.tensor.shape == (64, 12, 10, 60)
    assert result.fit == pytest.approx(0.950233, abs=1e-5)
