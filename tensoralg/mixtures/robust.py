"""Far cells and rows: left out on request, reported otherwise."""

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import RankBoundError
from tensoralg.mixtures.cell_limits import CellLimits, column_limits, component_limits
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.moments_only import Fitted
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.pipeline import fit_source
from tensoralg.mixtures.rows import Chunk, RowSource

__all__ = ["restricted", "robust_limits"]

Array = NDArray[np.float64]

_FAR = 8.0  # robust standard deviations of a column beyond which robust=True leaves a cell out
_FAR_IN_COMPONENT = 4.0  # and those of a column in a component
_REPORTED = 50.0  # beyond which a row is counted when nothing is left out
_SAMPLE = 20_000  # rows from which the limits are taken
_REPORT_SAMPLE, _REPORT_CELLS = 10_000, 2**20  # less where they only serve a count
_MANY = 0.1  # share of rows with far cells above which the other cells of such rows are kept
_GROUP = 10  # distinct rows left out that may be a component
_ALARMING = 0.2  # share of rows whose loss deserves a warning


def robust_limits(
    source: RowSource,
    settings: Settings | None = None,
    warm: Mixture | None = None,
    *,
    least_rows: int = 1,
) -> CellLimits | None:
    """Find out which cells are far from everything.

    First, a cell is far where it lies beyond eight robust standard deviations from the median of
    its column. With settings, a mixture is then fitted to the rest, and a cell is far, too, beyond
    four robust standard deviations from the median of its column among the rows of its component.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    settings : Settings, optional
        Of the mixture; without them only the columns count.
    warm : Mixture, optional
        Parameters in the units of the data, to be taken in place of the first fit.
    least_rows : int, default 1
        How many rows are needed.

    Returns
    -------
    CellLimits or None
        None where there are no rows.
    """
    # no other randomness: the limits are a property of the rows
    sample = source.sample(np.random.default_rng(0), _SAMPLE)
    if sample is None:
        return None
    limits = _in_rows_or_cells(source, column_limits(*sample, _FAR), least_rows)
    if settings is None:
        return limits
    if warm is not None and warm.means.shape[1] != sample[0].shape[1]:
        warm = None
    first = warm or _first_fit(source.kept(limits.keep), settings, cells=limits.cells)
    if first is None:
        return limits
    mixture = first.weights, first.means, np.sqrt(first.variances)
    return _in_rows_or_cells(
        source, component_limits(*sample, limits, mixture, _FAR_IN_COMPONENT), least_rows
    )


def _in_rows_or_cells(source: RowSource, limits: CellLimits, least_rows: int) -> CellLimits:
    """Decide whether rows are left out or cells alone: where dirt is in many rows."""
    tally = source.over_chunks(limits.tally, np.add)
    rows, weight, _, touched, *_ = tally.tolist()
    if rows < least_rows:
        raise ValueError(
            f"robust=True takes its limits from the first rows: got {int(rows)}, at least "
            f"{least_rows} are needed"
        )
    return replace(limits, cells=True) if touched > _MANY * weight else limits


def _first_fit(source: RowSource, settings: Settings, *, cells: bool) -> Mixture | None:
    """Fit moments, which single cells spoil less than the likelihood; else the likelihood."""
    settings = replace(settings, missing=settings.missing or cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit that follows says the same
        try:
            fitted = _fit(source, settings.without_polish())
        except RankBoundError:
            fitted = None
        if settings.polish and (fitted is None or not fitted.converged):
            fitted = _fit(source, settings)
    if fitted is None:
        return None
    arrays = fitted.weights, fitted.means, fitted.covariances
    return Mixture(*(np.asarray(a, dtype=np.float64) for a in arrays))


def _fit(source: RowSource, settings: Settings) -> Fitted:
    diagnostics = FitDiagnostics(order=settings.order, form=settings.form)
    # the fit that follows draws the same numbers, whatever this one takes
    (rng,) = settings.rng.spawn(1)
    return fit_source(source, replace(settings, rng=rng), diagnostics)


def restricted(
    source: RowSource, settings: Settings, limits: CellLimits | None, diagnostics: FitDiagnostics
) -> tuple[RowSource, Settings]:
    """Leave out what is far, and report it.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    settings : Settings
        Of the fit.
    limits : CellLimits or None
        None leaves everything: what is very far is counted where that costs little.
    diagnostics : FitDiagnostics
        The numbers of rows left out and of cells hidden are added up there.

    Returns
    -------
    RowSource
        The rest.
    Settings
        Where cells are hidden, for missing cells.
    """
    if limits is None:
        _count_far_rows(source, diagnostics)
        return source, settings
    tally = source.over_chunks(limits.tally, np.add)
    if tally is not None:
        _report(tally, source, limits, diagnostics)
    return source.kept(limits.keep), replace(settings, missing=settings.missing or limits.cells)


def _report(
    tally: Array, source: RowSource, limits: CellLimits, diagnostics: FitDiagnostics
) -> None:
    """Add up what is left out, and warn where it is much."""
    rows, weight, lost, lost_weight, wild, wild_weight, cells = tally.tolist()
    if limits.cells:
        lost, lost_weight = wild, wild_weight
        diagnostics.outlying_cells += int(cells)
    diagnostics.outliers += int(lost)
    if lost_weight > _ALARMING * weight:
        warn(
            f"robust=True leaves out {int(lost)} of {int(rows)} rows, which hold "
            f"{lost_weight / weight:.0%} of the weight: where they belong to components, fit "
            "with robust=False"
        )
    elif int(lost) >= _GROUP and (centre := _group_left_out(source, limits)) is not None:
        where = ", ".join(f"{value:.4g}" for value in centre[:3])
        warn(
            f"robust=True leaves out {int(lost)} of {int(rows)} rows, most of which lie close "
            f"together, around ({where}{', ...' if len(centre) > 3 else ''}): where they are a "
            "component, fit with robust=False"
        )


def _group_left_out(source: RowSource, limits: CellLimits) -> NDArray[np.float64] | None:
    """Return the centre of the rows left out if they lie as close together as the others do."""
    sample = source.sample(np.random.default_rng(0), _SAMPLE)
    if sample is None:
        return None
    X = sample[0][limits.left_out(sample[0])]
    if len(X) < _GROUP:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # columns without any cell
        centre = np.asarray(np.nanmedian(X, axis=0), dtype=np.float64)
        deviation = np.nanmedian(np.abs(X - centre), axis=0)
    unit = limits.spread
    close = np.isfinite(unit)
    apart = bool(limits.left_out(centre[None])[0])  # heavy tails lie around everything
    return centre if apart and close.any() and (deviation <= unit)[close].all() else None


def _count_far_rows(source: RowSource, diagnostics: FitDiagnostics) -> None:
    """Count the rows, all in memory, that no robust scale explains."""
    if source.held is None:
        return
    X, weights = source.held
    size = min(_REPORT_SAMPLE, max(_REPORT_CELLS // X.shape[1], 1000))
    few = slice(None, None, max(1, len(X) // size))
    sample: Chunk = (X[few], None if weights is None else weights[few])
    diagnostics.outliers += int(np.count_nonzero(column_limits(*sample, _REPORTED).count_far(X)))
