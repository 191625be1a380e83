"""Compiled sweeps of `tensoralg.gpu.moment_sweep`, imported on first use: numba is slow to load."""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["column_sums", "sweep_rows"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_BLOCK = 64
# sums may be reordered and fused, so that they run in vector registers; NaN stays NaN
_SUMS = {"reassoc", "contract", "nsz"}


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def column_sums(X: FloatArray, weight: FloatArray, origin: FloatArray, sums: FloatArray) -> None:
    """Add sum_n weight[n] * (X[n] - origin) to the sums; an empty weight means ones."""
    rows, dimension = X.shape
    weighted = len(weight) > 0
    for n in range(rows):
        w = weight[n] if weighted else 1.0
        for j in range(dimension):
            sums[j] += w * (X[n, j] - origin[j])


@numba.njit(cache=True, nogil=True)
def sweep_rows(
    X: FloatArray,
    weight: FloatArray,
    shift: FloatArray,
    inverse_scale: FloatArray,
    left: tuple[IntArray, IntArray],
    right: tuple[IntArray, IntArray, IntArray, IntArray],
    n_left: int,
    size: int,
    sums: FloatArray,
    mask_sums: FloatArray,
) -> None:
    """Add all moments of standardised rows to the sums, chunks of `size` rows at a time.

    An empty weight means ones, empty mask sums mean that no value is missing.
    """
    rows, dimension = X.shape
    size = min(size, rows)
    feature_buffer = np.zeros(n_left * size)
    point_buffer = np.zeros((dimension + 1) * size)
    work_buffer = np.zeros(3 * size)
    for begin in range(0, rows, size):
        count = min(size, rows - begin)
        features = feature_buffer[: n_left * count].reshape(n_left, count)
        points = point_buffer[: (dimension + 1) * count].reshape(dimension + 1, count)
        work = work_buffer[: 3 * count].reshape(3, count)
        w = weight[begin : begin + count]
        _standardise(X[begin : begin + count], shift, inverse_scale, points)
        if len(mask_sums) == 0:
            _add_products(features, points, w, left, right, work, sums)
            continue
        present = np.empty_like(points)
        _split_missing(points, present)
        _add_products(features, points, w, left, right, work, sums)
        _add_products(features, present, w, left, right, work, mask_sums)


@numba.njit(cache=True, nogil=True)
def _standardise(
    X: FloatArray, shift: FloatArray, inverse_scale: FloatArray, points: FloatArray
) -> None:
    """Write 1 and (X - shift) * inverse_scale, transposed: points is (1 + d, rows)."""
    rows, dimension = X.shape
    points[0] = 1.0
    # short blocks of rows stay in the first-level cache while all columns are read
    for start in range(0, rows, _BLOCK):
        stop = min(start + _BLOCK, rows)
        for j in range(dimension):
            origin, factor, target = shift[j], inverse_scale[j], points[j + 1]
            for n in range(start, stop):
                target[n] = (X[n, j] - origin) * factor


@numba.njit(cache=True, nogil=True)
def _split_missing(points: FloatArray, present: FloatArray) -> None:
    """Replace NaN by 0, and mark by 1 and 0 what was present."""
    for j in range(points.shape[0]):
        for n in range(points.shape[1]):
            missing = np.isnan(points[j, n])
            present[j, n] = 0.0 if missing else 1.0
            if missing:
                points[j, n] = 0.0


@numba.njit(cache=True, nogil=True)
def _add_products(
    features: FloatArray,
    points: FloatArray,
    weight: FloatArray,
    left: tuple[IntArray, IntArray],
    right: tuple[IntArray, IntArray, IntArray, IntArray],
    work: FloatArray,
    sums: FloatArray,
) -> None:
    features[0] = 1.0
    _expand(features, points[1:], left[0], left[1])
    if len(weight) > 0:
        # one factor of every product carries the weight
        for j in range(points.shape[0]):
            points[j] *= weight
    _accumulate(features, points, right[0], right[1], right[2], right[3], work, sums)


@numba.njit(cache=True, nogil=True)
def _expand(
    features: FloatArray, points: FloatArray, parent: IntArray, coordinate: IntArray
) -> None:
    """Fill features[1:] in place: each is its parent times one coordinate of the points."""
    rows = features.shape[1]
    for k in range(1, len(parent)):
        left, right, target = features[parent[k]], points[coordinate[k]], features[k]
        for n in range(rows):
            target[n] = left[n] * right[n]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _accumulate(
    features: FloatArray,
    factors: FloatArray,
    parent: IntArray,
    coordinate: IntArray,
    reach: IntArray,
    start: IntArray,
    work: FloatArray,
    sums: FloatArray,
) -> None:
    """Add the inner products of right features with the leading left features to the sums.

    Right feature k is ``features[parent[k]] * factors[coordinate[k]]``; it meets the left features
    ``0 .. reach[k] - 1``, and the results go to ``sums[start[k]:]``. Right features come in
    threes, left ones in fours: twelve sums stay in registers, and nothing is packed or copied.
    """
    rows = features.shape[1]
    for k in range(0, len(parent), 3):
        for g in range(3):
            left, factor, target = features[parent[k + g]], factors[coordinate[k + g]], work[g]
            for n in range(rows):
                target[n] = left[n] * factor[n]
        b0, b1, b2 = work[0], work[1], work[2]
        t0, t1, t2 = start[k], start[k + 1], start[k + 2]
        for i in range(0, reach[k], 4):
            a0, a1, a2, a3 = features[i], features[i + 1], features[i + 2], features[i + 3]
            s00 = s01 = s02 = s10 = s11 = s12 = 0.0
            s20 = s21 = s22 = s30 = s31 = s32 = 0.0
            for n in range(rows):
                x0, x1, x2, x3 = a0[n], a1[n], a2[n], a3[n]
                y0, y1, y2 = b0[n], b1[n], b2[n]
                s00 += x0 * y0
                s01 += x0 * y1
                s02 += x0 * y2
                s10 += x1 * y0
                s11 += x1 * y1
                s12 += x1 * y2
                s20 += x2 * y0
                s21 += x2 * y1
                s22 += x2 * y2
                s30 += x3 * y0
                s31 += x3 * y1
                s32 += x3 * y2
            sums[t0 + i] += s00
            sums[t0 + i + 1] += s10
            sums[t0 + i + 2] += s20
            sums[t0 + i + 3] += s30
            sums[t1 + i] += s01
            sums[t1 + i + 1] += s11
            sums[t1 + i + 2] += s21
            sums[t1 + i + 3] += s31
            sums[t2 + i] += s02
            sums[t2 + i + 1] += s12
            sums[t2 + i + 2] += s22
            sums[t2 + i + 3] += s32
