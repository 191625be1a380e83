"""Which cells are credible: limits of every column, or of every column in every component."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.rows import Chunk

__all__ = ["CellLimits", "column_limits", "component_limits"]

Array = NDArray[Any]
_TAIL = 0.1  # a group of more weight on one side of a column is a component, not dirt
_NORMAL_TAIL = 1.2815515655446004  # standard deviations beyond which a normal has that weight
_NORMAL_MEDIAN = 1.4826022185056018  # standard deviation in units of the median deviation
_MOSTLY = 1.0 / 3.0  # share of far cells above which the whole row is taken to be wild
_FEW = 20  # cells of a component that are too few to find its unit
_ROUNDS = 3  # of assigning rows to components and finding the units of these


@dataclass(frozen=True, slots=True, eq=False)
class CellLimits:
    """The range of credible cells of every column, in every component.

    A row belongs to the component that explains it best, with no cell counting as more than so
    far away: single wild cells do not decide where a row belongs.

    Attributes
    ----------
    lower, upper : ndarray of shape (r, d)
        The ranges; r is 1 where they hold for all rows.
    centre, below, above : ndarray of shape (r, d)
        Medians, and robust standard deviations on either side.
    levels : ndarray of shape (r,)
        Logarithms of the components' weights.
    cap : float
        Robust standard deviations that a cell counts as, at most.
    cells : bool
        Whether far cells alone are left out, as if missing, of rows that are not mostly far; a
        row with any far cell is left out otherwise.
    """

    lower: Array
    upper: Array
    centre: Array
    below: Array
    above: Array
    levels: Array
    cap: float
    cells: bool = False

    def keep(self, X: Array, weights: Array | None) -> Chunk:
        """Leave out far rows, or hide far cells."""
        from tensoralg.solvers.row_kernels import hide_outside

        labels = self.labels(X)
        far = self._far(X, labels)
        wild = far > self._most(X)
        if wild.any():
            X, weights = X[~wild], None if weights is None else weights[~wild]
            labels, far = labels[~wild], far[~wild]
        if self.cells and far.any():
            X = X.copy()
            hide_outside(X, labels, self.lower, self.upper)
        return X, weights

    @property
    def spread(self) -> Array:
        """Robust standard deviation of each column, the largest of all components."""
        return np.asarray(np.maximum(self.below, self.above).max(axis=0))

    def left_out(self, X: Array) -> NDArray[np.bool_]:
        """Tell which rows are left out."""
        return np.asarray(self._far(X, self.labels(X)) > self._most(X))

    def tally(self, number: int, X: Array, weights: Array | None) -> Array:
        """Count rows, their weight, rows with far cells and mostly far ones, and hidden cells."""
        w = np.ones(len(X)) if weights is None else weights
        far = self._far(X, self.labels(X))
        wild = far > replace(self, cells=True)._most(X)
        touched = far > 0
        counts = [len(X), w.sum(), touched.sum(), w @ touched, wild.sum(), w @ wild]
        return np.array([*counts, far[~wild].sum()], dtype=np.float64)

    def labels(self, X: Array) -> NDArray[np.int64]:
        """Return the component of every row."""
        from tensoralg.solvers.row_kernels import nearest

        if len(self.lower) == 1:
            return np.zeros(len(X), dtype=np.int64)
        units = self.levels, self.centre, self.below, self.above
        return np.asarray(nearest(_one_type(X), *units, self.cap))

    def count_far(self, X: Array) -> NDArray[np.int64]:
        """Count the far cells of every row."""
        return self._far(X, self.labels(X))

    def _far(self, X: Array, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        from tensoralg.solvers.row_kernels import count_outside

        return np.asarray(count_outside(_one_type(X), labels, self.lower, self.upper))

    def _most(self, X: Array) -> Any:
        """Return how many far cells a row may have; where all are far, they are too many."""
        if not self.cells:
            return 0
        return _MOSTLY * np.count_nonzero(~np.isnan(X), axis=1)


def _one_type(X: Array) -> Array:
    """Return a read-only view: the kernels are compiled once for a dtype."""
    view = np.ascontiguousarray(X).view()
    view.flags.writeable = False
    return view


def column_limits(X: Array, weights: Array | None, deviations: float) -> CellLimits:
    """Find the limits of every column from rows.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; NaN is a missing cell.
    weights : ndarray of shape (n,) or None
        Weights.
    deviations : float
        Robust standard deviations from the median to either limit.

    Returns
    -------
    CellLimits
        One range for each column.
    """
    d = X.shape[1]
    centre, below, above = np.zeros((1, d)), np.full((1, d), np.inf), np.full((1, d), np.inf)
    for j in range(d):
        unit = _unit_of_column(X[:, j], weights, least=1)
        if unit is not None:
            centre[0, j], below[0, j], above[0, j] = unit
    with np.errstate(over="ignore"):
        lower, upper = centre - deviations * below, centre + deviations * above
    return CellLimits(lower, upper, centre, below, above, np.zeros(1), deviations)


def component_limits(
    X: Array,
    weights: Array | None,
    outer: CellLimits,
    mixture: tuple[Array, Array, Array],
    deviations: float,
) -> CellLimits:
    """Find the limits of every column in every component of a mixture, from rows.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; NaN is a missing cell.
    weights : ndarray of shape (n,) or None
        Weights.
    outer : CellLimits
        Limits of the columns, which stay in force.
    mixture : tuple of ndarray, shapes (r,), (r, d), (r, d)
        Weights, means and standard deviations of a first fit, which far cells may have spoiled.
    deviations : float
        Robust standard deviations from the median to either limit.

    Returns
    -------
    CellLimits
        One range for each column of each component.
    """
    X, weights = replace(outer, cells=True).keep(X, weights)
    share, centre, sd = mixture
    spread = 0.5 * (outer.below + outer.above)
    limits = _of_components(share, centre, np.minimum(sd, spread), sd, outer, deviations)
    for _ in range(_ROUNDS):
        labels = limits.labels(X)
        mass = np.bincount(labels, weights=weights, minlength=len(share))
        centre, below, above = limits.centre.copy(), limits.below.copy(), limits.above.copy()
        for s in range(len(share)):
            mine = np.flatnonzero(labels == s)
            w = None if weights is None else weights[mine]
            for j in range(X.shape[1]):
                unit = _unit_of_column(X[mine, j], w, least=_FEW)
                if unit is not None and unit[1] < np.inf:
                    centre[s, j], below[s, j], above[s, j] = unit
        share = np.maximum(mass / mass.sum(), 1e-3)
        limits = _of_components(share, centre, below, above, outer, deviations)
    return limits


def _of_components(
    share: Array, centre: Array, below: Array, above: Array, outer: CellLimits, deviations: float
) -> CellLimits:
    lower = np.maximum(centre - deviations * below, outer.lower)
    upper = np.minimum(centre + deviations * above, outer.upper)
    return CellLimits(lower, upper, centre, below, above, np.log(share), deviations)


def _unit_of_column(
    column: Array, weights: Array | None, *, least: int
) -> tuple[float, float, float] | None:
    """Find median and robust deviations of the cells that are there, if they are enough."""
    there = ~np.isnan(column)
    if there.sum() < least:
        return None
    with np.errstate(over="ignore"):
        return _robust_unit(
            column[there].astype(np.float64), None if weights is None else weights[there]
        )


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
