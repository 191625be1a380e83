"""Products of a dense tensor with one factor: the two steps of every dense MTTKRP.

Nothing is unfolded: each product runs on a reshaped view of the tensor's own memory.
"""

import math
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of

__all__ = ["contract_mode", "contract_partial"]


def contract_mode(tensor: Any, factor: Any, mode: int, *, policy: Any = None) -> Any:
    """Multiply a tensor by every column of a factor along one mode.

    ``result[..., s] = sum_i tensor[..., i, ...] * factor[i, s]`` with i at position `mode`.

    Parameters
    ----------
    tensor : array, shape (n_0, ..., n_{N-1})
        float32 or float64, N >= 1; C or Fortran order is read where it lies, anything else
        is copied first.
    factor : array, shape (n_mode, r)
        Same namespace and dtype.
    mode : int
        The mode that is summed over, 0 <= mode < N.
    policy : PrecisionPolicy, optional
        Rounds both operands first; None computes in the operands' own precision.

    Returns
    -------
    array, shape (n_0, ..., n_{mode-1}, n_{mode+1}, ..., n_{N-1}, r)
        C-contiguous, in the dtype of the operands.

    Examples
    --------
    >>> contract_mode(np.arange(6.0).reshape(2, 3), np.ones((2, 1)), 0).tolist()
    [[3.0], [5.0], [7.0]]
    """
    xp = namespace_of(tensor, factor)
    shape = tuple(tensor.shape)
    left, size = math.prod(shape[:mode]), shape[mode]
    right = math.prod(shape[mode + 1 :])
    rank = factor.shape[1]
    rest = (*shape[:mode], *shape[mode + 1 :], rank)
    if right == 1:
        return xp.reshape(xp.matmul(xp.reshape(tensor, (left, size)), factor), rest)
    if left == 1:
        flat = xp.reshape(tensor, (size, right))
        return xp.reshape(xp.matmul(xp.matrix_transpose(flat), factor), rest)
    stack = xp.reshape(tensor, (left, size, right))
    return xp.reshape(xp.matmul(xp.matrix_transpose(stack), factor), rest)


def contract_partial(partial: Any, factor: Any, axis: int) -> Any:
    """Multiply by a factor, column by column, and sum over one axis.

    ``result[..., s] = sum_i partial[..., i, ..., s] * factor[i, s]`` with i at position `axis`.

    Parameters
    ----------
    partial : array, shape (m_0, ..., m_{k-1}, r)
        A result of `contract_mode` or of this function.
    factor : array, shape (m_axis, r)
        Same namespace and dtype.
    axis : int
        The axis that is summed over, 0 <= axis < k.

    Returns
    -------
    array, shape (m_0, ..., m_{axis-1}, m_{axis+1}, ..., m_{k-1}, r)
        C-contiguous, in the dtype of the operands.

    Examples
    --------
    >>> contract_partial(np.ones((2, 3, 1)), np.array([[1.0], [2.0]]), 0).tolist()
    [[3.0], [3.0], [3.0]]
    """
    xp = namespace_of(partial, factor)
    shape = tuple(partial.shape)
    left, size, rank = math.prod(shape[:axis]), shape[axis], shape[-1]
    right = math.prod(shape[axis + 1 : -1])
    rest = (*shape[:axis], *shape[axis + 1 :])
    stack = xp.reshape(partial, (left, size, right, rank))
    if isinstance(partial, np.ndarray):
        return np.einsum("lnqr,nr->lqr", stack, factor).reshape(rest)
    return xp.reshape(xp.sum(stack * factor[:, None, :], axis=1), rest)
