"""Products with sparse tensors: MTTKRP and model entries, without the dense tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.sparse_tensor import SparseTensor

__all__ = ["model_entries", "sparse_mttkrp"]


def sparse_mttkrp(tensor: SparseTensor, factors: Sequence[Any], mode: int) -> NDArray[Any]:
    """Multiply a sparse tensor by the columns of all factors but one.

    Parameters
    ----------
    tensor : SparseTensor, shape (n_1, ..., n_N)
        Only its stored entries are visited.
    factors : sequence of N arrays, shapes (n_k, r)
        float32 or float64; ``factors[mode]`` is not read.
    mode : int
        0 <= mode < N.

    Returns
    -------
    ndarray, shape (n_mode, r)
        In the wider of the dtypes of the values and the factors, and summed in it.

    Examples
    --------
    >>> S = SparseTensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    >>> sparse_mttkrp(S, [np.ones((2, 1)), np.array([[10.0], [1.0]])], 0).tolist()
    [[2.0], [30.0]]
    """
    others = [k for k in range(tensor.ndim) if k != mode]
    matrices = [np.ascontiguousarray(factors[k]) for k in others]
    dtype = np.result_type(tensor.values, *matrices)
    rank = np.asarray(factors[0]).shape[1]
    out = np.zeros((tensor.shape[mode], rank), dtype=dtype)
    if tensor.values.size == 0 or rank == 0:
        return out
    if not others:
        out[tensor.coordinates[0]] = tensor.values[:, None]
        return out
    from tensoralg.gpu import sparse_loops  # numba is slow to load

    matrices = [matrix.astype(dtype, copy=False) for matrix in matrices]
    values = tensor.values.astype(dtype, copy=False)
    rows = tensor.coordinates[mode]
    where = [tensor.coordinates[k] for k in others]
    if len(others) == 1:
        sparse_loops.add_rows(rows, where[0], values, matrices[0], out)
    elif len(others) == 2:
        sparse_loops.add_products(rows, where[0], where[1], values, matrices[0], matrices[1], out)
    else:
        stacked, starts = _stacked(matrices)
        sparse_loops.add_long_products(rows, np.stack(where), values, stacked, starts, out)
    return out


def model_entries(coordinates: NDArray[np.int64], factors: Sequence[Any]) -> NDArray[np.float64]:
    """Entries of a polyadic model at given places.

    Parameters
    ----------
    coordinates : ndarray of int64, shape (N, count)
        One index per column.
    factors : sequence of N arrays, shapes (n_k, r)
        The model is ``sum_s prod_k factors[k][i_k, s]``.

    Returns
    -------
    ndarray of float64, shape (count,)
        Summed in float64.

    Examples
    --------
    >>> model_entries(np.array([[1], [0]]), [np.array([[1.0], [2.0]]), np.array([[3.0]])]).tolist()
    [6.0]
    """
    matrices = [np.asarray(factor, dtype=np.float64) for factor in factors]
    out = np.zeros(coordinates.shape[1])
    if out.size and matrices[0].shape[1]:
        from tensoralg.gpu import sparse_loops

        stacked, starts = _stacked(matrices)
        sparse_loops.fill_model_entries(np.ascontiguousarray(coordinates), stacked, starts, out)
    return out


def _stacked(matrices: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All factors under one another, and where each starts."""
    heights = [len(matrix) for matrix in matrices]
    starts = np.concatenate([[0], np.cumsum(heights)[:-1]]).astype(np.int64)
    return np.ascontiguousarray(np.concatenate(matrices)), starts
