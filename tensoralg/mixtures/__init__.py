"""Diagonal Gaussian mixtures, recovered from moments over pairwise distinct indices."""

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.uncertainty import MomentTest, StandardErrors

__all__ = [
    "DiagonalGaussianMixture",
    "FitDiagnostics",
    "MomentAccumulator",
    "MomentTest",
    "StandardErrors",
    "component_bound",
    "counting_bound",
    "variance_bound",
]
