"""Expectation-maximization for mixtures of diagonal Gaussians, on raw arrays and in one fused pass.

The data come as chunks from a callable, once per iteration, and are never copied: rows are
standardised inside the kernel. Parameters are in standardised coordinates throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tensoralg.solvers.anderson_acceleration import AndersonAcceleration
from tensoralg.solvers.expectation_parameters import (
    FloatArray,
    Parameters,
    bounded_weights,
    check_parameters,
    coordinates,
    feasible,
    from_coordinates,
    information,
)
from tensoralg.solvers.expectation_starts import initial_parameters, kmeans_plus_plus
from tensoralg.solvers.expectation_steps import (
    Chunks,
    Data,
    Statistics,
    check_floor,
    check_standardisation,
    collect,
    log_density,
    maximise,
    responsibilities,
    worst_row,
)

__all__ = [
    "EMResult",
    "expectation_maximization",
    "initial_parameters",
    "kmeans_plus_plus",
    "log_density",
    "responsibilities",
]

_LOCAL = 1e-2  # gain per unit weight below which steps are extrapolated
_ROUNDING = 1e-13  # gains below this are noise
_DEAD = 1e-8  # share of the total weight below which a component explains nothing
_MAX_RESTARTS = 3  # per component


@dataclass(frozen=True, slots=True, eq=False)
class EMResult:
    """What expectation-maximization found, in standardised coordinates.

    Parameters
    ----------
    weights : (r,) array
    means, covariances : (r, d) arrays
        Variances in `covariances`.
    log_likelihood : float
        Per unit weight, in the last pass: of the parameters before the last M step, hence a lower
        bound for the returned ones.
    n_iter : int
        Passes over the data.
    status : str
        "converged", "max_iter", "collapsed" (components were removed) or "interrupted".
    message : str
        What happened and what to do about it.
    history : (n,) array
        Log-likelihood per unit weight of every accepted pass; it does not decrease, up to
        rounding, except after a restart.
    floored : (r, d) bool array
        Variances held at the floor.
    restarted : tuple of int
        Indices (of the start) of the components that died and were started anew.
    kept : (r,) int array
        Indices (of the start) of the returned components.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray
    log_likelihood: float
    n_iter: int
    status: str
    message: str
    history: FloatArray
    floored: npt.NDArray[np.bool_]
    restarted: tuple[int, ...]
    kept: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("weights", "means", "covariances", "history", "floored", "kept"):
            array = np.array(getattr(self, name))
            array.flags.writeable = False
            object.__setattr__(self, name, array)


