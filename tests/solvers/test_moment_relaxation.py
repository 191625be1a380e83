"""Moment relaxations: layouts against explicit oracles, shifts against known answers."""

import sys
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.indices import multi_indices, multiplicities
from tensoralg.solvers.moment_matrices import (
    congruence,
    dehomogenize,
    localizing_map,
    rehomogenize,
)
from tensoralg.solvers.moment_relaxation import (
    build_relaxation,
    generic_objective,
    predict_size,
    solve_moments,
)
from tensoralg.solvers.simplex_measure import (
    orthogonal_moments,
    orthonormal_basis,
    simplex_moments,
    uniform_moments,
)
from tensoralg.solvers.svec import smat, svec
from tensoralg.solvers.uniform_shift import shift_problem, solve_shift


def normalised(entries, n, d):
    entries = np.asarray(entries, dtype=float)
    return dehomogenize(entries / (multiplicities(multi_indices(n, d)) @ entries), n, d)


def by_distinct_count(n, d, values):
    return np.array([values[len(set(row)) - 1] for row in multi_indices(n, d).tolist()])


def matrix_entries(M):
    return np.asarray(M, dtype=float)[tuple(multi_indices(len(M), 2).T)]


def triangle_free(c):
    return matrix_entries(
        [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, c]]
    )


def power_moments(x, degree):
    """Moments of one point."""
    return np.r_[1, x][multi_indices(len(x) + 1, degree)].prod(axis=1)


def atoms_moments(n, d, r, rng):
    points, weights = rng.dirichlet(np.ones(n), r), rng.dirichlet(np.ones(r))
    return sum(c * power_moments(u[:-1], d) for c, u in zip(weights, points, strict=True))


# --- layouts


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (2, 4), (3, 3), (4, 3)])
def test_dehomogenized_moments_of_a_point(n, d):
    u = np.random.default_rng(n + d).dirichlet(np.ones(n))
    entries = u[multi_indices(n, d)].prod(axis=1)
    moments = power_moments(u[:-1], d)
    np.testing.assert_allclose(dehomogenize(entries, n, d), moments, rtol=1e-13)
    np.testing.assert_allclose(rehomogenize(moments, n, d), entries, rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_dehomogenizing_is_exact_and_invertible(n, d, seed):
    rng = np.random.default_rng(seed)
    count = len(multi_indices(n, d))
    entries = np.array([Fraction(int(i), 7) for i in rng.integers(-9, 9, count)], dtype=object)
    moments = dehomogenize(entries, n, d)
    assert moments[0] == sum(
        int(m) * a for m, a in zip(multiplicities(multi_indices(n, d)), entries, strict=True)
    )
    assert (rehomogenize(moments, n, d) == entries).all()


def test_moments_of_a_wrong_length():
    with pytest.raises(ShapeError, match="expected 10 values"):
        dehomogenize(np.zeros(9), 3, 3)


def test_localizing_maps_against_points():
    x = np.array([0.2, 0.5])
    b = power_moments(x, 1)
    weights = [[(1, 0), (-1, 1), (-1, 2)], [(1, 1)]]
    found = localizing_map(2, 5, 1, weights) @ power_moments(x, 5)
    np.testing.assert_allclose(smat(found), 0.3 * 0.2 * np.outer(b, b), rtol=1e-13)
    with pytest.raises(ValueError, match="need moments of degree 4"):
        localizing_map(2, 3, 1, weights)


def test_congruence_of_many_matrices():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5, 4, 4))
    X += X.transpose(0, 2, 1)
    change = rng.standard_normal((3, 4))
    found = congruence(change, sp.csc_array(svec(X).T)).toarray().T
    np.testing.assert_allclose(smat(found), change @ X @ change.T, rtol=1e-12, atol=1e-12)


# --- the uniform measure


