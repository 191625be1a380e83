"""Compiled loops of `tensoralg.gpu.sampled_gradient`, imported on first use: numba is slow."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["copy_fibres"]


@numba.njit(cache=True, nogil=True)
def copy_fibres(
    flat: NDArray[Any], starts: NDArray[np.int64], step: int, out: NDArray[Any]
) -> None:
    """Copy fibres that start at `starts` and run in steps: to rows for step 1, else to columns."""
    if step == 1:
        length = out.shape[1]
        for s in range(len(starts)):
            out[s] = flat[starts[s] : starts[s] + length]
        return
    # neighbours of all fibres at once: their planes are close in memory
    for i in range(out.shape[0]):
        shift = i * step
        row = out[i]
        for s in range(len(starts)):
            row[s] = flat[starts[s] + shift]
