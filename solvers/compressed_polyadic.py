"""Polyadic decomposition by compression: sketch, start, least squares on the core, exact finish."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.solvers.generalized_eigenvalue_start import generalized_eigenvalue_starts
from tensoralg.solvers.polyadic_competition import Competition
from tensoralg.solvers.polyadic_least_squares import LeastSquaresIteration
from tensoralg.solvers.polyadic_residual import squared_norm
from tensoralg.solvers.polyadic_solution import PolyadicSolution
from tensoralg.solvers.tensor_sketch import TensorSketch, tensor_sketch

__all__ = ["compressed_polyadic"]

FloatArray = NDArray[np.float64]
Callback = Callable[[int, float, Sequence[FloatArray]], Any]

_MARGIN = 4  # columns of the first bases beyond the rank
_WORTHWHILE = 0.5  # a core of more than this part of the tensor is not worth the sketch
_CHEAP = 0.1  # wider bases after the first solution must leave a core smaller than this part
_TINY = 2**13  # entries below which the sketch costs more than it saves
_FINISH_DAMPING = 1e-6
_WIDENING = 1e-6  # growth of the fit in the first full step that calls for wider bases
_LEAST_FULL_STEPS = 20
_SMALL = 2**17  # entries up to which a tensor is copied to float64
_WIDE_STEPS, _WIDE_TOL = 60, 1e-7
_N_PENCILS = 4
_START_SCALE = 0.5  # per mode; small starts fall into fewer local optima
_NO_GAIN = "a core would be no smaller"
_N_CANDIDATES = 4  # starts that are tried for each that is run to its end
_N_CLEAR_CANDIDATES = 3  # where only noise lies beyond the rank: nearly all starts succeed
_QUICK, _QUICK_FACTOR = 2**14, 2  # entries of other cores on which twice as many are tried
_NOISE_FACTOR = 6.0  # selected directions of noise hold up to about four times their share


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
    mask: NDArray[np.bool_] | None = None,
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
        Starts that are run to their ends, the best of which is kept; twice as many on a small
        core. For each, three or four are tried for a few steps, unless the first converges at
        once.
    max_iter : int, default 500
        Largest number of steps, those of other starts not counted; the finish may take twenty
        in any case.
    tol : float, default 1e-8
        Steps end when the fit grows by no more than this.
    callback : callable, optional
        Called as ``callback(iteration, fit, factors)`` after every step, also those on the core;
        a truthy return stops all.
    rng : int, Generator or None
        Seed of the sketch and the starts.
    policy : PrecisionPolicy, optional
        Precision of the products in the sketch; the finish is exact whatever it is.
    mask : bool ndarray of the tensor's shape, optional
        True: observed. Tensors with missing cells are not compressed.

    Returns
    -------
    PolyadicSolution
        `history` has the steps of the start that was kept and of the finish; `message` names the
        fits of all starts and what was compressed. `starts` has the final fit of the start that
        was kept and those that the others reached on the core.

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
            mask=None if mask is None else mask.T,
        )
        return replace(solution, factors=solution.factors[::-1])
    generator = np.random.default_rng(rng)
    run = _Run(tensor, rank, max_iter, tol, callback, generator, policy, mask)
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
        mask: NDArray[np.bool_] | None,
    ) -> None:
        self.tensor, self.rank, self.max_iter, self.tol = tensor, rank, max_iter, tol
        self.callback, self.generator, self.policy = callback, generator, policy
        self.mask = mask
        self.norm = math.sqrt(squared_norm(tensor, mask=mask))
        self.history: list[float] = []
        self.notes: list[str] = []
        self.fits: list[float] = []  # of several starts, the one that is kept first
        self.competition = Competition(max_iter, tol)
        self.widths: list[int] = []  # of the first core
        self.is_clear = False  # whether only noise lies beyond the rank
        self.is_stopped = False
        self.n_steps = 0

    def solve(self, n_starts: int) -> PolyadicSolution:
        """Compress if it pays, start, and finish on the tensor."""
        widths = self._widths(self.rank + _MARGIN)
        if self.mask is not None or not self._pays(widths, _WORTHWHILE):
            return self._solve_directly(n_starts)
        sketch = self._sketch(widths)
        self.is_clear = self._is_noise_beyond(sketch)
        if not self.is_clear:
            wider = self._first_wider()
            if self._pays(wider, _WORTHWHILE):
                sketch = self._sketch(wider)
        self.widths = list(sketch.core.shape)
        self.notes.append(f"compressed to {_by(self.widths)}")
        factors = self._solve_core(sketch, self._starts(sketch.core), n_starts)
        return self._finish(factors, may_widen=True)

    def _sketch(
        self, widths: Sequence[int], containing: Sequence[FloatArray] | None = None
    ) -> TensorSketch:
        """Compress the tensor to a core of these dimensions."""
        return tensor_sketch(
            self.tensor, widths, rng=self.generator, policy=self.policy, containing=containing
        )

    def _widths(self, width: int) -> list[int]:
        """Columns of the bases: no mode needs more than it or all the others have."""
        size = math.prod(self.tensor.shape)
        return [min(n, width, size // n) for n in self.tensor.shape]

    def _first_wider(self) -> list[int]:
        """Bases to start with where the spectrum has no gap after the rank."""
        wide = self._widths(3 * self.rank + _MARGIN)
        if math.prod(wide) <= _QUICK:
            return wide
        return self._widths(3 * self.rank // 2 + _MARGIN)

    def _pays(self, widths: Sequence[int], part: float) -> bool:
        """Whether a core of these dimensions is worth a sketch."""
        size = math.prod(self.tensor.shape)
        return size > _TINY and math.prod(widths) <= part * size and self.norm > 0.0

    def _is_noise_beyond(self, sketch: TensorSketch) -> bool:
        """Whether the directions beyond the rank hold no more than their share of white noise."""
        core = sketch.core
        square = self.norm**2
        missed = max(square - float(np.linalg.norm(core)) ** 2, 0.0)
        size = math.prod(self.tensor.shape)
        per_entry = missed / max(1, size - core.size)
        for mode, width in enumerate(core.shape):
            rows = np.moveaxis(core, mode, 0).reshape(width, -1)
            beyond = np.linalg.eigvalsh(rows @ rows.T)[: width - self.rank]
            allowed = _NOISE_FACTOR * per_entry * core.size / width
            if len(beyond) and beyond.mean() > allowed + 1e-12 * square:
                return False
        return True

    def _starts(self, core: FloatArray) -> Iterator[list[FloatArray]]:
        """Yield generalised eigenvectors where there are any, then random factors for ever."""
        found = generalized_eigenvalue_starts(
            core, self.rank, n_pencils=_N_PENCILS, rng=self.generator
        )
        if found:
            yield found[0][1]
        while True:
            yield self._random_start(core.shape, float(np.linalg.norm(core)))

    def _random_start(self, shape: Sequence[int], norm: float) -> list[FloatArray]:
        """Draw normal factors of a model about as large as the tensor."""
        scale = _START_SCALE * (norm / math.sqrt(self.rank * math.prod(shape))) ** (1 / len(shape))
        return [scale * self.generator.standard_normal((n, self.rank)) for n in shape]

    def _solve_core(
        self, sketch: TensorSketch, starts: Iterator[list[FloatArray]], n_starts: int
    ) -> list[FloatArray]:
        """Find the best solution of the core; expand it."""
        iterations = (LeastSquaresIteration(sketch.core, start) for start in starts)
        best, fits = self._best(iterations, n_starts, sketch.core.size, self._core_callback(sketch))
        self.history.extend(self._full_fit(sketch, fit) for fit in best.history)
        self._note_fits([self._full_fit(sketch, fit) for fit in fits])
        return sketch.expand(best.factors)

    def _best(
        self,
        iterations: Iterator[LeastSquaresIteration],
        n_starts: int,
        size: int,
        callback: Callback | None,
    ) -> tuple[LeastSquaresIteration, list[float]]:
        """Let starts compete on a tensor of this size; the best, and the finalists' fits."""
        each = _N_CLEAR_CANDIDATES if self.is_clear else _N_CANDIDATES
        finalists = n_starts * (_QUICK_FACTOR if size <= _QUICK and not self.is_clear else 1)
        best, fits = self.competition.best(
            iterations, each * finalists, finalists, callback, first_may_win=n_starts == 1
        )
        self.is_stopped = self.competition.is_stopped
        return best, fits

    def _note_fits(self, fits: Sequence[float]) -> None:
        """Report the fits of several starts."""
        if len(fits) > 1:
            self.fits = list(fits)
            self.notes.append("fits of the starts: " + ", ".join(f"{fit:.6f}" for fit in fits))

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
        return lambda k, fit, factors: callback(
            self._count(), self._full_fit(sketch, fit), sketch.expand(factors)
        )

    def _full_callback(self) -> Callback | None:
        """Count on from the steps that were done before."""
        callback = self.callback
        if callback is None:
            return None
        return lambda k, fit, factors: callback(self._count(), fit, factors)

    def _count(self) -> int:
        """Return the number of the next step, counted through all starts."""
        self.n_steps += 1
        return self.n_steps

    def _finish(self, factors: Sequence[FloatArray], *, may_widen: bool) -> PolyadicSolution:
        """Full steps from the factors, over wider bases if the first shows that these pay."""
        iteration = LeastSquaresIteration(
            self.tensor, factors, damping=_FINISH_DAMPING, norm=self.norm
        )
        if self.is_stopped:
            return self._solution(iteration, "stopped")
        before = iteration.fit
        status = iteration.run(1, self.tol, self._full_callback())
        if status == "max_iter" and iteration.fit - before > _WIDENING and may_widen:
            for times in (3, 2):
                widths = self._widths(times * self.rank + _MARGIN)
                is_wider = math.prod(widths) > 1.5 * math.prod(self.widths)
                if is_wider and self._pays(widths, _CHEAP):
                    self.history.extend(iteration.history)
                    return self._widen(iteration.factors, widths)
        if status == "max_iter":
            least = min(_LEAST_FULL_STEPS, self.max_iter)
            steps = max(least, self.max_iter - len(self.history)) - 1
            status = iteration.run(steps, self.tol, self._full_callback())
        return self._solution(iteration, status)

    def _widen(self, factors: list[FloatArray], widths: Sequence[int]) -> PolyadicSolution:
        """Go on over wider bases that contain the present factors."""
        sketch = self._sketch(widths, containing=factors)
        self.notes.append(f"then to {_by(sketch.core.shape)}")
        start = [basis.T @ factor for basis, factor in zip(sketch.bases, factors, strict=True)]
        iteration = LeastSquaresIteration(sketch.core, start, damping=_FINISH_DAMPING)
        steps = min(_WIDE_STEPS, self.max_iter)
        status = iteration.run(steps, max(self.tol, _WIDE_TOL), self._core_callback(sketch))
        self.is_stopped = status == "stopped"
        self.history.extend(self._full_fit(sketch, fit) for fit in iteration.history)
        return self._finish(sketch.expand(iteration.factors), may_widen=False)

    def _solve_directly(self, n_starts: int) -> PolyadicSolution:
        """Run all starts on the tensor itself."""
        tensor = self.tensor
        missing = 0 if self.mask is None else self.mask.size - int(self.mask.sum())
        self.notes.append(f"not compressed: {'cells are missing' if missing else _NO_GAIN}")
        small = isinstance(tensor, np.ndarray) and tensor.size <= _SMALL
        if small:
            tensor = tensor.astype(np.float64)
        starts: Iterator[list[FloatArray]]
        if small and not missing:
            starts = self._starts(tensor)
        else:
            # missing cells are taken to be as large as the others
            size = math.prod(tensor.shape)
            norm = self.norm * math.sqrt(size / max(1, size - missing))
            starts = (self._random_start(tensor.shape, norm) for _ in itertools.count())
        iterations = (
            LeastSquaresIteration(tensor, start, norm=self.norm, mask=self.mask) for start in starts
        )
        best, fits = self._best(
            iterations, n_starts, math.prod(tensor.shape), self._full_callback()
        )
        self._note_fits(fits)
        return self._solution(best, self.competition.status_of(best))

    def _solution(self, iteration: LeastSquaresIteration, status: str) -> PolyadicSolution:
        """Put the history together and name what was done."""
        found = iteration.solution(status)
        history = np.array([*self.history, *iteration.history])
        return replace(
            found,
            factors=tuple(_beside(self.tensor, factor) for factor in found.factors),
            n_iter=len(history),
            history=history,
            message="; ".join([found.message, *self.notes]),
            starts=np.array([found.fit, *self.fits[1:]] if self.fits else []),
        )


def _beside(tensor: Any, factor: FloatArray) -> Any:
    """Move a factor to where the tensor is."""
    if isinstance(tensor, np.ndarray) or hasattr(tensor, "slabs"):
        return factor
    return namespace_of(tensor).asarray(factor, device=device_of(tensor))


def _by(shape: Sequence[int]) -> str:
    """Dimensions as text."""
    return " x ".join(map(str, shape))
