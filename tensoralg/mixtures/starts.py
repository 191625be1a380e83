"""Starting points of a mixture from its moments alone: many splits, the best refined."""

from dataclasses import dataclass, field, replace

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from tensoralg.core.indices import pad_multi_indices, rank_multi_indices
from tensoralg.core.monomials import graded_indices
from tensoralg.mixtures.homogeneous_start import homogeneous_means
from tensoralg.mixtures.moment_noise import largest_deviation, mean_error
from tensoralg.mixtures.variances import variances_from_moments
from tensoralg.solvers.coordinate_splits import Form, feasible_splits
from tensoralg.solvers.feasible_least_squares import (
    FeasibleFit,
    feasible_least_squares,
    square_free_products,
)
from tensoralg.solvers.generating_polynomials import affine_components

__all__ = ["MomentStart", "StartReport", "moment_starts", "second_moments"]

Array = NDArray[np.float64]
_ROUNDS = ((0, 6, 3), (6, 20, 5), (20, 40, 6))  # first split, last split, how many are refined
_SAME = 1e-3  # relative difference of objectives that makes two optima one
_FLOOR = 0.1  # weights below this share of the average are pushed up
_NOISE, _DETERMINED = 4.0, 0.1  # below both, no optimum was ever seen that was not the best one
_KEPT = 4  # optima that the likelihood decides between


@dataclass(frozen=True, slots=True, eq=False)
class MomentStart:
    """Parameters that match the moments, in the coordinates of the moments.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means : ndarray of shape (r, d)
    variances : ndarray of shape (r, d)
    objective : float
        Objective of the feasible least squares.
    residual : float
        Relative mismatch of the square-free moments.
    misfit, mean_error : float
        Of :mod:`tensoralg.mixtures.moment_noise`, where they were computed; NaN otherwise.
    """

    weights: Array
    means: Array
    variances: Array
    objective: float
    residual: float
    misfit: float = float("nan")
    mean_error: float = float("nan")

    @property
    def explained(self) -> bool:
        """Whether it agrees with the moments up to their noise, and they determine it."""
        return self.misfit < _NOISE and self.mean_error < _DETERMINED


@dataclass(slots=True)
class StartReport:
    """What happened on the way to the starts."""

    method: str = "algebraic"
    splits: int = 0
    complex_pairs: int = 0
    negative_weights: int = 0
    refined: int = 0
    singular_values: list[float] = field(default_factory=list)


def square_free_moments(values: Array, order: int, dimension: int) -> list[Array]:
    """Moments over pairwise distinct indices by degree, out of the homogenised vector."""
    by_degree = []
    for indices in graded_indices(dimension, order):
        padded = pad_multi_indices(indices + 1, order)
        by_degree.append(values[rank_multi_indices(padded, dimension + 1)])
    return by_degree


def _repaired_weights(moments: list[Array], means: Array) -> tuple[Array, float]:
    """Nonnegative weights that match all square-free moments best, and the mismatch."""
    design = np.concatenate(square_free_products(means, len(moments) - 1), axis=1).T
    target = np.concatenate(moments)
    try:
        weights, mismatch = scipy.optimize.nnls(design, target)
        return weights, float(mismatch)
    except RuntimeError:
        weights = np.full(len(means), 1.0 / len(means))
        return weights, float(np.linalg.norm(design @ weights - target))


def _made_feasible(weights: Array, means: Array, second: Array) -> tuple[Array, Array]:
    """Lift small weights to a floor and clip means to what the second moments allow."""
    r = len(weights)
    floored = np.maximum(weights, 0.4 / r)
    floored /= floored.sum()
    limit = np.minimum(np.sqrt(second[None, :] / floored[:, None]), 3.0 * np.sqrt(second))
    return floored, np.clip(means, -limit, limit)


