"""Compiled inner loops of rounding to a grid under a Gram matrix; imported on first use.

Every row is a problem of its own; what changes nothing costs nothing, so that a sweep over codes
that are nearly settled takes a small part of a matrix product.
"""

from typing import Any

import numpy as np
from numba import njit

__all__ = ["descend_rows", "round_block"]

_fast = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})


@_fast
def round_block(
    targets: Any, weight: Any, coupling: Any, scale: Any, zero: Any, limits: Any, codes: Any
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
    scale, zero : ndarray of float64, shape (rows, size)
        Step and zero point of every entry.
    limits : tuple of float
        Least and largest code.
    codes : ndarray of int8, shape (rows, size)
        Is written.
    """
    rows, size = targets.shape
    low, high = limits
    for row in range(rows):
        target = targets[row]
        for k in range(size):
            step, shift = scale[row, k], zero[row, k]
            code = min(max(np.rint(target[k] / step) + shift, low), high)
            codes[row, k] = np.int8(code)
            error = weight[row, k] - step * (code - shift)
            target[k] = error
            move = coupling[k]
            for j in range(k + 1, size):
                target[j] += move[j] * error


@_fast
def descend_rows(
    weight: Any,
    value: Any,
    residual: Any,
    gram: Any,
    inverse: Any,
    order: Any,
    scale: Any,
    zero: Any,
    limits: Any,
    codes: Any,
) -> int:
    """Move every entry to the grid value that is best with all others fixed; return the moves.

    Parameters
    ----------
    weight, value : ndarray of float64, shape (rows, columns)
        The weights and their present values; the latter are updated.
    residual : ndarray of float64, shape (rows, columns)
        ``(weight - value) @ gram``, updated.
    gram : ndarray of float64, shape (columns, columns)
        Symmetric.
    inverse : ndarray of float64, shape (columns,)
        One over the diagonal; 0 where a column has no data: it stays as it is.
    order : ndarray of int64, shape (rows, columns) or (1, columns)
        The entries' order, of each row or of all.
    scale, zero : ndarray of float64, shape (rows, columns)
        Step and zero point of every entry.
    limits : tuple of float
        Least and largest code.
    codes : ndarray of int8, shape (rows, columns)
        Updated.

    Returns
    -------
    int
        How many values changed.
    """
    rows, columns = weight.shape
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
            step, shift = scale[row, i], zero[row, i]
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
