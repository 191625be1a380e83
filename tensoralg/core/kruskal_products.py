"""Arithmetic of sums of rank-one terms that never forms the dense tensor.

The functions take a weight vector and factor matrices of one array library and assume that the
shapes fit, which `KruskalTensor` checks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import array_api_compat
import numpy as np

from tensoralg.core.validation import as_values

__all__ = [
    "as_data",
    "as_matching_arrays",
    "dense_model",
    "double_precision",
    "khatri_rao",
    "slab_residuals",
    "term_cosines",
    "unit_columns",
]

_SLAB_ENTRIES = 2**20  # entries of the model that exist at a time


def as_matching_arrays(
    names: Sequence[str], values: Sequence[Any], *, allow_complex: bool = False
) -> tuple[Any, list[Any]]:
    """Copy arguments into arrays of the one library they share.

    Parameters
    ----------
    names : sequence of str
        The arguments' names, for the messages.
    values : sequence of array_like
        Lists and numbers mean numpy.
    allow_complex : bool, default False
        Whether complex64 and complex128 are accepted.

    Returns
    -------
    xp : module
        The array namespace.
    arrays : list of array
        Copies in their common dtype, real unless complex ones are allowed; numpy arrays are
        read-only, those of other libraries stay in the graph of their gradients.

    Raises
    ------
    TypeError
        Arrays of different libraries.
    ValueError
        Complex or another unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> xp, (a, b) = as_matching_arrays(["a", "b"], [[1, 2], np.float32([3])])
    >>> a.dtype, b.dtype
    (dtype('float64'), dtype('float64'))
    """
    own = [v for v in values if array_api_compat.is_array_api_obj(v)]
    if all(array_api_compat.is_numpy_array(v) for v in own):
        arrays = [as_values(name, value) for name, value in zip(names, values, strict=True)]
        common = np.result_type(*arrays)
        if common.kind == "c" and not allow_complex:
            which = next(
                n for n, array in zip(names, arrays, strict=True) if np.iscomplexobj(array)
            )
            raise ValueError(f"{which} has dtype {common}; complex tensors are not supported")
        arrays = [array if array.dtype == common else array.astype(common) for array in arrays]
        for array in arrays:
            array.flags.writeable = False
        return np, arrays
    found = {array_api_compat.array_namespace(v).__name__ for v in own}
    if len(own) < len(values) or len(found) > 1:
        raise TypeError(
            f"{', '.join(names)} must be arrays of one library; got "
            + " and ".join(sorted({type(v).__module__.partition(".")[0] for v in values}))
        )
    xp = array_api_compat.array_namespace(*own)
    for name, value in zip(names, own, strict=True):
        _check_foreign(xp, name, value, allow_complex=allow_complex)
    common = xp.result_type(*own)
    return xp, [xp.astype(value, common, copy=True) for value in own]


def _check_foreign(xp: Any, name: str, value: Any, *, allow_complex: bool) -> None:
    """Refuse what numpy's border refuses, for an array of another library."""
    accepted = {xp.float32: "float32", xp.float64: "float64"}
    if allow_complex:
        accepted |= {xp.complex64: "complex64", xp.complex128: "complex128"}
    if value.dtype not in accepted:
        *others, last = accepted.values()
        raise ValueError(
            f"{name} has dtype {value.dtype}; accepted are {', '.join(others)} and {last}"
        )
    if not bool(xp.all(xp.isfinite(value))):
        raise ValueError(f"{name} must be finite")


