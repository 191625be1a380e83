"""IncompleteSymmetricTensor: partial knowledge, lookups and residuals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import IncompleteSymmetricTensor, SymmetricDecomposition, SymmetricTensor
from tensoralg.core.indices import multi_indices, square_free_indices
from tensoralg.errors import ShapeError


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_partial_norms_are_masked_dense_norms(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = multi_indices(n, m)
    S = SymmetricTensor(rng.standard_normal(len(rows)), m, n)
    T = SymmetricTensor(rng.standard_normal(len(rows)), m, n)
    known = rng.permutation(len(rows))[: rng.integers(0, len(rows) + 1)]
    mask = np.zeros(len(rows))
    mask[known] = 1.0
    dense_mask = SymmetricTensor(mask, m, n).to_dense()
    partial = IncompleteSymmetricTensor(rng.permuted(rows[known], axis=1), S.entries[known], m, n)
    np.testing.assert_allclose(partial.norm(), np.linalg.norm((dense_mask * S.to_dense()).ravel()))
    expected = np.sum(dense_mask * S.to_dense() * T.to_dense())
    np.testing.assert_allclose(partial.inner(T), expected, rtol=1e-10, atol=1e-12)
    same = IncompleteSymmetricTensor(rows, T.entries, m, n)
    np.testing.assert_allclose(partial.inner(same), expected, rtol=1e-10, atol=1e-12)
    assert partial.allclose(S)
    np.testing.assert_array_equal(partial.lookup(rows[known]), S.entries[known])


@given(st.integers(1, 6), st.integers(1, 4))
def test_distinct_keeps_square_free_entries(n: int, m: int) -> None:
    T = SymmetricTensor(np.arange(len(multi_indices(n, m))), m, n)
    D = IncompleteSymmetricTensor.distinct(T)
    np.testing.assert_array_equal(D.indices, square_free_indices(n, m))
    assert D.values.shape == (math.comb(n, m),)
    for row, value in zip(D.indices.tolist(), D.values.tolist(), strict=True):
        assert T[tuple(row)] == value
    again = IncompleteSymmetricTensor.distinct(
        IncompleteSymmetricTensor(T.indices, T.entries, m, n)
    )
    np.testing.assert_array_equal(again.values, D.values)
    assert np.all(D.multiplicities == math.factorial(m))


def test_residual_counts_known_entries_only() -> None:
    rng = np.random.default_rng(3)
    D = SymmetricDecomposition(rng.random(3), rng.standard_normal((3, 5)))
    T = IncompleteSymmetricTensor.distinct(D.to_tensor(3))
    assert T.residual(D) < 1e-15
    values = T.values.copy()
    values[4] += 1.0
    wrong = IncompleteSymmetricTensor(T.indices, values, 3, 5)
    np.testing.assert_allclose(wrong.residual(D), math.sqrt(6.0) / wrong.norm(), rtol=1e-12)
    assert wrong.residual(D) == D.residual(wrong)


def test_residual_of_nothing() -> None:
    none = IncompleteSymmetricTensor([], [], 3, 4)
    D = SymmetricDecomposition([1.0], [[1.0, 1.0, 1.0, 1.0]])
    assert none.indices.shape == (0, 3)
    assert none.norm() == 0.0
    assert none.residual(D) == 0.0
    assert IncompleteSymmetricTensor([[0, 1, 2]], [0.0], 3, 4).residual(D) == math.inf
    with pytest.raises(KeyError, match=r"\(0, 1, 2\)"):
        none[0, 1, 2]


def test_unknown_entries_are_named() -> None:
    T = IncompleteSymmetricTensor([[3, 1], [0, 2]], [1.0, 2.0], 2, 4)
    assert T.indices.tolist() == [[1, 3], [0, 2]]
    assert T[2, 0] == 2.0
    with pytest.raises(KeyError, match=r"\(3, 3\) is not known"):
        T[3, 3]
    with pytest.raises(KeyError, match=r"\(0, 1\)"):
        T.lookup([[1, 3], [1, 0]])
    with pytest.raises(IndexError, match="2 indices"):
        T.lookup([[1, 2, 3]])
    with pytest.raises(KeyError, match=r"\(1, 3\)"):
        T.inner(IncompleteSymmetricTensor([[0, 2]], [1.0], 2, 4))


def test_difference_with_a_complete_tensor_keeps_the_known_entries() -> None:
    T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
    D = IncompleteSymmetricTensor.distinct(T)
    assert (D - T).values.tolist() == [0.0]
    with pytest.raises(TypeError):
        T - D


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"row 2 repeats row 0: \[0, 1\]"):
        IncompleteSymmetricTensor([[0, 1], [1, 1], [1, 0]], [1.0, 2.0, 1.0], 2, 2)
    with pytest.raises(ShapeError, match=r"\(N, 3\)"):
        IncompleteSymmetricTensor([[0, 1]], [1.0], 3, 2)
    with pytest.raises(ShapeError, match=r"\(1, 2\) and \(2,\)"):
        IncompleteSymmetricTensor([[0, 1]], [1.0, 2.0], 2, 2)
    with pytest.raises(IndexError, match="got 2"):
        IncompleteSymmetricTensor([[0, 2]], [1.0], 2, 2)
    with pytest.raises(IndexError, match="got -1"):
        IncompleteSymmetricTensor([[0, -1]], [1.0], 2, 2)
    with pytest.raises(TypeError, match="integers"):
        IncompleteSymmetricTensor([[0.0, 1.0]], [1.0], 2, 2)
    with pytest.raises(ValueError, match="nan at index 0"):
        IncompleteSymmetricTensor([[0, 1]], [np.nan], 2, 2)
    with pytest.raises(TypeError, match="from_dense"):
        IncompleteSymmetricTensor.distinct(np.eye(2))  # type: ignore[arg-type]
