"""A model whose attention goes through memories of constant size; the model itself stays."""

import copy
from dataclasses import replace
from typing import TypeVar, cast

from torch import nn

from tensoralg.core.validation import positive_integer
from tensoralg.nn.adapter_installation import AdapterRecord
from tensoralg.nn.encoder_shortcuts import call_layers
from tensoralg.nn.key_value_memory import Policy
from tensoralg.nn.memory_attention import (
    MemoryMultiheadAttention,
    MemorySelfAttention,
    MemorySettings,
)
from tensoralg.nn.transformer import SelfAttention

__all__ = ["with_memory"]

Model = TypeVar("Model", bound=nn.Module)

_WITH_MEMORY: dict[type[nn.Module], type[nn.Module]] = {
    SelfAttention: MemorySelfAttention,
    nn.MultiheadAttention: MemoryMultiheadAttention,
}


def with_memory(
    model: Model,
    size: int,
    delay: int,
    policy: Policy = "lra",
    *,
    chunk: int = 16,
    top_k: int = 1,
    decay: float = 0.9,
    protect: int = 0,
    causal: bool = False,
) -> Model:
    """Give every attention module of a model a memory of constant size.

    Parameters
    ----------
    model : nn.Module
        With the self-attention of `TransformerClassifier` or ``nn.MultiheadAttention`` inside, as
        in ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``. It is not changed.
    size, delay, policy
        As for `Attendre`; each attention module gets a memory of its own.
    chunk : int, default 16
        So many tokens enter a memory at a time; ``size`` must be at least ``delay + chunk``.
    top_k, decay, protect
        As for `Attendre`.
    causal : bool, default False
        Queries attend no later keys. PyTorch's modules are also causal where they are called with
        the causal mask.

    Returns
    -------
    nn.Module
        Of the model's own class, to be called as the model is; it shares the model's parameters
        and buffers, so training one trains both.

    Raises
    ------
    ValueError
        ``size < delay + chunk``, no attention module that is known, or another bad argument.
    TypeError
        An attention module of a class of its own, such as one with adapters that change the keys.

    See Also
    --------
    MemoryStream : Inputs of any length, a piece at a time.

    Notes
    -----
    Every call starts with empty memories, for whole sequences. With `size` and `delay` of at least
    the length the outputs are the model's own. In cross attention all keys enter the memory before
    the first query reads: nothing is attended in between, and every policy keeps the last keys.
    The modules return no attention weights, take no masks but of padding and the causal one, and
    refuse dropout of weights in training. `TransformerClassifier` has none.

    Examples
    --------
    >>> import torch
    >>> from tensoralg.nn import EncoderConfig, TransformerClassifier
    >>> config = EncoderConfig(50, classes=3, hidden=8, heads=2, layers=2, feed_forward=16)
    >>> model = TransformerClassifier(config).eval()
    >>> tokens = torch.randint(50, (2, 40))
    >>> exact = with_memory(model, 60, 40, chunk=8)
    >>> torch.allclose(exact(tokens), model(tokens), atol=1e-6)
    True
    >>> with_memory(model, 24, 8, "lfa")(tokens).shape
    torch.Size([2, 3])
    """
    settings = MemorySettings(
        size, delay, policy, positive_integer("chunk", chunk), top_k, decay, protect, causal
    )
    settings.attendre()  # raises for bad arguments
    if size < delay + chunk:
        raise ValueError(f"size must be at least delay + chunk = {delay} + {chunk}; got {size}")
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, tuple(_WITH_MEMORY))
    ]
    if not found:
        raise ValueError(
            "model must hold attention that is known (that of TransformerClassifier, or "
            f"nn.MultiheadAttention); got {type(model).__name__}"
        )
    for name, module in found:
        if type(module) not in _WITH_MEMORY:
            raise TypeError(
                f"attention modules must be plain ones; {name or 'model'} is a "
                f"{type(module).__name__}"
            )
    return _sharing(model, settings, {})


def _sharing(module: Model, settings: MemorySettings, done: dict[int, nn.Module]) -> Model:
    """Copy the tree of modules, not the parameters; attention gets its memory."""
    if id(module) not in done:
        twin: nn.Module = copy.copy(module)
        done[id(module)] = twin
        for name, held in list(vars(module).items()):
            if isinstance(held, dict):
                vars(twin)[name] = held.copy()  # parameters, buffers, hooks: the twin's own tables
        for name, child in module._modules.items():
            twin._modules[name] = None if child is None else _sharing(child, settings, done)
        if isinstance(record := vars(module).get("pelt_record"), AdapterRecord):
            # a record of its own, and taking adapters out must not switch fused kernels on
            vars(twin)["pelt_record"] = replace(record, shortcuts={})
        if (kind := _WITH_MEMORY.get(type(module))) is not None:
            twin.__class__ = kind
            twin.memory = settings  # type: ignore[assignment]
        call_layers(twin)  # PyTorch's fused kernels call no attention
    return cast("Model", done[id(module)])
