"""Many columns: where the moments are too many, the three-block read-out takes their place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tensoralg.core.errors import RankBoundError
from tensoralg.mixtures.bounds import counting_bound
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.moment_noise import MISFIT_LIMIT
from tensoralg.mixtures.rows import ColumnSummary, RowSource
from tensoralg.solvers.block_read_out import BlockReadOut, block_bound, block_read_out
from tensoralg.solvers.implicit_gram import balanced_factors
from tensoralg.solvers.implicit_least_squares import implicit_least_squares
from tensoralg.solvers.implicit_moments import ImplicitMoments

__all__ = ["read_out_starts"]

Array = NDArray[Any]

_LEAST_WEIGHT = 0.1  # of a start, in units of 1 / r
_LEAST_VARIANCE = 0.05  # of a start, in units of the column's
# least squares after the read-out: order 4 was less accurate in most trials
_ORDER, _STEPS, _SETTLED = 3, 10, 1e-3
_PRECISE = 0.1  # standard error of the means beyond which k-means++ competes in the polish


def read_out_starts(
    source: RowSource, summary: ColumnSummary, settings: Settings, diagnostics: FitDiagnostics
) -> list[Mixture]:
    """Find a start by the three-block read-out.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    summary : ColumnSummary
        Their means and variances.
    settings : Settings
        What the estimator was told.
    diagnostics : FitDiagnostics
        Filled with what happened.

    Returns
    -------
    list of Mixture
        One start in standardised coordinates; none where there are too many components and a
        polish follows.

    Raises
    ------
    RankBoundError
        More components than the blocks determine, and no polish.
    ValueError
        Rows that can be read only once.
    """
    if not source.again:
        raise ValueError(
            f"X can be read only once and has {len(summary.mean)} columns: the moments of order "
            f"up to {settings.order} for n_components={settings.n_components} are too many for "
            "memory, and the read-out for many columns needs several passes. Pass an array, a "
            "list of chunks, or an object whose iterator can be made anew"
        )
    columns = np.flatnonzero(~summary.constant)
    r, d = settings.n_components, len(columns)
    bound = block_bound(d)
    diagnostics.order, diagnostics.form = 3, "blocks"
    diagnostics.bounds = {"blocks": bound, "counting": counting_bound(d, 3)}
    if r > bound:
        diagnostics.message = (
            f"the moments of {len(summary.mean)} columns are too many, and three blocks of the "
            f"{d} that vary determine at most {bound} components, fewer than n_components={r}"
        )
        if settings.polish:
            return []
        raise RankBoundError(diagnostics.message + ". Use polish='em', which needs no such bound")
    with threadpool_limits(limits=1, user_api="blas"):
        found = block_read_out(
            source,
            r,
            shift=summary.mean,
            scale=summary.scale,
            columns=columns,
            missing=settings.missing,
            rng=settings.rng,
        )
    diagnostics.start = "block read-out"
    diagnostics.singular_values = found.singular_values.tolist()
    diagnostics.complex_pairs = found.n_complex
    diagnostics.negative_weights = int((found.weights < 0).sum())
    gain = _gain(summary)
    diagnostics.moment_misfit = gain * found.misfit
    diagnostics.mean_error = found.mean_error / gain
    diagnostics.splits = 1
    if not np.isfinite(found.mean_error) and gain * found.misfit_of_one <= MISFIT_LIMIT:
        # one component explains the moments as well: noise alone made up the others
        diagnostics.moment_misfit = float("nan")
    if not settings.polish:
        diagnostics.message = (
            f"parameters from the read-out of three blocks of columns, {found.n_passes} passes "
            "over moments of order 3; no likelihood was maximised"
        )
    if not np.isfinite(found.means).all():
        diagnostics.message = "the read-out gave no finite means"
        return []
    least = _least_weight(found, diagnostics)
    start = _feasible(found.weights, found.means, found.second_moments, columns, settings, least)
    if _worth_refining(diagnostics, settings):
        start = _refined(start, found, source, summary, columns, settings, diagnostics, least)
    return [start]


def _gain(summary: ColumnSummary) -> float:
    """Factor of deviations in standard errors: weights below 1 are no fractions of rows."""
    return float(np.sqrt(max(summary.rows / summary.total_weight, 1.0)))


def _least_weight(found: BlockReadOut, diagnostics: FitDiagnostics) -> float:
    """Floor of the weights; lower where a read-out to be trusted has a small component."""
    usual = _LEAST_WEIGHT / len(found.weights)
    smallest = 0.5 * float(found.weights.min())
    trusted = np.isfinite(diagnostics.mean_error) and diagnostics.moment_misfit <= MISFIT_LIMIT
    return min(usual, smallest) if trusted and smallest > 0 else usual


def _worth_refining(diagnostics: FitDiagnostics, settings: Settings) -> bool:
    """Whether least squares should follow: EM needs no better start, unless it is doubted."""
    doubted = diagnostics.mean_error > _PRECISE or diagnostics.moment_misfit > MISFIT_LIMIT
    return doubted or not settings.polish


def _refined(
    start: Mixture,
    found: BlockReadOut,
    source: RowSource,
    summary: ColumnSummary,
    columns: NDArray[np.int64],
    settings: Settings,
    diagnostics: FitDiagnostics,
    least_weight: float,
) -> Mixture:
    """Match all moments of order up to 3 over distinct columns, none of them formed."""
    moments = ImplicitMoments(
        source,
        balanced_factors(start.weights, start.means, _ORDER),
        shift=summary.mean,
        scale=summary.scale,
        missing=settings.missing,
    )
    with threadpool_limits(limits=1, user_api="blas"):
        fit = implicit_least_squares(
            moments,
            start.weights,
            start.means,
            minimum_weight=least_weight,
            max_iter=_STEPS,
            tol=_SETTLED,
        )
        gain = _gain(summary)
        misfit = gain * found.deviation(fit.weights, fit.points)
        taken = fit.converged and bool(
            (fit.weights > 0).all() and misfit <= max(gain * found.misfit, MISFIT_LIMIT)
        )
        if taken:
            seconds = moments.second_moments(fit.weights, fit.points)
            errors = moments.mean_errors(fit.weights, fit.points)[:, columns]
    diagnostics.refined = int(taken)
    diagnostics.implicit_moments = {
        "order": _ORDER,
        "taken": taken,
        "steps": fit.n_iter,
        "passes": moments.n_passes,
        "objective": fit.values,
    }
    if not taken:
        return start
    if np.isfinite(diagnostics.moment_misfit):
        # least squares do not settle on components that are noise, whatever the singular values
        diagnostics.moment_misfit = misfit
        diagnostics.mean_error = float(np.sqrt((errors**2).mean(axis=1).max())) / gain
    if not settings.polish:
        diagnostics.message = diagnostics.message.replace(
            "; no", f", refined by least squares in {moments.n_passes} more; no"
        )
    return _feasible(fit.weights, fit.points, seconds, columns, settings, least_weight)


def _feasible(
    weights: Array,
    means: Array,
    second_moments: Array,
    columns: NDArray[np.int64],
    settings: Settings,
    least_weight: float,
) -> Mixture:
    """Make estimates a mixture whose columns have variance 1: noise takes them out of it."""
    weights = np.maximum(weights, least_weight)
    weights = weights / weights.sum()
    # w mu^2 <= 1 and w var <= 1
    largest = 1.0 / weights[:, None]
    means = np.clip(means, -np.sqrt(largest), np.sqrt(largest))
    variances = np.full(means.shape, max(settings.floor, 1e-12))
    spread = np.clip(second_moments - means**2, _LEAST_VARIANCE, largest)
    variances[:, columns] = np.maximum(spread[:, columns], settings.floor)
    return Mixture(weights, means, variances)
