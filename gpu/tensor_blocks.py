"""Dense tensors that are larger than memory, read slab by slab along their first mode."""

import math
import mmap
from collections.abc import Iterator
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import as_float_array

__all__ = ["TensorBlocks", "as_blocks"]

_SLAB_BYTES = 2**26


class TensorBlocks:
    """One way to read arrays, memory-mapped files, Dask arrays and array-like stores.

    Parameters
    ----------
    source : object
        With `shape`, `dtype` and slices: numpy.ndarray, numpy.memmap, a Dask array, an HDF5 or
        zarr data set. Pages of a memory-mapped file are released once they are read, except for
        copy-on-write maps, whose changes live there only.
    exponent : int, default 0
        Everything that is read is multiplied by 2 to this power, which rounds nothing.

    Raises
    ------
    TypeError
        A source without shape, dtype or slices.
    ValueError
        Complex or another unsupported dtype.

    Examples
    --------
    >>> blocks = TensorBlocks(np.arange(6.0).reshape(3, 2))
    >>> [(start, stop, slab.tolist()) for start, stop, slab in blocks.slabs(2 * 8 * 2)]
    [(0, 2, [[0.0, 1.0], [2.0, 3.0]]), (2, 3, [[4.0, 5.0]])]
    """

    def __init__(self, source: Any, exponent: int = 0) -> None:
        if not all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__")):
            raise TypeError(
                "a tensor that is read slab by slab needs shape, dtype and slices; "
                f"got {type(source).__name__}"
            )
        self.source = source
        self.exponent = int(exponent)
        self.shape: tuple[int, ...] = tuple(int(n) for n in source.shape)
        # an empty array goes through the same promotion as the data
        self.dtype = as_float_array(np.empty(0, dtype=source.dtype), np, name="X").dtype

    def __repr__(self) -> str:
        return f"TensorBlocks(shape={self.shape}, dtype={self.dtype})"

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.shape)

    def scaled(self, exponent: int) -> "TensorBlocks":
        """Return the same tensor times a power of two.

        Parameters
        ----------
        exponent : int
            The power.

        Returns
        -------
        TensorBlocks
            Nothing is read.
        """
        return TensorBlocks(self.source, self.exponent + exponent)

    def slabs(self, max_bytes: int = _SLAB_BYTES) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Read the tensor once, from the first index of the first mode to the last.

        Parameters
        ----------
        max_bytes : int, default 64 MiB
            How large a slab may be, if one row is not larger already. Slabs of a Dask array end
            where its chunks do, where these are smaller.

        Yields
        ------
        start, stop : int
            Range in the first mode.
        slab : ndarray, shape (stop - start, n_2, ..., n_N)
            float32 or float64, C-contiguous, for reading only.
        """
        row_bytes = max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)
        for start, stop in self._ranges(max(1, max_bytes // row_bytes)):
            yield start, stop, self._read((slice(start, stop),))
            self._release()

    def _ranges(self, rows: int) -> Iterator[tuple[int, int]]:
        """Ranges of at most `rows` rows that respect the chunks of a Dask array."""
        sizes = [self.shape[0]]
        if array_api_compat.is_dask_array(self.source):
            sizes = [int(n) for n in self.source.chunks[0]]
        start = 0
        while sizes:
            size = sizes.pop(0)
            while sizes and size + sizes[0] <= rows:
                size += sizes.pop(0)
            for begin in range(start, start + size, rows):
                yield begin, min(begin + rows, start + size)
            start += size

    def _read(self, where: tuple[Any, ...]) -> NDArray[Any]:
        part = self.source[where]
        if array_api_compat.is_dask_array(part):
            part = part.compute()
        return self._finished(np.asarray(part))

    def _finished(self, part: NDArray[Any]) -> NDArray[Any]:
        """Bring what was read into floating point and multiply it; a map is copied out of."""
        plain = as_float_array(part, np, name="X")
        if self.exponent:
            plain = np.ldexp(plain, self.exponent)
        elif isinstance(self.source, np.memmap):
            plain = np.array(plain, copy=True)
        return np.ascontiguousarray(plain)

    def _release(self) -> None:
        """Let go of the pages of a shared memory-mapped file: they stay on disk."""
        mapped = getattr(self.source, "_mmap", None)
        advice = getattr(mmap, "MADV_DONTNEED", None)  # not on every system
        if mapped is not None and advice is not None and getattr(self.source, "mode", "c") != "c":
            mapped.madvise(advice)


def as_blocks(x: Any) -> TensorBlocks:
    """Wrap a tensor for reading slab by slab.

    Parameters
    ----------
    x : object
        What `TensorBlocks` takes, or one of them, which is returned as it is.

    Returns
    -------
    TensorBlocks
        Nothing is read.

    Raises
    ------
    TypeError
        A source without shape, dtype or slices.
    ValueError
        Complex or another unsupported dtype.

    Examples
    --------
    >>> as_blocks(np.zeros((2, 3), dtype=np.float32))
    TensorBlocks(shape=(2, 3), dtype=float32)
    """
    return x if isinstance(x, TensorBlocks) else TensorBlocks(x)
