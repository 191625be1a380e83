"""From rows to moments in one pass, and from moments to starts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.rows import ColumnSummary, RowSource, summarise
from tensoralg.mixtures.starts import moment_starts, second_moments
from tensoralg.mixtures.validation import all_bounds, check_spread, refuse_rank
from tensoralg.solvers.coordinate_splits import Form

__all__ = ["Mixture", "Settings", "accumulate", "closed_form", "starts_from_values"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Parameters in standardised coordinates.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means, variances : ndarray of shape (r, d)
    """

    weights: Array
    means: Array
    variances: Array


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """What the estimator was told, checked."""

    n_components: int
    order: int
    form: Form
    polish: bool
    max_iter: int
    tol: float
    floor: float
    missing: bool
    rng: np.random.Generator

    def with_components(self, n_components: int) -> "Settings":
        """Return the same settings for another number of components."""
        return replace(self, n_components=n_components)

    def without_polish(self) -> "Settings":
        """Return the same settings with no EM to follow."""
        return replace(self, polish=False)


def accumulate(
    source: RowSource, settings: Settings, *, moments: bool
) -> tuple[ColumnSummary, MomentAccumulator | None, np.dtype[Any]]:
    """Read the data once: column summary and, where asked, moments of standardised rows.

    Parameters
    ----------
    source : RowSource
        The rows.
    settings : Settings
        Order, form and whether cells may be missing.
    moments : bool
        Whether moments are accumulated.

    Returns
    -------
    ColumnSummary
        Means, variances and ranges.
    MomentAccumulator or None
        Moments about the overall mean (with missing cells: that of the first chunk) in units of
        the standard deviation.
    dtype
        Of the first chunk.
    """
    total: ColumnSummary | None = None
    accumulator: MomentAccumulator | None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)
    for X, weights in source():
        part = summarise(X, weights)
        if total is None:
            total, dtype = part, X.dtype
            if moments:
                check_spread(part.spread, X.dtype)
                accumulator = MomentAccumulator(
                    X.shape[1],
                    settings.order,
                    shift=part.mean,
                    scale=part.scale,
                    powers=settings.form == "power",
                    missing=settings.missing,
                )
        else:
            total = total.merged(part)
        if accumulator is not None:
            accumulator.update(X, sample_weight=weights)
    if total is None:
        raise ValueError("X has no rows: an empty iterable, or chunks without rows")
    if accumulator is not None:
        # with missing cells only the unit can be changed
        accumulator = accumulator.rebased(None if settings.missing else total.mean, total.scale)
    return total, accumulator, dtype


def closed_form(dimension: int, floor: float, constant: NDArray[np.bool_]) -> Mixture:
    """One component: mean and variance of standardised data."""
    variances = np.where(constant, max(floor, 1e-12), 1.0)[None, :]
    return Mixture(np.ones(1), np.zeros((1, dimension)), np.maximum(variances, floor))


def _select(values: Array, order: int, dimension: int, active: NDArray[np.int64]) -> Array:
    """Homogenised moments of some of the coordinates."""
    if len(active) == dimension:
        return values
    labels = np.concatenate([[0], active + 1])
    return np.asarray(
        values[rank_multi_indices(labels[multi_indices(len(active) + 1, order)], dimension + 1)]
    )


def starts_from_values(
    values: Array,
    dimension: int,
    active: NDArray[np.int64],
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> list[Mixture]:
    """Find starts from moments, best first; none where moments cannot identify the mixture.

    Parameters
    ----------
    values : ndarray of shape (C(d + m, m),)
        Homogenised moments of all columns.
    dimension : int
        Number of columns d.
    active : ndarray of int
        Columns that vary.
    settings : Settings
        Number of components, order, form.
    diagnostics : FitDiagnostics
        Filled with what happened.

    Returns
    -------
    list of Mixture
        Starts over all columns, in the coordinates of the moments.

    Raises
    ------
    RankBoundError
        Above the counting bound, or the bound of the variances, when no polish follows.
    """
    r, m = settings.n_components, settings.order
    if len(active) == 0:
        return []
    bounds = diagnostics.bounds = all_bounds(len(active), m)
    if r > bounds["counting"] or (not settings.polish and r > bounds["variances"]):
        if settings.polish:
            return []
        raise refuse_rank(r, len(active), m, bounds)
    algebraic = r <= bounds[settings.form]
    if not algebraic:
        warn(
            f"n_components={r} is above the algebraic bound {bounds[settings.form]} of "
            f"form={settings.form!r}: feasible least squares from random points; the moment "
            "start may be a local optimum"
        )
    chosen = _select(values, m, dimension, active)
    if not _complete(chosen, m, len(active)):
        return []
    # many small matrices: waking threads for each costs more than they give
    with threadpool_limits(limits=1, user_api="blas"):
        starts, report = moment_starts(
            chosen,
            m,
            len(active),
            r,
            form=settings.form if algebraic else None,
            floor=np.full(len(active), settings.floor),
            rng=settings.rng,
        )
    diagnostics.start = report.method
    diagnostics.splits, diagnostics.refined = report.splits, report.refined
    diagnostics.complex_pairs = report.complex_pairs
    diagnostics.negative_weights = report.negative_weights
    diagnostics.singular_values = report.singular_values
    if starts:
        diagnostics.moment_residual = starts[0].residual
    means = np.zeros((r, dimension))
    variances = np.full((r, dimension), max(settings.floor, 1e-12))
    mixtures = []
    for start in starts:
        means[:, active], variances[:, active] = start.means, start.variances
        mixtures.append(Mixture(start.weights, means.copy(), variances.copy()))
    return mixtures


def _complete(values: Array, order: int, dimension: int) -> bool:
    """Whether every moment that the starts read is known: missing cells may hide some."""
    index = multi_indices(dimension + 1, order)
    repeated = ((index[:, 1:] == index[:, :-1]) & (index[:, 1:] > 0)).any(axis=1)
    known = np.isfinite(values)
    return bool(
        known[~repeated].all() and np.isfinite(second_moments(values, order, dimension)).all()
    )
