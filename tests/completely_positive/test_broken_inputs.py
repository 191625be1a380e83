"""Inputs that broke something once: numbers of any kind, names in messages, ends of the range."""

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from tensoralg.completely_positive import Verdict, detect
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.errors import ShapeError

YES, NO, OPEN = Verdict
HALF = Fraction(1, 2)


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
    assert read_tensor(np.array([[2.0**11 - 1]], dtype=np.float16)).noise == 0
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
