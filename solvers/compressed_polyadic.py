"""Polyadic decomposition by compression: sketch, start, least squares on the core, exact finish."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.solvers.generalized_eigenvalue_start import generalized_eigenvalue_starts
from tensoralg.solvers.polyadic_least_squares import LeastSquaresIteration
from tensoralg.solvers.polyadic_residual import squared_norm
from tensoralg.solvers.polyadic_solution import PolyadicSolution
from tensoralg.solvers.tensor_sketch import TensorSketch, tensor_sketch

__all__ = ["compressed_polyadic"]

FloatArray = NDArray[np.float64]
Callback = Callable[[int, float, Sequence[FloatArray]], Any]

_MARGIN = 4  # columns of the first bases beyond the rank
_WORTHWHILE = 0.5  # a core of more than this part of the tensor is not worth the sketch
_TINY = 2**13  # entries below which the sketch costs more than it saves
_FINISH_DAMPING = 1e-6
_WIDENING = 1e-6  # growth of the fit in the first full step that calls for wider bases
_N_PENCILS = 4


def compressed_polyadic(
    tensor: Any,
    rank: int,
    *,
    n_starts: int = 1,
    max_iter: int = 500,
    tol: float = 1e-8,
    callback: Callback | None = None,
    rng: int | np.random.Generator | None = None,
    policy: Any = None,
) -> PolyadicSolution:
    """Decompose a dense tensor through a small core that holds nearly all of it.

    Three passes sketch the tensor to a core of about (r + 4)^N; generalised eigenvalues and
    random factors start damped Gauss-Newton steps there; the best result is expanded and
    finished by the same steps on the tensor itself, with float64 residuals. Where the first full
    step shows that the bases miss part of the model, wider ones are sketched that contain it.
    Without compression (tiny tensors, a rank near or above the dimensions) the steps run on the
    tensor from the start.

    Parameters
    ----------
    tensor : ndarray, shape (n_1, .., n_N), or TensorBlocks
        float32 or float64, finite, N >= 2, of moderate size.
    rank : int
        Number of terms, r >= 1.
    n_starts : int, default 1
        Starts on the core, each run to its end; the best is kept.
    max_iter : int, default 500
        Largest number of steps per start, and again for the finish.
    tol : float, default 1e-8
        Steps end when the fit grows by no more than this.
    callback : callable, optional
        Called as ``callback(iteration, fit, factors)`` after every step, also those on the core;
        a truthy return stops all.
    rng : int, Generator or None
        Seed of the sketch and the starts.
    policy : PrecisionPolicy, optional
        Precision of the products in the sketch; the finish is exact whatever it is.

    Returns
    -------
    PolyadicSolution
        `history` has the steps of the start that was kept and of the finish; `message` names the
        fits of all starts and what was compressed.

    References
    ----------
    .. [1] R. Bro, C. A. Andersson, "Improving the speed of multiway algorithms, part II:
       compression", Chemometrics and Intelligent Laboratory Systems 42 (1998).
    .. [2] L. Sorber, M. Van Barel, L. De Lathauwer, "Optimization-based algorithms for tensor
       decompositions", SIAM Journal on Optimization 23 (2013).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.normal(size=(30, 3)) for _ in range(3))
    >>> found = compressed_polyadic(np.einsum("is,js,ks->ijk", A, B, C), 3, rng=0)
    >>> found.status, round(found.fit, 9)
    ('converged', 1.0)
    """
    if _is_reversed(tensor):
        turned = _turned_callback(callback)
        solution = compressed_polyadic(
            tensor.T,
            rank,
            n_starts=n_starts,
            max_iter=max_iter,
            tol=tol,
            callback=turned,
            rng=rng,
            policy=policy,
        )
        return _with(solution, factors=solution.factors[::-1])
    run = _Run(tensor, rank, max_iter, tol, callback, np.random.default_rng(rng), policy)
    return run.solve(n_starts)


def _is_reversed(tensor: Any) -> bool:
    """Whether an array lies in memory with its first mode running fastest."""
    return (
        isinstance(tensor, np.ndarray)
        and tensor.flags.f_contiguous
        and not tensor.flags.c_contiguous
    )


def _turned_callback(callback: Callback | None) -> Callback | None:
    """Show the factors in the caller's order of modes."""
    if callback is None:
        return None
    return lambda k, fit, factors: callback(k, fit, factors[::-1])


