from fractions import Fraction
from itertools import combinations
from math import comb, factorial, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import circulant
from scipy.special import roots_genlaguerre, roots_jacobi, roots_legendre

from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import multi_indices, multiplicities
from tensoralg.solvers.atom_polish import polish_atoms
from tensoralg.solvers.conditional_gradient import ascend, conditional_gradient, merge_directions
from tensoralg.solvers.moment_curve import binary_atoms, curve_atoms, hankel_form
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition
from tensoralg.solvers.power_sums import power_sum

MATRICES = {
    "five_1": "1 1 0 0 1;1 2 1 0 0;0 1 3 1 0;0 0 1 4 1;1 0 0 1 5",
    "five_2": "3 2 0 0 1;2 5 6 0 0;0 6 14 4 0;0 0 4 9 1;1 0 0 1 2",
    "five_3": "2 1 0 0 1;1 2 1 0 0;0 1 2 1 0;0 0 1 2 1;1 0 0 1 3",
    "singular_6": "2 0 0 1 1;0 2 0 1 1;0 0 2 1 1;1 1 1 3 0;1 1 1 0 3",
    "rank_4": "2 0 0 1 0;0 2 0 0 1;0 0 4 1 1;1 0 1 1 0;0 1 1 0 1",
    "dense_4": "6 5 5 1 2;5 6 5 2 1;5 5 9 2 2;1 2 2 1 0;2 1 2 0 1",
    "cycle": "10 5 2 0 5;5 10 5 0 0;2 5 10 5 0;0 0 5 10 5;5 0 0 5 10",
    "rank_3": "41 43 80 56 50;43 62 89 78 51;80 89 162 120 93;56 78 120 104 62;50 51 93 62 65",
    "boundary_b7": "1 1 0 0 1;1 2 1 0 0;0 1 2 1 0;0 0 1 2 1;1 0 0 1 7",
}


def entries_of(atoms, order):
    return atoms[:, multi_indices(atoms.shape[1], order)].prod(axis=2).sum(axis=0)


def check(entries, n, order, atoms, residual, tol=1e-12):
    root = np.sqrt(multiplicities(multi_indices(n, order)))
    difference = np.linalg.norm((entries_of(atoms, order) - entries) * root)
    assert residual <= tol
    assert difference <= 2 * tol * np.linalg.norm(entries * root)
    assert (atoms >= 0).all()
    assert len(atoms) <= comb(n + order - 1, order)


def maximal_supports(entries, n, order):
    """All maximal index sets without an entry that vanishes, by brute force."""
    zeros = [set(i) for i in multi_indices(n, order)[entries == 0].tolist()]
    found = []
    for size in range(n, 0, -1):
        for support in map(set, combinations(range(n), size)):
            if not any(z <= support for z in zeros) and not any(support <= s for s in found):
                found.append(support)
    return [sorted(s) for s in found]


def decompose(entries, n, order, **options):
    supports = maximal_supports(entries, n, order) if (entries == 0).any() else None
    return multi_start_decomposition(entries, n, order, supports=supports, rng=0, **options)


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_with_known_answers(name):
    matrix = np.array([row.split() for row in MATRICES[name].split(";")], dtype=float)
    entries = matrix[tuple(multi_indices(5, 2).T)]
    check(entries, 5, 2, *decompose(entries, 5, 2))


def test_matrix_orthogonal_to_the_horn_form():
    entries = circulant([8.0, 5, 1, 1, 5])[tuple(multi_indices(5, 2).T)]
    check(entries, 5, 2, *decompose(entries, 5, 2))


