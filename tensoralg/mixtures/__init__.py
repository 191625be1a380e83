"""Diagonal Gaussian mixtures, recovered from moments over pairwise distinct indices."""

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.rank_detection import RankTest, detect_rank
from tensoralg.mixtures.split_moments import SplitMomentAccumulator
from tensoralg.mixtures.uncertainty import MomentTest, StandardErrors

__all__ = [
    "DiagonalGaussianMixture",
    "FitDiagnostics",
    "MomentAccumulator",
    "MomentTest",
    "RankTest",
    "SplitMomentAccumulator",
    "StandardErrors",
    "component_bound",
    "counting_bound",
    "detect_rank",
    "variance_bound",
]
