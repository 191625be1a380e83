import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.core.indices import multi_indices, multiplicities
from tensoralg.solvers.atom_polish import nonnegative_weights, polish_atoms, reduce_atoms
from tensoralg.solvers.atoms import (
    atoms_from_moments,
    extract_atoms,
    flat_truncations,
    moment_matrix,
)
from tensoralg.solvers.power_sums import descend, power_sum


def moments_of(weights, points, degree):
    """Moments of degree at most D from their definition, by homogenised multi-indices."""
    homogeneous = np.column_stack([np.ones(len(points)), points])
    return weights @ homogeneous[:, multi_indices(points.shape[1] + 1, degree)].prod(axis=2)


def entries_of(atoms, order):
    return atoms[:, multi_indices(atoms.shape[1], order)].prod(axis=2).sum(axis=0)


def relative_residual(entries, atoms, order):
    root = np.sqrt(multiplicities(multi_indices(atoms.shape[1], order)))
    return np.linalg.norm((entries_of(atoms, order) - entries) * root) / np.linalg.norm(
        entries * root
    )


def simplex_measure(rng, rank, n, zeros=0.0):
    u = rng.dirichlet(np.ones(n), rank) * (rng.random((rank, n)) >= zeros) + 0.0
    u[~u.any(axis=1)] = 1.0
    return rng.uniform(0.5, 1.5, rank), u / u.sum(axis=1, keepdims=True)


def distance(found, points):
    """Largest distance of a true point from the nearest one that was found."""
    return np.linalg.norm(found[:, None] - points, axis=2).min(axis=0).max()


def test_moment_matrix_holds_moments_of_products():
    rng = np.random.default_rng(0)
    weights, u = simplex_measure(rng, 4, 3)
    matrix = moment_matrix(moments_of(weights, u[:, :2], 5), 2, 5, 2)
    x, y = u[:, 0], u[:, 1]
    basis = np.array([np.ones(4), x, y, x * x, x * y, y * y])
    np.testing.assert_allclose(matrix, (basis * weights) @ basis.T, atol=1e-15)
    np.testing.assert_allclose(
        moment_matrix(moments_of(weights, u[:, :2], 5), 2, 5, 0), weights.sum().reshape(1, 1)
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 5),
    st.sampled_from([(4, 2), (5, 2), (6, 3)]),
    st.integers(0, 2**32 - 1),
)
def test_flat_moments_give_back_their_atoms(n, degrees, seed):
    degree, t = degrees
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, n + 1))
    weights, u = simplex_measure(rng, rank, n, zeros=0.3)
    # points closer than this are one point to double precision
    gaps = np.linalg.norm(u[:, None] - u, axis=2) + np.eye(rank)
    assume(gaps.min() > 0.05 and np.linalg.svd(u, compute_uv=False)[-1] > 0.05)
    moments = moments_of(weights, u[:, :-1], degree)
    found = extract_atoms(moments, n - 1, degree, t, rank, seed)
    assert distance(found, u[:, :-1]) < 1e-7
    best = next(item for item in flat_truncations(moments, n - 1, degree) if item.t == t)
    assert (best.rank, best.flat) == (rank, True)
    assert best.ratio > 1e6


@pytest.mark.parametrize(("n", "order", "degree", "rank"), [(3, 3, 6, 5), (4, 3, 4, 4)])
def test_inexact_moments_are_polished(n, order, degree, rank):
    rng = np.random.default_rng(n)
    weights, u = simplex_measure(rng, rank, n, zeros=0.4)
    moments = moments_of(weights, u[:, :-1], degree)
    noisy = moments + 1e-6 * rng.standard_normal(len(moments))
    entries = entries_of(u * weights[:, None] ** (1 / order), order)
    atoms, residual, source = atoms_from_moments(noisy, degree, entries, n, order, rng=0)
    assert residual < 1e-12
    assert source is not None
    assert source.ratio >= 8
    assert (atoms >= 0).all()
    assert relative_residual(entries, atoms, order) < 1e-12


def test_extracted_atoms_scale_with_the_tensor():
    rng = np.random.default_rng(5)
    weights, u = simplex_measure(rng, 3, 3)
    moments = moments_of(weights, u[:, :-1], 4)
    entries = entries_of(u * weights[:, None] ** (1 / 3), 3)
    found = [atoms_from_moments(moments, 4, s * entries, 3, 3, rng=0) for s in (1e-8, 1.0, 1e8)]
    assert max(residual for _, residual, _ in found) < 1e-12
    for atoms, factor in zip((found[0][0], found[2][0]), (1e-8, 1e8), strict=True):
        np.testing.assert_allclose(atoms, found[1][0] * factor ** (1 / 3), rtol=1e-6)


def test_moments_of_a_continuous_measure_have_no_wrong_answer():
    # uniform on the triangle: no flat truncation, the residual says what was reached
    indices = multi_indices(3, 4)
    counts = np.stack([(indices == i).sum(axis=1) for i in range(1, 3)])
    factorial = np.array([1, 1, 2, 6, 24])
    total = counts.sum(axis=0)
    moments = factorial[counts].prod(axis=0) * 2 / np.array([2, 6, 24, 120, 720])[total]
    entries = moments_to_entries(moments)
    atoms, residual, _ = atoms_from_moments(moments, 4, entries, 3, 3, rng=0)
    assert residual == pytest.approx(relative_residual(entries, atoms, 3), abs=1e-14)
    assert (atoms >= 0).all()


