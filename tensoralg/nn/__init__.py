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
    from tensoralg.nn.adapter_files import load_adapter, save_adapter
    from tensoralg.nn.adapter_gates import fix_gates, gate_values
    from tensoralg.nn.adapters import adapt, merge, trainable, unadapt
    from tensoralg.nn.attendre import Attendre
    from tensoralg.nn.attention import attend
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
    from tensoralg.nn.document_server import DocumentServer
    from tensoralg.nn.fake_quantization import FakeQuantize
    from tensoralg.nn.global_masks import global_mask, mask_coordinates, with_mask
    from tensoralg.nn.key_value_memory import KVMemory
    from tensoralg.nn.label_volumes import (
        LabelVolume,
        VolumeReadingUnavailableError,
        read_label_volume,
    )
    from tensoralg.nn.mask_moments import StructureMoments, structure_moments
    from tensoralg.nn.memory_model import with_memory
    from tensoralg.nn.memory_stream import MemoryStream
    from tensoralg.nn.pelt import PELT
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
    from tensoralg.nn.random_access_reader import RandomAccessReader, Reading
    from tensoralg.nn.rank_scheduler import RankReport, RankScheduler
    from tensoralg.nn.reading_trace import ReadingTrace, ReadWindow
    from tensoralg.nn.segmentation import (
        evaluate_segmentation,
        fit_segmentation,
        predict_segmentation,
        segmentation_loss,
    )
    from tensoralg.nn.segmentation_case import SegmentationCase
    from tensoralg.nn.segmentation_metrics import centroid_distance, dice
    from tensoralg.nn.segmentation_scores import SegmentationScores, score_segmentation
    from tensoralg.nn.tied_output import TiedOutput
    from tensoralg.nn.transformer import EncoderConfig, TransformerClassifier
    from tensoralg.nn.tt_convolution import TTConvolution
    from tensoralg.nn.tt_embedding import TTMEmbedding
    from tensoralg.nn.tt_linear import TTLinear
    from tensoralg.nn.unet import UNet

