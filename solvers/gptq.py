"""Rounding one column after the other, every error made up for by the columns still to come.

References
----------
.. [1] E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh, "GPTQ: Accurate post-training
   quantization for generative pre-trained transformers", ICLR 2023, arXiv:2210.17323.
.. [2] J. Chen, Y. Shabanzadeh, E. Crncevic, T. Hoefler, D. Alistarh, "The geometry of LLM
   quantization: GPTQ as Babai's nearest plane algorithm", arXiv:2507.18553 (2025).
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import array_api_compat.numpy

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of
from tensoralg.solvers.quantization_grid import QuantizationGrid

__all__ = ["ColumnFactor", "GPTQOrder", "factor_columns", "gptq", "loops_for", "round_through"]

GPTQOrder = Literal["activation", "natural"]

_BLOCK = 64
_TRIES = 40  # of a larger damping, each ten times the last


@dataclass(frozen=True, slots=True, eq=False)
class ColumnFactor:
    """A Gram matrix, damped and factorised in an order of its columns.

    Parameters
    ----------
    path : array of int, shape (columns,)
        The columns in order.
    coupling : array, shape (columns, columns)
        Row j, column i > j: the move of target ``path[i]`` for an error 1 of ``path[j]``.
    pivots : array, shape (columns,)
        What a squared distance from the target costs, in order.
    extra : array, shape (columns,)
        What the damping added to the diagonal, in order.
    """

    path: Any
    coupling: Any
    pivots: Any
    extra: Any


def loops_for(xp: Any) -> ModuleType:
    """Return the module with the inner loops for arrays of a library.

    Parameters
    ----------
    xp : module
        The namespace of the arrays.

    Returns
    -------
    module
        Compiled loops for numpy, loops over columns for all others.
    """
    if xp is array_api_compat.numpy:
        from tensoralg.solvers import grid_rounding_kernels

        return grid_rounding_kernels
    from tensoralg.solvers import grid_rounding_arrays

    return grid_rounding_arrays


def gptq(
    weight: Any,
    gram: Any,
    grid: QuantizationGrid,
    *,
    order: GPTQOrder = "activation",
    damping: float = 0.01,
) -> Any:
    """Round a matrix to a grid so that its products with the data change little.

    Parameters
    ----------
    weight : array, shape (rows, columns)
        One problem per row.
    gram : array, shape (columns, columns)
        ``X^T X`` of the data.
    grid : QuantizationGrid
        The values to choose from.
    order : {"activation", "natural"}, default "activation"
        Columns by falling diagonal of the Gram matrix, or as they stand.
    damping : float, default 0.01
        Added to the diagonal, in parts of its mean; as much more as a factorisation needs.

    Returns
    -------
    array of int8, shape (rows, columns)
        The codes. Columns without data get the nearest value.

    Raises
    ------
    ShapeError
        A Gram matrix or a grid of another size than the weight.
    ValueError
        Another order, a damping below 0, or NaN or infinite entries.

    Notes
    -----
    [1]_ updates the inverse of the Gram matrix; rounding by the factor ``H = U U^T`` of the
    damped matrix, U upper triangular in the chosen order, gives the same codes with one
    factorisation: the target of column i is ``w_i + sum_{j<i} (w_j - q_j) U_ji / U_ii`` [2]_.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.solvers.quantization_grid import QuantizationGrid
    >>> grid = QuantizationGrid(np.ones((1, 1)), np.zeros((1, 1)), bits=3, columns=2, group_size=2)
    >>> gptq(np.array([[1.4, 0.3]]), np.array([[2.0, 1.9], [1.9, 2.0]]), grid).tolist()
    [[1, 1]]
    """
    xp = namespace_of(weight, gram)
    weight = xp.astype(as_float_array(weight, xp, name="weight"), xp.float64)
    gram = xp.astype(as_float_array(gram, xp, name="gram"), xp.float64)
    if weight.ndim != 2 or gram.shape != (weight.shape[1], weight.shape[1]):
        raise ShapeError(
            f"weight must have shape (rows, columns) and gram (columns, columns); "
            f"got {tuple(weight.shape)} and {tuple(gram.shape)}"
        )
    grid.check_shape(weight)
    for name, matrix in (("weight", weight), ("gram", gram)):
        if not bool(xp.all(xp.isfinite(matrix))):
            raise ValueError(f"{name} must be finite; it has NaN or infinite entries")
    return round_through(weight, factor_columns(gram, order, damping), grid)[0]


def factor_columns(gram: Any, order: GPTQOrder, damping: float) -> ColumnFactor:
    """Factorise a Gram matrix in an order of its columns.

    Parameters
    ----------
    gram : array of float64, shape (columns, columns)
        Symmetric.
    order : {"activation", "natural"}
        Columns by falling diagonal, or as they stand.
    damping : float
        Added to the diagonal, in parts of its mean.

    Returns
    -------
    ColumnFactor
        A column without data moves nothing and is not moved.

    Raises
    ------
    ValueError
        Another order, a damping below 0, or a matrix that no damping makes positive definite.
    """
    if order not in ("activation", "natural"):
        raise ValueError(f"order must be 'activation' or 'natural'; got {order!r}")
    if not damping >= 0.0:
        raise ValueError(f"damping must be at least 0; got {damping!r}")
    xp = namespace_of(gram)
    diagonal = xp.linalg.diagonal(gram)
    size = gram.shape[0]
    path = xp.arange(size, device=device_of(gram))
    if order == "activation":
        path = xp.argsort(diagonal, descending=True, stable=True)
    mean = float(xp.sum(diagonal)) / max(size, 1)
    identity = xp.eye(size, dtype=gram.dtype, device=device_of(gram))
    if not mean > 0.0:
        nothing = xp.zeros_like(diagonal)
        return ColumnFactor(path, identity, nothing, nothing)
    ordered = xp.take(xp.take(gram, path, axis=0), path, axis=1)
    live = xp.take(diagonal, path) > 0.0
    ordered = xp.where(live[:, None] & live[None, :], ordered, xp.zeros_like(ordered))
    extra = xp.where(live, xp.zeros_like(diagonal), mean + xp.zeros_like(diagonal))
    amount = damping * mean
    for _ in range(_TRIES):
        added = extra + amount
        upper = _upper_factor(xp, ordered + added[:, None] * identity)
        if upper is not None:
            roots = xp.linalg.diagonal(upper)
            return ColumnFactor(path, upper / roots[None, :], roots * roots, added)
        amount = max(10.0 * amount, 1e-10 * mean)
    raise ValueError("gram must be finite; no damping made it positive definite")


def _upper_factor(xp: Any, matrix: Any) -> Any:
    """Return the upper triangular U with ``matrix = U U^T``, or None."""
    try:
        # the factor of the reversed matrix, reversed
        factor = xp.flip(xp.linalg.cholesky(xp.flip(matrix)))
    except Exception as error:  # every library has its own class for it
        if type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
        return None
    return factor if bool(xp.all(xp.isfinite(factor))) else None


def round_through(weight: Any, factor: ColumnFactor, grid: QuantizationGrid) -> tuple[Any, Any]:
    """Round the columns in an order, each target moved by the errors before it.

    Parameters
    ----------
    weight : array of float64, shape (rows, columns)
        One problem per row.
    factor : ColumnFactor
        The order and how errors move later targets.
    grid : QuantizationGrid
        The values to choose from.

    Returns
    -------
    codes : array of int8, shape (rows, columns)
        In the columns' own order.
    cost : array of float64, shape (rows,)
        The squared error of every row's outputs, without the damping, up to rounding.
    """
    xp = namespace_of(weight)
    loops = loops_for(xp)
    rows, columns = weight.shape
    own = xp.take(weight, factor.path, axis=1)
    group = factor.path // grid.group_size
    scale, zero = xp.astype(grid.scale, xp.float64), xp.astype(grid.zero_point, xp.float64)
    limits = (float(grid.limits[0]), float(grid.limits[1]))
    device = device_of(weight)
    errors = xp.zeros((rows, columns), dtype=xp.float64, device=device)
    codes = xp.zeros((rows, columns), dtype=xp.int8, device=device)
    cost = xp.zeros((rows,), dtype=xp.float64, device=device)
    for start in range(0, columns, _BLOCK):
        block = slice(start, min(start + _BLOCK, columns))
        # copies: one layout, so that the loops are compiled once
        weights = xp.astype(own[:, block], xp.float64, copy=True)
        coupling = xp.astype(factor.coupling[block, block], xp.float64, copy=True)
        targets = weights + errors[:, :start] @ factor.coupling[:start, block]
        part = xp.zeros(targets.shape, dtype=xp.int8, device=device)
        pieces = (coupling, factor.pivots[block], scale, zero, group[block])
        loops.round_block(targets, weights, *pieces, limits, part, cost)
        errors[:, block], codes[:, block] = targets, part
    cost = cost - xp.sum(errors * errors * factor.extra[None, :], axis=1)
    back = xp.argsort(factor.path)
    # what the damping counted for may be nearly all
    return xp.take(codes, back, axis=1), xp.maximum(cost, xp.zeros_like(cost))
