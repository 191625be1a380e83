"""Training with quantizers in place, and the integer codes that come out of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tensoralg.core.errors import PersistenceError
from tensoralg.nn.bit_packing import pack_codes, unpack_codes
from tensoralg.nn.encoder_shortcuts import leave_shortcuts
from tensoralg.nn.fake_quantization import FakeQuantize
from tensoralg.nn.module_modes import evaluating, naming, restored_on_error
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.training_state import load_checkpoint, save_checkpoint
from tensoralg.nn.tt_embedding import TTMEmbedding
from tensoralg.solvers.quantization_grid import number_of_bits

__all__ = ["CodedModel", "CodedTensor", "export_codes", "prepare_qat"]

_DENSE = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def prepare_qat(
    model: nn.Module,
    bits: int,
    *,
    activation_bits: int | None = 8,
    dense_bits: int | None = 8,
    sample: tuple[Any, ...] | None = None,
) -> nn.Module:
    """Put quantizers on a model, in place, for quantization-aware training.

    Every core of every tensor-train layer gets one, as do the layer's input, the factors that
    it merges, its intermediate result and its output [1]_; dense layers get one for the weight.
    Each has one learnable scale. Call it before the optimizer is made.

    Parameters
    ----------
    model : Module
        Layers of the kinds of `tensoralg.nn`, ``nn.Linear``, ``nn.Embedding`` and convolutions.
    bits : int
        Bits of the cores, 2 to 8.
    activation_bits : int or None, default 8
        Bits of inputs, intermediates and outputs; None leaves them in full precision.
    dense_bits : int or None, default 8
        Bits of the weights of dense layers; None leaves them in full precision.
    sample : tuple, optional
        Arguments of one forward pass that sets the scales of inputs, intermediates and outputs.
        Without it the first pass in training mode does.

    Returns
    -------
    Module
        `model` itself.

    Raises
    ------
    ValueError
        Wrong bits, a model that has quantizers already or nothing to quantize, a weight that is
        lazy, not finite or parametrized otherwise, or an embedding with sparse gradients. The
        model is then as it was; so it is where the pass over `sample` fails.

    References
    ----------
    .. [1] Z. Yang, S. Choudhary, S. Kunzmann, Z. Zhang, "Quantization-Aware and
       Tensor-Compressed Training of Transformers for Natural Language Understanding",
       Interspeech 2023, arXiv:2306.01076.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> _ = torch.manual_seed(0)
    >>> model = prepare_qat(TTLinear(16, 16, rank=4), 4, sample=(torch.randn(8, 16),))
    >>> export_codes(model).codes["cores.0"].codes.dtype
    torch.int8
    """
    for value in (bits, activation_bits, dense_bits):
        if value is not None:
            number_of_bits(value)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, TensorizedLayer)}
    dense = {
        n: m for n, m in model.named_modules() if isinstance(m, _DENSE) and dense_bits is not None
    }
    _check_preparable(layers, dense)
    # all scales are found before anything changes: a weight may be NaN
    found = {}
    for name, layer in layers.items():
        with naming(name):
            found[name] = _layer_quantizers(layer, bits, activation_bits)
    shared: dict[int, FakeQuantize] = {}  # tied weights keep one quantizer
    chosen = {}
    for name, module in dense.items():
        if dense_bits is not None and id(module.weight) not in shared:
            with naming(name):
                shared[id(module.weight)] = _started(FakeQuantize(dense_bits), module.weight)
        chosen[name] = shared[id(module.weight)]
    with restored_on_error(model):
        for name, layer in layers.items():
            layer.quantizers = found[name]
        for name, module in dense.items():
            parametrize.register_parametrization(module, "weight", chosen[name])
        leave_shortcuts(model)
        if sample is not None:
            _set_scales(model, sample)
    return model


def _check_preparable(
    layers: Mapping[str, TensorizedLayer], dense: Mapping[str, nn.Module]
) -> None:
    """Raise where a model cannot be given quantizers, before anything changes."""
    if any(m.quantizers is not None for m in layers.values()) or any(
        map(_is_prepared, dense.values())
    ):
        raise ValueError("model has quantizers already")
    if not layers and not dense:
        raise ValueError("model has no layers to quantize")
    for name, module in dense.items():
        if getattr(module, "sparse", False):
            reason = "an embedding with sparse=True cannot be quantized: gradients are dense"
        elif parametrize.is_parametrized(module, "weight"):
            reason = "its weight has another parametrization, which codes could not reproduce"
        elif nn.parameter.is_lazy(module.weight):  # type: ignore[arg-type]
            reason = "a lazy layer has no weight before its first input; run the model once"
        else:
            continue
        raise ValueError(f"layer {name!r}: {reason}")


def _is_prepared(module: nn.Module) -> bool:
    """Tell whether a dense layer's weight goes through a quantizer."""
    if not parametrize.is_parametrized(module, "weight"):
        return False
    return any(isinstance(p, FakeQuantize) for p in module.parametrizations.weight)  # type: ignore[union-attr]


