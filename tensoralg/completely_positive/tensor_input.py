"""What `detect` accepts, turned into exact entries: one Fraction for each sorted multi-index."""

import itertools
import math
import numbers
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import NotSymmetricError, ShapeError
from tensoralg.core.index_maps import dense_values, listed_multiplicities
from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor

__all__ = ["ExactTensor", "largest_nearby", "read_tensor"]

_ASYMMETRY = 1e-10  # of floating-point entries, relative to the largest
# entries this far below zero, relative to the largest, are rounding errors of the given dtype
_NOISE = {"float16": 1e-3, "float32": 1e-6}
_NOISE_OF_DOUBLES = 1e-12
# what a single rounding of a double may leave beside the largest entry
ROUNDING_OF_DOUBLES = 2e-15


@dataclass(frozen=True, eq=False)
class ExactTensor:
    """A symmetric tensor with rational entries.

    Attributes
    ----------
    values : tuple of Fraction, length C(n+d-1, d)
        One entry for each sorted multi-index, lexicographically; a float is the binary fraction
        that it stores.
    order, dimension : int
        Number d of indices and number n of their values.
    noise : float
        Relative size of what may be rounding in the entries; 0 for integers and Fractions.
    notes : tuple of str
        What was changed on the way in.
    given : tuple of Fraction
        The entries before rounding errors below zero were set to 0.

    Examples
    --------
    >>> read_tensor([[2, 1], [1, 2]]).values
    (Fraction(2, 1), Fraction(1, 1), Fraction(2, 1))
    """

    values: tuple[Fraction, ...]
    order: int
    dimension: int
    noise: float = 0.0
    notes: tuple[str, ...] = ()
    given: tuple[Fraction, ...] = ()

    @cached_property
    def mass(self) -> Fraction:
        """The sum over all entries of the dense array."""
        counts = listed_multiplicities(self.dimension, self.order).tolist()
        pairs = zip(counts, self.values, strict=True)
        return sum((int(count) * value for count, value in pairs if value), Fraction(0))

    @cached_property
    def scaled(self) -> npt.NDArray[np.float64]:
        """The entries divided by the mass as floats, shape (C(n+d-1, d),); needs mass > 0."""
        mass = self.mass
        result = np.array([float(value / mass) if value else 0.0 for value in self.values])
        result.flags.writeable = False
        return result

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The sorted multi-index of every entry."""
        return tuple(map(tuple, multi_indices(self.dimension, self.order).tolist()))

    @cached_property
    def lookup(self) -> dict[tuple[int, ...], Fraction]:
        """Entries by sorted multi-index."""
        return dict(zip(self.rows, self.values, strict=True))

    @cached_property
    def symmetric(self) -> SymmetricTensor:
        """The entries as doubles."""
        return SymmetricTensor([float(v) for v in self.values], self.order, self.dimension)

    def restrict(self, support: tuple[int, ...]) -> "ExactTensor":
        """Return the principal subtensor on some indices.

        Parameters
        ----------
        support : tuple of int
            Increasing indices.

        Returns
        -------
        ExactTensor
            Of the same order, of dimension ``len(support)``.
        """
        rows = itertools.combinations_with_replacement(support, self.order)
        values = tuple(self.lookup[row] for row in rows)
        return ExactTensor(values, self.order, len(support), self.noise, self.notes)


def read_tensor(A: Any, *, symmetrize: bool = False) -> ExactTensor:
    """Read a symmetric tensor without rounding.

    Parameters
    ----------
    A : SymmetricTensor, array_like of shape (n,) * d, or nested lists
        Real, d >= 1. Integers, Fractions, Decimals and other rational numbers are kept exact; a
        float is taken as the binary fraction that it stores.
    symmetrize : bool, default False
        Average over all orders of the indices instead of asking for symmetry.

    Returns
    -------
    ExactTensor
        Floats below zero by no more than rounding are set to 0, with a note.

    Raises
    ------
    NotSymmetricError
        The message names two entries that differ.
    ShapeError
        Sides of different lengths, no axis, ragged lists.
    ValueError
        A NaN or infinite entry (its index is named), complex or masked entries, another dtype.

    Examples
    --------
    >>> read_tensor([[1, 1], [1, 3]]).mass
    Fraction(6, 1)
    """
    if isinstance(A, SymmetricTensor):
        _refuse_complex(A.dtype)
        values = [Fraction(value) for value in A.entries.tolist()]
        return _cleaned(values, A.order, A.dimension, _noise(A.entries))
    array = _as_array(A)
    d, n = array.ndim, array.shape[0]
    noise = _noise(array)
    if symmetrize:
        return _cleaned(_averages(array), d, n, noise)
    _check_symmetry(array, noise)
    # by positions: an array is not indexed along more than 63 axes at once
    listed = array.ravel()[multi_indices(n, d) @ n ** np.arange(d)[::-1]]
    return _cleaned([_fraction(value) for value in listed.tolist()], d, n, noise)


def _as_array(A: Any) -> npt.NDArray[Any]:
    # lists of big integers and Fractions must not pass through float64
    array = np.array(A, dtype=object) if isinstance(A, list | tuple) else np.asarray(A)
    if array.dtype.kind == "O" and any(_is_sequence(v) for v in array.ravel()):
        raise ShapeError("A must have shape (n,) * d; got lists of different lengths")
    if _has_masked_values(A):
        raise ValueError("A has masked values; every entry must be known")
    if array.ndim == 0 and array.dtype.kind in "OSU":
        raise TypeError(
            f"A must be a SymmetricTensor, an array or nested lists; got {type(A).__name__}"
        )
    if array.ndim == 0 or array.size == 0 or len(set(array.shape)) != 1:
        raise ShapeError(f"A must have shape (n,) * d with d, n >= 1; got {array.shape}")
    _refuse_complex(array.dtype)
    if array.dtype.kind == "O":
        return _from_objects(array)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"A has dtype {array.dtype}; accepted are real numbers and Fractions")
    return _finite(array) if array.dtype.kind == "f" else array


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _has_masked_values(A: Any) -> bool:
    """Whether an array, or one in a list, has a mask: plain lists of arrays would lose it."""
    if isinstance(A, np.ma.MaskedArray):
        return bool(np.ma.is_masked(A))
    return isinstance(A, list | tuple) and any(map(_has_masked_values, A))


def _from_objects(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Check every object: Fractions and floats are left, or all floats as a plain array."""
    values = array.ravel().tolist()  # NumPy's iterators end at 32 axes
    kinds = set(map(type, values))
    if len(kinds) == 1 and issubclass(kind := kinds.pop(), float | np.floating):
        floats = array.astype(np.float64 if kind is float else kind)
        return _finite(floats)
    result = np.empty(array.size, dtype=object)
    for k, value in enumerate(values):
        result[k] = _plain_number(value, array.shape, k)
    return result.reshape(array.shape)


