"""Products of a dense tensor with one factor: the two steps of every dense MTTKRP.

Nothing is unfolded: each product runs on a reshaped view of the tensor's own memory.
"""

import math
from typing import Any

import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import PrecisionPolicy, largest_magnitude, round_operand

__all__ = ["contract_mode", "contract_partial"]

# below this many products the compiled kernels are not worth the import of numba
_FEW_PRODUCTS = 2**19
_FEW_SUMS = 2**14
_ROUNDED_BLOCKS = 8


def contract_mode(
    tensor: Any,
    factor: Any,
    mode: int,
    *,
    policy: PrecisionPolicy | None = None,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Multiply a tensor by every column of a factor along one mode.

    ``result[..., s] = sum_i tensor[..., i, ...] * factor[i, s]`` with i at position `mode`.

    Parameters
    ----------
    tensor : array, shape (n_0, ..., n_{N-1})
        float32 or float64, N >= 1. Read where it lies if its memory is in C order; other numpy
        layouts are copied first.
    factor : array, shape (n_mode, r)
        Same namespace; numpy factors are brought to the tensor's dtype.
    mode : int
        The mode that is summed over, 0 <= mode < N.
    policy : PrecisionPolicy, optional
        Rounds both operands first, block by block; None computes in the tensor's precision.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (n_0, ..., n_{mode-1}, n_{mode+1}, ..., n_{N-1}, r)
        C-contiguous, in the dtype of the tensor (with a policy: float32, or float64 for the
        policy "float64").

    Raises
    ------
    ShapeError
        If the factor does not fit the mode.

    Examples
    --------
    >>> contract_mode(np.arange(6.0).reshape(2, 3), np.ones((2, 1)), 0).tolist()
    [[3.0], [5.0], [7.0]]
    """
    shape = tuple(tensor.shape)
    if factor.ndim != 2 or factor.shape[0] != shape[mode]:
        raise ShapeError(
            f"factor: mode {mode} of the tensor has size {shape[mode]}, so its factor must have "
            f"shape ({shape[mode]}, r); got {tuple(factor.shape)}"
        )
    left, size, right = math.prod(shape[:mode]), shape[mode], math.prod(shape[mode + 1 :])
    rest = (*shape[:mode], *shape[mode + 1 :], factor.shape[1])
    if not (isinstance(tensor, np.ndarray) and isinstance(factor, np.ndarray)):
        from tensoralg.gpu.cupy_gemm import contract_stack

        xp = namespace_of(tensor, factor)
        stack = xp.reshape(tensor, (left, size, right))
        return xp.reshape(contract_stack(stack, factor, policy, rng), rest)
    stack = np.ascontiguousarray(tensor).reshape(left, size, right)
    if policy is None:
        return _contract(stack, factor.astype(tensor.dtype, copy=False)).reshape(rest)
    return _contract_rounded(stack, factor, policy, rng).reshape(rest)


def contract_partial(partial: Any, factor: Any, axis: int) -> Any:
    """Multiply by a factor, column by column, and sum over one axis.

    ``result[..., s] = sum_i partial[..., i, ..., s] * factor[i, s]`` with i at position `axis`.

    Parameters
    ----------
    partial : array, shape (m_0, ..., m_{k-1}, r)
        A result of `contract_mode` or of this function.
    factor : array, shape (m_axis, r)
        Same namespace; numpy factors are brought to the dtype of `partial`.
    axis : int
        The axis that is summed over, 0 <= axis < k.

    Returns
    -------
    array, shape (m_0, ..., m_{axis-1}, m_{axis+1}, ..., m_{k-1}, r)
        C-contiguous, in the dtype of `partial`.

    Raises
    ------
    ShapeError
        If the factor does not fit the axis.

    Examples
    --------
    >>> contract_partial(np.ones((2, 3, 1)), np.array([[1.0], [2.0]]), 0).tolist()
    [[3.0], [3.0], [3.0]]
    """
    shape = tuple(partial.shape)
    if tuple(factor.shape) != (shape[axis], shape[-1]):
        raise ShapeError(
            f"factor: axis {axis} of the partial product needs shape {(shape[axis], shape[-1])}; "
            f"got {tuple(factor.shape)}"
        )
    left, size, rank = math.prod(shape[:axis]), shape[axis], shape[-1]
    right = math.prod(shape[axis + 1 : -1])
    rest = (*shape[:axis], *shape[axis + 1 :])
    if not (isinstance(partial, np.ndarray) and isinstance(factor, np.ndarray)):
        xp = namespace_of(partial, factor)
        stack = xp.reshape(partial, (left, size, right, rank))
        return xp.reshape(xp.sum(stack * factor[:, None, :], axis=1), rest)
    stack = np.ascontiguousarray(partial).reshape(left, size, right, rank)
    return _sum_products(stack, factor.astype(partial.dtype, copy=False)).reshape(rest)


def _contract(stack: Any, factor: Any) -> Any:
    """Sum a numpy stack (left, size, right) times a factor over its middle axis."""
    left, size, right = stack.shape
    if stack.size * factor.shape[1] >= _FEW_PRODUCTS:
        from tensoralg.gpu.register_tiles import contract_in_tiles

        product = contract_in_tiles(stack, factor)
        if product is not None:
            return product
    if right == 1:
        return stack.reshape(left, size) @ factor
    return np.matmul(stack.transpose(0, 2, 1), factor)


def _contract_rounded(stack: Any, factor: Any, policy: PrecisionPolicy, rng: Any) -> Any:
    """Contract rounded operands; the rounded copy of the tensor is a block at a time."""
    left, _, right = stack.shape
    rng = np.random.default_rng(rng)
    wanted = np.float64 if policy.multiply == "float64" else np.float32
    factor = round_operand(factor, policy, rng=rng, axis=0)
    out = np.empty((left, right, factor.shape[1]), dtype=wanted)
    # one scale for all blocks
    largest = largest_magnitude(stack) if policy.scaling == "tensor" else None
    total = max(left, right)
    step = -(-total // _ROUNDED_BLOCKS)
    for start in range(0, total, step):
        part = slice(start, start + step)
        block = stack[part] if left >= right else stack[:, :, part]
        rounded = round_operand(block, policy, rng=rng, axis=1, largest=largest)
        product = _contract(np.ascontiguousarray(rounded), factor)
        out[part if left >= right else (slice(None), part)] = product.reshape(
            block.shape[0], block.shape[2], -1
        )
    return out


def _sum_products(stack: Any, factor: Any) -> Any:
    """Sum a numpy stack (left, size, right, r) times a factor, column by column, over size."""
    if stack.size >= _FEW_SUMS:
        from tensoralg.gpu.register_tiles import sum_in_tiles

        product = sum_in_tiles(stack, factor)
        if product is not None:
            return product
    return np.einsum("lnqr,nr->lqr", stack, factor)
