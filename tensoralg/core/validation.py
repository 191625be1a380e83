"""Checks at the border of the value types: one place for dtypes, finiteness and integers."""

import numbers
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError

__all__ = [
    "as_scalar",
    "as_values",
    "check_range",
    "computing_dtype",
    "first_row",
    "integer_array",
    "nonnegative_integer",
    "positive_integer",
    "random_generator",
]

_ACCEPTED = ("float32", "float64", "complex64", "complex128")


def as_values(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Copy numbers into a read-only array of a supported dtype.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    values : array_like, any shape
        Integers and booleans become float64, float16 becomes float32; float32, float64,
        complex64 and complex128 are kept.

    Returns
    -------
    ndarray, same shape
        An own C-contiguous copy in native byte order, read-only.

    Raises
    ------
    ValueError
        Another dtype (named), masked entries, or a NaN or infinite value (its index named).

    Examples
    --------
    >>> as_values("entries", [1, 2]).dtype
    dtype('float64')
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} has masked values; use an incomplete tensor for unknown entries")
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        target: np.dtype[Any] = np.dtype(np.float64)
    elif array.dtype == np.float16:
        target = np.dtype(np.float32)
    elif array.dtype.name in _ACCEPTED:
        target = np.dtype(array.dtype.name)
    else:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not supported; accepted are integers, "
            f"booleans, float16 (as float32), {', '.join(_ACCEPTED)}"
        )
    result = np.array(array, dtype=target, order="C", copy=True)
    finite = np.isfinite(result)
    if not finite.all():
        first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(~finite)))
        place = first[0] if len(first) == 1 else first
        raise ValueError(
            f"{name} must be finite; got {np.atleast_1d(result)[first]} at index {place}"
        )
    result.flags.writeable = False
    return result


def nonnegative_integer(name: str, value: Any, *, least: int = 0) -> int:
    """Return a Python integer of at least 0, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    value : int
        Anything with ``__index__``.
    least : int, default 0
        The smallest accepted value.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TypeError
        Not an integer.
    ValueError
        Smaller than `least`.

    Examples
    --------
    >>> nonnegative_integer("order", 0)
    0
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def positive_integer(name: str, value: Any) -> int:
    """Return a Python integer of at least 1, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    value : int
        Anything with ``__index__``.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TypeError
        Not an integer.
    ValueError
        Smaller than 1.

    Examples
    --------
    >>> positive_integer("order", 3)
    3
    """
    return nonnegative_integer(name, value, least=1)


def random_generator(name: str, value: Any) -> np.random.Generator:
    """Return a random generator, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    value : int, sequence of int, Generator or None
        What `numpy.random.default_rng` accepts.

    Returns
    -------
    Generator
        A given one itself.

    Raises
    ------
    TypeError
        Nothing that gives a generator.
    ValueError
        A negative seed.

    Examples
    --------
    >>> int(random_generator("rng", 0).integers(10))
    8
    """
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} must be a nonnegative integer, a Generator or None; got {value!r}"
        ) from None


def computing_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the double-precision dtype in which sums over a dtype are accumulated.

    Parameters
    ----------
    dtype : dtype_like
        A real or complex dtype.

    Returns
    -------
    dtype
        complex128 for complex dtypes, float64 otherwise.

    Examples
    --------
    >>> computing_dtype("complex64")
    dtype('complex128')
    """
    return np.dtype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)


def integer_array(
    name: str, values: npt.ArrayLike, *, scalars: bool = False
) -> npt.NDArray[np.int64]:
    """Return integers as an int64 array, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    values : array_like of int, shape (...)
        An empty list counts as integers.
    scalars : bool, default False
        Whether a single number is accepted.

    Returns
    -------
    ndarray of int64, same shape
        Not copied where it is int64 already.

    Raises
    ------
    TypeError
        Another dtype.
    ShapeError
        A single number where that is not accepted.
    IndexError
        An unsigned number beyond 63 bits.

    Examples
    --------
    >>> integer_array("ranks", [1, 2]).dtype
    dtype('int64')
    """
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:  # the dtype of an empty list
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers; got dtype {array.dtype}")
    if array.ndim == 0 and not scalars:
        raise ShapeError(f"{name} must have shape (..., order); got a single number")
    if array.dtype.kind == "u" and array.size and int(array.max()) > 2**63 - 1:
        raise IndexError(f"{name} must fit 64 signed bits; got {array.max()}")
    return array.astype(np.int64, copy=False)


def check_range(array: npt.NDArray[np.int64], dimension: int) -> None:
    """Raise an IndexError that names the first index outside ``0 .. dimension-1``.

    Parameters
    ----------
    array : ndarray of int64, any shape
        The indices.
    dimension : int
        Number n of values that an index takes.

    Raises
    ------
    IndexError
        An index is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> check_range(np.array([0, 1]), 2)
    """
    wrong = (array < 0) | (array >= dimension)
    if wrong.any():
        raise IndexError(f"indices must lie in 0 .. {dimension - 1}; got {array[wrong].flat[0]}")


def first_row(array: npt.NDArray[np.int64], wrong: npt.ArrayLike) -> list[int]:
    """Return the first marked row, for a message.

    Parameters
    ----------
    array : ndarray of int64, shape (..., m)
        Rows along the last axis.
    wrong : array_like of bool, shape (...)
        At least one True.

    Returns
    -------
    list of int
        The m numbers of the row.

    Examples
    --------
    >>> import numpy as np
    >>> first_row(np.array([[0, 1], [1, 0]]), [False, True])
    [1, 0]
    """
    first: list[int] = array[np.asarray(wrong)].reshape(-1, array.shape[-1])[0].tolist()
    return first


def as_scalar(value: Any) -> Any:
    """Return the number that numpy multiplies with, or None for anything else.

    Parameters
    ----------
    value : object
        A Python or numpy number, a fraction, or an array without axes.

    Returns
    -------
    number or None
        Fractions as floating-point numbers.

    Examples
    --------
    >>> as_scalar(2.5), as_scalar("2.5")
    (2.5, None)
    """
    if isinstance(value, int | float | complex | np.number | np.bool_):
        return value
    if isinstance(value, numbers.Rational):
        return float(value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biufc":
        return value[()]
    return None