def test_uniform_moments_against_a_sum_over_a_grid():
    # midpoint rule on the triangle, exact to a few digits
    m = 400
    grid = (np.arange(m) + 0.5) / m
    x = np.array([(a, b) for a, b in product(grid, grid) if a + b < 1])
    for position, row in enumerate(multi_indices(3, 3)):
        value = np.column_stack([np.ones(len(x)), x])[:, row].prod(axis=1).mean()
        assert uniform_moments(2, 3)[position] == pytest.approx(value, rel=1e-2)


def test_simplex_moments_refuse():
    with pytest.raises(ValueError, match="at least 0"):
        simplex_moments([-1, 0])
    with pytest.raises(ValueError, match="exceeds float64"):
        simplex_moments([200, 0])


@pytest.mark.parametrize("factors", [(), (0,), (3,), (1, 3)])
def test_orthonormal_polynomials_of_weighted_measures(factors):
    N, degree = 3, 3
    change = orthonormal_basis(N, degree, factors)
    ones = [(1, 0), (-1, 1), (-1, 2), (-1, 3)]
    weights = [[(1, i + 1)] if i < N else ones for i in factors]
    gram = smat(localizing_map(N, 8, degree, weights) @ uniform_moments(N, 8))
    np.testing.assert_allclose(change @ gram @ change.T, np.eye(len(gram)), atol=1e-10)
    L = orthogonal_moments(N, degree, factors=factors)
    np.testing.assert_allclose(L @ L.T, gram / gram[0, 0], rtol=1e-11, atol=1e-17)
    np.testing.assert_allclose(L, np.tril(L))
    with pytest.raises(IndexError, match=r"0 \.\. 3"):
        orthonormal_basis(N, degree, (4,))


@pytest.mark.parametrize(("N", "degree"), [(1, 5), (2, 4), (3, 3)])
def test_moments_of_orthonormal_polynomials(N, degree):
    L = orthogonal_moments(N, degree)
    gram = smat(localizing_map(N, 2 * degree, degree) @ uniform_moments(N, 2 * degree))
    np.testing.assert_allclose(L @ L.T, gram, rtol=1e-12, atol=1e-17)
    sizes = np.count_nonzero(multi_indices(N + 1, degree), axis=1)
    assert (L[sizes[:, None] < sizes] == 0).all()
    np.testing.assert_array_equal(orthogonal_moments(N, degree, above=1), L[:, sizes > 1])


# --- building


def test_predicted_sizes_of_the_literature():
    assert predict_size(2, 3, 3, False) == (3, (4, 3, 3))
    for n, d, k, m, size in [(3, 3, 3, 18, 10), (3, 4, 4, 30, 15), (5, 3, 2, 35, 15)]:
        assert predict_size(n, d, k)[0] == m
        assert predict_size(n, d, k)[1][0] == size
    for n, d, k, m, size in [(2, 3, 3, 24, 10), (4, 3, 3, 190, 35), (5, 3, 2, 91, 21)]:
        found = predict_size(n, d, k, homogeneous=True)
        assert (found[0], found[1][0]) == (m, size)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), [(2, 3, 2), (3, 2, 2), (3, 3, 3)])
def test_blocks_of_a_point_are_positive_semidefinite(n, d, k, homogeneous):
    u = np.random.default_rng(3).dirichlet(np.ones(n))
    relaxation = build_relaxation(power_moments(u[:-1], d), n - 1, d, k, homogeneous=homogeneous)
    x = u if homogeneous else u[:-1]
    w = power_moments(x, 2 * k)
    assert predict_size(n, d, k, homogeneous=homogeneous) == (
        relaxation.n_free,
        tuple(block.size for block in relaxation.blocks),
    )
    fixed = np.setdiff1d(np.arange(len(w)), relaxation.free)
    np.testing.assert_allclose(relaxation.known[fixed], w[fixed], atol=1e-13)
    np.testing.assert_allclose(relaxation.equations @ w, 0, atol=1e-13)
    directions = relaxation.directions.toarray() if homogeneous else relaxation.directions
    y = np.linalg.lstsq(directions, w - relaxation.known, rcond=1e-14)[0]
    np.testing.assert_allclose(relaxation.known + directions @ y, w, atol=1e-13)
    np.testing.assert_allclose(relaxation.equations @ relaxation.uniform, 0, atol=1e-13)
    for block in relaxation.blocks:
        b = block.change @ power_moments(x, block.degree)
        expected = u[list(block.factors)].prod() * np.outer(b, b)
        found = block.offset + smat(block.derivatives @ y)
        np.testing.assert_allclose(found, expected, atol=1e-8 * abs(expected).max())
        if not homogeneous:
            np.testing.assert_allclose(block.uniform, np.eye(block.size), atol=1e-8)


