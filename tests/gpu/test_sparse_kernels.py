"""Sparse products against their dense definitions and against pyttb."""

from typing import Any

import numpy as np
import pytest
import pyttb
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.gpu.sparse_kernels import model_entries, sparse_mttkrp
from tensoralg.gpu.sparse_tensor import SparseTensor


def random_problem(shape: tuple[int, ...], nnz: int, rank: int, seed: int, dtype: Any) -> Any:
    rng = np.random.default_rng(seed)
    where = np.array([rng.integers(0, n, nnz) for n in shape]).reshape(len(shape), nnz)
    S = SparseTensor(where, rng.standard_normal(nnz).astype(dtype), shape)
    return S, [rng.standard_normal((n, rank)).astype(dtype) for n in shape]


problems = st.builds(
    random_problem,
    st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple),
    st.integers(0, 40),
    st.integers(0, 6),
    st.integers(0, 99),
    st.sampled_from([np.float32, np.float64]),
)


def plain_mttkrp(X: Any, factors: Any, mode: int) -> Any:
    """The definition."""
    letters = "abcdef"[: X.ndim]
    others = [k for k in range(X.ndim) if k != mode]
    inputs = ",".join([letters] + [letters[k] + "r" for k in others])
    if not others:
        return np.repeat(X[:, None], factors[0].shape[1], axis=1)
    return np.einsum(f"{inputs}->{letters[mode]}r", X, *[factors[k] for k in others])


@given(problems)
def test_products_follow_the_definition(problem: Any) -> None:
    S, factors = problem
    dense = S.to_dense().astype(np.float64)
    wide = [f.astype(np.float64) for f in factors]
    tolerance = 1e-4 if S.dtype == np.float32 else 1e-11
    for mode in range(S.ndim):
        result = sparse_mttkrp(S, factors, mode)
        assert result.dtype == S.dtype
        np.testing.assert_allclose(result, plain_mttkrp(dense, wide, mode), atol=tolerance)
    model = np.einsum(
        ",".join("abcdef"[k] + "r" for k in range(S.ndim)) + "->" + "abcdef"[: S.ndim], *wide
    )
    np.testing.assert_allclose(
        model_entries(S.coordinates, factors), model[tuple(S.coordinates)], atol=1e-10
    )


@pytest.mark.parametrize("shape", [(6, 7, 8), (3, 4, 5, 6)])
def test_dispatch_and_pyttb_agree(shape: tuple[int, ...]) -> None:
    S, factors = random_problem(shape, 60, 4, 0, np.float64)
    peer = pyttb.sptensor(S.coordinates.T.copy(), S.values[:, None].copy(), shape)
    for mode in range(len(shape)):
        np.testing.assert_allclose(mttkrp(S, factors, mode), peer.mttkrp(factors, mode), atol=1e-12)


def test_mixed_dtypes_compute_in_the_wider_one() -> None:
    S, factors = random_problem((3, 4, 5), 10, 2, 1, np.float32)
    wide = [f.astype(np.float64) for f in factors]
    assert sparse_mttkrp(S, wide, 0).dtype == np.float64
