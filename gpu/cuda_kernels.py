"""Gathers on NVIDIA GPUs in numba.cuda: sampled gradients and sparse products.

numba.cuda has no Tensor Cores, so dense products do not belong here (`cupy_gemm`). These kernels
read scattered entries and use them at once, without the gathered copies that array libraries
make. All are compiled for one rank and dtype, on first use. They are checked in numba's
simulator and compiled for compute capability 9.0; their speed has not been measured.
"""

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import device_of, namespace_of

__all__ = ["cuda_sampled_gradient", "cuda_sparse_mttkrp"]

_LARGEST_RANK = 256
_THREADS = 64
_SHARED_BYTES = 2**15
_MOST_STAGED = 32  # fibres of one block
_RUN = 32  # nonzeros of one thread


def cuda_sampled_gradient(
    tensor: Any, factors: Sequence[Any], mode: int, others: Sequence[Any]
) -> Any:
    """Gradient of half the mean squared error over fibres, fused into one kernel.

    ``G = (A H^T - X_s) H / S`` as in `tensoralg.gpu.sampled_gradient`, where neither the fibres
    X_s nor the rows H are written to global memory.

    Parameters
    ----------
    tensor : device array, shape (n_1, ..., n_N)
        C-contiguous, float16, float32 or float64.
    factors : sequence of N device arrays, shapes (n_k, r)
        All float32 or all float64; products and sums are in this dtype. r <= 256.
    mode : int
        0 <= mode < N.
    others : sequence of N - 1 integer arrays, shape (S,)
        Indices of the fibres in the other modes, on the device.

    Returns
    -------
    device array, shape (n_mode, r)
        The order of its sums varies from call to call.

    Raises
    ------
    ImportError
        If numba.cuda cannot be loaded.
    TypeError
        Arrays that are not on a device, unless numba's simulator runs.
    ShapeError
        Shapes that do not fit together, or a rank beyond the kernel's.

    References
    ----------
    X. Fu, S. Ibrahim, H.-T. Wai, C. Gao and K. Huang, "Block-randomized stochastic proximal
    gradient for low-rank tensor factorization", arXiv 1901.05529.

    Examples
    --------
    >>> import cupy  # doctest: +SKIP
    >>> X, factors = cupy.ones((4, 5)), [cupy.ones((4, 1)), cupy.ones((5, 1))]  # doctest: +SKIP
    >>> cuda_sampled_gradient(X, factors, 0, [cupy.arange(5)]).max()  # doctest: +SKIP
    array(0.)
    """
    shape = tuple(int(n) for n in tensor.shape)
    rank = _checked_rank(shape, factors, mode, len(others))
    _require_device(tensor, *factors, *others)
    xp = namespace_of(tensor, *factors, *others)
    steps = [int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(len(shape))]
    step = steps.pop(mode)
    stacked, rows = _stacked_rows(xp, factors, mode, others)
    starts = xp.zeros(others[0].shape, dtype=xp.int64, device=device_of(tensor))
    for index, stride in zip(others, steps, strict=True):
        starts = starts + index * stride
    factor = factors[mode]
    out = xp.zeros((shape[mode], rank), dtype=factor.dtype, device=device_of(tensor))
    count = int(starts.shape[0])
    kernel = _jitted("gradient", rank, str(np.dtype(str(factor.dtype))))
    staged = _staged(rank, factor.dtype.itemsize)
    grid = (-(-shape[mode] // _THREADS), -(-count // staged))
    kernel[grid, _THREADS](xp.reshape(tensor, (-1,)), starts, step, stacked, rows, factor, out)
    return out / count


def cuda_sparse_mttkrp(coordinates: Any, values: Any, factors: Sequence[Any], mode: int) -> Any:
    """Multiply a sparse tensor by the columns of all factors but one, on the device.

    Parameters
    ----------
    coordinates : device array of int64, shape (N, nnz)
        One index per column. Lexicographic order makes the fewest atomic additions in the
        leading modes; any order is right.
    values : device array, shape (nnz,)
        float32 or float64.
    factors : sequence of N device arrays, shapes (n_k, r)
        Of the dtype of the values. ``factors[mode]`` gives its shape only. r <= 256.
    mode : int
        0 <= mode < N.

    Returns
    -------
    device array, shape (n_mode, r)
        The order of its sums varies from call to call.

    Raises
    ------
    ImportError
        If numba.cuda cannot be loaded.
    TypeError
        Arrays that are not on a device, unless numba's simulator runs.
    ShapeError
        Shapes that do not fit together, or a rank beyond the kernel's.

    Examples
    --------
    >>> import cupy  # doctest: +SKIP
    >>> where, values = cupy.asarray([[0, 1], [1, 0]]), cupy.asarray([2.0, 3.0])  # doctest: +SKIP
    >>> cuda_sparse_mttkrp(where, values, [cupy.ones((2, 1))] * 2, 0).get()  # doctest: +SKIP
    array([[2.], [3.]])
    """
    shape = tuple(int(factor.shape[0]) for factor in factors)
    rank = _checked_rank(shape, factors, mode, len(factors) - 1)
    if coordinates.ndim != 2 or coordinates.shape != (len(factors), values.shape[0]):
        raise ShapeError(
            f"coordinates must have shape ({len(factors)}, {values.shape[0]}), one column per "
            f"value; got {tuple(coordinates.shape)}"
        )
    _require_device(coordinates, values, *factors)
    xp = namespace_of(coordinates, values, *factors)
    others = [coordinates[k, :] for k in range(len(factors)) if k != mode]
    stacked, rows = _stacked_rows(xp, factors, mode, others)
    out = xp.zeros((shape[mode], rank), dtype=values.dtype, device=device_of(values))
    count = int(values.shape[0])
    if count == 0:
        return out
    kernel = _jitted("sparse", rank, str(np.dtype(str(values.dtype))))
    threads = -(-count // _RUN) * rank
    target = xp.asarray(coordinates[mode, :], copy=True)
    kernel[-(-threads // _THREADS), _THREADS](target, rows, values, stacked, out)
    return out


def _checked_rank(shape: Sequence[int], factors: Sequence[Any], mode: int, others: int) -> int:
    """Check the shapes and give the rank."""
    rank = int(factors[0].shape[1])
    found = [tuple(int(n) for n in factor.shape) for factor in factors]
    if len(shape) < 2 or found != [(n, rank) for n in shape]:
        raise ShapeError(
            f"factors: shapes {found} do not fit a tensor of shape {tuple(shape)}; accepted is "
            "one (dimension, rank) array per mode, two modes at least"
        )
    if not 0 <= mode < len(shape) or others != len(shape) - 1:
        raise ShapeError(
            f"mode {mode} and {others} index arrays do not fit a tensor of order {len(shape)}"
        )
    if not 1 <= rank <= _LARGEST_RANK:
        raise ShapeError(f"factors: the kernels take ranks 1 to {_LARGEST_RANK}; got {rank}")
    return rank


def _require_device(*arrays: Any) -> None:
    """Refuse host arrays, which numba would copy there and back without a word."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return
    for array in arrays:
        if not hasattr(array, "__cuda_array_interface__"):
            raise TypeError(
                f"arrays must be on the device (CuPy); got {type(array).__module__}."
                f"{type(array).__name__}"
            )


def _stacked_rows(
    xp: Any, factors: Sequence[Any], mode: int, others: Sequence[Any]
) -> tuple[Any, Any]:
    """All other factors under one another, and for every fibre or entry its row in each."""
    matrices = [factor for k, factor in enumerate(factors) if k != mode]
    offset, rows = 0, []
    for matrix, index in zip(matrices, others, strict=True):
        rows.append(xp.astype(index, xp.int64) + offset)
        offset += int(matrix.shape[0])
    return xp.concat(matrices, axis=0), xp.stack(rows, axis=0)


def _staged(rank: int, itemsize: int) -> int:
    """Fibres whose rows of H fit into the shared memory of a block."""
    return int(max(1, min(_MOST_STAGED, _SHARED_BYTES // (rank * itemsize))))


def _cuda() -> Any:
    """Load numba.cuda, whose import fails where its parts are missing."""
    try:
        return importlib.import_module("numba.cuda")
    except ImportError as error:
        raise ImportError(
            f"the kernels need numba.cuda, which cannot be loaded: {error}; on a machine with a "
            "GPU install numba-cuda with its CUDA bindings"
        ) from error


@functools.cache
def _jitted(name: str, rank: int, dtype: str) -> Any:
    """Make a kernel for one rank and dtype; it is compiled on its first launch."""
    cuda = _cuda()
    from tensoralg.gpu import cuda_loops

    staged = _staged(rank, np.dtype(dtype).itemsize)
    if name == "gradient":
        return cuda.jit(cuda_loops.gradient_kernel(rank, dtype, staged))
    return cuda.jit(cuda_loops.sparse_kernel(rank, dtype, _RUN))
