"""Far cells and rows: left out on request, reported otherwise."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.rows import Chunk, RowSource

__all__ = ["CellLimits", "limits_of", "report_far_rows", "without_outliers"]

Array = NDArray[Any]
_DROPPED = 8.0  # robust standard deviations beyond which robust=True leaves a cell out
_REPORTED = 50.0  # and beyond which a row is counted when nothing is left out
_SAMPLE = 20_000  # rows from which the limits are taken
_REPORT_SAMPLE, _REPORT_CELLS = 10_000, 2**20  # less where they only serve a count
_TAIL = 0.1  # a group of more weight on one side of a column is a component, not dirt
_NORMAL_TAIL = 1.2815515655446004  # standard deviations beyond which a normal has that weight
_NORMAL_MEDIAN = 1.4826022185056018  # standard deviation in units of the median deviation
_MANY = 0.1  # share of rows with far cells above which the other cells of such rows are kept
_MOSTLY = 1.0 / 3.0  # share of far cells above which the whole row is taken to be wild
_ALARMING = 0.2  # share of rows whose loss deserves a warning


@dataclass(frozen=True, slots=True, eq=False)
class CellLimits:
    """The range of credible cells of every column.

    Attributes
    ----------
    lower, upper : ndarray of shape (d,)
        The ranges.
    cells : bool
        Whether far cells alone are left out, as if missing, of rows that are not mostly far; a
        row with any far cell is left out otherwise.
    """

    lower: Array
    upper: Array
    cells: bool = False

    def keep(self, X: Array, weights: Array | None) -> Chunk:
        """Leave out far rows, or hide far cells."""
        from tensoralg.solvers.row_kernels import hide_outside

        far = self.far(X)
        wild = far > self._most(X)
        if wild.any():
            X, weights = X[~wild], None if weights is None else weights[~wild]
        elif self.cells and far.any():
            X = X.copy()
        if self.cells and far.any():
            hide_outside(X, self.lower, self.upper)
            empty = np.isnan(X).all(axis=1)
            if empty.any():
                X, weights = X[~empty], None if weights is None else weights[~empty]
        return X, weights

    def far(self, X: Array) -> NDArray[np.int64]:
        """Count the far cells of every row."""
        from tensoralg.solvers.row_kernels import count_outside

        view = np.ascontiguousarray(X).view()
        view.flags.writeable = False  # one type of array: compiled once
        return np.asarray(count_outside(view, self.lower, self.upper))

    def tally(self, number: int, X: Array, weights: Array | None) -> Array:
        """Count rows, their weight, rows with far cells and mostly far ones, and hidden cells."""
        w = np.ones(len(X)) if weights is None else weights
        far = self.far(X)
        wild = far > replace(self, cells=True)._most(X)
        touched = far > 0
        counts = [len(X), w.sum(), touched.sum(), w @ touched, wild.sum(), w @ wild]
        return np.array([*counts, far[~wild].sum()], dtype=np.float64)

    def _most(self, X: Array) -> Any:
        """Return how many far cells a row may have."""
        if not self.cells:
            return 0
        return _MOSTLY * np.count_nonzero(~np.isnan(X), axis=1)


def without_outliers(
    source: RowSource,
    diagnostics: FitDiagnostics,
    limits: CellLimits | None = None,
    *,
    least_rows: int = 1,
) -> tuple[RowSource, CellLimits]:
    """Leave out what is far from everything.

    A cell is far where it lies beyond eight robust standard deviations from the median of its
    column. Rows with a far cell are left out; where those are more than a tenth of the weight,
    dirt sits in single cells: they alone are then hidden as if missing, and only rows of which more
    than a third is far are left out.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    diagnostics : FitDiagnostics
        The numbers of rows left out and of cells hidden are added up there.
    limits : CellLimits, optional
        Of earlier rows; otherwise these rows give them.
    least_rows : int, default 1
        How many rows are needed for limits.

    Returns
    -------
    RowSource
        The rest.
    CellLimits
        What was left out: to be done again with the same limits.
    """
    known = limits is not None
    limits = limits or limits_of(source, _DROPPED)
    tally = source.over_chunks(limits.tally, np.add)
    if tally is None:
        return source, limits
    rows, weight, touched, touched_weight, wild, wild_weight, cells = tally.tolist()
    if not known and rows < least_rows:
        raise ValueError(
            f"robust=True takes its limits from the first rows: got {int(rows)}, at least "
            f"{least_rows} are needed"
        )
    if not known and touched_weight > _MANY * weight:
        limits = replace(limits, cells=True)
    if limits.cells:
        touched, touched_weight = wild, wild_weight
        diagnostics.outlying_cells += int(cells)
    diagnostics.outliers += int(touched)
    if touched_weight > _ALARMING * weight:
        warn(
            f"robust=True leaves out {int(touched)} of {int(rows)} rows, which hold "
            f"{touched_weight / weight:.0%} of the weight: where they belong to components, fit "
            "with robust=False"
        )
    return (source.kept(limits.keep) if touched or limits.cells else source), limits


def report_far_rows(source: RowSource, diagnostics: FitDiagnostics) -> None:
    """Count the rows, all in memory, that no robust scale explains."""
    if source.held is None:
        return
    X, weights = source.held
    size = min(_REPORT_SAMPLE, max(_REPORT_CELLS // X.shape[1], 1000))
    few = slice(None, None, max(1, len(X) // size))
    limits = _limits(X[few], None if weights is None else weights[few], _REPORTED)
    diagnostics.outliers += int(np.count_nonzero(limits.far(X)))


def limits_of(source: RowSource, deviations: float) -> CellLimits:
    """Find the limits of every column from a sample of about 20,000 rows.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    deviations : float
        Robust standard deviations from the median to either limit.

    Returns
    -------
    CellLimits
        The same for rows that are repeated, and for rows with weights.
    """
    # no other randomness: the limits are a property of the rows
    sample = source.sample(np.random.default_rng(0), _SAMPLE)
    if sample is None:
        return CellLimits(np.empty(0), np.empty(0))
    return _limits(*sample, deviations)


def _limits(X: Array, weights: Array | None, deviations: float) -> CellLimits:
    lower, upper = np.full(X.shape[1], -np.inf), np.full(X.shape[1], np.inf)
    with np.errstate(over="ignore"):
        for j in range(X.shape[1]):
            column = X[:, j].astype(np.float64)
            there = ~np.isnan(column)
            if there.any():
                w = None if weights is None else weights[there]
                centre, below, above = _robust_unit(column[there], w)
                lower[j], upper[j] = centre - deviations * below, centre + deviations * above
    return CellLimits(lower, upper)


def _robust_unit(values: Array, weights: Array | None) -> tuple[float, float, float]:
    """Median, and robust standard deviations below and above it.

    Each is the larger of the median deviation and of the distance of the quantile that leaves a
    tenth of the weight on that side: a component of that weight is never taken for dirt.
    """
    low, centre, high = _quantiles(values, weights, (_TAIL, 0.5, 1.0 - _TAIL))
    deviation = np.abs(values - centre)
    common = _NORMAL_MEDIAN * _quantiles(deviation, weights, (0.5,))[0]
    below = max(common, (centre - low) / _NORMAL_TAIL)
    above = max(common, (high - centre) / _NORMAL_TAIL)
    if min(below, above) == 0.0:
        # most cells hold one number: the others show the unit
        others = deviation > 0
        if not others.any():
            return centre, np.inf, np.inf
        rest = None if weights is None else weights[others]
        unit = _NORMAL_MEDIAN * _quantiles(deviation[others], rest, (0.5,))[0]
        below, above = below or unit, above or unit
    return centre, below, above


def _quantiles(values: Array, weights: Array | None, shares: tuple[float, ...]) -> list[float]:
    """Quantiles of values with weights, as of values repeated."""
    if weights is None:
        values, cumulated = np.sort(values), np.arange(1.0, len(values) + 1.0)
    else:
        order = np.argsort(values, kind="stable")
        values, cumulated = values[order], np.cumsum(weights[order])
    targets = np.array(shares) * cumulated[-1] * (1.0 - 1e-12)
    at = np.minimum(np.searchsorted(cumulated, targets), len(values) - 1)
    return [float(value) for value in values[at]]
