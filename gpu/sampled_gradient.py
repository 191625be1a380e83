"""Gradients of a polyadic model from a few fibres of the tensor."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.cupy_gemm import contract_stack
from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.gpu.precision import PrecisionPolicy, round_operand

__all__ = [
    "draw_fibres",
    "gather_by_slabs",
    "gather_fibres",
    "khatri_rao_rows",
    "sampled_gradient",
]


def draw_fibres(
    shape: Sequence[int], mode: int, count: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Draw fibres of one mode, each as likely as any other.

    Parameters
    ----------
    shape : sequence of N int
        Shape of the tensor.
    mode : int
        0 <= mode < N: the mode along which the fibres run.
    count : int
        How many, drawn with replacement. Where there are no more than that, all fibres are
        taken once instead: then the gradient is exact.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    list of N - 1 int64 arrays, shape (S,)
        Indices of the fibres in the other modes, in their order. S is `count` or less.

    Examples
    --------
    >>> [i.tolist() for i in draw_fibres((2, 2, 3), 2, 9, np.random.default_rng(0))]
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    others = [int(n) for k, n in enumerate(shape) if k != mode]
    if math.prod(others) <= count:
        return [index.reshape(-1) for index in np.indices(others, dtype=np.int64)]
    return [rng.integers(0, n, size=count) for n in others]


def gather_fibres(tensor: Any, mode: int, others: Sequence[NDArray[np.int64]]) -> Any:
    """Copy fibres of one mode out of a tensor.

    Parameters
    ----------
    tensor : array, shape (n_1, ..., n_N)
        N >= 2, of any namespace.
    mode : int
        0 <= mode < N.
    others : sequence of N - 1 int64 arrays, shape (S,)
        Indices in the other modes, on the host.

    Returns
    -------
    array, shape (n_mode, S)
        One fibre per column, in the dtype and namespace of the tensor.

    Examples
    --------
    >>> T = np.arange(12).reshape(2, 2, 3)
    >>> gather_fibres(T, 1, [np.array([1, 0]), np.array([0, 2])]).tolist()
    [[6, 2], [9, 5]]
    """
    n = int(tensor.shape[mode])
    if isinstance(tensor, np.ndarray):
        # a transposed contiguous array is contiguous memory too
        if not (tensor.flags.c_contiguous or tensor.flags.f_contiguous):
            rows = [index[None, :] for index in others]
            rows.insert(mode, np.arange(n)[:, None])
            return tensor[tuple(rows)]
        from tensoralg.gpu.sampled_loops import copy_fibres  # numba is slow to load

        steps = [stride // tensor.itemsize for stride in tensor.strides]
        step = steps.pop(mode)
        flat, starts = tensor.reshape(-1, order="A"), _starts(others, steps)
        shape = (len(starts), n) if step == 1 else (n, len(starts))
        out = np.empty(shape, dtype=tensor.dtype)
        copy_fibres(flat, starts, step, out)
        return out.T if step == 1 else out
    xp = namespace_of(tensor)
    steps = [math.prod(tensor.shape[k + 1 :]) for k in range(tensor.ndim)]
    step = steps.pop(mode)
    starts = xp.asarray(_starts(others, steps), device=device_of(tensor))
    along = xp.arange(n, dtype=xp.int64, device=device_of(tensor)) * step
    where = xp.reshape(along[:, None] + starts[None, :], (-1,))
    return xp.reshape(xp.take(xp.reshape(tensor, (-1,)), where), (n, len(others[0])))


def gather_by_slabs(
    blocks: Any, wanted: Sequence[tuple[int, Sequence[NDArray[np.int64]]]]
) -> list[NDArray[Any]]:
    """Copy several sets of fibres out of a tensor in one pass over its slabs.

    Parameters
    ----------
    blocks : TensorBlocks, shape (n_1, ..., n_N)
        N >= 2. No more than a slab of it is in memory.
    wanted : sequence of (mode, others)
        As for `gather_fibres`.

    Returns
    -------
    list of ndarrays, shapes (n_mode, S)
        One per set of fibres.

    Examples
    --------
    >>> from tensoralg.gpu.tensor_blocks import TensorBlocks
    >>> blocks = TensorBlocks(np.arange(12.0).reshape(2, 2, 3))
    >>> gather_by_slabs(blocks, [(1, [np.array([1, 0]), np.array([0, 2])])])[0].tolist()
    [[6.0, 2.0], [9.0, 5.0]]
    """
    found = [
        np.empty((blocks.shape[mode], len(others[0])), dtype=blocks.dtype)
        for mode, others in wanted
    ]
    for start, stop, slab in blocks.slabs():
        for (mode, others), out in zip(wanted, found, strict=True):
            if mode == 0:
                out[start:stop] = gather_fibres(slab, 0, others)
                continue
            inside = np.flatnonzero((others[0] >= start) & (others[0] < stop))
            if len(inside):
                rest = [index[inside] for index in others[1:]]
                out[:, inside] = gather_fibres(slab, mode, [others[0][inside] - start, *rest])
    return found


def _starts(others: Sequence[NDArray[np.int64]], steps: Sequence[int]) -> NDArray[np.int64]:
    """Position of each fibre's first entry in memory."""
    starts = np.zeros(len(others[0]), dtype=np.int64)
    for index, step in zip(others, steps, strict=True):
        starts += index * step
    return starts


