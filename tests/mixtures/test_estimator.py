"""DiagonalGaussianMixture as a scikit-learn estimator, beside its peers, and its symmetries."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tensoralg.errors import ConvergenceWarning, RankBoundError
from tensoralg.mixtures import DiagonalGaussianMixture, FitDiagnostics, MomentAccumulator

Array = NDArray[Any]


def truth(d: int = 8, r: int = 3, seed: int = 0) -> DiagonalGaussianMixture:
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(r, 8.0)),
        2.0 * rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


TRUTH = truth()
X, LABELS = TRUTH.sample(2000, random_state=1)


def matched(model: Any, means: Array) -> Array:
    """Return the order of a model's components that is closest to given means."""
    distance = ((means[:, None] - model.means_[None]) ** 2).sum(axis=2)
    return np.asarray(linear_sum_assignment(distance)[1])


def assert_same(model: Any, other: Any, tolerance: float = 1e-6) -> None:
    at = matched(model, other.means_)
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(
            getattr(model, name)[at], getattr(other, name), rtol=tolerance, atol=tolerance
        )


def _expected_failures(estimator: DiagonalGaussianMixture) -> dict[str, str]:
    if estimator.n_components < 3:
        return {}
    # three columns determine at most two components, and partial_fit keeps no rows to start from
    return {"check_fit_score_takes_y": "partial_fit raises RankBoundError above the bound"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [
        DiagonalGaussianMixture(),
        DiagonalGaussianMixture(2),
        DiagonalGaussianMixture(3, missing=True),
    ],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def test_density_and_probabilities_equal_scikit_learn() -> None:
    peer = GaussianMixture(3, covariance_type="diag")
    peer.weights_, peer.means_ = TRUTH.weights_, TRUTH.means_
    peer.covariances_ = TRUTH.covariances_
    peer.precisions_cholesky_ = 1.0 / np.sqrt(TRUTH.covariances_)
    np.testing.assert_allclose(TRUTH.score_samples(X), peer.score_samples(X), rtol=1e-10)
    np.testing.assert_allclose(TRUTH.predict_proba(X), peer.predict_proba(X), atol=1e-10)
    np.testing.assert_array_equal(TRUTH.predict(X), peer.predict(X))
    assert TRUTH.bic(X) == pytest.approx(peer.bic(X))
    assert TRUTH.aic(X) == pytest.approx(peer.aic(X))


def test_the_fit_is_the_maximum_that_scikit_learn_finds_from_the_truth() -> None:
    peer = GaussianMixture(
        3,
        covariance_type="diag",
        weights_init=TRUTH.weights_,
        means_init=TRUTH.means_,
        precisions_init=1.0 / TRUTH.covariances_,
        tol=1e-10,
        max_iter=1000,
    ).fit(X)
    model = DiagonalGaussianMixture(3, tol=1e-10, max_iter=1000, random_state=0).fit(X)
    assert model.diagnostics_.start == "algebraic"
    assert_same(model, peer, 1e-3)
    assert model.score(X) == pytest.approx(peer.score(X), abs=1e-6)
    assert model.lower_bound_ == pytest.approx(model.score(X), abs=1e-6)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_real_data_is_fitted_as_well_as_by_em_with_restarts(load: Any) -> None:
    data = StandardScaler().fit_transform(load(return_X_y=True)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DiagonalGaussianMixture(3, random_state=0, max_iter=500).fit(data)
        peer = GaussianMixture(
            3, covariance_type="diag", n_init=5, init_params="k-means++", tol=1e-6, random_state=0
        ).fit(data)
    assert model.score(data) > peer.score(data) - 0.05
    assert not model.diagnostics_.floored
    np.testing.assert_allclose(model.weights_ @ model.means_, data.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("form", ["affine", "homogeneous", "power"])
@pytest.mark.parametrize("order", [3, 4, 5])
def test_forms_and_orders_reach_the_same_maximum(form: str, order: int) -> None:
    data, _ = truth(7, 2).sample(800, random_state=3)
    model = DiagonalGaussianMixture(2, form=form, order=order, tol=1e-9, random_state=0).fit(data)
    reference = DiagonalGaussianMixture(2, tol=1e-9, random_state=5).fit(data)
    assert_same(model, reference, 1e-3)
    assert (model.diagnostics_.order, model.diagnostics_.form) == (order, form)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [3, 5, 7])
def test_few_columns_are_served_at_every_order(d: int, order: int) -> None:
    rng = np.random.default_rng(d)
    data = np.concatenate([rng.normal(-3, 1, (150, d)), rng.normal(3, 1, (100, d))])
    for form in ("affine", "power"):
        model = DiagonalGaussianMixture(2, order=order, form=form, random_state=0).fit(data)
        np.testing.assert_allclose(model.weights_, [0.6, 0.4], atol=0.02)
        np.testing.assert_allclose(np.sort(model.means_[:, 0]), [-3, 3], atol=0.4)


def test_above_the_counting_bound_em_starts_elsewhere_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"no moment start .*counting bound 1"):
        model = DiagonalGaussianMixture(2, random_state=0).fit(X[:, :2])
    assert model.diagnostics_.start == "k-means++"
    assert model.diagnostics_.bounds["counting"] == 1
    with pytest.raises(RankBoundError, match=r"n_components=2 .*d=2 .*counting 1"):
        DiagonalGaussianMixture(2, polish=None).fit(X[:, :2])


def test_above_the_algebraic_bound_least_squares_starts() -> None:
    data, _ = truth(6, 4).sample(3000, random_state=0)
    with pytest.warns(UserWarning, match="above the algebraic bound 3"):
        model = DiagonalGaussianMixture(4, random_state=0).fit(data)
    np.testing.assert_allclose(model.score(data), truth(6, 4).score(data), atol=0.02)


def test_without_polish_the_moments_decide() -> None:
    data, _ = TRUTH.sample(50_000, random_state=2)
    model = DiagonalGaussianMixture(3, polish=None, random_state=0).fit(data)
    assert_same(model, TRUTH, 0.1)
    assert (model.n_iter_, model.converged_) == (0, True)
    assert np.isnan(model.lower_bound_)
    assert model.diagnostics_.status == "moments only"
    assert model.diagnostics_.moment_misfit < 8
    accumulator = MomentAccumulator(8, 3).update(data)
    assert_same(DiagonalGaussianMixture(3, random_state=0).fit_moments(accumulator), model, 1e-6)


def test_partial_fit_equals_one_pass_without_polish() -> None:
    model = DiagonalGaussianMixture(3, random_state=0)
    for part in (X[:800], X[800:1500], X[1500:]):
        model.partial_fit(part)
    assert model.accumulator_.count == 2000
    assert_same(model, DiagonalGaussianMixture(3, polish=None, random_state=0).fit(X))
    with pytest.raises(ValueError, match="2 features"):
        model.partial_fit(X[:, :2])
    weight = np.r_[np.ones(2000), 0.0]
    wild = DiagonalGaussianMixture(3, random_state=0)
    wild.partial_fit(np.r_[X, np.full((1, 8), np.nan)], sample_weight=weight)
    assert_same(wild, model)
    assert not hasattr(model.fit(X), "accumulator_")


def test_warm_start_goes_on_where_the_last_fit_stopped() -> None:
    model = DiagonalGaussianMixture(3, max_iter=2, tol=0.0, warm_start=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        bounds = [model.fit(X).lower_bound_ for _ in range(4)]
    assert np.diff(bounds).min() >= -1e-13 * abs(bounds[0])  # grows, up to rounding
    assert model.diagnostics_.start == "warm"
    with pytest.warns(UserWarning, match="a new start is made"):
        model.set_params(max_iter=100, tol=1e-6, n_components=2).fit(X)
    assert model.means_.shape == (2, 8)
    with pytest.warns(UserWarning, match="a new start is made"):
        model.fit(X[:, :5])
    with pytest.warns(UserWarning, match="has 5 columns and X has 8: a new start is made"):
        model.fit([X[:900], X[900:]])


def attributes(model: Any) -> bytes:
    return pickle.dumps({k: v for k, v in vars(model).items() if k != "accumulator_"})


@pytest.mark.parametrize(
    ("wrong", "weight"),
    [
        (np.full((30, 3), np.nan), None),
        (X[:, :3], np.full(2000, -1.0)),
        (X[:1, :3], None),
        (iter([X[:500, :3], X[:500]]), None),
    ],
)
def test_a_fit_that_raises_leaves_the_last_one_whole(wrong: Any, weight: Any) -> None:
    model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    before, labels = attributes(model), model.predict(X)
    with pytest.raises(ValueError, match=r"NaN|nonnegative|1 sample|columns"):
        model.fit(wrong, sample_weight=weight)
    assert attributes(model) == before
    np.testing.assert_array_equal(model.predict(X), labels)
    fresh = DiagonalGaussianMixture(2)
    with pytest.raises(ValueError, match="NaN"):
        fresh.fit(np.full((30, 3), np.nan))
    assert not hasattr(fresh, "n_features_in_")


def test_an_interrupted_fit_leaves_the_last_one_whole() -> None:
    def chunks() -> Any:
        yield X[:500, :5]
        raise KeyboardInterrupt

    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    before = attributes(model)
    with pytest.raises(KeyboardInterrupt):
        model.fit(chunks())
    assert attributes(model) == before


def test_a_partial_fit_that_raises_adds_no_rows() -> None:
    model = DiagonalGaussianMixture(3, random_state=0).partial_fit(X[:1000])
    before = attributes(model)
    model.set_params(n_components=60)
    with pytest.raises(RankBoundError):
        model.partial_fit(X[1000:])
    model.set_params(n_components=3)
    assert attributes(model) == before
    assert model.accumulator_.count == 1000
    assert_same(
        model.partial_fit(X[1000:]),
        DiagonalGaussianMixture(3, random_state=0).partial_fit(X[:1000]).partial_fit(X[1000:]),
        0.0,
    )


def test_names_of_columns_do_not_outlive_their_fit() -> None:
    model = DiagonalGaussianMixture(1).fit(X)
    for again in (
        lambda: model.fit([X[:900, :5], X[900:, :5]]),
        lambda: model.fit_moments(MomentAccumulator(5, 3).update(X[:, :5])),
    ):
        model.feature_names_in_ = np.array([f"x{j}" for j in range(8)], dtype=object)
        again()
        assert not hasattr(model, "feature_names_in_")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(model.predict(X[:3, :5])) == 3


def test_without_polish_a_warm_start_changes_nothing() -> None:
    model = DiagonalGaussianMixture(3, warm_start=True, random_state=0).fit(X)
    other, _ = truth(8, 3, seed=4).sample(4000, random_state=0)
    model.set_params(polish=None).fit(other)
    assert_same(model, DiagonalGaussianMixture(3, polish=None, random_state=0).fit(other))


def test_sample_has_the_moments_of_the_mixture() -> None:
    data, labels = TRUTH.sample(40_000, random_state=0)
    np.testing.assert_allclose(np.bincount(labels) / 40_000, TRUTH.weights_, atol=0.01)
    for s in range(3):
        np.testing.assert_allclose(data[labels == s].mean(axis=0), TRUTH.means_[s], atol=0.05)
        np.testing.assert_allclose(data[labels == s].var(axis=0), TRUTH.covariances_[s], rtol=0.06)
    again, _ = TRUTH.sample(40_000, random_state=np.random.default_rng(0))
    assert again.shape == data.shape
    np.testing.assert_array_equal(
        TRUTH.sample(5, random_state=3)[0], TRUTH.sample(5, random_state=3)[0]
    )
    for wrong in (0, -1, 2.5, "3", True):
        with pytest.raises(ValueError, match="n_samples must be an integer >= 1"):
            TRUTH.sample(wrong)


def test_pickle_and_clone() -> None:
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict_proba(X), model.predict_proba(X))
    assert restored.diagnostics_.as_dict() == model.diagnostics_.as_dict()
    fresh = clone(model)
    assert not hasattr(fresh, "weights_")
    np.testing.assert_array_equal(fresh.fit(X).means_, model.means_)
    partial = DiagonalGaussianMixture(3, random_state=0).partial_fit(X)
    pickle.loads(pickle.dumps(partial)).partial_fit(X)


def test_it_works_inside_scikit_learn() -> None:
    model = make_pipeline(StandardScaler(), DiagonalGaussianMixture(3, random_state=0))
    assert np.isfinite(cross_val_score(model, X, cv=3)).all()
    labels = DiagonalGaussianMixture(3, random_state=0).fit_predict(X)
    table = np.zeros((3, 3))
    np.add.at(table, (LABELS, labels), 1)
    assert table.max(axis=1).sum() > 0.97 * len(X)


def test_nothing_works_before_fit() -> None:
    for call in ("predict", "predict_proba", "score", "score_samples", "bic", "aic"):
        with pytest.raises(NotFittedError):
            getattr(DiagonalGaussianMixture(), call)(X)
    with pytest.raises(NotFittedError):
        DiagonalGaussianMixture().sample()


@pytest.mark.parametrize(
    "seed", [0, np.int64(3), None, np.random.RandomState(0), np.random.default_rng(0)]
)
def test_random_states(seed: Any) -> None:
    assert_same(DiagonalGaussianMixture(3, random_state=seed).fit(X), TRUTH, 0.3)


def test_diagnostics_tell_what_happened() -> None:
    found = DiagonalGaussianMixture(3, random_state=0).fit(X).diagnostics_
    assert isinstance(found, FitDiagnostics)
    assert (found.status, found.start) == ("converged", "algebraic")
    assert found.splits >= found.refined > 0
    assert 0 < found.moment_residual < 0.2
    assert found.moment_misfit < 5
    assert found.mean_error < 0.2
    assert found.singular_values == sorted(found.singular_values, reverse=True)
    assert found.bounds["affine"] == 4
    assert "splits:" in str(found)


def test_the_largest_weight_comes_first() -> None:
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    assert (np.diff(model.weights_) <= 0).all()
    assert model.weights_.sum() == pytest.approx(1.0)


def test_float32_is_kept_and_computed_in_float64() -> None:
    single = DiagonalGaussianMixture(3, random_state=0).fit(X.astype(np.float32))
    for name in ("weights_", "means_", "covariances_"):
        assert getattr(single, name).dtype == np.float32
    assert_same(single, DiagonalGaussianMixture(3, random_state=0).fit(X), 1e-4)
    assert single.sample(3)[0].dtype == np.float32


def test_partial_fit_keeps_float32() -> None:
    model = DiagonalGaussianMixture(3, random_state=0)
    double = model.partial_fit(X).means_
    assert double.dtype == np.float64
    single = DiagonalGaussianMixture(3, random_state=0).partial_fit(X.astype(np.float32)).means_
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-3)


