"""Rows of data as the estimator sees them: one array, or chunks that stream past."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError

__all__ = [
    "ColumnSummary",
    "RowSource",
    "distinct_rows",
    "is_chunked",
    "rows_of_block",
    "summarise",
]

Array = NDArray[Any]
Chunk = tuple[Array, Array | None]
_BLOCK = 65536  # rows
_CELLS = 2**21  # fewer rows where there are many columns


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSummary:
    """Weighted first and second moments of each column, over the cells that are there.

    Attributes
    ----------
    rows : int
        Rows of positive weight.
    weight : ndarray of shape (d,)
        Total weight of the observed cells of each column.
    mean, variance : ndarray of shape (d,)
        Mean and variance of the observed cells.
    minimum, maximum : ndarray of shape (d,)
        Range of the observed cells.
    total_weight : float
        Total weight of the rows.
    missing : int
        Number of missing cells.
    """

    rows: int
    weight: Array
    mean: Array
    variance: Array
    minimum: Array
    maximum: Array
    total_weight: float
    missing: int

    def merged(self, other: "ColumnSummary") -> "ColumnSummary":
        """Pool two summaries (Chan, Golub, LeVeque 1983)."""
        weight = self.weight + other.weight
        share = np.divide(other.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        with np.errstate(over="ignore", invalid="ignore"):  # check_spread refuses such columns
            gap = other.mean - self.mean
            variance = self.variance * (1.0 - share) + other.variance * share
            variance += share * (1.0 - share) * gap**2
            mean = self.mean + share * gap
        return ColumnSummary(
            self.rows + other.rows,
            weight,
            mean,
            variance,
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
            self.total_weight + other.total_weight,
            self.missing + other.missing,
        )

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Columns in which every observed cell is the same number, up to rounding."""
        rounding = 4.0 * np.finfo(np.float64).eps * np.abs(self.mean)
        return np.asarray((self.minimum == self.maximum) | (np.sqrt(self.variance) <= rounding))

    @property
    def spread(self) -> Array:
        """Range of each column; 0 where the column is constant up to rounding."""
        with np.errstate(over="ignore"):
            extent = self.maximum - self.minimum
        rounding = 1e3 * np.finfo(np.float64).eps * np.abs(self.mean)
        same = self.constant & (extent <= rounding) & np.isfinite(extent)
        return np.asarray(np.where(same, 0.0, extent))

    @property
    def scale(self) -> Array:
        """Standard deviation of each column; 1 where the column is constant."""
        return np.asarray(np.where(self.constant, 1.0, np.sqrt(self.variance)))


def rows_of_block(columns: int) -> int:
    """Count the rows whose temporaries stay small."""
    return min(_BLOCK, max(_CELLS // columns, 1))


def _summarise_block(X: Array, weights: Array) -> ColumnSummary:
    x = X.astype(np.float64)
    there = np.isfinite(x)
    cell = weights[:, None] * there
    weight = cell.sum(axis=0)
    safe = np.where(weight > 0, weight, 1.0)
    # centre on a row first: sums of large offsets would lose the digits of the spread
    anchor = np.where(there, x, 0.0)[there.argmax(axis=0), np.arange(x.shape[1])]
    centred = np.where(there, x - anchor, 0.0)
    offset = (cell * centred).sum(axis=0) / safe
    variance = (cell * np.where(there, centred - offset, 0.0) ** 2).sum(axis=0) / safe
    return ColumnSummary(
        len(x),
        weight,
        anchor + offset,
        variance,
        np.where(there, x, np.inf).min(axis=0),
        np.where(there, x, -np.inf).max(axis=0),
        float(weights.sum()),
        int(x.size - there.sum()),
    )


def summarise(X: Array, sample_weight: Array | None = None) -> ColumnSummary:
    """Summarise the columns of an array block by block.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; NaN is a missing cell.
    sample_weight : ndarray of shape (n,), optional
        Positive weights.

    Returns
    -------
    ColumnSummary
        The pooled summary.
    """
    w = np.ones(len(X)) if sample_weight is None else sample_weight
    total: ColumnSummary | None = None
    size = rows_of_block(X.shape[1])
    for begin in range(0, len(X), size):
        rows = slice(begin, begin + size)
        with np.errstate(over="ignore", invalid="ignore"):  # as in `merged`
            part = _summarise_block(X[rows], w[rows])
        total = part if total is None else total.merged(part)
    if total is None:
        raise ShapeError("X has no row of positive weight")
    return total


def distinct_rows(chunks: Iterable[Chunk], enough: int) -> Array | None:
    """Find distinct rows, no more than `enough`; None where there is no row."""
    seen: Array | None = None
    for X, _ in chunks:
        # most data differ at once: look at few rows first
        for begin, end in ((0, 256), (256, len(X))):
            if begin >= len(X):
                continue
            block = X[begin:end]
            seen = np.unique(block if seen is None else np.concatenate([seen, block]), axis=0)
            if len(seen) >= enough:
                return seen[:enough]
    return seen


def is_chunked(X: Any) -> bool:
    """Whether X is an iterable of 2-D chunks rather than one array-like."""
    if hasattr(X, "__array__") or hasattr(X, "shape") or isinstance(X, (str, bytes, dict)):
        return False
    if isinstance(X, (list, tuple)):
        return len(X) > 0 and all(getattr(part, "ndim", 0) == 2 for part in X)
    return isinstance(X, Iterable)


class RowSource:
    """A callable that yields checked chunks ``(X, sample_weight)``, as often as it can.

    Parameters
    ----------
    chunks : callable
        Returns an iterable of raw chunks.
    check : callable
        Checks one raw chunk and drops the rows that take no part.
    again : bool
        Whether the chunks can be read more than once.
    """

    def __init__(
        self,
        chunks: Callable[[], Iterable[Any]],
        check: Callable[[Any], Chunk],
        *,
        again: bool,
    ) -> None:
        self._chunks, self._check, self.again = chunks, check, again

    @classmethod
    def from_checked(cls, X: Array, sample_weight: Array | None) -> "RowSource":
        """One array in memory, checked already."""
        return cls(lambda: [(X, sample_weight)], lambda chunk: chunk, again=True)

    @classmethod
    def from_chunks(cls, X: Iterable[Any], check: Callable[[Any], Chunk]) -> "RowSource":
        """Chunks that are checked as they come."""
        once = isinstance(X, Iterator)
        return cls(lambda: X, check, again=not once)

    def __call__(self) -> Iterator[Chunk]:
        """Read the data once."""
        for raw in self._chunks():
            X, weights = self._check(raw)
            if len(X):
                yield X, weights

    def count_distinct(self, enough: int) -> int:
        """Count distinct rows, no further than `enough`."""
        seen = distinct_rows(self(), enough)
        return 0 if seen is None else len(seen)