def curve_tensors(n, order):
    """Name, entries and the exact atoms from Gauss quadrature."""
    indices = multi_indices(n, order)
    degree = indices.sum(axis=1)  # from 0: the indices of the literature start at 1
    r = -(-(order * (n - 1) + 1) // 2)
    powers = np.arange(n)
    x, w = roots_legendre(r)
    yield "hilbert", 1 / (degree + 1), (x + 1) / 2, w / 2, np.ones(n)
    x, w = roots_jacobi(r, 0, order - 1)
    yield "cauchy", 1 / (degree + order), (x + 1) / 2, w / 2**order, np.ones(n)
    x, w = roots_genlaguerre(r, 0)
    pascal = [factorial(sum(i)) / prod(map(factorial, i)) for i in indices.tolist()]
    scale = 1 / np.array([factorial(j) for j in powers.tolist()])
    yield "pascal", np.array(pascal), x, w, scale


@pytest.mark.parametrize(("n", "order"), [(2, 3), (3, 3), (3, 4), (4, 3), (3, 5), (4, 4), (5, 5)])
def test_tensors_on_a_moment_curve(n, order):
    for _name, entries, x, w, scale in curve_tensors(n, order):
        exact = w[:, None] ** (1 / order) * x[:, None] ** np.arange(n) * scale
        np.testing.assert_allclose(entries_of(exact, order), entries, rtol=1e-12)
        check(entries, n, order, *multi_start_decomposition(entries, n, order, rng=0))
        check(entries, n, order, *polish_atoms(entries, n, order, exact * (1 + 1e-7)))


@pytest.mark.parametrize(("n", "order"), [(2, 2), (3, 3), (4, 3), (4, 4), (6, 4), (5, 5)])
def test_minimum_tensors(n, order):
    entries = multi_indices(n, order).min(axis=1) + 1.0
    exact = np.triu(np.ones((n, n)))  # e_{>= s}
    np.testing.assert_array_equal(entries_of(exact, order), entries)
    atoms, residual = multi_start_decomposition(entries, n, order, rng=0)
    check(entries, n, order, atoms, residual)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_random_interior_tensors(n, order):
    rng = np.random.default_rng(100 * n + order)
    count = comb(n + order - 1, order)
    if count > 130:
        pytest.skip("takes seconds")
    entries = entries_of(rng.random((2 * count, n)), order)
    check(entries, n, order, *multi_start_decomposition(entries, n, order, rng=0))


@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_low_rank_tensors_are_decomposed_by_linear_algebra(n, order):
    rng = np.random.default_rng(100 * n + order)
    u = rng.random((n, n)) * (rng.random((n, n)) < 0.7) + np.eye(n)
    entries = entries_of(u, order)
    atoms, residual = decompose(entries, n, order, n_starts=0)
    check(entries, n, order, atoms, residual)
    units = u / np.linalg.norm(u, axis=1, keepdims=True)
    cosines = units @ (atoms / np.linalg.norm(atoms, axis=1, keepdims=True)).T
    if n > 2:  # binary tensors of this order have many decompositions
        np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_zero_patterns_in_ten_dimensions(seed):
    rng = np.random.default_rng(seed)
    u = np.zeros((56, 10))
    for s in range(7):
        support = rng.choice(10, 4, replace=False)
        u[np.ix_(range(8 * s, 8 * s + 8), support)] = rng.random((8, 4))
    entries = entries_of(u, 3)
    entries = np.where((u[:, multi_indices(10, 3)] > 0).all(axis=2).any(axis=0), entries, 0.0)
    atoms, residual = decompose(entries, 10, 3)
    check(entries, 10, 3, atoms, residual)
    allowed = maximal_supports(entries, 10, 3)
    assert all(any(set(np.flatnonzero(a)) <= set(s) for s in allowed) for a in atoms)


@pytest.mark.parametrize("factor", [1e-8, 1e8, 1e-200, 1e200])
def test_atoms_scale_with_the_root_of_the_tensor(factor):
    rng = np.random.default_rng(1)
    entries = entries_of(rng.random((12, 3)), 3)
    atoms, residual = multi_start_decomposition(entries, 3, 3, rng=0)
    scaled, scaled_residual = multi_start_decomposition(factor * entries, 3, 3, rng=0)
    assert max(residual, scaled_residual) < 1e-12
    check(entries, 3, 3, scaled / factor ** (1 / 3), scaled_residual)
    check(entries, 3, 3, atoms, residual)


def test_fewer_atoms_on_demand():
    entries = entries_of(np.random.default_rng(2).random((20, 4)), 3)
    atoms, _ = multi_start_decomposition(entries, 4, 3, rng=0)
    fewer, fewer_residual = multi_start_decomposition(entries, 4, 3, rng=0, reduce=True)
    check(entries, 4, 3, fewer, fewer_residual)
    assert len(fewer) < len(atoms)


def test_trivial_tensors():
    for n, order in ((1, 3), (3, 1), (4, 3)):
        atoms, residual = multi_start_decomposition(
            np.zeros(comb(n + order - 1, order)), n, order, rng=0
        )
        assert atoms.shape == (0, n)
        assert residual == 0
    atoms, residual = multi_start_decomposition([8.0], 1, 3)
    np.testing.assert_allclose(atoms, [[2.0]])
    check(np.array([8.0]), 1, 3, atoms, residual)
    atoms, residual = multi_start_decomposition([1.0, 0.0, 2.0], 3, 1)
    np.testing.assert_allclose(atoms, [[1.0, 0.0, 2.0]])
    atoms, residual = multi_start_decomposition([-1.0], 1, 3)
    assert residual == pytest.approx(1.0)
    # a vanishing diagonal entry excludes its index
    u = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.5]])
    atoms, residual = multi_start_decomposition(entries_of(u, 3), 3, 3, rng=0)
    check(entries_of(u, 3), 3, 3, atoms, residual)
    assert (atoms[:, 1] == 0).all()


