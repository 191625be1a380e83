"""Exact moments give the parameters back, up to the bounds, in every form."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tensoralg.errors import ConvergenceWarning, RankBoundError
from tensoralg.mixtures import (
    DiagonalGaussianMixture,
    MomentAccumulator,
    component_bound,
    variance_bound,
)

Array = NDArray[Any]
Parameters = tuple[Array, Array, Array]
FORMS = ("homogeneous", "affine", "power")


def mixture(d: int, r: int, seed: int, weights: Any = None) -> Parameters:
    rng = np.random.default_rng(seed)
    w = rng.dirichlet(np.full(r, 5.0)) if weights is None else np.array(weights)
    return w, rng.standard_normal((r, d)), rng.uniform(0.3, 1.5, (r, d))


def recovered(parameters: Parameters, order: int, form: str, **unit: Any) -> Parameters:
    """Fit the exact moments and match the components to the true ones."""
    accumulator = MomentAccumulator.from_parameters(
        *parameters, order, powers=form == "power", **unit
    )
    model = DiagonalGaussianMixture(
        len(parameters[0]), order=order, form=form, random_state=0
    ).fit_moments(accumulator)
    assert model.diagnostics_.status == (
        "closed form" if len(parameters[0]) == 1 else "moments only"
    )
    distance = ((model.means_[:, None] - parameters[1][None]) ** 2).sum(axis=2)
    found, true = linear_sum_assignment(distance)
    at = found[np.argsort(true)]
    return model.weights_[at], model.means_[at], model.covariances_[at]


def assert_equal(found: Parameters, true: Parameters, tolerance: float = 1e-8) -> None:
    for got, expected in zip(found, true, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("d", "order"), [(8, 4), (15, 3), (15, 4), (12, 5)])
def test_at_the_bound(d: int, order: int, form: Any, seed: int) -> None:
    true = mixture(d, component_bound(d, order, form=form), seed)
    assert_equal(recovered(true, order, form), true)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("d", "order", "r"), [(9, 3, 2), (9, 3, 3), (7, 4, 2), (9, 5, 3)])
def test_below_the_bound(d: int, order: int, r: int, form: Any) -> None:
    true = mixture(d, r, seed=7)
    assert_equal(recovered(true, order, form), true)


@pytest.mark.parametrize("order", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_one_component_needs_no_dimension(d: int, order: int) -> None:
    true = mixture(d, 1, seed=d)
    assert_equal(recovered(true, order, "affine"), true, 1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", [(0.98, 0.02), (0.995, 0.005), (0.7, 0.28, 0.02)])
def test_small_weights(weights: tuple[float, ...], form: str) -> None:
    true = mixture(8, len(weights), 1, weights)
    assert_equal(recovered(true, 3, form), true)


@pytest.mark.parametrize("form", FORMS)
def test_units_and_origin_do_not_matter(form: str) -> None:
    rng = np.random.default_rng(3)
    w, means, variances = mixture(9, 3, 4)
    unit, origin = 10.0 ** rng.uniform(-6, 6, 9), 10.0 ** rng.uniform(-2, 2, 9)
    true = (w, unit * (means + origin), unit**2 * variances)
    found = recovered(true, 3, form, shift=np.zeros(9), scale=unit)
    assert_equal((found[0], found[1] / unit, found[2] / unit**2), (w, means + origin, variances))


def test_a_lower_order_reads_part_of_an_accumulator() -> None:
    true = mixture(10, 3, 5)
    accumulator = MomentAccumulator.from_parameters(*true, 5)
    model = DiagonalGaussianMixture(3, order=3, random_state=0).fit_moments(accumulator)
    np.testing.assert_allclose(model.weights_, np.sort(true[0])[::-1], atol=1e-9)


def test_above_the_algebraic_bound_least_squares_still_finds_them() -> None:
    d, order = 8, 3
    r = component_bound(d, order) + 1
    true = mixture(d, r, 11)
    with pytest.warns(UserWarning, match="above the algebraic bound"):
        found = recovered(true, order, "affine")
    assert_equal(found, true, 1e-6)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_above_the_counting_bound_moments_are_refused(d: int) -> None:
    accumulator = MomentAccumulator.from_parameters(*mixture(d, 4, 0), 3)
    with pytest.raises(RankBoundError, match=f"n_components=4 .* m=3 .* d={d} .*counting"):
        DiagonalGaussianMixture(4).fit_moments(accumulator)


def test_variances_beyond_their_bound_are_refused() -> None:
    d = 12
    accumulator = MomentAccumulator.from_parameters(*mixture(d, 2, 0), 3)
    with pytest.raises(RankBoundError, match="variances 12"):
        DiagonalGaussianMixture(variance_bound(d, 3) + 1).fit_moments(accumulator)


@pytest.mark.parametrize("d", [4, 7])
def test_components_that_differ_in_one_column_only_are_not_determined(d: int) -> None:
    means = np.zeros((2, d))
    means[:, 0] = -2.0, 2.0
    accumulator = MomentAccumulator.from_parameters([0.4, 0.6], means, np.ones((2, d)), 3)
    with pytest.warns(ConvergenceWarning, match="do not determine"):
        model = DiagonalGaussianMixture(2, random_state=0).fit_moments(accumulator)
    assert model.diagnostics_.status == "undetermined"
    assert not model.converged_


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_components_than_there_are_is_no_quiet_success(seed: int) -> None:
    accumulator = MomentAccumulator.from_parameters(*mixture(10, 2, seed), 3)
    with pytest.warns(ConvergenceWarning, match="do not determine"):
        model = DiagonalGaussianMixture(3, random_state=0).fit_moments(accumulator)
    assert model.diagnostics_.status == "undetermined"