def _layer_quantizers(layer: TensorizedLayer, bits: int, activation_bits: int | None) -> Any:
    """Build the quantizers of a tensor-train layer; those of the cores have their scales."""
    found = nn.ModuleDict(
        {f"core_{k}": _started(FakeQuantize(bits), c) for k, c in enumerate(layer.train_cores())}
    )
    if activation_bits is not None:
        names = ["left", "right", "output"]
        if not isinstance(layer, TTMEmbedding):  # whose input are integers
            names += ["input", "hidden"]
        for name in names:
            found[name] = FakeQuantize(activation_bits).to(layer.cores[0].device)
    return found.train(layer.training)


def _started(quantizer: FakeQuantize, value: Tensor) -> FakeQuantize:
    """Set a quantizer's scale for a tensor, on its device."""
    quantizer.to(value.device)
    quantizer.initialize(value)
    return quantizer


def _set_scales(model: nn.Module, sample: tuple[Any, ...]) -> None:
    """Run the model once, with quantizers alone in training mode."""
    with evaluating(model), torch.no_grad():
        for module in model.modules():
            if isinstance(module, FakeQuantize):
                module.training = True
        model(*sample)


@dataclass(frozen=True, eq=False)
class CodedTensor:
    """A tensor of integer codes and one scale.

    Parameters
    ----------
    packed : Tensor of uint8, shape (n,)
        The codes, `bits` bits each.
    bits : int
        2 to 8.
    shape : tuple of int
        Of the tensor.
    scale : Tensor, shape ()
        The step between two codes.

    Examples
    --------
    >>> coded = CodedTensor(torch.tensor([120], dtype=torch.uint8), 4, (2,), torch.tensor(0.5))
    >>> coded.codes, coded.dequantize()
    (tensor([-8,  7], dtype=torch.int8), tensor([-4.0000,  3.5000]))
    """

    packed: Tensor
    bits: int
    shape: tuple[int, ...]
    scale: Tensor

    @property
    def codes(self) -> Tensor:
        """The codes, int8."""
        return unpack_codes(self.packed, self.bits, self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of codes and scale."""
        return self.packed.numel() + self.scale.element_size()

    def dequantize(self) -> Tensor:
        """Return codes times scale, in the scale's dtype."""
        return self.codes.to(self.scale.dtype) * self.scale


@dataclass(frozen=True, eq=False)
class CodedModel:
    """A prepared model's state with integer codes in the place of weights.

    Parameters
    ----------
    codes : dict of str to CodedTensor
        By the names of the prepared model's state.
    rest : dict of str to Tensor
        Everything else: biases, norms, the quantizers' scales.

    See Also
    --------
    export_codes : makes one.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> coded = export_codes(prepare_qat(TTLinear(16, 16, rank=4), 4))
    >>> plain = TTLinear(16, 16, rank=4)
    >>> plain.load_state_dict(coded.plain_state_dict())
    <All keys matched successfully>
    """

    codes: dict[str, CodedTensor]
    rest: dict[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """Bytes of all codes, scales and other numbers."""
        rest = sum(t.numel() * t.element_size() for t in self.rest.values())
        return rest + sum(coded.size_bytes for coded in self.codes.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of a model that was prepared in the same way.

        With it the model computes exactly what the exported one computes: codes times scale are
        left unchanged by the quantizer.
        """
        return {**self.rest, **{n: coded.dequantize() for n, coded in self.codes.items()}}

    def plain_state_dict(self) -> dict[str, Tensor]:
        """Return the state of a model without quantizers, with weights on the grid."""
        state = {}
        for name, value in self.state_dict().items():
            if ".parametrizations.weight." in f".{name}":
                if not name.endswith("original"):
                    continue
                name = name.removesuffix("parametrizations.weight.original") + "weight"
            elif "quantizers" in name.split("."):
                continue
            state[name] = value
        return state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file.

        Parameters
        ----------
        path : path_like
            Where to.
        """
        codes = {
            name: [coded.packed, coded.bits, list(coded.shape), coded.scale]
            for name, coded in self.codes.items()
        }
        save_checkpoint(path, {"kind": "coded model", "codes": codes, "rest": self.rest})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CodedModel":
        """Read a file of `save`.

        Parameters
        ----------
        path : path_like
            The file.

        Returns
        -------
        CodedModel
            On the CPU.

        Raises
        ------
        PersistenceError
            Another file.
        """
        stored = load_checkpoint(path)
        if stored.get("kind") != "coded model":
            raise PersistenceError(f"{os.fspath(path)} does not hold a coded model")
        codes = {
            name: CodedTensor(packed, bits, tuple(shape), scale)
            for name, (packed, bits, shape, scale) in stored["codes"].items()
        }
        return cls(codes, stored["rest"])


@torch.no_grad()
def export_codes(model: nn.Module, *, rest_dtype: torch.dtype | None = None) -> CodedModel:
    """Return the integer codes and scales of a model that `prepare_qat` prepared.

    Parameters
    ----------
    model : Module
        Prepared, trained or not.
    rest_dtype : torch.dtype, optional
        A narrower dtype for the biases, norms and other numbers that have no codes; the default
        keeps theirs, and the exported model then computes the same bit by bit.

    Returns
    -------
    CodedModel
        With copies of all numbers.

    Raises
    ------
    ValueError
        A model without quantizers, one whose weights are zero (its scale was never set), or a
        number that `rest_dtype` cannot hold.

    Examples
    --------
    >>> model = prepare_qat(nn.Linear(4, 2), 4, dense_bits=4)
    >>> export_codes(model).size_bytes  # codes 4, scale and its logarithm 8, biases 8, flag 1
    21
    """
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    codes: dict[str, CodedTensor] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if isinstance(module, TensorizedLayer) and module.quantizers is not None:
            for k, core in enumerate(module.train_cores()):
                quantizer = module.quantizers[f"core_{k}"]
                shape = tuple(module.cores[k].shape)
                codes[f"{prefix}cores.{k}"] = _coded(quantizer, core, shape)
                if f"{prefix}bonds.{k}" in state:  # they are in the codes now
                    state[f"{prefix}bonds.{k}"] = torch.ones_like(state[f"{prefix}bonds.{k}"])
        elif isinstance(module, _DENSE) and _is_prepared(module):
            key = f"{prefix}parametrizations.weight.original"
            (quantizer,) = module.parametrizations.weight  # type: ignore[union-attr, misc]
            codes[key] = _coded(quantizer, state[key], tuple(state[key].shape))
    if not codes:
        raise ValueError("model has no quantizers; see prepare_qat")
    rest = {
        name: _narrow(name, value, rest_dtype) for name, value in state.items() if name not in codes
    }
    return CodedModel(codes, rest)


def _coded(quantizer: Any, value: Tensor, shape: tuple[int, ...]) -> CodedTensor:
    """Code one tensor."""
    packed = pack_codes(quantizer.codes(value), quantizer.bits)
    return CodedTensor(packed, quantizer.bits, shape, quantizer.scale.detach().clone())


def _narrow(name: str, value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Convert floats to a narrower dtype, scales excepted."""
    if dtype is None or not value.is_floating_point() or value.ndim == 0:
        return value
    narrow = value.to(dtype)
    if bool((torch.isfinite(value) & ~torch.isfinite(narrow)).any()):
        raise ValueError(f"rest_dtype={dtype} cannot hold the numbers of {name!r}: they overflow")
    return narrow
