"""Tensor trains of dense arrays by successive singular value decompositions, and rounding.

References
----------
.. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011), algorithm 1.
"""

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat

from tensoralg.core.tensor_train_arithmetic import wide_dtype
from tensoralg.core.tensor_train_rounding import round_cores
from tensoralg.core.tensor_train_shapes import cap_ranks
from tensoralg.core.tensor_train_truncation import (
    check_tolerance,
    droppable_square,
    kept_rank,
)
from tensoralg.core.tensor_train_unfoldings import (
    adjoint,
    as_float,
    share_exponent,
    times_power_of_two,
    unit_scale,
)

__all__ = ["dense_to_cores", "dense_to_matrix_cores"]

# The eigenvalues of M M^H are the squares of singular values, with half the digits. They are
# taken, many times faster, where M is this much wider than high and its cut this much above
# their rounding errors.
_WIDE = 2
_COARSE = 1000.0
_BLOCK_ENTRIES = 2**22
# Of a tolerance, so much goes to the cuts of the dense array, which know nothing of the bonds to
# come; the rest is spent by rounding, which knows them all.
_FIRST_PART = 0.1


def dense_to_cores(
    array: Any, *, rtol: float | None = None, ranks: int | Sequence[int] | None = None
) -> list[Any]:
    """Decompose a dense array into a tensor train (TT-SVD [1]_).

    Parameters
    ----------
    array : array, shape (n_1, .., n_d)
        Real or complex, finite.
    rtol : float, optional
        Largest error in the Frobenius norm, relative to the array.
    ranks : int or sequence of int, optional
        Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.

    Returns
    -------
    list of array, shapes (r_{k-1}, n_k, r_k)
        All but the last are left-orthogonal. Without a tolerance only what cannot be told from
        rounding errors of the dtype is dropped before the largest ranks apply.

    Raises
    ------
    ValueError
        A negative or NaN tolerance, or ranks below 1.

    References
    ----------
    .. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011),
       algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> [core.shape for core in dense_to_cores(np.ones((4, 5, 6)))]
    [(1, 4, 1), (1, 5, 1), (1, 6, 1)]
    """
    rtol = check_tolerance(rtol)
    xp = array_api_compat.array_namespace(array)
    caps = cap_ranks(array.shape, ranks)
    if 0 in array.shape:
        device = array_api_compat.device(array)
        return [xp.zeros((1, n, 1), dtype=array.dtype, device=device) for n in array.shape]
    unit, exponent = unit_scale(xp, array)
    if rtol is None or len(caps) == 3:  # a matrix is cut once
        cores, _ = _successive_cuts(xp, unit, rtol, caps)
    else:
        cores, lost = _successive_cuts(xp, unit, _FIRST_PART * rtol, caps)
        cores, _ = round_cores(cores, rtol=max(0.0, rtol - lost), ranks=caps)
    shares = share_exponent(xp, array.dtype, exponent, len(cores), len(cores) - 1)
    return [times_power_of_two(xp, *pair) for pair in zip(cores, shares, strict=True)]


def _successive_cuts(
    xp: Any, array: Any, rtol: float | None, caps: Sequence[int]
) -> tuple[list[Any], float]:
    """Cut one unfolding after the other; the cores and the relative error."""
    total, shape = _squared_norm(xp, array), tuple(array.shape)
    left = 0.0 if rtol is None else rtol**2 * total
    cores: list[Any] = []
    rest, rank, lost = array, 1, 0.0
    for k, n in enumerate(shape[:-1]):
        rest = xp.reshape(rest, (rank * n, math.prod(shape[k + 1 :])))
        allowed = None if rtol is None else max(0.0, left - lost) / (len(shape) - 1 - k)
        square = droppable_square(xp, rest, total, allowed)
        u, rest, dropped = _cut(xp, rest, square, caps[k + 1], tolerant=rtol is not None)
        lost += dropped
        cores.append(xp.reshape(u, (rank, n, u.shape[1])))
        rank = u.shape[1]
    cores.append(xp.reshape(rest, (rank, shape[-1], 1)))
    return cores, math.sqrt(lost / total) if total > 0 else 0.0


