"""Compiled sweeps of `tensoralg.gpu.moment_features`, imported on first use: numba is slow."""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["expand_features", "standardise_rows"]


@numba.njit(cache=True, nogil=True)
def standardise_rows(
    X: NDArray[np.float64],
    shift: NDArray[np.float64],
    inverse_scale: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Write (X - shift) * inverse_scale, transposed: X is (rows, d), out is (d, rows)."""
    rows, dimension = X.shape
    for j in range(dimension):
        origin, factor, target = shift[j], inverse_scale[j], out[j]
        for n in range(rows):
            target[n] = (X[n, j] - origin) * factor


@numba.njit(cache=True, nogil=True)
def expand_features(
    features: NDArray[np.float64],
    points: NDArray[np.float64],
    parent: NDArray[np.int64],
    coordinate: NDArray[np.int64],
    first: int,
) -> None:
    """Fill features[first:] in place: each is its parent times one coordinate of the points."""
    rows = features.shape[1]
    for k in range(first, features.shape[0]):
        left, right, target = features[parent[k]], points[coordinate[k]], features[k]
        for n in range(rows):
            target[n] = left[n] * right[n]
