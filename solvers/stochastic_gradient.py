"""Polyadic decomposition by block stochastic gradient descent on sampled fibres."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import PrecisionPolicy
from tensoralg.solvers.polyadic_probe import FitProbe
from tensoralg.solvers.polyadic_residual import relative_residual
from tensoralg.solvers.polyadic_solution import PolyadicSolution, zero_solution
from tensoralg.solvers.stochastic_steps import BlockSteps, StochasticSchedule

__all__ = ["stochastic_polyadic"]

Callback = Callable[[int, float, Sequence[Any]], Any]

_WINDOW = 5  # epochs over which growth is told from noise
_LEAST_DRIFT = 0.25  # share of the fit's movement that must be growth
_SMALLEST_SHRINK = 2.0**-16
_DIVERGED = 1.0  # a loss of fit that no noise explains


def stochastic_polyadic(
    tensor: Any,
    start_factors: Sequence[Any],
    *,
    max_iter: int = 500,
    tol: float = 1e-8,
    policy: PrecisionPolicy | None = None,
    callback: Callback | None = None,
    rng: int | np.random.Generator | None = None,
    schedule: StochasticSchedule | None = None,
) -> PolyadicSolution:
    """Fit a polyadic model by gradients from a few fibres, one factor per step.

    Each step draws a mode and fibres of it at random, and moves this mode's factor along the
    negative gradient of their squared error. A first stage that follows only the signs of the
    gradients can be asked for. Factors are kept in full precision (float32, or float64 for a
    float64 tensor without a low-precision policy); the policy rounds the operands of the
    products. A tensor that is read by slabs is passed once per epoch, in which the fibres of all
    its steps are gathered: memory stays bounded.

    Parameters
    ----------
    tensor : array or TensorBlocks, shape (n_1, .., n_N)
        N >= 2, float32 or float64, finite, of moderate magnitude.
    start_factors : sequence of N arrays, shapes (n_k, r)
        Where to start, in the tensor's namespace; the scale of the model is fitted first.
    max_iter : int, default 500
        Epochs at most.
    tol : float, default 1e-8
        Stop when the fit grows by no more per epoch; 0 never stops.
    policy : PrecisionPolicy, optional
        Formats and rounding of the operands.
    callback : callable, optional
        Called after each epoch with its number, from 1, the estimated fit and the factors; a
        truthy return stops.
    rng : int, numpy.random.Generator or None
        Source of everything random.
    schedule : StochasticSchedule, optional
        Samples, steps, their decay, the stage of signs.

    Returns
    -------
    PolyadicSolution
        The best model that was seen. `history` has the fit after each epoch, estimated from
        65 536 entries that stay the same (exact for small tensors); `fit` is evaluated over all
        entries in float64, and stands for the last of the history. An epoch whose steps diverged
        is taken back and shows as the best fit before.

    Raises
    ------
    ValueError
        A sparse tensor, an order below 2, or factors that do not fit the tensor.

    Notes
    -----
    Two stages, signs first and mixed precision after, are the idea of Yang, Shan and Zhang.
    Step sizes, samples, decay and formats here are ours.

    References
    ----------
    Z. Yang, J. Shan and Z. Zhang, "Hardware-efficient mixed-precision CP tensor decomposition",
    arXiv 2209.04003.
    X. Fu, S. Ibrahim, H.-T. Wai, C. Gao and K. Huang, "Block-randomized stochastic proximal
    gradient for low-rank tensor factorization", arXiv 1901.05529.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> truth = [generator.standard_normal((n, 2)) for n in (8, 9, 10)]
    >>> start = [generator.standard_normal((n, 2)) for n in (8, 9, 10)]
    >>> tensor = np.einsum("is,js,ks->ijk", *truth)
    >>> solution = stochastic_polyadic(tensor, start, rng=0)
    >>> solution.status, round(solution.fit, 4)
    ('converged', 1.0)
    """
    _check(tensor, start_factors)
    plan = StochasticSchedule() if schedule is None else schedule
    generator = np.random.default_rng(rng)
    probe = FitProbe(tensor, generator)
    if probe.squared_norm == 0.0:
        return zero_solution(start_factors)
    dtype = _working_dtype(tensor, start_factors, policy)
    steps = BlockSteps(
        start_factors,
        plan,
        dtype=dtype,
        norm=math.sqrt(probe.squared_norm),
        policy=policy,
        rng=generator,
    )
    steps.scale(probe.best_scale(steps.factors))
    count = plan.steps(tensor.shape, steps.rank, gathered=hasattr(tensor, "slabs"))
    pace = _Pace(plan, tol, probe.fit(steps.factors))
    best = steps.save()
    history: list[float] = []
    status = "max_iter"
    while len(history) < max_iter:
        with np.errstate(over="ignore", invalid="ignore"):  # told by the pace
            is_finite = steps.run(tensor, count, pace.shrink, signs=pace.follows_signs)
            fit = probe.fit(steps.factors) if is_finite else math.nan
        verdict = pace.look(fit)
        if verdict == "diverged":
            steps.restore(best)
        elif verdict == "best":
            best = steps.save()
        history.append(pace.best if verdict == "diverged" else fit)
        if callback is not None and callback(len(history), history[-1], steps.factors):
            status = "stopped"
            break
        if pace.is_satisfied:
            status = "converged"
            break
    steps.restore(best)
    return _solution(tensor, steps.factors, status, history, pace)


class _Pace:
    """Shrinks the steps when the fit has stopped growing, and says when that is for good.

    At a given step size the fit of noisy data ends in a random walk some way below the optimum,
    and half the step halves that gap. So steps are halved when the fit's movements over a few
    epochs cancel, and the search has converged when half the step gains nothing either.
    """

    def __init__(self, schedule: StochasticSchedule, tol: float, fit: float) -> None:
        self._schedule = schedule
        self._tol = tol
        self._recent: deque[float] = deque([fit], maxlen=_WINDOW + 1)
        self._fit_at_halving = fit
        self._since_halving = 0
        self._halved = 1.0
        self.best = fit
        self.epoch = 1
        self.divergences = 0
        self.is_satisfied = False

    @property
    def follows_signs(self) -> bool:
        """Whether the epoch to come belongs to the first stage."""
        return self.epoch <= self._schedule.sign_epochs

    @property
    def shrink(self) -> float:
        """Factor on the steps of the epoch to come."""
        if self.follows_signs:
            return self._halved * float(self.epoch**-0.5)
        decay = self._schedule.decay or 0.0
        return self._halved * float((self.epoch - self._schedule.sign_epochs) ** -decay)

    def look(self, fit: float) -> str:
        """Take note of an epoch's fit: "diverged", "best" so far, or "other"."""
        was_signs = self.follows_signs
        self.epoch += 1
        if math.isnan(fit) or fit < min(self.best, 0.0) - _DIVERGED:
            self.divergences += 1
            self._halve(least=0.0)
            return "diverged"
        is_best = fit >= self.best
        self.best = max(fit, self.best)
        self._recent.append(fit)
        self._since_halving += 1
        if not was_signs and self._since_halving > _WINDOW:
            self._judge()
        return "best" if is_best else "other"

    def _judge(self) -> None:
        """Halve the steps if the fit has not grown beyond its noise, or find it converged."""
        recent = np.array(self._recent)
        moves = np.diff(recent)
        drift, movement = float(moves.sum()), float(np.abs(moves).sum())
        still = drift <= self._tol * len(moves)
        if not still and drift >= _LEAST_DRIFT * movement:
            return
        gain = self.best - self._fit_at_halving
        if self._tol > 0.0 and still and gain <= self._tol * self._since_halving:
            self.is_satisfied = True
        elif self._schedule.decay is None:
            self._halve()

    def _halve(self, least: float = _SMALLEST_SHRINK) -> None:
        self._halved = max(0.5 * self._halved, min(least, self._halved))
        last = self._recent[-1]
        self._recent.clear()
        self._recent.append(last)
        self._fit_at_halving = self.best
        self._since_halving = 0