def test_build_refuses():
    known = uniform_moments(2, 5)
    with pytest.raises(ValueError, match=r"ceil\(d/2\) = 3 for order d=5; got 2"):
        build_relaxation(known, 2, 5, 2)
    with pytest.raises(ShapeError, match=r"must have shape \(10,\)"):
        build_relaxation(known, 2, 3, 2)
    with pytest.raises(ValueError, match="n_variables must be at least 1"):
        build_relaxation([1.0], 0, 1, 1)
    with pytest.raises(ValueError, match="index 1"):
        build_relaxation([1.0, np.nan], 1, 1, 1)
    with pytest.raises(ProblemTooLargeError, match=r"n=12, d=4 .* 1365: about .* GiB"):
        build_relaxation(uniform_moments(11, 4), 11, 4, 4)


def test_building_makes_no_call_per_coefficient():
    known, calls = uniform_moments(4, 4), 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        problem = shift_problem(build_relaxation(known, 4, 4, 4))
    finally:
        sys.setprofile(before)
    assert problem.n_nonzeros > 10**6
    assert calls < problem.n_nonzeros / 5


# --- shifts


def check_certificate(result, known):
    """The identities that the docstring of uniform_shift states."""
    relaxation = result.relaxation
    p = relaxation.polynomial(result.multipliers)
    size = len(known)
    scale = max(abs(Q).max() for Q in result.multipliers)
    assert abs(p[size:]).max(initial=0) <= 1e-9 * scale
    assert p @ relaxation.uniform == pytest.approx(1, abs=1e-9)
    assert p[:size] @ known == pytest.approx(-result.t, abs=1e-8)
    assert all(np.linalg.eigvalsh(Q)[0] >= -1e-9 * scale for Q in result.multipliers)
    # the same polynomial, point by point, from factors and Gram matrices
    N, k = relaxation.n_variables, relaxation.relaxation_order
    for x in np.random.default_rng(0).dirichlet(np.ones(N + 1), 5):
        u, x = x, x[:-1]
        value = sum(
            u[list(block.factors)].prod()
            * (power_moments(x, block.degree) @ Q @ power_moments(x, block.degree))
            for block, Q in zip(relaxation.blocks, result.multipliers, strict=True)
        )
        assert value == pytest.approx(p @ power_moments(x, 2 * k), abs=1e-8 * scale)
        assert value >= -1e-9 * scale


@pytest.mark.parametrize(
    ("entries", "n", "d", "k", "t"),
    [
        (by_distinct_count(3, 3, (1, 0.3, 0.35)), 3, 3, 2, 2 / 7),
        (by_distinct_count(4, 3, (1, 0.3, 0.35)), 4, 3, 2, 15 / 58),
        (by_distinct_count(5, 3, (1, 0.3, 0.35)), 5, 3, 2, 21 / 88),
        (np.array([1, 0.5, 0.5, 0.3]), 2, 3, 2, 12 / 43),
        (np.array([1, 0.5, 0.5, 0.3]), 2, 3, 4, 12 / 43),
        (by_distinct_count(3, 3, (1, 0, 0.2)), 3, 3, 2, 20 / 7),
        (by_distinct_count(3, 3, (1, 0, 0.2)), 3, 3, 3, 20 / 7),
        (by_distinct_count(3, 3, (1, 0.3, 0.35)), 3, 3, 4, 2 / 7),
        (matrix_entries([[1, 2], [2, 1]]), 2, 2, 1, None),
    ],
)
def test_known_shifts(entries, n, d, k, t):
    known = normalised(entries, n, d)
    result = solve_shift(build_relaxation(known, n - 1, d, k))
    assert result.status == "solved"
    if t is None:  # an eigenvalue
        assert result.conic is None
        t = result.dual_bound
        assert t > 0
    assert result.t == pytest.approx(t, abs=1e-7)
    check_certificate(result, known)


