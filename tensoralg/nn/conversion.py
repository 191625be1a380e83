"""Conversion of a whole model: its dense layers become tensorized ones where that pays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from tensoralg.core.validation import positive_integer
from tensoralg.nn.conversion_report import ConversionReport, ConversionRow
from tensoralg.nn.encoder_shortcuts import leave_shortcuts
from tensoralg.nn.layer_costs import dense_operations, tensorized_operations
from tensoralg.nn.module_modes import naming
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.tied_output import TiedOutput
from tensoralg.nn.tt_convolution import TTConvolution
from tensoralg.nn.tt_embedding import TTMEmbedding
from tensoralg.nn.tt_linear import TTLinear

__all__ = ["Tensorized", "tensorize"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KINDS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Tensorized(NamedTuple):
    """A converted model and what was done to it.

    Parameters
    ----------
    model : nn.Module
        The model; the given object, but for a model that is a single layer.
    report : ConversionReport
        Printing it shows a table.
    """

    model: nn.Module
    report: ConversionReport


@dataclass(frozen=True, slots=True)
class _Options:
    """How layers are converted."""

    rank: int | Sequence[int] | None
    rtol: float | None
    initial: str
    grams: Mapping[str, Tensor]
    tokens: int


def tensorize(
    model: nn.Module,
    *,
    rank: int | Sequence[int] | None = None,
    rtol: float | None = None,
    initial: Literal["weights", "random"] = "weights",
    include: str | Iterable[str] | Callable[[str, nn.Module], bool] = "*",
    exclude: str | Iterable[str] | Callable[[str, nn.Module], bool] = (),
    grams: Mapping[str, Tensor] | None = None,
    ties: Literal["keep", "untie"] = "keep",
    tokens: int = 512,
) -> Tensorized:
    """Replace a model's dense layers by tensorized ones, in place.

    Linear layers become `TTLinear`, embeddings `TTMEmbedding`, convolutions of one group
    `TTConvolution`. A layer stays as it is where cores would hold no fewer numbers than its
    weight, and where replacing it would lose something: hooks, a subclass's own behaviour, a
    weight that an unlisted module shares. The report names the reason.

    Parameters
    ----------
    model : nn.Module
        Changed in place; an optimizer has to be made afterwards.
    rank : int or sequence of int, optional
        Largest ranks of every layer. With ``initial="random"`` the layers' default where None.
    rtol : float, optional
        Largest relative error of every weight in the Frobenius norm.
    initial : {"weights", "random"}, default "weights"
        Factorise the present weights, or draw new cores (for training from scratch; tables of
        trained models are not compressible).
    include, exclude : str, iterable of str, or callable, optional
        Patterns of layers' names such as ``"encoder.*"``, or a function of name and layer.
    grams : mapping of str to Tensor, optional
        For names of linear layers ``X^T X`` of their inputs: then the outputs' error counts.
    ties : {"keep", "untie"}, default "keep"
        What becomes of an embedding and an output layer that share one weight: they share one
        train, or each gets its own.
    tokens : int, default 512
        For which operations are counted.

    Returns
    -------
    model : nn.Module
        The given one; a new layer if the model itself is a layer.
    report : ConversionReport
        Parameters and operations before and after, and the errors, layer by layer.

    Raises
    ------
    ValueError
        Neither `rank` nor `rtol` for a factorisation, an unknown option, `grams` of a name that
        is no linear layer, or a weight that is not finite, whose layer is named. The model is
        then as it was.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
    >>> model, report = tensorize(model, rank=8, initial="random")
    >>> type(model[0]).__name__, type(model[2]).__name__
    ('TTLinear', 'TTLinear')
    >>> report.parameters_before, report.parameters_after
    (66820, 2644)
    """
    options = _Options(rank, rtol, initial, grams or {}, positive_integer("tokens", tokens))
    _check(model, options, ties)
    before = _count(model)
    found = _layers(model)
    tied = _ties(model, found) if ties == "keep" else {}
    reasons = {id(m): _reason_to_stay(name, m, include, exclude) for name, m in found.items()}
    new: dict[int, nn.Module] = {}
    rows: list[ConversionRow] = []
    for name, layer in found.items():
        partners = tied.get(id(layer), [])
        reason = reasons[id(layer)] or _reason_of_tie(layer, partners, reasons)
        rows.append(_convert(name, layer, options, new, reason, partners))
    if id(model) in new:
        model = new[id(model)]
    else:
        _put(model, new)
        leave_shortcuts(model)
    return Tensorized(model, ConversionReport(tuple(rows), tokens, before, _count(model)))


def _check(model: nn.Module, options: _Options, ties: str) -> None:
    """Raise where an option cannot be followed, before anything changes."""
    for option, value, accepted in (
        ("initial", options.initial, ("weights", "random")),
        ("ties", ties, ("keep", "untie")),
    ):
        if value not in accepted:
            raise ValueError(f"{option} must be one of {accepted}; got {value!r}")
    if options.initial == "weights" and options.rank is None and options.rtol is None:
        raise ValueError("rank or rtol must be given: an exact factorisation is no smaller")
    linear = {name for name, layer in model.named_modules() if type(layer) is nn.Linear}
    if unknown := sorted(set(options.grams) - linear):
        raise ValueError(f"grams must be named as linear layers of the model; got {unknown}")


def _count(model: nn.Module) -> int:
    """Count all parameters, shared ones once."""
    return sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in model.parameters())


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """List what could be converted by name; an embedding before the layers that share its table."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, _KINDS)}
    return dict(sorted(found.items(), key=lambda item: not isinstance(item[1], nn.Embedding)))