def test_a_collapse_is_left_for_a_start_that_does_not() -> None:
    rng = np.random.default_rng(0)
    data, _ = truth(3, 2, seed=0).sample(300, random_state=0)
    data[:2] = rng.normal(size=(1, 3))  # two equal rows invite a component of their own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DiagonalGaussianMixture(2, random_state=0).fit(data)
    assert model.diagnostics_.floored == []


permutations = st.permutations(range(8)).map(np.array)


@given(columns=permutations, seed=st.integers(0, 100))
@settings(max_examples=8)
def test_columns_and_rows_may_be_permuted(columns: Array, seed: int) -> None:
    rows = np.random.default_rng(seed).permutation(len(X))
    model = DiagonalGaussianMixture(3, tol=1e-9, random_state=seed).fit(X[rows][:, columns])
    plain = DiagonalGaussianMixture(3, tol=1e-9, random_state=0).fit(X[:, columns])
    assert_same(model, plain, 1e-4)


@given(
    exponents=st.lists(st.floats(-100, 100), min_size=8, max_size=8),
    offsets=st.lists(st.floats(-1e3, 1e3), min_size=8, max_size=8),
)
@settings(max_examples=8)
def test_columns_may_be_scaled_and_shifted(exponents: list[float], offsets: list[float]) -> None:
    unit, origin = 10.0 ** np.array(exponents), np.array(offsets)
    model = DiagonalGaussianMixture(3, random_state=0).fit(unit * (X + origin))
    plain = DiagonalGaussianMixture(3, random_state=0).fit(X)
    np.testing.assert_allclose(model.means_ / unit - origin, plain.means_, atol=1e-5)
    np.testing.assert_allclose(model.covariances_ / unit**2, plain.covariances_, rtol=1e-5)
    assert model.lower_bound_ + np.log(unit).sum() == pytest.approx(plain.lower_bound_, abs=1e-6)


@given(cuts=st.sets(st.integers(1, 1999), max_size=6), reverse=st.booleans())
@settings(max_examples=8)
def test_chunks_of_any_length_in_any_order(cuts: set[int], reverse: bool) -> None:
    parts = np.split(X, sorted(cuts))[:: -1 if reverse else 1]
    model = DiagonalGaussianMixture(3, random_state=0).fit(parts)
    assert_same(model, DiagonalGaussianMixture(3, random_state=0).fit(X), 1e-8)


@given(counts=st.lists(st.integers(0, 3), min_size=60, max_size=60), unit=st.integers(-1000, 1000))
@settings(max_examples=8)
def test_weights_are_repetitions_whatever_their_unit(counts: list[int], unit: int) -> None:
    data, repeats = X[:300], np.repeat(counts, 5)
    if repeats.sum() < 30:
        return
    weight = np.ldexp(repeats.astype(float), unit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DiagonalGaussianMixture(2, random_state=0).fit(data, sample_weight=weight)
        other = DiagonalGaussianMixture(2, random_state=0).fit(np.repeat(data, repeats, axis=0))
    assert model.lower_bound_ == pytest.approx(other.lower_bound_, abs=1e-5)
