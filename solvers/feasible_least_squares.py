"""Fit weighted power products to square-free moments by feasible least squares.

The model is a measure of ``r`` weighted points in ``R^d``. Its square-free moments up to order
``m`` are matched to given ones by Levenberg-Marquardt. Plain least squares lets components run
away (a weight tends to 0 while its point tends to infinity); extra rows keep the iterates inside
what a mixture can be: total weight one, weights above a floor, second moments of the points at
most the total second moment of the data.

The normal matrix needs no Jacobian: inner products of square-free monomials are elementary
symmetric polynomials, ``sum_{|a|=q} z^a y^a = e_q(z_1 y_1, .., z_d y_d)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import rank_square_free
from tensoralg.core.monomials import graded_indices

__all__ = ["FeasibleFit", "feasible_least_squares", "normal_matrix", "square_free_products"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FeasibleFit:
    """Weighted points whose square-free moments match given ones.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Weights of the points.
    points : ndarray of shape (r, d)
        The points.
    objective : float
        Half the squared norm of all rows, the feasibility rows included.
    residual : float
        Norm of the moment mismatch divided by the norm of the moments.
    n_iter : int
        Accepted and rejected steps together.
    converged : bool
        Whether the gradient or the step fell below the tolerance.
    """

    weights: Array
    points: Array
    objective: float
    residual: float
    n_iter: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """How the monomials of each degree grow out of those one degree lower."""

    parents: tuple[NDArray[np.int64], ...]  # by degree, positions within a degree
    last: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    parent: NDArray[np.int64]  # of all degrees, positions in the whole list
    coordinate: NDArray[np.int64]


@lru_cache(maxsize=16)
def _tree(dimension: int, order: int) -> _Tree:
    parents, last, sizes = [], [], [1]
    for indices in graded_indices(dimension, order)[1:]:
        if len(indices) == 0:
            break
        parents.append(rank_square_free(indices[:, :-1], dimension))
        last.append(np.ascontiguousarray(indices[:, -1]))
        sizes.append(len(indices))
    begins = np.concatenate([[0], np.cumsum(sizes)])
    none = np.zeros(1, dtype=np.int64)  # the constant has no parent
    return _Tree(
        tuple(parents),
        tuple(last),
        tuple(sizes),
        np.concatenate([none, *(p + begin for p, begin in zip(parents, begins, strict=False))]),
        np.concatenate([none, *last]),
    )


def square_free_products(points: ArrayLike, order: int) -> tuple[Array, ...]:
    """Evaluate all square-free monomials of degree 0 to `order` at given points.

    Parameters
    ----------
    points : array_like of shape (r, d)
        The points.
    order : int
        Highest degree.

    Returns
    -------
    tuple of ndarray
        One array of shape (r, C(d, q)) for each degree q that has monomials, in the order of
        :func:`tensoralg.core.monomials.graded_indices`.

    Examples
    --------
    >>> [p.tolist() for p in square_free_products([[2.0, 3.0, 5.0]], 2)]
    [[[1.0]], [[2.0, 3.0, 5.0]], [[6.0, 10.0, 15.0]]]
    """
    z = np.asarray(points, dtype=np.float64)
    tree = _tree(z.shape[1], order)
    products = [np.ones((len(z), 1))]
    for parent, last in zip(tree.parents, tree.last, strict=True):
        products.append(products[-1][:, parent] * z[:, last])
    return tuple(products)


def normal_matrix(weights: Array, points: Array, degree_weights: Array) -> Array:
    """Evaluate ``J^T J`` of the square-free moments for the unknowns (weights, points row by row).

    Parameters
    ----------
    weights : ndarray of shape (r,)
        Weights of the points.
    points : ndarray of shape (r, d)
        The points.
    degree_weights : ndarray of shape (m + 1,)
        Factor of the rows of each degree.

    Returns
    -------
    ndarray of shape (r (d + 1), r (d + 1))
        The normal matrix; its inverse times the variance of the moments is the covariance of a
        least-squares fit.

    Examples
    --------
    >>> import numpy as np
    >>> normal_matrix(np.array([0.5]), np.array([[2.0]]), np.ones(2)).tolist()
    [[5.0, 1.0], [1.0, 0.25]]
    """
    from tensoralg.solvers.feasible_kernels import fill_normal_matrix

    r, d = points.shape
    normal = np.empty((r * (d + 1), r * (d + 1)))
    factors = np.asarray(degree_weights, dtype=np.float64)
    fill_normal_matrix(_plain(weights), _plain(points), factors**2, normal)
    return normal


def _plain(array: Array) -> Array:
    """Return a writable contiguous array, as the kernels take it; a copy where it is not one."""
    return np.require(array, dtype=np.float64, requirements=["C", "W"])


def _violations(weights: Array, points: Array, bound: Array, least: float) -> tuple[Array, Array]:
    """Excess of every second moment and relative deficit of every weight; 0 where feasible."""
    excess = np.maximum(weights @ points**2 - bound, 0.0)
    # relative to the floor: an absolute violation would cost less than the noise it absorbs
    return excess, np.maximum(1.0 - weights / least, 0.0)


def _violation_jacobian(
    weights: Array, points: Array, excess: Array, deficit: Array, least: float
) -> tuple[Array, Array]:
    """Active feasibility rows and their (small, dense) Jacobian, without the penalty."""
    r, d = points.shape
    over, under = np.flatnonzero(excess), np.flatnonzero(deficit)
    jacobian = np.zeros((len(over) + len(under), r * (d + 1)))
    for row, j in enumerate(over):
        jacobian[row, :r] = points[:, j] ** 2
        jacobian[row, r + j :: d] = 2.0 * weights * points[:, j]
    jacobian[len(over) + np.arange(len(under)), under] = -1.0 / least
    return np.concatenate([excess[over], deficit[under]]), jacobian


class _Problem:
    """The rows of the least-squares problem at one set of unknowns."""

    def __init__(
        self,
        moments: Sequence[Array],
        dimension: int,
        bound: Array,
        minimum_weight: float,
        penalty: float,
    ) -> None:
        self.moments = np.concatenate([np.asarray(m, dtype=np.float64) for m in moments])
        self.tree = _tree(dimension, len(moments) - 1)
        self.bound, self.minimum_weight, self.penalty = bound, minimum_weight, penalty
        self.degree_weights = np.ones(len(moments))
        self.degree_weights[0] = penalty
        self.squared = np.repeat(self.degree_weights**2, self.tree.sizes)

    def residuals(self, weights: Array, points: Array) -> tuple[Array, Array]:
        """Square-free products of all degrees, shape (M, r), and the mismatch of the moments."""
        from tensoralg.solvers.feasible_kernels import push_forward

        tree = self.tree
        products, residual = np.empty((len(tree.parent), len(weights))), np.empty(len(tree.parent))
        transposed = np.ascontiguousarray(points.T)
        push_forward(
            _plain(weights),
            transposed,
            tree.parent,
            tree.coordinate,
            self.moments,
            products,
            residual,
        )
        return products, residual

    def objective(self, weights: Array, points: Array) -> float:
        _, residual = self.residuals(weights, points)
        excess, deficit = _violations(weights, points, self.bound, self.minimum_weight)
        violated = self.penalty**2 * (excess @ excess + deficit @ deficit)
        return 0.5 * float(self.squared @ residual**2 + violated)

    def linearise(self, weights: Array, points: Array) -> tuple[Array, Array]:
        from tensoralg.solvers.feasible_kernels import pull_back

        products, residual = self.residuals(weights, points)
        by_weight, by_point = np.empty(len(weights)), np.empty(points.T.shape)
        pull_back(
            _plain(weights),
            np.ascontiguousarray(points.T),
            self.tree.parent,
            self.tree.coordinate,
            products,
            self.squared * residual,
            np.empty_like(products),
            by_weight,
            by_point,
        )
        gradient = np.concatenate([by_weight, by_point.T.ravel()])
        normal = normal_matrix(weights, points, self.degree_weights)
        excess, deficit = _violations(weights, points, self.bound, self.minimum_weight)
        if excess.any() or deficit.any():
            rows, jacobian = _violation_jacobian(
                weights, points, excess, deficit, self.minimum_weight
            )
            gradient += self.penalty**2 * (jacobian.T @ rows)
            normal += self.penalty**2 * (jacobian.T @ jacobian)
        return gradient, normal


def _levenberg_marquardt(
    problem: _Problem, weights: Array, points: Array, tol: float, max_iter: int
) -> tuple[Array, Array, float, int, bool]:
    r, d = points.shape
    unknowns = np.concatenate([weights, points.ravel()])

    def split(x: Array) -> tuple[Array, Array]:
        return x[:r], x[r:].reshape(r, d)

    value = problem.objective(weights, points)
    damping, growth, converged, n_iter = 1e-3, 2.0, False, 0
    gradient, normal = problem.linearise(weights, points)
    while n_iter < max_iter:
        n_iter += 1
        scaling = np.maximum(np.diag(normal), 1e-12)
        damped = normal.copy()
        damped.flat[:: len(damped) + 1] += damping * scaling
        # LAPACK itself: the matrices are small, checks of their entries would cost as much
        factor, failed = dpotrf(damped.T, lower=True, overwrite_a=True)
        if failed:
            damping *= 10.0
            continue
        step = -dpotrs(factor, gradient, lower=True)[0]
        trial = unknowns + step
        trial_value = problem.objective(*split(trial))
        predicted = 0.5 * float(step @ (damping * scaling * step - gradient))
        gain = (value - trial_value) / predicted if predicted > 0 else -1.0
        if np.isfinite(trial_value) and gain > 0:
            small = np.linalg.norm(step) <= tol * (tol + np.linalg.norm(unknowns))
            flat = value - trial_value <= tol * value
            unknowns, value = trial, trial_value
            damping *= max(1.0 / 3.0, 1.0 - (2.0 * gain - 1.0) ** 3)
            growth = 2.0
            if small or flat or value == 0.0:
                converged = True
                break
            gradient, normal = problem.linearise(*split(unknowns))
        else:
            if np.linalg.norm(step) <= tol * (tol + np.linalg.norm(unknowns)):
                converged = True
                break
            damping *= growth
            growth *= 2.0
    return *split(unknowns), value, n_iter, converged


def feasible_least_squares(
    moments: Sequence[ArrayLike],
    weights: ArrayLike,
    points: ArrayLike,
    *,
    second_moments: ArrayLike | None = None,
    minimum_weight: float | None = None,
    penalty: float = 3.0,
    tol: float = 1e-10,
    max_iter: int = 100,
) -> FeasibleFit:
    """Match square-free moments by weighted points that stay feasible for a mixture.

    Parameters
    ----------
    moments : sequence of array_like
        Square-free moments by degree: entry q has shape (C(d, q),), in the order of
        :func:`tensoralg.core.monomials.graded_indices`; entry 0 is the total mass ``[1.0]``.
    weights : array_like of shape (r,)
        Weights to start from.
    points : array_like of shape (r, d)
        Points to start from.
    second_moments : array_like of shape (d,), optional
        Upper bounds of ``sum_s w_s z_sj**2``; default 1 (standardised data).
    minimum_weight : float, optional
        Weights below it are pushed up; default ``0.1 / r``.
    penalty : float, default 3.0
        Factor of the feasibility rows.
    tol : float, default 1e-10
        Relative size of a step, or of the decrease, at which the iteration has converged.
    max_iter : int, default 100
        Largest number of steps.

    Returns
    -------
    FeasibleFit
        The best point seen, with its objective and residual.

    Raises
    ------
    ShapeError
        If the shapes of `moments`, `weights` and `points` do not belong together.
    ValueError
        If `minimum_weight`, `penalty` or `max_iter` is not positive.

    Notes
    -----
    Normal equations by elementary symmetric polynomials cost ``O(r**2 d**2 m)``; the dense
    Jacobian of ``sum_q C(d, q)`` rows is never formed. Levenberg-Marquardt with the damping rule
    of Nielsen (1999).

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500, section 4 (the refinement; the feasibility rows
       are ours).

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[1.0, 0.5, -0.2], [-1.0, 0.1, 0.3]])
    >>> moments = [0.5 * p.sum(axis=0) for p in square_free_products(points, 3)]
    >>> fit = feasible_least_squares(moments, [0.4, 0.6], points + 0.1, second_moments=[2, 2, 2])
    >>> bool(fit.residual < 1e-6)
    True
    """
    w = np.array(weights, dtype=np.float64)
    z = np.array(points, dtype=np.float64)
    if z.ndim != 2 or w.shape != z.shape[:1] or len(w) == 0:
        raise ShapeError(
            f"weights of shape (r,) and points of shape (r, d) are needed, r >= 1; "
            f"got {w.shape} and {z.shape}"
        )
    r, d = z.shape
    by_degree = [np.asarray(m, dtype=np.float64) for m in moments]
    sizes = [len(i) for i in graded_indices(d, len(by_degree) - 1)]
    if [m.shape for m in by_degree] != [(n,) for n in sizes]:
        raise ShapeError(
            f"moments must have the lengths {sizes} (square-free monomials of each degree in "
            f"{d} variables); got {[m.shape for m in by_degree]}"
        )
    by_degree = by_degree[: len(_tree(d, len(by_degree) - 1).sizes)]
    bound = np.ones(d) if second_moments is None else np.asarray(second_moments, dtype=np.float64)
    least = 0.1 / r if minimum_weight is None else float(minimum_weight)
    for name, value in (("minimum_weight", least), ("penalty", penalty), ("max_iter", max_iter)):
        if not 0 < value < np.inf:
            raise ValueError(f"{name} must be positive and finite; got {value!r}")
    problem = _Problem(by_degree, d, np.broadcast_to(bound, (d,)), least, penalty)
    w, z, value, n_iter, converged = _levenberg_marquardt(problem, w, z, tol, max_iter)
    _, mismatch = problem.residuals(w, z)
    relative = np.linalg.norm(mismatch) / np.linalg.norm(problem.moments)
    return FeasibleFit(w, z, value, float(relative), n_iter, converged)
