"""The whole fit: rows or moments in, parameters in the data's units and diagnostics out."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import (
    Mixture,
    Settings,
    accumulate,
    closed_form,
    starts_from_values,
)
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.polish import (
    best_start,
    clustered_starts,
    polish,
    sample_rows,
    without_twins,
)
from tensoralg.mixtures.rows import ColumnSummary, RowSource, count_distinct
from tensoralg.mixtures.validation import all_bounds, refuse_rank

__all__ = ["Fitted", "fit_accumulator", "fit_source"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A fitted mixture in the units of the data.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means, covariances : ndarray of shape (r, d)
    n_iter : int
        EM steps over all rows.
    converged : bool
        Whether the polish met its tolerance, or none was needed.
    lower_bound : float
        Log-likelihood per unit weight; NaN where no likelihood was computed.
    diagnostics : FitDiagnostics
        How it came about.
    """

    weights: Array
    means: Array
    covariances: Array
    n_iter: int
    converged: bool
    lower_bound: float
    diagnostics: FitDiagnostics


def _warn(message: str, category: type[Warning] = UserWarning) -> None:
    warnings.warn(message, category, stacklevel=5)


def _in_units(
    mixture: Mixture,
    shift: Array,
    scale: Array,
    diagnostics: FitDiagnostics,
    *,
    dtype: np.dtype[Any],
    n_iter: int = 0,
    converged: bool = True,
    lower_bound: float = float("nan"),
) -> Fitted:
    means = shift + scale * mixture.means
    covariances = scale**2 * mixture.variances
    if dtype == np.float32:
        # a variance below the smallest float32 would round to 0
        covariances = np.maximum(covariances, np.finfo(np.float32).tiny)
    return Fitted(
        mixture.weights.astype(dtype),
        means.astype(dtype),
        covariances.astype(dtype),
        n_iter,
        converged,
        lower_bound,
        diagnostics,
    )


def fit_source(
    source: RowSource,
    settings: Settings,
    diagnostics: FitDiagnostics,
    warm: Mixture | None = None,
) -> Fitted:
    """Fit rows: moments in one pass, the best start polished over all rows.

    Parameters
    ----------
    source : RowSource
        Checked rows.
    settings : Settings
        What the estimator was told.
    diagnostics : FitDiagnostics
        Filled on the way.
    warm : Mixture, optional
        Start in the units of the data; replaces all other starts.

    Returns
    -------
    Fitted
        Parameters in the units of the data.
    """
    settings = _effective(source, settings)
    summary, accumulator, dtype = accumulate(
        source, settings, moments=settings.n_components > 1 and warm is None
    )
    _check_columns(summary, diagnostics)
    shift, scale = summary.mean, summary.scale
    if settings.n_components == 1:
        mixture = closed_form(len(shift), settings.floor, summary.constant)
        _finish_one(diagnostics)
        bound = -0.5 * float(
            np.sum(np.log(2 * np.pi * mixture.variances) + ~summary.constant / mixture.variances)
        )
        return _in_units(
            mixture,
            shift,
            scale,
            diagnostics,
            dtype=dtype,
            lower_bound=bound - _log_scale(summary, scale),
        )
    if accumulator is not None and settings.missing:
        shift, scale = np.asarray(accumulator.shift), accumulator.scale
    starts = _moment_starts(accumulator, summary.constant, settings, diagnostics)
    if warm is not None:
        starts = [Mixture(warm.weights, (warm.means - shift) / scale, warm.variances / scale**2)]
        diagnostics.start = "warm"
    if not settings.polish or not source.again:
        return _unpolished(source, starts, shift, scale, settings, diagnostics, dtype)
    return _polished(source, starts, summary, shift, scale, settings, diagnostics, dtype)


def _effective(source: RowSource, settings: Settings) -> Settings:
    if not source.again or settings.n_components == 1:
        return settings
    distinct = count_distinct(source(), settings.n_components)
    if 0 < distinct < settings.n_components:
        _warn(
            f"X has {distinct} distinct rows, fewer than n_components={settings.n_components}: "
            f"{distinct} effective components are fitted"
        )
        return settings.with_components(distinct)
    return settings


