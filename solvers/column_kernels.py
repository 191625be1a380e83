"""Mean, variance and range of every column in one pass: numba kernels, imported on first use.

Rows are read in blocks, transposed on load, so that every inner loop runs down a column with unit
stride. Each block is centred on itself and then pooled, which keeps the digits of a spread that is
far smaller than the offset.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["pool_columns"]

BLOCK = 256  # rows; a block of COLUMNS columns stays in the second-level cache
COLUMNS = 64

_strict = njit(cache=True, nogil=True, error_model="numpy")
# NaN and infinity must survive: they send a column to the slower loop
_sums = njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, nogil=True, error_model="numpy")
# for cells known to be finite
_finite = njit(
    fastmath={"reassoc", "contract", "nsz", "nnan"}, cache=True, nogil=True, error_model="numpy"
)


@_strict
def _load(X, start, count, first, last, values):  # type: ignore[no-untyped-def]
    """Transpose rows start..start+count of columns first..last into `values`."""
    i = 0
    while i + 4 <= count:
        row = start + i
        x0, x1, x2, x3 = X[row], X[row + 1], X[row + 2], X[row + 3]
        for j in range(first, last):
            column = values[j - first]
            y0, y1, y2, y3 = x0[j], x1[j], x2[j], x3[j]
            column[i], column[i + 1], column[i + 2], column[i + 3] = y0, y1, y2, y3
        i += 4
    while i < count:
        for j in range(first, last):
            values[j - first, i] = X[start + i, j]
        i += 1


@_sums
def _offset_sum(column, weight, count, anchor):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(count):
        total += weight[i] * (column[i] - anchor)
    return total


@_finite
def _spread(column, weight, count, mean):  # type: ignore[no-untyped-def]
    """Weighted squares about the mean, least and largest of finite cells."""
    squares, least, largest = 0.0, column[0], column[0]
    for i in range(count):
        offset = column[i] - mean
        squares += weight[i] * offset * offset
        least = min(least, column[i])
        largest = max(largest, column[i])
    return squares, least, largest


@_strict
def _keep_finite(column, weight, count, kept, kept_weight):  # type: ignore[no-untyped-def]
    """Copy the finite cells and their weights to the front of `kept`; return how many."""
    found = 0
    for i in range(count):
        if np.isfinite(column[i]):
            kept[found], kept_weight[found] = column[i], weight[i]
            found += 1
    return found


@_strict
def pool_columns(X, sample_weight, mass, mean, squares, least, largest):  # type: ignore[no-untyped-def]
    """Pool the rows of X with what the columns held before; return the cells left out.

    Parameters
    ----------
    X : (n, d) array
        Cells that are NaN or infinite are left out.
    sample_weight : (n,) or (0,) float64 array
        Positive; empty means that every weight is 1.
    mass, mean, squares : (d,) float64 arrays
        Total weight of the cells of each column, their mean, and the weighted sum of squares about
        it. Updated in place.
    least, largest : (d,) float64 arrays
        Range of the cells. Updated in place.

    Returns
    -------
    int
        How many cells were left out.
    """
    n, d = X.shape
    values = np.empty((min(d, COLUMNS), BLOCK))
    kept, kept_weight, weight = np.empty(BLOCK), np.empty(BLOCK), np.ones(BLOCK)
    left_out = 0
    for start in range(0, n, BLOCK):
        count = min(BLOCK, n - start)
        for i in range(count if sample_weight.shape[0] else 0):
            weight[i] = sample_weight[start + i]
        whole = _offset_sum(weight, np.ones(BLOCK), count, 0.0)
        for first in range(0, d, COLUMNS):
            last = min(first + COLUMNS, d)
            _load(X, start, count, first, last, values)
            for j in range(first, last):
                column, w, rows, block = values[j - first], weight, count, whole
                anchor = column[0]
                total = _offset_sum(column, w, rows, anchor)
                if not np.isfinite(total):
                    rows = _keep_finite(column, weight, count, kept, kept_weight)
                    left_out += count - rows
                    if rows == 0:
                        continue
                    column, w, anchor = kept, kept_weight, kept[0]
                    block = _offset_sum(w, np.ones(BLOCK), rows, 0.0)
                    total = _offset_sum(column, w, rows, anchor)
                center = anchor + total / block
                about, low, high = _spread(column, w, rows, center)
                together = mass[j] + block
                gap, share = center - mean[j], block / together
                if mass[j] == 0.0:
                    gap, mean[j] = 0.0, center
                squares[j] += about + mass[j] * share * gap * gap
                mean[j] += share * gap
                mass[j] = together
                least[j], largest[j] = min(least[j], low), max(largest[j], high)
    return left_out
