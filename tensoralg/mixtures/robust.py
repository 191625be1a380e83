"""Rows far from everything: left out on request, reported otherwise."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.rows import rows_of_block

__all__ = ["without_outliers"]

Array = NDArray[Any]
_DROPPED = 8.0  # robust standard deviations beyond which robust=True leaves a row out
_REPORTED = 50.0  # and beyond which a row is counted when nothing is left out
_SAMPLE = 10_000  # rows that medians are taken over


def without_outliers(
    X: Array, sample_weight: Array | None, diagnostics: FitDiagnostics, *, drop: bool
) -> tuple[Array, Array | None]:
    """Count rows that no robust scale explains and, where asked, leave them out.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; NaN is a missing cell.
    sample_weight : ndarray of shape (n,) or None
        Weights.
    diagnostics : FitDiagnostics
        Gets the number of such rows.
    drop : bool
        Whether they are left out.

    Returns
    -------
    X : ndarray of shape (k, d)
    sample_weight : ndarray of shape (k,) or None
    """
    sample = slice(None, None, max(1, len(X) // _SAMPLE))
    centre, scale = _robust_unit(
        X[sample].astype(np.float64), None if sample_weight is None else sample_weight[sample]
    )
    with np.errstate(over="ignore"):
        limit = (_DROPPED if drop else _REPORTED) * scale
    far = np.zeros(len(X), dtype=bool)
    size = rows_of_block(X.shape[1])
    for begin in range(0, len(X), size):
        rows = slice(begin, begin + size)
        with np.errstate(invalid="ignore", over="ignore"):
            far[rows] = (np.abs(X[rows] - centre) > limit).any(axis=1)
    diagnostics.outliers = int(far.sum())
    if not drop or not far.any():
        return X, sample_weight
    return X[~far], None if sample_weight is None else sample_weight[~far]


def _robust_unit(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """Median and scaled median absolute deviation; the largest deviation where that is 0."""
    centre = _median(X, weights)
    deviation = np.abs(X - centre)
    scale = 1.4826 * _median(deviation, weights)
    flat = scale == 0
    if flat.any():
        scale[flat] = np.nanmax(deviation[:, flat], axis=0)
    return centre, scale


def _median(X: Array, weights: Array | None) -> Array:
    """Median of the cells of each column that are there; weight 3 counts as three rows."""
    medians = np.full(X.shape[1], np.nan)
    for j, column in enumerate(X.T):
        there = ~np.isnan(column)
        w = None if weights is None else weights[there]
        if there.any():
            medians[j] = np.quantile(column[there], 0.5, weights=w, method="inverted_cdf")
    return medians