def _with(solution: PolyadicSolution, **changes: Any) -> PolyadicSolution:
    """Copy a solution with other contents."""
    fields = ("factors", "fit", "status", "n_iter", "history", "message")
    return PolyadicSolution(**{**{f: getattr(solution, f) for f in fields}, **changes})


class _Run:
    """One call: the tensor, the settings, and what was done so far."""

    def __init__(
        self,
        tensor: Any,
        rank: int,
        max_iter: int,
        tol: float,
        callback: Callback | None,
        generator: np.random.Generator,
        policy: Any,
    ) -> None:
        self.tensor, self.rank, self.max_iter, self.tol = tensor, rank, max_iter, tol
        self.callback, self.generator, self.policy = callback, generator, policy
        self.norm = math.sqrt(squared_norm(tensor))
        self.history: list[float] = []
        self.notes: list[str] = []
        self.is_stopped = False

    def solve(self, n_starts: int) -> PolyadicSolution:
        """Compress if it pays, start, and finish on the tensor."""
        widths = self._widths(self.rank + _MARGIN)
        if not self._pays(widths):
            return self._solve_directly(n_starts)
        sketch = tensor_sketch(self.tensor, widths, rng=self.generator, policy=self.policy)
        self.notes.append(f"compressed to {_by(sketch.core.shape)}")
        factors = self._solve_core(sketch, self._starts(sketch.core, n_starts))
        if self.is_stopped:
            return self._finish(factors, 0)
        return self._finish(factors, 1)

    def _widths(self, width: int) -> list[int]:
        """Columns of the bases: no mode needs more than it or all the others have."""
        size = math.prod(self.tensor.shape)
        return [min(n, width, size // n) for n in self.tensor.shape]

    def _pays(self, widths: Sequence[int]) -> bool:
        """Whether a core of these dimensions is worth a sketch."""
        size = math.prod(self.tensor.shape)
        return size > _TINY and math.prod(widths) <= _WORTHWHILE * size and self.norm > 0.0

    def _starts(self, core: FloatArray, n_starts: int) -> list[list[FloatArray]]:
        """Generalised eigenvectors where there are any, and random factors."""
        found = generalized_eigenvalue_starts(
            core, self.rank, n_pencils=_N_PENCILS, rng=self.generator
        )
        starts = [factors for _, factors in found[:1]]
        while len(starts) < n_starts:
            starts.append(self._random_start(core.shape, float(np.linalg.norm(core))))
        return starts

    def _random_start(self, shape: Sequence[int], norm: float) -> list[FloatArray]:
        """Draw normal factors of a model about as large as the tensor."""
        scale = (norm / math.sqrt(self.rank * math.prod(shape))) ** (1.0 / len(shape))
        return [scale * self.generator.standard_normal((n, self.rank)) for n in shape]

    def _solve_core(
        self, sketch: TensorSketch, starts: Sequence[Sequence[FloatArray]]
    ) -> list[FloatArray]:
        """Run all starts on the core; expand the best."""
        best: LeastSquaresIteration | None = None
        fits = []
        for start in starts:
            iteration = LeastSquaresIteration(sketch.core, start)
            status = iteration.run(self.max_iter, self.tol, self._core_callback(sketch))
            self.is_stopped = status == "stopped"
            fits.append(self._full_fit(sketch, iteration.fit))
            if best is None or iteration.value < best.value:
                best = iteration
            if self.is_stopped:
                break
        assert best is not None
        self.history.extend(self._full_fit(sketch, fit) for fit in best.history)
        if len(fits) > 1:
            self.notes.append("fits of the starts: " + ", ".join(f"{fit:.6f}" for fit in fits))
        return sketch.expand(best.factors)

    def _full_fit(self, sketch: TensorSketch, core_fit: float) -> float:
        """Fit of the tensor from that of the core: what the bases miss is orthogonal."""
        inside = float(np.linalg.norm(sketch.core))
        missed = max(self.norm**2 - inside**2, 0.0)
        return 1.0 - math.sqrt(missed + ((1.0 - core_fit) * inside) ** 2) / self.norm

    def _core_callback(self, sketch: TensorSketch) -> Callback | None:
        """Show expanded factors and the fit of the tensor."""
        callback = self.callback
        if callback is None:
            return None
        done = len(self.history)
        return lambda k, fit, factors: callback(
            done + k, self._full_fit(sketch, fit), sketch.expand(factors)
        )

    def _finish(self, factors: Sequence[FloatArray], widened: int) -> PolyadicSolution:
        """Full steps from the factors, over wider bases if the first shows that these pay."""
        iteration = LeastSquaresIteration(
            self.tensor, factors, damping=_FINISH_DAMPING, norm=self.norm
        )
        if self.is_stopped:
            return self._solution(iteration, "stopped")
        before = iteration.fit
        status = iteration.run(1, self.tol, self._later_callback())
        if status == "max_iter" and iteration.fit - before > _WIDENING and widened:
            widths = self._widths((1 + widened) * self.rank + _MARGIN)
            if widened <= 2 and self._pays(widths):
                self.history.extend(iteration.history)
                return self._widen(iteration.factors, widths, widened)
        if status == "max_iter":
            status = iteration.run(self.max_iter, self.tol, self._later_callback())
        return self._solution(iteration, status)

    def _widen(
        self, factors: list[FloatArray], widths: Sequence[int], widened: int
    ) -> PolyadicSolution:
        """Go on over wider bases that contain the present factors."""
        sketch = tensor_sketch(
            self.tensor, widths, rng=self.generator, policy=self.policy, containing=factors
        )
        self.notes.append(f"then to {_by(sketch.core.shape)}")
        start = [basis.T @ factor for basis, factor in zip(sketch.bases, factors, strict=True)]
        return self._finish(self._solve_core(sketch, [start]), widened + 1)

    def _later_callback(self) -> Callback | None:
        """Count on from the steps that were done before."""
        callback, done = self.callback, len(self.history)
        if callback is None:
            return None
        return lambda k, fit, factors: callback(done + k, fit, factors)

    def _solve_directly(self, n_starts: int) -> PolyadicSolution:
        """Run all starts on the tensor itself."""
        small = isinstance(self.tensor, np.ndarray) and self.tensor.size <= 2**20
        tensor = self.tensor.astype(np.float64) if small else self.tensor
        self.notes.append("not compressed: the core would be no smaller")
        starts: list[list[FloatArray]] = []
        if small:
            starts = self._starts(tensor, n_starts)
        while len(starts) < n_starts:
            starts.append(self._random_start(tensor.shape, self.norm))
        best: LeastSquaresIteration | None = None
        best_status, fits = "", []
        for start in starts:
            iteration = LeastSquaresIteration(tensor, start, norm=self.norm)
            status = iteration.run(self.max_iter, self.tol, self.callback)
            fits.append(iteration.fit)
            if best is None or iteration.value < best.value:
                best, best_status = iteration, status
            if status == "stopped":
                best_status = status
                break
        assert best is not None
        if len(fits) > 1:
            self.notes.append("fits of the starts: " + ", ".join(f"{fit:.6f}" for fit in fits))
        return self._solution(best, best_status)

    def _solution(self, iteration: LeastSquaresIteration, status: str) -> PolyadicSolution:
        """Put the history together and name what was done."""
        found = iteration.solution(status)
        history = np.array([*self.history, *iteration.history])
        return _with(
            found,
            n_iter=len(history),
            history=history,
            message="; ".join([found.message, *self.notes]),
        )


def _by(shape: Sequence[int]) -> str:
    """Dimensions as text."""
    return " x ".join(map(str, shape))
