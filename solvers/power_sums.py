"""The equations ``sum_s u_s^(x)d = A`` in nonnegative atoms, and steps towards their solution.

A completely positive tensor is ``A = sum_s u_s^(x)d`` with ``u_s >= 0``; a weight is absorbed in
its atom. There are usually more coordinates than entries, so that Levenberg-Marquardt steps are
those of minimum norm. Residuals are relative and in the Frobenius norm: every entry counts with
its multiplicity.

References
----------
.. [1] K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for non-linear least squares problems",
   second edition, Technical University of Denmark (2004), section 3.2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from tensoralg.core.errors import ShapeError
from tensoralg.core.index_maps import insertion_positions
from tensoralg.core.indices import multi_indices, multiplicities, number_of_multi_indices
from tensoralg.core.monomials import evaluate_monomials

__all__ = ["LinearModel", "PowerSum", "checked_points", "descend", "power_sum"]

Array = NDArray[Any]

_FINE = 1e-4  # relative residual below which steps are taken from the SVD of the Jacobian
_SMALL = 260  # largest smaller side of a Jacobian for that


@dataclass(frozen=True, slots=True, eq=False)
class PowerSum:
    """The equations ``sum_s u_s^(x)d = A`` with the tables that evaluate them.

    Attributes
    ----------
    dimension, order : int
        n and d.
    values : ndarray, shape (C(n+d-1, d),)
        Entries of the tensor, scaled to Frobenius norm 1.
    size : float
        Frobenius norm of the tensor as given.
    root : ndarray, shape (C(n+d-1, d),)
        Square roots of the multiplicities.
    indices, lower : ndarray of int
        Sorted multi-indices of order d and d-1.
    raised : ndarray of int, shape (n, C(n+d-2, d-1))
        Position of a lower multi-index with one more index.
    exponents : ndarray, shape (n, C(n+d-2, d-1))
        Exponent of that index afterwards, times the root of the multiplicity.
    """

    dimension: int
    order: int
    values: Array
    size: float
    root: Array
    indices: Array
    lower: Array
    raised: Array
    exponents: Array

    @property
    def unit(self) -> float:
        """Factor from atoms of the scaled tensor to atoms of the tensor as given."""
        return float(self.size ** (1 / self.order))

    def difference(self, atoms: Array) -> Array:
        """Weighted difference of the rebuilt tensor and the scaled one, shape (C(n+d-1, d),)."""
        rebuilt = evaluate_monomials(atoms, self.indices).sum(axis=0)
        return np.asarray((rebuilt - self.values) * self.root)

    def jacobian(self, atoms: Array) -> Array:
        """Differentiate `difference`; shape (C(n+d-1, d), r, n)."""
        low = evaluate_monomials(atoms, self.lower)
        result = np.zeros((len(self.values), self.dimension, len(atoms)))
        result[self.raised, np.arange(self.dimension)[:, None]] = self.exponents[..., None] * low.T
        return result.transpose(0, 2, 1)

    def residual(self, atoms: Array) -> float:
        """Norm of `difference`: the relative residual."""
        return float(np.linalg.norm(self.difference(atoms)))

    def weights(self, points: Array) -> tuple[Array, float]:
        """Solve nonnegative least squares: basic weights, shape (r,), and the residual."""
        if not len(points):
            return np.zeros(0), self.residual(points)
        lengths = np.linalg.norm(points, axis=1)
        safe = np.where(lengths > 0, lengths, 1.0)
        columns = (evaluate_monomials(points / safe[:, None], self.indices) * self.root).T
        try:
            weights, residual = nnls(columns, self.values * self.root)
        except RuntimeError:  # the active set cycles: rounding decides between equal columns
            return np.ones(len(points)), np.inf
        return np.where(lengths > 0, weights / safe**self.order, 0.0), float(residual)

    def weighted(self, points: Array) -> tuple[Array, float]:
        """Return points with a positive weight, the weight absorbed, and the residual."""
        weights, residual = self.weights(points)
        kept = weights > 0
        return np.asarray(points[kept] * weights[kept, None] ** (1 / self.order)), residual


def power_sum(entries: ArrayLike, dimension: int, order: int) -> PowerSum:
    """Prepare the equations of a tensor.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices, in lexicographic order.
    dimension : int
        Dimension n, at least 1.
    order : int
        Order d, at least 1.

    Returns
    -------
    PowerSum
        The equations; the zero tensor keeps its scale.

    Raises
    ------
    ShapeError
        A number of entries other than C(n+d-1, d), or n or d below 1.
    ValueError
        An entry that is not finite.

    Examples
    --------
    >>> power_sum([3.0, 0.0, 4.0], 2, 2).size
    5.0
    """
    if dimension < 1 or order < 1:
        raise ShapeError(f"dimension and order must be at least 1; got {dimension} and {order}")
    values = np.asarray(entries, dtype=np.float64)
    expected = number_of_multi_indices(dimension, order)
    if values.shape != (expected,):
        raise ShapeError(
            f"a symmetric tensor of dimension {dimension} and order {order} has {expected} "
            f"entries; got an array of shape {values.shape}"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"entries must be finite; got {values[~np.isfinite(values)][0]}")
    indices, lower = multi_indices(dimension, order), multi_indices(dimension, order - 1)
    root = np.sqrt(multiplicities(indices).astype(np.float64))
    # the norm of huge or tiny entries must neither overflow nor vanish
    largest = float(np.abs(values).max())
    size = largest * float(np.linalg.norm(values / largest * root)) if largest else 1.0
    raised = insertion_positions(dimension, order)
    counts = np.stack([(lower == i).sum(axis=1) for i in range(dimension)])
    scaled = values / largest / (size / largest) if largest else values.copy()
    exponents = (counts + 1.0) * root[raised]
    return PowerSum(dimension, order, scaled, size, root, indices, lower, raised, exponents)


def descend(
    problem: PowerSum, atoms: Array, free: Array, *, squares: bool, max_iter: int, tol: float
) -> tuple[Array, float]:
    """Levenberg-Marquardt on the free coordinates, by squares or projected.

    Parameters
    ----------
    problem : PowerSum
        The equations.
    atoms : ndarray, shape (r, n)
        Nonnegative start, for the scaled tensor.
    free : ndarray of bool, shape (r, n)
        Coordinates that move.
    squares : bool
        Write the coordinates as squares ``u = z * z``, which keeps them nonnegative far from a
        solution; otherwise they are projected, which converges on the boundary, too.
    max_iter : int
        Largest number of steps, rejected ones included.
    tol : float
        Residual at which the iteration ends; it also ends where progress does.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        Never worse than the start.
    residual : float
        Norm of the difference.

    Examples
    --------
    >>> problem = power_sum([1.0], 1, 3)
    >>> start = np.array([[0.5]])
    >>> descend(problem, start, start > 0, squares=True, max_iter=50, tol=1e-15)[1] < 1e-14
    True
    """
    current = atoms.copy()
    difference = problem.difference(current)
    residual = float(np.linalg.norm(difference))
    damping, growth, history = 1e-1, 2.0, [residual]
    model: LinearModel | None = None
    for _ in range(max_iter):
        if residual <= tol or damping > 1e12:
            break
        if model is None:
            slopes = problem.jacobian(current)[:, free]
            if squares:
                slopes *= 2 * np.sqrt(current[free])
            model = LinearModel(slopes, exact=residual < _FINE and min(slopes.shape) <= _SMALL)
        trial = _moved(current, free, model.step(difference, damping * residual), squares)
        new_difference = problem.difference(trial)
        new_residual = float(np.linalg.norm(new_difference))
        if new_residual < residual:
            current, difference, residual = trial, new_difference, new_residual
            damping, growth, model = max(damping / 5, 1e-14), 2.0, None
            history.append(residual)
            if len(history) > 15 and residual > 0.7 * history[-15]:
                break
        else:
            damping, growth = damping * growth, growth * 2
    return current, residual


class LinearModel:
    """Damped steps of a Jacobian: normal equations far away, the SVD near a solution."""

    def __init__(self, slopes: Array, *, exact: bool) -> None:
        # entries that no free coordinate reaches (their indices share no support) drop out
        self.rows = slopes.any(axis=1)
        self.slopes = slopes if self.rows.all() else slopes[self.rows]
        self.wide = self.slopes.shape[1] > self.slopes.shape[0]
        self.factors: tuple[Array, Array, Array] | None = None
        self.mean = float(np.sum(self.slopes**2)) / max(min(self.slopes.shape), 1)
        if exact:
            # normal equations square the condition, which thin tensors (Hilbert) cannot afford
            u, sizes, vt = np.linalg.svd(self.slopes, full_matrices=False)
            self.factors = u, sizes, vt
        else:
            a = self.slopes
            self.normal = a @ a.T if self.wide else a.T @ a

    def step(self, difference: Array, damping: float) -> Array:
        """Solve; where there are more coordinates than entries, the step of minimum norm."""
        right = -difference[self.rows]
        if self.factors is not None:
            u, sizes, vt = self.factors
            scale = sizes / (sizes**2 + max(damping, 1e-28) * self.mean + 1e-300)
            return np.asarray(((u.T @ right) * scale) @ vt)
        damped = self.normal + np.diag(np.full(len(self.normal), max(damping, 1e-15) * self.mean))
        if not self.wide:
            right = self.slopes.T @ right
        try:
            factor = scipy.linalg.cho_factor(damped, lower=True, check_finite=False)
            solution = scipy.linalg.cho_solve(factor, right, check_finite=False)
        except np.linalg.LinAlgError:
            return np.zeros(self.slopes.shape[1])
        return np.asarray(self.slopes.T @ solution if self.wide else solution)


def _moved(atoms: Array, free: Array, step: Array, squares: bool) -> Array:
    trial = atoms.copy()
    if squares:
        trial[free] = (np.sqrt(atoms[free]) + step) ** 2
    else:
        trial[free] = np.maximum(atoms[free] + step, 0.0)
    return trial


def checked_points(name: str, points: ArrayLike, dimension: int) -> Array:
    """Points as a float64 array of shape (r, n); ShapeError or ValueError names the argument."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise ShapeError(f"{name} must have shape (r, {dimension}); got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got {array[~np.isfinite(array)][0]}")
    return array
