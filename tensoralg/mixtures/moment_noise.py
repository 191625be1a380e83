"""What the noise of a finite sample does to moments, and to a mixture fitted to them."""

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import pad_multi_indices, rank_multi_indices
from tensoralg.core.monomials import graded_indices
from tensoralg.solvers.feasible_least_squares import normal_matrix, square_free_products

__all__ = ["ERROR_LIMIT", "MISFIT_LIMIT", "largest_deviation", "mean_error"]

Array = NDArray[np.float64]

MISFIT_LIMIT = 8.0  # a mixture fitted to its own sample stays below 4
ERROR_LIMIT = 0.5  # standard deviations of a column: means known no better are not known
_ROUNDING = 1e-6  # relative error that exact moments may have


def largest_deviation(
    values: Array,
    order: int,
    columns: NDArray[np.int64],
    weights: Array,
    means: Array,
    variances: Array,
    rows: float,
    *,
    repeated: bool = True,
) -> float:
    """Measure the worst mismatch of a moment in units of its standard error.

    All moments over distinct indices and with one repeated index are compared; the standard
    error of each comes from the mixture itself, whose moments of twice the order are known.

    Parameters
    ----------
    values : ndarray of shape (C(D + m, m),)
        Homogenised moments of all D columns.
    order : int
        m, at least 3.
    columns : ndarray of int, shape (d,)
        The columns to compare.
    weights : ndarray of shape (r,)
        Weights.
    means, variances : ndarray of shape (r, D)
        Parameters in the coordinates of the moments.
    rows : float
        Number of rows that the moments average; infinity for exact moments.
    repeated : bool, default True
        Whether moments with a repeated index are compared: their standard errors suppose that
        components are Gaussian, those of the others do not.

    Returns
    -------
    float
        The largest deviation; below 4 for moments of a sample of the mixture.
    """
    dimension = means.shape[1]
    mu, var = means[:, columns], variances[:, columns]
    labels = columns + 1
    by_degree = graded_indices(len(columns), order)
    products = square_free_products(mu, order)
    squares = square_free_products(mu**2 + var, order)
    worst = 0.0
    for q, (model, second) in enumerate(zip(products, squares, strict=True)):
        index = pad_multi_indices(labels[by_degree[q]], order)
        worst = max(
            worst, _worst(values, index, dimension, weights @ model, weights @ second, rows)
        )
        if q > order - 2 or not repeated:
            continue
        for j, label in enumerate(labels):
            at = np.flatnonzero((by_degree[q] != j).all(axis=1))
            with_square = index[at]
            with_square[:, :2] = label
            with_square.sort(axis=1)
            m, v = mu[:, j] ** 2, var[:, j]
            expected = (weights * (m + v)) @ model[:, at]
            fourth = (weights * (m * m + 6.0 * m * v + 3.0 * v * v)) @ second[:, at]
            worst = max(worst, _worst(values, with_square, dimension, expected, fourth, rows))
    return worst


def _worst(
    values: Array,
    index: NDArray[np.int64],
    dimension: int,
    expected: Array,
    second: Array,
    rows: float,
) -> float:
    found = values[rank_multi_indices(index, dimension + 1)]
    known = np.isfinite(found)
    variance = np.maximum(second - expected**2, 0.0) / rows + _ROUNDING**2 * second
    deviation = np.abs(found - expected)[known] / np.sqrt(np.maximum(variance[known], 1e-300))
    return float(deviation.max(initial=0.0))


def mean_error(
    order: int,
    columns: NDArray[np.int64],
    weights: Array,
    means: Array,
    variances: Array,
    rows: float,
) -> float:
    """Predict the standard error that the moments leave on the means of a mixture.

    Parameters
    ----------
    order : int
        Highest order m of the moments.
    columns : ndarray of int, shape (d,)
        The columns in use.
    weights : ndarray of shape (r,)
        Weights.
    means, variances : ndarray of shape (r, D)
        Parameters in standardised coordinates.
    rows : float
        Number of rows that the moments average; infinity for exact moments.

    Returns
    -------
    float
        Of the component that is known worst: root mean square over the columns of the standard
        error of its mean under least squares. Large where the moments do not determine the
        mixture, as when the components differ in one column only.
    """
    mu, var = means[:, columns], variances[:, columns]
    r, d = mu.shape
    products = square_free_products(mu, order)
    squares = square_free_products(mu**2 + var, order)
    expected = np.concatenate([weights @ p for p in products[1:]])
    second = np.concatenate([weights @ p for p in squares[1:]])
    noise = float(np.mean((second - expected**2) / rows + _ROUNDING**2 * second))
    values, vectors = np.linalg.eigh(normal_matrix(weights, mu, np.ones(len(products))))
    # smaller eigenvalues than this are rounding: what they belong to is not determined
    inverse = vectors**2 @ (1.0 / np.maximum(values, 1e-16 * values[-1]))
    return float(np.sqrt(noise * inverse[r:].reshape(r, d).mean(axis=1).max()))
