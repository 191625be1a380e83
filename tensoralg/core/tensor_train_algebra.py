"""Tensor trains as plain lists of cores of any array library: contraction, orthogonality, rounding.

A core has shape (r, n, r') or, in the matrix form, (r, rows, columns, r'); the first and the last
rank are 1. The functions copy nothing they need not and check no shapes: `TensorTrain` and
`TensorTrainMatrix` do that.

References
----------
.. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011).
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import array_api_compat

from tensoralg.core.tensor_train_arithmetic import wide_dtype
from tensoralg.core.tensor_train_rounding import bond_singular_values, round_cores
from tensoralg.core.tensor_train_unfoldings import (
    adjoint,
    as_float,
    left_unfolding,
    right_unfolding,
    unit_scale,
)

__all__ = [
    "bond_singular_values",
    "contract_cores",
    "contract_matrix_cores",
    "initial_standard_deviation",
    "left_orthogonalize",
    "rescale_cores",
    "right_orthogonalize",
    "round_cores",
    "train_norm",
]

_SURELY_FITS = 1 << 26  # entries; not worth asking the system


def contract_cores(cores: Sequence[Any]) -> Any:
    """Multiply the cores of a train into the dense tensor.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, n_k, r_k)
        At least one.

    Returns
    -------
    array, shape (n_1, .., n_d)
        For cores of the matrix form, shape (rows_1, columns_1, .., rows_d, columns_d).

    Raises
    ------
    MemoryError
        The tensor is larger than the machine's memory: the system would kill the process.

    Examples
    --------
    >>> import numpy as np
    >>> contract_cores([np.array([[[1.0], [2.0]]]), np.array([[[3.0], [4.0]]])]).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    xp = array_api_compat.array_namespace(*cores)
    _refuse_beyond_memory(cores)
    product = left_unfolding(xp, cores[0])
    for core in cores[1:]:
        product = product @ right_unfolding(xp, core)
        rows = product.shape[0] * math.prod(core.shape[1:-1])
        product = xp.reshape(product, (rows, core.shape[-1]))
    return xp.reshape(product, tuple(n for core in cores for n in core.shape[1:-1]))


def _refuse_beyond_memory(cores: Sequence[Any]) -> None:
    """Raise where the dense tensor of these cores cannot exist on the host."""
    size = math.prod(n for core in cores for n in core.shape[1:-1])
    if size < _SURELY_FITS or str(array_api_compat.device(cores[0])) != "cpu":
        return
    needed = size * int(getattr(cores[0].dtype, "itemsize", 8))
    try:
        present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system that does not tell
        present = 1 << 44
    if needed > present:
        raise MemoryError(
            f"the dense tensor would have {size} entries, {needed / 2**30:.3g} GiB; this machine "
            f"has {present / 2**30:.3g} GiB"
        )


