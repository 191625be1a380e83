"""From what a user hands over to checked rows: to fit, to add, to look back at."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures.dask_rows import DaskRows, as_dask_array, is_dask
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
    X : array_like, Dask array or iterable of 2-D chunks
        Rows.
    sample_weight : array_like, Dask array or None
        Weights.

    Returns
    -------
    RowSource
        The rows.

    Raises
    ------
    ValueError
        Bad data; weights with an iterable; ``robust=True`` with rows that can be read only once.
    """
    if is_dask(X):
        estimator.__dict__.pop("feature_names_in_", None)
        return DaskRows(as_dask_array(X), sample_weight, missing=bool(estimator.missing))
    if is_chunked(X):
        _refuse_weights(sample_weight)
        estimator.__dict__.pop("feature_names_in_", None)  # chunks have none
        source = RowSource.from_chunks(X, check_chunk(estimator))
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
    elif is_chunked(X):
        _refuse_weights(sample_weight)
        check = check_chunk(estimator)

        def checked(chunk: Any) -> Chunk:
            rows, weights = check(chunk)
            if rows.shape[1] != width:
                raise ShapeError(f"a chunk has {rows.shape[1]} columns; the mixture has {width}")
            return rows, weights

        source = RowSource.from_chunks(X, checked)
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


def _refuse_weights(sample_weight: Any) -> None:
    if sample_weight is not None:
        raise ValueError("sample_weight cannot be combined with an iterable of chunks")