def khatri_rao_rows(factors: Sequence[Any], mode: int, others: Sequence[NDArray[np.int64]]) -> Any:
    """Rows of the Khatri-Rao product that belong to fibres.

    Parameters
    ----------
    factors : sequence of N arrays, shapes (n_k, r)
        ``factors[mode]`` is not read.
    mode : int
        0 <= mode < N.
    others : sequence of N - 1 int64 arrays, shape (S,)
        Indices of the fibres in the other modes, on the host.

    Returns
    -------
    array, shape (S, r)
        ``prod_{k != mode} factors[k][i_k, :]``.

    Examples
    --------
    >>> A, B, C = np.eye(2), np.array([[2.0, 3.0]]), np.array([[5.0, 7.0]])
    >>> khatri_rao_rows([A, B, C], 0, [np.array([0]), np.array([0])]).tolist()
    [[10.0, 21.0]]
    """
    matrices = [factor for k, factor in enumerate(factors) if k != mode]
    xp = namespace_of(*matrices)
    rows: Any = None
    for matrix, index in zip(matrices, others, strict=True):
        if isinstance(matrix, np.ndarray):
            part = matrix[index]
        else:
            part = xp.take(matrix, xp.asarray(index, device=device_of(matrix)), axis=0)
        rows = part if rows is None else rows * part
    return rows


def sampled_gradient(
    fibres: Any,
    rows: Any,
    factor: Any,
    *,
    policy: PrecisionPolicy | None = None,
    residual_form: bool = True,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Gradient of half the mean squared error over fibres, with respect to one factor.

    ``G = (A H^T - X_s) H / S``. In the residual form the error ``E = A H^T - X_s`` is computed
    in the working precision and only E and H are rounded for the product E H: the rounding error
    shrinks with E, so that no floor is left where the model fits. Otherwise A, H and the data
    X_s are rounded before E is formed, as where these are stored in the low precision, and the
    fit ends at the floor of the rounded data.

    Parameters
    ----------
    fibres : array, shape (n, S)
        The data X_s, float32 or float64.
    rows : array, shape (S, r)
        H, rows of the Khatri-Rao product of the other factors.
    factor : array, shape (n, r)
        A, in the namespace and the dtype of the others.
    policy : PrecisionPolicy, optional
        Format of the rounded operands; sums are float32 (float64 for the policy "float64").
    residual_form : bool, default True
        Which operands are rounded.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (n, r)
        In the working dtype.

    Raises
    ------
    ValueError
        If an operand that must be rounded holds NaN or infinity.

    References
    ----------
    X. Fu, S. Ibrahim, H.-T. Wai, C. Gao and K. Huang, "Block-randomized stochastic proximal
    gradient for low-rank tensor factorization", arXiv 1901.05529 (the gradient). The two ways to
    round are ours.

    Examples
    --------
    >>> A, H = np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]])
    >>> sampled_gradient(np.zeros((2, 2)), H, A).tolist()
    [[5.0], [10.0]]
    """
    count = int(rows.shape[0])
    if policy is None or policy.multiply in ("float64", "float32"):
        return ((factor @ rows.T - fibres) @ rows) / count
    generator = np.random.default_rng(rng)
    if residual_form:
        error = factor @ rows.T - fibres
    else:
        data = round_operand(fibres, policy, rng=generator, axis=0)
        left = round_operand(factor, policy, rng=generator, axis=1)
        error = left @ round_operand(rows, policy, rng=generator, axis=1).T - data
    n, r = factor.shape
    xp = namespace_of(error)
    product = contract_stack(xp.reshape(error, (n, count, 1)), rows, policy, generator)
    return xp.reshape(product, (n, r)) / count
