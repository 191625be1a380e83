"""Inputs that break other implementations, each with a variation of the same kind."""

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator

Array = NDArray[Any]
# several warnings are right at once here; each test names the one that it is about
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def truth(d: int = 5, r: int = 2, seed: int = 0) -> DiagonalGaussianMixture:
    rng = np.random.default_rng(seed)
    means = 1.5 * rng.standard_normal((r, d))
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(r, 5.0)), means, rng.uniform(0.3, 1.5, (r, d))
    )


def rows(n: int = 1000, d: int = 5, r: int = 2, seed: int = 0) -> Array:
    return truth(d, r, seed).sample(n, random_state=seed)[0]


def fitted(X: Any, n_components: int = 2, **options: Any) -> DiagonalGaussianMixture:
    weight = options.pop("sample_weight", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DiagonalGaussianMixture(n_components, random_state=0, **options)
        return model.fit(X, sample_weight=weight)


def two_clusters(centre: float, n: int, rng: np.random.Generator) -> Array:
    return np.concatenate([rng.normal(-centre, 1, n), rng.normal(centre, 1, n)])


@pytest.mark.parametrize(("high", "dtype"), [(5001.0, np.float32), (-123456.0, np.float64)])
def test_case_1_two_rows_far_apart_have_the_floor_as_variance(high: float, dtype: Any) -> None:
    X = np.array([[high], [0.0]], dtype=dtype)
    model = fitted(X, reg_covar=0.01 / (high / 2) ** 2)
    np.testing.assert_allclose(model.covariances_, 0.01, rtol=1e-4)
    assert model.means_.dtype == dtype


@pytest.mark.parametrize(("offset", "d"), [(1e8, 1), (-3e9, 4)])
def test_case_2_a_large_offset_costs_no_digits(offset: float, d: int) -> None:
    X = np.random.default_rng(0).normal(size=(2000, d))
    model = fitted(offset + X, 1)
    np.testing.assert_allclose(model.covariances_[0], X.var(axis=0), rtol=1e-5)
    assert model.score(offset + X) == pytest.approx(model.lower_bound_, rel=1e-6)


def test_case_2_the_same_with_two_components() -> None:
    X = rows()
    plain, moved = fitted(X), fitted(X + 1e8)
    np.testing.assert_allclose(moved.means_ - 1e8, plain.means_, atol=1e-5)
    np.testing.assert_allclose(moved.covariances_, plain.covariances_, rtol=1e-5)
    assert moved.score(X + 1e8) == pytest.approx(plain.score(X), abs=1e-6)


@pytest.mark.parametrize(("unit", "d"), [(1e-5, 1), (1e-9, 3), (1e7, 3)])
def test_case_3_floors_are_relative(unit: float, d: int) -> None:
    rng = np.random.default_rng(1)
    X = unit * np.concatenate([rng.normal(0, 1, (500, d)), rng.normal(9, 1, (500, d))])
    model = fitted(X)
    np.testing.assert_allclose(np.sqrt(model.covariances_) / unit, 1.0, atol=0.1)


@pytest.mark.parametrize("noise_columns", [1, 3])
@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_case_4_one_informative_column_among_loud_ones(noise_columns: int, unit: float) -> None:
    rng = np.random.default_rng(2)
    X = np.column_stack([two_clusters(3, 500, rng), unit * rng.normal(size=(1000, noise_columns))])
    np.testing.assert_allclose(np.sort(fitted(X).means_[:, 0]), [-3, 3], atol=0.25)


@pytest.mark.parametrize("move", [50.0, -1e4])
def test_case_5_a_warm_start_far_from_the_data_recovers(move: float) -> None:
    X = rows(1000)
    model = DiagonalGaussianMixture(2, warm_start=True, random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X + move)
    assert model.diagnostics_.start in ("warm", "k-means++")
    inside = (model.means_ > (X + move).min(axis=0)) & (model.means_ < (X + move).max(axis=0))
    assert inside.all()
    assert model.score(X + move) > fitted(X, 1).score(X)


@pytest.mark.parametrize(
    ("places", "asked"), [([(0.0, 0.0), (5.0, 5.0)], 4), ([(1.0, 2.0), (1.0, 3.0), (4.0, 0.0)], 5)]
)
def test_case_6_no_component_is_invented(places: list[tuple[float, float]], asked: int) -> None:
    X = np.repeat(np.array(places), 60, axis=0)
    with pytest.warns(UserWarning, match="effective components"):
        model = DiagonalGaussianMixture(asked, random_state=0).fit(X)
    assert model.n_components_ == len(places) == len(model.weights_)
    order = np.lexsort(model.means_.T[::-1])
    np.testing.assert_allclose(model.means_[order], np.array(places), atol=1e-9)


@pytest.mark.parametrize(("values", "counts"), [((1.0, 0.4), (25, 5)), ((-2.0, 7.0), (3, 90))])
def test_case_7_two_values_end_at_the_floor(
    values: tuple[float, float], counts: tuple[int, int]
) -> None:
    X = np.repeat(np.array(values), counts)[:, None]
    with pytest.warns(UserWarning, match="collapsed in column 0"):
        model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), np.sort(values), atol=1e-9)
    np.testing.assert_allclose(model.covariances_, 1e-6 * X.var(), rtol=1e-6)
    assert sorted(model.diagnostics_.floored) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(("value", "place"), [(3.0, 5), (-1e6, 0)])
