"""The border of polyadic decomposition: what a tensor, a mask and a rank may be."""

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of
from tensoralg.gpu.sparse_tensor import SparseTensor, as_sparse_tensor, is_sparse
from tensoralg.gpu.tensor_blocks import TensorBlocks, as_blocks
from tensoralg.solvers.polyadic_residual import block_size, blocks

__all__ = ["PreparedTensor", "prepare_tensor"]

# memory-mapped files up to this size are simply read
_RESIDENT_BYTES = 2**28
# magnitudes within these powers of two keep all squares and products far from the limits
_MODERATE = 16


@dataclass(frozen=True, slots=True, eq=False)
class PreparedTensor:
    """A tensor that the solvers take as it is.

    Attributes
    ----------
    data : array, SparseTensor or TensorBlocks, of shape `shape`
        Of largest magnitude about 1 where observed; other cells hold anything, NaN included.
    mask : bool array of that shape, or None
        True: observed. None where every cell is.
    exponent : int
        The given tensor is ``2**exponent`` times the data.
    dtype : str
        "float32" or "float64": what the result is returned in.
    is_zero : bool
        Whether every observed entry is zero.
    """

    data: Any
    mask: Any
    exponent: int
    dtype: str
    is_zero: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(int(n) for n in self.data.shape)

    @property
    def order(self) -> int:
        """Number of modes."""
        return len(self.shape)

    @property
    def is_sparse(self) -> bool:
        """Whether only the nonzero entries are stored."""
        return isinstance(self.data, SparseTensor)

    @property
    def is_streamed(self) -> bool:
        """Whether the tensor is read slab by slab."""
        return isinstance(self.data, TensorBlocks)


def prepare_tensor(X: Any, mask: Any = None, *, name: str = "X") -> PreparedTensor:
    """Check a tensor and its mask, and scale the tensor by a power of two.

    Parameters
    ----------
    X : array_like of shape (n_1, ..., n_N), N >= 1
        A dense array of any array library, a list, a numpy.memmap, a Dask array, a pydata
        sparse.COO, a scipy sparse matrix, or one of the types of `tensoralg.gpu`.
    mask : bool array_like of that shape, optional
        True: observed. The other cells may hold anything.
    name : str, default "X"
        The tensor's name in the messages.

    Returns
    -------
    PreparedTensor
        No copy is made of a dense float array of moderate magnitude.

    Raises
    ------
    ShapeError
        A single number, an empty mode, or a mask of another shape.
    TypeError
        A mask that is not boolean, or arrays of different libraries.
    ValueError
        Complex or another unsupported dtype, a NaN or infinite observed entry (its index named),
        a mask that is False everywhere, or a mask with sparse or streamed tensors.

    Examples
    --------
    >>> prepare_tensor([[1, 2], [3, 4]]).dtype
    'float64'
    """
    if is_sparse(X):
        return _prepare_sparse(X, mask, name)
    if _is_streamed(X):
        return _prepare_blocks(X, mask, name)
    xp = namespace_of(X)
    tensor = as_float_array(X, xp, name=name)
    _check_shape(tuple(tensor.shape), name)
    dtype = "float32" if tensor.dtype == xp.float32 else "float64"
    observed = _read_mask(mask, tensor, xp)
    if observed is not None and bool(xp.all(observed)):
        observed = None
    magnitude = _largest_magnitude(tensor, xp, observed)
    if not math.isfinite(magnitude):
        bad = ~xp.isfinite(tensor)
        bad = bad if observed is None else bad & observed
        _raise_not_finite(tensor, bad, xp, name, masked=mask is not None)
    exponent = _exponent(magnitude)
    if exponent:
        if observed is not None:  # other cells could overflow
            tensor = xp.where(observed, tensor, xp.zeros_like(tensor[..., :1]))
        tensor = _scaled(tensor, -exponent)
    return PreparedTensor(tensor, observed, exponent, dtype, magnitude == 0.0)


def _is_streamed(X: Any) -> bool:
    """Whether a tensor stays where it is and is read slab by slab."""
    if isinstance(X, TensorBlocks) or array_api_compat.is_dask_array(X):
        return True
    return isinstance(X, np.memmap) and X.nbytes > _RESIDENT_BYTES


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    if not shape:
        raise ShapeError(f"{name} must have at least one mode; got a single number")
    if 0 in shape:
        raise ShapeError(f"{name} must have no empty mode; got shape {shape}")


def _prepare_sparse(X: Any, mask: Any, name: str) -> PreparedTensor:
    if mask is not None:
        raise ValueError(
            f"mask is not supported for a sparse {name}: its zeros count as observed; "
            f"pass a dense array, or mask=None"
        )
    tensor = as_sparse_tensor(X, name=name)
    _check_shape(tensor.shape, name)
    dtype = str(tensor.values.dtype)
    magnitude = float(np.abs(tensor.values).max(initial=0.0))
    exponent = _exponent(magnitude)
    if exponent:
        tensor = SparseTensor(tensor.coordinates, _scaled(tensor.values, -exponent), tensor.shape)
    return PreparedTensor(tensor, None, exponent, dtype, magnitude == 0.0)


