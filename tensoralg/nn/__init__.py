"""Tensorized PyTorch layers: tensor trains in the place of weight matrices and tables.

Needs the extra ``nn`` (torch). Public names load on first use (PEP 562); torch itself is
imported with the first of them.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "tensoralg.nn needs PyTorch, which is not installed; install the extra `nn`: "
        "pip install 'tensoralg[nn]'"
    )

if TYPE_CHECKING:
    from tensoralg.nn.conversion import tensorize
    from tensoralg.nn.conversion_report import ConversionReport
    from tensoralg.nn.planner import Plan, Route
    from tensoralg.nn.tied_output import TiedOutput
    from tensoralg.nn.tt_convolution import TTConvolution
    from tensoralg.nn.tt_embedding import TTMEmbedding
    from tensoralg.nn.tt_linear import TTLinear

# where each public name lives
_HOME = {
    "ConversionReport": "tensoralg.nn.conversion_report",
    "Plan": "tensoralg.nn.planner",
    "Route": "tensoralg.nn.planner",
    "TTConvolution": "tensoralg.nn.tt_convolution",
    "TTLinear": "tensoralg.nn.tt_linear",
    "TTMEmbedding": "tensoralg.nn.tt_embedding",
    "TiedOutput": "tensoralg.nn.tied_output",
    "tensorize": "tensoralg.nn.conversion",
}

__all__ = [
    "ConversionReport",
    "Plan",
    "Route",
    "TTConvolution",
    "TTLinear",
    "TTMEmbedding",
    "TiedOutput",
    "tensorize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tensoralg.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