def _one_split(
    values: Array, moments: list[Array], rank: int, form: Form, trial: int, rng: np.random.Generator
) -> tuple[Array, int, Array]:
    """Means, complex pairs and singular values from one random split."""
    order, dimension = len(moments) - 1, len(moments[1])
    if form == "homogeneous":
        shift = rng.choice([-1.0, 1.0], dimension) * rng.uniform(0.5, 1.5, dimension)
        means, real = homogeneous_means(moments, rank, rng, shift)
        return means, 0 if real else 1, np.empty(0)
    splits = feasible_splits(dimension, order, rank, form)
    degree, size = splits[trial % len(splits)]
    block = rng.permutation(dimension)[:size]
    part = affine_components(
        values, order, dimension, rank, block.tolist(), degree, powers=form == "power", rng=rng
    )
    return part.means, part.n_complex // 2, part.singular_values


def _round(
    values: Array,
    moments: list[Array],
    rank: int,
    form: Form | None,
    trials: range,
    rng: np.random.Generator,
    report: StartReport,
) -> list[Array]:
    """Means from some more random splits, or random points where no split has room."""
    second = second_moments(values, len(moments) - 1, len(moments[1]))
    found = []
    for trial in trials:
        if form is None:
            found.append(0.7 * np.sqrt(second) * rng.standard_normal((rank, len(second))))
            continue
        try:
            means, pairs, singular = _one_split(values, moments, rank, form, trial, rng)
        except np.linalg.LinAlgError:
            continue
        report.complex_pairs += pairs
        report.singular_values = report.singular_values or singular.tolist()
        found.append(means)
    report.splits += len(trials)
    return found


class _Judge:
    """Turns optima into starts, and tells which one needs no second opinion."""

    def __init__(self, values: Array, order: int, floor: Array, rows: float) -> None:
        self.values, self.order, self.floor, self.rows = values, order, floor, rows
        self._starts: dict[FeasibleFit, MomentStart] = {}

    def start(self, fit: FeasibleFit) -> MomentStart:
        """Add variances to an optimum."""
        if fit not in self._starts:
            w = np.maximum(fit.weights, 1e-6)
            w /= w.sum()
            variances = variances_from_moments(
                self.values, self.order, w, fit.points, floor=self.floor, noise=fit.residual
            )
            found = MomentStart(w, fit.points, variances, fit.objective, fit.residual)
            self._starts[fit] = found
        return self._starts[fit]

    def settles(self, fit: FeasibleFit) -> bool:
        """Whether an optimum leaves nothing of sampled moments to be explained."""
        if not (fit.converged and np.isfinite(self.rows)):
            return False
        start = self.start(fit)
        columns = np.arange(start.means.shape[1])
        mixture = (columns, start.weights, start.means, start.variances, self.rows)
        misfit = largest_deviation(self.values, self.order, *mixture)
        if not misfit < _NOISE:
            return False
        start = replace(start, misfit=misfit, mean_error=mean_error(self.order, *mixture))
        self._starts[fit] = start
        return start.explained


def _refined(
    candidates: list[tuple[Array, Array]],
    moments: list[Array],
    second: Array,
    fits: list[FeasibleFit],
    enough: int,
    judge: _Judge,
) -> bool:
    """Refine candidates into `fits` until one settles it or `enough` of them agree on the best."""
    for weights, means in candidates:
        fit = feasible_least_squares(
            moments,
            *_made_feasible(weights, means, second),
            second_moments=second,
            minimum_weight=_FLOOR / len(weights),
            tol=1e-8,
            max_iter=60,
        )
        fits.append(fit)
        best = min(f.objective for f in fits)
        # different splits that end in one optimum are evidence that it is the global one
        if sum(f.objective <= best * (1 + _SAME) + 1e-24 for f in fits) >= enough:
            return True
        if enough == 2 and judge.settles(fit):
            return True
    return False


