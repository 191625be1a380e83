"""Rows in a Dask array: the work goes to the chunks, and only sums come back."""

import functools
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures.row_sample import limit_of_keys, merged_samples, salt_of, sample_of
from tensoralg.mixtures.rows import BlockFunction, Chunk, RowSource, distinct_rows
from tensoralg.mixtures.validation import check_cells

__all__ = ["DaskRows", "as_dask_array", "checked_block", "is_dask", "merged_update"]

Array = NDArray[Any]
_FAN_IN = 8  # partial sums that one task merges
_EXTREME = 500  # binary exponent of weights beyond which sums lose digits


def is_dask(X: Any) -> bool:
    """Whether X is a Dask array or a Dask data frame; Dask is not imported to find out."""
    return bool(array_api_compat.is_dask_array(X)) or (
        type(X).__module__.startswith("dask") and hasattr(X, "to_dask_array")
    )


def as_dask_array(X: Any) -> Any:
    """Return a Dask array of real numbers, cut into chunks of whole rows.

    Parameters
    ----------
    X : dask.array.Array or dask.dataframe.DataFrame, shape (N, d)
        The argument. N may be unknown; chunks that split columns are put together.

    Returns
    -------
    dask.array.Array
        With one chunk along the columns.

    Raises
    ------
    ShapeError
        Not two-dimensional, no column, or an unknown number of columns.
    ValueError
        A dtype that is not real.
    TypeError
        Chunks that are no NumPy arrays.
    """
    if not array_api_compat.is_dask_array(X):
        X = X.to_dask_array()
    if X.ndim != 2:
        hint = "; use X.reshape(-1, 1) if it is one column" if X.ndim == 1 else ""
        raise ShapeError(f"X must have shape (N, d), got {X.shape}{hint}")
    if math.isnan(X.shape[1]):
        raise ShapeError("X has an unknown number of columns; call X.compute_chunk_sizes() first")
    if X.shape[1] == 0:
        raise ShapeError(f"X has shape {X.shape}: 0 features, at least 1 is needed")
    if X.dtype.kind not in "fiubO":
        raise ValueError(f"X has dtype {X.dtype}; real numbers are needed")
    if not isinstance(X._meta, np.ndarray) or isinstance(X._meta, np.ma.MaskedArray):
        raise TypeError(
            f"the chunks of X are {type(X._meta).__module__}.{type(X._meta).__name__}; NumPy "
            "arrays are needed, as X.map_blocks may make them"
        )
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def _weights_like(sample_weight: Any, X: Any) -> Any:
    """Bring weights into chunks that go with those of X."""
    rows, lengths = X.shape[0], X.chunks[0]
    if not array_api_compat.is_dask_array(sample_weight):
        import dask.array

        weights = np.asarray(sample_weight, dtype=np.float64)
        if math.isnan(rows):
            raise ValueError(
                "X has chunks of unknown sizes: sample_weight must be a Dask array with the same "
                "chunks, or call X.compute_chunk_sizes() first"
            )
        if weights.shape != (rows,):
            raise ShapeError(f"sample_weight must have shape ({rows},), got {weights.shape}")
        return dask.array.from_array(weights, chunks=(lengths,))
    if sample_weight.ndim != 1:
        raise ShapeError(f"sample_weight must have shape (N,), got {sample_weight.shape}")
    if not (math.isnan(rows) or math.isnan(sample_weight.shape[0])):
        if sample_weight.shape[0] != rows:
            raise ShapeError(f"sample_weight must have shape ({rows},), got {sample_weight.shape}")
        return sample_weight.rechunk((lengths,))
    if sample_weight.numblocks[0] != X.numblocks[0]:
        raise ShapeError(
            f"sample_weight has {sample_weight.numblocks[0]} chunks and X has {X.numblocks[0]}; "
            "where chunk sizes are unknown they must have the same chunks"
        )
    return sample_weight


def _checked_weights(weights: Any, X: Array) -> Array:
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (len(X),):
        raise ShapeError(f"sample_weight has shape {w.shape} where X has {len(X)} rows")
    wrong = ~(np.isfinite(w) & (w >= 0))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"sample_weight must be finite and nonnegative; got {w[i]:g} at row {i}")
    if w.any() and abs(int(np.frexp(w.max())[1])) > _EXTREME:
        raise ValueError(
            f"sample_weight goes up to {w.max():g}, where sums lose digits; divide the weights by "
            "their mean"
        )
    return w


