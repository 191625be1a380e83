"""Which layers of a model are quantized together, which stay, and what stands in their place."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import positive_integer
from tensoralg.nn.calibrator import CALIBRATED, Calibrator
from tensoralg.nn.input_statistics import Convolution, input_width
from tensoralg.nn.layer_listening import Listener, as_patterns, matches
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.quantized_layers import (
    QuantizedConvolution,
    QuantizedEmbedding,
    QuantizedLayer,
    QuantizedLinear,
)
from tensoralg.nn.tensorized_layer import always_called
from tensoralg.nn.tt_linear import TTLinear
from tensoralg.solvers.quantization_grid import number_of_bits

__all__ = [
    "Choice",
    "QuantizationUnit",
    "checked_bits",
    "chosen_units",
    "find_units",
    "model_bytes",
    "packed_layer",
    "replace_modules",
]

# bits of a layer, bits and rank of its factors, or None: it stays
Choice = int | tuple[int, int] | None

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class QuantizationUnit:
    """Layers that have one weight, and what is to become of them.

    Parameters
    ----------
    layers : dict of str to Module
        By name; several where they are tied.
    bits : int or None
        None where they stay.
    rank : int or None
        Of the factors that a linear layer becomes; None where it stays a matrix.
    reason : str
        Why they stay.

    Examples
    --------
    >>> unit = QuantizationUnit({"head": nn.Linear(2, 3)})
    >>> unit.name, unit.is_tied
    ('head', False)
    """

    layers: dict[str, nn.Module] = field(default_factory=dict)
    bits: int | None = None
    rank: int | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The first layer's name."""
        return next(iter(self.layers))

    @property
    def is_tied(self) -> bool:
        """Whether several layers have the weight."""
        return len(self.layers) > 1

    @property
    def is_linear(self) -> bool:
        """Whether the weight is that of a dense linear layer."""
        return type(next(iter(self.layers.values()))) is nn.Linear

    @property
    def weight(self) -> Tensor:
        """The dense weight; that of a tensor train is computed."""
        weight = next(iter(self.layers.values())).weight
        assert isinstance(weight, Tensor)
        return weight.detach()


def checked_bits(bits: Choice | Mapping[str, Choice]) -> dict[str, Choice]:
    """Check numbers of bits and return them by patterns of names.

    Parameters
    ----------
    bits : int, pair of int, None, or a mapping of str to these
        For all layers, or by patterns; a pair is bits and rank.

    Returns
    -------
    dict
        By patterns.

    Raises
    ------
    ValueError
        Another number of bits than 2 to 8, or a rank below 1.

    Examples
    --------
    >>> checked_bits(4)
    {'*': 4}
    """
    chosen: dict[str, Choice] = dict(bits) if isinstance(bits, Mapping) else {"*": bits}
    for key, value in chosen.items():
        if isinstance(value, tuple):
            if len(value) != 2:
                raise ValueError(f"bits must be a number or a pair of bits and rank; got {value!r}")
            chosen[key] = number_of_bits(value[0]), positive_integer("rank", value[1])
        elif value is not None:
            chosen[key] = number_of_bits(value)
    return chosen


def find_units(model: nn.Module) -> list[QuantizationUnit]:
    """List layers that could be quantized, those with one weight together, in the model's order.

    Parameters
    ----------
    model : Module
        Any.

    Returns
    -------
    list of QuantizationUnit
        Without bits; with a reason where they have to stay.

    Examples
    --------
    >>> table, head = nn.Embedding(5, 2), nn.Linear(2, 5)
    >>> head.weight = table.weight
    >>> [list(unit.layers) for unit in find_units(nn.Sequential(table, head))]
    [['0', '1']]
    """
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    units: dict[int, QuantizationUnit] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.MultiheadAttention):
            reason = "reads its weights past the layers that own them"
            units[id(layer)] = QuantizationUnit({name: layer}, reason=reason)
        if not isinstance(layer, CALIBRATED):
            continue
        first = next(layer.parameters(recurse=isinstance(layer, TTLinear)), None)
        unit = units.setdefault(id(first), QuantizationUnit())
        unit.layers[name] = layer
        unit.reason = unit.reason or _reason_to_stay(layer)
    for unit in units.values():
        for layer in unit.layers.values():
            own = dict(layer.named_parameters())
            for name, parameter in own.items():
                expected = len(unit.layers) if name == "weight" else 1
                if owners[id(parameter)] != expected:
                    unit.reason = unit.reason or "shares a parameter with another module"
    return list(units.values())


def _reason_to_stay(layer: nn.Module) -> str:
    """Why a layer cannot be replaced, as far as it alone tells; empty where it can."""
    if type(layer) not in CALIBRATED:
        return "a subclass, whose own behaviour would be lost"
    if any(nn.parameter.is_lazy(p) for p in layer.parameters()):
        return "its size is not known before its first input"
    for hooks in _HOOKS:
        others = [hook for hook in getattr(layer, hooks).values() if hook is not always_called]
        if any(not isinstance(hook, Listener) for hook in others):
            return "its hooks would be lost"
    if isinstance(layer, nn.Embedding) and (layer.max_norm or layer.scale_grad_by_freq):
        return "max_norm or scale_grad_by_freq"
    if isinstance(layer, TTLinear) and layer.quantizers is not None:
        return "has quantizers of quantization-aware training; see export_codes"
    return ""


