"""The parameters of a diagonal Gaussian mixture as one value and as one vector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError

FloatArray = npt.NDArray[np.float64]


class Parameters(NamedTuple):
    """A mixture: weights (r,), means (r, d) and variances (r, d)."""

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray


def check_parameters(
    weights: npt.ArrayLike, means: npt.ArrayLike, covariances: npt.ArrayLike
) -> Parameters:
    """Return copies as float64, weights normalised."""
    w = np.array(weights, dtype=np.float64)
    mu = np.array(means, dtype=np.float64)
    var = np.array(covariances, dtype=np.float64)
    if w.ndim != 1 or w.size == 0:
        raise ShapeError(f"weights: shape {w.shape}, expected (r,) with r >= 1")
    if mu.ndim != 2 or len(mu) != w.size or mu.shape[1] == 0:
        raise ShapeError(f"means: shape {mu.shape}, expected ({w.size}, d) with d >= 1")
    if var.shape != mu.shape:
        raise ShapeError(f"covariances: shape {var.shape}, expected that of means, {mu.shape}")
    if not (np.isfinite(w).all() and (w >= 0).all() and w.sum() > 0):
        raise ValueError(f"weights: {w}; expected finite, nonnegative, with a positive sum")
    if not np.isfinite(mu).all():
        raise ValueError("means: NaN or inf; expected finite numbers")
    if not (np.isfinite(var).all() and (var > 0).all()):
        raise ValueError(f"covariances: smallest is {var.min()}; expected finite and positive")
    return Parameters(w / w.sum(), mu, var)


def bounded_weights(weights: FloatArray, minimum: float) -> FloatArray:
    """Maximise sum_s weights_s log v_s over v >= minimum, sum v = 1."""
    weights = weights / weights.sum()
    low = weights < minimum
    while low.any():
        rest = (1.0 - minimum * low.sum()) / weights[~low].sum()
        bounded = np.where(low, minimum, weights * rest)
        if not (bounded < minimum).any():
            return bounded
        low |= bounded < minimum
    return weights


def feasible(parameters: Parameters, floor: FloatArray, minimum_weight: float) -> Parameters:
    """Raise weights and variances to their bounds."""
    return parameters._replace(
        weights=bounded_weights(parameters.weights, minimum_weight),
        covariances=np.maximum(parameters.covariances, floor),
    )


def coordinates(parameters: Parameters) -> FloatArray:
    """Log weights, means and log variances in one vector."""
    weights, means, covariances = parameters
    tiny = np.finfo(float).tiny
    return np.concatenate(
        [np.log(np.maximum(weights, tiny)), means.ravel(), np.log(covariances).ravel()]
    )


def from_coordinates(vector: FloatArray, shape: tuple[int, int]) -> Parameters:
    """Invert `coordinates`; the weights are normalised."""
    r, d = shape
    weights = np.exp(vector[:r] - vector[:r].max())
    return Parameters(
        weights / weights.sum(),
        vector[r : r + r * d].reshape(shape).copy(),
        np.exp(vector[r + r * d :]).reshape(shape),
    )


def information(parameters: Parameters) -> tuple[FloatArray, FloatArray]:
    """Complete-data information of the coordinates (diagonal, per row) and their unit steps."""
    weights, means, covariances = parameters
    share = np.broadcast_to(weights[:, None], means.shape)
    metric = [weights, (share / covariances).ravel(), 0.5 * share.ravel()]
    unit = [np.ones(weights.size), np.sqrt(covariances).ravel(), np.ones(means.size)]
    return np.concatenate(metric), np.concatenate(unit)
