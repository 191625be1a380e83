"""True float64 residuals of polyadic models, block by block in little memory."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.sparse_kernels import model_entries

__all__ = [
    "balanced_split",
    "block_model",
    "block_size",
    "blocks",
    "model_squared_norm",
    "relative_residual",
    "squared_error",
    "squared_norm",
]

# entries of a block; on the host two float64 buffers of it stay in a core's cache
_HOST_BLOCK = 2**17
_DEVICE_BLOCK = 2**24


def relative_residual(tensor: Any, factors: Sequence[Any], *, mask: Any = None) -> float:
    """Norm of tensor - model over the norm of the tensor, accumulated in float64.

    The differences themselves are formed and squared, so that the result is right to about
    1e-16 where the expanded formula ``|X|^2 - 2 <X, model> + |model|^2`` loses half the digits.
    A sparse tensor is the exception: its zeros are not visited, the sum over the stored entries
    is completed by the norm of the model, and residuals below about 1e-8 are not resolved.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or SparseTensor or TensorBlocks
        float32 or float64, any order N >= 1, any namespace.
    factors : sequence of N arrays, shapes (n_k, r)
        The model is ``sum_s prod_k factors[k][i_k, s]``.
    mask : bool array of the tensor's shape, optional
        True: observed. Other cells are left out whatever they hold, NaN included.

    Returns
    -------
    float
        0 where both norms vanish, infinity where only the tensor's does.

    Raises
    ------
    ValueError
        If a mask is given with a sparse tensor.

    Examples
    --------
    >>> import numpy as np
    >>> ones = [np.ones((n, 1)) for n in (2, 3, 4)]
    >>> relative_residual(np.full((2, 3, 4), 1.25), ones)
    0.2
    """
    error, norm = _squares(tensor, factors, mask, True)
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return math.sqrt(error / norm)


def squared_error(tensor: Any, factors: Sequence[Any]) -> float:
    """Squared norm of tensor - model, as `relative_residual` has it.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or SparseTensor or TensorBlocks
        float32 or float64.
    factors : sequence of N arrays, shapes (n_k, r)
        Of the model.

    Returns
    -------
    float
        In float64; cheaper than the ratio where the norm is known.

    Examples
    --------
    >>> import numpy as np
    >>> squared_error(np.full((2, 3), 3.0), [np.ones((2, 1)), np.ones((3, 1))])
    24.0
    """
    return _squares(tensor, factors, None, False)[0]


def squared_norm(tensor: Any, *, mask: Any = None) -> float:
    """Sum of squares, in float64 and in little memory.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or SparseTensor or TensorBlocks
        float32 or float64.
    mask : bool array of the tensor's shape, optional
        True: observed. Other cells are left out whatever they hold.

    Returns
    -------
    float
        Over the observed cells.

    Examples
    --------
    >>> import numpy as np
    >>> squared_norm(np.full((2, 3), 2.0, dtype=np.float32))
    24.0
    """
    if hasattr(tensor, "coordinates"):
        values = np.asarray(tensor.values, dtype=np.float64)
        return float(values @ values)
    if hasattr(tensor, "slabs"):
        parts = [
            squared_norm(slab, mask=None if mask is None else mask[start:stop])
            for start, stop, slab in tensor.slabs(_HOST_BLOCK * 64)
        ]
        return math.fsum(parts)
    xp = namespace_of(tensor)
    tensor, _, mask = _in_memory_order(tensor, (), mask)
    totals = []
    for block, _, observed in blocks(tensor, (), mask, block_size(xp)):
        values = _flat_float64(xp, block, observed)
        totals.append(xp.sum(values * values) if xp is not _NUMPY else values @ values)
    return math.fsum(float(total) for total in totals)


def model_squared_norm(factors: Sequence[Any]) -> float:
    """Squared norm of a polyadic model from the Gram matrices of its factors, in float64.

    Parameters
    ----------
    factors : sequence of N arrays, shapes (n_k, r)
        float32 or float64.

    Returns
    -------
    float
        Never negative.

    Examples
    --------
    >>> import numpy as np
    >>> model_squared_norm([np.ones((2, 1)), np.ones((3, 1))])
    6.0
    """
    xp = namespace_of(*factors)
    product: Any = None
    for factor in factors:
        wide = xp.astype(factor, xp.float64, copy=False)
        gram = xp.matmul(wide.T, wide)
        product = gram if product is None else product * gram
    return max(float(xp.sum(product)), 0.0)


_NUMPY = namespace_of()


def _in_memory_order(tensor: Any, factors: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Reverse the modes of a host array whose first index runs fastest in memory."""
    if isinstance(tensor, np.ndarray) and tensor.flags.f_contiguous and tensor.ndim > 1:
        return tensor.T, factors[::-1], None if mask is None else mask.T
    return tensor, factors, mask


def block_size(xp: Any) -> int:
    """Entries that are worked on at a time."""
    return _HOST_BLOCK if xp is _NUMPY else _DEVICE_BLOCK


