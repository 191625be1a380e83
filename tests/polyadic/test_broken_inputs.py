"""Inputs that once broke the decomposition, found by trying what nobody had thought of."""

import warnings
from typing import Any

import numpy as np
import pytest

from tensoralg import KruskalTensor
from tensoralg.polyadic import decompose
from tensoralg.solvers.generalized_eigenvalue_start import mode_groups


def low_rank(shape: tuple[int, ...], rank: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape]).to_dense()


def test_sixteen_modes_have_few_enough_splits() -> None:
    """All of their 43 million splits in three groups were compared."""
    groups = mode_groups((2,) * 16, 20)
    assert groups is not None
    assert sorted(k for group in groups for k in group) == list(range(16))
    assert min(2 ** len(group) for group in groups[:2]) >= 20
    assert decompose(low_rank((2,) * 16, 2), 2, rng=0).fit == pytest.approx(1.0, abs=1e-6)


def test_one_mode_is_its_own_term_whatever_the_method() -> None:
    result = decompose([3.0, 0.0, 4.0], 2, method="compressed")
    assert result.fit == 1.0
    assert result.tensor.to_dense().tolist() == pytest.approx([3.0, 0.0, 4.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_overflow_nowhere(dtype: str, sign: int) -> None:
    X = np.full((3, 4, 2), sign * np.finfo(dtype).max, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = decompose(X, 1, rng=0)
    assert result.fit == pytest.approx(1.0, abs=1e-6)
    for part in (result.tensor.weights, *result.tensor.factors):
        assert np.isfinite(part).all()
