"""Linear optimization over the completely positive cone: known optima, statuses, bad input."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.completely_positive import ConeResult, minimize
from tensoralg.completely_positive.cone_bounds import mass_bound, simple_infeasibility
from tensoralg.completely_positive.cone_points import best_atoms, local_minimizers, violation
from tensoralg.completely_positive.cone_problem import (
    cone_problem,
    form_gradients,
    form_values,
)
from tensoralg.completely_positive.cone_relaxation import (
    form_to_polynomial,
    polynomial_to_form,
    relaxed,
)
from tensoralg.core.errors import NotSymmetricError, ProblemTooLargeError, ShapeError
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.core.symmetric_tensor import SymmetricTensor

CYCLE = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
HORN = np.ones((5, 5)) - 2 * CYCLE
ONES = np.ones((5, 5))


def cube_term(n):
    """Form -x1 x2 x3 as a tensor."""
    return SymmetricTensor.from_function(lambda *i: -float(i == (0, 1, 2)) / 6, 3, n)


def power(i, n, d):
    """The tensor that picks entry i..i."""
    return SymmetricTensor.from_function(lambda *j: float(set(j) == {i}), d, n)


def cubes(n):
    return SymmetricTensor.from_function(lambda *i: float(len(set(i)) == 1), 3, n)


DIAGONAL = [(power(i, 3, 3), "==", 1.0) for i in range(3)]


def check_feasible(result, C, constraints):
    """The tensor is the sum of nonnegative powers and satisfies what it should."""
    points = result.decomposition.points
    assert (points >= 0).all()
    assert (result.decomposition.weights == 1).all()
    assert result.decomposition.residual(result.tensor) < 1e-12
    assert result.lower_bound <= result.value
    as_tensor = [t if isinstance(t, SymmetricTensor) else SymmetricTensor.from_dense(t) for t in C]
    objective = float(as_tensor[0].inner(result.tensor))
    assert objective == pytest.approx(result.value, abs=1e-9)
    for (_, sense, number), B in zip(constraints, as_tensor[1:], strict=True):
        value, slack = float(B.inner(result.tensor)), 1e-8 * (1 + abs(number))
        assert sense == ">=" or value <= number + slack
        assert sense == "<=" or value >= number - slack


KNOWN = {
    "cycle": (np.eye(5) + CYCLE, [(ONES, "==", 1.0)], 0.5),
    "horn": (HORN, [(ONES, "==", 1.0)], 0.0),
    "motzkin-straus": (-CYCLE, [(ONES, "==", 1.0)], -0.5),
    "product": (cube_term(3), [(np.ones((3, 3, 3)), "==", 1.0)], -1 / 27),
    "cubes": (cubes(4), [(np.ones((4, 4, 4)), "==", 1.0)], 1 / 16),
    "completion": (6 * cube_term(3), DIAGONAL, -6.0),
    "least mass": (np.ones((3, 3, 3)), DIAGONAL, 3.0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_optima(name):
    C, constraints, optimum = KNOWN[name]
    result = minimize(C, constraints)
    assert result.status == "optimal"
    assert result.value == pytest.approx(optimum, abs=1e-6)
    assert result.lower_bound == pytest.approx(optimum, abs=2e-6)
    check_feasible(result, [C, *(B for B, _, _ in constraints)], constraints)


def test_low_orders_prove_the_bounds_of_the_literature():
    # with products, order 1 is the doubly nonnegative relaxation
    for C, bound in ((np.eye(5) + CYCLE, 1 / np.sqrt(5)), (HORN, -0.105573)):
        result = minimize(C, [(ONES, "==", 1.0)], max_order=1)
        assert result.status == "feasible"
        assert result.lower_bound == pytest.approx(bound, abs=1e-6)
        assert result.relaxation_order == 1


def test_infeasible_problems_are_proven():
    corner = np.diag([1.0, 0.0])
    plain = minimize(np.eye(2), [(corner, "==", -1.0)])
    assert (plain.status, plain.value, plain.lower_bound) == ("infeasible", np.inf, np.inf)
    assert minimize(np.eye(2), [(np.eye(2), "==", 1), (np.ones((2, 2)), ">=", 3)]).tensor is None
    # correlations .9, .9, .1 are not those of any positive semidefinite matrix
    pairs = {(0, 0): 1, (1, 1): 1, (2, 2): 1, (0, 1): 0.9, (1, 2): 0.9, (0, 2): 0.1}
    rows = []
    for (i, j), value in pairs.items():
        B = np.zeros((3, 3))
        B[i, j] += 0.5
        B[j, i] += 0.5
        rows.append((B, "==", value))
    deep = minimize(np.eye(3), rows)
    assert deep.status == "infeasible"
    assert deep.relaxation_order >= 1


def test_unbounded_and_unconstrained_problems():
    corner = np.diag([1.0, 0.0])
    result = minimize(-np.eye(2), [(corner, "==", 1.0)])
    assert (result.status, result.value) == ("unbounded", -np.inf)
    assert minimize(-np.eye(2), []).status == "unbounded"
    assert minimize(np.eye(3), []).value == 0.0
    # X may grow without end at the same objective: the level set has no bounded mass
    free = minimize(np.diag([0.0, 1.0]), [(corner, "==", 1.0)])
    assert free.status == "optimal"
    assert free.value == pytest.approx(0.0, abs=1e-9)


def test_the_mass_is_bounded_by_the_objective_when_no_constraint_does():
    # x'(1 -1; -1 1)x with x_1 = 1: only the objective keeps x_2 small
    C = np.array([[2.0, -1.0], [-1.0, 1.0]])
    result = minimize(C, [(np.diag([1.0, 0.0]), "==", 1.0)])
    assert result.status == "optimal"
    assert result.value == pytest.approx(1.0, abs=1e-6)
    assert result.tensor.to_dense() == pytest.approx(np.ones((2, 2)), abs=1e-3)


def test_inequalities_and_maximisation():
    result = minimize(-np.ones((3, 3)), [(np.eye(3), "<=", 2.0)])
    assert result.status == "optimal"
    assert result.value == pytest.approx(-6.0, abs=1e-6)
    entry = np.diag([0.0, 1.0, 0.0])
    both = minimize(np.eye(3), [(np.ones((3, 3)), "==", 1.0), (entry, ">=", 0.25)])
    assert both.value == pytest.approx(0.375, abs=1e-6)


def test_scale_of_the_input_does_not_matter():
    for size in (1e-8, 1e8):
        constraints = [(size * ONES, "==", size * 7.0)]
        result = minimize((np.eye(5) + CYCLE) / size, constraints)
        assert result.status == "optimal"
        assert result.value * size == pytest.approx(3.5, rel=1e-6)


def test_order_one_and_dimension_one():
    assert minimize([2.0, 1.0], [([1.0, 1.0], ">=", 3.0)]).value == pytest.approx(3.0, abs=1e-6)
    one = minimize([[2.0]], [([[1.0]], ">=", 3.0)])
    assert (one.status, one.value, one.lower_bound) == ("optimal", 6.0, 6.0)


def test_dimension_one_without_an_optimum():
    one = [[1.0]]
    assert minimize(one, [(one, "==", 1.0), (one, "==", 2.0)]).status == "infeasible"
    assert minimize([[-1.0]], [(one, ">=", 1.0)]).status == "unbounded"
    assert minimize([[0.0]], [(one, ">=", 1.0)]).value == 0.0


def test_coordinates_that_nothing_bounds():
    # X may grow without end at the optimal objective; the bound needs no mass
    corner = np.diag([1.0, 0.0, 0.0])
    result = minimize(np.diag([0.0, 1.0, 0.0]), [(corner, "==", 1.0)])
    assert (result.status, result.value, result.lower_bound) == ("optimal", 0.0, 0.0)


def test_repeated_equations():
    result = minimize(np.eye(5) + CYCLE, [(ONES, "==", 1.0), (2 * ONES, "==", 2.0)])
    assert result.status == "optimal"
    assert result.value == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_equations_repeated_up_to_rounding_are_no_contradiction(seed):
    rng = np.random.default_rng(seed)
    n = 1 + seed % 3
    atoms = rng.random((3, n))
    X, rows = atoms.T @ atoms, []
    for B in rng.standard_normal((3, n, n)):
        B, factor = B + B.T, float(rng.uniform(0, 10))
        value = float((B * X).sum())
        rows += [(B, "==", value), (factor * B, "==", factor * value)]
        rows.append((-factor * B, "<=", -factor * value))
    result = minimize(np.eye(n), rows)
    assert result.status == "optimal"
    assert result.lower_bound <= np.trace(X) + 1e-9
    # by more than rounding it is one
    contrary = (rows[0][0], "==", rows[0][2] * (1 + 1e-6))
    assert minimize(np.eye(n), [rows[0], contrary]).status == "infeasible"


def every_entry(A):
    A = SymmetricTensor.from_dense(A)
    return [
        (SymmetricTensor(unit / A.multiplicities, A.order, A.dimension), "==", value)
        for unit, value in zip(np.eye(len(A.entries)), A.entries, strict=True)
    ]


def test_a_matrix_whose_entries_are_all_given():
    shifts = [np.linalg.matrix_power(np.roll(np.eye(5), 1, axis=0), i) for i in range(5)]
    circulant = sum(c * P for c, P in zip((8, 5, 1, 1, 5), shifts, strict=True))
    result = minimize(np.eye(5), every_entry(circulant))
    assert result.status == "optimal"
    assert result.value == pytest.approx(40.0, abs=1e-6)
    assert result.tensor.to_dense() == pytest.approx(circulant, abs=1e-7)


def test_a_doubly_nonnegative_matrix_off_the_cone_is_infeasible():
    B = [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, 6]]
    result = minimize(np.eye(5), every_entry(np.array(B, dtype=float)))
    assert result.status == "infeasible"
    assert result.relaxation_order == 2


def test_without_a_feasible_tensor_the_lower_bound_is_what_is_known():
    B = [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, 6]]
    result = minimize(np.eye(5), every_entry(np.array(B, dtype=float)), max_order=1)
    assert (result.status, result.value, result.tensor) == ("lower bound only", np.inf, None)
    assert result.lower_bound == pytest.approx(np.trace(B), abs=1e-6)  # the trace
    assert "higher max_order" in result.message


def test_an_order_that_is_too_large_ends_the_search_with_its_size():
    C = np.ones((20, 20))
    C[:5, :5] = HORN
    result = minimize(C, [(np.ones((20, 20)), "==", 1.0)], max_order=3)
    assert (result.status, result.relaxation_order) == ("feasible", 1)
    assert result.value == pytest.approx(0.0, abs=1e-9)
    assert result.lower_bound == pytest.approx(-0.105573, abs=1e-6)
    assert "k=2 of a tensor with n=20" in result.message
    assert "GiB" in result.message


def test_the_stability_number_of_petersens_graph():
    edges = [(i, (i + 1) % 5) for i in range(5)] + [(i, i + 5) for i in range(5)]
    edges += [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
    graph = np.zeros((10, 10))
    for i, j in edges:
        graph[i, j] = graph[j, i] = 1.0
    result = minimize(-np.ones((10, 10)), [(np.eye(10), "==", 1.0), (graph, "==", 0.0)])
    assert result.status == "optimal"
    assert result.value == pytest.approx(-4.0, abs=1e-6)
    chosen = result.decomposition.points[0] > 1e-6
    assert not graph[np.ix_(chosen, chosen)].any()


def test_only_the_zero_tensor():
    result = minimize(np.eye(2), [(np.ones((2, 2)), "<=", 0.0)])
    assert (result.status, result.value, result.decomposition.rank) == ("optimal", 0.0, 0)


@pytest.mark.parametrize(
    ("constraints", "error", "words"),
    [
        ([(np.eye(3), "==", 1.0)], ShapeError, "dimension 3"),
        ([(np.eye(2), "<", 1.0)], ValueError, "'<'"),
        ([(np.eye(2), "==", np.nan)], ValueError, r"constraints\[0\]\[2\] .*finite.*nan"),
        ([(np.eye(2), "==", None)], ValueError, r"constraints\[0\]\[2\] .*None"),
        ([(np.eye(2), "==", "1")], ValueError, r"constraints\[0\]\[2\] .*'1'"),
        ([(np.eye(2), "==", 1j)], ValueError, r"constraints\[0\]\[2\] .*1j"),
        (
            [([[1, 2], [3, 4]], "==", 1)],
            NotSymmetricError,
            r"constraints\[0\]\[0\]: .*symmetric.*from_dense",
        ),
        ([(5.0, "==", 1)], ShapeError, r"constraints\[0\]\[0\]: "),
        ([([["a"]], "==", 1)], ValueError, r"constraints\[0\]\[0\]: "),
        ([(np.eye(2), "==")], ValueError, "sense, number"),
        ([(1j * np.eye(2), "==", 1.0)], ValueError, "real"),
    ],
)
def test_bad_constraints(constraints, error, words):
    with pytest.raises(error, match=words):
        minimize(np.eye(2), constraints)


def test_fractions_and_integers_are_taken_as_numbers():
    half = Fraction(1, 2)
    result = minimize([[1, half], [half, 1]], [([[1, 1], [1, 1]], "==", half)])
    assert result.status == "optimal"
    assert result.value == pytest.approx(0.375, abs=1e-6)
    assert type(result.value) is type(result.lower_bound) is float


def test_bad_objectives_and_orders():
    with pytest.raises(ValueError, match=r"C.*complex"):
        minimize(1j * np.eye(2), [])
    with pytest.raises(ValueError, match=r"ceil\(d/2\) = 2"):
        minimize(cubes(3), [], max_order=1)
    with pytest.raises(ValueError, match=r"finite|NaN"):
        minimize([[np.nan, 0.0], [0.0, 1.0]], [])


def test_a_problem_that_is_too_large_is_refused_with_its_size():
    with pytest.raises(ProblemTooLargeError, match="GiB"):
        minimize(cubes(30), [(power(0, 30, 3), "==", 1.0)])


def test_gap_of_results():
    assert ConeResult(2.0, 1.5, None, None, 1, "feasible").gap == 0.5
    assert ConeResult(np.inf, np.inf, None, None, 1, "infeasible").gap == 0.0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_forms_and_polynomials_agree_on_the_simplex(n, d, seed):
    rng = np.random.default_rng(seed)
    form = rng.standard_normal((2, len(multi_indices(n, d))))
    u = rng.dirichlet(np.ones(n))
    polynomial = form_to_polynomial(form, n, d)
    values = polynomial @ evaluate_monomials(np.r_[1.0, u[:-1]][None], multi_indices(n, d))[0]
    assert values == pytest.approx(form_values(form, u[None], d)[:, 0], abs=1e-12)
    assert polynomial_to_form(polynomial, n, d) == pytest.approx(form, abs=1e-12)


def test_gradients_are_those_of_differences():
    rng = np.random.default_rng(3)
    form, u, h = rng.standard_normal((2, 20)), rng.random((3, 4)), 1e-6
    gradients = form_gradients(form, u, 3)
    for i in range(4):
        step = h * np.eye(4)[i]
        slope = (form_values(form, u + step, 3) - form_values(form, u - step, 3)) / (2 * h)
        assert gradients[:, :, i] == pytest.approx(slope, abs=1e-8)


def test_local_minimizers_of_motzkin_and_straus():
    form = cone_problem(-CYCLE, []).cost
    points = local_minimizers(form, 2, 5, np.random.default_rng(0), 20)
    assert (points >= 0).all()
    assert points.sum(axis=1) == pytest.approx(1.0)
    assert form_values(form, points[:1], 2)[0] == pytest.approx(-0.5, abs=1e-9)


def test_mass_bounds_are_proven_by_means():
    problem = cone_problem(np.ones((3, 3, 3)), DIAGONAL)
    assert mass_bound(problem) == pytest.approx(27.0)
    assert mass_bound(problem, 3.0) == pytest.approx(3.0)
    assert mass_bound(cone_problem(np.eye(2), [])) == np.inf
    assert mass_bound(cone_problem(np.eye(2), [(np.diag([1.0, 0.0]), "==", 1.0)])) == np.inf
    assert not simple_infeasibility(problem)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_bounds_hold_for_random_feasible_tensors(n, d, seed):
    # the weak side of duality, whatever the solver did
    rng = np.random.default_rng(seed)
    atoms = rng.random((4, n)) * (rng.random((4, n)) < 0.7)
    X = SymmetricTensor.from_decomposition(np.ones(4), atoms, d)
    C = SymmetricTensor(rng.standard_normal(X.entries.shape), d, n)
    B = SymmetricTensor(rng.standard_normal(X.entries.shape), d, n)
    mass = SymmetricTensor(np.ones(X.entries.shape), d, n)
    constraints = [
        (mass, "==", float(mass.inner(X))),
        (B, "<=", float(B.inner(X)) + 0.01),
    ]
    result = minimize(C, constraints, max_order=max((d + 1) // 2, 2))
    assert result.status in ("optimal", "feasible")
    assert result.lower_bound <= float(C.inner(X)) + 1e-9
    assert result.lower_bound <= result.value
    check_feasible(result, [C, mass, B], constraints)


def test_many_equations_are_met_to_rounding():
    rng = np.random.default_rng(5)
    truth = rng.random((4, 4))
    X = truth.T @ truth
    rows = []
    for i, j in multi_indices(4, 2):
        B = np.zeros((4, 4))
        B[i, j] += 0.5
        B[j, i] += 0.5
        if (i, j) != (0, 3):
            rows.append((B, "==", X[i, j]))
    C = np.zeros((4, 4))
    C[0, 3] = C[3, 0] = 0.5
    low, high = minimize(C, rows), minimize(-C, rows)
    assert low.status == high.status == "optimal"
    assert low.value <= X[0, 3] <= -high.value
    for result in (low, high):
        known = [(i, j) for i, j in multi_indices(4, 2) if (i, j) != (0, 3)]
        found = result.tensor.to_dense()
        assert max(abs(found[i, j] - X[i, j]) for i, j in known) < 1e-8


def test_a_bound_without_a_solution_is_worth_nothing():
    problem = cone_problem(-np.eye(2), [(np.diag([1.0, 0.0]), "==", 1.0)])
    assert relaxed(problem, 1).loss > 0.5


def test_best_atoms_of_an_impossible_problem():
    problem = cone_problem(np.eye(2), [(np.eye(2), "==", -1.0)])
    atoms, value = best_atoms(problem, np.zeros((0, 2)), np.random.default_rng(0))
    assert value == np.inf
    assert violation(problem, atoms) > 0.5
