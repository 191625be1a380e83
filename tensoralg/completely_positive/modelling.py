"""Moment relaxations of the completely positive cone as constraints of a cvxpy problem."""

import importlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from tensoralg.completely_positive.cone_relaxation import block_maps, polynomial_to_form
from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import number_of_multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import positive_integer
from tensoralg.solvers.svec import svec_side, triangle_indices

__all__ = ["relaxation_constraints"]


def relaxation_constraints(
    entries: Any, tensor_order: int, dimension: int, relaxation_order: int
) -> list[Any]:
    """Constrain a symmetric tensor of a cvxpy problem to a relaxation of the cone.

    Parameters
    ----------
    entries : cvxpy expression, array_like or SymmetricTensor, shape (C(n+d-1, d),)
        Affine: the tensor's entries at the sorted multi-indices, in the order of
        ``SymmetricTensor.entries``. For a matrix that is the upper triangle by rows.
    tensor_order, dimension : int
        Order d and dimension n of the tensor.
    relaxation_order : int
        Order k of the relaxation, at least ceil(d/2).

    Returns
    -------
    list of cvxpy constraints
        Every completely positive tensor satisfies them; the higher k, the fewer others do. They
        bring one variable of their own, the moments above degree d.

    Raises
    ------
    ShapeError
        `entries` has another shape.
    ValueError
        `entries` is not real, finite and affine, or `relaxation_order` is below ceil(d/2).
    ProblemTooLargeError
        The relaxation is too large; nothing has been allocated then.

    Notes
    -----
    The blocks are those of `tensoralg.completely_positive.minimize`, products of two coordinates
    included, each one sparse matrix times a vector, so that compilation stays short. Name the
    solver when you solve: ``problem.solve(solver="CLARABEL")``.

    Examples
    --------
    The least ``x'Cx`` on the simplex, as a linear problem in ``X = x x'``:

    >>> import cvxpy as cp
    >>> C = np.array([[1.0, -0.5], [-0.5, 2.0]])
    >>> X = cp.Variable(3)
    >>> constraints = [X @ np.array([1.0, 2.0, 1.0]) == 1, *relaxation_constraints(X, 2, 2, 1)]
    >>> problem = cp.Problem(cp.Minimize(X @ np.array([1.0, -1.0, 2.0])), constraints)
    >>> round(float(problem.solve(solver="CLARABEL")), 5)
    0.4375
    """
    cp: Any = importlib.import_module("cvxpy")  # seconds: only where it is needed
    d, n = positive_integer("tensor_order", tensor_order), positive_integer("dimension", dimension)
    k = positive_integer("relaxation_order", relaxation_order)
    count = number_of_multi_indices(n, d)
    vector = _expression(cp, entries)
    if vector.shape != (count,):
        raise ShapeError(
            f"entries must have shape ({count},) for tensor_order={d}, dimension={n}; "
            f"got {vector.shape}"
        )
    if not vector.is_real():
        raise ValueError("entries must be real; got a complex expression")
    if not vector.is_affine():
        raise ValueError(f"entries must be an affine expression; got {vector.curvature}")
    if 2 * k < d:
        raise ValueError(
            f"relaxation_order must be at least ceil(d/2) = {(d + 1) // 2} for tensor_order={d}; "
            f"got {k}"
        )
    if n == 1:  # one number
        return [vector >= 0]
    # the moments of degree at most d are linear in the entries, those above are free
    known = sp.csr_array(polynomial_to_form(np.eye(count), n, d))
    free = number_of_multi_indices(n, 2 * k) - count
    variables = cp.hstack([vector, cp.Variable(free)]) if free else vector
    maps = block_maps(n, d, k)
    units = _column_units([block[:, count:] for block in maps])
    constraints = []
    for block in maps:
        matrix = sp.hstack([block[:, :count] @ known, block[:, count:] * units], format="csr")
        side = svec_side(block.shape[0])
        if side == 1:
            constraints.append(matrix @ variables >= 0)
        else:
            full = _both_triangles(side) @ matrix
            constraints.append(cp.reshape(full @ variables, (side, side), order="F") >> 0)
    return constraints


def _expression(cp: Any, entries: Any) -> Any:
    """Turn the argument into an expression of cvxpy; numbers among it must be finite."""
    given = entries.entries if isinstance(entries, SymmetricTensor) else entries
    try:
        vector = cp.Expression.cast_to_const(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"entries must be a cvxpy expression; got {given!r}") from error
    for constant in vector.constants():
        values: Any = constant.value
        values = values.tocoo().data if hasattr(values, "tocoo") else values
        if not np.isfinite(np.asarray(values, dtype=complex)).all():
            raise ValueError("entries must be finite; got a constant that is not")
    return vector


def _column_units(matrices: list[Any]) -> Any:
    """Row of units in which the columns of the stacked matrices have norm 1."""
    squares = sum(np.asarray(matrix.multiply(matrix).sum(axis=0)) for matrix in matrices)
    return (1.0 / np.sqrt(squares)).reshape(1, -1)


def _both_triangles(side: int) -> Any:
    """Matrix that takes the svec of a symmetric matrix to all its entries, column by column."""
    rows, columns = triangle_indices(side)
    values = np.where(rows == columns, 0.5, np.sqrt(0.5))
    where = np.concatenate([rows + side * columns, columns + side * rows])
    positions = np.tile(np.arange(len(rows)), 2)
    shape = (side * side, len(rows))
    return sp.csr_array((np.tile(values, 2), (where, positions)), shape=shape)
