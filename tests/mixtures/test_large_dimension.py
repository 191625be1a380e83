"""Fits with many columns: the read-out is chosen, named and as good as maximum likelihood."""

import warnings
from typing import Any

import dask.array
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tensoralg.errors import ConvergenceWarning, RankBoundError
from tensoralg.mixtures import DiagonalGaussianMixture, large_dimension
from tensoralg.mixtures import moment_count as counted
from tensoralg.mixtures.moment_count import moments_fit

Array = NDArray[Any]


def truth(d: int, r: int, seed: int = 0, separation: float = 0.6) -> DiagonalGaussianMixture:
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(r, 8.0)),
        separation * rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


def mean_error(model: Any, means: Array) -> float:
    distance = ((means[:, None] - model.means_[None]) ** 2).sum(axis=2)
    return float(np.sqrt(distance[linear_sum_assignment(distance)].sum()) / np.linalg.norm(means))


@pytest.fixture
def few_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call 1,000 moments too many, so that small fits take the read-out."""
    monkeypatch.setattr(counted, "_SLOW", 1000)


MIXTURE = truth(60, 4)
X, LABELS = MIXTURE.sample(4000, random_state=1)


def fitted(X: Any, n_components: int = 4, weight: Any = None, **options: Any) -> Any:
    model = DiagonalGaussianMixture(n_components, random_state=0, **options)
    return model.fit(X, sample_weight=weight)


def test_choice_follows_the_numbers() -> None:
    assert moments_fit(150, 8, 3, again=True)
    assert not moments_fit(200, 8, 3, again=True)  # 1.4e6 moments
    assert moments_fit(200, 8, 3, again=False)  # few enough for one pass
    assert moments_fit(200, 40, 5, again=False) is False
    assert moments_fit(75, 40, 4, again=True)  # three blocks of 25 determine 25 components
    assert not moments_fit(90, 30, 4, again=True)
    assert not moments_fit(170, 30, 3, again=True)  # 5,100 means


def test_large_fit_reaches_the_likelihood_of_the_truth() -> None:
    mixture = truth(190, 6, separation=0.5)
    rows, _ = mixture.sample(4000, random_state=1)
    model = fitted(rows, 6)
    said = model.diagnostics_
    assert (said.start, said.form, said.order) == ("block read-out", "blocks", 3)
    assert said.bounds["blocks"] == 63
    assert said.moment_misfit < 8
    assert model.converged_
    assert model.n_iter_ <= 10
    limit = DiagonalGaussianMixture.from_parameters(
        mixture.weights_, mixture.means_, mixture.covariances_
    )
    limit.set_params(n_components=6, warm_start=True, tol=1e-9).fit(rows)
    assert model.lower_bound_ >= limit.lower_bound_ - 1e-4
    assert mean_error(model, mixture.means_) <= 1.001 * mean_error(limit, mixture.means_)
    # order 4 is no reason to form 5.7e7 moments
    assert fitted(rows, 6, order=4).diagnostics_.start == "block read-out"


@pytest.mark.usefixtures("few_moments")
def test_without_polish() -> None:
    model = fitted(X, polish=None)
    assert model.diagnostics_.status == "moments only"
    assert "three blocks" in model.diagnostics_.message
    assert mean_error(model, MIXTURE.means_) < 0.09
    assert np.isnan(model.lower_bound_)
    with pytest.warns(ConvergenceWarning, match="standard errors"):
        wrong = fitted(X, 3, polish=None)
    assert wrong.diagnostics_.status == "misfit"
    assert not wrong.converged_


@pytest.mark.usefixtures("few_moments")
def test_least_squares_follow_the_read_out_where_no_polish_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = fitted(X)
    assert limit.diagnostics_.implicit_moments == {}  # the polish needs no better start
    model = fitted(X, polish=None)
    said = model.diagnostics_.implicit_moments
    assert (said["order"], said["taken"]) == (3, True)
    assert said["passes"] >= said["steps"] + 2
    assert said["objective"] == sorted(said["objective"], reverse=True)
    assert "refined by least squares" in model.diagnostics_.message
    assert model.diagnostics_.refined == 1
    monkeypatch.setattr(large_dimension, "_worth_refining", lambda *_: False)
    alone = fitted(X, polish=None)
    assert alone.diagnostics_.implicit_moments == {}
    ours, theirs, least = (mean_error(m, MIXTURE.means_) for m in (model, alone, limit))
    assert ours < theirs
    assert ours < 1.08 * least
    # the error that is said is the one that is made
    scale = X.std(axis=0)
    distance = (((MIXTURE.means_[:, None] - model.means_) / scale) ** 2).mean(axis=2)
    worst = np.sqrt(distance[linear_sum_assignment(distance)].max())
    assert 0.8 < worst / model.diagnostics_.mean_error < 1.25
    assert model.diagnostics_.mean_error < alone.diagnostics_.mean_error


@pytest.mark.usefixtures("few_moments")
def test_least_squares_of_weights_chunks_and_missing_cells() -> None:
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = fitted(X, weight=weight, polish=None)
    repeated = fitted(np.repeat(X, weight, axis=0), polish=None)
    assert weighted.diagnostics_.implicit_moments["taken"]
    assert np.allclose(weighted.means_, repeated.means_, atol=1e-8)
    assert np.allclose(weighted.covariances_, repeated.covariances_, atol=1e-8)
    chunks = dask.array.from_array(X, chunks=(1500, 60))
    whole, lazy = fitted(X, polish=None), fitted(chunks, polish=None)
    assert lazy.diagnostics_.implicit_moments["taken"]
    assert np.allclose(lazy.means_, whole.means_, atol=1e-8)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)
    missing = fitted(holes, missing=True, polish=None)
    assert missing.diagnostics_.implicit_moments["taken"]
    assert mean_error(missing, MIXTURE.means_) < 1.6 * mean_error(whole, MIXTURE.means_)


@pytest.mark.usefixtures("few_moments")
def test_small_weights_and_small_row_weights_without_polish() -> None:
    """A component of one row in a hundred; row weights that sum to less than one row."""
    mixture = DiagonalGaussianMixture.from_parameters(
        [0.99, 0.01], [np.full(60, -0.01), np.ones(60)], np.ones((2, 60))
    )
    rows, _ = mixture.sample(20_000, random_state=3)
    model = fitted(rows, 2, polish=None)
    assert model.diagnostics_.status == "moments only"
    assert 0.007 < model.weights_[1] < 0.013
    assert mean_error(model, mixture.means_) < 0.15
    light = fitted(X, weight=np.full(len(X), 1e-12), polish=None)
    assert light.diagnostics_.status == "moments only"
    assert light.diagnostics_.mean_error == pytest.approx(
        fitted(X, polish=None).diagnostics_.mean_error, rel=1e-6
    )


def test_least_squares_spare_the_rivals_of_an_imprecise_read_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many components: the read-out is doubted, its refinement is not."""
    monkeypatch.setattr(counted, "_SLOW", 1000)
    mixture = truth(150, 20, separation=0.5)
    rows, _ = mixture.sample(10_000, random_state=1)
    model = fitted(rows, 20)
    said = model.diagnostics_
    assert said.implicit_moments["taken"]
    assert said.moment_misfit < 8
    assert said.start_log_likelihoods == {}
    assert model.n_iter_ <= 10
    assert mean_error(model, mixture.means_) < 0.15


