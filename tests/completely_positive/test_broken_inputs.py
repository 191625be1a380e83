"""Inputs that broke something once: numbers of any kind, names in messages, ends of the range."""

import importlib.util
import json
import warnings
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tensoralg import SymmetricTensor
from tensoralg.cli import main
from tensoralg.completely_positive import (
    Certificate,
    Verdict,
    detect,
    minimize,
    pascal,
    relaxation_constraints,
)
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.errors import ShapeError

YES, NO, OPEN = Verdict
HALF = Fraction(1, 2)


@cache
def verifier():
    path = Path(__file__).parents[2] / "docs" / "verify_certificate.py"
    spec = importlib.util.spec_from_file_location("alone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [Decimal("0.5"), HALF, 0.5])
def test_decimals_are_rational_numbers_and_mix_with_all_others(other):
    tensor = read_tensor([[1, Decimal("0.5")], [other, Decimal(1)]])
    assert tensor.values == (1, HALF, 1)
    assert bool(tensor.noise) == isinstance(other, float)
    out = detect([[Decimal(1), Decimal("1.1")], [Decimal("1.1"), Decimal(1)]])
    assert out.verdict == NO
    assert out.certificate.tensor[0, 1] == Fraction(11, 10)


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "1e400", "1e-400", "1e999999"])
def test_decimals_that_no_double_reaches_are_refused(text):
    with pytest.raises(ValueError, match="A must"):
        detect([[Decimal(text)]])


def test_numpy_scalars_in_lists_are_read_as_arrays_of_them():
    yes, no = np.True_, np.False_
    assert read_tensor([[yes, no], [no, yes]]).values == (1, 0, 1)
    third = np.float32(1) / np.float32(3)
    assert read_tensor([[third]]).noise == read_tensor(np.array([[third]])).noise > 1e-9
    long = np.longdouble(1) / 3
    assert read_tensor([[long]]).values == (Fraction(*long.as_integer_ratio()),)


def test_masks_inside_of_lists_are_seen():
    rows = [np.ma.masked_array([1, 2], [False, True]), np.ma.masked_array([2, 1], [True, False])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for A in (rows, [[1, np.ma.masked], [np.ma.masked, 1]]):
            with pytest.raises(ValueError, match="masked"):
                detect(A)


def test_half_precision_is_read_without_warnings_and_its_large_integers_are_rounded():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert detect(np.eye(2, dtype=np.float16)).verdict == YES
    u = np.array([113.0, 57.0, 201.0])
    assert read_tensor(np.outer(u, u).astype(np.float16)).noise > 0
    assert read_tensor(np.array([[100.0]], dtype=np.float16)).noise == 0
    assert read_tensor(np.array([[2.0**24]], dtype=np.float32)).noise > 0


@pytest.mark.parametrize(
    "A", [[np.array([2.0, 1, 3]), np.array([1, 2.0])], [[1, [2]], [[2], 1]], [(1, 2), [3]]]
)
def test_ragged_lists_of_any_kind_are_a_wrong_shape(A):
    with pytest.raises(ShapeError, match="different lengths"):
        detect(A)


@pytest.mark.parametrize("A", ["abc", b"abc", None, {1: 2}, {1, 2}, iter([[1]])])
def test_what_is_no_array_is_named(A):
    with pytest.raises(TypeError, match=f"nested lists; got .*{type(A).__name__}"):
        detect(A)


# --- indices of very different sizes --------------------------------------------------------------

PATH = [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, 6]]
HORN = [np.roll([1, -1, 1, 1, -1], k) for k in range(5)]
BEYOND = [np.roll([8000, 5000, 1000, 1000, 5000], k) - 20 * HORN[k] for k in range(5)]
SIZES = [[1, 10, 100, 1000, 10**4], [10**6, 1, 1, 1, 1], [1, 1, 10**4, 1, 1]]


def in_units(matrix, sizes):
    return [[int(v) * a * b for v, b in zip(r, sizes, strict=True)]
            for r, a in zip(matrix, sizes, strict=True)]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("matrix", [PATH, BEYOND], ids=["path", "beyond Horn"])
