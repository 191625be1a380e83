"""Diagonal Gaussian mixtures, recovered from moments over pairwise distinct indices."""

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.mixtures.diagnostic_plots import plot_convergence, plot_spectrum
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.plots import plot_mixture
from tensoralg.mixtures.product_components import ComponentMoments, component_moments
from tensoralg.mixtures.rank_detection import RankTest, detect_rank
from tensoralg.mixtures.split_moments import SplitMomentAccumulator
from tensoralg.mixtures.uncertainty import MomentTest, StandardErrors

__all__ = [
    "ComponentMoments",
    "DiagonalGaussianMixture",
    "FitDiagnostics",
    "MomentAccumulator",
    "MomentTest",
    "RankTest",
    "SplitMomentAccumulator",
    "StandardErrors",
    "component_bound",
    "component_moments",
    "counting_bound",
    "detect_rank",
    "plot_convergence",
    "plot_mixture",
    "plot_spectrum",
    "variance_bound",
]
