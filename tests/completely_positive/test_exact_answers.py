"""Exact entries: rational atoms that rebuild them, and violations far below any rounding."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import Verdict, detect
from tensoralg.completely_positive import detection as steps
from tensoralg.completely_positive.comparison import comparison_atoms, comparison_violation
from tensoralg.completely_positive.exact_atoms import rebuilds_exactly
from tensoralg.completely_positive.exact_tests import known_criterion
from tensoralg.completely_positive.relaxation_steps import orders_within_reach
from tensoralg.completely_positive.search import Search
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.core.indices import multi_indices
from tensoralg.errors import ProblemTooLargeError
from tensoralg.solvers.rational_atoms import lattice_weights, power_sum_form
from tensoralg.solvers.rational_matrices import negative_direction, solve_exactly

YES, NO, OPEN = Verdict
F = Fraction


def path_closed(last):
    """Completely positive iff the last entry is at least 7."""
    return [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, last]]


def circulant(*row):
    return np.array([np.roll(row, k) for k in range(len(row))]).astype(object)


def dense(atoms, n, d):
    """The sum of the powers, straight from the definition."""
    total = np.full((n,) * d, F(0), dtype=object)
    for weight, point in atoms:
        power = np.array(weight, dtype=object)
        for _ in range(d):
            power = np.multiply.outer(power, np.array(point, dtype=object))
        total = total + power
    return total


def check_exact(found, A):
    """The rational atoms rebuild A exactly, by the definition alone."""
    A = np.array(A, dtype=object)
    assert found.verdict == YES
    assert all(isinstance(w, F) and w > 0 for w, _ in found.exact_decomposition)
    assert all(isinstance(v, F) and v >= 0 for _, u in found.exact_decomposition for v in u)
    assert (dense(found.exact_decomposition, len(A), A.ndim) == A).all()
    assert "exactly" in found.message


# --- violations that no float shows ---------------------------------------------------------------


@pytest.mark.parametrize("digits", [2, 6, 8, 10, 30, 100])
def test_a_triangle_free_matrix_is_decided_however_near_the_threshold(digits):
    below = detect(path_closed(7 - F(1, 10**digits)))
    assert below.verdict == NO
    assert below.certificate.verify()
    above = path_closed(7 + F(1, 10**digits))
    check_exact(detect(above), above)


def test_the_threshold_itself():
    check_exact(detect(path_closed(7)), path_closed(7))


@pytest.mark.parametrize("digits", [4, 7, 8, 9])
def test_a_matrix_below_horn_by_little_is_refuted_though_atoms_come_near(digits):
    horn = circulant(1, -1, 1, 1, -1)
    A = circulant(8, 5, 1, 1, 5) - F(1, 10**digits) * horn  # <Horn, A> = -25 / 10^digits
    found = detect(A)
    assert found.verdict == NO
    assert found.certificate.verify()


def test_a_hidden_violation_is_not_sought_at_any_price():
    search = Search(read_tensor(np.ones((6, 6, 6), dtype=int)), np.random.default_rng(0))
    assert orders_within_reach(search, None) == [2, 3]
    search.residual = 1e-10  # rebuilt
    assert orders_within_reach(search, None) == [2]


def test_what_is_proven_of_exact_entries_on_the_boundary_is_said():
    found = detect(circulant(8, 5, 1, 1, 5))
    assert found.verdict == YES
    assert found.exact_decomposition is None
    assert "no rational atoms were found" in found.message


@settings(max_examples=40)
@given(st.integers(3, 8), st.integers(0, 10**6))
def test_matrices_without_triangles_are_always_decided_exactly(n, seed):
    rng = np.random.default_rng(seed)
    A = np.zeros((n, n), dtype=int)
    for i in range(n):
        for j in range(i):
            if (i + j) % 2:
                A[i, j] = A[j, i] = rng.integers(0, 4)
    A += np.diag(rng.integers(0, 7, n))
    if (np.diag(A)[:, None] * (A > 0) == 0)[A > 0].any():
        return  # a zero on the diagonal is the zero pattern's matter
    tensor = read_tensor(A)
    violation, atoms = comparison_violation(tensor), comparison_atoms(tensor)
    comparison = 2 * np.diag(np.diag(A)) - A
    assert (violation is None) == (negative_direction((comparison * F(1)).tolist()) is None)
    assert (violation is None) == (atoms is not None)
    if violation is None:
        assert rebuilds_exactly(atoms, tensor)
        check_exact(detect(A), A)
    else:
        assert violation.verify()
        assert detect(A).verdict == NO


def test_a_triangle_makes_the_comparison_matrix_sufficient_only():
    ones = read_tensor(np.ones((3, 3), dtype=int))
    assert comparison_atoms(ones) is None
    assert comparison_violation(ones) is None
    assert comparison_violation(read_tensor(np.ones((2, 2, 2), dtype=int))) is None


def test_every_indefinite_block_of_exact_entries_is_seen():
    # two blocks are singular in doubles; only the second one is indefinite
    tiny = F(1, 10**40)
    A = np.full((2, 2, 2), F(1), dtype=object)
    A[0, 1, 1] = A[1, 0, 1] = A[1, 1, 0] = 1 + tiny
    A[1, 1, 1] = 1 + tiny
    found = detect(A)
    assert found.verdict == NO
    assert found.certificate.verify()


# --- rational atoms -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 10**6))
def test_tensors_inside_the_cone_are_rebuilt_exactly(n, d, seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 5, (len(multi_indices(n, d)), n))
    atoms = [(F(1, 3), tuple(map(F, point))) for point in points.tolist()]
    atoms += [(F(2, 7), tuple(map(F, point))) for point in np.eye(n, dtype=int).tolist()]
    atoms += [(F(1, 5), tuple(map(F, point))) for point in (1 + np.eye(n, dtype=int)).tolist()]
    A = dense(atoms, n, d)
    found = detect(A)
    assert found.verdict == YES
    if found.exact_decomposition is not None:
        check_exact(found, A)
    # a tenth of the uniform measure inside, and there is no excuse
    lattice = [tuple(a.count(i) for i in range(n)) for a in multi_indices(n, d).tolist()]
    A = A + dense([(F(1), tuple(map(F, point))) for point in lattice], n, d)
    check_exact(detect(A), A)


@pytest.mark.parametrize("factor", [1, F(10**12, 7), F(1, 10**12)])
def test_zeros_and_scales_are_kept(factor):
    scales = [F(10**6), F(1), F(1, 10**5), F(3)]
    faces = [(0, 1), (1, 2), (0, 1, 3)]
    atoms = []
    for face in faces:
        for a in multi_indices(len(face), 3).tolist():
            point = [F(0)] * 4
            for i in a:
                point[face[i]] += scales[face[i]]
            atoms.append((F(factor), tuple(point)))
    A = dense(atoms, 4, 3)
    found = detect(A)
    check_exact(found, A)
    supports = [{i for i, v in enumerate(u) if v} for _, u in found.exact_decomposition]
    assert all(any(support <= set(face) for face in faces) for support in supports)


def test_few_rational_atoms_on_the_boundary_are_recognised():
    atoms = [(F(1), (F(1), F(2), F(0), F(5))), (F(3), (F(2), F(0), F(1), F(7)))]
    A = dense(atoms, 4, 3)
    found = detect(A)
    check_exact(found, A)
    assert len(found.exact_decomposition) == 2


@pytest.mark.parametrize(
    "A", [[3, 0, F(1, 3)], [[0, 0], [0, 0]], [[2, 0], [0, F(1, 7)]], [[5]], [[0, 0], [0, 3]]]
)
def test_plain_atoms_are_exact(A):
    check_exact(detect(A), A)


def test_rounded_entries_get_no_exact_atoms():
    assert detect([[1.5, 0.1], [0.1, 1.0]]).exact_decomposition is None
    assert detect([[1.0, 2.0], [2.0, 1.0]]).exact_decomposition is None
    assert detect([[1, 2], [2, 1]]).exact_decomposition is None


def test_numpy_integers_inside_of_fractions_do_not_overflow():
    big = np.int64(2**62)
    A = [[F(big), F(big - 1)], [F(big - 1), F(big)]]
    check_exact(detect(A), [[2**62, 2**62 - 1], [2**62 - 1, 2**62]])


def test_wrong_atoms_do_not_rebuild():
    tensor = read_tensor([[1, 1], [1, 1]])
    one, zero = F(1), F(0)
    assert rebuilds_exactly([(one, (one, one))], tensor)
    assert not rebuilds_exactly([(one, (one, one)), (F(1, 10**30), (one, zero))], tensor)
    assert not rebuilds_exactly([(one, (-one, -one))], tensor)
    assert not rebuilds_exactly([(2 * one, (one, one)), (-one, (one, one))], tensor)


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_lattice_points_span_all_tensors(n, d, data):
    rows = list(map(tuple, multi_indices(n, d).tolist()))
    values = [F(data.draw(st.integers(-50, 50)), data.draw(st.integers(1, 9))) for _ in rows]
    points = [tuple(a.count(i) for i in range(n)) for a in rows]
    atoms = list(zip(lattice_weights(values, n, d), points, strict=True))
    entries = power_sum_form(atoms, n, d)
    assert [entries.get(row, 0) for row in rows] == values


def test_powers_of_points_from_the_definition():
    rng = np.random.default_rng(0)
    atoms = [
        (F(int(w), 7), tuple(F(int(v), 3) for v in u))
        for w, u in zip(rng.integers(-5, 9, 4), rng.integers(-2, 5, (4, 3)), strict=True)
    ]
    total = dense(atoms, 3, 4)
    entries = power_sum_form(atoms, 3, 4)
    for row in map(tuple, multi_indices(3, 4).tolist()):
        assert entries.get(row, 0) == total[row]


@given(st.integers(1, 4), st.integers(0, 2), st.data())
def test_exact_linear_equations(size, more, data):
    draw = lambda: F(data.draw(st.integers(-3, 3)))  # noqa: E731
    matrix = [[draw() for _ in range(size)] for _ in range(size + more)]
    truth = [draw() for _ in range(size)]
    right = [sum((a * b for a, b in zip(row, truth, strict=True)), F(0)) for row in matrix]
    full = np.linalg.matrix_rank(np.array(matrix, dtype=float)) == size
    assert solve_exactly(matrix, right) == (truth if full else None)
    if more and full:
        right[-1] += 1
        wrong = solve_exactly(matrix, right)
        assert wrong is None or all(
            sum((a * b for a, b in zip(row, wrong, strict=True)), F(0)) == value
            for row, value in zip(matrix, right, strict=True)
        )


@settings(max_examples=30)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4))
def test_dimension_two_is_decided_by_hankel_matrices(d, pairs):
    A = dense([(F(1), (F(a), F(b))) for a, b in pairs], 2, d)
    assert known_criterion(read_tensor(A))
    found = detect(A)
    assert found.verdict == YES
    assert "exactly" in found.message


def test_theorems_are_quoted_only_where_they_hold():
    assert "doubly nonnegative" in known_criterion(read_tensor([[2, 1, 0], [1, 2, 1], [0, 1, 2]]))
    assert not known_criterion(read_tensor([[1, 2, 0], [2, 1, 1], [0, 1, 2]]))
    assert not known_criterion(read_tensor(path_closed(8)))
    assert not known_criterion(read_tensor([[1, -1], [-1, 1]]))


# --- refusals -------------------------------------------------------------------------------------


def test_what_the_exact_tests_decide_needs_no_relaxation_however_large():
    A = SymmetricTensor(np.random.default_rng(0).uniform(1, 1.1, 1365), 4, 12)
    assert detect(A, max_order=4).verdict == NO
    B = SymmetricTensor.from_decomposition(np.ones(5), np.random.default_rng(0).random((5, 12)), 4)
    assert detect(B, max_order=4).verdict == YES


def test_a_relaxation_that_is_needed_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(steps, "_STEPS", ())
    B = SymmetricTensor.from_decomposition(np.ones(5), np.random.default_rng(0).random((5, 12)), 4)
    with pytest.raises(ProblemTooLargeError, match=r"n=12, d=4 .* 1365 rows.* GiB"):
        detect(B, max_order=4)
