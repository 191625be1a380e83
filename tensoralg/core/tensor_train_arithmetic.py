"""Sums and products of tensor trains, on plain lists of cores of one array library.

References
----------
.. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011), section 4.
"""

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat

from tensoralg.core.tensor_train_unfoldings import (
    adjoint,
    as_float,
    left_unfolding,
    right_unfolding,
    times_power_of_two,
    unit_scale,
)

__all__ = [
    "add_cores",
    "even_cores",
    "inner_product",
    "matrix_times_cores",
    "matrix_times_vectors",
    "multiply_cores",
    "normalized_cores",
    "wide_dtype",
]


def wide_dtype(xp: Any, dtype: Any) -> Any:
    """Return the double-precision dtype in which sums over a dtype are accumulated.

    Parameters
    ----------
    xp : module
        The dtype's namespace.
    dtype : dtype
        Real or complex.

    Returns
    -------
    dtype
        complex128 for complex dtypes, float64 otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> wide_dtype(array_api_compat.numpy, np.dtype("complex64")).__name__
    'complex128'
    """
    return xp.complex128 if xp.isdtype(dtype, "complex floating") else xp.float64


def normalized_cores(xp: Any, cores: Sequence[Any]) -> tuple[list[Any], int]:
    """Take one power of two out of all cores.

    Parameters
    ----------
    xp : module
        The cores' namespace.
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train.

    Returns
    -------
    list of array
        Cores whose largest entries lie in [0.5, 1).
    int
        The exponent that makes up for it.

    Examples
    --------
    >>> import numpy as np
    >>> normalized_cores(np, [np.full((1, 1, 1), 8.0), np.full((1, 1, 1), 0.25)])[1]
    3
    """
    pairs = [unit_scale(xp, core) for core in cores]
    return [core for core, _ in pairs], sum(exponent for _, exponent in pairs)


def even_cores(xp: Any, cores: Sequence[Any]) -> list[Any]:
    """Give cores of very different sizes the same size, so that sums and products lose nothing.

    Parameters
    ----------
    xp : module
        The cores' namespace.
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train.

    Returns
    -------
    list of array
        The given cores, unless their sizes differ by more than the eighth part of the dtype's
        range of exponents; then those scaled by powers of two.

    Examples
    --------
    >>> import numpy as np
    >>> cores = even_cores(np, [np.full((1, 1, 1), 2.0**300), np.full((1, 1, 1), 1.0)])
    >>> [core.ravel().tolist() == [2.0**150] for core in cores]
    [True, True]
    """
    pairs = [unit_scale(xp, core) for core in cores]
    exponents = [exponent for _, exponent in pairs]
    if max(exponents) - min(exponents) <= math.frexp(float(xp.finfo(cores[0].dtype).max))[1] // 8:
        return list(cores)
    share, rest = divmod(sum(exponents), len(cores))
    shares = [share] * (len(cores) - 1) + [share + rest]
    return [times_power_of_two(xp, core, s) for (core, _), s in zip(pairs, shares, strict=True)]