def test_shift_of_a_triangle_free_pattern():
    known = normalised(triangle_free(3), 5, 2)
    result = solve_shift(build_relaxation(known, 4, 2, 2))
    assert result.t == pytest.approx(0.13632, abs=5e-6)
    check_certificate(result, known)
    # doubly nonnegative: the first relaxation sees nothing
    first = solve_shift(build_relaxation(known, 4, 2, 1))
    assert first.conic is None
    assert abs(first.t) < 1e-12


@pytest.mark.parametrize("values", [(1, 0.3, 0.35), (1, 0.5, 0.3)])
def test_the_homogeneous_relaxation_agrees(values):
    known = normalised(by_distinct_count(3, 3, values), 3, 3)
    result = [solve_shift(build_relaxation(known, 2, 3, 2, homogeneous=h)) for h in (False, True)]
    assert result[1].relaxation.n_variables == 3
    assert result[0].t == pytest.approx(result[1].t, abs=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 3), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_interior_tensors_have_negative_shifts(n, d, seed):
    rng = np.random.default_rng(seed)
    known = 0.8 * atoms_moments(n, d, 3, rng) + 0.2 * uniform_moments(n - 1, d)
    result = solve_shift(build_relaxation(known, n - 1, d, (d + 1) // 2))
    assert -1 - 1e-6 <= result.t < -0.2 + 1e-6


def test_high_orders_stay_accurate():
    # in monomials the columns of order 8 are dependent to ten digits, and t came out as 8
    rng = np.random.default_rng(0)
    known = atoms_moments(2, 3, 4, rng)
    shifts = [solve_shift(build_relaxation(known, 1, 3, k)).t for k in (2, 5, 8)]
    assert shifts[1] == pytest.approx(shifts[0], abs=1e-6)
    assert shifts[2] == pytest.approx(shifts[0], abs=1e-4)


# --- generic objectives


def test_generic_moments_rebuild_the_known_ones():
    rng = np.random.default_rng(1)
    known = 0.7 * atoms_moments(3, 3, 4, rng) + 0.3 * uniform_moments(2, 3)
    relaxation = build_relaxation(known, 2, 3, 3)
    result = solve_moments(relaxation, seed=5)
    assert result.status != "failed"
    np.testing.assert_allclose(result.moments[: len(known)], known, atol=1e-15)
    for block in relaxation.blocks:
        eigenvalues = np.linalg.eigvalsh(smat(block.map @ result.moments))
        assert eigenvalues[0] >= -1e-8
    # a sum of squares in moments of any measure is positive
    assert result.objective @ result.moments > 0
    assert result.objective @ power_moments(np.array([0.2, 0.3]), 6) > 0
    assert len(result.conic.y) == relaxation.n_free


def test_generic_objective_depends_on_the_seed_alone():
    relaxation = build_relaxation(uniform_moments(2, 3), 2, 3, 2)
    np.testing.assert_array_equal(
        generic_objective(relaxation, 4), generic_objective(relaxation, 4)
    )
    assert not np.allclose(generic_objective(relaxation, 4), generic_objective(relaxation, 5))


def test_no_free_moment():
    known = uniform_moments(2, 4)
    result = solve_moments(build_relaxation(known, 2, 4, 2))
    np.testing.assert_array_equal(result.moments, known)
    assert result.status == "solved"


def test_objectives_of_a_wrong_length():
    relaxation = build_relaxation(uniform_moments(1, 3), 1, 3, 2)
    with pytest.raises(ShapeError, match="objective must have shape"):
        solve_moments(relaxation, np.zeros(3))
