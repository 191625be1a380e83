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
    from tensoralg.nn.bit_allocation import BitAllocation, allocate_bits
    from tensoralg.nn.calibrator import Calibrator
    from tensoralg.nn.comera_penalty import CoMERAPenalty
    from tensoralg.nn.conversion import tensorize
    from tensoralg.nn.conversion_report import ConversionReport
    from tensoralg.nn.distillation import (
        Distillation,
        LayerPair,
        active_layers,
        distill,
        soft_label_loss,
    )
    from tensoralg.nn.fake_quantization import FakeQuantize
    from tensoralg.nn.planner import Plan, Route
    from tensoralg.nn.plots import plot_ranks
    from tensoralg.nn.quantization import quantize
    from tensoralg.nn.quantization_aware import CodedModel, CodedTensor, export_codes, prepare_qat
    from tensoralg.nn.quantization_report import QuantizationReport
    from tensoralg.nn.quantized_layers import (
        QuantizedConvolution,
        QuantizedEmbedding,
        QuantizedLinear,
    )
    from tensoralg.nn.quantized_state import load_quantized
    from tensoralg.nn.quantized_train import QuantizedTTLinear
    from tensoralg.nn.quantized_weight import QuantizedWeight, comq
    from tensoralg.nn.rank_scheduler import RankReport, RankScheduler
    from tensoralg.nn.tied_output import TiedOutput
    from tensoralg.nn.transformer import EncoderConfig, TransformerClassifier
    from tensoralg.nn.tt_convolution import TTConvolution
    from tensoralg.nn.tt_embedding import TTMEmbedding
    from tensoralg.nn.tt_linear import TTLinear

# where each public name lives
_HOME = {
    "BitAllocation": "tensoralg.nn.bit_allocation",
    "Calibrator": "tensoralg.nn.calibrator",
    "CoMERAPenalty": "tensoralg.nn.comera_penalty",
    "CodedModel": "tensoralg.nn.quantization_aware",
    "CodedTensor": "tensoralg.nn.quantization_aware",
    "ConversionReport": "tensoralg.nn.conversion_report",
    "Distillation": "tensoralg.nn.distillation",
    "EncoderConfig": "tensoralg.nn.transformer",
    "FakeQuantize": "tensoralg.nn.fake_quantization",
    "LayerPair": "tensoralg.nn.distillation",
    "Plan": "tensoralg.nn.planner",
    "QuantizationReport": "tensoralg.nn.quantization_report",
    "QuantizedConvolution": "tensoralg.nn.quantized_layers",
    "QuantizedEmbedding": "tensoralg.nn.quantized_layers",
    "QuantizedLinear": "tensoralg.nn.quantized_layers",
    "QuantizedTTLinear": "tensoralg.nn.quantized_train",
    "QuantizedWeight": "tensoralg.nn.quantized_weight",
    "RankReport": "tensoralg.nn.rank_scheduler",
    "RankScheduler": "tensoralg.nn.rank_scheduler",
    "Route": "tensoralg.nn.planner",
    "TTConvolution": "tensoralg.nn.tt_convolution",
    "TTLinear": "tensoralg.nn.tt_linear",
    "TTMEmbedding": "tensoralg.nn.tt_embedding",
    "TiedOutput": "tensoralg.nn.tied_output",
    "TransformerClassifier": "tensoralg.nn.transformer",
    "active_layers": "tensoralg.nn.distillation",
    "allocate_bits": "tensoralg.nn.bit_allocation",
    "comq": "tensoralg.nn.quantized_weight",
    "distill": "tensoralg.nn.distillation",
    "export_codes": "tensoralg.nn.quantization_aware",
    "load_quantized": "tensoralg.nn.quantized_state",
    "plot_ranks": "tensoralg.nn.plots",
    "prepare_qat": "tensoralg.nn.quantization_aware",
    "quantize": "tensoralg.nn.quantization",
    "soft_label_loss": "tensoralg.nn.distillation",
    "tensorize": "tensoralg.nn.conversion",
}

__all__ = [
    "BitAllocation",
    "Calibrator",
    "CoMERAPenalty",
    "CodedModel",
    "CodedTensor",
    "ConversionReport",
    "Distillation",
    "EncoderConfig",
    "FakeQuantize",
    "LayerPair",
    "Plan",
    "QuantizationReport",
    "QuantizedConvolution",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedTTLinear",
    "QuantizedWeight",
    "RankReport",
    "RankScheduler",
    "Route",
    "TTConvolution",
    "TTLinear",
    "TTMEmbedding",
    "TiedOutput",
    "TransformerClassifier",
    "active_layers",
    "allocate_bits",
    "comq",
    "distill",
    "export_codes",
    "load_quantized",
    "plot_ranks",
    "prepare_qat",
    "quantize",
    "soft_label_loss",
    "tensorize",
    "training",
]


def __getattr__(name: str) -> Any:
    if name == "training":
        return importlib.import_module("tensoralg.nn.training")
    if name not in _HOME:
        raise AttributeError(f"module 'tensoralg.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
