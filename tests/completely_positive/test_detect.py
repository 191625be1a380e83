"""Detection: known answers, and that no verdict is ever given without its proof."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import Certificate, Verdict, detect, hilbert
from tensoralg.completely_positive import relaxation_steps as steps
from tensoralg.completely_positive.search import Search
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.errors import NotSymmetricError, ProblemTooLargeError, ShapeError
from tensoralg.solvers import conic

YES, NO, OPEN = Verdict


def matrix(text):
    rows = [row.split() if " " in row else list(row) for row in text.split(";")]
    return np.array(rows, dtype=int)


def path(last):
    """Completely positive iff the last entry is at least 7."""
    A = matrix("11001;12100;01210;00121;10011").astype(object)
    A[4, 4] = last
    return A


def circulant(*row):
    return np.array([np.roll(row, k) for k in range(len(row))])


def by_distinct(n, d, *values):
    return SymmetricTensor.from_function(lambda *i: values[len(set(i)) - 1], d, n)


def check(found, A):
    """The verdict carries its proof; return it."""
    if found.verdict == YES:
        assert found.certificate is None
        assert (found.decomposition.points >= 0).all()
        assert (found.decomposition.weights >= 0).all()
        T = (
            A
            if isinstance(A, SymmetricTensor)
            else SymmetricTensor.from_dense(np.asarray(A, dtype=float))
        )
        assert found.decomposition.residual(T) <= 1e-9
        assert found.residual <= 1e-9
    elif found.verdict == NO:
        assert found.decomposition is None
        assert found.certificate.verify()
        assert found.certificate.value < 0
        again = Certificate.from_json(found.certificate.to_json())
        assert again.verify()
        assert again.value == found.certificate.value
    else:
        assert found.certificate is None
        assert found.evidence
    return found.verdict


COMPLETELY_POSITIVE = [
    "11001;12100;01310;00141;10015",
    "32001;25600;0 6 14 4 0;00491;1 0 0 1 2",
    "21001;12100;01210;00121;10013",
    "20011;02011;00211;11130;11103",
    "20010;02001;00411;10110;01101",
    "65512;56521;55922;12210;21201",
    "10 5 2 0 5;5 10 5 0 0;2 5 10 5 0;0 0 5 10 5;5 0 0 5 10",
    "41 43 80 56 50;43 62 89 78 51;80 89 162 120 93;56 78 120 104 62;50 51 93 62 65",
]


@pytest.mark.parametrize("text", COMPLETELY_POSITIVE)
def test_matrices_known_to_be_completely_positive(text):
    A = matrix(text)
    assert check(detect(A), A) == YES


def test_a_matrix_on_the_boundary_is_decomposed():
    A = circulant(8, 5, 1, 1, 5)  # its inner product with the Horn matrix is 0
    assert check(detect(A), A) == YES


@pytest.mark.parametrize("last", [1, 3, 5, 6, Fraction(699, 100), 7, 8])
def test_a_triangle_free_pattern_with_a_threshold(last):
    A = path(last)
    assert check(detect(A), A) == (YES if last >= 7 else NO)


def test_a_doubly_nonnegative_matrix_with_a_triangle_is_refuted_by_a_relaxation():
    A = circulant(8, 5, 1, 1, 5) * 1000 - 20 * circulant(1, -1, 1, 1, -1)  # off by Horn's matrix
    found = detect(A)
    assert check(found, A) == NO
    assert found.relaxation_order == 2
    assert found.shift > 0


@pytest.mark.parametrize(
    "A",
    [
        *(by_distinct(n, 3, 1, 0.3, 0.35) for n in (3, 4, 5)),
        by_distinct(3, 3, 1, 0, 0.2),
        SymmetricTensor([1, 0.5, 0.5, 0.3], 3, 2),
    ],
    ids=["n=3", "n=4", "n=5", "zeros", "n=2"],
)
def test_tensors_known_not_to_be(A):
    assert check(detect(A), A) == NO


# --- input ----------------------------------------------------------------------------------------


def test_entries_that_differ_are_named_and_averaged_on_request():
    A = hilbert(2, 3).to_dense()
    A[0, 1, 1] = 0.34
    with pytest.raises(NotSymmetricError, match=r"A\[0, 1, 1\] = 0.34.* A\[1, 0, 1\] = 0.333"):
        detect(A)
    assert check(detect(A, symmetrize=True), SymmetricTensor.from_dense(A, symmetrize=True)) == YES


def test_exact_entries_must_be_symmetric_exactly():
    tiny = Fraction(1, 10**30)
    with pytest.raises(ValueError, match="not symmetric"):
        detect([[1, tiny], [0, 1]])
    mean = detect([[1, tiny], [0, 1]], symmetrize=True)
    assert mean.verdict == YES


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("container", [np.array, list], ids=["array", "list"])
def test_the_index_of_what_is_not_finite_is_named(value, container):
    A = np.ones((2, 2))
    A[0, 1] = value
    with pytest.raises(ValueError, match=r"finite; got .* at index \(0, 1\)"):
        detect(container(A.tolist()))


@pytest.mark.parametrize(
    "A", [5, [], [[1, 2, 3], [2, 1, 3]], [[1, 2], [2]], np.zeros((0, 0)), np.ones((2, 3, 2))]
)
def test_shapes_that_are_not_cubes_are_refused(A):
    with pytest.raises(ShapeError):
        detect(A)


@pytest.mark.parametrize("A", [[[1j]], [["a"]], np.array([["1"]]), np.array([[None]])])
def test_other_numbers_are_refused(A):
    with pytest.raises(ValueError, match="A "):
        detect(A)


def test_masked_entries_are_refused():
    with pytest.raises(ValueError, match="masked"):
        detect(np.ma.masked_less([[1, 2], [2, 1]], 2))


@pytest.mark.parametrize("order", [0, 1])
def test_an_order_below_half_is_refused(order):
    with pytest.raises(ValueError, match=r"ceil\(d/2\) = 2"):
        detect(hilbert(3, 3), max_order=order)


@pytest.mark.skipif("sdpa" not in conic.available_solvers(), reason="SDPA is not installed")
def test_only_what_no_solver_can_hold_is_refused():
    tensor = read_tensor(hilbert(4, 3))
    named = {name: Search(tensor, np.random.default_rng(0), name) for name in ("auto", "clarabel")}
    assert steps.orders_within_reach(named["auto"], 8) == [2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(ProblemTooLargeError, match="165 rows"):
        steps.orders_within_reach(named["clarabel"], 8)


def test_an_unknown_solver_is_refused():
    with pytest.raises(ValueError, match=r"'auto', 'clarabel'.*got 'mosek'"):
        detect([[1]], solver="mosek")


def test_arrays_are_left_as_they_were():
    A = np.array([[1.0, -1e-17], [-1e-17, 1.0]])
    before = A.copy()
    detect(A)
    np.testing.assert_array_equal(A, before)


# --- small and special ----------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("value", [3, 0, -2, 0.25, -0.25, Fraction(1, 3), Fraction(-1, 3)])
def test_one_number_is_completely_positive_iff_it_is_not_negative(d, value):
    A = np.full((1,) * d, value, dtype=object if isinstance(value, Fraction) else None)
    assert check(detect(A), A) == (YES if value >= 0 else NO)


@pytest.mark.parametrize("shape", [(4,), (3, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize("dtype", [int, float])
def test_the_zero_tensor_needs_no_atoms(shape, dtype):
    found = detect(np.zeros(shape, dtype))
    assert found.verdict == YES
    assert found.decomposition.rank == 0
    assert found.residual == 0


def test_vectors():
    assert check(detect([3, 0, 1]), [3, 0, 1]) == YES
    assert check(detect([3, -1, 1]), [3, -1, 1]) == NO


def test_integers_are_exact_and_decomposed_in_double_precision():
    found = detect([[2, 1], [1, 2]])
    assert found.decomposition.points.dtype == np.float64
    assert check(found, [[2, 1], [1, 2]]) == YES
    big = 10**20
    assert detect([[big, big + 1], [big + 1, big]]).verdict == NO
    assert detect([[big, big], [big, big]]).verdict == YES
    hair = Fraction(10**30 + 1, 10**30)
    assert check(detect([[1, hair], [hair, 1]]), [[1, 1], [1, 1]]) == NO


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(0, 10**6))
def test_small_matrices_are_completely_positive_iff_doubly_nonnegative(n, seed):
    rng = np.random.default_rng(seed)
    V = rng.integers(-2, 4, (n, rng.integers(1, 5)))
    A = V @ V.T
    assert check(detect(A), A) == (YES if A.min() >= 0 else NO)


def test_entries_of_rounding_size_are_clipped_with_a_note():
    A = np.array([[1.0, -1e-17], [-1e-17, 1.0]])
    found = detect(A)
    assert found.verdict == YES
    assert "rounding size" in found.message
    assert detect([[1.0, -1e-3], [-1e-3, 1.0]]).verdict == NO
    assert check(detect([[1, -Fraction(1, 10**17)], [-Fraction(1, 10**17), 1]]), None) == NO


def test_a_certificate_of_a_clipped_matrix_is_for_the_matrix_as_given():
    A = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, -1e-17], [0.0, -1e-17, 1.0]])
    found = detect(A)
    assert check(found, A) == NO
    assert found.certificate.tensor[(1, 2)] == Fraction(-1e-17)


def test_eigenvalues_are_judged_relative_to_the_scale():
    q = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2)
    for scale in (1e-8, 1.0, 1e8):
        rounding = scale * (q.T @ np.diag([1.0, -1e-16]) @ q)
        assert detect(rounding, symmetrize=True).verdict == YES
        outside = scale * (q.T @ np.diag([1.0, -3e-9]) @ q)
        assert detect(outside, symmetrize=True).verdict == NO


# --- the same answer for the same cone ----------------------------------------------------------


@pytest.mark.parametrize("scale", [1e8, 1e-8, 1e100, 1e-100])
@pytest.mark.parametrize("A", [path(8), path(6), circulant(8, 5, 1, 1, 5)], ids=str)
def test_scale_does_not_change_the_verdict(A, scale):
    A = A.astype(float)
    plain, scaled = detect(A), detect(A * scale)
    assert check(scaled, A * scale) == plain.verdict
    if plain.verdict == YES:
        size = scaled.decomposition.points.max() / plain.decomposition.points.max()
        assert 0.3 < size / np.sqrt(scale) < 3


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 7), st.integers(0, 10**6))
def test_sums_of_powers_are_never_refuted_whatever_their_order(n, d, r, seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, (r, n))
    A = SymmetricTensor.from_decomposition(np.ones(r), points, d)
    found = detect(A)
    assert check(found, A) == YES
    order = rng.permutation(n)
    B = SymmetricTensor.from_decomposition(np.ones(r), points[:, order], d)
    assert check(detect(B), B) == YES


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(2, 4), st.integers(0, 10**6))
def test_tensors_pushed_off_the_cone_are_refuted(n, d, seed):
    """p = u^g (v.u)^2 >= 0 pairs with the tensor to a stated negative number."""
    rng = np.random.default_rng(seed)
    A = SymmetricTensor.from_decomposition(np.ones(3), rng.integers(0, 4, (3, n)), d)
    factor, v = rng.integers(0, n, d - 2).tolist(), rng.integers(-3, 4, n)
    form = dict.fromkeys(map(tuple, A.indices.tolist()), Fraction(0))
    for i in range(n):
        for j in range(n):
            form[tuple(sorted([*factor, i, j]))] += int(v[i] * v[j])
    counts = dict(zip(form, A.multiplicities.tolist(), strict=True))
    square = sum(c * c / counts[a] for a, c in form.items())
    if not square:
        return
    value = sum(c * int(A[a]) for a, c in form.items())
    step = (value + Fraction(1, 1000)) / square
    entries = [int(A[a]) - step * c / counts[a] for a, c in form.items()]
    dense = np.empty((n,) * d, dtype=object)
    for a in np.ndindex(dense.shape):
        dense[a] = entries[list(form).index(tuple(sorted(a)))]
    found = detect(dense)
    assert found.verdict == NO
    assert found.certificate.verify()


@pytest.mark.parametrize("exponent", [0, 38, 40, 50, 52, 53, 60])
def test_rounded_numbers_are_no_exact_integers_however_large(exponent):
    """Beyond 2**52 every double is an integer, and a rounded rank-one matrix often indefinite."""
    rng = np.random.default_rng(exponent)
    for _ in range(8):
        u = rng.uniform(1.0, 1.4, 2)
        A = np.outer(u, u) * 2.0**exponent
        assert check(detect(A), A) == YES
    assert detect(np.array([[1.0, 2.0], [2.0, 3.0]]) * 2.0**exponent).verdict == NO


def test_integers_in_floats_are_exact():
    A = np.array([[10**6, 10**6 + 1], [10**6 + 1, 10**6 + 2]], dtype=float)  # determinant -1
    assert detect(A).verdict == NO


def test_indices_without_entries_come_back():
    A = np.zeros((7, 7), dtype=int)
    A[1:6, 1:6] = path(3)
    found = detect(A)
    assert check(found, A) == NO
    assert found.certificate.dimension == 7
    A[1:6, 1:6] = path(8)
    found = detect(A)
    assert check(found, A) == YES
    assert not found.decomposition.points[:, [0, 6]].any()


# --- verdicts and solvers -------------------------------------------------------------------------


def test_a_verdict_is_text_and_never_a_bool():
    found = detect([[1]])
    assert found.verdict == "completely positive"
    assert str(found.verdict) == "completely positive"
    with pytest.raises(TypeError, match="never a bool"):
        bool(found.verdict)


def hard():
    """Not completely positive; no exact test sees it."""
    return circulant(8, 5, 1, 1, 5) * 1000 - 20 * circulant(1, -1, 1, 1, -1)


def test_an_exception_of_the_solver_is_part_of_the_message(monkeypatch):
    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setitem(conic._ADAPTERS, "clarabel", broken)
    found = detect(hard(), max_order=2, solver="clarabel")
    assert found.verdict == OPEN
    assert "out of luck" in found.message


def test_without_an_exact_certificate_a_shift_refutes_nothing(monkeypatch):
    monkeypatch.setattr(steps, "_certificate", lambda *_: None)
    found = detect(hard(), max_order=2)
    assert found.verdict == OPEN
    assert found.shift > 1e-3
    assert found.relaxation_order == 2
    assert "no exact certificate" in found.message


def test_atoms_that_do_not_rebuild_the_tensor_prove_nothing(monkeypatch):
    from tensoralg.completely_positive import search

    monkeypatch.setattr(search, "REBUILT", -1.0)
    found = detect([[2, 1], [1, 2]], max_order=1)
    assert found.verdict == OPEN
    assert "doubly nonnegative" in found.message
    assert found.residual < 1e-9


def test_a_certificate_need_not_be_kept():
    found = detect([[1, 2], [2, 1]], certificate=False)
    assert found.verdict == NO
    assert found.certificate is None
    assert "certificate=False" in found.message


def test_the_same_seed_gives_the_same_atoms():
    A = by_distinct(3, 3, 1.0, 0.2, 0.1)
    first, second = detect(A, rng=3), detect(A, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(first.decomposition.points, second.decomposition.points)


def test_a_large_matrix_of_low_rank_is_searched_with_few_atoms() -> None:
    W = np.random.default_rng(3).random((40, 3))
    found = detect(W @ W.T)
    assert found.verdict == Verdict.COMPLETELY_POSITIVE
    assert found.decomposition is not None
    assert found.decomposition.rank <= 9