def _with_small_weights(
    raw: list[tuple[Array, Array]], moments: list[Array], second: Array, fits: list[FeasibleFit]
) -> list[FeasibleFit]:
    """Refine once more below the floor of the weights, where the floor is what does not fit."""
    best = min(fits, key=lambda f: f.objective, default=None)
    if best is None or best.weights.min() > _FLOOR / len(best.weights):
        return []
    loose = [
        feasible_least_squares(
            moments,
            np.maximum(weights, 1e-3 * _FLOOR / len(weights)),
            points,
            second_moments=second,
            minimum_weight=1e-3 * _FLOOR / len(weights),
        )
        for weights, points in [*raw, (best.weights, best.points)]
    ]
    # lower weights always fit a little better: noise must not talk a component away
    return [fit for fit in loose if fit.residual < 0.5 * best.residual]


def moment_starts(
    values: Array,
    order: int,
    dimension: int,
    rank: int,
    *,
    form: Form | None,
    floor: Array,
    rng: np.random.Generator,
    rows: float = float("inf"),
) -> tuple[list[MomentStart], StartReport]:
    """Find parameters that match the moments, best first.

    Random splits come in rounds, the best of each are refined, until one of them agrees with the
    moments up to the noise of so many rows, two of them (three for random points) have ended in the
    same best optimum, or all rounds are spent.

    Parameters
    ----------
    values : ndarray of shape (C(d + m, m),)
        Homogenised moments of standardised data.
    order, dimension, rank : int
        m, d and r.
    form : {"affine", "power", "homogeneous"} or None
        Which generating polynomials; None starts feasible least squares at random points, for
        ranks above the algebraic bound.
    floor : ndarray of shape (d,)
        Smallest variances.
    rng : Generator
        Source of splits, combinations and random points.
    rows : float, default infinity
        Number of rows that the moments average; infinity for exact moments.

    Returns
    -------
    list of MomentStart
        Different optima, sorted by objective; empty when no split gave finite numbers.
    StartReport
        What happened.
    """
    report = StartReport(method="least squares" if form is None else "algebraic")
    moments = square_free_moments(values, order, dimension)
    second = second_moments(values, order, dimension)
    judge = _Judge(values, order, floor, rows)
    fits: list[FeasibleFit] = []
    best_raw: list[tuple[Array, Array]] = []
    for begin, end, refine in _ROUNDS:
        raw = _round(values, moments, rank, form, range(begin, end), rng, report)
        candidates = _ranked(raw, moments, second)
        best_raw = best_raw or candidates[:1]
        report.negative_weights += sum(int(np.sum(w <= 0)) for w, _ in candidates)
        keep = len(candidates) if form is None else refine
        enough = 3 if form is None else 2
        if _refined(candidates[:keep], moments, second, fits, enough, judge):
            break
    fits += _with_small_weights(best_raw, moments, second, fits)
    report.refined = len(fits)
    fits.sort(key=lambda f: f.objective)
    starts: list[MomentStart] = []
    for fit in fits:
        if starts and fit.objective <= starts[-1].objective * (1 + _SAME) + 1e-24:
            continue
        starts.append(judge.start(fit))
    return starts[:_KEPT], report


def second_moments(values: Array, order: int, dimension: int) -> Array:
    """Read ``E[x_j^2]`` of every coordinate out of the homogenised vector."""
    index = np.zeros((dimension, order), dtype=np.int64)
    index[:, -2:] = np.arange(1, dimension + 1)[:, None]
    return np.maximum(values[rank_multi_indices(index, dimension + 1)], 1e-12)


def _ranked(raw: list[Array], moments: list[Array], second: Array) -> list[tuple[Array, Array]]:
    """Candidates with finite means and nonnegative weights refitted, the best residual first."""
    limit = 10.0 * np.sqrt(second)
    scored = []
    for means in raw:
        if np.isfinite(means).all():
            clipped = np.clip(means, -limit, limit)
            weights, mismatch = _repaired_weights(moments, clipped)
            scored.append((mismatch, weights, clipped))
    scored.sort(key=lambda item: item[0])
    return [(weights, means) for _, weights, means in scored]
