"""Least squares for sums of symmetric rank-one terms, on all or some entries of a tensor.

The model at a sorted multi-index i1 <= .. <= im is ``sum_s w_s u_s[i1] .. u_s[im]``. Everything
works in real and in complex arithmetic: the model is holomorphic, so that the Gauss-Newton step
uses the complex Jacobian, and conjugate pairs stay conjugate.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.core.monomials import evaluate_monomials

__all__ = [
    "EntryFit",
    "Terms",
    "coordinate_sweeps",
    "fit_weights",
    "levenberg_marquardt",
    "terms_from_points",
]

Array = NDArray[Any]

_CHUNK = 2_000_000  # numbers in one block of Jacobian rows: 16 MB


@dataclass(frozen=True, slots=True, eq=False)
class EntryFit:
    """Entries to fit and how much each counts.

    Attributes
    ----------
    indices : ndarray of int, shape (N, m)
        Multi-indices of the entries.
    values : ndarray, shape (N,)
        The entries.
    scale : ndarray, shape (N,)
        Factors of the residuals: square roots of the multiplicities give the Frobenius norm.
    dimension : int
        Number n of coordinates.
    """

    indices: Array
    values: Array
    scale: Array
    dimension: int

    @property
    def order(self) -> int:
        """Order m of the tensor."""
        return int(self.indices.shape[1])

    @property
    def norm(self) -> float:
        """Weighted norm of the entries."""
        return float(np.linalg.norm(self.values * self.scale))


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """A sum of rank-one terms and how well it fits.

    Attributes
    ----------
    points : ndarray, shape (r, n)
        Unit vectors, real or complex.
    weights : ndarray, shape (r,)
        Weights.
    residual : float
        Weighted norm of the difference relative to that of the entries.
    converged : bool
        False when an iteration stopped at its limit.
    """

    points: Array
    weights: Array
    residual: float
    converged: bool = True

    @property
    def is_real(self) -> bool:
        """Whether the arithmetic is real."""
        return not np.iscomplexobj(self.points)


def fit_weights(monomials: Array, values: Array, scale: Array | None = None) -> Array:
    """Weights of given rank-one terms by linear least squares.

    Parameters
    ----------
    monomials : ndarray, shape (r, N)
        The monomials of each point.
    values : ndarray, shape (N,)
        The entries to fit.
    scale : ndarray, shape (N,), optional
        Factors of the residuals.

    Returns
    -------
    ndarray, shape (r,)
        The weights.

    Examples
    --------
    >>> import numpy as np
    >>> fit_weights(np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([3.0, 4.0])).round(9).tolist()
    [1.0, 2.0]
    """
    factor = np.ones(len(values)) if scale is None else scale
    return np.asarray(np.linalg.lstsq((monomials * factor).T, values * factor, rcond=None)[0])


def terms_from_points(fit: EntryFit, points: Array) -> Terms:
    """Normalise points and give them their least-squares weights.

    Parameters
    ----------
    fit : EntryFit
        The entries.
    points : ndarray, shape (r, n)
        Points, none of them zero.

    Returns
    -------
    Terms
        With unit points.

    Raises
    ------
    ShapeError
        The points have another dimension than the entries.

    Examples
    --------
    >>> import numpy as np
    >>> fit = EntryFit(np.array([[0, 0, 0], [0, 0, 1]]), np.array([8.0, 0.0]), np.ones(2), 2)
    >>> terms_from_points(fit, np.array([[2.0, 0.0]])).weights.tolist()
    [8.0]
    """
    if points.ndim != 2 or points.shape[1] != fit.dimension:
        raise ShapeError(f"points must have shape (r, {fit.dimension}); got {points.shape}")
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    units = points / np.where(lengths > 0, lengths, 1.0)
    monomials = evaluate_monomials(units, fit.indices)
    weights = fit_weights(monomials, fit.values, fit.scale)
    return Terms(units, weights, _residual(fit, weights @ monomials))


def levenberg_marquardt(
    fit: EntryFit, start: Terms, *, max_iter: int = 200, tol: float = 1e-15, ridge: float = 0.0
) -> Terms:
    """Refine weights and points together by the Levenberg-Marquardt iteration.

    Parameters
    ----------
    fit : EntryFit
        The entries.
    start : Terms
        Real terms stay real.
    max_iter : int, default 200
        Largest number of steps, rejected ones included.
    tol : float, default 1e-15
        The iteration ends when the relative residual falls below it, or no longer improves.
    ridge : float, default 0
        Adds ``ridge * sum |w_s|^2`` to the squared residual, which keeps the weights of unit
        points from running away against each other.

    Returns
    -------
    Terms
        Never worse than `start`, the ridge included.

    References
    ----------
    .. [1] K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for non-linear least squares problems",
       second edition, Technical University of Denmark (2004), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.core.indices import multi_indices
    >>> indices = multi_indices(2, 3)
    >>> values = np.array([0.6, 0.8])[indices].prod(axis=1)
    >>> fit = EntryFit(indices, values, np.ones(4), 2)
    >>> found = levenberg_marquardt(fit, terms_from_points(fit, np.array([[1.0, 1.0]])))
    >>> found.points.round(9).tolist()
    [[0.6, 0.8]]
    """
    points, weights = start.points, start.weights
    residual = _objective(fit, points, weights, ridge)
    damping, growth, slow = 1e-3, 2.0, 0
    normal = gradient = None
    for _ in range(max_iter):
        if residual <= tol or slow >= 5 or damping > 1e12:
            break
        if normal is None:
            normal, gradient = _normal_equations(fit, points, weights)
            _add_ridge(normal, gradient, points, weights, ridge, fit.order)
        new_points, new_weights = _trial(fit, points, weights, normal, gradient, damping)
        new_residual = _objective(fit, new_points, new_weights, ridge)
        if new_residual < residual:
            slow = slow + 1 if new_residual > (1 - 1e-4) * residual else 0
            points, weights, residual = new_points, new_weights, new_residual
            damping, growth, normal = max(damping / 5, 1e-15), 2.0, None
        else:
            damping, growth = damping * growth, growth * 2
    converged = residual <= tol or slow >= 5 or damping > 1e12
    if ridge:
        residual = _objective(fit, points, weights, 0.0)
    return Terms(points, weights, residual, converged)


def coordinate_sweeps(
    fit: EntryFit, points: Array, *, sweeps: int = 60, ridge: float = 1e-2
) -> Array:
    """Improve points on square-free entries, one coordinate of all points at a time.

    An entry at pairwise distinct indices is linear in each coordinate, so that every step is a
    small linear least-squares problem; far from a solution this wanders less than Gauss-Newton.

    Parameters
    ----------
    fit : EntryFit
        Entries at pairwise distinct indices, of moderate size.
    points : ndarray, shape (r, n)
        Real start; the terms are ``points[s]^(x)m`` with weight 1.
    sweeps : int, default 60
        How often every coordinate is solved for.
    ridge : float, default 1e-2
        Pulls each coordinate towards half its last value.

    Returns
    -------
    ndarray, shape (r, n)
        The new points, not normalised.

    Raises
    ------
    ValueError
        An entry repeats an index.

    Examples
    --------
    >>> import numpy as np
    >>> fit = EntryFit(np.array([[0, 1, 2]]), np.array([1.0]), np.ones(1), 3)
    >>> bool(coordinate_sweeps(fit, np.full((1, 3), 0.5)).prod() > 0.9)
    True
    """
    ordered = np.sort(fit.indices, axis=1)
    if np.any(ordered[:, 1:] == ordered[:, :-1]):
        raise ValueError("coordinate_sweeps needs entries at pairwise distinct indices")
    r, n = points.shape
    moved = points.copy()
    containing = [np.flatnonzero((ordered == i).any(axis=1)) for i in range(n)]
    others = [ordered[c][ordered[c] != i].reshape(len(c), -1) for i, c in enumerate(containing)]
    damping = ridge * np.eye(r)
    for _ in range(sweeps):
        for i in range(n):
            products = moved[:, others[i]].prod(axis=2)
            right = products @ fit.values[containing[i]] + 0.5 * ridge * moved[:, i]
            moved[:, i] = np.linalg.solve(products @ products.T + damping, right)
    return moved


def _residual(fit: EntryFit, model: Array) -> float:
    difference = float(np.linalg.norm((model - fit.values) * fit.scale))
    norm = fit.norm
    return difference / norm if norm else difference


def _trial(
    fit: EntryFit, points: Array, weights: Array, normal: Array, gradient: Any, damping: float
) -> tuple[Array, Array]:
    """Take one damped step; points return to unit length, their sizes go to the weights."""
    diagonal = np.real(np.diag(normal))
    damped = normal + np.diag(damping * np.maximum(diagonal, 1e-8 * diagonal.max()))
    try:
        factor = scipy.linalg.cho_factor(damped, lower=True, check_finite=False)
        step = scipy.linalg.cho_solve(factor, -gradient, check_finite=False)
    except np.linalg.LinAlgError:
        return points, weights
    r, n = points.shape
    moved = points + step[r:].reshape(n, r).T
    lengths = np.linalg.norm(moved, axis=1)
    if not np.all(np.isfinite(lengths)) or lengths.min(initial=1.0) < 1e-12:
        return points, weights
    new_points = moved / lengths[:, None]
    new_weights = (weights + step[:r]) * lengths**fit.order
    return new_points, new_weights


def _objective(fit: EntryFit, points: Array, weights: Array, ridge: float) -> float:
    residual = _residual(fit, weights @ evaluate_monomials(points, fit.indices))
    return float(np.sqrt(residual**2 + ridge * np.linalg.norm(weights) ** 2 / fit.norm**2))


def _add_ridge(
    normal: Array, gradient: Array, points: Array, weights: Array, ridge: float, order: int
) -> None:
    """One more residual for each term: its weight, moved to unit points."""
    if not ridge:
        return
    r, n = points.shape
    rows = np.zeros((r, r * (n + 1)), dtype=normal.dtype)
    rows[:, :r] = np.eye(r)
    for s in range(r):
        rows[s, r + s :: r] = order * weights[s] * points[s].conj()
    normal += ridge * rows.conj().T @ rows
    gradient += ridge * rows.conj().T @ weights


def _normal_equations(fit: EntryFit, points: Array, weights: Array) -> tuple[Array, Array]:
    """``J^H J`` and ``J^H residual``, assembled over blocks of entries."""
    r, n = points.shape
    size = r * (n + 1)
    dtype = np.result_type(points, weights)
    normal, gradient = np.zeros((size, size), dtype), np.zeros(size, dtype)
    step = max(_CHUNK // size, 1)
    for begin in range(0, len(fit.values), step):
        part = slice(begin, begin + step)
        indices, scale = fit.indices[part], fit.scale[part]
        jacobian, monomials = _jacobian(points, weights, indices)
        difference = (weights @ monomials - fit.values[part]) * scale
        jacobian *= scale[:, None]
        normal += jacobian.conj().T @ jacobian
        gradient += jacobian.conj().T @ difference
    return normal, gradient


def _jacobian(points: Array, weights: Array, indices: Array) -> tuple[Array, Array]:
    """Differentiate by the weights, then by the coordinates (coordinate-major); and monomials."""
    (r, n), (count, m) = points.shape, indices.shape
    factors = points[:, indices]  # (r, count, m)
    before = np.ones((m + 1, r, count), dtype=points.dtype)
    after = np.ones((m + 1, r, count), dtype=points.dtype)
    for t in range(m):
        before[t + 1] = before[t] * factors[:, :, t]
        after[m - t - 1] = after[m - t] * factors[:, :, m - t - 1]
    by_points = np.zeros((count, n, r), dtype=np.result_type(points, weights))
    rows = np.arange(count)
    for t in range(m):
        by_points[rows, indices[:, t]] += (weights[:, None] * before[t] * after[t + 1]).T
    return np.concatenate([before[m].T, by_points.reshape(count, n * r)], axis=1), before[m]