def as_data(xp: Any, name: str, value: Any, *, allow_complex: bool = False) -> Any:
    """Check a large array without copying it.

    Parameters
    ----------
    xp : module
        The namespace it must belong to.
    name : str
        The argument's name, for the messages.
    value : array_like
        Lists and numbers mean numpy.
    allow_complex : bool, default False
        Whether complex64 and complex128 are accepted.

    Returns
    -------
    array, same shape
        Float32 and float64 arrays of numpy as they are.

    Raises
    ------
    TypeError
        An array of another library.
    ValueError
        Complex or another unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> as_data(array_api_compat.numpy, "X", [[1, 2]]).dtype
    dtype('float64')
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"{name} has masked values, which would be taken for observed ones")
    if not array_api_compat.is_array_api_obj(value):
        value = np.asarray(value)
    if array_api_compat.array_namespace(value).__name__ != xp.__name__:
        raise TypeError(
            f"{name} is an array of {type(value).__module__.partition('.')[0]}, another library "
            "than that of the factors; convert one of the two first"
        )
    kept = (xp.float32, xp.float64, *((xp.complex64, xp.complex128) if allow_complex else ()))
    if value.dtype not in kept:
        _, (value,) = as_matching_arrays([name], [value], allow_complex=allow_complex)
    elif not bool(xp.all(xp.isfinite(value))):
        raise ValueError(f"{name} must be finite; it holds NaN or infinite values")
    return value


def double_precision(xp: Any, array: Any) -> Any:
    """Return the array in float64.

    Parameters
    ----------
    xp : module
        The array's namespace.
    array : array, any shape
        Real.

    Returns
    -------
    array of float64, same shape
        Not copied where the dtype fits already.

    Examples
    --------
    >>> double_precision(np, np.float32([1.0])).dtype
    dtype('float64')
    """
    return xp.astype(array, xp.float64, copy=False)


def unit_columns(xp: Any, factor: Any) -> tuple[Any, Any]:
    """Split a matrix into columns of length one and their lengths.

    Parameters
    ----------
    xp : module
        The factor's namespace.
    factor : array, shape (n, r)
        Finite.

    Returns
    -------
    columns : array, shape (n, r)
        A zero column stays zero.
    lengths : array, shape (r,)
        In double precision; neither over- nor underflowing.

    Examples
    --------
    >>> columns, lengths = unit_columns(np, np.array([[3e200], [4e200]]))
    >>> columns.ravel().tolist(), float(np.round(lengths[0] / 1e200, 12))
    ([0.6, 0.8], 5.0)
    """
    wide = double_precision(xp, factor)
    if factor.shape[0] == 0:
        return factor, xp.sum(wide, axis=0)
    largest = xp.max(xp.abs(wide), axis=0)
    scaled = wide / xp.where(largest > 0, largest, xp.ones_like(largest))
    lengths = xp.sqrt(xp.sum(scaled * scaled, axis=0))
    safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return xp.astype(scaled / safe, factor.dtype, copy=False), lengths * largest


def term_cosines(xp: Any, first: Sequence[Any], second: Sequence[Any]) -> Any:
    """Inner products of the unit rank-one terms of two lists of factors.

    Parameters
    ----------
    xp : module
        The factors' namespace.
    first, second : sequence of array, shapes (shape[k], r) and (shape[k], s)
        Factors whose columns have length one.

    Returns
    -------
    array, shape (r, s)
        ``prod_k first[k]' second[k]`` entry by entry, in double precision.

    Examples
    --------
    >>> term_cosines(np, [np.eye(2), np.eye(2)], [np.eye(2), -np.eye(2)]).tolist()
    [[-1.0, 0.0], [0.0, -1.0]]
    """
    product: Any = None
    for a, b in zip(first, second, strict=True):
        gram = double_precision(xp, a).T @ double_precision(xp, b)
        product = gram if product is None else product * gram
    return product


def dense_model(xp: Any, weights: Any, factors: Sequence[Any]) -> Any:
    """Sum the terms into the dense tensor.

    Parameters
    ----------
    xp : module
        The arrays' namespace.
    weights : array, shape (r,)
        Weights of the terms.
    factors : sequence of array, shapes (shape[k], r)
        One per mode.

    Returns
    -------
    array, shape `shape`
        In the factors' dtype.

    Examples
    --------
    >>> dense_model(np, np.array([2.0]), [np.ones((1, 1)), np.array([[1.0], [3.0]])]).tolist()
    [[2.0, 6.0]]
    """
    shape = tuple(factor.shape[0] for factor in factors)
    if math.prod(shape) == 0:
        return xp.zeros(shape, dtype=factors[0].dtype)
    # two balanced halves: one matrix product forms all entries
    half = (len(factors) + 1) // 2
    left = khatri_rao(factors[:half]) * weights
    if half == len(factors):
        return xp.reshape(xp.sum(left, axis=1), shape)
    return xp.reshape(left @ khatri_rao(factors[half:]).T, shape)


def khatri_rao(factors: Sequence[Any]) -> Any:
    """Multiply the columns of all factors, each with each: the first index varies slowest.

    Parameters
    ----------
    factors : sequence of arrays, shape (n_k, r)
        At least one, of one namespace.

    Returns
    -------
    array, shape (prod n_k, r)
        ``result[(i_0, i_1, ...), s] = prod_k factors[k][i_k, s]``.

    Examples
    --------
    >>> khatri_rao([np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])])[:, 0].tolist()
    [3.0, 5.0, 6.0, 10.0]
    """
    xp = array_api_compat.array_namespace(*factors)
    product = factors[0]
    for factor in factors[1:]:
        rows = product.shape[0] * factor.shape[0]  # not -1, which no empty array can tell
        product = xp.reshape(product[:, None, :] * factor[None, :, :], (rows, factor.shape[1]))
    return product


def slab_residuals(
    xp: Any, tensor: Any, weights: Any, factors: Sequence[Any]
) -> Iterator[tuple[Any, Any]]:
    """Differences between a tensor and a model, a few slabs of the first mode at a time.

    Parameters
    ----------
    xp : module
        The arrays' namespace.
    tensor : array, shape `shape`
        The dense tensor.
    weights : array, shape (r,)
        Weights of the terms.
    factors : sequence of array, shapes (shape[k], r)
        One per mode.

    Yields
    ------
    data, difference : array, shape (stop - start, ...)
        The slab of the tensor and its difference to the model, in double precision.

    Examples
    --------
    >>> ones = [np.ones((2, 1))] * 2
    >>> [d.tolist() for _, d in slab_residuals(np, np.ones((2, 2)), np.ones(1), ones)]
    [[[0.0, 0.0], [0.0, 0.0]]]
    """
    wide = [double_precision(xp, factor) for factor in factors]
    scale = double_precision(xp, weights)
    rows = max(1, _SLAB_ENTRIES // max(1, math.prod(tensor.shape[1:])))
    for start in range(0, tensor.shape[0], rows):
        stop = min(start + rows, tensor.shape[0])
        data = double_precision(xp, tensor[start:stop, ...])
        yield data, data - dense_model(xp, scale, [wide[0][start:stop, :], *wide[1:]])
