"""Parts of a `PELT` are put into a model and taken out; its own weights keep their names."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tensoralg.nn.adapted_attention import AdaptedMultiheadAttention, AdaptedSelfAttention
from tensoralg.nn.adapter_sites import PROJECTIONS, Sites, sizes_of, weight_of
from tensoralg.nn.encoder_shortcuts import call_layers
from tensoralg.nn.gated_parts import Bottleneck, Prefix, Prompt, WeightDelta
from tensoralg.nn.pelt import PELT
from tensoralg.nn.sample_context import PromptStack, SampleContext, drop_hooks, host
from tensoralg.nn.transformer import EncoderBlock, SelfAttention

__all__ = [
    "CHILDREN",
    "AdapterRecord",
    "build_parts",
    "changed_weights",
    "install",
    "record_of",
    "remove_parts",
    "restore",
]

CHILDREN = {
    "lora": ("pelt_lora", *(f"pelt_{name}" for name in PROJECTIONS)),
    "adapter": ("pelt_adapter",),
    "prefix": ("pelt_prefix",),
    "prompt": ("pelt_prompt",),
}
_HOSTS = (SelfAttention, EncoderBlock, nn.TransformerEncoderLayer)
_ADAPTED: dict[Any, Any] = {
    SelfAttention: AdaptedSelfAttention,
    nn.MultiheadAttention: AdaptedMultiheadAttention,
}
_ORIGINAL = {adapted: original for original, adapted in _ADAPTED.items()}

Parts = Mapping[str, Mapping[str, nn.Module]]


@dataclass
class AdapterRecord:
    """What was done to a model; kept at its root as ``pelt_record``.

    Parameters
    ----------
    config : PELT
        The parts that are in it.
    required : dict of str to bool
        Which parameters required gradients before.
    shortcuts : dict of str to object
        PyTorch's marks of fused encoder layers, before they were switched off.
    merged : bool
        The parts have become weights.
    """

    config: PELT
    required: dict[str, bool]
    shortcuts: dict[str, Any]
    merged: bool = False


def record_of(model: nn.Module, *, adapted: bool = False) -> AdapterRecord | None:
    """Return what was done to a model.

    Parameters
    ----------
    model : Module
        Any.
    adapted : bool, default False
        It has to be adapted.

    Returns
    -------
    AdapterRecord or None
        None where it was never adapted.

    Raises
    ------
    ValueError
        It is not adapted.
    """
    record = getattr(model, "pelt_record", None)
    assert record is None or isinstance(record, AdapterRecord)
    if adapted and record is None:
        raise ValueError("the model is not adapted; call adapt first, on this very module")
    if adapted and record is not None and record.merged:
        raise ValueError("the model was merged already: no part of it is left")
    return record


def build_parts(model: nn.Module, config: PELT, sites: Sites) -> Parts:
    """Make the new parts, before the model is changed.

    Parameters
    ----------
    model : Module
        Not changed.
    config : PELT
        Sizes.
    sites : Sites
        Where they go.

    Returns
    -------
    dict of str to dict of str to Module
        For modules by name new children by name.
    """
    parts: dict[str, dict[str, nn.Module]] = {}

    def put(name: str, child: str, part: nn.Module, beside: nn.Module) -> None:
        parts.setdefault(name, {})[child] = part.train(beside.training)

    for name, layer in sites.linear.items():
        sizes = sizes_of(layer)
        assert sizes is not None
        put(name, "pelt_lora", WeightDelta(*sizes, config, weight_of(layer)), layer)
    for name, projections in sites.projections.items():
        layer = sites.attention[name]
        ins = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
        for projection in projections:
            width: Any = ins[projection]
            delta = WeightDelta(width, layer.embed_dim, config, weight_of(layer))  # type: ignore[arg-type]
            put(name, f"pelt_{projection}", delta, layer)
    for name, layer in sites.outputs.items():
        sizes = sizes_of(layer)
        assert sizes is not None
        put(name, "pelt_adapter", Bottleneck(sizes[1], config, weight_of(layer)), layer)
    if config.prefix:
        for name, layer in sites.attention.items():
            width = layer.embed_dim if isinstance(layer, nn.MultiheadAttention) else _width(layer)
            put(name, "pelt_prefix", Prefix(width, width, config, weight_of(layer)), layer)
    if config.prompt:
        block = next(iter(sites.blocks.values()))
        put("", "pelt_prompt", Prompt(block_width(block), config, weight_of(block)), model)
    return parts


def install(model: nn.Module, config: PELT, sites: Sites, parts: Parts) -> dict[str, Any]:
    """Put the parts into a model.

    Parameters
    ----------
    model : Module
        Changed in place.
    config : PELT
        Sizes.
    sites : Sites
        Where the parts go.
    parts : dict
        Of `build_parts`.

    Returns
    -------
    dict of str to object
        Marks of PyTorch's fused layers, to be put back by `restore`.
    """
    named = dict(model.named_modules())
    for name, children in parts.items():
        for child, part in children.items():
            named[name].add_module(child, part)
    prompt = parts.get("", {}).get("pelt_prompt")
    prompts = PromptStack(prompt) if isinstance(prompt, Prompt) else None
    for module in named.values():
        if isinstance(module, _HOSTS):
            host(module, SampleContext(prompts))
    _begin_and_end(sites, prompts)
    swapped = bool(sites.projections or config.prefix or config.prompt)
    for name, module in sites.attention.items():
        inside = bool(sites.inside(name))
        multihead = isinstance(module, nn.MultiheadAttention)
        if (swapped if not multihead else swapped or inside) and type(module) in _ADAPTED:
            if multihead:
                module.pelt_context = SampleContext(prompts)  # type: ignore[assignment]
            module.__class__ = _ADAPTED[type(module)]
    for layers, hook in ((sites.linear, _add_delta), (sites.outputs, _apply_bottleneck)):
        for name, layer in layers.items():
            if config.gate:
                layer.pelt_context = _nearest_context(model, named, name)  # type: ignore[assignment]
            layer.register_forward_hook(hook, with_kwargs=True)
    return {
        f"{name}:{mark}": before
        for name, module in named.items()
        for mark, before in call_layers(module).items()
    }


def remove_parts(model: nn.Module, methods: Iterable[str]) -> None:
    """Take the parts of some methods away.

    Parameters
    ----------
    model : Module
        An adapted model, changed in place.
    methods : iterable of str
        Names of methods.
    """
    gone = set(methods)
    for module in list(model.modules()):
        for child in (child for name in gone for child in CHILDREN[name]):
            module._modules.pop(child, None)
        context = module.__dict__.get("pelt_context")
        if "prompt" in gone and isinstance(context, SampleContext):
            context.prompts = None
        hooks = {"lora": _add_delta, "adapter": _apply_bottleneck}
        drop_hooks(module, *(hook for name, hook in hooks.items() if name in gone))


def restore(model: nn.Module, record: AdapterRecord) -> None:
    """Make a model what it was before its parts came, which are gone already.

    Parameters
    ----------
    model : Module
        Changed in place.
    record : AdapterRecord
        Of the time before.
    """
    for name, module in model.named_modules():
        module.__class__ = _ORIGINAL.get(type(module), type(module))
        module.__dict__.pop("pelt_context", None)
        drop_hooks(module, hosts=True)
        for mark in ("use_nested_tensor", "activation_relu_or_gelu"):
            if (key := f"{name}:{mark}") in record.shortcuts:
                setattr(module, mark, record.shortcuts[key])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(record.required.get(name, parameter.requires_grad))


def changed_weights(module: nn.Module) -> Iterator[tuple[str, WeightDelta, Tensor]]:
    """Yield the deltas of a module's dense weights.

    Parameters
    ----------
    module : Module
        Any.

    Yields
    ------
    child : str
        Name of the delta.
    delta : WeightDelta
        The change.
    weight : Tensor, shape (out, in)
        The weight, or a view of its part.
    """
    delta = module._modules.get("pelt_lora")
    weight = module._parameters.get("weight")
    if isinstance(delta, WeightDelta) and isinstance(module, nn.Linear) and weight is not None:
        yield "pelt_lora", delta, weight
    if isinstance(module, nn.MultiheadAttention):
        for k, name in enumerate(PROJECTIONS):
            delta = module._modules.get(f"pelt_{name}")
            if not isinstance(delta, WeightDelta):
                continue
            if module._qkv_same_embed_dim:
                yield f"pelt_{name}", delta, module.in_proj_weight.chunk(3)[k]
            else:
                yield f"pelt_{name}", delta, getattr(module, f"{name[0]}_proj_weight")


def _add_delta(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    """Add a weight's change to a linear layer's output."""
    x = args[0] if args else kwargs["input"]
    part = module.pelt_lora
    assert isinstance(part, WeightDelta)
    added: Tensor = part(x, *_place(module, part, x))
    return output + added


def _apply_bottleneck(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    """Send a linear layer's output on to its adapter."""
    part = module.pelt_adapter
    assert isinstance(part, Bottleneck)
    sent: Tensor = part(output, *_place(module, part, output))
    return sent


