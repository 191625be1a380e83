"""Variances of a diagonal Gaussian mixture, linear in the moments once weights and means stand."""

from functools import lru_cache

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from tensoralg.core.indices import rank_multi_indices
from tensoralg.core.monomials import graded_indices

__all__ = ["variances_from_moments"]

Array = NDArray[np.float64]


@lru_cache(maxsize=8)
def _square_free(dimension: int, order: int) -> NDArray[np.int64]:
    """Square-free monomials of degree <= m - 2 in d - 1 variables, padded with -1."""
    parts = []
    for indices in graded_indices(dimension - 1, order - 2):
        padded = np.full((len(indices), order - 2), -1, dtype=np.int64)
        padded[:, : indices.shape[1]] = indices
        parts.append(padded)
    return np.concatenate(parts)


def _monomials(points: Array, padded: NDArray[np.int64]) -> Array:
    """Values of padded monomials: the label -1 stands for the constant."""
    extended = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    return np.asarray(extended[:, padded].prod(axis=2))


def variances_from_moments(
    values: Array, order: int, weights: Array, means: Array, *, floor: Array, noise: float = 0.0
) -> Array:
    """Solve for variances by nonnegative least squares, coordinate by coordinate.

    For each coordinate j and square-free g without j,
    ``E[x_j^2 x^g] - sum_s w_s mu_sj^2 mu_s^g = sum_s w_s mu_s^g var_sj``.

    Parameters
    ----------
    values : ndarray of shape (C(d + m, m),)
        Homogenised moments up to order m (coordinate 0 is the constant 1).
    order : int
        m, at least 3.
    weights : ndarray of shape (r,)
        Weights.
    means : ndarray of shape (r, d)
        Means.
    floor : ndarray of shape (d,)
        Smallest variance of each coordinate.
    noise : float, default 0.0
        Relative error of the moments: the strength of a pull towards the pooled variance, which
        decides only what the moments leave open.

    Returns
    -------
    ndarray of shape (r, d)
        Variances, at least `floor`.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, arXiv:2102.04500, section 4: the covariances from moments with
       one repeated index (nonnegativity, floor and ridge are ours).
    """
    r, d = means.shape
    padded = _square_free(d, order)
    variances = np.empty((r, d))
    for j in range(d):
        others = np.delete(np.arange(d), j)
        products = _monomials(means[:, others], padded)
        labels = np.where(padded >= 0, np.append(others, -1)[padded] + 1, 0)
        index = np.concatenate([np.full((len(labels), 2), j + 1), labels], axis=1)
        index.sort(axis=1)
        moments = values[rank_multi_indices(index, d + 1)]
        known = np.isfinite(moments)
        design = (weights[:, None] * products).T[known]
        target = moments[known] - design @ means[:, j] ** 2
        variances[:, j] = _bounded(design, target, float(floor[j]), weights, noise)
    return variances


def _bounded(design: Array, target: Array, floor: float, weights: Array, noise: float) -> Array:
    """Least squares over variances >= floor, with a faint pull towards the pooled variance."""
    # the first row is g = 1: the total variance that the means leave over
    pooled = max(float(target[0]) / max(float(weights.sum()), 1e-12), floor)
    scale = min(max(noise, 1e-10), 0.1) * np.linalg.norm(design, axis=0).mean()
    matrix = np.vstack([design, scale * np.eye(len(weights))])
    right = np.concatenate([target - design.sum(axis=1) * floor, np.full(len(weights), scale)])
    right[len(target) :] *= pooled - floor
    try:
        excess, _ = scipy.optimize.nnls(matrix, right)
    except RuntimeError:  # the active-set method ran out of steps: project instead
        excess = np.maximum(np.linalg.lstsq(matrix, right, rcond=None)[0], 0.0)
    return np.asarray(floor + excess)