def expectation_maximization(
    chunks: Chunks,
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covariances: npt.ArrayLike,
    *,
    shift: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    tol: float = 1e-6,
    max_iter: int = 100,
    floor: npt.ArrayLike = 1e-6,
    minimum_weight: float = 0.0,
    missing: bool = False,
    acceleration: Literal["anderson"] | None = "anderson",
    callback: Callable[[int, float], Any] | None = None,
) -> EMResult:
    """Maximise the likelihood of a diagonal Gaussian mixture from a start.

    Parameters
    ----------
    chunks : callable
        Called once per pass; returns an iterable of ``(X, sample_weight)`` with X (n, d) and
        sample_weight (n,) or None. Rows of weight 0 count as deleted, whatever they hold. Where
        it has a method ``reduce(function, merge)``, passes go through that instead: it returns
        ``function(number, X, sample_weight)`` of all chunks, merged in pairs, from wherever the
        chunks are.
    weights : (r,) array_like
        Positive; normalised to sum 1.
    means, covariances : (r, d) array_like
        The start, in standardised coordinates (x - shift) / scale; `covariances` holds variances.
    shift, scale : (d,) array_like, optional
        0 and 1 when None.
    tol : float
        Stop when the log-likelihood per unit weight grew by less than this in a pass and, by
        extrapolation, less than this is still to come.
    max_iter : int
        Passes over the data, at most.
    floor : float or (d,) array_like
        Smallest variance, in standardised coordinates.
    minimum_weight : float
        Smallest mixing weight, below 1 / r.
    missing : bool
        NaN marks a missing cell. The likelihood is that of the observed cells (missing at random);
        labels are the only latent variables, so M steps are over observed cells and the observed
        likelihood never decreases.
    acceleration : {"anderson", None}
        Extrapolate once steps gain little. An extrapolated point that is not better than a plain
        step is dropped, at the cost of one pass, so the likelihood never decreases.
    callback : callable, optional
        Called as ``callback(iteration, log_likelihood)``; a truthy return stops.

    Returns
    -------
    EMResult

    Raises
    ------
    ShapeError
        An array does not fit the others.
    ValueError
        A number is out of its range, or a row holds NaN or inf.

    References
    ----------
    Dempster, Laird and Rubin, Maximum likelihood from incomplete data via the EM algorithm,
    J. R. Stat. Soc. B 39, 1977.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-3, 1, (500, 1)), rng.normal(3, 1, (500, 1))])
    >>> result = expectation_maximization(lambda: [(X, None)], [0.5, 0.5], [[-1], [1]], [[4], [4]])
    >>> result.status
    'converged'
    >>> bool(np.all(np.abs(result.means - [[-3], [3]]) < 0.2))
    True
    """
    start = check_parameters(weights, means, covariances)
    r, d = start.means.shape
    floor = check_floor(floor, d)
    _check_options(tol, max_iter, minimum_weight, r, acceleration)
    data = Data(chunks, *check_standardisation(shift, scale, d), bool(missing))
    run = _Run(
        data,
        start,
        floor,
        minimum_weight,
        None if acceleration is None else AndersonAcceleration(),
    )
    return run.iterate(tol, max_iter, callback)