def _place(module: nn.Module, part: Any, x: Tensor) -> tuple[int | None, Tensor | None]:
    """Ask the host where tokens lie, if there is a gate that wants to know."""
    if part.gate is None or part.gate.constant is not None:
        return None, None
    context = module.pelt_context
    assert isinstance(context, SampleContext)
    return context.place(x)


def _width(attention: nn.Module) -> int:
    """Width of a `SelfAttention`."""
    sizes = sizes_of(attention.query)  # type: ignore[arg-type]
    assert sizes is not None
    return sizes[1]


def block_width(block: nn.Module) -> int:
    """Width of a block's tokens."""
    norm = next(m for m in block.modules() if isinstance(m, nn.LayerNorm))
    return int(norm.normalized_shape[0])


def _begin_and_end(sites: Sites, prompts: PromptStack | None) -> None:
    """Mark the blocks where prompts come and go."""
    if prompts is None:
        return
    blocks = list(sites.blocks.values())
    blocks[0].pelt_context.first = True  # type: ignore[union-attr]
    blocks[-1].pelt_context.last = True  # type: ignore[union-attr]


def _nearest_context(model: nn.Module, named: Mapping[str, nn.Module], name: str) -> SampleContext:
    """Find the innermost host of a layer; the model itself where there is none."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        context = named[path].__dict__.get("pelt_context")
        if isinstance(context, SampleContext) and path:
            return context
    if not isinstance(model.__dict__.get("pelt_context"), SampleContext):
        host(model, SampleContext())
    context = model.__dict__["pelt_context"]
    assert isinstance(context, SampleContext)
    return context
