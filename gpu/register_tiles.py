"""Which compiled kernel takes a contraction, by its shape; on several threads if it is large.

Every function returns None where BLAS or einsum is the better engine, and the caller then uses
that. The kernels themselves are in `tensoralg.gpu.mttkrp_kernels`.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from tensoralg.gpu.mttkrp_kernels import contract_inner, contract_last, contract_sums
from tensoralg.gpu.vector_code import REGISTERS, VECTOR_BYTES

__all__ = ["contract_in_tiles", "sum_in_tiles"]

# rows of a tile, by the vectors that one row takes: the sums must fit the registers
_TILE_ROWS = {1: 8, 2: 6, 3: 6, 4: 5} if REGISTERS == 32 else {1: 8, 2: 5, 3: 4, 4: 2}
_SUM_ROWS = 4
# few sizes, so that few versions are compiled; a chunk fills the registers at most
_CHUNKS = (2, 4, 6, 8, 10, 12, 16, 20, 24) if REGISTERS == 32 else (2, 4, 6, 8, 10, 12)
# a factor that outgrows the second-level cache is BLAS's to pack
_FACTOR_BYTES = 2**20
# a strip of the tensor, the next one and the result share that cache
_STRIP_BYTES = 2**18
# a thread must have at least this many products to be worth its start
_PRODUCTS = 2**23


def contract_in_tiles(stack: Any, factor: Any) -> Any:
    """Sum a stack over its middle against a factor, or decline.

    Parameters
    ----------
    stack : numpy.ndarray, shape (left, size, right)
        C-contiguous, float32 or float64.
    factor : numpy.ndarray, shape (size, r)
        Same dtype.

    Returns
    -------
    numpy.ndarray, shape (left, right, r), or None
        None where no kernel is faster than BLAS.

    Examples
    --------
    >>> contract_in_tiles(np.ones((1, 4, 3)), np.ones((4, 2))) is None
    True
    """
    if stack.shape[2] == 1:
        return _contract_last(stack, factor)
    return _contract_inner(stack, factor)


def sum_in_tiles(stack: Any, factor: Any) -> Any:
    """Sum the products of a stack with a factor, column by column, or decline.

    Parameters
    ----------
    stack : numpy.ndarray, shape (left, size, right, r)
        C-contiguous, float32 or float64.
    factor : numpy.ndarray, shape (size, r)
        Same dtype.

    Returns
    -------
    numpy.ndarray, shape (left, right, r), or None
        None where there is less than one tile of rows.

    Examples
    --------
    >>> sum_in_tiles(np.ones((8, 4, 1, 2)), np.ones((4, 2)))[0, 0].tolist()
    [4.0, 4.0]
    """
    left, size, right, rank = stack.shape
    if (left if right == 1 else right) < _SUM_ROWS or size == 0:
        return None
    lanes = VECTOR_BYTES // stack.itemsize
    count = -(-rank // lanes)
    # every panel of ranks must have the same number of vectors
    vectors = max(v for v in (1, 2, 3, 4) if count % v == 0)
    out = np.empty((left, right, rank), dtype=stack.dtype)
    flat, target = _flat(stack), out.reshape(-1)
    factor = _flat(np.ascontiguousarray(factor))

    def work(begin: int, end: int) -> None:
        contract_sums(
            flat, factor, target, (begin, end), (size, right), rank, lanes,
            (0,) * _SUM_ROWS, (0,) * vectors,
        )  # fmt: skip

    _share(work, left, _SUM_ROWS if right == 1 else 1, stack.size)
    return out


def _contract_last(stack: Any, factor: Any) -> Any:
    """Rows times a factor: a few rows and all ranks at a time."""
    left, size, _ = stack.shape
    rank = factor.shape[1]
    lanes = VECTOR_BYTES // stack.itemsize
    vectors = -(-rank // lanes)
    if vectors > 4 or size * vectors * VECTOR_BYTES > _FACTOR_BYTES:
        return None
    rows = _TILE_ROWS[vectors]
    if left < rows:
        return None
    padded = np.zeros((size, vectors * lanes), dtype=stack.dtype)
    padded[:, :rank] = factor
    out = np.empty((left, 1, rank), dtype=stack.dtype)
    flat, flat_factor, target = _flat(stack), padded.reshape(-1), out.reshape(-1)

    def work(begin: int, end: int) -> None:
        contract_last(
            flat, flat_factor, target, begin, end, size, rank, (0,) * rows, (0,) * vectors
        )

    _share(work, left, rows, stack.size * rank)
    return out


def _contract_inner(stack: Any, factor: Any) -> Any:
    """Planes times a factor: one vector of columns and a chunk of ranks at a time."""
    left, size, right = stack.shape
    rank = factor.shape[1]
    lanes = VECTOR_BYTES // stack.itemsize
    chunks = -(-rank // _CHUNKS[-1])
    if right < lanes or chunks > 4 or size * rank * stack.itemsize > _FACTOR_BYTES:
        return None
    chunk = next(c for c in _CHUNKS if c * chunks >= rank)
    padded = np.zeros((chunks, size, chunk), dtype=stack.dtype)
    for c in range(chunks):
        part = factor[:, c * chunk : (c + 1) * chunk]
        padded[c, :, : part.shape[1]] = part
    out = np.empty((left, right, rank), dtype=stack.dtype)
    flat, flat_factor, target = _flat(stack), padded.reshape(-1), out.reshape(-1)
    strips = -(-size * right * stack.itemsize // _STRIP_BYTES)
    width = -(-right // (strips * lanes)) * lanes

    def planes(begin: int, end: int) -> None:
        contract_inner(
            flat, flat_factor, target, (begin, end), (0, right), (size, right), rank, lanes,
            width, (0,) * chunk,
        )  # fmt: skip

    def columns(begin: int, end: int) -> None:
        contract_inner(
            flat, flat_factor, target, (0, left), (begin, end), (size, right), rank, lanes,
            width, (0,) * chunk,
        )  # fmt: skip

    if left >= right:
        _share(planes, left, 1, stack.size * rank)
    else:
        _share(columns, right, lanes, stack.size * rank)
    return out


class _Memory:
    """The memory of an array under numpy's own protocol, with the flag of read-only data off."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.ctypes.data, False),
        }
        self.array = array


def _flat(array: Any) -> Any:
    """One-dimensional view; numba would compile its own versions for read-only arrays."""
    if type(array) is not np.ndarray or not array.flags.writeable:
        array = np.asarray(_Memory(array))
    return array.reshape(-1)


def _share(work: Callable[[int, int], None], total: int, least: int, products: int) -> None:
    """Run work(begin, end) over all of range(total), on several threads if it is large."""
    threads = min(total // least, products // _PRODUCTS)
    if threads > 1:
        threads = min(threads, thread_count())
    if threads <= 1:
        work(0, total)
        return
    # whole tiles for all but the last thread
    tiles = total // least
    cuts = [tiles * t // threads * least for t in range(threads)] + [total]
    jobs = [_pool().submit(work, *pair) for pair in pairwise(cuts[1:])]
    work(cuts[0], cuts[1])
    for job in jobs:
        job.result()


def thread_count() -> int:
    """Threads that a large contraction may use: OMP_NUM_THREADS, or the usable processors."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="tensoralg")


# threads do not survive a fork: the child starts its own
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
