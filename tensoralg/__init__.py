"""Tensor algebra for researchers: symmetric and completely positive tensors, Gaussian mixtures.

Public names load on first use (PEP 562), so that ``import tensoralg`` stays fast.
"""

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_HOME = {
    "IncompleteSymmetricTensor": "tensoralg.core.incomplete_tensor",
    "KruskalTensor": "tensoralg.core.kruskal_tensor",
    "SymmetricDecomposition": "tensoralg.core.decompositions",
    "SymmetricTensor": "tensoralg.core.symmetric_tensor",
    "TensorTrain": "tensoralg.core.tensor_train",
    "TensorTrainMatrix": "tensoralg.core.tensor_train",
    "load": "tensoralg.core.persistence",
    "save": "tensoralg.core.persistence",
}
_ROOMS = ("completely_positive", "errors", "mixtures", "nn", "polyadic", "studies", "symmetric")

__all__ = [
    "IncompleteSymmetricTensor",
    "KruskalTensor",
    "SymmetricDecomposition",
    "SymmetricTensor",
    "TensorTrain",
    "TensorTrainMatrix",
    "__version__",
    "completely_positive",
    "errors",
    "load",
    "mixtures",
    "nn",
    "polyadic",
    "save",
    "studies",
    "symmetric",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"tensoralg.{name}")
    else:
        raise AttributeError(f"module 'tensoralg' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
