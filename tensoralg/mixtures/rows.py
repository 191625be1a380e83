"""Rows of data as the estimator sees them: one array, or chunks that stream past."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures.row_sample import (
    RowSample,
    limit_of_keys,
    merged_samples,
    salt_of,
    sample_of,
)

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
BlockFunction = Callable[[int, Array, Array | None], Any]
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
        """Range of each column; 0 where it is constant up to rounding, infinite beyond numbers."""
        with np.errstate(over="ignore"):
            extent = self.maximum - self.minimum
        extent = np.where(np.isfinite(self.variance), extent, np.inf)  # sums of squares overflow
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
    from tensoralg.solvers.column_kernels import pool_columns

    if len(X) == 0:
        raise ShapeError("X has no row of positive weight")
    d = X.shape[1]
    mass, mean, squares = np.zeros(d), np.zeros(d), np.zeros(d)
    minimum, maximum = np.full(d, np.inf), np.full(d, -np.inf)
    w = np.empty(0) if sample_weight is None else np.ascontiguousarray(sample_weight, np.float64)
    size = rows_of_block(d)
    missing = 0
    # overflow is left to the caller: check_spread refuses such columns
    for begin in range(0, len(X), size):
        rows = slice(begin, begin + size)
        block, weights = _one_kind(X[rows]), _one_kind(w[rows])
        missing += pool_columns(block, weights, mass, mean, squares, minimum, maximum)
    variance = squares / np.where(mass > 0, mass, 1.0)
    total = float(len(X) if sample_weight is None else w.sum())
    return ColumnSummary(len(X), mass, mean, variance, minimum, maximum, total, missing)


def _one_kind(array: Array) -> Array:
    """Return a read-only row-major view or copy, so that the kernel compiles once for a dtype."""
    known = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    view = np.ascontiguousarray(known).view()
    view.flags.writeable = False
    return view


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
        self._seen = False  # any rows yet
        self.held: Chunk | None = None  # all rows, where they are one array in memory

    @classmethod
    def from_checked(cls, X: Array, sample_weight: Array | None) -> "RowSource":
        """One array in memory, checked already."""
        source = cls(lambda: [(X, sample_weight)], lambda chunk: chunk, again=True)
        source.held = X, sample_weight
        return source

    @classmethod
    def from_chunks(cls, X: Iterable[Any], check: Callable[[Any], Chunk]) -> "RowSource":
        """Chunks that are checked as they come."""
        once = isinstance(X, Iterator) or getattr(X, "once", False)
        return cls(lambda: X, check, again=not once)

    def __call__(self) -> Iterator[Chunk]:
        """Read the data once."""
        empty = True
        for raw in self._chunks():
            X, weights = self._check(raw)
            if len(X):
                empty, self._seen = False, True
                yield X, weights
        if empty and self._seen:
            raise ValueError(
                "X gave rows when it was read first and none later; pass a list of chunks, or an "
                "iterator that can be read once only"
            )

    def kept(self, keep: Callable[[Array, Array | None], Chunk]) -> "RowSource":
        """Return the rows that a picklable function leaves of every chunk."""
        if self.held is not None:
            return RowSource.from_checked(*keep(*self.held))
        return RowSource(self._chunks, lambda raw: keep(*self._check(raw)), again=self.again)

    def over_chunks(self, function: BlockFunction, merge: Callable[[Any, Any], Any]) -> Any:
        """Compute ``function(number, X, sample_weight)`` of every chunk and merge the results.

        Returns
        -------
        object
            The merged result; None where there are no rows.
        """
        found: Any = None
        for number, (X, weights) in enumerate(self()):
            part = function(number, X, weights)
            found = part if found is None else merge(found, part)
        return found

    def sample(self, rng: np.random.Generator, size: int) -> Chunk | None:
        """Draw distinct rows uniformly, with the total weight of each.

        Parameters
        ----------
        rng : Generator
            Source of the draw.
        size : int
            How many rows; all when there are fewer.

        Returns
        -------
        (X, sample_weight) or None
            Does not depend on the order and the chunks of the rows, nor on whether a row is
            repeated or has weight; None where there are no rows.
        """
        salt, limit = salt_of(rng), limit_of_keys(1.0)
        found: RowSample | None = None
        weighted = False
        for number, (X, weights) in enumerate(self()):
            weighted |= weights is not None
            part = sample_of(size, salt, limit, number, X, weights)
            found = part if found is None else merged_samples(size, found, part)
            if len(found.keys) == size:
                limit = found.keys[-1]
        return None if found is None else found.chunk(weighted=weighted)

    def count_distinct(self, enough: int) -> int:
        """Count distinct rows, no further than `enough`."""
        seen = distinct_rows(self(), enough)
        return 0 if seen is None else len(seen)