def test_case_8_a_constant_column_takes_no_part(value: float, place: int) -> None:
    X = rows()
    with pytest.warns(UserWarning, match=rf"columns \[{place}\] are constant"):
        model = DiagonalGaussianMixture(2, random_state=0).fit(np.insert(X, place, value, axis=1))
    plain = fitted(X)
    np.testing.assert_array_equal(model.means_[:, place], value)
    assert (model.covariances_[:, place] <= 1e-6).all()
    np.testing.assert_allclose(np.delete(model.means_, place, axis=1), plain.means_, atol=1e-8)
    assert model.diagnostics_.constant_columns == [place]
    assert model.diagnostics_.moment_residual == pytest.approx(plain.diagnostics_.moment_residual)


@pytest.mark.parametrize("weights", [(1.2, 0.8), (1.5, -0.5), (0.2, 0.2)])
def test_case_9_weights_that_are_none(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"sum of .* range from"):
        DiagonalGaussianMixture.from_parameters(weights, np.zeros((2, 1)), np.ones((2, 1)))


@pytest.mark.parametrize("n_components", [1, 2, 5])
@pytest.mark.parametrize("times", [3, 7])
def test_case_10_weights_are_repetitions(n_components: int, times: int) -> None:
    X = rows(200)
    weight = np.ones(200)
    weight[:40], weight[100:110] = times, 0.0
    wild = X.copy()
    wild[100:110] = np.array([np.nan, np.inf, 1e300, -1e200, 0.0])
    weighted = fitted(wild, n_components, sample_weight=weight)
    repeated = fitted(np.repeat(X, weight.astype(int), axis=0), n_components)
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(weighted.covariances_, repeated.covariances_, rtol=1e-9)
    np.testing.assert_allclose(weighted.weights_, repeated.weights_, rtol=1e-9)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-12)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_case_11_missing_cells(share: float) -> None:
    X = rows(3000)
    X[np.random.default_rng(3).random(X.shape) < share] = np.nan
    model = DiagonalGaussianMixture(2, missing=True, random_state=0).fit(X)
    known = truth()
    order = np.argsort(-known.weights_)
    np.testing.assert_allclose(model.means_, known.means_[order], atol=0.3)
    empty = np.isnan(X).all(axis=1)
    assert model.diagnostics_.missing == np.isnan(X[~empty]).sum()
    expected = np.tile(model.weights_, (empty.sum(), 1))
    np.testing.assert_allclose(model.predict_proba(X)[empty], expected)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.parametrize("column", [0, 3])
def test_case_11_what_cannot_be_missing(column: int) -> None:
    X = rows(50)
    X[:, column] = np.nan
    with pytest.raises(ValueError, match=f"column {column} "):
        DiagonalGaussianMixture(2, missing=True).fit(X)
    with pytest.raises(ValueError, match=f"column {column} "):
        DiagonalGaussianMixture(2, missing=True).fit([X, X])
    with pytest.raises(ValueError, match=f"row 0, column {column}"):
        DiagonalGaussianMixture(2).fit(X)


@pytest.mark.parametrize("missing", [False, True])
def test_case_12_chunks_in_any_order_give_the_same_moments(missing: bool) -> None:
    X = rows(1000)
    if missing:
        X[np.random.default_rng(4).random(X.shape) < 0.1] = np.nan
    parts = np.array_split(X, 10)
    shift, scale = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    made = []
    for order in (range(10), range(9, -1, -1), (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)):
        accumulator = MomentAccumulator(5, 3, shift=shift, scale=scale, missing=missing)
        for part in order:
            accumulator.update(parts[part])
        made.append(accumulator.homogenised())
    whole = MomentAccumulator(5, 3, shift=shift, scale=scale, missing=missing).update(X)
    for values in made:
        np.testing.assert_allclose(values, whole.homogenised(), rtol=1e-13, atol=1e-13)


