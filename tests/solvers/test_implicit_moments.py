"""Implicit moment matching against moments that are formed, and its least squares."""

from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensoralg.errors import ShapeError
from tensoralg.solvers.feasible_least_squares import (
    feasible_least_squares,
    normal_matrix,
    square_free_products,
)
from tensoralg.solvers.implicit_gram import ImplicitGram, balanced_factors
from tensoralg.solvers.implicit_least_squares import implicit_least_squares
from tensoralg.solvers.implicit_moments import ImplicitMoments

Array = NDArray[np.float64]


def of_rows(X: Any, factors: Any, sample_weight: Any = None, **options: Any) -> ImplicitMoments:
    d = X.shape[1]
    shift, scale = options.pop("shift", np.zeros(d)), options.pop("scale", np.ones(d))
    chunks = options.pop("chunks", lambda: [(X, sample_weight)])
    return ImplicitMoments(chunks, factors, shift=shift, scale=scale, **options)


def formed(X: Array, share: Array, order: int) -> list[Array]:
    return [share @ part for part in square_free_products(X, order)]


def objective(moments: list[Array], factors: Array, weights: Array, points: Array) -> float:
    parts = square_free_products(points, len(factors) - 1)
    return 0.5 * sum(
        c * float(np.sum((weights @ p - m) ** 2))
        for c, p, m in zip(factors, parts, moments, strict=False)
    )


def problem(seed: int, d: int, r: int, order: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    share = rng.random(20)
    X = rng.standard_normal((20, d))
    return X, share / share.sum(), rng.random(order + 1), rng.random(r), rng.standard_normal((r, d))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4))
def test_value_is_that_of_formed_moments(seed: int, d: int, r: int, order: int) -> None:
    X, share, factors, w, z = problem(seed, d, r, order)
    moments = formed(X, share, order)
    constant = 0.5 * sum(c * float(m @ m) for c, m in zip(factors, moments, strict=False))
    found = of_rows(X, factors, share).evaluate(w, z).value + constant
    assert found == pytest.approx(objective(moments, factors, w, z), rel=1e-10, abs=1e-10)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_gradient_is_that_of_finite_differences(seed: int, d: int, r: int, order: int) -> None:
    X, share, factors, w, z = problem(seed, d, r, order)
    moments = formed(X, share, order)
    found = of_rows(X, factors, share).evaluate(w, z)
    gradient = np.concatenate([found.by_weight, found.by_point.ravel()])
    whole, step = np.concatenate([w, z.ravel()]), 1e-5

    def at(x: Array) -> float:
        return objective(moments, factors, x[:r], x[r:].reshape(r, d))

    shifts = step * np.eye(len(whole))
    differences = np.array([(at(whole + h) - at(whole - h)) / (2 * step) for h in shifts])
    size = 1.0 + np.abs(differences).max()
    np.testing.assert_allclose(gradient, differences, rtol=0, atol=1e-6 * size)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 4), st.integers(1, 5))
def test_gram_is_the_explicit_normal_matrix(seed: int, d: int, r: int, order: int) -> None:
    _, _, factors, w, z = problem(seed, d, r, order)
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal(r), rng.standard_normal((r, d))
    expected = normal_matrix(w, z, np.sqrt(factors)) @ np.concatenate([u, v.ravel()])
    found = ImplicitGram(w, z, factors).product(u, v)
    size = np.abs(expected).max()
    np.testing.assert_allclose(
        np.concatenate([found[0], found[1].ravel()]), expected, rtol=0, atol=1e-10 * size
    )