def _cut(
    xp: Any, matrix: Any, square: float, cap: int, *, tolerant: bool
) -> tuple[Any, Any, float]:
    """Leading left singular vectors U, their part U^H M of a matrix, the square that is lost."""
    rows, columns = matrix.shape
    if columns >= _WIDE * rows:
        total = _squared_norm(xp, matrix)
        unit = float(xp.finfo(xp.float64).eps) * rows * total
        coarse = square > _COARSE * unit
        if coarse or (cap < rows and not tolerant):
            values, vectors = xp.linalg.eigh(_gram(xp, matrix))
            s = xp.sqrt(xp.clip(xp.flip(values), 0.0, None))
            rank, dropped = kept_rank(xp, s, square - unit, cap)
            # a fine cut is certain where the largest rank decides it
            if coarse or (rank == cap and as_float(s[cap - 1]) ** 2 > _COARSE * unit):
                u = xp.astype(xp.flip(vectors, axis=1)[:, :rank], matrix.dtype)
                return u, adjoint(xp, u) @ matrix, dropped
    u, s, v = xp.linalg.svd(matrix, full_matrices=False)
    rank, dropped = kept_rank(xp, s, square, cap)
    return u[:, :rank], xp.astype(s[:rank], v.dtype)[:, None] * v[:rank, :], dropped


def _gram(xp: Any, matrix: Any) -> Any:
    """M M^H in double precision, some columns at a time."""
    rows, columns = matrix.shape
    dtype = wide_dtype(xp, matrix.dtype)
    gram = xp.zeros((rows, rows), dtype=dtype, device=array_api_compat.device(matrix))
    step = max(1, _BLOCK_ENTRIES // max(1, rows))
    for start in range(0, columns, step):
        block = xp.astype(matrix[:, start : min(start + step, columns)], dtype, copy=False)
        gram = gram + block @ adjoint(xp, block)
    return gram


def _squared_norm(xp: Any, matrix: Any) -> float:
    """Squared Frobenius norm, in double precision."""
    return as_float(xp.linalg.vector_norm(xp.astype(xp.abs(matrix), xp.float64))) ** 2


def dense_to_matrix_cores(
    array: Any,
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    *,
    rtol: float | None = None,
    ranks: int | Sequence[int] | None = None,
) -> list[Any]:
    """Decompose a dense matrix into a tensor train of matrix form.

    Parameters
    ----------
    array : array, shape (prod(row_shape), prod(column_shape))
        Real or complex, finite.
    row_shape, column_shape : sequence of int
        The modes into which rows and columns are split, the slowest first; equally many.
    rtol : float, optional
        Largest error in the Frobenius norm, relative to the matrix.
    ranks : int or sequence of int, optional
        Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.

    Returns
    -------
    list of array, shapes (r_{k-1}, rows_k, columns_k, r_k)
        As from `dense_to_cores` of the matrix with the modes of rows and columns paired.

    Examples
    --------
    >>> import numpy as np
    >>> [core.shape for core in dense_to_matrix_cores(np.eye(6), (2, 3), (2, 3))]
    [(1, 2, 2, 1), (1, 3, 3, 1)]
    """
    xp = array_api_compat.array_namespace(array)
    d = len(row_shape)
    tensor = xp.reshape(array, (*row_shape, *column_shape))
    tensor = xp.permute_dims(tensor, tuple(axis for k in range(d) for axis in (k, d + k)))
    pairs = list(zip(row_shape, column_shape, strict=True))
    paired = xp.reshape(tensor, tuple(m * n for m, n in pairs))
    cores = dense_to_cores(paired, rtol=rtol, ranks=ranks)
    return [
        xp.reshape(core, (core.shape[0], *pair, core.shape[-1]))
        for core, pair in zip(cores, pairs, strict=True)
    ]