def chosen_units(
    units: Sequence[QuantizationUnit],
    calibrator: Calibrator,
    bits: Mapping[str, Choice],
    include: str | Iterable[str],
    exclude: str | Iterable[str],
) -> list[QuantizationUnit]:
    """Give every unit its bits, or the reason why it stays, and return those with bits.

    Parameters
    ----------
    units, calibrator, bits, include, exclude
        As for `choose_bits`.

    Returns
    -------
    list of QuantizationUnit
        In the model's order.

    Raises
    ------
    ShapeError, ValueError
        As `choose_bits`; bits for layers that the model does not have, or no layer is left.
    """
    names = [name for unit in units for name in unit.layers]
    include, exclude = as_patterns(include), as_patterns(exclude)
    if not names:
        raise ValueError("model has no layer that could be quantized, or none any more")
    wrong = [key for key in bits if not any(key == name or matches(key, name) for name in names)]
    if wrong:
        raise ValueError(f"bits must be for layers of {names}; got {wrong}")
    for unit in units:
        choose_bits(unit, calibrator, bits, include, exclude)
    chosen = [unit for unit in units if unit.bits is not None]
    if not chosen and any(value is not None for value in bits.values()):
        reasons = "; ".join(f"{unit.name!r}: {unit.reason}" for unit in units)
        raise ValueError(f"model has no layer that would be quantized ({reasons})")
    return chosen


def choose_bits(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    bits: Mapping[str, Choice],
    include: str | Iterable[str],
    exclude: str | Iterable[str],
) -> None:
    """Give a unit its bits, or the reason why it stays.

    Parameters
    ----------
    unit : QuantizationUnit
        Is changed.
    calibrator : Calibrator
        That listened to its layers.
    bits : mapping of str to int, pair of int or None
        By patterns of names; the first that fits. A pair is bits and rank.
    include, exclude : str or iterable of str
        Patterns of names.

    Raises
    ------
    ShapeError
        The calibrator listened to layers of other sizes.
    ValueError
        A rank for what is no linear layer.
    """
    if unit.reason:
        return
    if any(not matches(include, name) or matches(exclude, name) for name in unit.layers):
        unit.reason = "excluded"
        return
    if any(name not in calibrator.names for name in unit.layers):
        unit.reason = "the calibrator does not listen to it"
        return
    found = [
        value
        for name in unit.layers
        for key, value in bits.items()
        if key == name or matches(key, name)
    ]
    if not found or found[0] is None:
        unit.reason = "no bits chosen"
        return
    unit.bits, unit.rank = found[0] if isinstance(found[0], tuple) else (found[0], None)
    if unit.rank is not None and (unit.is_tied or not unit.is_linear):
        raise ValueError(f"bits has a rank for {unit.name!r}, which is no linear layer of its own")
    for name, layer in unit.layers.items():
        expected: tuple[int, ...]
        if isinstance(layer, nn.Embedding):
            expected, seen = (layer.num_embeddings,), tuple(calibrator.gram(name).shape)
        else:
            groups, width = input_width(layer)
            expected, seen = (groups, width, width), tuple(calibrator.sums(name).gram.shape)
        if expected != seen:
            raise ShapeError(
                f"calibrator has a Gram matrix of shape {seen} for {name!r}; "
                f"the model's layer needs {expected}"
            )


def packed_layer(layer: nn.Module, packed: PackedWeight, bias: Tensor | None) -> QuantizedLayer:
    """Build the layer that stands in a dense one's place.

    Parameters
    ----------
    layer : Module
        A linear layer, a convolution or an embedding.
    packed : PackedWeight
        Its weight; shared with the result.
    bias : Tensor or None
        Its new bias.

    Returns
    -------
    QuantizedLayer
        In the same mode.
    """
    made: QuantizedLayer
    if isinstance(layer, nn.Embedding):
        made = QuantizedEmbedding(packed, layer.padding_idx)
    elif isinstance(layer, Convolution):
        made = QuantizedConvolution(packed, layer, bias)
    else:
        made = QuantizedLinear(packed, bias)
    return made.train(layer.training)


def replace_modules(model: nn.Module, new: Mapping[int, nn.Module]) -> None:
    """Put modules where others were, at every place of a shared one.

    Parameters
    ----------
    model : Module
        Changed in place.
    new : mapping of int to Module
        By the ids of the old ones.
    """
    for module in list(model.modules()):
        for child, layer in module._modules.items():
            if layer is not None and id(layer) in new:
                module._modules[child] = new[id(layer)]


def model_bytes(model: nn.Module) -> int:
    """Count the bytes of parameters and buffers, shared ones once.

    Parameters
    ----------
    model : Module
        Any.

    Returns
    -------
    int
        The bytes; what packed weights keep about their shapes is not counted.

    Examples
    --------
    >>> model_bytes(nn.Linear(3, 2))
    32
    """
    found: dict[int, Tensor] = {}
    for module in model.modules():
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            about = isinstance(module, PackedWeight) and name == "layout"
            if value is not None and not about and not nn.parameter.is_lazy(value):
                found[id(value)] = value
    return sum(value.numel() * value.element_size() for value in found.values())
