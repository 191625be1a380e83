"""From rows to moments in one pass, and from moments to starts."""

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.mixtures.dask_rows import DaskRows
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.moment_count import moments_fit
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.rows import ColumnSummary, RowSource, summarise
from tensoralg.mixtures.split_moments import SplitMomentAccumulator
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
    automatic: bool = False

    def with_components(self, n_components: int) -> "Settings":
        """Return the same settings for another number of components."""
        return replace(self, n_components=n_components, automatic=False)

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
        the standard deviation; None, too, where they are too many.
    dtype
        Of the first chunk.
    """
    total: ColumnSummary | None = None
    accumulator: MomentAccumulator | None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)
    if isinstance(source, DaskRows):
        total, accumulator, dtype = _sum_blocks(source, settings, moments=moments)
    else:
        for X, weights in source():
            part = summarise(X, weights)
            if total is None:
                total, dtype = part, X.dtype
                if moments and _fit(X, settings, again=source.again):
                    accumulator = _without_rows(part, X, settings)
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


def _fit(X: Array, settings: Settings, *, again: bool) -> bool:
    return moments_fit(X.shape[1], settings.n_components, settings.order, again=again)


def _without_rows(first: ColumnSummary, X: Array, settings: Settings) -> MomentAccumulator:
    """Make an accumulator with the origin and the unit of the first chunk."""
    check_spread(first.spread, X.dtype)
    kind = SplitMomentAccumulator if settings.automatic else MomentAccumulator
    return kind(
        X.shape[1],
        settings.order,
        shift=first.mean,
        scale=first.scale,
        powers=settings.form == "power",
        missing=settings.missing,
    )


_BlockSums = tuple[ColumnSummary | None, MomentAccumulator | None, np.dtype[Any]]


def _sum_blocks(source: DaskRows, settings: Settings, *, moments: bool) -> _BlockSums:
    """Summarise the chunks of a Dask array where they are, in the units of the first one."""
    found: _BlockSums | None = source.first(partial(_sums_of_first, settings, moments))
    if found is None:
        return None, None, np.dtype(np.float64)
    total, accumulator, dtype = source.reduce(partial(_sums_of, found[1]), _sums_of_both)
    source.rows = total.rows
    return total, accumulator, dtype


def _sums_of_first(
    settings: Settings, moments: bool, number: int, X: Array, weights: Array | None
) -> _BlockSums:
    part = summarise(X, weights)
    moments = moments and _fit(X, settings, again=True)
    return part, _without_rows(part, X, settings) if moments else None, X.dtype


def _sums_of(
    template: MomentAccumulator | None, number: int, X: Array, weights: Array | None
) -> _BlockSums:
    sums = None if template is None else copy(template).update(X, sample_weight=weights)
    return summarise(X, weights), sums, X.dtype


def _sums_of_both(left: Any, right: Any) -> _BlockSums:
    # results of tasks stay as they are: a task may run again
    sums = None if left[1] is None else copy(left[1]).merge(right[1])
    return left[0].merged(right[0]), sums, left[2]


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
    rows: float = float("inf"),
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
    rows : float, default infinity
        Number of rows that the moments average; infinity for exact moments.

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
            rows=rows,
        )
    diagnostics.start = report.method
    diagnostics.splits, diagnostics.refined = report.splits, report.refined
    diagnostics.complex_pairs = report.complex_pairs
    diagnostics.negative_weights = report.negative_weights
    diagnostics.singular_values = report.singular_values
    if starts:
        diagnostics.moment_residual = starts[0].residual
        diagnostics.moment_misfit = starts[0].misfit
        diagnostics.mean_error = starts[0].mean_error
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