def test_chunks_weights_and_units() -> None:
    X, share, factors, w, z = problem(3, 8, 3, 3)
    whole = of_rows(X, factors, share).evaluate(w, z)

    def same(other: ImplicitMoments) -> None:
        found = other.evaluate(w, z)
        assert found.value == pytest.approx(whole.value, rel=1e-12)
        np.testing.assert_allclose(found.by_point, whole.by_point, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.by_weight, whole.by_weight, rtol=0, atol=1e-12)

    same(of_rows(X, factors, chunks=lambda: [(X[:7], share[:7]), (X[7:], share[7:])]))
    strict = [array_api_strict.asarray(a) for a in (X, share)]
    same(of_rows(X, factors, chunks=lambda: [strict]))
    shift, scale = np.arange(8.0), np.linspace(0.1, 3, 8)
    same(of_rows(X * scale + shift, factors, share, shift=shift, scale=scale))
    extra = np.vstack([X, np.full((1, 8), 1e6)])
    same(of_rows(extra, factors, np.append(share, 0.0)))


def test_missing_cells_leave_averages_unbiased() -> None:
    """Each pattern of holes counted by its probability: the average is that without holes."""
    rng = np.random.default_rng(0)
    X, z, w = rng.standard_normal((4, 3)), rng.standard_normal((2, 3)), np.array([0.4, 0.6])
    patterns = np.array([[i >> j & 1 for j in range(3)] for i in range(8)], dtype=bool)
    rows = np.vstack([np.where(patterns, x, np.nan) for x in X])
    present = np.array([0.5, 0.75, 0.9])
    chance = np.tile(np.where(patterns, present, 1 - present).prod(axis=1), 4)
    factors = np.ones(4)
    holes, whole = of_rows(rows, factors, chance, missing=True), of_rows(X, factors)
    found, expected = holes.evaluate(w, z), whole.evaluate(w, z)
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    np.testing.assert_allclose(found.by_point, expected.by_point, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        holes.second_moments(w, z), whole.second_moments(w, z), rtol=0, atol=1e-11
    )
    assert (holes.n_passes, whole.n_passes) == (3, 2)


def exact_mixture(seed: int, d: int, r: int) -> tuple[Array, Array, Array, Array]:
    """Rows and shares whose moments over distinct columns are those of a mixture, exactly."""
    rng = np.random.default_rng(seed)
    w, z = rng.dirichlet(np.full(r, 8.0)), 0.6 * rng.standard_normal((r, d))
    return w, z, z, w


def test_second_moments_of_exact_products() -> None:
    """Components that are two-point products in one column: spread shows, and there alone."""
    w, z, _, _ = exact_mixture(1, 12, 3)
    spread = np.random.default_rng(2).uniform(0.2, 1.0, (3, 12))
    for j in (0, 5):
        rows = np.vstack([z, z])
        rows[:3, j] += spread[:, j]
        rows[3:, j] -= spread[:, j]
        moments = of_rows(rows, np.ones(4), np.tile(w / 2, 2))
        seconds = moments.second_moments(w, z)
        expected = z**2
        expected[:, j] += spread[:, j] ** 2
        np.testing.assert_allclose(seconds, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("d", "r", "order"), [(12, 3, 3), (30, 8, 3), (20, 5, 4)])
def test_least_squares_finds_exact_points(d: int, r: int, order: int) -> None:
    w, z, rows, share = exact_mixture(4, d, r)
    rng = np.random.default_rng(5)
    start = z + 0.1 * rng.standard_normal(z.shape)
    factors = balanced_factors(np.full(r, 1 / r), start, order)
    fit = implicit_least_squares(
        of_rows(rows, factors, share),
        np.full(r, 1 / r),
        start,
        second_moments=np.full(d, 9.0),
        tol=1e-8,
        max_iter=30,
    )
    assert fit.converged
    np.testing.assert_allclose(fit.points, z, rtol=0, atol=1e-7)
    np.testing.assert_allclose(fit.weights, w, rtol=0, atol=1e-7)
    assert all(a >= b for a, b in zip(fit.values, fit.values[1:], strict=False))


def test_least_squares_agrees_with_that_of_formed_moments() -> None:
    """Noisy moments, the same rows for feasibility: the same optimum."""
    rng = np.random.default_rng(6)
    w, z, _, _ = exact_mixture(6, 10, 3)
    rows = z[rng.choice(3, 3000, p=w)] + 0.8 * rng.standard_normal((3000, 10))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    factors = np.array([9.0, 1.0, 1.0, 1.0])
    expected = feasible_least_squares(formed(rows, np.full(3000, 1 / 3000), 3), w, z)
    fit = implicit_least_squares(of_rows(rows, factors), w, z, tol=1e-9, max_iter=60)
    assert fit.converged
    np.testing.assert_allclose(fit.points, expected.points, rtol=0, atol=1e-5)
    np.testing.assert_allclose(fit.weights, expected.weights, rtol=0, atol=1e-5)