def checked_block(X: Any, weights: Any, *, missing: bool, empty: bool = False) -> Chunk:
    """Check one chunk; rows of weight 0, and unless `empty` those without any cell, are dropped."""
    X = check_array(
        X, dtype=[np.float64, np.float32], ensure_all_finite=False, ensure_min_samples=0
    )
    keep = np.ones(len(X), dtype=bool)
    if weights is not None:
        weights = _checked_weights(weights, X)
        keep = weights > 0
    kept = X if keep.all() else X[keep]
    check_cells(kept, np.flatnonzero(keep), missing=missing)
    if missing and not empty:
        keep &= ~np.isnan(X).all(axis=1)
        kept = X if keep.all() else X[keep]
    return np.ascontiguousarray(kept), None if weights is None else weights[keep]


@dataclass(frozen=True)
class _OnBlock:
    """What runs where a chunk is."""

    function: BlockFunction
    missing: bool | None  # None: the function checks its rows itself
    keep: Callable[[Array, Array | None], Chunk] | None = None

    def __call__(self, number: int, start: float, X: Any, weights: Any = None) -> Any:
        try:
            if self.missing is not None:
                X, weights = checked_block(X, weights, missing=self.missing)
            if self.keep is not None:
                X, weights = self.keep(X, weights)
            return self.function(number, X, weights) if len(X) else None
        except ValueError as error:
            begin = "" if math.isnan(start) else f" (from row {int(start)})"
            kind = ShapeError if isinstance(error, ShapeError) else ValueError
            raise kind(f"chunk {number} of X{begin}: {error}") from None


def _task(key: Any, function: Any, values: tuple[Any, ...], results: Sequence[Any]) -> Any:
    """Write a task of a graph: a call with values, and with results of other tasks."""
    try:
        from dask._task_spec import Task, TaskRef
    except ImportError:  # before 2024.12 a tuple is a task, and keys in it are results
        return (function, *values, *results)
    return Task(key, function, *values, *map(TaskRef, results))


