"""Relaxations as cvxpy constraints: completion, standard quadratic programs, stability numbers."""

import numpy as np
import pytest

from tensoralg.completely_positive import relaxation_constraints
from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.symmetric_tensor import SymmetricTensor

cp = pytest.importorskip("cvxpy")

pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")

CYCLE = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
ONES = np.ones((5, 5))


def form(B):
    """Coefficients of <B, X> in the entries of X."""
    tensor = B if isinstance(B, SymmetricTensor) else SymmetricTensor.from_dense(B)
    return tensor.entries * tensor.multiplicities


def test_the_stability_number_of_the_five_cycle():
    # de Klerk and Pasechnik: order 1 with products is Schrijver's bound, sqrt 5 here
    for order, bound in ((1, np.sqrt(5)), (2, 2.0)):
        X = cp.Variable(15)
        constraints = [form(np.eye(5)) @ X == 1, form(CYCLE) @ X == 0]
        constraints += relaxation_constraints(X, 2, 5, order)
        problem = cp.Problem(cp.Maximize(form(ONES) @ X), constraints)
        assert problem.solve(solver="CLARABEL") == pytest.approx(bound, abs=1e-5)


def test_a_standard_quadratic_program():
    X = cp.Variable(15)
    constraints = [form(ONES) @ X == 1, *relaxation_constraints(X, 2, 5, 2)]
    problem = cp.Problem(cp.Minimize(form(np.eye(5) + CYCLE) @ X), constraints)
    assert problem.solve(solver="CLARABEL") == pytest.approx(0.5, abs=1e-6)


def test_completion_of_a_matrix():
    # entry (0, 3) is missing; the rest leaves an interval to completely positive matrices
    atoms = np.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 2], [1.0, 0, 0, 0]])
    A = atoms.T @ atoms
    known = SymmetricTensor.from_dense(A)
    free = np.array([tuple(i) == (0, 3) for i in known.indices.tolist()])
    values = {}
    for sense in (cp.Minimize, cp.Maximize):
        X = cp.Variable(10)
        constraints = [X[~free] == known.entries[~free], *relaxation_constraints(X, 2, 4, 1)]
        problem = cp.Problem(sense(X[int(np.flatnonzero(free)[0])]), constraints)
        values[sense] = problem.solve(solver="CLARABEL")
    assert values[cp.Minimize] == pytest.approx(0.0, abs=1e-6)
    # determinant of the leading matrix zero
    low, high = 0.0, values[cp.Maximize]
    A[0, 3] = A[3, 0] = high
    assert low < high
    assert np.linalg.eigvalsh(A).min() == pytest.approx(0.0, abs=1e-5)


def test_expressions_and_odd_orders():
    n = 3
    ones = SymmetricTensor.from_function(lambda *i: 1.0, 3, n)
    rest = cp.Variable(9)
    entries = cp.hstack([1.0 - (form(ones)[1:] @ rest), rest])  # a total of 1, by substitution
    cubes = SymmetricTensor.from_function(lambda *i: float(len(set(i)) == 1), 3, n)
    constraints = relaxation_constraints(entries, 3, n, 2)
    problem = cp.Problem(cp.Minimize(form(cubes) @ entries), constraints)
    assert problem.solve(solver="CLARABEL") == pytest.approx(1 / 9, abs=1e-5)


@pytest.mark.parametrize(("d", "n", "k"), [(1, 2, 1), (2, 3, 1), (3, 3, 2), (4, 2, 3)])
def test_powers_of_nonnegative_vectors_satisfy_the_constraints(d, n, k):
    u = np.random.default_rng(d).random(n)
    entries = SymmetricTensor.from_decomposition([2.0], [u], d).entries
    X = cp.Variable(len(entries))
    constraints = [X - entries == 0, *relaxation_constraints(X, d, n, k)]
    problem = cp.Problem(cp.Minimize(0), constraints)
    problem.solve(solver="CLARABEL")
    assert problem.status in ("optimal", "optimal_inaccurate")


def test_a_tensor_off_the_cone_is_cut_off():
    X = cp.Variable(3)
    constraints = [X - np.array([1.0, 2.0, 1.0]) == 0, *relaxation_constraints(X, 2, 2, 1)]
    problem = cp.Problem(cp.Minimize(0), constraints)
    problem.solve(solver="CLARABEL")
    assert problem.status in ("infeasible", "infeasible_inaccurate")


def test_dimension_one():
    X = cp.Variable(1)
    problem = cp.Problem(cp.Minimize(X[0]), relaxation_constraints(X, 3, 1, 2))
    assert problem.solve(solver="CLARABEL") == pytest.approx(0.0, abs=1e-7)


def test_compilation_stays_small():
    X = cp.Variable(20)
    constraints = relaxation_constraints(X, 3, 4, 3)
    assert len(constraints) == 11
    # one product each: no expression tree over entries
    assert sum(len(c.args) for c in constraints) < 25


def test_bad_input():
    with pytest.raises(ShapeError, match=r"\(6,\)"):
        relaxation_constraints(cp.Variable(5), 2, 3, 1)
    with pytest.raises(ValueError, match="affine"):
        relaxation_constraints(cp.square(cp.Variable(6)), 2, 3, 1)
    with pytest.raises(ValueError, match="entries must be real"):
        relaxation_constraints(cp.Variable(6, complex=True), 2, 3, 1)
    with pytest.raises(ValueError, match=r"ceil\(d/2\) = 2"):
        relaxation_constraints(cp.Variable(10), 3, 3, 1)
    with pytest.raises(ProblemTooLargeError):
        relaxation_constraints(cp.Variable(1365), 4, 12, 4)
