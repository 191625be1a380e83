"""Checks of what goes into tensor trains."""

from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_products import as_data, as_matching_arrays
from tensoralg.core.tensor_train_arithmetic import even_cores
from tensoralg.core.validation import integer_array

__all__ = ["checked_cores", "common_cores", "dense_operand", "entry_positions"]


def dense_operand(name: str, value: Any) -> Any:
    """Check a dense array of any library.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    value : array_like
        Lists mean numpy.

    Returns
    -------
    array, same shape
        Real or complex; not copied where its dtype is supported.

    Raises
    ------
    ValueError
        An unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> dense_operand("array", [[1, 2]]).dtype
    dtype('float64')
    """
    known = value if array_api_compat.is_array_api_obj(value) else np.empty(0)
    xp = array_api_compat.array_namespace(known)
    return as_data(xp, name, value, allow_complex=True)


def entry_positions(
    index: Any, shape: Sequence[int]
) -> tuple[list[npt.NDArray[np.int64]], tuple[int, ...]]:
    """Turn a subscript into lists of positions along every mode.

    Parameters
    ----------
    index : int, or tuple of int or array_like of int
        One for each mode; arrays are broadcast. Negative ones count from the end.
    shape : sequence of int
        Numbers of values of the modes.

    Returns
    -------
    list of ndarray of int64, shape (N,)
        Nonnegative positions, one array for each mode.
    tuple of int
        The broadcast shape, of N values.

    Raises
    ------
    IndexError
        Another number of indices, or one out of range.
    TypeError
        Slices or other indices than integers.

    Examples
    --------
    >>> entry_positions((1, [0, -1]), (2, 3))
    ([array([1, 1]), array([0, 2])], (2,))
    """
    given = index if isinstance(index, tuple) else (index,)
    if len(given) != len(shape):
        raise IndexError(f"the train takes {len(shape)} indices; got {len(given)}")
    arrays = np.broadcast_arrays(*(integer_array("indices", i, scalars=True) for i in given))
    positions = []
    for k, (array, size) in enumerate(zip(arrays, shape, strict=True)):
        wrong = (array < -size) | (array >= size)
        if wrong.any():
            raise IndexError(
                f"index {array[wrong].flat[0]} is out of range for mode {k} of {size} values"
            )
        positions.append(np.where(array < 0, array + size, array).ravel())
    return positions, arrays[0].shape


def common_cores(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Bring the cores of two trains to one dtype, and very uneven ones to one size.

    Parameters
    ----------
    first, second : sequence of array
        The cores.

    Returns
    -------
    tuple of two lists of array
        Those that fit are not copied.

    Raises
    ------
    TypeError
        They are of different libraries.

    Examples
    --------
    >>> import numpy as np
    >>> one = [np.ones((1, 2, 1), np.float32)]
    >>> common_cores(one, [np.ones((1, 2, 1))])[0][0].dtype
    dtype('float64')
    """
    xp, other = (array_api_compat.array_namespace(cores[0]) for cores in (first, second))
    if xp is not other:
        raise TypeError(
            "the trains hold arrays of different libraries; convert one of the two first"
        )
    common = xp.result_type(first[0], second[0])
    a, b = ([xp.astype(core, common, copy=False) for core in cores] for cores in (first, second))
    return even_cores(xp, a), even_cores(xp, b)


def checked_cores(cores: Sequence[Any], axes: int, form: str) -> tuple[Any, ...]:
    """Copy cores into arrays of the one library they share, and check that they fit together.

    Parameters
    ----------
    cores : sequence of array_like
        At least one.
    axes : int
        Number of axes of every core.
    form : str
        What their shapes mean, for the messages.

    Returns
    -------
    tuple of array
        In their common dtype; numpy arrays are read-only.

    Raises
    ------
    ShapeError
        No core, one of another number of axes, ranks that differ or are 0, or ends that are not 1.
    TypeError
        Arrays of different libraries.
    ValueError
        An unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> checked_cores([[[[1.0], [2.0]]]], 3, "(r, n, r')")[0].shape
    (1, 2, 1)
    """
    given = list(cores)
    if not given:
        raise ShapeError("cores must hold at least one core; got none")
    names = [f"cores[{k}]" for k in range(len(given))]
    _, arrays = as_matching_arrays(names, given, allow_complex=True)
    rank = 1
    for name, core in zip(names, arrays, strict=True):
        if core.ndim != axes:
            raise ShapeError(f"{name} must have shape {form}; got {tuple(core.shape)}")
        if core.shape[0] != rank or core.shape[-1] < 1:
            raise ShapeError(
                f"{name} must have shape {form} with the first rank {rank} and the last at least "
                f"1; got {tuple(core.shape)}"
            )
        rank = int(core.shape[-1])
    if rank != 1:
        raise ShapeError(f"{names[-1]} must have 1 as its last rank; got {rank}")
    return tuple(arrays)
