"""Canonical polyadic decomposition: tensors as short sums of rank-one terms."""

from tensoralg.polyadic.decomposition import decompose
from tensoralg.polyadic.products import mttkrp
from tensoralg.polyadic.rank_scan import RankScan, core_consistency, rank_scan
from tensoralg.polyadic.result import PolyadicResult

__all__ = [
    "PolyadicResult",
    "RankScan",
    "core_consistency",
    "decompose",
    "mttkrp",
    "rank_scan",
]
