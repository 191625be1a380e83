"""Squared residual of a polyadic model and its gradient, in one pass over the tensor.

The gradient is taken of the residual itself, not as a difference of two large products: its
error then scales with the residual and an exact decomposition is reached to machine precision
even where the products run in float32.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.namespaces import device_of, namespace_of, to_numpy
from tensoralg.solvers.polyadic_residual import balanced_split

__all__ = ["residual_gradient"]

FloatArray = NDArray[np.float64]

_TILE_ROWS = 128
_TILE_COLUMNS = 2048  # with the rows: 2 MB of float64, a core's second-level cache
_SLAB_BYTES = 2**26
_DEVICE_BLOCK = 2**24  # entries


def residual_gradient(
    tensor: Any, factors: Sequence[FloatArray], *, mask: Any = None
) -> tuple[float, list[FloatArray]]:
    """Half the squared norm of model - tensor, and its derivatives by all factors.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or TensorBlocks
        float32 or float64, N >= 2, of any library: the products run where it is. The residual is
        formed in float64; for a float32 tensor it is rounded to float32 before it is multiplied.
    factors : sequence of N ndarrays of float64, shapes (n_k, r)
        The model is ``sum_s prod_k factors[k][i_k, s]``.
    mask : bool ndarray of the tensor's shape, optional
        True: observed. Other cells are left out whatever they hold, NaN included.

    Returns
    -------
    value : float
        In float64, from the differences themselves.
    gradients : list of N ndarrays of float64, shapes (n_k, r)
        ``gradients[k]`` is the MTTKRP of model - tensor in mode k.

    Examples
    --------
    >>> ones = [np.ones((n, 1)) for n in (2, 3, 4)]
    >>> value, gradients = residual_gradient(np.full((2, 3, 4), 0.5), ones)
    >>> value, gradients[0].tolist()
    (3.0, [[6.0], [6.0]])
    """
    shape = tuple(tensor.shape)
    split = balanced_split(shape)
    rank = factors[0].shape[1]
    right = khatri_rao(factors[split:])
    head = np.zeros((math.prod(shape[:split]), rank))
    tail = np.zeros((math.prod(shape[split:]), rank))
    value = 0.0
    row_size = math.prod(shape[1:split])
    for start, stop, slab in _slabs(tensor):
        left = khatri_rao([factors[0][start:stop], *factors[1:split]])
        rows = slice(start * row_size, stop * row_size)
        part = None if mask is None else mask[start:stop, ...]
        if isinstance(slab, np.ndarray):
            matrix = slab.reshape(len(left), len(right))
            observed = None if part is None else part.reshape(matrix.shape)
            value += _accumulate(matrix, observed, left, right, head[rows], tail)
        else:
            value += _accumulate_elsewhere(slab, part, left, right, head[rows], tail)
    head, tail = head.reshape(*shape[:split], rank), tail.reshape(*shape[split:], rank)
    return value, _contract_others(head, factors[:split]) + _contract_others(tail, factors[split:])


def _slabs(tensor: Any) -> Iterator[tuple[int, int, Any]]:
    """Parts of the tensor along its first mode: all of an array, the slabs of anything else."""
    if hasattr(tensor, "slabs"):
        yield from tensor.slabs(_SLAB_BYTES)
    else:
        yield 0, tensor.shape[0], tensor


def _accumulate(
    matrix: Any,
    observed: Any,
    left: FloatArray,
    right: FloatArray,
    head: FloatArray,
    tail: FloatArray,
) -> float:
    """Add one slab's products with the residual to `head` and `tail`; half its square."""
    rows, columns = matrix.shape
    low = matrix.dtype == np.float32
    left_operand = left.astype(np.float32) if low else left
    right_operand = right.astype(np.float32) if low else right
    value = 0.0
    column_step = columns if rows * columns <= _TILE_ROWS * _TILE_COLUMNS else _TILE_COLUMNS
    row_step = max(1, _TILE_ROWS * _TILE_COLUMNS // column_step)
    for i in range(0, rows, row_step):
        for j in range(0, columns, column_step):
            tile = np.s_[i : i + row_step, j : j + column_step]
            error = left[tile[0]] @ right[tile[1]].T
            error -= matrix[tile]
            if observed is not None:
                np.copyto(error, 0.0, where=~observed[tile])
            flat = error.ravel()
            value += 0.5 * float(flat @ flat)
            if low:
                error = error.astype(np.float32)
            head[tile[0]] += error @ right_operand[tile[1]]
            tail[tile[1]] += error.T @ left_operand[tile[0]]
    return value


def _accumulate_elsewhere(
    slab: Any,
    part: Any,
    left: FloatArray,
    right: FloatArray,
    head: FloatArray,
    tail: FloatArray,
) -> float:
    """Do the same where the tensor is, in large blocks of rows."""
    xp, device = namespace_of(slab), device_of(slab)
    rows, columns = len(left), len(right)
    matrix = xp.reshape(slab, (rows, columns))
    observed = None if part is None else xp.reshape(xp.asarray(part, device=device), matrix.shape)
    moved_left, moved_right = (xp.asarray(f, device=device) for f in (left, right))
    total = xp.zeros(tail.shape, dtype=xp.float64, device=device)
    value = 0.0
    step = max(1, _DEVICE_BLOCK // columns)
    for i in range(0, rows, step):
        block = slice(i, min(i + step, rows))
        wide = xp.astype(matrix[block, :], xp.float64)
        error = xp.matmul(moved_left[block, :], moved_right.T) - wide
        if observed is not None:
            error = xp.where(observed[block, :], error, xp.zeros_like(error))
        value += 0.5 * float(xp.sum(error * error))
        # products in the tensor's own precision, sums in float64
        error = xp.astype(error, slab.dtype)
        products = xp.matmul(error, xp.astype(moved_right, slab.dtype))
        head[block] += to_numpy(xp.astype(products, xp.float64))
        products = xp.matmul(error.T, xp.astype(moved_left[block, :], slab.dtype))
        total = total + xp.astype(products, xp.float64)
    tail += to_numpy(total)
    return value


def _contract_others(partial: FloatArray, factors: Sequence[FloatArray]) -> list[FloatArray]:
    """For each mode: the partial tensor (n_0, .., n_k, r) times the factors of all others."""
    if len(factors) == 1:
        return [partial]
    half = len(factors) // 2
    left, right = factors[:half], factors[half:]
    shape, rank = partial.shape[:-1], partial.shape[-1]
    matrix = partial.reshape(math.prod(shape[:half]), math.prod(shape[half:]), rank)
    head = np.einsum("ijs,js->is", matrix, khatri_rao(right)).reshape(*shape[:half], rank)
    tail = np.einsum("ijs,is->js", matrix, khatri_rao(left)).reshape(*shape[half:], rank)
    return _contract_others(head, left) + _contract_others(tail, right)