def _working_dtype(tensor: Any, factors: Sequence[Any], policy: PrecisionPolicy | None) -> Any:
    """Dtype of factors and products."""
    xp = namespace_of(*factors)
    if policy is not None:
        return xp.float64 if policy.multiply == "float64" else xp.float32
    return xp.float32 if "float32" in str(tensor.dtype) else xp.float64


def _check(tensor: Any, factors: Sequence[Any]) -> None:
    """Refuse what the steps cannot take."""
    if hasattr(tensor, "coordinates"):
        raise ValueError(
            "tensor: sampled fibres of a sparse tensor are nearly all zero; use alternating "
            "least squares"
        )
    shape = tuple(int(n) for n in tensor.shape)
    found = [tuple(factor.shape) for factor in factors]
    if len(shape) < 2 or found != [(n, factors[0].shape[1]) for n in shape]:
        raise ValueError(
            f"start_factors: shapes {found} do not model a tensor of shape {shape}; accepted is "
            "one (dimension, rank) array per mode, two modes at least"
        )


def _solution(
    tensor: Any, factors: tuple[Any, ...], status: str, history: list[float], pace: _Pace
) -> PolyadicSolution:
    """Evaluate the fit over all entries and say what happened."""
    fit = 1.0 - relative_residual(tensor, factors)
    n_iter = len(history)
    if history:
        history[-1] = fit
    message = {
        "converged": "the fit has stopped growing, with smaller steps too",
        "stopped": f"the callback stopped it after epoch {n_iter}",
        "max_iter": f"the fit had not settled after {n_iter} epochs; raise max_iter or tol",
    }[status]
    if n_iter and pace.divergences == n_iter:
        message = f"all {n_iter} epochs diverged; lower the step of the schedule"
    elif pace.divergences:
        message += f"; {pace.divergences} epochs diverged and were taken back with half the step"
    return PolyadicSolution(factors, fit, status, n_iter, np.array(history), message)
