"""Alternating least squares for the polyadic decomposition of a tensor of any order."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps
from tensoralg.solvers.anderson_acceleration import AndersonAcceleration
from tensoralg.solvers.polyadic_residual import squared_norm
from tensoralg.solvers.polyadic_solution import PolyadicSolution

__all__ = ["alternating_least_squares"]

FloatArray = NDArray[np.float64]
Callback = Callable[[int, float, Sequence[Any]], Any]

_FIRST_EXTRAPOLATION = 4
_LONGEST_GAP = 16  # sweeps between two evaluations of the residual
_CANCELLATION = 100.0


def alternating_least_squares(
    tensor: Any,
    factors: Sequence[Any],
    *,
    max_iter: int = 500,
    tol: float = 1e-8,
    nonnegative: bool = False,
    mask: Any = None,
    policy: Any = None,
    callback: Callback | None = None,
    accelerate: bool = True,
) -> PolyadicSolution:
    """Fit a polyadic model by solving for one factor at a time.

    Products with the tensor are computed in its own precision, each serving several factors and
    sweeps (`DimensionTree`); Gram matrices, solves and the residual that decides when to stop are
    float64. Where the Gram matrix is singular the solution of minimum norm is taken. Missing
    cells are filled in from the model, sweep after sweep. Sweeps are accelerated by Anderson
    mixing; a mixture that turns out worse is taken back, so that the fit never falls.

    Parameters
    ----------
    tensor : array, SparseTensor or TensorBlocks, shape (n_1, .., n_N)
        N >= 2, float32 or float64, finite where observed. A dense array is read where it lies if
        it is C-contiguous.
    factors : sequence of N arrays, shapes (n_k, r)
        Where to start, in the tensor's namespace.
    max_iter : int, default 500
        Sweeps at most.
    tol : float, default 1e-8
        Stop when the fit grows by no more per sweep; 0 never stops.
    nonnegative : bool, default False
        Keep all factors nonnegative, by hierarchical alternating least squares (HALS) with
        several inner passes. The start must be nonnegative.
    mask : bool array of the tensor's shape, optional
        True: observed. The fit is that over the observed cells.
    policy : PrecisionPolicy, optional
        Rounds the operands of the products with the tensor; the fit stays that of the tensor.
    callback : callable, optional
        Called after each sweep with its number, from 1, the fit and the factors; a truthy return
        stops.
    accelerate : bool, default True
        Whether to extrapolate; on the host only. Without, the iterates are those of plain
        alternating least squares.

    Returns
    -------
    PolyadicSolution
        The fit is evaluated in float64 from the entries' differences, also where the entries of
        `history` between two evaluations come from the expanded formula.

    Raises
    ------
    ValueError
        If a start is negative with ``nonnegative=True``, or a mask comes with a tensor that is
        no array.

    References
    ----------
    Kolda and Bader, Tensor decompositions and applications, SIAM Review 51, 2009.
    Ma and Solomonik, Efficient parallel CP decomposition with pairwise perturbation and
    multi-sweep dimension tree, IPDPS 2021 (the order of the products).
    Mitchell, Ye and De Sterck, Nesterov acceleration of alternating least squares for canonical
    tensor decomposition, Numer. Linear Algebra Appl. 27, 2020 (accelerated sweeps with restarts).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = [rng.standard_normal((n, 2)) for n in (4, 5, 6)]
    >>> start = [rng.standard_normal((n, 2)) for n in (4, 5, 6)]
    >>> tensor = np.einsum("is,js,ks->ijk", *truth)
    >>> solution = alternating_least_squares(tensor, start)
    >>> solution.status, round(solution.fit, 6)
    ('converged', 1.0)
    """
    _check(tensor, factors, nonnegative, mask)
    if squared_norm(tensor, mask=mask) == 0.0:
        return _zero_solution(factors)
    sweeps = AlternatingSweeps(tensor, factors, nonnegative=nonnegative, mask=mask, policy=policy)
    mixer = _Mixer(sweeps) if accelerate and isinstance(factors[0], np.ndarray) else None
    judge = _Judge(sweeps, tol)
    history: list[float] = []
    status = "max_iter"
    while len(history) < max_iter:
        if mixer is not None:
            mixer.extrapolate(len(history))
        sweeps.sweep()
        if mixer is not None and not mixer.accepts():
            history.append(history[-1])
        else:
            history.append(judge.look(len(history) + 1))
            if judge.has_restored and mixer is not None:
                mixer.clear()
        if callback is not None and callback(len(history), history[-1], sweeps.factors):
            status = "stopped"
            break
        if judge.is_satisfied:
            status = "converged"
            break
    return _solution(sweeps, status, history, judge, tol)


class _Judge:
    """Decides from float64 residuals when the fit has stopped growing.

    The formula only says when it is worth looking: a residual costs about a sweep. After a look
    in vain the next one waits twice as long, and the growth is averaged over the wait. The best
    model that was looked at is kept.
    """

    def __init__(self, sweeps: AlternatingSweeps, tol: float) -> None:
        self._sweeps = sweeps
        self._tol = tol
        self.is_satisfied = False
        self.has_restored = False
        self._looked: tuple[int, float] | None = None
        self._best: tuple[float, tuple[Any, ...]] | None = None
        self._offset = 0.0
        self._previous = -math.inf
        self._gap = 2

    def look(self, iteration: int) -> float:
        """Give the fit after a sweep, and see whether it still grows."""
        self.has_restored = False
        sweeps = self._sweeps
        estimate = sweeps.formula_fit + self._offset
        growth, self._previous = abs(estimate - self._previous), estimate
        if self._tol <= 0.0 or growth > max(self._tol, sweeps.formula_noise):
            return estimate
        since = iteration - self._looked[0] if self._looked is not None else self._gap
        if since < self._gap:
            return estimate
        fit = self._evaluate()
        if self._looked is not None:
            self.is_satisfied = abs(fit - self._looked[1]) <= self._tol * since
            self._gap = min(2 * self._gap, _LONGEST_GAP)
        self._looked = (iteration, fit)
        self._offset += fit - estimate
        self._previous = fit
        return fit

    def finish(self) -> tuple[float, tuple[Any, ...]]:
        """Give the best fit and its factors, those of the last sweep if nothing was better."""
        if not self.is_satisfied:
            self._evaluate()
        assert self._best is not None
        return self._best

    def _evaluate(self) -> float:
        """Evaluate the residual; go back to the best model if this one is worse."""
        sweeps = self._sweeps
        fit = sweeps.exact_fit()
        if self._best is None or fit >= self._best[0]:
            self._best = (fit, sweeps.factors)
        elif fit < self._best[0] - self._tol:
            sweeps.restore(self._best[1])
            self.has_restored = True
            return self._best[0]
        return fit


class _Mixer:
    """Anderson mixing of sweeps; a mixture after which the fit is lower is taken back."""

    def __init__(self, sweeps: AlternatingSweeps) -> None:
        self._sweeps = sweeps
        self._anderson = AndersonAcceleration(memory=8, longest_step=5.0)
        self._point: FloatArray | None = None
        self._safe: tuple[FloatArray, float] | None = None

    def extrapolate(self, iteration: int) -> None:
        """Move the model to where its sweeps seem to lead."""
        sweeps = self._sweeps
        self._safe = None
        if iteration >= _FIRST_EXTRAPOLATION:
            here = self._flat()
            mixture = self._anderson.extrapolate(np.ones_like(here), self._units(here))
            if mixture is not None:
                if sweeps.nonnegative:
                    mixture = np.maximum(mixture, 0.0)
                self._safe = (here, sweeps.formula_fit)
                sweeps.restore(self._split(mixture))
        self._point = self._flat()

    def accepts(self) -> bool:
        """Look at what the sweep made of the mixture, and take it back if that is worse."""
        sweeps = self._sweeps
        image = self._flat()
        if self._safe is not None and sweeps.formula_fit < self._safe[1] - sweeps.formula_noise:
            self._anderson.reject()
            sweeps.restore(self._split(self._safe[0]))
            sweeps.formula_fit = self._safe[1]
            return False
        if self._safe is not None:
            self._anderson.accept()
        assert self._point is not None
        self._anderson.remember(self._point, image)
        return True

    def clear(self) -> None:
        """Forget all pairs: the model has been replaced."""
        self._anderson.reject()

    def _flat(self) -> FloatArray:
        """All factors in one vector, every column of a term with the same norm."""
        return np.concatenate([factor.ravel() for factor in self._sweeps.balanced()])

    def _split(self, flat: FloatArray) -> list[FloatArray]:
        """Cut that vector into factors again."""
        rank = self._sweeps.rank
        bounds = np.cumsum([n * rank for n in self._sweeps.shape])[:-1]
        return [part.reshape(-1, rank) for part in np.split(flat, bounds)]

    def _units(self, flat: FloatArray) -> FloatArray:
        """Root mean square of the column that each coordinate is in."""
        parts = self._split(flat)
        spread = [np.sqrt(np.mean(part * part, axis=0)) for part in parts]
        floor = 1e-3 * max(float(np.max(s)) for s in spread)
        return np.concatenate(
            [
                np.broadcast_to(np.maximum(s, floor), part.shape).ravel()
                for s, part in zip(spread, parts, strict=True)
            ]
        )


def _check(tensor: Any, factors: Sequence[Any], nonnegative: bool, mask: Any) -> None:
    """Refuse what the sweeps would answer wrongly."""
    shape = tuple(int(n) for n in tensor.shape)
    if len(shape) < 2 or [tuple(f.shape) for f in factors] != [
        (n, factors[0].shape[1]) for n in shape
    ]:
        raise ValueError(
            f"factors: shapes {[tuple(f.shape) for f in factors]} do not model a tensor of shape "
            f"{shape}; accepted is one (dimension, rank) array per mode, two modes at least"
        )
    if nonnegative and any(bool(namespace_of(f).any(f < 0)) for f in factors):
        raise ValueError("factors: a start with nonnegative=True must be nonnegative")
    if mask is not None and (hasattr(tensor, "coordinates") or hasattr(tensor, "slabs")):
        raise ValueError(
            f"mask: not accepted with a {type(tensor).__name__}; pass the tensor as an array"
        )


def _zero_solution(factors: Sequence[Any]) -> PolyadicSolution:
    """Fit the zero tensor."""
    xp = namespace_of(*factors)
    zeros = tuple(xp.astype(factor, xp.float64) * 0.0 for factor in factors)
    return PolyadicSolution(
        zeros, 1.0, "converged", 0, np.zeros(0), "the tensor is zero: all terms are"
    )


def _solution(
    sweeps: AlternatingSweeps, status: str, history: list[float], judge: _Judge, tol: float
) -> PolyadicSolution:
    """Evaluate the fit of the last factors and say what happened."""
    n_iter = len(history)
    fit, factors = judge.finish()
    if history:
        history[-1] = fit
    ratio = sweeps.cancellation
    if status == "converged":
        message = f"the fit grows by less than {tol:g} per sweep"
    elif status == "stopped":
        message = f"the callback stopped it after sweep {n_iter}"
    else:
        message = f"the fit still grew after {n_iter} sweeps; raise max_iter or tol"
    if ratio > _CANCELLATION:
        if status == "max_iter":
            status = "degenerate"
        message += (
            f"; terms cancel: together they are {ratio:.2g} times the model, a sign that no best "
            "model of this rank exists (lower the rank, or ask for nonnegative factors)"
        )
    return PolyadicSolution(factors, fit, status, n_iter, np.array(history), message)
