"""Means, variances and ranges of columns against numpy in extended precision."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.solvers.column_kernels import BLOCK, COLUMNS, pool_columns


def pooled(*parts):
    d = parts[0][0].shape[1]
    sums = [np.zeros(d), np.zeros(d), np.zeros(d), np.full(d, np.inf), np.full(d, -np.inf)]
    left_out = sum(pool_columns(X, np.empty(0) if w is None else w, *sums) for X, w in parts)
    return *sums, left_out


@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3, BLOCK - 1, BLOCK, 2 * BLOCK + 5]),
    st.sampled_from([1, 5, COLUMNS, COLUMNS + 3]),
    st.sampled_from([0.0, 1.0, 1e8]),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_agrees_with_numpy(seed, n, d, offset, dtype, weighted):
    rng = np.random.default_rng(seed)
    X = (offset + rng.standard_normal((n, d))).astype(dtype)
    X[rng.random((n, d)) < rng.choice([0.0, 0.3])] = rng.choice([np.nan, np.inf])
    w = rng.uniform(0.1, 3.0, n) if weighted else None
    mass, mean, squares, least, largest, left_out = pooled((X, w))
    known = np.isfinite(X)
    cell = known * np.longdouble(1 if w is None else w[:, None])
    x = np.where(known, X, 0).astype(np.longdouble)
    some = mass > 0
    center = (cell * x).sum(axis=0)[some] / cell.sum(axis=0)[some]
    about = (cell[:, some] * (x[:, some] - center) ** 2).sum(axis=0)
    assert left_out == (~known).sum()
    np.testing.assert_allclose(mass, cell.sum(axis=0).astype(float), rtol=1e-13)
    np.testing.assert_allclose(mean[some], center.astype(float), rtol=1e-14, atol=1e-13)
    # the mean that squares are taken about is rounded: eps * offset off
    slack = 1e-12 * mass[some] * max(1.0, (1e-8 * offset) ** 2 * 1e4)
    assert np.all(
        np.abs(squares[some] - about.astype(float)) <= 1e-11 * about.astype(float) + slack
    )
    assert np.array_equal(least[some], np.where(known, X, np.inf).min(axis=0)[some])
    assert np.array_equal(largest[some], np.where(known, X, -np.inf).max(axis=0)[some])


def test_columns_without_cells_stay_empty():
    mass, _, squares, least, largest, left_out = pooled((np.full((3, 1), np.nan), None))
    assert (mass[0], squares[0], least[0], largest[0], left_out) == (0, 0, np.inf, -np.inf, 3)


def test_weight_three_is_three_rows_and_parts_pool():
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((700, 4)), rng.integers(1, 4, 700)
    whole = pooled((X, w.astype(float)))
    for other in (
        pooled((np.repeat(X, w, axis=0), None)),
        pooled((X[:400], w[:400].astype(float)), (X[400:], w[400:].astype(float))),
    ):
        for a, b in zip(whole, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("value", [3.0, 1e300, -0.1])
def test_constant_columns_have_no_spread(value):
    _, mean, squares, least, largest, _ = pooled((np.full((1000, 2), value), None))
    assert np.array_equal(mean, [value, value])
    assert not squares.any()
    assert least[0] == largest[0] == value
