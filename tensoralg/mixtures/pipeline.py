"""The fit of rows: moments, starts, polish; parameters in the data's units and diagnostics out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.mixtures.automatic import kept_start, with_detected
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings, accumulate, closed_form
from tensoralg.mixtures.large_dimension import read_out_starts
from tensoralg.mixtures.moment_noise import MISFIT_LIMIT
from tensoralg.mixtures.moments_only import (
    Fitted,
    finish_one,
    in_units,
    judged_starts,
    note_constant,
    observed_rows,
    one_if_constant,
    unpolished,
)
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.polish import (
    best_start,
    clustered_starts,
    collapsed,
    lifted,
    polish,
    sample_rows,
    settled,
)
from tensoralg.mixtures.rows import Chunk, ColumnSummary, RowSource
from tensoralg.mixtures.validation import check_enough_rows, check_spread
from tensoralg.solvers.expectation_maximization import EMResult

__all__ = ["fit_source"]

Array = NDArray[Any]
# moment starts whose means have a smaller standard error than this need no rival
_PRECISE = 0.1


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
    will_polish = settings.polish and source.again
    if warm is not None and will_polish:
        warm = _of_same_width(warm, source)
    moments = settings.n_components > 1 and (warm is None or not will_polish)
    summary, accumulator, dtype = accumulate(
        source, settings, moments=moments or settings.automatic
    )
    _check_columns(summary, settings, dtype, diagnostics)
    if settings.automatic:
        settings = with_detected(accumulator, summary.constant, settings, diagnostics)
        warm = kept_start(warm, settings) if will_polish else None
        accumulator = accumulator if warm is None else None
    settings = _effective(source, summary, settings)
    shift, scale = summary.mean, summary.scale
    if settings.n_components == 1:
        return _single(summary, settings, diagnostics, dtype)
    if not source.again and settings.polish:
        warn(
            "X can be read only once, so that the moment estimate is not polished by EM; pass a "
            "list of chunks, or an object whose iterator can be made anew, to polish it"
        )
        settings = settings.without_polish()
    if accumulator is None and warm is not None:
        start = Mixture(warm.weights, (warm.means - shift) / scale, warm.variances / scale**2)
        diagnostics.start = "warm"
        return _polished(source, [start], summary, shift, scale, settings, diagnostics, dtype)
    if accumulator is None:  # there are too many moments
        starts = read_out_starts(source, summary, settings, diagnostics)
    else:
        if settings.missing:
            shift = np.asarray(accumulator.shift)
        starts = judged_starts(
            accumulator.homogenised(),
            accumulator.dimension,
            np.flatnonzero(~summary.constant),
            observed_rows(accumulator),
            settings,
            diagnostics,
        )
    if not settings.polish:
        return unpolished(starts, shift, scale, settings, diagnostics, dtype)
    return _polished(source, starts, summary, shift, scale, settings, diagnostics, dtype)


def _of_same_width(warm: Mixture, source: RowSource) -> Mixture | None:
    """Drop a start of another width than the rows, which chunks do not tell beforehand."""
    wanted = warm.means.shape[1]
    width = next((X.shape[1] for X, _ in source()), wanted)
    if width == wanted:
        return warm
    warn(
        f"warm_start=True, but the last fit has {wanted} columns and X has {width}: a new start "
        "is made"
    )
    return None


def _effective(source: RowSource, summary: ColumnSummary, settings: Settings) -> Settings:
    settings = one_if_constant(summary.constant, settings)
    if not source.again or settings.n_components == 1:
        return settings
    distinct = source.count_distinct(settings.n_components)
    if 0 < distinct < settings.n_components:
        warn(
            f"X has {distinct} distinct rows, fewer than n_components={settings.n_components}: "
            f"{distinct} effective components are fitted"
        )
        return settings.with_components(distinct)
    return settings


def _check_columns(
    summary: ColumnSummary, settings: Settings, dtype: np.dtype[Any], diagnostics: FitDiagnostics
) -> None:
    wanted = "auto" if settings.automatic else settings.n_components
    check_enough_rows(summary.rows, wanted)
    diagnostics.missing = summary.missing
    empty = np.flatnonzero(summary.weight == 0)
    if len(empty):
        raise ValueError(f"column {int(empty[0])} of X holds nothing but NaN")
    check_spread(summary.spread, dtype)
    note_constant(summary.constant, diagnostics)


def _single(
    summary: ColumnSummary,
    settings: Settings,
    diagnostics: FitDiagnostics,
    dtype: np.dtype[Any],
) -> Fitted:
    mixture = closed_form(len(summary.mean), settings.floor, summary.constant)
    finish_one(diagnostics)
    terms = np.log(2 * np.pi * mixture.variances) + ~summary.constant / mixture.variances
    bound = -0.5 * float(np.sum(terms * (summary.weight / summary.total_weight)))
    return in_units(
        mixture,
        summary.mean,
        summary.scale,
        diagnostics,
        dtype=dtype,
        lower_bound=bound - _log_scale(summary, summary.scale),
    )


def _log_scale(summary: ColumnSummary, scale: Array) -> float:
    """Change of the log-likelihood per unit weight by the standardisation."""
    return float(np.sum(np.log(scale) * summary.weight) / summary.total_weight)


def _search(
    source: RowSource,
    starts: list[Mixture],
    constant: NDArray[np.bool_],
    shift: Array,
    scale: Array,
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> EMResult:
    """Polish the most likely start; where that collapses, the best of more starts and steps."""
    kind, best, failed = diagnostics.start, None, np.inf
    if kind == "warm":
        best = polish(source, starts[0], shift, scale, settings)
        failed = collapsed(best, constant, settings)
        if not failed:
            return best
    elif not starts:
        warn(_no_moment_start(settings, diagnostics))
    candidates = {kind: [lifted(start, constant) for start in starts]} if starts else {}
    sample: Chunk | None = None
    unsure = diagnostics.moment_misfit > MISFIT_LIMIT or diagnostics.mean_error > _PRECISE
    alone = len(starts) == 1 and not unsure
    for thorough in (False, True) if best is None else (True,):
        if alone and not thorough:  # nothing to compare it with, and no worse than a sample's fit
            start = candidates[kind][0]
        else:
            sample = sample_rows(source, settings.rng) if sample is None else sample
            if (thorough or unsure or not starts) and "k-means++" not in candidates:
                candidates["k-means++"] = clustered_starts(sample, shift, scale, settings)
            start = best_start(
                candidates, sample, shift, scale, settings, constant, diagnostics, thorough=thorough
            )
        trial = polish(source, start, shift, scale, settings)
        count = collapsed(trial, constant, settings)
        if count < failed:
            kind, best, failed = diagnostics.start, trial, count
        if not failed:
            break
    assert best is not None
    diagnostics.start = kind
    return best


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
    result = _search(source, starts, summary.constant, shift, scale, settings, diagnostics)
    mixture, place = settled(result)
    _report_polish(result, mixture, place, summary, settings, diagnostics)
    offset = _log_scale(summary, scale)
    diagnostics.log_likelihoods = (result.history - offset).tolist()
    diagnostics.start_log_likelihoods = {
        kind: value - offset for kind, value in diagnostics.start_log_likelihoods.items()
    }
    return in_units(
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
        reason = diagnostics.message or "the moments gave no finite start"
    return f"no moment start was possible ({reason}); EM starts from k-means++ instead"


def _report_polish(
    result: EMResult,
    mixture: Mixture,
    place: NDArray[np.int64],
    summary: ColumnSummary,
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> None:
    diagnostics.status, diagnostics.message = result.status, result.message
    diagnostics.restarted = sorted({int(place[s]) for s in result.restarted if place[s] >= 0})
    floor = max(settings.floor, 1e-12)
    at_floor = (mixture.variances <= floor * (1 + 1e-9)) & ~summary.constant
    diagnostics.floored = [(int(s), int(j)) for s, j in np.argwhere(at_floor)]
    if len(mixture.weights) < settings.n_components:
        warn(
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
        warn(diagnostics.message)
    if result.status == "max_iter":
        warn(f"EM did not converge: {result.message}", ConvergenceWarning)
