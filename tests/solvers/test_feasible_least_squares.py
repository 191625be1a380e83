"""Feasible least squares against explicit Jacobians, and what it must prevent."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensoralg.errors import ShapeError
from tensoralg.solvers import feasible_least_squares as module
from tensoralg.solvers.feasible_least_squares import (
    feasible_least_squares,
    normal_matrix,
    square_free_products,
)

Array = NDArray[Any]
SHAPES = [(1, 1, 3), (2, 3, 3), (3, 5, 4), (2, 2, 5), (4, 6, 3), (3, 4, 1)]


def points_of(r: int, d: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(r, 5.0)), rng.standard_normal((r, d))


def moments_of(weights: Array, points: Array, order: int) -> list[Array]:
    """Square-free moments straight from their definition."""
    d = points.shape[1]
    return [
        np.array([weights @ points[:, list(i)].prod(axis=1) for i in combinations(range(d), q)])
        for q in range(order + 1)
    ]


def model(unknowns: Array, r: int, d: int, order: int) -> Array:
    return np.concatenate(moments_of(unknowns[:r], unknowns[r:].reshape(r, d), order))


def jacobian(unknowns: Array, r: int, d: int, order: int) -> Array:
    """Exact up to rounding: every moment is linear in each single unknown."""
    columns = []
    for k in range(len(unknowns)):
        step = np.zeros(len(unknowns))
        step[k] = 1.0
        columns.append(
            (model(unknowns + step, r, d, order) - model(unknowns - step, r, d, order)) / 2
        )
    return np.array(columns).T


@given(r=st.integers(1, 4), d=st.integers(1, 6), order=st.integers(0, 5), seed=st.integers(0, 1000))
def test_products_equal_their_definition(r: int, d: int, order: int, seed: int) -> None:
    _, points = points_of(r, d, seed)
    products = square_free_products(points, order)
    assert len(products) == min(order, d) + 1
    for q, product in enumerate(products):
        expected = [points[:, list(i)].prod(axis=1) for i in combinations(range(d), q)]
        np.testing.assert_allclose(product, np.array(expected).T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("r", "d", "order"), SHAPES)
def test_normal_matrix_equals_that_of_the_jacobian(r: int, d: int, order: int) -> None:
    weights, points = points_of(r, d)
    explicit = jacobian(np.concatenate([weights, points.ravel()]), r, d, order)
    factors = np.linspace(2.0, 0.5, order + 1)
    sizes = [len(m) for m in moments_of(weights, points, order)]
    rows = np.repeat(factors, sizes)[:, None] * explicit
    got = normal_matrix(weights, points, factors)
    np.testing.assert_allclose(got, rows.T @ rows, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("r", "d", "order"), SHAPES)
@pytest.mark.parametrize("feasible", [True, False])
def test_gradient_equals_differences_of_the_objective(
    r: int, d: int, order: int, feasible: bool
) -> None:
    weights, points = points_of(r, d, 1)
    target = moments_of(*points_of(r, d, 2), order)[: min(order, d) + 1]
    bound = np.full(d, 1e6 if feasible else 0.1)
    problem = module._Problem(target, d, bound, 1e-6 if feasible else 0.6, 3.0)
    gradient, _ = problem.linearise(weights, points)
    unknowns, step = np.concatenate([weights, points.ravel()]), 1e-6
    for k in range(len(unknowns)):
        sides = []
        for sign in (1.0, -1.0):
            moved = unknowns.copy()
            moved[k] += sign * step
            sides.append(problem.objective(moved[:r], moved[r:].reshape(r, d)))
        assert gradient[k] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-6)


@given(r=st.integers(1, 3), d=st.integers(5, 8), seed=st.integers(0, 200))
def test_exact_moments_are_matched_from_nearby(r: int, d: int, seed: int) -> None:
    weights, points = points_of(r, d, seed)
    second = weights @ points**2 + 1.0
    rng = np.random.default_rng(seed + 1)
    fit = feasible_least_squares(
        moments_of(weights, points, 3),
        weights,
        points + 0.02 * rng.standard_normal((r, d)),
        second_moments=second,
        max_iter=300,
    )
    assert fit.residual < 1e-6
    assert fit.converged


def test_the_objective_never_grows() -> None:
    weights, points = points_of(3, 6, 3)
    target = moments_of(*points_of(3, 6, 4), 3)
    values = [
        feasible_least_squares(target, weights, points, max_iter=n).objective for n in range(1, 12)
    ]
    assert all(after <= before for before, after in pairwise(values))


def test_a_component_cannot_run_away() -> None:
    rng = np.random.default_rng(0)
    weights, points = np.full(3, 1 / 3), rng.standard_normal((3, 6))
    noisy = [m + 0.1 * rng.standard_normal(m.shape) for m in moments_of(weights, points, 3)]
    noisy[0][:] = 1.0
    start = np.array([0.45, 0.45, 0.1]), np.vstack([points[:2], 10.0 * points[2]])
    second = weights @ points**2 + 1.0
    fit = feasible_least_squares(noisy, *start, second_moments=second, max_iter=300)
    free = feasible_least_squares(
        noisy, *start, second_moments=1e12, minimum_weight=1e-12, penalty=1.0, max_iter=300
    )
    assert fit.weights.min() > 0.5 * 0.1 / 3
    assert (fit.weights @ fit.points**2 < 1.2 * second).all()
    assert fit.weights.sum() == pytest.approx(1.0, abs=0.1)
    # the rows cost something: without them the moments alone fit better
    assert free.residual <= fit.residual + 1e-9


def test_the_status_is_honest() -> None:
    target = moments_of(*points_of(3, 6, 4), 3)
    fit = feasible_least_squares(target, *points_of(3, 6, 5), max_iter=1)
    assert not fit.converged
    assert fit.n_iter == 1
    mismatch = np.concatenate(moments_of(fit.weights, fit.points, 3)) - np.concatenate(target)
    expected = np.linalg.norm(mismatch) / np.linalg.norm(np.concatenate(target))
    assert fit.residual == pytest.approx(expected)


def test_inputs_are_not_changed() -> None:
    weights, points = points_of(2, 4)
    kept = weights.copy(), points.copy()
    feasible_least_squares(moments_of(*points_of(2, 4, 1), 3), weights, points)
    np.testing.assert_array_equal(weights, kept[0])
    np.testing.assert_array_equal(points, kept[1])


@pytest.mark.parametrize(
    ("weights", "points", "words"),
    [
        ([0.5, 0.5], np.zeros((3, 4)), "weights of shape"),
        ([0.5], np.zeros(4), "weights of shape"),
        ([], np.zeros((0, 4)), "r >= 1"),
        ([0.5, 0.5], np.zeros((2, 5)), "moments must have the lengths"),
    ],
)
def test_shapes_that_do_not_fit(weights: Any, points: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        feasible_least_squares(moments_of(*points_of(2, 4), 3), weights, points)


@pytest.mark.parametrize(
    ("name", "value"), [("minimum_weight", 0.0), ("penalty", -1.0), ("max_iter", 0)]
)
def test_options_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        feasible_least_squares(
            moments_of(*points_of(2, 4), 3),
            *points_of(2, 4),
            **{name: value},  # type: ignore[arg-type]
        )
