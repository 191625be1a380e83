"""Samples of rows depend on what the rows hold, not on how they are stored."""

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensoralg.mixtures.dask_rows import DaskRows
from tensoralg.mixtures.row_sample import limit_of_keys, salt_of, sample_of
from tensoralg.mixtures.rows import RowSource
from tensoralg.solvers.row_kernels import content_keys, count_outside, hide_outside, nearest

Array = NDArray[Any]


def drawn(source: RowSource, size: int, seed: int = 5) -> tuple[Array, Array | None]:
    found = source.sample(np.random.default_rng(seed), size)
    assert found is not None
    return found


def in_chunks(X: Array, parts: int) -> RowSource:
    return RowSource.from_chunks(np.array_split(X, parts), lambda part: (part, None))


@pytest.mark.parametrize("size", [300, 5000])
def test_weights_are_repetitions_and_neither_order_nor_chunks_matter(size: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    X[:, :2][rng.random((2000, 2)) < 0.1] = np.nan
    weight = rng.integers(1, 4, 2000).astype(np.float64)
    repeated = rng.permutation(np.repeat(X, weight.astype(int), axis=0))
    rows, mass = drawn(RowSource.from_checked(X, weight), size)
    assert len(rows) == min(size, 2000)
    with dask.config.set(scheduler="synchronous"):
        others = [
            drawn(RowSource.from_checked(repeated, None), size),
            drawn(in_chunks(repeated, 7), size),
            drawn(DaskRows(da.from_array(X, chunks=(301, 3)), weight, missing=True), size),
            drawn(DaskRows(da.from_array(repeated, chunks=(301, 3)), None, missing=True), size),
        ]
    for found, weights in others:
        np.testing.assert_array_equal(found, rows)
        np.testing.assert_array_equal(weights, mass)


def test_rows_without_repetition_have_no_weights() -> None:
    X = np.random.default_rng(1).normal(size=(900, 2))
    rows, weights = drawn(in_chunks(X, 4), 200)
    assert rows.shape == (200, 2)
    assert weights is None
    assert drawn(RowSource.from_checked(X, np.ones(900)), 200)[1] is not None


def test_few_distinct_rows_are_all_there_with_their_counts() -> None:
    X = np.random.default_rng(2).integers(0, 3, (50_000, 4)).astype(np.float32)
    rows, weights = drawn(in_chunks(X, 3), 1000)
    distinct, counts = np.unique(X, axis=0, return_counts=True)
    order = np.lexsort(rows.T[::-1])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[order], distinct)
    assert weights is not None
    np.testing.assert_array_equal(weights[order], counts)


def test_a_repeated_row_does_not_crowd_out_the_others() -> None:
    X = np.concatenate([np.zeros((30_000, 2)), np.random.default_rng(3).normal(size=(400, 2))])
    rows, weights = drawn(RowSource.from_checked(X, None), 400)
    assert len(rows) == 400
    assert weights is not None
    assert sorted(set(weights)) == [1.0, 30_000.0]


def test_another_salt_gives_another_uniform_sample() -> None:
    X = np.arange(20_000.0)[:, None]
    one, two = (drawn(RowSource.from_checked(X, None), 4000, seed)[0][:, 0] for seed in (0, 1))
    assert 600 < len(np.intersect1d(one, two)) < 1000  # 800 by chance
    share = np.histogram(one, bins=10, range=(0, 20_000))[0] / 400
    assert 0.8 < share.min() < share.max() < 1.2


def test_no_rows_within_the_limit() -> None:
    X = np.arange(50.0)[:, None]
    salt = salt_of(np.random.default_rng(0))
    assert len(sample_of(10, salt, limit_of_keys(1e-9), 0, X, None).keys) == 0


@given(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=60))
def test_keys_are_equal_where_rows_are(cells: list[list[int]]) -> None:
    X = np.array(cells, dtype=np.float64)
    X[X == 2] = np.nan
    X[X == -2] = -0.0
    keys = content_keys(X, np.uint64(7))
    same = ((X[:, None] == X[None]) | (np.isnan(X[:, None]) & np.isnan(X[None]))).all(axis=2)
    np.testing.assert_array_equal(keys[:, None] == keys[None], same)
    np.testing.assert_array_equal(content_keys(X.astype(np.float32), np.uint64(7)), keys)


def test_cells_out_of_bounds() -> None:
    X = np.array([[0.0, 5.0], [np.nan, -5.0], [-9.0, 9.0], [1.0, 4.0]])
    low, high = np.array([[-1.0, -4.0], [-9.0, 0.0]]), np.array([[1.0, 4.0], [9.0, 9.0]])
    labels = np.array([0, 0, 0, 1])
    np.testing.assert_array_equal(count_outside(X, labels, low, high), [1, 1, 2, 0])
    hide_outside(X, labels, low, high)
    np.testing.assert_array_equal(np.isnan(X), [[0, 1], [1, 1], [1, 1], [0, 0]])


def test_rows_belong_to_the_component_of_most_of_their_cells() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(scale=3.0, size=(400, 6))
    X[rng.random(X.shape) < 0.2] = np.nan
    centre = rng.normal(size=(4, 6))
    below, above = rng.uniform(0.5, 1.5, (2, 4, 6))
    levels = np.log(rng.dirichlet(np.ones(4)))
    gap = X[:, None] - centre
    z = np.where(gap < 0, gap / below, gap / above)
    cost = np.minimum(0.5 * z**2, 8.0) + np.log(0.5 * (below + above))
    wanted = (levels - np.nansum(cost, axis=2)).argmax(axis=1)
    np.testing.assert_array_equal(nearest(X, levels, centre, below, above, 4.0), wanted)