def test_mean_errors_are_those_of_repetitions() -> None:
    rng = np.random.default_rng(8)
    w, z = np.array([0.3, 0.7]), 0.7 * rng.standard_normal((2, 24))
    scale = np.sqrt(1.0 + w @ z**2 - (w @ z) ** 2)
    centre = w @ z
    points, factors = (z - centre) / scale, np.array([9.0, 1.0, 0.3, 0.1])
    found, said = [], []
    for _ in range(40):
        rows = z[rng.choice(2, 400, p=w)] + rng.standard_normal((400, 24))
        moments = of_rows(rows, factors, shift=centre, scale=scale)
        fit = implicit_least_squares(moments, w, points)
        found.append(fit.points)
        said.append(moments.mean_errors(fit.weights, fit.points) ** 2)
    spread = np.sqrt(np.var(found, axis=0).mean(axis=1))
    np.testing.assert_allclose(np.sqrt(np.mean(said, axis=(0, 2))), spread, rtol=0.12)


def test_errors_and_second_moments_in_another_namespace() -> None:
    X, share, factors, w, z = problem(10, 8, 3, 3)
    strict = [array_api_strict.asarray(a) for a in (X, share)]
    ours, theirs = of_rows(X, factors, share), of_rows(X, factors, chunks=lambda: [strict])
    for name in ("mean_errors", "second_moments"):
        expected = getattr(ours, name)(w, z)
        found = getattr(theirs, name)(w, z)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_mean_errors_of_points_that_coincide_are_infinite() -> None:
    X = np.random.default_rng(9).standard_normal((50, 6))
    moments = of_rows(X, np.ones(3))
    assert np.isinf(moments.mean_errors(np.array([0.5, 0.5]), np.ones((2, 6)))).all()


def test_least_squares_stays_feasible() -> None:
    """Two points where the rows have one: neither a weight nor a point runs away."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((400, 9))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    start = 0.3 * rng.standard_normal((3, 9))
    fit = implicit_least_squares(of_rows(rows, np.ones(4)), np.full(3, 1 / 3), start, max_iter=60)
    assert (fit.weights > 0).all()
    assert (fit.weights @ fit.points**2 < 2.0).all()
    assert fit.values[-1] < fit.values[0]


def test_border() -> None:
    X, share, factors, w, z = problem(0, 4, 2, 3)
    for wrong in ([1.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], [[1.0, 1.0]]):
        with pytest.raises(ValueError, match="factors must be"):
            of_rows(X, wrong)
    with pytest.raises(ShapeError, match="shift and scale"):
        of_rows(X, factors, scale=np.ones(3))
    with pytest.raises(ValueError, match="scale finite and positive"):
        of_rows(X, factors, scale=np.zeros(4))
    moments = of_rows(X, factors, share)
    with pytest.raises(ShapeError, match=r"points of shape \(r, 4\)"):
        moments.evaluate(w, z[:, :3])
    with pytest.raises(ShapeError, match=r"weights of shape \(r,\)"):
        moments.second_moments(w[:1], z)
    with pytest.raises(ValueError, match="holds NaN"):
        of_rows(np.where(X > 0, X, np.nan), factors).evaluate(w, z)
    with pytest.raises(ValueError, match="no row of positive weight"):
        of_rows(X, factors, np.zeros(20)).evaluate(w, z)
    with pytest.raises(ShapeError, match="a chunk has shape"):
        of_rows(X, factors, chunks=lambda: [(X[:, :2], None)]).evaluate(w, z)
    for name in ("minimum_weight", "penalty", "tol", "max_iter"):
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            implicit_least_squares(moments, w, z, **{name: 0})