@pytest.mark.usefixtures("few_moments")
def test_single_precision_chunks_and_weights() -> None:
    whole = fitted(X)
    assert whole.diagnostics_.start == "block read-out"
    single = fitted(X.astype(np.float32))
    assert single.means_.dtype == np.float32
    assert np.allclose(single.means_, whole.means_, atol=1e-3)
    assert np.allclose(fitted([X[:1500], X[1500:]]).means_, whole.means_, atol=1e-4)
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted, repeated = fitted(X, weight=weight), fitted(np.repeat(X, weight, axis=0))
    assert np.allclose(weighted.means_, repeated.means_, atol=1e-4)
    for seed in (0, 1):
        same = [DiagonalGaussianMixture(4, random_state=seed).fit(X).means_ for _ in range(2)]
        assert np.array_equal(*same)


@pytest.mark.usefixtures("few_moments")
def test_columns_of_any_unit_and_constant_ones() -> None:
    rng = np.random.default_rng(2)
    unit, offset = 10.0 ** rng.uniform(-4, 4, 60), rng.normal(0, 100, 60)
    whole = fitted(X)
    other = fitted(X * unit + offset * unit)
    assert np.allclose((other.means_ / unit - offset), whole.means_, atol=1e-4)
    with pytest.warns(UserWarning, match=r"columns \[5\] are constant"):
        model = fitted(np.insert(X, 5, 3.0, axis=1))
    assert (model.means_[:, 5] == 3.0).all()
    assert model.diagnostics_.start == "block read-out"
    assert mean_error(model, np.insert(MIXTURE.means_, 5, 3.0, axis=1)) < 0.07


@pytest.mark.usefixtures("few_moments")
def test_missing_cells_and_far_rows() -> None:
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    model = fitted(holes, missing=True)
    assert model.diagnostics_.start == "block read-out"
    assert mean_error(model, MIXTURE.means_) < 0.08
    spoiled = np.concatenate([X, np.full((10, 60), 1e5)])
    robust = fitted(spoiled, robust=True)
    assert 10 <= robust.diagnostics_.outliers <= 10 + 0.005 * len(X)
    assert robust.diagnostics_.start == "block read-out"
    assert mean_error(robust, MIXTURE.means_) < 0.07


@pytest.mark.usefixtures("few_moments")
def test_components_that_means_do_not_tell_apart() -> None:
    """Same means, other variances: the read-out has no say, and likelihood decides."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3000, 60))
    rows[:1500] *= 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fitted(rows, 2)
    assert model.diagnostics_.mean_error == np.inf
    assert "k-means++" in model.diagnostics_.start_log_likelihoods
    assert np.allclose(np.sort(model.covariances_.mean(axis=1)), [1.0, 9.0], rtol=0.05)
    with pytest.warns(ConvergenceWarning, match="do not determine"):
        alone = fitted(rows, 2, polish=None)
    assert alone.diagnostics_.status == "undetermined"
    assert np.isnan(alone.diagnostics_.moment_misfit)


def test_more_components_than_the_blocks_determine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "_SLOW", 10)
    monkeypatch.setattr(counted, "_TOO_MANY", 10)
    rows = X[:, :6]
    with pytest.warns(UserWarning, match="at most 2 components, fewer than n_components=4"):
        model = fitted(rows, 4)
    assert model.diagnostics_.start == "k-means++"
    with pytest.raises(RankBoundError, match="at most 2 components"):
        fitted(rows, 4, polish=None)


def test_rows_that_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "_TOO_MANY", 1000)
    with (
        pytest.warns(UserWarning, match="only once"),
        pytest.raises(ValueError, match="several passes"),
    ):
        fitted(iter([X, X]))
    with pytest.raises(ValueError, match="60 columns, hence"):
        DiagonalGaussianMixture(4).partial_fit(X)


@pytest.mark.usefixtures("few_moments")
def test_dask_rows() -> None:
    whole = fitted(X)
    model = fitted(dask.array.from_array(X, chunks=(1500, 60)))
    assert model.diagnostics_.start == "block read-out"
    assert np.allclose(model.means_, whole.means_, atol=1e-4)
