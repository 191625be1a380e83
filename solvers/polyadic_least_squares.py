"""Levenberg-Marquardt iteration for the polyadic decomposition of a dense tensor."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.solvers.polyadic_gradient import residual_gradient
from tensoralg.solvers.polyadic_residual import squared_norm
from tensoralg.solvers.polyadic_solution import PolyadicSolution

__all__ = ["LeastSquaresIteration", "polyadic_least_squares"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Callback = Callable[[int, float, Sequence[FloatArray]], Any]

_MAX_CONJUGATE_STEPS = 60
_LARGEST_DAMPING = 1e10
_SMALLEST_DAMPING = 1e-15
_TRUSTED_DAMPING = 1e-5  # below it a step is practically undamped
_EPSILON = 1e-15
_SHORT_STEP = 1e-3  # shorter steps, relative to the factors, need no acceleration
_LARGEST_BEND = 0.75  # acceleration over velocity beyond which the second order is not trusted
_DEGENERATE = 1e3  # norm of the largest term over the tensor's: such terms cancel


def polyadic_least_squares(
    tensor: Any,
    factors: Sequence[FloatArray],
    *,
    max_iter: int = 200,
    tol: float = 1e-8,
    mask: NDArray[np.bool_] | None = None,
    damping: float = 1e-3,
    callback: Callback | None = None,
) -> PolyadicSolution:
    """Fit a polyadic model by damped Gauss-Newton steps in all factors at once.

    A step solves ``(J'J + D) p = -g`` by conjugate gradients, preconditioned by the diagonal
    blocks of the modes, and bends it by geodesic acceleration; J'J and the acceleration come
    from Gram matrices of the factors, so that only the residual and the gradient touch the
    tensor, in one pass. Near an exact decomposition the
    steps converge quadratically, and swamps of nearly collinear terms, where alternating least
    squares stalls, are crossed in tens of steps.

    Parameters
    ----------
    tensor : ndarray, shape (n_1, .., n_N), or TensorBlocks
        float32 or float64, N >= 2, of moderate size (neither 1e-100 nor 1e100).
    factors : sequence of N ndarrays, shapes (n_k, r)
        Where to start: the model is ``sum_s prod_k factors[k][i_k, s]``.
    max_iter : int, default 200
        Largest number of steps, rejected ones included.
    tol : float, default 1e-8
        The iteration ends when the fit grows by no more than this twice in a row. While the
        residual still shrinks by a tenth per step it goes on, so that exact tensors are
        decomposed to machine precision.
    mask : bool ndarray of the tensor's shape, optional
        True: observed. J'J is then that of the full tensor, which bounds the one of the observed
        cells from above: convergence is linear at the rate of the missing part.
    damping : float, default 1e-3
        D at the start, relative to the mean diagonal of J'J in each mode.
    callback : callable, optional
        Called as ``callback(iteration, fit, factors)`` after every step; a truthy return stops.

    Returns
    -------
    PolyadicSolution
        Never worse than the start; the terms' norms are shared out equally among the modes.

    References
    ----------
    .. [1] L. Sorber, M. Van Barel, L. De Lathauwer, "Optimization-based algorithms for tensor
       decompositions", SIAM Journal on Optimization 23 (2013), sections 3 and 4.
    .. [2] K. Madsen, H. B. Nielsen, O. Tingleff, "Methods for non-linear least squares problems",
       second edition, Technical University of Denmark (2004), section 3.2.
    .. [3] M. K. Transtrum, J. P. Sethna, "Improvements to the Levenberg-Marquardt algorithm for
       nonlinear least-squares minimization", arXiv 1201.5885 (2012): geodesic acceleration.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.normal(size=(n, 2)) for n in (4, 5, 6))
    >>> start = [rng.normal(size=(n, 2)) for n in (4, 5, 6)]
    >>> found = polyadic_least_squares(np.einsum("is,js,ks->ijk", A, B, C), start)
    >>> found.status, round(found.fit, 9)
    ('converged', 1.0)
    """
    iteration = LeastSquaresIteration(tensor, factors, mask=mask, damping=damping)
    return iteration.solution(iteration.run(max_iter, tol, callback))


_MESSAGES = {
    "converged": "the fit no longer grows",
    "max_iter": "the fit still grew when max_iter was reached; raise max_iter or tol",
    "stopped": "the callback stopped the iteration",
    "degenerate": "terms grow and cancel each other: no best approximation of this rank may "
    "exist; lower the rank",
}


class LeastSquaresIteration:
    """The iteration of `polyadic_least_squares`, to be continued at will.

    Parameters
    ----------
    tensor, factors, mask, damping
        As there.
    norm : float, optional
        Norm of the tensor, where it is known.

    Examples
    --------
    >>> ones = [np.ones((n, 1)) for n in (2, 3, 4)]
    >>> iteration = LeastSquaresIteration(np.full((2, 3, 4), 2.0), ones)
    >>> iteration.fit, iteration.run(20, 1e-8), round(iteration.fit, 9)
    (0.5, 'converged', 1.0)
    """

    def __init__(
        self,
        tensor: Any,
        factors: Sequence[FloatArray],
        *,
        mask: NDArray[np.bool_] | None = None,
        damping: float = 1e-3,
        norm: float | None = None,
    ) -> None:
        if norm is None:
            norm = math.sqrt(squared_norm(tensor, mask=mask))
        self.tensor, self.mask, self.norm = tensor, mask, norm
        self.offsets = np.concatenate([[0], np.cumsum(tensor.shape)]).astype(np.int64)
        self.flat = np.concatenate([np.asarray(f, dtype=np.float64) for f in factors])
        self.damping, self.growth = damping, 2.0
        self.history: list[float] = []
        if norm == 0.0:
            self.flat = np.zeros_like(self.flat)
        scales = _balancing_scales(self.flat, self.offsets)
        self.flat = self.flat * scales
        self.value, self.gradient = self._evaluate(self.flat)
        self.first_gradient = math.sqrt(_square(self.gradient))
        self._linearise()

    @property
    def factors(self) -> list[FloatArray]:
        """The current factors, as views."""
        return self._split(self.flat)

    @property
    def fit(self) -> float:
        """One minus the relative residual."""
        return 1.0 - self._relative(self.value)

    def run(self, max_iter: int, tol: float, callback: Callback | None = None) -> str:
        """Step until the fit no longer grows.

        Parameters
        ----------
        max_iter : int
            Largest number of steps.
        tol : float
            Smallest growth of the fit.
        callback : callable, optional
            As in `polyadic_least_squares`.

        Returns
        -------
        str
            "converged", "max_iter" or "stopped".
        """
        if self.norm == 0.0 or self.flat.shape[1] == 0:
            return "converged"
        slow = 0
        for _ in range(max_iter):
            before = self._relative(self.value)
            step, predicted = self._propose()
            # growth of the fit that the model foresees
            foreseen = before - self._relative(max(self.value - predicted, 0.0))
            trusted = self.damping <= _TRUSTED_DAMPING
            if trusted and foreseen <= 0.1 * tol and foreseen <= 0.1 * before:
                return "converged"
            ratio = self._try(step, predicted)
            gain = before - self._relative(self.value)
            self.history.append(self.fit)
            if callback is not None and callback(len(self.history), self.fit, self.factors):
                return "stopped"
            if ratio is None:
                if self.damping > _LARGEST_DAMPING or not predicted > _EPSILON * self.value:
                    return "converged"
            elif gain <= tol and gain <= 0.1 * before:
                # one step is enough where it was undamped and did what the model foresaw
                slow += 2 if trusted and 0.5 < ratio < 1.5 else 1
                if slow >= 2:
                    return "converged"
            else:
                slow = 0
        return "max_iter"

    def solution(self, status: str) -> PolyadicSolution:
        """Put the current factors in a solution.

        Parameters
        ----------
        status : str
            What `run` returned.

        Returns
        -------
        PolyadicSolution
            Its status is "degenerate" instead of "max_iter" where huge terms cancel.
        """
        terms = np.prod([np.linalg.norm(f, axis=0) for f in self.factors], axis=0)
        if status == "max_iter" and terms.size and terms.max() > _DEGENERATE * self.norm:
            status = "degenerate"
        return PolyadicSolution(
            factors=tuple(self.factors),
            fit=self.fit,
            status=status,
            n_iter=len(self.history),
            history=np.array(self.history),
            message=_MESSAGES[status],
        )

    def _propose(self) -> tuple[FloatArray, float]:
        """Find a step; return it with the decrease of the linear model.

        To the velocity p is added half the acceleration that keeps to the bend of the valley.
        """
        from tensoralg.solvers.polyadic_normal_equations import (
            conjugate_gradients,
            curvature_gradient,
        )

        size = math.sqrt(_square(self.gradient))
        forcing = max(1e-4, min(0.1, math.sqrt(size / self.first_gradient))) if size else 0.1
        diagonal = np.einsum("nss->ns", self.but_one)
        # the same for all terms: damped by their own diagonal, small terms would be lost to
        # the large ones before these fit
        scale = np.repeat(diagonal.mean(axis=1, keepdims=True), diagonal.shape[1], axis=1)
        ridge = np.maximum(self.damping * scale, 1e-15 * diagonal.max())
        inverses = np.linalg.inv(self.but_one + ridge[:, :, None] * np.eye(self.flat.shape[1]))
        matrix = (self.flat, self.offsets, self.but_one, self.but_two, ridge, inverses)
        step, predicted, _ = conjugate_gradients(
            self.gradient, *matrix, _MAX_CONJUGATE_STEPS, forcing
        )
        length = math.sqrt(_square(step))
        if length > _SHORT_STEP * math.sqrt(_square(self.flat)):
            bend = np.empty_like(step)
            curvature_gradient(step, self.flat, self.offsets, self.but_two, bend)
            acceleration, _, _ = conjugate_gradients(bend, *matrix, _MAX_CONJUGATE_STEPS, 0.1)
            ratio = math.sqrt(_square(acceleration)) / length
            step = step + 0.5 * min(1.0, _LARGEST_BEND / max(ratio, _EPSILON)) * acceleration
        return step, predicted

    def _try(self, step: FloatArray, predicted: float) -> float | None:
        """Take a step if it pays; return its gain over the predicted one, None if refused."""
        trial = self.flat + step
        value, gradient = self._evaluate(trial)
        if not (value < self.value and predicted > 0):
            self.damping *= self.growth
            self.growth *= 2.0
            return None
        ratio = (self.value - value) / predicted
        scales = _balancing_scales(trial, self.offsets)
        self.flat, self.value, self.gradient = trial * scales, value, gradient / scales
        self.damping *= max(1.0 / 3.0, 1.0 - (2.0 * ratio - 1.0) ** 3)
        self.damping = max(self.damping, _SMALLEST_DAMPING)
        self.growth = 2.0
        self._linearise()
        return ratio

    def _evaluate(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Half the squared residual and its gradient, stacked like the factors."""
        value, gradients = residual_gradient(self.tensor, self._split(flat), mask=self.mask)
        return value, np.concatenate(gradients)

    def _linearise(self) -> None:
        """Products of the Gram matrices that make up J'J."""
        from tensoralg.solvers.polyadic_normal_equations import gram_products

        self.but_one, self.but_two = gram_products(self.flat, self.offsets)

    def _split(self, flat: FloatArray) -> list[FloatArray]:
        """Cut a stacked array into the blocks of the modes, as views."""
        return [flat[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def _relative(self, value: float) -> float:
        """Norm of the residual relative to the tensor's."""
        return math.sqrt(2.0 * value) / self.norm if self.norm else 0.0


def _square(array: FloatArray) -> float:
    """Sum of squares."""
    return float(np.einsum("is,is->", array, array))


def _balancing_scales(flat: FloatArray, offsets: IntArray) -> FloatArray:
    """Scales of all columns after which a term has the same norm in every mode.

    A column of zeros leaves its term as it is: the term vanishes anyhow.
    """
    norms = np.sqrt(np.add.reduceat(flat * flat, offsets[:-1], axis=0))
    safe = np.where((norms > 0).all(axis=0), norms, 1.0)
    scales = np.exp(np.log(safe).mean(axis=0)) / safe
    return np.repeat(scales, np.diff(offsets), axis=0)