@pytest.mark.parametrize(("n", "order"), [(3, 3), (4, 3), (5, 3), (3, 4), (5, 2)])
def test_tensors_outside_the_cone_keep_their_distance(n, order):
    values = np.array([1, 0.3, 0.35, 0.35, 0.35]) if order > 2 else np.array([1, 1.2])
    distinct = np.array([len(set(i)) for i in multi_indices(n, order).tolist()])
    atoms, residual = multi_start_decomposition(values[distinct - 1], n, order, rng=0)
    assert residual > 1e-3
    assert (atoms >= 0).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_binary_tensors_of_any_rank(order, rank, seed):
    rng = np.random.default_rng(seed)
    angles = rng.choice([0.0, *np.linspace(0.05, 1.5, 30), np.pi / 2], rank, replace=False)
    u = np.column_stack([np.cos(angles), np.sin(angles)]).clip(0) * rng.uniform(0.5, 1, (rank, 1))
    values = entries_of(u, order)
    atoms, residual = binary_atoms(values)
    assert residual < 1e-9
    assert (atoms >= 0).all()


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_rescaled_hankel_tensors_are_recognised(places):
    rng = np.random.default_rng(3)
    c = rng.uniform(0.5, 2, 4)
    h = (rng.random(5)[:, None] ** np.arange(10)).sum(axis=0)  # moments are log-convex
    indices = multi_indices(4, 3)
    entries = c[indices].prod(axis=1) * h[np.array(places)[indices].sum(axis=1)]
    form = hankel_form(list(map(Fraction, entries.tolist())), 4, 3)
    sequence = np.array(form.moments, dtype=float)
    rebuilt = form.factors[indices].prod(axis=1) * sequence[form.places[indices].sum(axis=1)]
    np.testing.assert_allclose(rebuilt, entries, rtol=1e-11)
    for other in (rng.random(20), np.eye(4).ravel()[:10], -entries):
        n, d = (4, 3) if len(other) == 20 else (4, 2)
        assert hankel_form(list(map(Fraction, other.tolist())), n, d) is None


def test_a_hankel_tensor_with_a_node_at_infinity():
    exact = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.5, 0.25, 0.125], [0.0, 0.0, 0.0, 2.0]])
    entries = entries_of(exact, 3)
    _, residual = curve_atoms(power_sum(entries, 4, 3), 1e-12)
    assert residual < 1e-12