def test_case_12_chunks_and_the_array_give_the_same_fit() -> None:
    X = rows(1000)
    whole = fitted(X)
    for parts in (np.array_split(X, 10), np.array_split(X, 10)[::-1], [X[:1], X[1:3], X[3:]]):
        model = fitted(parts)
        np.testing.assert_allclose(model.means_, whole.means_, atol=1e-9)
        np.testing.assert_allclose(model.lower_bound_, whole.lower_bound_, rtol=1e-12)


@pytest.mark.parametrize(("n", "r"), [(1000, 2), (1, 1), (17, 3)])
def test_case_13_known_parameters_score_and_sample_without_fit(n: int, r: int) -> None:
    model = truth(3, r)
    X, labels = model.sample(n, random_state=1)
    assert X.shape == (n, 3)
    assert labels.shape == (n,)
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize(("r", "d"), [(2, 5), (3, 2)])
def test_case_14_the_same_seed_gives_the_same_bits(r: int, d: int) -> None:
    X = rows(400, d, r)
    first, second = (fitted(X, r) for _ in range(2))
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_case_14_another_seed_gives_other_starts() -> None:
    X = rows(400, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            DiagonalGaussianMixture(3, random_state=seed, max_iter=1).fit(X).lower_bound_
            for seed in range(4)
        }
    assert len(found) > 1


@pytest.mark.parametrize("far", [1e160, -1e300, 1e20])
def test_case_15_a_row_from_another_world(far: float) -> None:
    model = fitted(rows(500, 2), 2)
    row = np.full((1, 2), far)
    probability = model.predict_proba(row)
    assert np.isfinite(probability).all()
    assert probability.sum() == pytest.approx(1.0)
    assert model.score(row) < -1e30
    assert np.isfinite(model.score(row))


@pytest.mark.parametrize(("n", "r", "d"), [(100, 2, 3), (60, 1, 4)])
def test_case_16_information_criteria(n: int, r: int, d: int) -> None:
    model = truth(d, r)
    X, _ = model.sample(n, random_state=0)
    total = model.score_samples(X).sum()
    count = r * (2 * d + 1) - 1
    assert model.bic(X) == pytest.approx(-2 * total + count * np.log(n), rel=1e-12)
    assert model.aic(X) == pytest.approx(-2 * total + 2 * count, rel=1e-12)


@pytest.mark.parametrize("shape", [(55,), (1, 55), (1, 2), (4,)])
def test_case_17_one_dimensional_data(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="reshape"):
        DiagonalGaussianMixture(2).fit(np.zeros(shape))


@pytest.mark.parametrize(("n", "r"), [(3, 5), (1, 2), (9, 10)])
def test_case_18_fewer_rows_than_components(n: int, r: int) -> None:
    X = rows(n)
    for data in (X, [X], iter([X])):
        with pytest.raises(ValueError, match=rf"n_components={r} .* n_samples = {n}|1 sample"):
            DiagonalGaussianMixture(r).fit(data)


@pytest.mark.parametrize(("width", "d"), [(1e-3, 2), (1e-9, 4)])
def test_case_19_two_rows_of_their_own(width: float, d: int) -> None:
    rng = np.random.default_rng(5)
    X = np.concatenate([rng.normal(0, 1, (18, d)), rng.normal(8, width, (2, d))])
    with pytest.warns(UserWarning, match="component 1 collapsed in column 0"):
        model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    assert model.diagnostics_.status == "collapsed"
    assert model.covariances_[1, 0] == pytest.approx(1e-6 * X[:, 0].var())
    np.testing.assert_allclose(model.means_[1], X[18:].mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("far", [1e6, -1e12])
@pytest.mark.parametrize("others", [0, 3])
def test_case_20_one_row_far_away(far: float, others: int) -> None:
    rng = np.random.default_rng(6)
    X = np.column_stack([two_clusters(3, 300, rng), rng.normal(size=(600, others))])
    X = np.concatenate([X, np.full((1, 1 + others), far)])
    model = fitted(X, robust=True)
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), [-3, 3], atol=0.2)
    assert model.diagnostics_.outliers == 1
    plain = fitted(X)
    assert plain.diagnostics_.outliers == 1


@pytest.mark.parametrize("components", [1, 2, 9])
def test_columns_whose_squares_sum_to_no_number_are_named(components):
    X = 1e153 * np.random.default_rng(5).normal(2.0, 1.0, (2000, 3))
    X[:, 0] *= 1e-153
    for fit in ("fit", "partial_fit"):
        model = DiagonalGaussianMixture(components, random_state=0)
        with pytest.raises(ValueError, match=r"column 1 of X spreads over .* rescale"):
            getattr(model, fit)(X)
