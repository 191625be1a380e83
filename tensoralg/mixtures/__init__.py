"""Diagonal Gaussian mixtures, recovered from moments over pairwise distinct indices."""

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.mixtures.moments import MomentAccumulator

__all__ = [
    "DiagonalGaussianMixture",
    "FitDiagnostics",
    "MomentAccumulator",
    "component_bound",
    "counting_bound",
    "variance_bound",
]
