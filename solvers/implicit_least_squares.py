"""Least squares for implicit moments: Levenberg-Marquardt, its systems by conjugate gradients.

A step needs the gradient, one pass over the rows, and J^T J, which does not depend on the rows
(`tensoralg.solvers.implicit_gram`): from a good start a handful of passes suffices. Extra rows
keep the iterates inside what a mixture can be, as in
`tensoralg.solvers.feasible_least_squares`.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from tensoralg.solvers.implicit_gram import ImplicitGram
from tensoralg.solvers.implicit_moments import ImplicitEvaluation, ImplicitMoments

__all__ = ["ImplicitFit", "implicit_least_squares"]

Array = NDArray[np.float64]
_Pair = tuple[Array, Array]

_CONJUGATE_STEPS = 200
_CONJUGATE_TOLERANCE = 1e-8  # of the squared residual, in the norm of the preconditioner
_DAMPING = 1e-6
_LARGEST_DAMPING = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class ImplicitFit:
    """Weighted points whose square-free moments match those of the rows.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Weights of the points.
    points : ndarray of shape (r, d)
        The points.
    values : list of float
        The objective of the start and of every step that was taken, less a constant of the data,
        the feasibility rows included.
    n_iter : int
        Steps tried, one pass over the rows each; the start takes one more.
    converged : bool
        Whether a step fell below the tolerance.
    """

    weights: Array
    points: Array
    values: list[float]
    n_iter: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Feasibility:
    """Rows that grow where second moments exceed their bounds or weights sink below a floor."""

    bound: Array
    minimum_weight: float
    penalty: float

    def violations(self, weights: Array, points: Array) -> _Pair:
        over = np.maximum(weights @ points**2 - self.bound, 0.0)
        return over, np.maximum(1.0 - weights / self.minimum_weight, 0.0)

    def value(self, weights: Array, points: Array) -> float:
        over, under = self.violations(weights, points)
        return 0.5 * self.penalty**2 * float(over @ over + under @ under)

    def gradient(self, weights: Array, points: Array) -> _Pair:
        return self._transposed(weights, points, *self.violations(weights, points))

    def product(self, weights: Array, points: Array, direction: _Pair) -> _Pair:
        """Gauss-Newton matrix of the active rows times a direction."""
        over, under = self.violations(weights, points)
        u, v = direction
        change = u @ points**2 + 2.0 * weights @ (points * v)
        return self._transposed(
            weights, points, (over > 0) * change, (under > 0) * u / -self.minimum_weight
        )

    def _transposed(self, weights: Array, points: Array, over: Array, under: Array) -> _Pair:
        square = self.penalty**2
        by_weight = square * (points**2 @ over - under / self.minimum_weight)
        return by_weight, 2.0 * square * weights[:, None] * points * over


class _System:
    """The damped Gauss-Newton matrix at one iterate, and its preconditioner."""

    def __init__(
        self, iterate: _Pair, factors: Array, feasibility: _Feasibility, damping: float
    ) -> None:
        self._iterate, self._feasibility = iterate, feasibility
        weights, points = iterate
        self._gram = ImplicitGram(weights, points, factors)
        first = self._gram.kernels[1] * weights[:, None] * weights
        zeroth = self._gram.kernels[0]
        self._damping = damping * np.diag(zeroth), damping * np.diag(first)[:, None]
        self._factors = [
            scipy.linalg.cho_factor(matrix + np.diag((damping + 1e-10) * np.diag(matrix)))
            for matrix in (zeroth, first)
        ]

    def product(self, direction: _Pair) -> _Pair:
        u, v = self._gram.product(*direction)
        more = self._feasibility.product(*self._iterate, direction)
        (a, b), (x, y) = self._damping, direction
        return u + more[0] + a * x, v + more[1] + b * y

    def precondition(self, residual: _Pair) -> _Pair:
        u, v = (scipy.linalg.cho_solve(f, r) for f, r in zip(self._factors, residual, strict=True))
        return u, v

    def solve(self, right: _Pair) -> _Pair:
        """Solve by preconditioned conjugate gradients."""
        solution = np.zeros_like(right[0]), np.zeros_like(right[1])
        residual = right
        direction = step = self.precondition(residual)
        size = start = _inner(residual, step)
        for _ in range(_CONJUGATE_STEPS):
            if not size > _CONJUGATE_TOLERANCE * start:
                break
            image = self.product(direction)
            curvature = _inner(direction, image)
            if not curvature > 0:
                break
            solution = _moved(solution, size / curvature, direction)
            residual = _moved(residual, -size / curvature, image)
            step = self.precondition(residual)
            size, old = _inner(residual, step), size
            direction = _moved(step, size / old, direction)
        return solution


def _inner(left: _Pair, right: _Pair) -> float:
    return float(left[0] @ right[0] + np.vdot(left[1], right[1]))


def _moved(pair: _Pair, length: float, direction: _Pair) -> _Pair:
    return pair[0] + length * direction[0], pair[1] + length * direction[1]


def implicit_least_squares(
    moments: ImplicitMoments,
    weights: ArrayLike,
    points: ArrayLike,
    *,
    second_moments: ArrayLike | None = None,
    minimum_weight: float | None = None,
    penalty: float = 3.0,
    tol: float = 1e-3,
    max_iter: int = 10,
) -> ImplicitFit:
    """Match the square-free moments of rows by weighted points, from a start.

    Parameters
    ----------
    moments : ImplicitMoments
        The rows and the factors of the degrees.
    weights : array_like of shape (r,)
        Weights to start from.
    points : array_like of shape (r, d)
        Points to start from, in standardised coordinates.
    second_moments : array_like of shape (d,), optional
        Upper bounds of ``sum_s w_s z_sj**2``; default 1 (standardised rows).
    minimum_weight : float, optional
        Weights below it are pushed up; default ``0.1 / r``.
    penalty : float, default 3.0
        Factor of the feasibility rows, in units of the norm of the moments of the start.
    tol : float, default 1e-3
        Size of a step relative to the weights and points at which the iteration has converged.
    max_iter : int, default 10
        Largest number of steps tried.

    Returns
    -------
    ImplicitFit
        The best iterate.

    Raises
    ------
    ShapeError
        `weights`, `points`, `second_moments` and the rows do not fit together.
    ValueError
        `minimum_weight`, `penalty`, `tol` or `max_iter` is not positive and finite.

    Notes
    -----
    A step costs O(N d r m) operations for the pass over the rows, and O(r^2 d m^2) for every step
    of conjugate gradients. The preconditioner is the part of J^T J that couples equal coordinates
    of different points, up to terms of relative size 1 / d.

    References
    ----------
    .. [1] K. Levenberg, Q. Appl. Math. 2 (1944); D. Marquardt, J. SIAM 11 (1963): the damping.
    .. [2] J. Nocedal, S. J. Wright, "Numerical Optimization", 2nd ed., section 10.3: Gauss-Newton
       steps by conjugate gradients. The products with J^T J by elementary symmetric polynomials
       are ours.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((2, 40))
    >>> moments = ImplicitMoments(
    ...     lambda: [(points, None)], np.ones(4), shift=np.zeros(40), scale=np.ones(40))
    >>> fit = implicit_least_squares(
    ...     moments, [0.4, 0.6], points + 0.1, second_moments=np.full(40, 9.0), tol=1e-9)
    >>> bool(np.allclose(fit.points, points) and np.allclose(fit.weights, 0.5))
    True
    """
    w = np.array(weights, dtype=np.float64)
    z = np.array(points, dtype=np.float64)
    least = 0.1 / max(len(w), 1) if minimum_weight is None else float(minimum_weight)
    named = {"minimum_weight": least, "penalty": penalty, "tol": tol, "max_iter": max_iter}
    for name, number in named.items():
        if not 0 < number < np.inf:
            raise ValueError(f"{name} must be positive and finite; got {number!r}")
    seen = moments.evaluate(w, z)
    size = float(w @ ImplicitGram(w, z, moments.factors).kernels[0] @ w)
    bound = np.ones(z.shape[1]) if second_moments is None else np.asarray(second_moments, float)
    rows = _Feasibility(np.broadcast_to(bound, z.shape[1:]), least, penalty * float(np.sqrt(size)))
    return _levenberg_marquardt(moments, (w, z), rows, tol, max_iter, seen)


def _levenberg_marquardt(
    moments: ImplicitMoments,
    iterate: _Pair,
    rows: _Feasibility,
    tol: float,
    max_iter: int,
    seen: ImplicitEvaluation,
) -> ImplicitFit:
    damping, n_iter, converged = _DAMPING, 0, False
    values = [seen.value + rows.value(*iterate)]
    while n_iter < max_iter and not converged and damping < _LARGEST_DAMPING:
        n_iter += 1
        extra = rows.gradient(*iterate)
        right = -(seen.by_weight + extra[0]), -(seen.by_point + extra[1])
        try:
            step = _System(iterate, moments.factors, rows, damping).solve(right)
        except scipy.linalg.LinAlgError:  # a negative weight, or points that coincide
            damping = max(10.0 * damping, 1e-3)
            continue
        trial = _moved(iterate, 1.0, step)
        found = moments.evaluate(*trial)
        value = found.value + rows.value(*trial)
        small = max(_ratio(s, x) for s, x in zip(step, iterate, strict=True)) <= tol
        if value <= values[-1]:
            iterate, seen = trial, found
            values.append(float(value))
            damping /= 10.0
            converged = small
        else:
            # rounding decides below the tolerance
            converged = small
            damping *= 100.0
    return ImplicitFit(*iterate, values, n_iter, converged)


def _ratio(step: Array, whole: Array) -> float:
    return float(np.linalg.norm(step) / max(float(np.linalg.norm(whole)), 1e-300))