def contract_matrix_cores(cores: Sequence[Any]) -> Any:
    """Multiply the cores of a train in matrix form into the dense matrix.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, rows_k, columns_k, r_k)
        At least one.

    Returns
    -------
    array, shape (rows_1 * .. * rows_d, columns_1 * .. * columns_d)
        The first mode varies slowest.

    Examples
    --------
    >>> import numpy as np
    >>> contract_matrix_cores([np.eye(2)[None, :, :, None], np.ones((1, 1, 2, 1))]).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    xp = array_api_compat.array_namespace(*cores)
    order = len(cores)
    dense = contract_cores(cores)
    dense = xp.permute_dims(dense, (*range(0, 2 * order, 2), *range(1, 2 * order, 2)))
    rows = math.prod(core.shape[1] for core in cores)
    return xp.reshape(dense, (rows, math.prod(core.shape[2] for core in cores)))


def left_orthogonalize(cores: Sequence[Any], k: int) -> list[Any]:
    """Make the cores before number k left-orthogonal without changing the tensor.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train.
    k : int
        Number of the core, from 0, that takes up the remainders.

    Returns
    -------
    list of array
        Cores whose left unfoldings have orthonormal columns before number k; a rank becomes
        smaller where the cores before it cannot fill it. Cores after k are the given ones.

    Examples
    --------
    >>> import numpy as np
    >>> cores = left_orthogonalize([np.full((1, 2, 1), 3.0), np.ones((1, 2, 1))], 1)
    >>> bool(np.isclose(np.linalg.norm(cores[0]), 1.0)), contract_cores(cores).round(9).tolist()
    (True, [[3.0, 3.0], [3.0, 3.0]])
    """
    xp = array_api_compat.array_namespace(*cores)
    result = list(cores)
    for j in range(k):
        core, following = result[j], result[j + 1]
        q, r = xp.linalg.qr(left_unfolding(xp, core))
        result[j] = xp.reshape(q, (*core.shape[:-1], q.shape[1]))
        pushed = r @ right_unfolding(xp, following)
        result[j + 1] = xp.reshape(pushed, (r.shape[0], *following.shape[1:]))
    return result


def right_orthogonalize(cores: Sequence[Any], k: int) -> list[Any]:
    """Make the cores after number k right-orthogonal without changing the tensor.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train.
    k : int
        Number of the core, from 0, that takes up the remainders.

    Returns
    -------
    list of array
        Cores whose right unfoldings have orthonormal rows after number k; a rank becomes smaller
        where the cores after it cannot fill it. Cores before k are the given ones.

    Examples
    --------
    >>> import numpy as np
    >>> cores = right_orthogonalize([np.full((1, 2, 1), 3.0), np.ones((1, 2, 1))], 0)
    >>> bool(np.isclose(np.linalg.norm(cores[1]), 1.0)), contract_cores(cores).round(9).tolist()
    (True, [[3.0, 3.0], [3.0, 3.0]])
    """
    xp = array_api_compat.array_namespace(*cores)
    result = list(cores)
    for j in range(len(result) - 1, k, -1):
        core, before = result[j], result[j - 1]
        q, r = xp.linalg.qr(adjoint(xp, right_unfolding(xp, core)))
        result[j] = xp.reshape(adjoint(xp, q), (q.shape[1], *core.shape[1:]))
        pushed = left_unfolding(xp, before) @ adjoint(xp, r)
        result[j - 1] = xp.reshape(pushed, (*before.shape[:-1], r.shape[0]))
    return result


def train_norm(cores: Sequence[Any]) -> float:
    """Frobenius norm of the tensor that the cores define.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train, of the matrix form or not.

    Returns
    -------
    float
        In double precision, from orthogonal factors: terms that cancel leave rounding errors of
        their sizes, not square roots of them. Infinite where it is beyond double precision.

    Examples
    --------
    >>> import numpy as np
    >>> train_norm([np.array([[[3e200], [4e200]]]), np.full((1, 1, 1), 1e-100)]) / 1e100
    5.0
    """
    xp = array_api_compat.array_namespace(*cores)
    if any(0 in core.shape for core in cores):
        return 0.0
    wide = wide_dtype(xp, cores[0].dtype)
    carried, exponent = xp.ones((1, 1), dtype=wide, device=array_api_compat.device(cores[0])), 0
    for core in cores:
        core, power = unit_scale(xp, xp.astype(core, wide, copy=False))
        exponent += power
        pushed = carried @ right_unfolding(xp, core)
        rows = carried.shape[0] * math.prod(core.shape[1:-1])
        r = xp.linalg.qr(xp.reshape(pushed, (rows, core.shape[-1])))[1]
        carried, power = unit_scale(xp, r)
        exponent += power
    try:
        return math.ldexp(as_float(xp.abs(carried[0, 0])), exponent)
    except OverflowError:
        return math.inf


def initial_standard_deviation(
    ranks: Sequence[int], root_mean_square: float = 1.0, *, order: int | None = None
) -> float:
    """Give the standard deviation of random cores whose tensor has entries of a given size.

    Parameters
    ----------
    ranks : sequence of int, length d + 1
        Ranks of all bonds, the ones at the ends included.
    root_mean_square : float, default 1.0
        Wanted root mean square of the tensor's entries.
    order : int, optional
        Number of cores; d = ``len(ranks) - 1`` by default.

    Returns
    -------
    float
        ``(root_mean_square**2 / prod(ranks)) ** (1 / 2d)``: an entry of the tensor is a sum of
        ``prod(ranks)`` products of d independent entries of mean zero.

    Notes
    -----
    This is the expected size. That of one draw scatters around it, widely for small ranks;
    `rescale_cores` then makes it exact.

    Examples
    --------
    >>> initial_standard_deviation((1, 4, 4, 1), 0.5)
    0.5
    """
    d = len(ranks) - 1 if order is None else order
    if root_mean_square == 0.0:
        return 0.0
    logarithm = 2 * math.log(root_mean_square) - sum(math.log(r) for r in ranks)
    return math.exp(logarithm / (2 * d))


def rescale_cores(cores: Sequence[Any], root_mean_square: float) -> list[Any]:
    """Scale all cores by one number so that the tensor's entries have a given size.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        A train that is not zero.
    root_mean_square : float
        Wanted root mean square of the tensor's entries.

    Returns
    -------
    list of array
        The scaled cores; those of a zero or an empty tensor stay as they are.

    Examples
    --------
    >>> import numpy as np
    >>> cores = rescale_cores([np.full((1, 2, 1), 3.0), np.ones((1, 2, 1))], 12.0)
    >>> contract_cores(cores).round(9).tolist()
    [[12.0, 12.0], [12.0, 12.0]]
    """
    size = math.prod(n for core in cores for n in core.shape[1:-1])
    norm = train_norm(cores)
    if norm == 0.0 or size == 0:
        return list(cores)
    factor = (root_mean_square * math.sqrt(size) / norm) ** (1 / len(cores))
    return [core * factor for core in cores]
