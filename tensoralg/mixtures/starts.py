"""Starting points of a mixture from its moments alone: many splits, the best refined."""

from dataclasses import dataclass, field

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from tensoralg.core.indices import rank_multi_indices
from tensoralg.core.monomials import graded_indices
from tensoralg.mixtures.bounds import Form, feasible_splits
from tensoralg.mixtures.homogeneous_start import homogeneous_means
from tensoralg.mixtures.variances import variances_from_moments
from tensoralg.solvers.feasible_least_squares import feasible_least_squares, square_free_products
from tensoralg.solvers.generating_polynomials import affine_components

__all__ = ["MomentStart", "StartReport", "moment_starts", "second_moments"]

Array = NDArray[np.float64]


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
    """

    weights: Array
    means: Array
    variances: Array
    objective: float
    residual: float


@dataclass(slots=True)
class StartReport:
    """What happened on the way to the starts."""

    method: str = "algebraic"
    splits: int = 0
    complex_pairs: int = 0
    negative_weights: int = 0
    refined: int = 0
    best_objective: float = float("nan")
    singular_values: list[float] = field(default_factory=list)


def square_free_moments(values: Array, order: int, dimension: int) -> list[Array]:
    """Moments over pairwise distinct indices by degree, out of the homogenised vector."""
    by_degree = []
    for indices in graded_indices(dimension, order):
        padded = np.zeros((len(indices), order), dtype=np.int64)
        padded[:, order - indices.shape[1] :] = indices + 1
        by_degree.append(values[rank_multi_indices(padded, dimension + 1)])
    return by_degree


def _repaired_weights(moments: list[Array], means: Array) -> tuple[Array, float]:
    """Nonnegative weights that match all square-free moments best, and the mismatch."""
    design = np.concatenate(square_free_products(means, len(moments) - 1), axis=1).T
    target = np.concatenate(moments[: len(moments)])[: len(design)]
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
    splits = feasible_splits(dimension, order, rank, form=form)
    degree, size = splits[trial % len(splits)]
    block = rng.permutation(dimension)[:size]
    part = affine_components(
        values, order, dimension, rank, block.tolist(), degree, powers=form == "power", rng=rng
    )
    return part.means, part.n_complex // 2, part.singular_values


def _algebraic(
    values: Array,
    moments: list[Array],
    rank: int,
    form: Form,
    n_splits: int,
    rng: np.random.Generator,
    report: StartReport,
) -> list[Array]:
    found = []
    for trial in range(n_splits):
        try:
            means, pairs, singular = _one_split(values, moments, rank, form, trial, rng)
        except np.linalg.LinAlgError:
            continue
        report.complex_pairs += pairs
        report.singular_values = report.singular_values or singular.tolist()
        found.append(means)
    report.splits = n_splits
    return found


def _random_points(
    second: Array, rank: int, n_starts: int, rng: np.random.Generator
) -> list[Array]:
    shape = (rank, len(second))
    return [0.7 * np.sqrt(second) * rng.standard_normal(shape) for _ in range(n_starts)]


def moment_starts(
    values: Array,
    order: int,
    dimension: int,
    rank: int,
    *,
    form: Form,
    algebraic: bool,
    floor: Array,
    rng: np.random.Generator,
    n_splits: int = 20,
    n_refined: int = 6,
    warm: tuple[Array, Array] | None = None,
) -> tuple[list[MomentStart], StartReport]:
    """Find parameters that match the moments, best first.

    Parameters
    ----------
    values : ndarray of shape (C(d + m, m),)
        Homogenised moments of standardised data.
    order, dimension, rank : int
        m, d and r.
    form : {"affine", "power", "homogeneous"}
        Which generating polynomials.
    algebraic : bool
        False starts feasible least squares at random points: above the algebraic bound.
    floor : ndarray of shape (d,)
        Smallest variances.
    rng : Generator
        Source of splits, combinations and random points.
    n_splits, n_refined : int
        How many splits (or random starts) are tried, and how many of them are refined.
    warm : (ndarray of shape (r,), ndarray of shape (r, d)), optional
        Weights and means to be refined beside the others.

    Returns
    -------
    list of MomentStart
        At most `n_refined`, sorted by objective; empty when no split gave finite numbers.
    StartReport
        What happened.
    """
    report = StartReport(method="algebraic" if algebraic else "least squares")
    moments = square_free_moments(values, order, dimension)
    second = second_moments(values, order, dimension)
    if algebraic:
        raw = _algebraic(values, moments, rank, form, n_splits, rng, report)
    else:
        raw = _random_points(second, rank, max(n_splits, 30), rng)
        report.splits = len(raw)
    candidates = _ranked(raw, moments, second)
    report.negative_weights = sum(int(np.sum(w <= 0)) for w, _ in candidates)
    keep = n_refined if algebraic else len(candidates)
    if warm is not None:
        candidates.insert(0, warm)
    starts = []
    for weights, means in candidates[:keep]:
        fit = feasible_least_squares(
            moments, *_made_feasible(weights, means, second), second_moments=second, max_iter=60
        )
        w = np.maximum(fit.weights, 1e-6)
        w /= w.sum()
        variances = variances_from_moments(
            values, order, w, fit.points, floor=floor, noise=fit.residual
        )
        starts.append(MomentStart(w, fit.points, variances, fit.objective, fit.residual))
    report.refined = len(starts)
    starts.sort(key=lambda s: s.objective)
    if starts:
        report.best_objective = starts[0].objective
    return starts[:n_refined], report


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
