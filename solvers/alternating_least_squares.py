"""Alternating least squares for the polyadic decomposition of a tensor of any order."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.solvers.alternating_mixing import SweepMixing
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps
from tensoralg.solvers.polyadic_exchange import exchanged_factors
from tensoralg.solvers.polyadic_solution import PolyadicSolution, zero_solution

__all__ = ["alternating_least_squares"]

Callback = Callable[[int, float, Sequence[Any]], Any]

_LONGEST_GAP = 16  # sweeps between two evaluations of the residual
_CANCELLATION = 10.0
_MOST_EXCHANGES = 8
_MOST_FALLS = 3
# an early look for a missing term: sweeps before it, and growth of the fit per sweep
_PATIENCE = 20
_STALL = 1e-4


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
    mixing; a mixture that turns out worse is taken back. Where they stall, a term that does little
    is exchanged for one that the residual shows to be missing; the best model is returned.

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
        Whether to extrapolate, and to exchange terms of a stationary model for one that it lacks.
        Without, the iterates are those of plain alternating least squares.

    Returns
    -------
    PolyadicSolution
        The fit is evaluated in float64 from the entries' differences, also where the entries of
        `history` between two evaluations come from the expanded formula. It may dip after an
        exchange of terms; the factors are then still the best ones.

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
    Walker and Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49, 2011.

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
    sweeps = AlternatingSweeps(tensor, factors, nonnegative=nonnegative, mask=mask, policy=policy)
    if sweeps.squared_norm == 0.0:
        return zero_solution(factors)
    mixing = SweepMixing(sweeps) if accelerate else None
    judge = _Judge(sweeps, mixing, tol)
    can_exchange = accelerate and mask is None and not nonnegative
    history: list[float] = []
    status = "max_iter"
    while len(history) < max_iter:
        if mixing is not None:
            mixing.extrapolate()
        sweeps.sweep()
        if mixing is not None and not mixing.accepts():
            history.append(history[-1])
        else:
            history.append(judge.look(len(history) + 1))
        if callback is not None and callback(len(history), history[-1], sweeps.factors):
            status = "stopped"
            break
        is_due = judge.is_satisfied or (len(history) >= _PATIENCE and judge.stalls_first_time())
        if is_due and can_exchange and _exchange(sweeps, mixing, judge):
            continue
        if judge.is_satisfied:
            status = "converged"
            break
    return _solution(sweeps, status, history, judge, tol)


def _exchange(sweeps: AlternatingSweeps, mixing: SweepMixing | None, judge: "_Judge") -> bool:
    """Exchange a term of a stationary model if that promises a better one."""
    if judge.exchanges >= _MOST_EXCHANGES or judge.has_exchanged_in_vain:
        return False
    factors = exchanged_factors(sweeps)
    if factors is None:
        return False
    sweeps.restore(factors)
    if mixing is not None:
        mixing.pause()
    judge.reopen()
    return True


class _Judge:
    """Decides from float64 residuals when the fit has stopped growing.

    The formula only says when it is worth looking: a residual costs about a sweep. After a look
    in vain the next one waits twice as long, and the growth is averaged over the wait. The best
    model that was looked at is kept.
    """

    def __init__(self, sweeps: AlternatingSweeps, mixing: SweepMixing | None, tol: float) -> None:
        self._sweeps = sweeps
        self._mixing = mixing
        self._tol = tol
        self.is_satisfied = False
        self.exchanges = 0
        self.has_exchanged_in_vain = False
        self._falls = 0
        self._has_stalled, self._growth = False, math.inf
        self._looked: tuple[int, float] | None = None
        self._best: tuple[float, tuple[Any, ...]] | None = None
        self._offset = 0.0
        self._previous = -math.inf
        self._gap = 2

    def look(self, iteration: int) -> float:
        """Give the fit after a sweep, and see whether it still grows."""
        sweeps = self._sweeps
        estimate = sweeps.formula_fit + self._offset
        growth, self._previous = abs(estimate - self._previous), estimate
        self._growth = growth
        if self._tol <= 0.0 or growth > max(self._tol, sweeps.formula_noise):
            return estimate
        since = iteration - self._looked[0] if self._looked is not None else self._gap
        if since < self._gap:
            return estimate
        fit, is_worse = self._evaluate()
        if is_worse:
            self.has_exchanged_in_vain = self.exchanges > 0
            self._falls += 1
            # rounded products keep the model in motion: it has stopped growing all the same
            self.is_satisfied = sweeps.is_coarse and self._falls >= _MOST_FALLS
            if self._mixing is not None:
                self._mixing.disappoint()
        elif self._looked is not None:
            is_slow = abs(fit - self._looked[1]) <= self._tol * since
            self.is_satisfied = is_slow and (self._mixing is None or self._mixing.has_helped())
            self._gap = min(2 * self._gap, _LONGEST_GAP)
        self._looked = (iteration, fit)
        self._offset += fit - estimate
        self._previous = fit
        return fit

    def stalls_first_time(self) -> bool:
        """Tell, once, that the fit hardly grows."""
        stalls = not self._has_stalled and abs(self._growth) < _STALL
        self._has_stalled = self._has_stalled or stalls
        return stalls

    def reopen(self) -> None:
        """Judge anew: a term of the model has been exchanged."""
        self.exchanges += 1
        self.is_satisfied = False
        self._looked, self._gap = None, 2

    def finish(self) -> tuple[float, tuple[Any, ...]]:
        """Give the best fit and its factors, those of the last sweep if nothing was better."""
        if not self.is_satisfied:
            self._evaluate()
        assert self._best is not None
        return self._best

    def _evaluate(self) -> tuple[float, bool]:
        """Evaluate the residual; go back to the best model if this one is worse."""
        sweeps = self._sweeps
        fit = sweeps.exact_fit()
        if self._best is None or fit >= self._best[0]:
            self._best = (fit, sweeps.factors)
        elif fit < self._best[0] - self._tol:
            sweeps.restore(self._best[1])
            return self._best[0], True
        return fit, False


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