def add_cores(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Add two trains of the same shape.

    Parameters
    ----------
    first, second : sequence of array, shapes (r_{k-1}, ..., r_k) and (s_{k-1}, ..., s_k)
        The trains.

    Returns
    -------
    list of array
        Of ranks ``r_k + s_k``: block-diagonal cores, side by side at the ends.

    Examples
    --------
    >>> import numpy as np
    >>> one = [np.ones((1, 2, 1)), np.ones((1, 3, 1))]
    >>> [core.shape for core in add_cores(one, one)]
    [(1, 2, 2), (2, 3, 1)]
    """
    xp = array_api_compat.array_namespace(*first, *second)
    last = len(first) - 1
    if last == 0:
        return [first[0] + second[0]]
    result = []
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        if k == 0:
            result.append(xp.concat([a, b], axis=-1))
        elif k == last:
            result.append(xp.concat([a, b], axis=0))
        else:
            upper = xp.concat([a, _zeros(xp, a, (*a.shape[:-1], b.shape[-1]))], axis=-1)
            lower = xp.concat([_zeros(xp, b, (*b.shape[:-1], a.shape[-1])), b], axis=-1)
            result.append(xp.concat([upper, lower], axis=0))
    return result


def multiply_cores(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Multiply two trains of the same shape entry by entry (Hadamard product).

    Parameters
    ----------
    first, second : sequence of array, shapes (r_{k-1}, ..., r_k) and (s_{k-1}, ..., s_k)
        The trains.

    Returns
    -------
    list of array
        Of ranks ``r_k s_k``.

    Examples
    --------
    >>> import numpy as np
    >>> cores = multiply_cores([np.full((1, 2, 1), 3.0)], [np.full((1, 2, 1), 5.0)])
    >>> cores[0].ravel().tolist()
    [15.0, 15.0]
    """
    xp = array_api_compat.array_namespace(*first, *second)
    result = []
    for a, b in zip(first, second, strict=True):
        product = a[:, None, ..., :, None] * b[None, :, ..., None, :]
        shape = (a.shape[0] * b.shape[0], *a.shape[1:-1], a.shape[-1] * b.shape[-1])
        result.append(xp.reshape(product, shape))
    return result


def inner_product(first: Sequence[Any], second: Sequence[Any]) -> float | complex:
    """Inner product of two trains of the same shape, linear in the second.

    Parameters
    ----------
    first, second : sequence of array, shapes (r_{k-1}, ..., r_k) and (s_{k-1}, ..., s_k)
        The trains.

    Returns
    -------
    float or complex
        ``sum(conj(first) * second)``, in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> one = [np.ones((1, 2, 1)), np.ones((1, 3, 1))]
    >>> inner_product(one, one)
    6.0
    """
    xp = array_api_compat.array_namespace(*first, *second)
    wide = wide_dtype(xp, xp.result_type(first[0], second[0]))
    one, exponent = xp.ones((1, 1), dtype=wide, device=array_api_compat.device(first[0])), 0
    carried = one
    for a, b in zip(first, second, strict=True):
        (a, p), (b, q) = (unit_scale(xp, xp.astype(c, wide, copy=False)) for c in (a, b))
        pushed = carried @ right_unfolding(xp, b)
        pushed = xp.reshape(pushed, (math.prod(a.shape[:-1]), b.shape[-1]))
        carried, s = unit_scale(xp, adjoint(xp, left_unfolding(xp, a)) @ pushed)
        exponent += p + q + s
    value = times_power_of_two(xp, carried, exponent)[0, 0]
    return complex(value) if xp.isdtype(wide, "complex floating") else as_float(value)


def matrix_times_vectors(cores: Sequence[Any], vectors: Any) -> Any:
    """Multiply a matrix in train form with many dense vectors.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, rows_k, columns_k, r_k)
        The matrix.
    vectors : array, shape (B, columns_1 * .. * columns_d)
        One vector per row, of the cores' dtype.

    Returns
    -------
    array, shape (B, rows_1 * .. * rows_d)
        The products. The matrix is never formed.

    Examples
    --------
    >>> import numpy as np
    >>> cores = [np.eye(2)[None, :, :, None], np.ones((1, 1, 2, 1))]
    >>> matrix_times_vectors(cores, np.array([[1.0, 2.0, 3.0, 4.0]])).tolist()
    [[3.0, 7.0]]
    """
    xp = array_api_compat.array_namespace(*cores, vectors)
    batch, rows, state = vectors.shape[0], 1, vectors
    for k, core in enumerate(cores):
        r, m, n, _ = core.shape
        rest = math.prod(later.shape[2] for later in cores[k + 1 :])
        state = xp.reshape(state, (batch, n, rest, rows, r))
        state = xp.tensordot(state, core, axes=((4, 1), (0, 2)))
        rows *= m
    return xp.reshape(state, (batch, rows))


def matrix_times_cores(matrix: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Multiply a matrix in train form with a train, of tensors or of a matrix.

    Parameters
    ----------
    matrix : sequence of array, shapes (r_{k-1}, rows_k, columns_k, r_k)
        The matrix.
    other : sequence of array, shapes (s_{k-1}, columns_k, ..., s_k)
        The other factor, with one or no further axis.

    Returns
    -------
    list of array, shapes (r_{k-1} s_{k-1}, rows_k, ..., r_k s_k)
        The product.

    Examples
    --------
    >>> import numpy as np
    >>> double = [2 * np.eye(2)[None, :, :, None]]
    >>> matrix_times_cores(double, [np.ones((1, 2, 1))])[0].ravel().tolist()
    [2.0, 2.0]
    """
    xp = array_api_compat.array_namespace(*matrix, *other)
    result = []
    for a, b in zip(matrix, other, strict=True):
        product = xp.tensordot(a, b, axes=((2,), (1,)))  # r, rows, r', s, ..., s'
        middle = tuple(range(4, product.ndim - 1))
        product = xp.permute_dims(product, (0, 3, 1, *middle, 2, product.ndim - 1))
        shape = (a.shape[0] * b.shape[0], a.shape[1], *b.shape[2:-1], a.shape[3] * b.shape[-1])
        result.append(xp.reshape(product, shape))
    return result


def _zeros(xp: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of an array's dtype and device."""
    return xp.zeros(shape, dtype=like.dtype, device=array_api_compat.device(like))
