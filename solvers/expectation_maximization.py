"""Expectation-maximization for mixtures of diagonal Gaussians, on raw arrays and in one fused pass.

The data come as chunks from a callable, once per iteration, and are never copied: rows are
standardised inside the kernel. Parameters are in standardised coordinates throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.solvers.expectation_starts import initial_parameters, kmeans_plus_plus
from tensoralg.solvers.expectation_steps import (
    Chunks,
    Data,
    FloatArray,
    Parameters,
    bounded_weights,
    check_floor,
    check_parameters,
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
    callback: Callable[[int, float], Any] | None = None,
) -> EMResult:
    """Maximise the likelihood of a diagonal Gaussian mixture from a start.

    Parameters
    ----------
    chunks : callable
        Called once per pass; returns an iterable of ``(X, sample_weight)`` with X (n, d) and
        sample_weight (n,) or None. Rows of weight 0 count as deleted, whatever they hold.
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
    _check_options(tol, max_iter, minimum_weight, r)
    data = Data(chunks, *check_standardisation(shift, scale, d), bool(missing))
    run = _Run(data, start, floor, minimum_weight)
    return run.iterate(tol, max_iter, callback)


class _Run:
    """The state of one run: parameters, components still alive, history."""

    def __init__(
        self, data: Data, start: Parameters, floor: FloatArray, minimum_weight: float
    ) -> None:
        self.data, self.floor, self.minimum_weight = data, floor, minimum_weight
        self.kept = np.arange(start.weights.size)
        self.restarts = np.zeros(start.weights.size, dtype=np.int64)
        self.history: list[float] = []
        self.n_iter = 0
        self.parameters = start._replace(
            weights=bounded_weights(start.weights, minimum_weight),
            covariances=np.maximum(start.covariances, floor),
        )

    def iterate(
        self, tol: float, max_iter: int, callback: Callable[[int, float], Any] | None
    ) -> EMResult:
        status = "max_iter"
        gains: list[float] = []
        while self.n_iter < max_iter:
            statistics = collect(self.data, self.parameters)
            self.n_iter += 1
            likelihood = statistics.log_likelihood
            if self.history:
                gains.append(likelihood - self.history[-1])
            self.history.append(likelihood)
            dead = np.flatnonzero(statistics.mass < _DEAD * statistics.total_weight)
            self.parameters = maximise(self.parameters, statistics, self.floor, self.minimum_weight)
            if dead.size:
                self._revive(dead)
                gains.clear()
            elif _is_converged(gains, tol):
                status = "converged"
            if callback is not None and callback(self.n_iter, likelihood):
                status = "interrupted"
            if status != "max_iter":
                break
        return self._result(status, tol)

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


def _is_converged(gains: list[float], tol: float) -> bool:
    """Whether the last gain and Aitken's estimate of all that are to come are below `tol`."""
    if len(gains) < 2 or gains[-1] >= tol:
        return False
    if gains[-1] <= 1e-3 * tol:  # rounding makes the ratio meaningless
        return True
    ratio = gains[-1] / gains[-2] if gains[-2] > 0 else 1.0
    return ratio < 1.0 and gains[-1] * ratio / (1.0 - ratio) < tol


def _check_options(tol: float, max_iter: int, minimum_weight: float, r: int) -> None:
    if not tol >= 0:
        raise ValueError(f"tol: {tol!r}; expected a number >= 0")
    if max_iter != int(max_iter) or max_iter < 1:
        raise ValueError(f"max_iter: {max_iter!r}; expected an integer >= 1")
    if not 0 <= minimum_weight <= 1 / r:
        raise ValueError(f"minimum_weight: {minimum_weight!r}; expected 0 <= value <= 1/{r}")
