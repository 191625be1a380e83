from itertools import product

import numpy as np
import pytest

from tensoralg.core.monomials import graded_indices, number_of_monomials
from tensoralg.gpu.moment_features import (
    feature_plan,
    gram_of_rows,
    product_gram,
)
from tensoralg.gpu.moment_sweep import sweep_gram, sweep_plan
from tensoralg.gpu.row_chunks import chunk_mean, rows_of


def reference_features(points, degree, *, powers=False):
    """Features by their definition."""
    monomials = graded_indices(points.shape[1], degree, powers=powers)
    return np.concatenate([points[:, indices].prod(axis=-1) for indices in monomials], axis=1)


CASES = [*product((1, 2, 4, 7), (1, 2, 3, 4, 5, 6), (False, True))]


@pytest.mark.parametrize(("dimension", "order", "powers"), CASES)
def test_both_engines_against_the_reference(dimension, order, powers):
    rng = np.random.default_rng(order)
    X, weight = rng.normal(size=(137, dimension)), rng.uniform(size=137)
    shift, scale = rng.normal(size=dimension), rng.uniform(0.5, 2, dimension)
    features = reference_features((X - shift) / scale, order - order // 2, powers=powers)
    left = features[:, : number_of_monomials(dimension, order // 2, powers=powers)]
    for w in (None, weight):
        expected = (left if w is None else left * w[:, None]).T @ features
        for engine in (sweep_gram, product_gram, gram_of_rows):
            gram, mask_gram = engine(X, w, shift, scale, order, powers=powers)
            np.testing.assert_allclose(
                gram, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max()
            )
            assert mask_gram is None


@pytest.mark.parametrize("order", [2, 3, 4])
def test_both_engines_leave_missing_cells_out(order):
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(90, 4)), rng.uniform(size=90)
    X[rng.random(X.shape) < 0.3] = np.nan
    filled, present = np.nan_to_num(X), (~np.isnan(X)).astype(float)
    expected = []
    for points in (filled, present):
        features = reference_features(points, order - order // 2)
        left = features[:, : number_of_monomials(4, order // 2)]
        expected.append((left * weight[:, None]).T @ features)
    for engine in (sweep_gram, product_gram):
        found = engine(X, weight, np.zeros(4), np.ones(4), order, missing=True)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 511, 512, 513, 16_385])
def test_row_counts_around_the_inner_chunks(rows):
    X = np.random.default_rng(rows).normal(size=(rows, 3))
    features = reference_features(X, 2)
    gram, _ = sweep_gram(X, None, np.zeros(3), np.ones(3), 3)
    np.testing.assert_allclose(gram, features[:, :4].T @ features, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("powers", [False, True])
def test_plan_multiplies_parents_by_last_coordinates(powers):
    plan = feature_plan(5, 3, powers=powers)
    monomials = [tuple(i) for part in graded_indices(5, 3, powers=powers) for i in part.tolist()]
    assert plan.size == len(monomials) == number_of_monomials(5, 3, powers=powers)
    for k in range(1, plan.size):
        assert monomials[plan.parent[k]] + (plan.coordinate[k],) == monomials[k]


def test_sweep_takes_few_more_products_than_there_are_moments():
    plan = sweep_plan(20, 4, powers=True)
    assert 10_626 <= plan.n_sums <= 1.3 * 10_626
    # without powers nothing is spent on a coordinate that occurs three times on one side
    assert sweep_plan(10, 6).n_sums < sweep_plan(10, 6, powers=True).n_sums


def test_not_finite_values_reach_the_result():
    for bad in (np.nan, np.inf):
        X = np.ones((2000, 4))
        X[1234, 2] = bad
        gram, _ = sweep_gram(X, None, np.zeros(4), np.ones(4), 3)
        assert not np.isfinite(gram).all()


def test_rows_of_drops_weightless_rows_and_converts():
    X = np.arange(12, dtype=np.int32).reshape(6, 2)
    X.flags.writeable = False
    weight = np.array([0, 1, 0, 0, 2, 1], dtype=np.float32)
    chunks = [(rows.tolist(), w.tolist()) for rows, w in rows_of(X, weight, 2)]
    assert chunks == [([[2, 3]], [1.0]), ([[8, 9], [10, 11]], [2.0, 1.0])]
    rows, w = next(rows_of(X.astype(float), None, 4))
    assert (rows.shape, w) == ((4, 2), None)


def test_chunk_mean_over_several_chunks():
    rng = np.random.default_rng(0)
    X, weight = 1e6 + rng.normal(size=(9000, 3)), rng.uniform(size=9000)
    np.testing.assert_allclose(chunk_mean(X, None), X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(
        chunk_mean(X, weight), np.average(X, axis=0, weights=weight), rtol=1e-13
    )
    X[rng.random(X.shape) < 0.4] = np.nan
    X[0] = np.nan
    np.testing.assert_allclose(chunk_mean(X, None, missing=True), np.nanmean(X, axis=0), rtol=1e-13)
