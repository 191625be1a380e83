"""Keys of rows from their contents, and cells out of bounds: numba kernels, imported on first use.

Equal rows have equal keys, wherever they stand and however often: whatever is drawn by keys does
not change when rows are repeated, moved or cut into chunks in another way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["content_keys", "count_outside", "hide_outside", "nearest"]

_strict = njit(cache=True, nogil=True, error_model="numpy")
# sums may be reordered, so that they run in vector registers; NaN stays NaN
_sums = njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, nogil=True, error_model="numpy")

_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF, _S30, _S27, _S31 = np.uint64(32), np.uint64(30), np.uint64(27), np.uint64(31)


@_strict
def _scrambled(z):  # type: ignore[no-untyped-def]
    """Mix 64 bits: the finaliser of SplitMix64."""
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    return z ^ (z >> _S31)


@_strict
def content_keys(X, salt):  # type: ignore[no-untyped-def]
    """Return 64 mixed bits of every row.

    Parameters
    ----------
    X : (n, d) float32 or float64 array
        NaN is one value, and so are 0 and -0.
    salt : uint64
        Another salt gives other keys.

    Returns
    -------
    (n,) uint64 array
    """
    n, d = X.shape
    factors = np.empty(d, np.uint64)
    for j in range(d):
        # odd, so that no bit of a cell is lost
        factors[j] = _scrambled(salt + np.uint64(j + 1) * _ODD) | np.uint64(1)
    keys = np.empty(n, np.uint64)
    cells = np.empty(d)
    bits = cells.view(np.uint64)
    for i in range(n):
        for j in range(d):
            value = np.float64(X[i, j]) + 0.0  # no -0
            cells[j] = value if value == value else np.nan
        total = salt
        for j in range(d):
            # small integers differ in the upper half only
            total += (bits[j] ^ (bits[j] >> _HALF)) * factors[j]
        keys[i] = _scrambled(total)
    return keys


@_sums
def _capped(row, centre, under, over, height, most):  # type: ignore[no-untyped-def]
    """Sum half the squared deviations, at most `most` each, and the heights over known cells."""
    total = 0.0
    for j in range(len(centre)):
        gap = row[j] - centre[j]
        z = gap * (under[j] if gap < 0.0 else over[j])
        term = min(0.5 * z * z, most) + height[j]
        total += term if row[j] == row[j] else 0.0
    return total


@_strict
def nearest(X, levels, centre, below, above, cap):  # type: ignore[no-untyped-def]
    """Find the component that explains every row best, no cell counting as more than `cap`.

    Parameters
    ----------
    X : (n, d) array
        A cell that is NaN does not count.
    levels : (r,) float64 array
        Logarithms of the components' weights.
    centre, below, above : (r, d) float64 arrays
        Centres, and standard deviations below and above them.
    cap : float
        Standard deviations that a cell counts as, at most.

    Returns
    -------
    (n,) int64 array
    """
    n, r = X.shape[0], len(levels)
    height = np.log(0.5 * (below + above))
    under, over, most = 1.0 / below, 1.0 / above, 0.5 * cap * cap
    labels = np.zeros(n, np.int64)
    for i in range(n):
        best = -np.inf
        for s in range(r):
            value = levels[s] - _capped(X[i], centre[s], under[s], over[s], height[s], most)
            if value > best:
                best, labels[i] = value, s
    return labels


@_strict
def count_outside(X, labels, lower, upper):  # type: ignore[no-untyped-def]
    """Count the cells of every row that are below or above the bounds of their columns.

    Parameters
    ----------
    X : (n, d) array
        A cell that is NaN is not outside.
    labels : (n,) int64 array
        Which bounds hold for each row.
    lower, upper : (r, d) float64 arrays
        The bounds.

    Returns
    -------
    (n,) int64 array
    """
    n, d = X.shape
    counts = np.empty(n, np.int64)
    for i in range(n):
        outside, s = 0, labels[i]
        for j in range(d):
            outside += (X[i, j] < lower[s, j]) | (X[i, j] > upper[s, j])
        counts[i] = outside
    return counts


@_strict
def hide_outside(X, labels, lower, upper):  # type: ignore[no-untyped-def]
    """Replace the cells out of bounds by NaN, in place.

    Parameters
    ----------
    X : (n, d) array
        Changed in place.
    labels, lower, upper
        As for `count_outside`.
    """
    n, d = X.shape
    for i in range(n):
        s = labels[i]
        for j in range(d):
            if X[i, j] < lower[s, j] or X[i, j] > upper[s, j]:
                X[i, j] = np.nan