def _merged(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    there = [part for part in parts if part is not None]
    return functools.reduce(merge, there) if there else None


def _rows_as_they_are(number: int, X: Array, weights: Array | None) -> Chunk:
    return X, weights


class DaskRows(RowSource):
    """Rows in a Dask array, as the estimator reads them.

    Parameters
    ----------
    X : dask.array.Array, shape (N, d)
        Rows, from :func:`as_dask_array`.
    sample_weight : array or None, shape (N,)
        Weights, in memory or as a Dask array.
    missing : bool or None
        Whether NaN is a missing cell; None leaves all checks to the functions.
    """

    def __init__(self, X: Any, sample_weight: Any, *, missing: bool | None) -> None:
        super().__init__(tuple, lambda chunk: chunk, again=True)
        self.width = int(X.shape[1])
        self._missing = missing
        self._keep: Callable[[Array, Array | None], Chunk] | None = None
        self._starts = np.concatenate([[0.0], np.cumsum(X.chunks[0])])[:-1].tolist()
        self._weighted = sample_weight is not None
        weights = _weights_like(sample_weight, X) if self._weighted else None
        # optimised once: the graph of every pass begins with this one
        self._blocks = list(X.to_delayed().ravel())
        self._weights = [] if weights is None else list(weights.to_delayed().ravel())
        self.rows: int | None = None

    def __len__(self) -> int:
        """Count the chunks."""
        return len(self._blocks)

    def __call__(self) -> Iterator[Chunk]:
        """Read the rows chunk by chunk into this process; `reduce` leaves them where they are."""
        for number in range(len(self)):
            chunk = self.at(number, _rows_as_they_are)
            if chunk is not None:
                yield chunk

    def at(self, number: int, function: BlockFunction) -> Any:
        """Compute ``function(number, X, sample_weight)`` of one chunk; None without rows."""
        return self._computed(function, [number], _merged)

    def first(self, function: BlockFunction) -> Any:
        """Compute a function of the first chunk that has rows; None where there is none."""
        found = (self.at(number, function) for number in range(len(self)))
        return next((part for part in found if part is not None), None)

    def reduce(self, function: BlockFunction, merge: Callable[[Any, Any], Any]) -> Any:
        """Compute a function of every chunk where the chunk is, and merge the results in a tree.

        The tree depends on the number of chunks only, so that the result does not depend on the
        number of workers. A task that is lost with its worker is run again by the scheduler;
        `merge` must therefore leave its arguments as they are.

        Parameters
        ----------
        function : callable
            Gets the chunk's number, rows and weights; must be picklable, as `merge`.
        merge : callable
            Merges two neighbouring results.

        Returns
        -------
        object
            The merged result; None where no chunk has rows.
        """
        return self._computed(function, range(len(self)), merge)

    def _computed(
        self, function: BlockFunction, numbers: Sequence[int], merge: Callable[[Any, Any], Any]
    ) -> Any:
        from dask.delayed import Delayed
        from dask.highlevelgraph import HighLevelGraph

        name = f"mixture-{uuid.uuid4().hex}"
        call = _OnBlock(function, self._missing, self._keep)
        tasks: dict[Any, Any] = {}
        level: list[Any] = []
        for number in numbers:
            chunk = [part[number].key for part in (self._blocks, self._weights) if part]
            level.append((name, 0, number))
            tasks[level[-1]] = _task(level[-1], call, (number, self._starts[number]), chunk)
        depth = 0
        while depth == 0 or len(level) > 1:
            depth += 1
            groups = [level[k : k + _FAN_IN] for k in range(0, len(level), _FAN_IN)]
            level = [(name, depth, k) for k in range(len(groups))]
            for key, group in zip(level, groups, strict=True):
                tasks[key] = _task(key, _merged, (merge,), group)
        # the delayed chunks of an array share one graph
        shared = [part[0] for part in (self._blocks, self._weights) if part]
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=shared)
        return Delayed(level[0], graph, layer=name).compute()

    def count_distinct(self, enough: int) -> int:
        """Count distinct rows, no further than `enough`; one chunk usually has enough."""
        find = functools.partial(_distinct_of, enough)
        seen = self.first(find)
        if seen is not None and len(seen) < enough:
            seen = self.reduce(find, functools.partial(_distinct_of_both, enough))
        return 0 if seen is None else len(seen)

    def kept(self, keep: Callable[[Array, Array | None], Chunk]) -> "DaskRows":
        """Return the rows that a picklable function leaves of every chunk."""
        result = copy(self)
        result._keep, result.rows = keep, None
        return result

    def over_chunks(self, function: BlockFunction, merge: Callable[[Any, Any], Any]) -> Any:
        """As `reduce`."""
        return self.reduce(function, merge)

    def sample(self, rng: np.random.Generator, size: int) -> Chunk | None:
        """Draw distinct rows uniformly, with the total weight of each; little more is moved.

        Parameters
        ----------
        rng : Generator
            Source of the draw.
        size : int
            How many rows; all when there are fewer.

        Returns
        -------
        (X, sample_weight) or None
            The sample of the same rows in memory; None where there are no rows.
        """
        salt, merge = salt_of(rng), functools.partial(merged_samples, size)
        if self.rows is None:
            self.rows = int(self.reduce(_number_of_rows, int.__add__) or 0)
        # enough in all but one of 1e9 draws, unless rows are repeated
        share = (size + 6.0 * math.sqrt(size) + 20.0) / max(self.rows, 1)
        while True:
            limit = limit_of_keys(share)
            found = self.reduce(functools.partial(sample_of, size, salt, limit), merge)
            if found is None or len(found.keys) == size or share >= 1.0:
                return None if found is None else found.chunk(weighted=self._weighted)
            share *= 8.0


def _number_of_rows(number: int, X: Array, weights: Array | None) -> int:
    return len(X)


def _distinct_of(enough: int, number: int, X: Array, weights: Array | None) -> Array | None:
    return distinct_rows([(X, weights)], enough)


def _distinct_of_both(enough: int, left: Array, right: Array) -> Array | None:
    return distinct_rows([(left, None), (right, None)], enough)


def merged_update(template: Any, X: Any, sample_weight: Any) -> Any:
    """Accumulate the chunks of a Dask array where they are, and merge the accumulators.

    Parameters
    ----------
    template : MomentAccumulator
        One without rows, of the wanted shift, scale, order and options.
    X : dask.array.Array, shape (N, d)
        Rows.
    sample_weight : array or None, shape (N,)
        Weights.

    Returns
    -------
    MomentAccumulator or None
        The sums over all chunks; None where no row has a positive weight.
    """
    rows = DaskRows(X, sample_weight, missing=None)
    if template.shift is None:
        # all chunks share the first one's mean: merging is then addition
        first = rows.first(functools.partial(_origin, template))
        if first is None:
            return None
        template = copy(template)
        template.shift = first
    return rows.reduce(functools.partial(_updated, template), _both_updated)


def _origin(template: Any, number: int, X: Array, weights: Array | None) -> Any:
    return copy(template).update(X, sample_weight=weights).shift


def _updated(template: Any, number: int, X: Array, weights: Array | None) -> Any:
    found = copy(template).update(X, sample_weight=weights)
    return found if found.count else None


def _both_updated(left: Any, right: Any) -> Any:
    return copy(left).merge(right)
