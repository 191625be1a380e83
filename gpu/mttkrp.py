"""Matricized tensor times Khatri-Rao product (MTTKRP), without either of the two matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.mode_contraction import contract_mode, contract_partial
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import PrecisionPolicy

__all__ = ["mttkrp"]


def mttkrp(
    tensor: Any,
    factors: Sequence[Any],
    mode: int,
    *,
    policy: PrecisionPolicy | None = None,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Multiply a tensor by the columns of all factors but one.

    ``result[i, s] = sum tensor[i_0, ..., i_{N-1}] * prod_{k != mode} factors[k][i_k, s]``, the
    sum over all indices with i_mode = i. The tensor is read once, where it lies: a group of
    leading or of trailing modes is contracted in one product, the other modes follow in its
    small result.

    Parameters
    ----------
    tensor : array, shape (n_0, ..., n_{N-1}), or SparseTensor
        float32 or float64, N >= 2, of any namespace. C and Fortran order are read where they
        lie; other numpy layouts are copied first.
    factors : sequence of N arrays, shape (n_k, r)
        Same namespace; numpy factors are brought to the tensor's dtype. ``factors[mode]`` is
        not read beyond its shape.
    mode : int
        0 <= mode < N.
    policy : PrecisionPolicy, optional
        Rounds the operands of the product with the tensor first; later sums are float32 (float64
        for the policy "float64").
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (n_mode, r)
        C-contiguous, in the tensor's dtype (with a policy: float32, or float64 for "float64").

    Raises
    ------
    ShapeError
        If the factors do not fit the tensor.
    ValueError
        If `mode` is out of range, or a policy is given with a sparse tensor.

    References
    ----------
    K. Hayashi, G. Ballard, Y. Jiang, M. J. Tobia, "Shared-memory parallelization of MTTKRP for
    dense tensors", arXiv 1708.08976.

    Examples
    --------
    >>> mttkrp(np.ones((2, 3)), [np.ones((2, 1)), np.full((3, 1), 2.0)], 0).tolist()
    [[6.0], [6.0]]
    """
    shape = tuple(tensor.shape)
    _check(shape, factors, mode)
    if hasattr(tensor, "coordinates"):
        if policy is not None:
            raise ValueError("policy: sparse tensors are multiplied in their own precision only")
        from tensoralg.gpu.sparse_kernels import sparse_mttkrp

        return sparse_mttkrp(tensor, factors, mode)
    if (
        isinstance(tensor, np.ndarray)
        and tensor.flags.f_contiguous
        and not tensor.flags.c_contiguous
    ):
        # the transposed tensor has the same memory in C order
        return mttkrp(tensor.T, factors[::-1], len(shape) - 1 - mode, policy=policy, rng=rng)
    return _contract_group(
        tensor, factors, mode, _best_group(shape, mode, factors[0].shape[1]), policy, rng
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring modes first .. last that the product with the tensor sums over."""

    first: int
    last: int


def _check(shape: tuple[int, ...], factors: Sequence[Any], mode: int) -> None:
    """Raise unless there is one factor of the right shape for every mode."""
    if len(shape) < 2:
        raise ShapeError(f"tensor: at least two modes are needed, got shape {shape}")
    if not 0 <= mode < len(shape):
        raise ValueError(f"mode: expected 0 .. {len(shape) - 1}, got {mode}")
    found = [tuple(factor.shape) for factor in factors]
    rank = found[0][-1] if found and len(found[0]) == 2 else "r"
    expected = [(size, rank) for size in shape]
    if found != expected:
        raise ShapeError(f"factors: expected shapes {expected}, got {found}")


def _best_group(shape: tuple[int, ...], mode: int, rank: int) -> _Group:
    """Choose the leading or trailing modes that the product with the tensor sums over.

    One outer mode is fastest, as its factor fits a cache; several are merged only where one
    would leave more than half of the tensor's memory.
    """
    order, total = len(shape), math.prod(shape)
    groups = [_Group(k, order - 1) for k in range(order - 1, mode, -1)]
    groups += [_Group(0, k) for k in range(mode)]

    def extra(group: _Group) -> tuple[bool, int]:
        size = math.prod(shape[group.first : group.last + 1])
        merged = group.last > group.first
        left = total // max(size, 1)
        fits = left == shape[mode] or 2 * rank * left <= total
        # a single factor lies there already
        return merged or not fits, left + (size if merged else 0)

    return min(groups, key=extra)


def _contract_group(
    tensor: Any, factors: Sequence[Any], mode: int, group: _Group, policy: Any, rng: Any
) -> Any:
    """Contract one group of modes with the tensor, then the rest one by one."""
    shape = tuple(tensor.shape)
    columns = factors[group.first]
    if group.last > group.first:
        columns = khatri_rao(factors[group.first : group.last + 1])
        merged = (*shape[: group.first], columns.shape[0], *shape[group.last + 1 :])
        tensor = namespace_of(tensor).reshape(tensor, merged)
    partial = contract_mode(tensor, columns, group.first, policy=policy, rng=rng)
    rest = [k for k in range(len(shape)) if not group.first <= k <= group.last]
    # the largest mode first leaves the least for the others
    for k in sorted((k for k in rest if k != mode), key=lambda k: -shape[k]):
        partial = contract_partial(partial, factors[k], rest.index(k))
        rest.remove(k)
    return partial
