"""Compiled inner loops of rounding to a grid under a Gram matrix; imported on first use.

Every row is a problem of its own; what changes nothing costs nothing, so that a sweep over codes
that are nearly settled takes a small part of a matrix product. `grid_rounding_arrays` says the
same for arrays of any library.
"""

from typing import Any

import numpy as np
from numba import njit

__all__ = ["descend", "round_block", "search_steps"]

_fast = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})

# for sums of finite numbers: they may be taken in any order
_sums = njit(
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"contract", "nsz", "reassoc", "nnan", "ninf"},
)


@_fast
def round_block(
    targets: Any,
    weight: Any,
    coupling: Any,
    pivots: Any,
    scale: Any,
    zero: Any,
    group: Any,
    limits: Any,
    codes: Any,
    cost: Any,
) -> None:
    """Round the columns of a block one after the other; each error moves the targets behind it.

    Parameters
    ----------
    targets : ndarray of float64, shape (rows, size)
        The weights, moved by the errors of the blocks before; overwritten by the errors
        ``weight - value``.
    weight : ndarray of float64, shape (rows, size)
        The weights themselves.
    coupling : ndarray of float64, shape (size, size)
        Row k has the move of target l > k for an error 1 of column k.
    pivots : ndarray of float64, shape (size,)
        What a squared distance from the target costs.
    scale, zero : ndarray of float64, shape (rows, groups)
        Steps and zero points.
    group : ndarray of int64, shape (size,)
        The group of every column.
    limits : tuple of float
        Least and largest code.
    codes : ndarray of int8, shape (rows, size)
        Is written.
    cost : ndarray of float64, shape (rows,)
        Is raised by the block's part.
    """
    rows, size = targets.shape
    low, high = limits
    for row in range(rows):
        target = targets[row]
        for k in range(size):
            step, shift = scale[row, group[k]], zero[row, group[k]]
            code = min(max(np.rint(target[k] / step) + shift, low), high)
            codes[row, k] = np.int8(code)
            value = step * (code - shift)
            cost[row] += pivots[k] * (target[k] - value) ** 2
            error = weight[row, k] - value
            target[k] = error
            move = coupling[k]
            for j in range(k + 1, size):
                target[j] += move[j] * error


@_fast
def descend(
    value: Any,
    residual: Any,
    gram: Any,
    inverse: Any,
    order: Any,
    scale: Any,
    zero: Any,
    group: Any,
    limits: Any,
    codes: Any,
) -> int:
    """Move every entry to the grid value that is best with all others fixed; return the moves.

    Parameters
    ----------
    value : ndarray of float64, shape (rows, columns)
        The present values, updated.
    residual : ndarray of float64, shape (rows, columns)
        ``(weight - value) @ gram``, updated.
    gram : ndarray of float64, shape (columns, columns)
        Symmetric.
    inverse : ndarray of float64, shape (columns,)
        One over the diagonal; 0 where a column has no data: it stays as it is.
    order : ndarray of int64, shape (rows, columns) or (1, columns)
        The entries' order, of each row or of all.
    scale, zero : ndarray of float64, shape (rows, groups)
        Steps and zero points.
    group : ndarray of int64, shape (columns,)
        The group of every column.
    limits : tuple of float
        Least and largest code.
    codes : ndarray of int8, shape (rows, columns)
        Updated.

    Returns
    -------
    int
        How many values changed.
    """
    rows, columns = value.shape
    low, high = limits
    moves = 0
    shared = order.shape[0] == 1
    for row in range(rows):
        slope, present = residual[row], value[row]
        path = order[0] if shared else order[row]
        for k in range(columns):
            i = path[k]
            if inverse[i] == 0.0:
                continue
            step, shift = scale[row, group[i]], zero[row, group[i]]
            target = present[i] + slope[i] * inverse[i]
            code = min(max(np.rint(target / step) + shift, low), high)
            change = step * (code - shift) - present[i]
            if change == 0.0:
                continue
            moves += 1
            codes[row, i] = np.int8(code)
            present[i] = step * (code - shift)
            column = gram[i]
            for j in range(columns):
                slope[j] -= change * column[j]
    return moves


@_sums
def search_steps(weight: Any, importance: Any, steps: Any, zeros: Any, limits: Any) -> Any:
    """Cost of rounding every row to each of several grids, all errors weighted.

    Parameters
    ----------
    weight : ndarray of float64, shape (rows, size)
        The weights.
    importance : ndarray of float64, shape (size,)
        What a squared error of a column costs.
    steps, zeros : ndarray of float64, shape (rows, candidates)
        The grids.
    limits : tuple of float
        Least and largest code.

    Returns
    -------
    ndarray of float64, shape (rows, candidates)
        The weighted squares of the rounding errors.
    """
    rows, size = weight.shape
    low, high = limits
    costs = np.zeros(steps.shape)
    for row in range(rows):
        own = weight[row]
        for trial in range(steps.shape[1]):
            step, shift = steps[row, trial], zeros[row, trial]
            inverse, first, last = 1.0 / step, low - shift, high - shift
            total = 0.0
            for k in range(size):
                code = min(max(np.rint(own[k] * inverse), first), last)
                error = own[k] - step * code
                total += importance[k] * error * error
            costs[row, trial] = total
    return costs
