"""Fake quantization on the CPU in one pass forward and one backward, compiled by numba.

Written out in PyTorch the same takes some twenty passes over memory, more than the products
of a tensor-train layer.
"""

from typing import Any

import numpy as np
from numba import njit

__all__ = ["round_to_grid", "round_to_grid_backward"]

_CHUNK = 2048  # a chunk's sum is taken in the data's own precision, those of chunks in double


@njit(cache=True, fastmath={"contract", "nsz"})
def round_to_grid(x: Any, scale: Any, low: Any, high: Any, out: Any) -> None:
    """Write ``scale * round(clip(x / scale, low, high))``.

    Parameters
    ----------
    x : ndarray of float32 or float64, shape (n,)
        NaN stays NaN.
    scale, low, high : scalars of the same dtype
        The grid.
    out : ndarray, shape (n,)
        Is written.
    """
    for i in range(x.size):
        step = x[i] / scale
        # in this order NaN fails both tests
        step = low if step < low else step
        step = high if step > high else step
        out[i] = np.rint(step) * scale


@njit(cache=True, fastmath={"contract", "nsz", "reassoc"})
def _sum(terms: Any, count: int) -> Any:
    """Sum the first entries in an order that depends on their number alone.

    A loop that also writes has two compiled forms, with and without vectors, and takes the one
    or the other by how far apart its arrays lie: with sums in it, runs would differ in last bits.
    """
    part = terms.dtype.type(0)
    for i in range(count):
        part += terms[i]
    return part


@njit(cache=True, fastmath={"contract", "nsz"})
def round_to_grid_backward(
    gradient: Any, x: Any, scale: Any, low: Any, high: Any, out: Any
) -> float:
    """Write the gradient to x and return that to the scale, without its balance.

    Parameters
    ----------
    gradient, x : ndarray of float32 or float64, shape (n,)
        Of the output; the input.
    scale, low, high : scalars of the same dtype
        The grid.
    out : ndarray, shape (n,)
        Is written: `gradient` where x / scale lies in the range, 0 elsewhere.

    Returns
    -------
    float
        Sum of `gradient` times ``round(x / scale) - x / scale`` inside, the bound outside. Its
        bits do not depend on where the arrays lie in memory.
    """
    total = 0.0
    zero = x.dtype.type(0)
    terms = np.empty(_CHUNK, x.dtype)
    for start in range(0, x.size, _CHUNK):
        stop = min(start + _CHUNK, x.size)
        for i in range(start, stop):
            step = x[i] / scale
            clipped = low if step < low else step
            clipped = high if clipped > high else clipped
            outside = clipped != step  # NaN too: nothing can be said there
            out[i] = zero if outside else gradient[i]
            terms[i - start] = gradient[i] * (clipped if outside else np.rint(step) - step)
        total += _sum(terms, stop - start)
    return total
