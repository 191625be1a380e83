"""Matricized tensor times Khatri-Rao product (MTTKRP), without either of the two matrices."""

from collections.abc import Sequence
from typing import Any

from tensoralg.gpu.mode_contraction import contract_mode, contract_partial

__all__ = ["mttkrp"]


def mttkrp(tensor: Any, factors: Sequence[Any], mode: int, *, policy: Any = None) -> Any:
    """Multiply a tensor by the columns of all factors but one.

    ``result[i, s] = sum tensor[i_0, ..., i_{N-1}] * prod_{k != mode} factors[k][i_k, s]``, the
    sum over all indices with i_mode = i.

    Parameters
    ----------
    tensor : array, shape (n_0, ..., n_{N-1})
        float32 or float64, N >= 2, or a `SparseTensor`.
    factors : sequence of N arrays, shape (n_k, r)
        Same namespace and dtype; ``factors[mode]`` is not read.
    mode : int
        0 <= mode < N.
    policy : PrecisionPolicy, optional
        Rounds the operands of every product first.

    Returns
    -------
    array, shape (n_mode, r)
        C-contiguous, in the dtype of the operands.

    Examples
    --------
    >>> import numpy as np
    >>> mttkrp(np.ones((2, 3)), [np.ones((2, 1)), np.full((3, 1), 2.0)], 0).tolist()
    [[6.0], [6.0]]
    """
    if hasattr(tensor, "coordinates"):
        from tensoralg.gpu.sparse_kernels import sparse_mttkrp

        return sparse_mttkrp(tensor, factors, mode)
    order = len(tensor.shape)
    # an outer mode first: its product is one matrix product
    first = 0 if mode == order - 1 else order - 1
    partial = contract_mode(tensor, factors[first], first, policy=policy)
    for k in reversed(range(order)):
        if k in (first, mode):
            continue
        partial = contract_partial(partial, factors[k], k - (first < k))
    return partial
