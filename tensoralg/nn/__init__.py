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
    from tensoralg.nn.attention import attend
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
    from tensoralg.nn.document_server import DocumentServer
    from tensoralg.nn.fake_quantization import FakeQuantize
    from tensoralg.nn.key_value_memory import KVMemory
    from tensoralg.nn.planner import Plan, Route
    from tensoralg.nn.quantization_aware import CodedModel, CodedTensor, export_codes, prepare_qat
    from tensoralg.nn.random_access_reader import RandomAccessReader, Reading
    from tensoralg.nn.rank_scheduler import RankReport, RankScheduler
    from tensoralg.nn.reading_trace import ReadingTrace, ReadWindow
    from tensoralg.nn.tied_output import TiedOutput
    from tensoralg.nn.transformer import EncoderConfig, TransformerClassifier
    from tensoralg.nn.tt_convolution import TTConvolution
    from tensoralg.nn.tt_embedding import TTMEmbedding
    from tensoralg.nn.tt_linear import TTLinear

# where each public name lives
_HOME = {
    "CoMERAPenalty": "tensoralg.nn.comera_penalty",
    "CodedModel": "tensoralg.nn.quantization_aware",
    "CodedTensor": "tensoralg.nn.quantization_aware",
    "ConversionReport": "tensoralg.nn.conversion_report",
    "Distillation": "tensoralg.nn.distillation",
    "DocumentServer": "tensoralg.nn.document_server",
    "EncoderConfig": "tensoralg.nn.transformer",
    "FakeQuantize": "tensoralg.nn.fake_quantization",
    "KVMemory": "tensoralg.nn.key_value_memory",
    "LayerPair": "tensoralg.nn.distillation",
    "Plan": "tensoralg.nn.planner",
    "RandomAccessReader": "tensoralg.nn.random_access_reader",
    "RankReport": "tensoralg.nn.rank_scheduler",
    "RankScheduler": "tensoralg.nn.rank_scheduler",
    "ReadWindow": "tensoralg.nn.reading_trace",
    "Reading": "tensoralg.nn.random_access_reader",
    "ReadingTrace": "tensoralg.nn.reading_trace",
    "Route": "tensoralg.nn.planner",
    "TTConvolution": "tensoralg.nn.tt_convolution",
    "TTLinear": "tensoralg.nn.tt_linear",
    "TTMEmbedding": "tensoralg.nn.tt_embedding",
    "TiedOutput": "tensoralg.nn.tied_output",
    "TransformerClassifier": "tensoralg.nn.transformer",
    "active_layers": "tensoralg.nn.distillation",
    "attend": "tensoralg.nn.attention",
    "distill": "tensoralg.nn.distillation",
    "export_codes": "tensoralg.nn.quantization_aware",
    "prepare_qat": "tensoralg.nn.quantization_aware",
    "soft_label_loss": "tensoralg.nn.distillation",
    "tensorize": "tensoralg.nn.conversion",
}

__all__ = [
    "CoMERAPenalty",
    "CodedModel",
    "CodedTensor",
    "ConversionReport",
    "Distillation",
    "DocumentServer",
    "EncoderConfig",
    "FakeQuantize",
    "KVMemory",
    "LayerPair",
    "Plan",
    "RandomAccessReader",
    "RankReport",
    "RankScheduler",
    "ReadWindow",
    "Reading",
    "ReadingTrace",
    "Route",
    "TTConvolution",
    "TTLinear",
    "TTMEmbedding",
    "TiedOutput",
    "TransformerClassifier",
    "active_layers",
    "attend",
    "distill",
    "export_codes",
    "prepare_qat",
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