def _check_columns(summary: ColumnSummary, diagnostics: FitDiagnostics) -> None:
    diagnostics.missing = summary.missing
    empty = np.flatnonzero(summary.weight == 0)
    if len(empty):
        raise ValueError(f"column {int(empty[0])} of X holds nothing but NaN")
    diagnostics.constant_columns = np.flatnonzero(summary.constant).tolist()
    if diagnostics.constant_columns and summary.rows > 1:
        _warn(
            f"columns {diagnostics.constant_columns} are constant: they take no part in the "
            "moments and get their value as mean and a variance at the floor"
        )


def _log_scale(summary: ColumnSummary, scale: Array) -> float:
    """Change of the log-likelihood per unit weight by the standardisation."""
    return float(np.sum(np.log(scale) * summary.weight) / summary.total_weight)


def _finish_one(diagnostics: FitDiagnostics) -> None:
    diagnostics.status = diagnostics.start = "closed form"
    diagnostics.message = "one component: the mean and variance of each column"


def _moment_starts(
    accumulator: MomentAccumulator | None,
    constant: NDArray[np.bool_],
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> list[Mixture]:
    if accumulator is None:
        return []
    values = accumulator.homogenised()
    return starts_from_values(
        values, accumulator.dimension, np.flatnonzero(~constant), settings, diagnostics
    )


def _unpolished(
    source: RowSource,
    starts: list[Mixture],
    shift: Array,
    scale: Array,
    settings: Settings,
    diagnostics: FitDiagnostics,
    dtype: np.dtype[Any],
) -> Fitted:
    if not starts:
        d = len(shift) - len(diagnostics.constant_columns)
        bounds = diagnostics.bounds or all_bounds(max(d, 1), settings.order)
        raise refuse_rank(settings.n_components, d, settings.order, bounds)
    if settings.polish:
        _warn(
            "X can be read only once, so that the moment estimate is not polished by EM; pass a "
            "list of chunks, or an object whose iterator can be made anew, to polish it"
        )
    diagnostics.status = "moments only"
    diagnostics.message = (
        f"parameters match the moments up to order {settings.order} to a relative residual of "
        f"{diagnostics.moment_residual:.2g}; no likelihood was maximised"
    )
    return _in_units(starts[0], shift, scale, diagnostics, dtype=dtype)


def _polished(
    source: RowSource,
    starts: list[Mixture],
    summary: ColumnSummary,
    shift: Array,
    scale: Array,
    settings: Settings,
    diagnostics: FitDiagnostics,
    dtype: np.dtype[Any],
) -> Fitted:
    start = starts[0] if diagnostics.start == "warm" else None
    if start is None:
        sample = sample_rows(source, settings.rng)
        candidates = {diagnostics.start: starts} if starts else {}
        if not starts:
            _warn(_no_moment_start(settings, diagnostics))
            candidates["k-means++"] = clustered_starts(sample, shift, scale, settings)
        start = best_start(
            candidates, sample, shift, scale, settings, summary.constant, diagnostics
        )
    result = polish(source, start, shift, scale, settings)
    mixture = without_twins(Mixture(result.weights, result.means, result.covariances))
    _report_polish(result, mixture, summary, settings, diagnostics)
    offset = _log_scale(summary, scale)
    diagnostics.start_log_likelihoods = {
        kind: value - offset for kind, value in diagnostics.start_log_likelihoods.items()
    }
    return _in_units(
        mixture,
        shift,
        scale,
        diagnostics,
        dtype=dtype,
        n_iter=result.n_iter,
        converged=result.status == "converged",
        lower_bound=result.log_likelihood - offset,
    )


def _no_moment_start(settings: Settings, diagnostics: FitDiagnostics) -> str:
    bound = diagnostics.bounds.get("counting", 0)
    if settings.n_components > bound:
        reason = (
            f"n_components={settings.n_components} is above the counting bound {bound} of moments "
            f"of order {settings.order} over distinct indices"
        )
    else:
        reason = "the moments gave no finite start"
    return f"no moment start was possible ({reason}); EM starts from k-means++ instead"


def _report_polish(
    result: Any,
    mixture: Mixture,
    summary: ColumnSummary,
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> None:
    diagnostics.status, diagnostics.message = result.status, result.message
    diagnostics.restarted = list(result.restarted)
    floor = max(settings.floor, 1e-12)
    at_floor = (mixture.variances <= floor * (1 + 1e-9)) & ~summary.constant
    diagnostics.floored = [(int(s), int(j)) for s, j in np.argwhere(at_floor)]
    if len(mixture.weights) < settings.n_components:
        _warn(
            f"{len(mixture.weights)} effective components were found, fewer than "
            f"n_components={settings.n_components}: the others repeated one or explained no row"
        )
    if diagnostics.floored:
        s, j = diagnostics.floored[0]
        diagnostics.status = "collapsed"
        diagnostics.message = (
            f"component {s} collapsed in column {j}: its variance is at the floor "
            f"(reg_covar={settings.floor:g} of the column's variance); {result.message}"
        )
        _warn(diagnostics.message)
    if result.status == "max_iter":
        _warn(f"EM did not converge: {result.message}", ConvergenceWarning)


def fit_accumulator(
    accumulator: MomentAccumulator, settings: Settings, diagnostics: FitDiagnostics
) -> Fitted:
    """Fit moments alone.

    Parameters
    ----------
    accumulator : MomentAccumulator
        Moments up to at least the order of the settings.
    settings : Settings
        What the estimator was told.
    diagnostics : FitDiagnostics
        Filled on the way.

    Returns
    -------
    Fitted
        Parameters in the units of the data.
    """
    _check_accumulator(accumulator, settings)
    values = accumulator.homogenised()
    d, m = accumulator.dimension, accumulator.order
    mean, second = _first_two(values, m, d)
    variance = np.maximum(second - mean**2, 0.0)
    constant = variance <= 1e-14 * np.maximum(second, np.finfo(np.float64).tiny)
    shift, scale = np.asarray(accumulator.shift, dtype=np.float64), accumulator.scale
    if not accumulator.missing:
        shift = shift + scale * mean
        scale = np.where(constant, 1.0, scale * np.sqrt(variance))
        values = accumulator.rebased(shift, scale).homogenised()
    diagnostics.constant_columns = np.flatnonzero(constant).tolist()
    if settings.n_components == 1:
        _finish_one(diagnostics)
        one = closed_form(d, settings.floor, constant)
        if accumulator.missing:
            one = Mixture(one.weights, mean[None], np.maximum(variance, settings.floor)[None])
        return _in_units(one, shift, scale, diagnostics, dtype=np.dtype(np.float64))
    index = multi_indices(d + 1, settings.order)
    padded = np.concatenate(
        [np.zeros((len(index), m - settings.order), dtype=np.int64), index], axis=1
    )
    values = values[rank_multi_indices(padded, d + 1)]
    starts = starts_from_values(values, d, np.flatnonzero(~constant), settings, diagnostics)
    source = RowSource.from_checked(np.empty((0, d)), None)
    return _unpolished(source, starts, shift, scale, settings, diagnostics, np.dtype(np.float64))


def _check_accumulator(accumulator: Any, settings: Settings) -> None:
    if not isinstance(accumulator, MomentAccumulator):
        raise TypeError(f"accumulator must be a MomentAccumulator; got {type(accumulator)}")
    if accumulator.order < settings.order:
        raise ValueError(
            f"accumulator holds moments up to order {accumulator.order}; order={settings.order} "
            "needs more"
        )
    if accumulator.total_weight <= 0:
        raise ValueError("accumulator is empty: it has seen no row of positive weight")
    if settings.form == "power" and not accumulator.powers:
        raise ValueError("form='power' needs MomentAccumulator(..., powers=True)")


def _first_two(values: Array, order: int, dimension: int) -> tuple[Array, Array]:
    index = np.zeros((dimension, order), dtype=np.int64)
    index[:, -1] = np.arange(1, dimension + 1)
    mean = values[rank_multi_indices(index, dimension + 1)]
    index[:, -2] = index[:, -1]
    return mean, values[rank_multi_indices(index, dimension + 1)]