def _ties(model: nn.Module, found: Mapping[str, nn.Module]) -> dict[int, list[nn.Module | None]]:
    """For each layer the other owners of its parameters; None for one that is no listed layer."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(module)
    listed = {id(layer) for layer in found.values()}
    result: dict[int, list[nn.Module | None]] = {}
    for layer in found.values():
        others = [
            other if id(other) in listed and parameter is getattr(other, "weight", None) else None
            for parameter in layer._parameters.values()
            if parameter is not None
            for other in owners[id(parameter)]
            if other is not layer
        ]
        if others:
            result[id(layer)] = others
    return result


def _matches(
    choice: str | Iterable[str] | Callable[[str, nn.Module], bool], name: str, layer: nn.Module
) -> bool:
    """Whether a layer is chosen."""
    if callable(choice):
        return bool(choice(name, layer))
    patterns = (choice,) if isinstance(choice, str) else choice
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _reason_to_stay(
    name: str,
    layer: nn.Module,
    include: str | Iterable[str] | Callable[[str, nn.Module], bool],
    exclude: str | Iterable[str] | Callable[[str, nn.Module], bool],
) -> str | None:
    """Why a layer is not converted, as far as it alone tells."""
    if any(nn.parameter.is_lazy(p) for p in layer.parameters()):
        return "its size is not known before its first input"
    if not _matches(include, name, layer) or _matches(exclude, name, layer):
        return "excluded"
    if type(layer) not in _KINDS:
        return "a subclass, whose own behaviour would be lost"
    if any(getattr(layer, hooks) for hooks in _HOOKS):
        return "its hooks would be lost"
    if isinstance(layer, nn.Embedding) and (layer.max_norm or layer.scale_grad_by_freq):
        return "max_norm or scale_grad_by_freq"
    if getattr(layer, "groups", 1) != 1:
        return "more than one group"
    return None


def _reason_of_tie(
    layer: nn.Module, partners: Sequence[nn.Module | None], reasons: Mapping[int, str | None]
) -> str | None:
    """Why a layer that shares a parameter is not converted."""
    if not partners:
        return None
    group = [layer, *partners]
    if sum(isinstance(member, nn.Embedding) for member in group) != 1:
        return "shares a parameter with another module"
    for member in group:
        if member is None or type(member) not in (nn.Embedding, nn.Linear):
            return "shares a parameter with another module"
        if reasons[id(member)] is not None:
            return "shares a parameter with a layer that stays"
    return None


def _convert(
    name: str,
    layer: nn.Module,
    options: _Options,
    new: dict[int, nn.Module],
    reason: str | None,
    partners: Sequence[nn.Module | None],
) -> ConversionRow:
    """Put the layer's replacement into `new`, if there is one; what happened."""
    weight = getattr(layer, "weight", None)
    size = 0
    if isinstance(weight, Tensor) and not nn.parameter.is_lazy(weight):
        size = weight.numel()
    dense = dense_operations(layer, options.tokens) if size else 0
    kind = type(layer).__name__

    def stays(why: str) -> ConversionRow:
        return ConversionRow(name, kind, False, size, size, dense, dense, None, why)

    if reason is not None:
        return stays(reason)
    table = next((p for p in partners if isinstance(p, nn.Embedding)), None)
    if isinstance(layer, nn.Linear) and table is not None:
        shared = new.get(id(table))
        if not isinstance(shared, TTMEmbedding):
            return stays("shares a parameter with a layer that stays")
        output = new[id(layer)] = TiedOutput(shared, layer.bias).train(layer.training)
        fewer = output.explain(options.tokens).route.operations
        return ConversionRow(name, kind, True, size, 0, dense, fewer, None, "shares the train")
    with naming(name):
        made, why = _replacement(name, layer, options)
    if made is None:
        return stays(why)
    new[id(layer)] = made
    error = None
    if options.initial == "weights" and isinstance(weight, Tensor):
        with torch.no_grad():
            norm = torch.linalg.vector_norm(weight)
            error = float(torch.linalg.vector_norm(made.weight - weight) / norm) if norm else 0.0
    operations = tensorized_operations(made, options.tokens)
    after = made.compressed_parameters
    return ConversionRow(name, kind, True, size, after, dense, operations, error, why)