class _Run:
    """The state of one run: parameters, components still alive, history."""

    def __init__(
        self,
        data: Data,
        start: Parameters,
        floor: FloatArray,
        minimum_weight: float,
        acceleration: AndersonAcceleration | None,
    ) -> None:
        self.data, self.floor, self.minimum_weight = data, floor, minimum_weight
        self.acceleration = acceleration
        self.kept = np.arange(start.weights.size)
        self.restarts = np.zeros(start.weights.size, dtype=np.int64)
        self.history: list[float] = []
        self.gains: list[float] = []  # of plain steps in a row
        self.n_iter = 0
        self.parameters = feasible(start, floor, minimum_weight)  # the start, then M steps
        self.extrapolated: Parameters | None = None  # tried in place of `parameters`
        self.required = -np.inf  # likelihood of an extrapolated point that is accepted

    def iterate(
        self, tol: float, max_iter: int, callback: Callable[[int, float], Any] | None
    ) -> EMResult:
        status = "max_iter"
        while self.n_iter < max_iter and status == "max_iter":
            point = self.parameters if self.extrapolated is None else self.extrapolated
            statistics = collect(self.data, point)
            self.n_iter += 1
            if self.extrapolated is not None and not statistics.log_likelihood >= self.required:
                self._reject()
            elif self._advance(point, statistics) < tol:
                status = "converged"
            if callback is not None and callback(self.n_iter, self.history[-1]):
                status = "interrupted"
        return self._result(status, tol)

    def _reject(self) -> None:
        if self.acceleration is not None:
            self.acceleration.reject()
        self.extrapolated = None

    def _advance(self, point: Parameters, statistics: Statistics) -> float:
        """Take the M step from an accepted point; return the gain, last or to come, if larger."""
        likelihood = statistics.log_likelihood
        gain = likelihood - self.history[-1] if self.history else np.inf
        self.history.append(likelihood)
        if self.extrapolated is None:
            self.gains.append(gain)
        elif self.acceleration is not None:
            self.gains.clear()
            self.acceleration.accept()
        self.parameters = maximise(point, statistics, self.floor, self.minimum_weight)
        self.extrapolated = None
        dead = np.flatnonzero(statistics.mass < _DEAD * statistics.total_weight)
        if dead.size:
            self._revive(dead)
            self.gains.clear()
            if self.acceleration is not None:
                self.acceleration.clear()
            return np.inf
        return max(gain, self._to_come(point, likelihood, gain))

    def _to_come(self, point: Parameters, likelihood: float, gain: float) -> float:
        """Extrapolate; estimate the likelihood that is still to be gained."""
        expected = _aitken(self.gains)
        if self.acceleration is None:
            return expected
        x, image = coordinates(point), coordinates(self.parameters)
        self.acceleration.remember(x, image)
        metric, unit = information(self.parameters)
        step = image - x
        least = 0.5 * float(metric @ step**2)  # what the plain step gains, to second order
        if gain > _LOCAL:
            return expected
        target = self.acceleration.extrapolate(metric, unit)
        if target is not None:
            self.extrapolated = feasible(
                from_coordinates(target, point.means.shape), self.floor, self.minimum_weight
            )
            # no worse than the plain step can be trusted to be
            self.required = likelihood + 0.5 * least
            expected = 0.5 * float((metric * step) @ (target - x))
        curvature = self.acceleration.curvature
        return max(expected, least / curvature) if curvature > 0.0 else np.inf

    def _revive(self, dead: npt.NDArray[np.int64]) -> None:
        """Start dead components at the worst-explained rows; remove those that died too often."""
        lost = self.restarts[self.kept[dead]] >= _MAX_RESTARTS
        alive = np.setdiff1d(np.arange(self.kept.size), dead)
        for index in dead[~lost]:
            self.restarts[self.kept[index]] += 1
            survivors = Parameters(*(array[alive] for array in self.parameters))
            weights = survivors.weights / survivors.weights.sum()
            center = weights @ survivors.means
            spread = weights @ (survivors.covariances + (survivors.means - center) ** 2)
            row = worst_row(self.data, survivors._replace(weights=weights))
            self.parameters.means[index] = np.where(np.isnan(row), center, row)
            self.parameters.covariances[index] = np.maximum(spread, self.floor)
            self.parameters.weights[index] = 1.0 / self.kept.size
            alive = np.append(alive, index)
        alive.sort()
        parameters = Parameters(*(array[alive] for array in self.parameters))
        weights = bounded_weights(parameters.weights, self.minimum_weight)
        self.parameters = parameters._replace(weights=weights)
        self.kept = self.kept[alive]

    def _result(self, status: str, tol: float) -> EMResult:
        removed = sorted(set(range(self.restarts.size)) - set(self.kept.tolist()))
        if removed and status != "interrupted":
            status = "collapsed"
        message = {
            "converged": f"the log-likelihood grows by less than tol={tol:g} per unit weight",
            "max_iter": f"tol={tol:g} was not met in {self.n_iter} passes; raise max_iter or tol",
            "interrupted": "the callback stopped the iteration",
            "collapsed": f"components {removed} died {_MAX_RESTARTS + 1} times and were removed; "
            "ask for fewer components",
        }[status]
        return EMResult(
            *self.parameters,
            log_likelihood=self.history[-1],
            n_iter=self.n_iter,
            status=status,
            message=message,
            history=np.array(self.history),
            floored=self.parameters.covariances <= self.floor,
            restarted=tuple(np.flatnonzero(self.restarts).tolist()),
            kept=self.kept,
        )


def _aitken(gains: list[float]) -> float:
    """Estimate the sum of the gains to come from the ratio of the last two."""
    if gains and abs(gains[-1]) < _ROUNDING:
        return 0.0
    if len(gains) < 2 or not 0.0 < gains[-1] < gains[-2]:
        return np.inf
    ratio = gains[-1] / gains[-2]
    return gains[-1] * ratio / (1.0 - ratio)


def _check_options(
    tol: float, max_iter: int, minimum_weight: float, r: int, acceleration: str | None
) -> None:
    if not tol >= 0:
        raise ValueError(f"tol: {tol!r}; expected a number >= 0")
    if max_iter != int(max_iter) or max_iter < 1:
        raise ValueError(f"max_iter: {max_iter!r}; expected an integer >= 1")
    if not 0 <= minimum_weight <= 1 / r:
        raise ValueError(f"minimum_weight: {minimum_weight!r}; expected 0 <= value <= 1/{r}")
    if acceleration not in ("anderson", None):
        raise ValueError(f"acceleration: {acceleration!r}; expected 'anderson' or None")
