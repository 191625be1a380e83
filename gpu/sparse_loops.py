"""Compiled loops of `tensoralg.gpu.sparse_kernels`, imported on first use: numba is slow to load.

Entries come in lexicographic order, so the rows of the leading modes are read and written in
runs; every loop over a rank runs in vector registers.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["add_long_products", "add_products", "add_rows", "fill_model_entries"]

FloatArray = NDArray[Any]
IntArray = NDArray[np.int64]
_SUMS = {"reassoc", "contract", "nsz"}


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def add_rows(
    rows: IntArray, j: IntArray, values: FloatArray, B: FloatArray, out: FloatArray
) -> None:
    """Add values[n] * B[j[n]] to out[rows[n]]: a sparse matrix times a factor."""
    rank = B.shape[1]
    for n in range(len(values)):
        value, target, right = values[n], out[rows[n]], B[j[n]]
        for s in range(rank):
            target[s] += value * right[s]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def add_products(
    rows: IntArray,
    j: IntArray,
    k: IntArray,
    values: FloatArray,
    B: FloatArray,
    C: FloatArray,
    out: FloatArray,
) -> None:
    """Add values[n] * B[j[n]] * C[k[n]] to out[rows[n]]."""
    rank = B.shape[1]
    for n in range(len(values)):
        value, target, left, right = values[n], out[rows[n]], B[j[n]], C[k[n]]
        for s in range(rank):
            target[s] += value * left[s] * right[s]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def add_long_products(
    rows: IntArray,
    where: IntArray,
    values: FloatArray,
    factors: FloatArray,
    starts: IntArray,
    out: FloatArray,
) -> None:
    """Do the same for any number of factors, which stand under one another."""
    rank = factors.shape[1]
    product = np.empty(rank, dtype=factors.dtype)
    for n in range(len(values)):
        product[:] = values[n]
        for m in range(len(where)):
            row = factors[starts[m] + where[m, n]]
            for s in range(rank):
                product[s] *= row[s]
        target = out[rows[n]]
        for s in range(rank):
            target[s] += product[s]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def fill_model_entries(
    where: IntArray, factors: FloatArray, starts: IntArray, out: FloatArray
) -> None:
    """Write sum_s prod_m factors[starts[m] + where[m, n], s] to out[n]."""
    rank = factors.shape[1]
    product = np.empty(rank, dtype=factors.dtype)
    for n in range(len(out)):
        product[:] = 1.0
        for m in range(len(where)):
            row = factors[starts[m] + where[m, n]]
            for s in range(rank):
                product[s] *= row[s]
        total = 0.0
        for s in range(rank):
            total += product[s]
        out[n] = total