def _prepare_blocks(X: Any, mask: Any, name: str) -> PreparedTensor:
    if mask is not None:
        raise ValueError(
            f"mask is not supported for a {name} that is read slab by slab; "
            "pass an array in memory, or mask=None"
        )
    if array_api_compat.is_dask_array(X):
        _check_dask(X, name)
    blocks = as_blocks(X)
    _check_shape(tuple(blocks.shape), name)
    magnitude = 0.0
    for start, _, slab in blocks.slabs():
        largest = _largest_magnitude(slab, np)
        if not math.isfinite(largest):
            first = np.argwhere(~np.isfinite(slab))[0]
            index = (int(first[0]) + start, *(int(i) for i in first[1:]))
            raise ValueError(f"{name} must be finite; got {slab[tuple(first)]} at index {index}")
        magnitude = max(magnitude, largest)
    exponent = _exponent(magnitude)
    if exponent:
        blocks = blocks.scaled(-exponent)
    return PreparedTensor(blocks, None, exponent, str(blocks.dtype), magnitude == 0.0)


def _check_dask(X: Any, name: str) -> None:
    """Refuse Dask arrays of unknown shape, and chunks that are masked or no arrays."""
    if any(n != n for n in X.shape):
        raise ShapeError(
            f"{name} is a Dask array with chunks of unknown sizes; call its compute_chunk_sizes()"
        )
    if type(X._meta) is not np.ndarray:
        raise TypeError(
            f"{name} is a Dask array with chunks of type {type(X._meta).__name__}; accepted are "
            "chunks that are numpy arrays"
        )


def _read_mask(mask: Any, tensor: Any, xp: Any) -> Any:
    """Check a mask against its tensor; None stays None."""
    if mask is None:
        return None
    if isinstance(mask, np.ma.MaskedArray):
        raise TypeError("mask must be a plain boolean array; got a masked array")
    if isinstance(mask, bool | list | tuple):
        mask = np.asarray(mask)
    if not hasattr(mask, "dtype") or not hasattr(mask, "shape"):
        raise TypeError(f"mask must be a boolean array; got {type(mask).__name__}")
    namespace_of(tensor, mask)
    if mask.dtype != xp.bool:
        raise TypeError(f"mask must be boolean (True: observed); got dtype {mask.dtype}")
    if tuple(mask.shape) != tuple(tensor.shape):
        raise ShapeError(
            f"mask must have the tensor's shape {tuple(tensor.shape)}; got {tuple(mask.shape)}"
        )
    if device_of(mask) != device_of(tensor):
        raise TypeError("mask is on another device than the tensor; move it first")
    if not bool(xp.any(mask)):
        raise ValueError("mask is False everywhere: no entry is observed")
    return mask


def _largest_magnitude(tensor: Any, xp: Any, observed: Any = None) -> float:
    """Maximum of the observed absolute values in little memory; NaN stays."""
    if 0 in tensor.shape:
        return 0.0
    if observed is not None:
        parts = [
            _largest_magnitude(xp.where(known, block, xp.zeros_like(block)), xp)
            for block, _, known in blocks(tensor, (), observed, block_size(xp))
        ]
        return math.nan if any(map(math.isnan, parts)) else max(parts)
    low, high = float(xp.min(tensor)), float(xp.max(tensor))
    return math.nan if math.isnan(low) or math.isnan(high) else max(-low, high)


def _raise_not_finite(tensor: Any, bad: Any, xp: Any, name: str, *, masked: bool) -> None:
    """Name the first entry that is NaN or infinite."""
    shape = tuple(int(n) for n in tensor.shape)
    position = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.int8)))
    index = tuple(int(i) for i in np.unravel_index(position, shape))
    value = float(xp.reshape(tensor, (-1,))[position])
    advice = "its mask says that it is observed" if masked else "pass a mask that is False there"
    raise ValueError(f"{name} must be finite; got {value} at index {index}; {advice}")


def _exponent(magnitude: float) -> int:
    """Power of two that brings a magnitude to about 1; 0 where it is moderate already."""
    if magnitude == 0.0:
        return 0
    exponent = math.frexp(magnitude)[1]
    return 0 if abs(exponent) <= _MODERATE else exponent


def _scaled(tensor: Any, exponent: int) -> Any:
    """Multiply by a power of two, which rounds nothing; in two steps, as one may overflow."""
    half = exponent // 2
    scaled = tensor * 2.0**half
    scaled *= 2.0 ** (exponent - half)  # one copy, not two
    return scaled
