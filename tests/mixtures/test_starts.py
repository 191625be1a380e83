"""Starts from moments: what they match, and when they say that they do not."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensoralg.core.indices import rank_multi_indices
from tensoralg.errors import ConvergenceWarning
from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator, component_bound
from tensoralg.mixtures.moment_algebra import homogenised_positions
from tensoralg.mixtures.moment_noise import largest_deviation, mean_error
from tensoralg.mixtures.starts import MomentStart, StartReport, moment_starts
from tensoralg.mixtures.variances import variances_from_moments

Array = NDArray[Any]


def truth(d: int, r: int, seed: int, separation: float = 1.0) -> DiagonalGaussianMixture:
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(r, 8.0)),
        separation * rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


def standardised(X: Array, order: int = 3) -> Array:
    unit = X.mean(axis=0), X.std(axis=0)
    return (
        MomentAccumulator(X.shape[1], order, shift=unit[0], scale=unit[1]).update(X).homogenised()
    )


def starts_of(
    X: Array, r: int, form: Any = "affine", seed: int = 0
) -> tuple[list[MomentStart], StartReport]:
    d = X.shape[1]
    return moment_starts(
        standardised(X),
        3,
        d,
        r,
        form=form,
        floor=np.full(d, 1e-6),
        rng=np.random.default_rng(seed),
    )


def judgement(start: MomentStart, values: Array, rows: float) -> tuple[float, float]:
    columns = np.arange(start.means.shape[1])
    parameters = start.weights, start.means, start.variances
    return (
        largest_deviation(values, 3, columns, *parameters, rows),
        mean_error(3, columns, *parameters, rows),
    )


@pytest.mark.parametrize("form", ["affine", "homogeneous", "power", None])
def test_starts_are_mixtures_sorted_by_objective(form: Any) -> None:
    X, _ = truth(9, 3, 0).sample(4000, random_state=0)
    if form == "power":
        accumulator = MomentAccumulator(
            9, 3, shift=X.mean(axis=0), scale=X.std(axis=0), powers=True
        )
        values = accumulator.update(X).homogenised()
    else:
        values = standardised(X)
    starts, report = moment_starts(
        values, 3, 9, 3, form=form, floor=np.full(9, 1e-6), rng=np.random.default_rng(0)
    )
    assert report.method == ("least squares" if form is None else "algebraic")
    assert report.refined >= len(starts) > 0
    objectives = [start.objective for start in starts]
    assert objectives == sorted(objectives)
    for start in starts:
        assert (start.weights > 0).all()
        assert start.weights.sum() == pytest.approx(1.0)
        assert (start.variances >= 1e-6).all()
    assert starts[0].residual < 0.1


def test_another_seed_tries_other_splits() -> None:
    X, _ = truth(9, 3, 0).sample(500, random_state=0)
    values = {starts_of(X, 3, seed=seed)[1].singular_values[0] for seed in range(4)}
    assert len(values) > 1


@given(
    d=st.integers(5, 9), r=st.integers(2, 3), rows=st.integers(100, 5000), seed=st.integers(0, 99)
)
@settings(max_examples=15)
def test_a_sample_of_a_mixture_never_contradicts_it(d: int, r: int, rows: int, seed: int) -> None:
    if r > component_bound(d, 3):
        return
    known = truth(d, r, seed)
    X, _ = known.sample(rows, random_state=seed)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    parameters = known.weights_, (known.means_ - shift) / scale, known.covariances_ / scale**2
    assert largest_deviation(standardised(X), 3, np.arange(d), *parameters, rows) < 8
    starts, _ = starts_of(X, r)
    assert judgement(starts[0], standardised(X), rows)[0] < 8


def test_the_standard_error_of_the_means_is_that_of_repeated_samples() -> None:
    known = truth(8, 2, 3)
    errors, predicted = [], []
    for seed in range(12):
        X, _ = known.sample(2000, random_state=seed)
        start = starts_of(X, 2)[0][0]
        at = np.argsort(start.weights)
        true = (known.means_[np.argsort(known.weights_)] - X.mean(axis=0)) / X.std(axis=0)
        errors.append(np.sqrt(((start.means[at] - true) ** 2).mean(axis=1)).max())
        predicted.append(judgement(start, standardised(X), 2000)[1])
    assert 0.5 < np.mean(errors) / np.mean(predicted) < 2.0


def test_the_standard_error_falls_with_the_rows() -> None:
    X, _ = truth(8, 2, 3).sample(500, random_state=0)
    start = starts_of(X, 2)[0][0]
    few, many = (judgement(start, standardised(X), n)[1] for n in (500, 50_000))
    assert few == pytest.approx(10 * many, rel=1e-2)
    assert judgement(start, standardised(X), np.inf)[1] < 1e-3


def damaged(accumulator: MomentAccumulator, product: list[int], add: float) -> MomentAccumulator:
    """Return a copy whose mean of one product (labels 1.., 0 for the constant) is off by `add`."""
    copy = accumulator.rebased()
    rows, columns = homogenised_positions(8, 3, powers=False)
    at = rank_multi_indices(np.array(product), 9)
    sums = np.array(copy.gram)
    sums[rows[at], columns[at]] += add * copy.total_weight
    copy._gram = sums
    return copy


KNOWN = truth(8, 3, 5)
SAMPLE, _ = KNOWN.sample(20_000, random_state=0)
MOMENTS = {
    "exact": MomentAccumulator.from_parameters(KNOWN.weights_, KNOWN.means_, KNOWN.covariances_, 3),
    "sampled": MomentAccumulator(8, 3).update(SAMPLE),
}


@pytest.mark.parametrize("kind", list(MOMENTS))
def test_sound_moments_raise_no_doubt(kind: str) -> None:
    model = DiagonalGaussianMixture(3, random_state=0).fit_moments(MOMENTS[kind])
    assert model.diagnostics_.status == "moments only"
    assert model.converged_
    assert model.diagnostics_.moment_misfit < 5


@pytest.mark.parametrize("kind", list(MOMENTS))
@pytest.mark.parametrize(
    "product", [[1, 2, 3], [2, 4, 8], [6, 7, 8], [0, 1, 2], [0, 5, 8], [1, 1, 2], [3, 8, 8]]
)
@pytest.mark.parametrize("add", [2.0, -5.0, 100.0])
def test_a_corrupted_moment_is_no_quiet_success(kind: str, product: list[int], add: float) -> None:
    wrong = damaged(MOMENTS[kind], product, add)
    with pytest.warns(ConvergenceWarning, match=r"off by .* standard errors"):
        model = DiagonalGaussianMixture(3, random_state=0).fit_moments(wrong)
    assert model.diagnostics_.status == "misfit"
    assert model.diagnostics_.moment_misfit > 8
    assert not model.converged_


def test_sums_that_stand_for_another_weight_are_refused() -> None:
    with pytest.raises(ValueError, match="accumulator is damaged"):
        DiagonalGaussianMixture(3).fit_moments(damaged(MOMENTS["sampled"], [0, 0, 0], 1.0))


def test_data_of_another_kind_are_no_quiet_success() -> None:
    rng = np.random.default_rng(0)
    # two factors: the covariance between columns has rank two, with two components it has rank one
    X = rng.standard_normal((5000, 2)) @ rng.standard_normal((2, 6))
    X += 0.3 * rng.standard_normal((5000, 6))
    with pytest.warns(ConvergenceWarning, match=r"off by|do not determine"):
        DiagonalGaussianMixture(2, polish=None, random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = DiagonalGaussianMixture(2, random_state=0, max_iter=1000).fit(X)
    assert "k-means++" in model.diagnostics_.start_log_likelihoods


def test_pure_noise_does_not_determine_two_components() -> None:
    X = np.random.default_rng(1).standard_normal((2000, 6))
    with pytest.warns(ConvergenceWarning, match="do not determine"):
        model = DiagonalGaussianMixture(2, polish=None, random_state=0).fit(X)
    assert model.diagnostics_.mean_error > 0.5


@pytest.mark.parametrize("order", [3, 4, 5])
def test_variances_are_linear_in_exact_moments(order: int) -> None:
    known = truth(6, 3, 7)
    exact = MomentAccumulator.from_parameters(
        known.weights_, known.means_, known.covariances_, order, shift=np.zeros(6)
    )
    found = variances_from_moments(
        exact.homogenised(), order, known.weights_, known.means_, floor=np.full(6, 1e-9)
    )
    np.testing.assert_allclose(found, known.covariances_, atol=1e-8)


def test_variances_respect_the_floor() -> None:
    known = truth(6, 3, 7)
    exact = MomentAccumulator.from_parameters(
        known.weights_, known.means_, np.full((3, 6), 1e-4), 3, shift=np.zeros(6)
    )
    floor = np.linspace(1e-3, 0.1, 6)
    found = variances_from_moments(
        exact.homogenised(), 3, known.weights_, known.means_, floor=floor
    )
    assert (found >= floor).all()