def test_no_atoms_hide_small_entries_behind_large_ones(matrix, sizes):
    A = in_units(matrix, sizes)  # a small residual once called these completely positive
    found = detect(A)
    assert found.verdict == NO
    assert found.certificate.certifies(
        {(i, j): Fraction(A[i][j]) for i in range(5) for j in range(i, 5)}
    )
    assert Certificate.from_json(found.certificate.to_json()).verify()
    assert verifier().valid(json.loads(found.certificate.to_json()))
    if sizes[0] == 1:
        assert detect(np.array(A) * 0.1).verdict == NO


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_atoms_come_back_in_the_units_of_the_entries(sizes):
    A = in_units(np.array(PATH) + 2 * np.diag([0, 0, 0, 0, 1]), sizes)
    found = detect(A)
    assert found.verdict == YES
    exact = found.exact_decomposition
    assert [[sum(w * u[i] * u[j] for w, u in exact) for j in range(5)] for i in range(5)] == A
    points = found.decomposition.points
    errors = np.abs(points.T @ points - np.array(A, dtype=float))
    assert (errors <= 1e-9 * np.outer(sizes, sizes)).all()
    assert found.residual <= 1e-9
    # beside rows without entries
    wide = np.zeros((7, 7), dtype=object)
    wide[1:6, 1:6] = in_units(BEYOND, sizes)
    found = detect(wide)
    assert found.verdict == NO
    assert found.certificate.dimension == 7


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_floats_of_different_sizes_are_judged_where_they_are(size):
    u = np.array([size, 1 / size])
    assert detect(np.outer(u, u) * [[1, 2], [2, 1]]).verdict == NO
    assert detect(np.outer(u, u) * [[2, 1], [1, 2]]).verdict == YES
    assert detect(np.outer(u, u) * [[1, -0.1], [-0.1, 1]]).verdict == NO


def test_blocks_do_not_drown_in_the_rounding_of_others():
    A = np.array([[1e20, 0, 0], [0, 1.5, 2], [0, 2, 1.5]])
    assert detect(A).verdict == NO
    A[1, 2] = A[2, 1] = -0.5
    assert detect(A).verdict == NO
    A[1, 2] = A[2, 1] = 0.5
    assert detect(A).verdict == YES
    A[1, 2] = A[2, 1] = -1e-17
    found = detect(A)
    assert found.verdict == YES
    assert "rounding size" in found.message


@pytest.mark.parametrize("rng", [-1, 1.5, "x", {}], ids=repr)
def test_a_wrong_rng_is_named(rng):
    with pytest.raises((TypeError, ValueError), match="rng must be a nonnegative integer"):
        detect([[1]], rng=rng)


# --- constraints of a cvxpy problem ---------------------------------------------------------------


def test_entries_that_are_no_expression_of_cvxpy_are_named():
    cp = pytest.importorskip("cvxpy")
    for entries in ("abc", None, {1: 2}, cp.Problem(cp.Minimize(cp.Variable()))):
        with pytest.raises((TypeError, ValueError), match="entries must"):
            relaxation_constraints(entries, 2, 2, 1)
    for number in (np.nan, np.inf):
        for entries in ([1.0, number, 1.0], cp.Variable(3) + np.array([1.0, number, 1.0])):
            with pytest.raises(ValueError, match="entries must be finite"):
                relaxation_constraints(entries, 2, 2, 1)
    inside = relaxation_constraints(SymmetricTensor([2.0, 1.0, 2.0], 2, 2), 2, 2, 1)
    problem = cp.Problem(cp.Minimize(0), inside)
    assert problem.solve(solver="CLARABEL") == 0


def test_entries_may_hold_parameters():
    cp = pytest.importorskip("cvxpy")
    start, t = cp.Parameter(3), cp.Variable(nonneg=True)
    moved = relaxation_constraints(start + t * np.array([1.0, 0.0, 1.0]), 2, 2, 1)
    problem = cp.Problem(cp.Minimize(t), moved)
    assert problem.is_dcp(dpp=True)
    for values, expected in (([1, 2, 1], 1), ([1, 1, 1], 0), ([0, 1, 0], 1)):
        start.value = np.array(values, dtype=float)
        assert problem.solve(solver="CLARABEL") == pytest.approx(expected, abs=1e-6)


# --- ends of the range ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2, HALF, 0.5, -HALF])
def test_sixty_four_indices_of_one_value(value):
    A = np.full((1,) * 64, value, dtype=object)
    assert detect(A).verdict == (YES if value > 0 else NO)
    A[(0,) * 64] = "x"
    with pytest.raises(ValueError, match=r"got 'x' at index \(0, 0, "):
        detect(A)


def test_example_tensors_beyond_doubles_say_so():
    with pytest.raises(ValueError, match=r"n=2, d=1100 .* exact=True"):
        pascal(2, 1100)


def test_products_beyond_doubles_are_refused():
    one, ones = np.eye(2), np.ones((2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor, bound in ((1e-200, 1e100), (1e-300, 1e300)):
            with pytest.raises(ValueError, match="fit a double"):
                minimize(one / factor, [(ones * factor, "==", bound)])
    for constraints in (None, 5):
        with pytest.raises(TypeError, match="constraints must be a sequence"):
            minimize(one, constraints)


def test_files_with_a_byte_order_mark_are_read_and_never_overwritten(tmp_path, capsys):
    path = tmp_path / "tensor.json"
    path.write_bytes(b"\xef\xbb\xbf[[1, 2], [2, 1]]")
    before = path.read_bytes()
    assert main(["detect", str(path)]) == 0
    assert main(["detect", str(path), "--certificate", str(path)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_numbers_too_long_for_text_are_a_value_error():
    hair = 1 + Fraction(1, 10**5000)
    found = detect([[1, hair], [hair, 1]])
    assert found.verdict == NO
    with pytest.raises(ValueError, match="too many digits"):
        found.certificate.to_json()
