"""Nonnegative atoms refined until the sum of their powers is the tensor to rounding error.

A completely positive tensor is ``A = sum_s u_s^(x)d`` with ``u_s >= 0``; a weight is absorbed in
its atom. Bounded trust-region least squares stalls at 1e-6 .. 1e-9 where coordinates of the atoms
vanish. Here small coordinates are frozen at zero exactly, the rest takes Levenberg-Marquardt steps
of minimum norm (there are usually more coordinates than entries) and is projected.

Residuals are relative and in the Frobenius norm: every entry counts with its multiplicity.

References
----------
.. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
   arXiv:2206.12553.
.. [2] K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for non-linear least squares problems",
   second edition, Technical University of Denmark (2004), section 3.2.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.solvers.power_sums import PowerSum, checked_points, descend, power_sum

__all__ = ["leave_out", "nonnegative_weights", "polish_atoms", "polish_scaled", "reduce_atoms"]

Array = NDArray[Any]

_THRESHOLDS = (1e-5, 1e-3, 1e-8, 1e-2)  # relative sizes below which coordinates are frozen at 0
_EXACT = 2e-15  # relative residual at which nothing is left to gain


def nonnegative_weights(
    entries: ArrayLike, dimension: int, order: int, points: ArrayLike
) -> tuple[Array, float]:
    """Best nonnegative weights of given points.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices.
    dimension : int
        Dimension n.
    order : int
        Order d.
    points : array_like, shape (r, n)
        Points.

    Returns
    -------
    weights : ndarray, shape (r,)
        Nonnegative; the powers of the points with a positive weight are linearly independent, so
        that at most C(n+d-1, d) are positive.
    residual : float
        Relative residual of ``sum_s weights[s] points[s]^(x)d``.

    Examples
    --------
    >>> weights, residual = nonnegative_weights([2.0, 0.0, 3.0], 2, 2, [[1.0, 0.0], [0.0, 1.0]])
    >>> weights.round(9).tolist(), residual < 1e-15
    ([2.0, 3.0], True)
    """
    problem = power_sum(entries, dimension, order)
    array = checked_points("points", points, dimension)
    weights, residual = problem.weights(array)
    return weights * problem.size, residual


def polish_atoms(
    entries: ArrayLike, dimension: int, order: int, atoms: ArrayLike, *, tol: float = 1e-14
) -> tuple[Array, float]:
    """Refine nonnegative atoms until their powers add up to the tensor.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices.
    dimension : int
        Dimension n.
    order : int
        Order d.
    atoms : array_like, shape (r, n)
        Start, weights absorbed. Negative coordinates are set to zero.
    tol : float, default 1e-14
        Relative residual at which no other set of frozen coordinates is tried.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        At least 0 exactly, atoms that vanish left out; never worse than the start.
    residual : float
        Relative residual, from the returned atoms.

    Raises
    ------
    ShapeError
        Atoms of another dimension, or another number of entries.
    ValueError
        Entries or atoms that are not finite.

    Examples
    --------
    >>> atoms, residual = polish_atoms([1.0, 0.0, 4.0], 2, 2, [[0.9, -1e-6], [1e-7, 2.1]])
    >>> atoms.round(9).tolist(), residual < 1e-14
    ([[1.0, 0.0], [0.0, 2.0]], True)
    """
    problem = power_sum(entries, dimension, order)
    start = np.maximum(checked_points("atoms", atoms, dimension) / problem.unit, 0.0)
    polished, _ = polish_scaled(problem, start, tol)
    result = polished * problem.unit
    return result, problem.residual(result / problem.unit)


def polish_scaled(
    problem: PowerSum, start: Array, tol: float, thresholds: tuple[float, ...] = _THRESHOLDS
) -> tuple[Array, float]:
    """Polish atoms of the scaled tensor: frozen coordinates by several thresholds, best of all."""
    best, best_residual = start, problem.residual(start)
    largest = float(start.max(initial=0.0))
    seen: list[Array] = []
    for threshold in thresholds:
        free = start > threshold * largest
        if best_residual <= tol or not free.any() or any(np.array_equal(free, s) for s in seen):
            continue
        seen.append(free)
        found, residual = _active_set(problem, np.where(free, start, 0.0), free)
        if residual < best_residual:
            best, best_residual = found, residual
    return best[best.any(axis=1)], best_residual


def reduce_atoms(
    entries: ArrayLike, dimension: int, order: int, atoms: ArrayLike, *, tol: float = 1e-14
) -> tuple[Array, float]:
    """Leave out atoms that are not needed.

    A basic solution of nonnegative least squares keeps atoms with linearly independent powers
    (Caratheodory), and a polish restores what that cost. Then the smallest atoms are left out one
    by one as long as the others can be polished to rebuild the tensor.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices.
    dimension : int
        Dimension n.
    order : int
        Order d.
    atoms : array_like, shape (r, n)
        Nonnegative atoms, weights absorbed.
    tol : float, default 1e-14
        A smaller set of atoms is accepted with this relative residual, or with that of the start.

    Returns
    -------
    atoms : ndarray, shape (s, n)
        Nonnegative, s <= r.
    residual : float
        Relative residual.

    Examples
    --------
    >>> atoms, residual = reduce_atoms([1.0, 0.0, 1.0], 2, 2, [[0.6, 0], [0.8, 0], [0, 1]])
    >>> len(atoms), residual < 1e-14
    (2, True)
    """
    problem = power_sum(entries, dimension, order)
    current = np.maximum(checked_points("atoms", atoms, dimension) / problem.unit, 0.0)
    current = current[current.any(axis=1)]
    residual = problem.residual(current)
    limit = max(tol, residual)
    basic, _ = problem.weighted(current)
    found, new_residual = polish_scaled(problem, basic, limit)
    if new_residual <= limit:
        current, residual = found, new_residual
    current, residual = leave_out(problem, current, residual, limit)
    return current * problem.unit, residual


def _active_set(problem: PowerSum, start: Array, free: Array) -> tuple[Array, float]:
    """Projected descent; coordinates that reach zero stay there, unless progress ends."""
    current, residual = start, problem.residual(start)
    for _ in range(6):
        found, new_residual = descend(
            problem, current, free, squares=False, max_iter=100, tol=_EXACT
        )
        gained = new_residual < 0.3 * residual
        if new_residual < residual:
            current, residual = found, new_residual
        if residual <= _EXACT:
            break
        small = 1e-12 * float(current.max(initial=0.0))
        still_free = free & (current > small)
        if np.array_equal(still_free, free):
            if not gained:
                break
            continue
        free = still_free
        if not free.any():
            break
    return current, residual


def leave_out(
    problem: PowerSum, atoms: Array, residual: float, limit: float
) -> tuple[Array, float]:
    """Leave out the smallest atoms, one by one; the first that is needed ends it."""
    while len(atoms) > 1:
        masses = (atoms**problem.order).sum(axis=1)
        rest = np.delete(atoms, int(masses.argmin()), axis=0)
        found, new_residual = polish_scaled(problem, rest, limit)
        if new_residual > limit:
            break
        atoms, residual = found, new_residual
    return atoms, residual
