"""From what a user hands over to checked rows: to fit, to add, to look back at."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.chunked_rows import DeviceChunks, WeightedChunks, is_device_array
from tensoralg.mixtures.dask_rows import DaskRows, as_dask_array, checked_block, is_dask
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.rows import Chunk, RowSource, is_chunked
from tensoralg.mixtures.validation import (
    check_cells,
    check_chunk,
    check_rows,
    positive_rows,
    refuse_dtype,
)

__all__ = ["rows_to_add", "rows_to_fit", "rows_to_read", "weighted_rows"]


def rows_to_fit(estimator: Any, X: Any, sample_weight: Any) -> RowSource:
    """Check the rows of `fit`; the estimator learns their number of columns and their names.

    Parameters
    ----------
    estimator : DiagonalGaussianMixture
        With `missing`, `robust` and `n_components`.
    X : array_like, Dask array, array on a device, or iterable of 2-D chunks
        Rows.
    sample_weight : array_like, Dask array or None
        Weights; with chunks, one for each row of all chunks, or an array for each chunk.

    Returns
    -------
    RowSource
        The rows.

    Raises
    ------
    ValueError
        Bad data; ``robust=True`` with rows that can be read only once.
    """
    if is_dask(X):
        estimator.__dict__.pop("feature_names_in_", None)
        return DaskRows(as_dask_array(X), sample_weight, missing=bool(estimator.missing))
    if is_device_array(X) or is_chunked(X):
        estimator.__dict__.pop("feature_names_in_", None)  # chunks have none
        source = _chunk_source(estimator, X, sample_weight)
        if estimator.robust and not source.again:
            raise ValueError(
                "robust=True reads X twice, first for medians and then for the moments, but X is "
                "an iterator that can be read only once; pass an array, a list of chunks, or an "
                "object whose iterator can be made anew"
            )
        return source
    return RowSource.from_checked(*check_rows(estimator, X, sample_weight))


def rows_to_add(estimator: Any, X: Any, sample_weight: Any, columns: int | None) -> RowSource:
    """Check the rows of `partial_fit`.

    Parameters
    ----------
    estimator, X, sample_weight
        As in `rows_to_fit`; no iterable of chunks.
    columns : int or None
        The number of columns so far; None before the first rows.

    Returns
    -------
    RowSource
        The rows; those without any cell are left out.

    Raises
    ------
    TypeError
        An iterable of chunks.
    ShapeError
        Another number of columns.
    """
    if is_dask(X):
        estimator.__dict__.pop("feature_names_in_", None)
        X = as_dask_array(X)
        if columns is not None and X.shape[1] != columns:
            raise ShapeError(f"X has {X.shape[1]} features, but {columns} were seen before")
        return DaskRows(X, sample_weight, missing=bool(estimator.missing))
    if is_chunked(X):
        raise TypeError(
            f"partial_fit takes one array of rows at a time; got {type(X).__name__}: call it for "
            "every chunk, or give the chunks to fit"
        )
    return RowSource.from_checked(*weighted_rows(estimator, X, sample_weight, reset=not columns))


def rows_to_read(estimator: Any, X: Any, sample_weight: Any) -> RowSource:
    """Check rows of a fitted mixture as `fit` does, without learning anything from them.

    Parameters
    ----------
    estimator, X, sample_weight
        As in `rows_to_fit`.

    Returns
    -------
    RowSource
        The rows that the fit would read: far ones are left out by the limits of the fit.
    """
    width = estimator.means_.shape[1]
    if isinstance(X, MomentAccumulator) or (
        isinstance(X, (list, tuple)) and any(isinstance(part, MomentAccumulator) for part in X)
    ):
        raise TypeError("X must be rows here; got a MomentAccumulator, alone or among other things")
    if is_dask(X):
        X = as_dask_array(X)
        if X.shape[1] != width:
            raise ShapeError(f"X has {X.shape[1]} columns; the mixture has {width}")
        source: RowSource = DaskRows(X, sample_weight, missing=bool(estimator.missing))
    elif is_device_array(X) or is_chunked(X):
        source = _chunk_source(estimator, X, sample_weight, width)
    else:
        source = RowSource.from_checked(*weighted_rows(estimator, X, sample_weight, reset=False))
    limits = estimator._limits
    return source if limits is None else source.kept(limits.keep)


def weighted_rows(estimator: Any, X: Any, sample_weight: Any, *, reset: bool) -> Chunk:
    """Check an array and its weights; rows of weight 0, or without any cell, are left out.

    Parameters
    ----------
    estimator : DiagonalGaussianMixture
        With `missing`.
    X : array_like of shape (N, d)
        Rows.
    sample_weight : array_like of shape (N,) or None
        Weights.
    reset : bool
        Whether the estimator learns the number and the names of the columns.

    Returns
    -------
    X : ndarray of shape (n, d), float64 or float32
    sample_weight : ndarray of shape (n,) or None
    """
    if is_device_array(X):
        X = to_numpy(X)
        sample_weight = None if sample_weight is None else to_numpy(sample_weight)
    refuse_dtype(X)
    X = validate_data(
        estimator, X, dtype=[np.float64, np.float32], ensure_all_finite=False, reset=reset
    )
    rows, weights = positive_rows(X, sample_weight)
    X = X if weights is None else X[rows]
    check_cells(X, rows, missing=bool(estimator.missing))
    if estimator.missing:
        there = ~np.isnan(X).all(axis=1)
        X, weights = X[there], None if weights is None else weights[there]
    return np.ascontiguousarray(X), weights


def _chunk_source(
    estimator: Any, X: Any, sample_weight: Any, width: int | None = None
) -> RowSource:
    """Read chunks, or blocks of an array on a device, beside their weights."""
    chunks = DeviceChunks(X) if is_device_array(X) else X
    if sample_weight is not None:
        chunks = WeightedChunks(chunks, sample_weight)
    missing, check = bool(estimator.missing), check_chunk(estimator)

    def checked(chunk: Any) -> Chunk:
        rows, weights = chunk if isinstance(chunks, WeightedChunks) else (chunk, None)
        if weights is None:
            rows, weights = check(rows)
        else:
            refuse_dtype(rows)
            rows, weights = checked_block(rows, weights, missing=missing)
            check(rows)  # one width
        if width is not None and rows.shape[1] != width:
            raise ShapeError(f"a chunk has {rows.shape[1]} columns; the mixture has {width}")
        return rows, weights

    return RowSource.from_chunks(chunks, checked)
