"""Multi-index arithmetic against itertools and exact integers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.indices import (
    multi_indices,
    multiplicities,
    number_of_multi_indices,
    pad_multi_indices,
    rank_multi_indices,
    rank_square_free,
    square_free_indices,
    unrank_multi_indices,
    unrank_square_free,
)

sizes = st.tuples(st.integers(1, 7), st.integers(0, 5))


@given(sizes)
def test_listings_equal_itertools(size: tuple[int, int]) -> None:
    n, m = size
    expected = list(itertools.combinations_with_replacement(range(n), m))
    assert [tuple(row) for row in multi_indices(n, m).tolist()] == expected
    assert number_of_multi_indices(n, m) == len(expected)
    expected = list(itertools.combinations(range(n), m))
    assert [tuple(row) for row in square_free_indices(n, m).tolist()] == expected
    assert square_free_indices(n, m).shape == (math.comb(n, m), m)


@given(sizes)
def test_rank_is_the_position(size: tuple[int, int]) -> None:
    n, m = size
    rows = multi_indices(n, m)
    np.testing.assert_array_equal(rank_multi_indices(rows, n), np.arange(len(rows)))
    rows = square_free_indices(n, m)
    np.testing.assert_array_equal(rank_square_free(rows, n), np.arange(len(rows)))
    np.testing.assert_array_equal(unrank_square_free(np.arange(len(rows)), n, m), rows)


@given(st.integers(1, 2000), st.integers(1, 6), st.data())
def test_rank_and_unrank_are_inverse_in_large_spaces(n: int, m: int, data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, number_of_multi_indices(n, m) - 1), max_size=6))
    rows = unrank_multi_indices(np.array(ranks, dtype=np.int64), n, m)
    assert rows.shape == (len(ranks), m)
    np.testing.assert_array_equal(rank_multi_indices(rows, n), ranks)
    if n >= m:
        ranks = [rank % math.comb(n, m) for rank in ranks]
        rows = unrank_square_free(np.array(ranks, dtype=np.int64), n, m)
        assert np.all(np.diff(rows, axis=1) > 0)
        np.testing.assert_array_equal(rank_square_free(rows, n), ranks)


def test_rank_keeps_leading_axes() -> None:
    rows = multi_indices(3, 2).reshape(2, 3, 2)
    np.testing.assert_array_equal(rank_multi_indices(rows, 3), [[0, 1, 2], [3, 4, 5]])
    assert rank_multi_indices([0, 2], 3) == 2
    np.testing.assert_array_equal(unrank_multi_indices(2, 3, 2), [0, 2])
    assert rank_multi_indices(np.empty((0, 2), dtype=int), 3).shape == (0,)


@given(sizes)
def test_multiplicities_count_orderings(size: tuple[int, int]) -> None:
    n, m = size
    rows = multi_indices(n, m)
    counts = multiplicities(rows)
    assert counts.dtype == np.int64
    assert counts.sum() == n**m
    for row, count in zip(rows.tolist()[:12], counts.tolist(), strict=False):
        assert count == len(set(itertools.permutations(row)))


def test_multiplicities_beyond_int64() -> None:
    assert multiplicities(np.arange(20)) == math.factorial(20)
    large = multiplicities(np.arange(25))
    assert large.dtype == np.float64
    np.testing.assert_allclose(large, float(math.factorial(25)), rtol=1e-15)
    assert multiplicities([1, 0, 1]) == 3


def test_order_zero_and_empty_spaces() -> None:
    assert multi_indices(4, 0).shape == (1, 0)
    assert square_free_indices(4, 0).shape == (1, 0)
    assert square_free_indices(2, 3).shape == (0, 3)
    assert multi_indices(0, 2).shape == (0, 2)
    assert multi_indices(0, 0).shape == (1, 0)
    assert rank_multi_indices(np.empty((1, 0), dtype=int), 4).tolist() == [0]
    assert multiplicities(np.empty((1, 0), dtype=int)).tolist() == [1]


def test_listings_are_read_only() -> None:
    for rows in (multi_indices(3, 2), square_free_indices(3, 2)):
        with pytest.raises(ValueError, match="read-only"):
            rows[0, 0] = 1


def test_overflow_is_an_error() -> None:
    with pytest.raises(ProblemTooLargeError, match="64-bit"):
        rank_multi_indices(np.arange(20), 2000)
    with pytest.raises(ProblemTooLargeError, match="64-bit"):
        unrank_multi_indices(0, 2000, 20)
    with pytest.raises(ProblemTooLargeError, match="dimension=2000"):
        multi_indices(2000, 5)
    with pytest.raises(ProblemTooLargeError, match="order=5"):
        square_free_indices(2000, 5)
    assert number_of_multi_indices(2000, 20) == math.comb(2019, 20)


def test_counts_and_tables_beyond_reach_are_refused_at_once() -> None:
    with pytest.raises(ProblemTooLargeError, match="too many"):
        number_of_multi_indices(10**7, 10**7)
    with pytest.raises(ProblemTooLargeError, match="too many"):
        square_free_indices(10**8, 10**7)
    with pytest.raises(ProblemTooLargeError, match="table of 3000000000 numbers"):
        rank_multi_indices([[0, 10**6]], 10**9)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="dimension must be at least 0"):
        multi_indices(-1, 2)
    with pytest.raises(TypeError, match="order must be an integer"):
        multi_indices(2, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sorted"):
        rank_multi_indices([[0, 0], [1, 0]], 2)
    with pytest.raises(ValueError, match="strictly"):
        rank_square_free([0, 0], 2)
    with pytest.raises(IndexError, match="got 2"):
        rank_multi_indices([0, 2], 2)
    with pytest.raises(IndexError, match="got -1"):
        rank_square_free([-1, 0], 2)
    with pytest.raises(IndexError, match="ranks"):
        unrank_multi_indices([3], 2, 2)
    with pytest.raises(TypeError, match="float64"):
        rank_multi_indices([0.0, 1.0], 2)
    with pytest.raises(ShapeError, match="single number"):
        rank_multi_indices(1, 2)
    with pytest.raises(IndexError, match="64 signed bits"):
        rank_multi_indices(np.array([2**64 - 1], dtype=np.uint64), 2)


def test_padding_names_the_same_homogenised_monomial():
    x = np.array([1.0, 2.0, 3.0, 5.0])  # the constant first
    indices = multi_indices(4, 2)
    padded = pad_multi_indices(indices, 5)
    assert padded.shape == (len(indices), 5)
    assert (np.diff(padded, axis=1) >= 0).all()
    np.testing.assert_array_equal(x[padded].prod(axis=1), x[indices].prod(axis=1))
    with pytest.raises(ValueError, match="order must be at least 2"):
        pad_multi_indices(indices, 1)
