"""Rows that come in pieces: chunks beside their weights, and blocks of an array on a device."""

from collections.abc import Iterable, Iterator
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.rows import rows_of_block

__all__ = ["DeviceChunks", "WeightedChunks", "is_device_array"]

Array = NDArray[Any]


def is_device_array(X: Any) -> bool:
    """Whether X is an array of a library such as CuPy or torch: neither numpy's nor Dask's."""
    return array_api_compat.is_array_api_obj(X) and not (
        array_api_compat.is_numpy_array(X)
        or array_api_compat.is_dask_array(X)
        or array_api_compat.is_pydata_sparse_array(X)
    )


class WeightedChunks:
    """Chunks of rows, each beside the weights of its rows.

    Parameters
    ----------
    chunks : iterable of 2-D chunks
        Rows.
    sample_weight : array_like of shape (N,) or iterable of 1-D arrays
        One weight for each row of all chunks together, or an array for each chunk.
    """

    def __init__(self, chunks: Iterable[Any], sample_weight: Any) -> None:
        self._chunks, self._weights = chunks, sample_weight
        self._apart = _is_apart(sample_weight)
        self.once = any(isinstance(part, Iterator) for part in (chunks, sample_weight))

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        """Read chunks and weights together."""
        return self._beside() if self._apart else self._in_turn()

    def _beside(self) -> Iterator[tuple[Any, Array]]:
        weights = iter(self._weights)
        for number, chunk in enumerate(self._chunks):
            if (part := next(weights, None)) is None:
                raise ShapeError(f"sample_weight has {number} arrays, but X has more chunks")
            yield chunk, _as_weights(part, f"sample_weight[{number}]")
        if next(weights, None) is not None:
            raise ShapeError("sample_weight has more arrays than X has chunks")

    def _in_turn(self) -> Iterator[tuple[Any, Array]]:
        weights, begin = _as_weights(self._weights, "sample_weight"), 0
        for chunk in self._chunks:
            end = begin + len(chunk)
            if end > len(weights):
                raise ShapeError(
                    f"sample_weight has {len(weights)} entries, but the chunks of X have more rows"
                )
            yield chunk, weights[begin:end]
            begin = end
        if begin < len(weights):
            raise ShapeError(
                f"sample_weight has {len(weights)} entries, but the chunks of X have {begin} rows"
            )


class DeviceChunks:
    """Blocks of an array on a device, copied to the host one at a time.

    Parameters
    ----------
    X : array of shape (N, d)
        Rows, an array of any library that follows the array API standard.
    """

    def __init__(self, X: Any) -> None:
        shape = tuple(X.shape)
        if len(shape) != 2:
            hint = "; use X.reshape(-1, 1) for one column" if len(shape) == 1 else ""
            raise ShapeError(f"X must have shape (N, d), got {shape}{hint}")
        if 0 in shape:
            raise ShapeError(f"X must have at least one row and one column, got shape {shape}")
        self._X, self.shape = X, shape

    def __iter__(self) -> Iterator[Array]:
        """Copy block by block."""
        size = rows_of_block(self.shape[1])
        for begin in range(0, self.shape[0], size):
            yield to_numpy(self._X[begin : min(begin + size, self.shape[0]), :])


def _is_apart(sample_weight: Any) -> bool:
    """Whether weights come as an array for each chunk."""
    if hasattr(sample_weight, "__array__") or hasattr(sample_weight, "shape"):
        return False
    if isinstance(sample_weight, (list, tuple)):
        return any(np.ndim(part) > 0 for part in sample_weight)
    return True


def _as_weights(values: Any, name: str) -> Array:
    try:
        w = np.asarray(to_numpy(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold real numbers, got {values!r} ({error})") from None
    if w.ndim != 1:
        raise ShapeError(f"{name} must be one-dimensional, got shape {w.shape}")
    return w