def _plain_number(value: Any, shape: tuple[int, ...], position: int) -> Fraction | float:
    """Turn a real number into a Fraction if it is rational, else into a float."""
    place = tuple(int(i) for i in np.unravel_index(position, shape))
    if isinstance(value, complex | np.complexfloating):
        _refuse_complex(np.dtype(complex))
    try:
        if isinstance(value, numbers.Rational | bool | np.bool_):
            return _fraction(value)
        number = float(value)
        if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < 10**4:
            return Fraction(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, str | bytes):
        raise ValueError(f"A must hold real numbers or Fractions; got {value!r} at index {place}")
    if not math.isfinite(number):
        raise ValueError(f"A must be finite; got {value} at index {place}")
    return number


def _finite(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"A must be finite; got {array[place]} at index {place}")
    return array


def _refuse_complex(dtype: np.dtype[Any]) -> None:
    if dtype.kind == "c":
        raise ValueError(f"A must be real; got dtype {dtype}")


def _noise(array: npt.NDArray[Any]) -> float:
    """Relative rounding of the entries: 0 for rational types and for floats that are integers."""
    if array.dtype.kind in "biu":
        return 0.0
    if array.dtype.kind == "O":
        values = array.ravel()
        rational = all(isinstance(value, Fraction) for value in values)
        return 0.0 if rational else _NOISE_OF_DOUBLES
    # large numbers are integers whether rounded or not: of n digits the last n/4 must be zeros
    largest = array.dtype.type(2.0 ** (3 * np.finfo(array.dtype).nmant // 4))
    if np.all(array == np.rint(array)) and np.all(np.abs(array) < largest):
        return 0.0
    return _NOISE.get(array.dtype.name, _NOISE_OF_DOUBLES)


def _fraction(value: Any) -> Fraction:
    if isinstance(value, Fraction) and type(value.numerator) is type(value.denominator) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return Fraction(int(value))
    if isinstance(value, numbers.Rational):  # NumPy's integers overflow inside of a Fraction
        return Fraction(int(value.numerator), int(value.denominator))
    if hasattr(value, "as_integer_ratio"):
        return Fraction(*value.as_integer_ratio())
    return Fraction(float(value))


def _check_symmetry(array: npt.NDArray[Any], noise: float) -> None:
    tolerance: Any = 0
    values = array if array.dtype.kind in "Of" else array.astype(object)
    if noise:
        # halved, and with a halved tolerance: the difference of two doubles may overflow
        values = values / 2
        tolerance = _ASYMMETRY * max(abs(values.max()), abs(values.min()))
    for axis in range(array.ndim - 1):  # neighbouring swaps generate all permutations
        swapped = values.swapaxes(axis, axis + 1)
        wrong = np.argwhere(np.abs(values - swapped) > tolerance)
        if len(wrong):
            first = tuple(int(i) for i in wrong[0])
            other = list(first)
            other[axis], other[axis + 1] = other[axis + 1], other[axis]
            raise NotSymmetricError(
                f"A is not symmetric: A{list(first)} = {array[first]} but "
                f"A{other} = {array[tuple(other)]}; symmetrize=True averages"
            )


def _averages(array: npt.NDArray[Any]) -> list[Fraction]:
    d, n = array.ndim, array.shape[0]
    count = number_of_multi_indices(n, d)
    positions = dense_values(np.arange(count), n, d).ravel().tolist()
    sums = [Fraction(0)] * count
    for position, value in zip(positions, array.ravel().tolist(), strict=True):
        sums[position] += _fraction(value)
    times = listed_multiplicities(n, d).tolist()
    return [total / int(count) for total, count in zip(sums, times, strict=True)]


def _cleaned(values: list[Fraction], order: int, dimension: int, noise: float) -> ExactTensor:
    """Clip negative entries that are rounding errors; exact entries are never touched."""
    largest = max(map(abs, values))
    if largest:
        try:
            representable = 0.0 < float(largest * dimension**order) < math.inf
        except OverflowError:
            representable = False
        if not representable:
            raise ValueError("A must hold entries whose sum fits a double (1e-323 .. 1e308)")
    given = tuple(values)
    tensor = ExactTensor(given, order, dimension, noise, (), given)
    if not noise or min(values) >= 0:
        return tensor
    nearby, lookup = largest_nearby(tensor), tensor.lookup
    negative = [row for row, value in lookup.items() if value < 0]
    tiny = {row for row in negative if -lookup[row] <= _rounding(tensor, nearby, row)}
    if not tiny:
        return tensor
    least = float(min(lookup[row] for row in tiny))
    note = f"{len(tiny)} negative entries of rounding size (down to {least:.1e}) were set to 0"
    kept = tuple(Fraction(0) if row in tiny else value for row, value in lookup.items())
    return ExactTensor(kept, order, dimension, noise, (note,), given)


def _rounding(tensor: ExactTensor, nearby: list[Fraction], row: tuple[int, ...]) -> Fraction:
    """By how much rounding may have moved an entry: relative to the diagonal ones around it."""
    d, noise = tensor.order, Fraction(tensor.noise)
    beside = min(noise, Fraction(ROUNDING_OF_DOUBLES)) if noise < 1e-9 else noise
    least = beside * max(nearby[i] for i in row)
    diagonal = [tensor.lookup[(i,) * d] for i in row]
    if min(diagonal) <= 0:
        return least
    # the geometric mean: no entry inside the cone is larger
    product = math.prod(Fraction(value) / nearby[i] for i, value in zip(row, diagonal, strict=True))
    size = Fraction(float(product) ** (1.0 / d)) * max(nearby[i] for i in row)
    return max(least, noise * size)


def largest_nearby(tensor: ExactTensor) -> list[Fraction]:
    """For every index the largest magnitude among the entries that nonzero entries link it to.

    Parameters
    ----------
    tensor : ExactTensor
        Any.

    Returns
    -------
    list of Fraction, length n
        0 for indices without entries.

    Examples
    --------
    >>> largest_nearby(read_tensor([[1, 0, 0], [0, 2, 1], [0, 1, 3]]))
    [Fraction(1, 1), Fraction(3, 1), Fraction(3, 1)]
    """
    part = list(range(tensor.dimension))
    for row, value in zip(tensor.rows, tensor.values, strict=True):
        merged = {part[i] for i in row}
        if value and len(merged) > 1:
            first = min(merged)
            part = [first if p in merged else p for p in part]
    largest = [Fraction(0)] * tensor.dimension
    for row, value in zip(tensor.rows, tensor.values, strict=True):
        if value:
            largest[part[row[0]]] = max(largest[part[row[0]]], abs(value))
    return [largest[p] for p in part]