def _replacement(
    name: str, layer: nn.Module, options: _Options
) -> tuple[TTLinear | TTMEmbedding | TTConvolution | None, str]:
    """Build the tensorized layer; None with the reason where it would not be smaller."""
    cannot = "factors cannot pay"
    drawn = _drawn(layer, options.rank, "meta")
    if options.rtol is None and drawn.compressed_parameters >= drawn.dense_parameters:
        return None, cannot
    made: TTLinear | TTMEmbedding | TTConvolution
    if options.initial == "random":
        weight = layer.weight
        assert isinstance(weight, Tensor)
        made = _drawn(layer, options.rank, weight.device)
    elif isinstance(layer, nn.Linear):
        gram = options.grams.get(name)
        made = TTLinear.from_linear(layer, rank=options.rank, rtol=options.rtol, gram=gram)
    elif isinstance(layer, nn.Embedding):
        made = TTMEmbedding.from_embedding(layer, rank=options.rank, rtol=options.rtol)
    else:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        made = TTConvolution.from_convolution(layer, rank=options.rank, rtol=options.rtol)
    if made.compressed_parameters >= made.dense_parameters:
        return None, cannot
    if isinstance(layer.weight, Tensor):
        made.cores.requires_grad_(layer.weight.requires_grad)
    theirs, ours = getattr(layer, "bias", None), getattr(made, "bias", None)
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        ours.requires_grad_(theirs.requires_grad)
    note = f"ranks {made.ranks[1:-1]}"
    if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
        zero = options.initial == "random" or not bool(layer.weight[layer.padding_idx].any())
        note += "" if zero else "; its padding row, which was not zero, now is"
    return made.train(layer.training), note


def _drawn(
    layer: nn.Module, rank: int | Sequence[int] | None, device: torch.device | str
) -> TTLinear | TTMEmbedding | TTConvolution:
    """Build a tensorized layer of the same sizes with new cores."""
    if isinstance(layer, nn.Linear):
        return TTLinear(
            layer.in_features,
            layer.out_features,
            rank=rank,
            bias=layer.bias is not None,
            dtype=layer.weight.dtype,
            device=device,
        )
    if isinstance(layer, nn.Embedding):
        return TTMEmbedding(
            layer.num_embeddings,
            layer.embedding_dim,
            rank=rank,
            padding_idx=layer.padding_idx,
            dtype=layer.weight.dtype,
            device=device,
        )
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return TTConvolution(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        rank=rank,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        padding_mode=layer.padding_mode,
        bias=layer.bias is not None,
        dtype=layer.weight.dtype,
        device=device,
    )


def _put(model: nn.Module, new: Mapping[int, nn.Module]) -> None:
    """Put the new layers where the old ones were, at every place of a shared one."""
    for module in list(model.modules()):
        if isinstance(module, TensorizedLayer | TiedOutput):
            continue
        for child, layer in module._modules.items():
            if layer is not None and id(layer) in new:
                module._modules[child] = new[id(layer)]
