"""Contractions as matrix products of any array library; on CuPy with Tensor Core types."""

from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import PrecisionPolicy, round_operand

__all__ = ["contract_stack"]


def contract_stack(
    stack: Any,
    factor: Any,
    policy: PrecisionPolicy | None = None,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Sum a stack of planes times a factor over the middle axis.

    Parameters
    ----------
    stack : array, shape (left, size, right)
        float32 or float64, of any namespace.
    factor : array, shape (size, r)
        Same namespace and dtype.
    policy : PrecisionPolicy, optional
        Rounds both operands first.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (left, right, r)
        ``result[l, q, s] = sum_i stack[l, i, q] * factor[i, s]``.

    Examples
    --------
    >>> contract_stack(np.ones((1, 2, 3)), np.ones((2, 1))).tolist()
    [[[2.0], [2.0], [2.0]]]
    """
    xp = namespace_of(stack, factor)
    left, size, right = stack.shape
    if policy is not None:
        rng = np.random.default_rng(rng)
        stack = round_operand(stack, policy, rng=rng, axis=1)
        factor = round_operand(factor, policy, rng=rng, axis=0)
    if right == 1:
        product = xp.matmul(xp.reshape(stack, (left, size)), factor)
    elif left == 1:
        product = xp.matmul(xp.matrix_transpose(xp.reshape(stack, (size, right))), factor)
    else:
        product = xp.matmul(xp.matrix_transpose(stack), factor)
    return xp.reshape(product, (left, right, factor.shape[1]))