@pytest.mark.parametrize(("n", "order"), [(3, 3), (4, 3), (3, 4)])
def test_conditional_gradients_separate_from_the_cone(n, order):
    rng = np.random.default_rng(n)
    entries = entries_of(rng.random((n, n)), order)
    entries -= 0.3 * (np.ptp(multi_indices(n, order), axis=1) > 0) * entries.max()
    problem = power_sum(entries, n, order)
    atoms, residual, outside = conditional_gradient(problem, np.ones((1, n), bool), rng)
    assert outside
    assert residual > 1e-3
    # <A - B, A> exceeds what the mass of A times the values of A - B on the simplex allows
    difference = -problem.difference(atoms) * problem.root
    grid = rng.dirichlet(np.full(n, 0.5), 20000)
    largest = max((grid[:, problem.indices].prod(axis=2) @ difference).max(), 0.0)
    mass = abs(problem.values @ problem.root**2)
    assert difference @ problem.values > largest * mass


@pytest.mark.parametrize(("corner", "inside"), [(3.0, False), (6.0, False), (7.0, True)])
def test_the_family_with_a_known_boundary(corner, inside):
    matrix = np.array([row.split() for row in MATRICES["boundary_b7"].split(";")], dtype=float)
    matrix[4, 4] = corner
    atoms, residual = decompose(matrix[tuple(multi_indices(5, 2).T)], 5, 2)
    assert (residual < 1e-12) == inside
    assert (atoms >= 0).all()


def test_conditional_gradients_decompose_on_the_boundary():
    rng = np.random.default_rng(0)
    u = rng.uniform(0.2, 1, (5, 4)) * np.array(
        [[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 1]]
    )
    problem = power_sum(entries_of(u, 3), 4, 3)
    atoms, residual, outside = conditional_gradient(problem, np.ones((1, 4), bool), rng)
    assert residual < 1e-12
    assert not outside
    masks = np.array([[True, True, False, False], [False, True, True, True]])
    entries = entries_of(np.where(masks, 1.0, 0.0) * rng.uniform(0.5, 1, (2, 4)), 3)
    atoms, residual, _ = conditional_gradient(power_sum(entries, 4, 3), masks, rng)
    assert residual < 1e-12
    assert all(masks[:, a > 0].all(axis=1).any() for a in atoms)


def test_ascent_never_falls():
    rng = np.random.default_rng(1)
    problem = power_sum(rng.standard_normal(20), 4, 3)
    difference = -problem.difference(np.zeros((0, 4)))
    x = rng.random((50, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    values = []
    for _ in range(30):
        values.append(x[:, problem.indices].prod(axis=2) @ (difference * problem.root))
        x = ascend(problem, difference, x, n_steps=1)
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-12)
    assert (np.diff(values, axis=0) > -1e-12).all()


def test_merged_directions_keep_the_mass():
    u = np.array([[1.0, 0.0, 0.0], [0.9, 0.001, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    merged = merge_directions(u, 3, 0.1)
    assert merged.shape == (2, 3)
    assert np.sum(np.linalg.norm(merged, axis=1) ** 3) == pytest.approx(1 + 0.9**3 + 8, rel=1e-5)
    assert merge_directions(np.zeros((2, 3)), 3, 0.1).shape == (0, 3)


def test_same_seed_same_atoms_and_bad_input():
    entries = entries_of(np.random.default_rng(4).random((12, 3)), 3)
    first, second = (multi_start_decomposition(entries, 3, 3, rng=7)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ShapeError, match="has 10 entries"):
        multi_start_decomposition(entries[:-1], 3, 3)
    with pytest.raises(ValueError, match=r"supports must hold indices 0 .. 2; got \[0, 3\]"):
        multi_start_decomposition(entries, 3, 3, supports=[[0, 3]])
    with pytest.raises(ValueError, match="n_atoms must be at least 1; got 0"):
        multi_start_decomposition(entries, 3, 3, n_atoms=0)
    with pytest.raises(ValueError, match="entries must be finite; got nan"):
        multi_start_decomposition([np.nan, 1.0, 1.0], 2, 2)
    with pytest.raises(ShapeError, match="at least 1"):
        multi_start_decomposition([], 0, 2)