def moments_to_entries(moments):
    """Cubic entries of the uniform measure on the triangle: E[x^a] = 2 a! / 5!."""
    indices = multi_indices(3, 3)
    counts = np.stack([(indices == i).sum(axis=1) for i in range(3)])
    assert moments[0] == pytest.approx(1.0)
    return np.array([1, 1, 2, 6])[counts].prod(axis=0) * 2 / 120


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize(("n", "order", "rank"), [(5, 2, 7), (4, 3, 6), (3, 4, 6), (4, 5, 5)])
def test_polish_reaches_rounding_error_on_the_boundary(size, n, order, rank):
    rng = np.random.default_rng(rank)
    u = rng.uniform(0.2, 1, (rank, n)) * (rng.random((rank, n)) < 0.6)
    u[:n] += np.eye(n)[: len(u[:n])]
    entries = entries_of(u, order)
    start = u * (1 + size * rng.standard_normal(u.shape)) + 1e-3 * size * rng.standard_normal(
        u.shape
    )
    atoms, residual = polish_atoms(entries, n, order, start)
    assert residual < 1e-14
    assert (atoms >= 0).all()
    assert relative_residual(entries, atoms, order) < 2e-14


def test_polish_never_gets_worse_and_keeps_atoms_nonnegative():
    rng = np.random.default_rng(2)
    entries = rng.standard_normal(10)  # not completely positive
    start = rng.random((4, 3))
    atoms, residual = polish_atoms(entries, 3, 3, start)
    assert residual <= relative_residual(entries, start, 3)
    assert residual == pytest.approx(relative_residual(entries, atoms, 3), rel=1e-9)
    assert (atoms >= 0).all()


def test_weights_are_nonnegative_and_basic():
    rng = np.random.default_rng(3)
    points = rng.random((40, 3))
    entries = rng.random(40) @ points[:, multi_indices(3, 2)].prod(axis=2)
    weights, residual = nonnegative_weights(entries, 3, 2, points)
    assert residual < 1e-12
    assert (weights >= 0).all()
    assert (weights > 0).sum() <= 6
    weights, _ = nonnegative_weights(entries, 3, 2, np.vstack([points, np.zeros(3)]))
    assert weights[-1] == 0


def test_reduction_by_linear_dependence_and_by_leaving_out():
    rng = np.random.default_rng(4)
    u = rng.random((30, 3))
    entries = entries_of(u, 3)
    atoms, residual = reduce_atoms(entries, 3, 3, u)
    assert len(atoms) <= 5
    assert residual < 1e-13
    assert (atoms >= 0).all()


def test_jacobian_is_the_derivative():
    rng = np.random.default_rng(6)
    problem = power_sum(rng.random(20), 4, 3)
    u, step = rng.random((5, 4)), 1e-6 * rng.standard_normal((5, 4))
    linear = np.tensordot(problem.jacobian(u), step, axes=2)
    change = problem.difference(u + step) - problem.difference(u - step)
    np.testing.assert_allclose(linear, change / 2, atol=1e-13)


def test_descent_never_leaves_the_free_coordinates():
    rng = np.random.default_rng(7)
    entries = entries_of(rng.random((6, 3)), 3)
    start = rng.random((10, 3)) * (rng.random((10, 3)) < 0.7)
    problem = power_sum(entries, 3, 3)
    for squares in (True, False):
        atoms, residual = descend(
            problem, start, start > 0, squares=squares, max_iter=50, tol=1e-15
        )
        assert (atoms[start == 0] == 0).all()
        assert (atoms >= 0).all()
        assert residual <= problem.residual(start)


def test_bad_input_is_named():
    moments = [1.0, 0.5, 0.25]
    with pytest.raises(ShapeError, match=r"moments of degree 2 in 1 variables .* \(3,\); got \(2,"):
        moment_matrix([1.0, 0.5], 1, 2, 1)
    with pytest.raises(ValueError, match=r"t must lie in 0 .. 1"):
        moment_matrix(moments, 1, 2, 2)
    with pytest.raises(ValueError, match="t must be at least 1; got 0"):
        extract_atoms(moments, 1, 2, 0, 1)
    with pytest.raises(RankBoundError, match=r"rank must lie in 1 .. 1 for t=1; got 2"):
        extract_atoms(moments, 1, 2, 1, 2)
    with pytest.raises(ShapeError, match=r"atoms must have shape \(r, 2\); got \(1, 3\)"):
        polish_atoms(moments, 2, 2, np.ones((1, 3)))
    with pytest.raises(ValueError, match="atoms must be finite; got nan"):
        polish_atoms(moments, 2, 2, [[np.nan, 1.0]])
    with pytest.raises(ValueError, match="entries must be finite; got inf"):
        polish_atoms([1.0, np.inf, 1.0], 2, 2, [[1.0, 1.0]])
    with pytest.raises(ShapeError, match="has 3 entries; got an array of shape"):
        nonnegative_weights([1.0, 2.0], 2, 2, [[1.0, 1.0]])
