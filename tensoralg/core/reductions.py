"""Weighted sums over the entries of tensors, in double precision."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.index_maps import dense_values, listed_multiplicities
from tensoralg.core.indices import number_of_multi_indices

__all__ = ["average_over_orders", "weighted_norm"]


def weighted_norm(values: npt.NDArray[Any], weights: npt.NDArray[Any]) -> float:
    """Return sqrt(sum(weights * |values|**2)) without overflow of the squares.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Real or complex.
    weights : ndarray, shape (N,)
        Nonnegative.

    Returns
    -------
    float
        In double precision; 0 for no values, infinite or NaN where a value is.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_norm(np.array([3.0, 4.0]), np.array([1, 1]))
    5.0
    """
    magnitudes = np.abs(values).astype(np.float64)
    largest = float(magnitudes.max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return largest
    scaled = magnitudes / largest
    return largest * float(np.sqrt(np.dot(scaled * scaled, weights.astype(np.float64))))


def average_over_orders(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Average a dense array over all orders of its indices.

    Parameters
    ----------
    values : ndarray, shape (n,) * m
        Real or complex.

    Returns
    -------
    ndarray of float64 or complex128, shape (C(n+m-1, m),)
        The mean for each sorted multi-index: the entries of the nearest symmetric tensor.

    Examples
    --------
    >>> import numpy as np
    >>> average_over_orders(np.array([[1.0, 2.0], [4.0, 5.0]])).tolist()
    [1.0, 3.0, 5.0]
    """
    m, n = values.ndim, values.shape[0]
    count = number_of_multi_indices(n, m)
    positions = dense_values(np.arange(count), n, m).ravel()
    flat = values.ravel()
    sums: npt.NDArray[Any] = np.bincount(positions, weights=flat.real, minlength=count)
    if flat.dtype.kind == "c":
        sums = sums + 1j * np.bincount(positions, weights=flat.imag, minlength=count)
    result: npt.NDArray[Any] = sums / listed_multiplicities(n, m)
    return result
