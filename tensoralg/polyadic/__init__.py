"""Canonical polyadic decomposition: tensors as short sums of rank-one terms."""

from tensoralg.gpu.precision import PrecisionPolicy, precision_policy
from tensoralg.polyadic.decomposition import decompose
from tensoralg.polyadic.products import mttkrp
from tensoralg.polyadic.rank_scan import RankScan, core_consistency, rank_scan
from tensoralg.polyadic.result import PolyadicResult
from tensoralg.solvers.stochastic_steps import StochasticSchedule

__all__ = [
    "PolyadicResult",
    "PrecisionPolicy",
    "RankScan",
    "StochasticSchedule",
    "core_consistency",
    "decompose",
    "mttkrp",
    "precision_policy",
    "rank_scan",
]