def blocks(
    tensor: Any, factors: Sequence[Any], mask: Any, limit: int
) -> Iterator[tuple[Any, Sequence[Any], Any]]:
    """Cut a tensor along its first modes into blocks, with the factors that model each.

    A block that is one index of its first mode loses that mode: the row of the first factor is
    multiplied into the second. Without factors the blocks alone are cut.
    """
    size = math.prod(tensor.shape)
    if size <= limit or tensor.ndim == 1:
        if size:
            yield tensor, factors, mask
        return
    row = size // tensor.shape[0]
    step = max(1, limit // row)
    for start in range(0, tensor.shape[0], step):
        stop = min(start + step, tensor.shape[0])
        if row <= limit:
            part = [factors[0][start:stop, :], *factors[1:]] if factors else ()
            yield tensor[start:stop, ...], part, None if mask is None else mask[start:stop, ...]
        else:
            rest = [factors[1] * factors[0][start, :], *factors[2:]] if factors else ()
            yield from blocks(
                tensor[start, ...], rest, None if mask is None else mask[start, ...], limit
            )


def _flat_float64(xp: Any, block: Any, observed: Any) -> Any:
    """Entries of a block in one axis; unobserved ones are zero."""
    values = xp.reshape(xp.astype(block, xp.float64, copy=False), (-1,))
    if observed is None:
        return values
    return xp.where(xp.reshape(observed, (-1,)), values, xp.zeros_like(values))


def balanced_split(shape: Sequence[int]) -> int:
    """Where to cut the modes in two groups that have the fewest cells together.

    Parameters
    ----------
    shape : sequence of N int
        N >= 2.

    Returns
    -------
    int
        Number of modes in the first group, 1 to N - 1.

    Examples
    --------
    >>> balanced_split((2, 3, 4, 5)), balanced_split((40, 3, 4))
    (2, 1)
    """
    sizes = [math.prod(shape[:k]) + math.prod(shape[k:]) for k in range(1, len(shape))]
    return 1 + sizes.index(min(sizes))


def block_model(factors: Sequence[Any]) -> Any:
    """Entries of the model, as a matrix whose flattening is that of the block."""
    if len(factors) == 1:
        xp = namespace_of(factors[0])
        return xp.sum(factors[0], axis=1)
    cut = balanced_split([factor.shape[0] for factor in factors])
    return khatri_rao(factors[:cut]) @ khatri_rao(factors[cut:]).T


def _squares(
    tensor: Any, factors: Sequence[Any], mask: Any, with_norm: bool
) -> tuple[float, float]:
    """Squares of the norms of tensor - model and, if wanted, of the tensor."""
    if hasattr(tensor, "coordinates"):
        if mask is not None:
            raise ValueError("mask: not accepted with a sparse tensor, whose zeros are observed")
        return _sparse_squares(tensor, factors)
    if hasattr(tensor, "slabs"):
        return _slab_squares(tensor, factors, mask, with_norm)
    return _dense_squares(tensor, factors, mask, with_norm)


def _dense_squares(
    tensor: Any, factors: Sequence[Any], mask: Any, with_norm: bool
) -> tuple[float, float]:
    """Do it for an array, over its observed cells."""
    xp = namespace_of(tensor, *factors)
    wide = [xp.astype(factor, xp.float64, copy=False) for factor in factors]
    tensor, wide, mask = _in_memory_order(tensor, wide, mask)
    errors, norms = [], []
    for block, part, observed in blocks(tensor, wide, mask, block_size(xp)):
        model = xp.reshape(block_model(part), (-1,))
        if isinstance(model, np.ndarray) and observed is None and not with_norm:
            np.subtract(model, block.reshape(-1), out=model)
            errors.append(model @ model)
            continue
        values = _flat_float64(xp, block, observed)
        if observed is not None:
            model = xp.where(xp.reshape(observed, (-1,)), model, xp.zeros_like(model))
        if isinstance(model, np.ndarray):
            model -= values
            errors.append(model @ model)
            norms.append(values @ values)
        else:
            errors.append(xp.sum((values - model) ** 2))
            norms.append(xp.sum(values * values))
    return math.fsum(map(float, errors)), math.fsum(map(float, norms))


def _slab_squares(
    tensor: Any, factors: Sequence[Any], mask: Any, with_norm: bool
) -> tuple[float, float]:
    """Do the same for a tensor that is read by slabs of its first mode."""
    errors, norms = [], []
    for start, stop, slab in tensor.slabs(_HOST_BLOCK * 64):
        part = [factors[0][start:stop, :], *factors[1:]]
        observed = None if mask is None else mask[start:stop]
        error, norm = _dense_squares(slab, part, observed, with_norm)
        errors.append(error)
        norms.append(norm)
    return math.fsum(errors), math.fsum(norms)


def _sparse_squares(tensor: Any, factors: Sequence[Any]) -> tuple[float, float]:
    """Do the same from the stored entries; the model's norm stands for the cells that are zero."""
    values = np.asarray(tensor.values, dtype=np.float64)
    # (x - m)^2 - m^2
    difference = float(values @ (values - 2.0 * model_entries(tensor.coordinates, factors)))
    return max(difference + model_squared_norm(factors), 0.0), float(values @ values)