# where each public name lives
_HOME = {
    "Attendre": "tensoralg.nn.attendre",
    "BitAllocation": "tensoralg.nn.bit_allocation",
    "Calibrator": "tensoralg.nn.calibrator",
    "CoMERAPenalty": "tensoralg.nn.comera_penalty",
    "CodedModel": "tensoralg.nn.quantization_aware",
    "CodedTensor": "tensoralg.nn.quantization_aware",
    "ConversionReport": "tensoralg.nn.conversion_report",
    "Distillation": "tensoralg.nn.distillation",
    "DocumentServer": "tensoralg.nn.document_server",
    "EncoderConfig": "tensoralg.nn.transformer",
    "FakeQuantize": "tensoralg.nn.fake_quantization",
    "KVMemory": "tensoralg.nn.key_value_memory",
    "LabelVolume": "tensoralg.nn.label_volumes",
    "LayerPair": "tensoralg.nn.distillation",
    "MemoryStream": "tensoralg.nn.memory_stream",
    "PELT": "tensoralg.nn.pelt",
    "Plan": "tensoralg.nn.planner",
    "QuantizationReport": "tensoralg.nn.quantization_report",
    "QuantizedConvolution": "tensoralg.nn.quantized_layers",
    "QuantizedEmbedding": "tensoralg.nn.quantized_layers",
    "QuantizedLinear": "tensoralg.nn.quantized_layers",
    "QuantizedTTLinear": "tensoralg.nn.quantized_train",
    "QuantizedWeight": "tensoralg.nn.quantized_weight",
    "RandomAccessReader": "tensoralg.nn.random_access_reader",
    "RankReport": "tensoralg.nn.rank_scheduler",
    "RankScheduler": "tensoralg.nn.rank_scheduler",
    "ReadWindow": "tensoralg.nn.reading_trace",
    "Reading": "tensoralg.nn.random_access_reader",
    "ReadingTrace": "tensoralg.nn.reading_trace",
    "Route": "tensoralg.nn.planner",
    "SegmentationCase": "tensoralg.nn.segmentation_case",
    "SegmentationScores": "tensoralg.nn.segmentation_scores",
    "StructureMoments": "tensoralg.nn.mask_moments",
    "TTConvolution": "tensoralg.nn.tt_convolution",
    "TTLinear": "tensoralg.nn.tt_linear",
    "TTMEmbedding": "tensoralg.nn.tt_embedding",
    "TiedOutput": "tensoralg.nn.tied_output",
    "TransformerClassifier": "tensoralg.nn.transformer",
    "UNet": "tensoralg.nn.unet",
    "VolumeReadingUnavailableError": "tensoralg.nn.label_volumes",
    "active_layers": "tensoralg.nn.distillation",
    "adapt": "tensoralg.nn.adapters",
    "allocate_bits": "tensoralg.nn.bit_allocation",
    "attend": "tensoralg.nn.attention",
    "centroid_distance": "tensoralg.nn.segmentation_metrics",
    "comq": "tensoralg.nn.quantized_weight",
    "dice": "tensoralg.nn.segmentation_metrics",
    "distill": "tensoralg.nn.distillation",
    "evaluate_segmentation": "tensoralg.nn.segmentation",
    "export_codes": "tensoralg.nn.quantization_aware",
    "fit_segmentation": "tensoralg.nn.segmentation",
    "fix_gates": "tensoralg.nn.adapter_gates",
    "gate_values": "tensoralg.nn.adapter_gates",
    "global_mask": "tensoralg.nn.global_masks",
    "load_adapter": "tensoralg.nn.adapter_files",
    "load_quantized": "tensoralg.nn.quantized_state",
    "mask_coordinates": "tensoralg.nn.global_masks",
    "merge": "tensoralg.nn.adapters",
    "plot_ranks": "tensoralg.nn.plots",
    "predict_segmentation": "tensoralg.nn.segmentation",
    "prepare_qat": "tensoralg.nn.quantization_aware",
    "quantize": "tensoralg.nn.quantization",
    "read_label_volume": "tensoralg.nn.label_volumes",
    "save_adapter": "tensoralg.nn.adapter_files",
    "score_segmentation": "tensoralg.nn.segmentation_scores",
    "segmentation_loss": "tensoralg.nn.segmentation",
    "soft_label_loss": "tensoralg.nn.distillation",
    "structure_moments": "tensoralg.nn.mask_moments",
    "tensorize": "tensoralg.nn.conversion",
    "trainable": "tensoralg.nn.adapters",
    "unadapt": "tensoralg.nn.adapters",
    "with_mask": "tensoralg.nn.global_masks",
    "with_memory": "tensoralg.nn.memory_model",
}

__all__ = [
    "PELT",
    "Attendre",
    "BitAllocation",
    "Calibrator",
    "CoMERAPenalty",
    "CodedModel",
    "CodedTensor",
    "ConversionReport",
    "Distillation",
    "DocumentServer",
    "EncoderConfig",
    "FakeQuantize",
    "KVMemory",
    "LabelVolume",
    "LayerPair",
    "MemoryStream",
    "Plan",
    "QuantizationReport",
    "QuantizedConvolution",
    "QuantizedEmbedding",
    "QuantizedLinear",
    "QuantizedTTLinear",
    "QuantizedWeight",
    "RandomAccessReader",
    "RankReport",
    "RankScheduler",
    "ReadWindow",
    "Reading",
    "ReadingTrace",
    "Route",
    "SegmentationCase",
    "SegmentationScores",
    "StructureMoments",
    "TTConvolution",
    "TTLinear",
    "TTMEmbedding",
    "TiedOutput",
    "TransformerClassifier",
    "UNet",
    "VolumeReadingUnavailableError",
    "active_layers",
    "adapt",
    "allocate_bits",
    "attend",
    "centroid_distance",
    "comq",
    "dice",
    "distill",
    "evaluate_segmentation",
    "export_codes",
    "fit_segmentation",
    "fix_gates",
    "gate_values",
    "global_mask",
    "load_adapter",
    "load_quantized",
    "mask_coordinates",
    "merge",
    "plot_ranks",
    "predict_segmentation",
    "prepare_qat",
    "quantize",
    "read_label_volume",
    "save_adapter",
    "score_segmentation",
    "segmentation_loss",
    "soft_label_loss",
    "structure_moments",
    "tensorize",
    "trainable",
    "training",
    "unadapt",
    "with_mask",
    "with_memory",
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
