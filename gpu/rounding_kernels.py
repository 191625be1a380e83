"""Compiled rounding of `tensoralg.gpu.precision`, imported on first use: numba is slow to load."""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["round_to_grid"]


@numba.njit(cache=True, nogil=True)
def round_to_grid(
    x: NDArray[np.floating],
    out: NDArray[np.float32],
    scale: float,
    dropped: int,
    smallest: float,
    finest: float,
    seed: int,
) -> None:
    """Write x to `out`, rounded to a binary format whose values are part of float32.

    The format keeps all but `dropped` bits of the float32 significand down to `smallest`, its
    least normal number; below, its values are the multiples of `finest`. x is multiplied by
    `scale`, a power of two, before, and divided by it after. Seed 0 rounds to nearest, ties to
    even; any other seed rounds up with the probability that keeps the mean.
    """
    kept = np.uint32(0xFFFFFFFF << dropped)
    half = np.uint32((1 << dropped) // 2)
    factor, back = np.float32(scale), np.float32(1.0 / scale)
    grid, ungrid = np.float32(finest), np.float32(1.0 / finest)
    floor = np.float32(smallest)
    bits = out.view(np.uint32)
    for i in range(x.size):
        value = np.float32(x[i]) * factor
        noise = np.uint32(0)
        if seed != 0:
            noise = _hash(np.uint32(i), np.uint32(i >> 32), np.uint32(seed))
        if np.abs(value) < floor:
            if seed == 0:
                out[i] = np.rint(value * ungrid) * grid * back
            else:
                # 24 bits: the float32 fraction is below 1
                part = np.float32(noise >> np.uint32(8)) * np.float32(2.0**-24)
                out[i] = np.floor(value * ungrid + part) * grid * back
            continue
        out[i] = value
        word = bits[i]
        if seed == 0:
            if dropped > 0:
                odd = (word >> np.uint32(dropped)) & np.uint32(1)
                word = np.uint32(word + (half - np.uint32(1)) + odd)
        else:
            word = np.uint32(word + (noise & ~kept))
        bits[i] = word & kept
        out[i] *= back


@numba.njit(inline="always")
def _hash(low: np.uint32, high: np.uint32, seed: np.uint32) -> np.uint32:
    """Mix a counter and a seed into 32 even bits (two rounds of a multiply-xorshift hash)."""
    # numba widens products of 32 bits to 64: the casts wrap them again
    word = np.uint32((low + seed * np.uint32(0x9E3779B9)) ^ (high * np.uint32(0x85EBCA6B)))
    word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    word = np.uint32((word ^ (word >> np.uint32(15)) ^ seed) * np.uint32(0x735A2D97))
    word = np.uint32((word ^ (word >> np.uint32(15))) * np.uint32(0x21F0AAAD))
    return np.uint32(word ^ (word >> np.uint32(16)))
