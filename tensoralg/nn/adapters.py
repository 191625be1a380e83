"""Parameter-efficient fine-tuning: gated LoRA, adapters, prefixes and prompts in a frozen model."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tensoralg.nn.adapter_installation import (
    AdapterRecord,
    build_parts,
    changed_weights,
    install,
    record_of,
    remove_parts,
    restore,
)
from tensoralg.nn.adapter_sites import find_sites, trained_names
from tensoralg.nn.gated_parts import WeightDelta
from tensoralg.nn.pelt import METHODS, PELT

__all__ = ["adapt", "merge", "trainable", "unadapt"]


def adapt(model: nn.Module, config: PELT) -> nn.Module:
    """Freeze a model and put small trainable parts into it, in place.

    Parameters
    ----------
    model : Module
        A `TransformerClassifier`, any model of ``nn.TransformerEncoderLayer`` or
        ``nn.MultiheadAttention``; for `lora` and `adapter` any model whose linear layers have
        the names in `config`. Every parameter stops requiring gradients, but for those that
        ``config.train`` names. Make the optimizer afterwards.
    config : PELT
        The parts.

    Returns
    -------
    Module
        The given one.

    Raises
    ------
    TypeError
        `config` is no `PELT`.
    ValueError
        The model is adapted already, has no place for a part, or one where it cannot go: an
        attention with ``bias_kv``, gates in a decoder, prompts without one stack of blocks. The
        model is then as it was.

    See Also
    --------
    trainable : Count what is trained.
    merge : Put the changes of weights into the weights.
    unadapt : Take the parts away.
    save_adapter : Store the parts alone.

    Notes
    -----
    Where a layer computes ``W x + b``, LoRA adds ``g B A x``; the adapter follows the last
    layer of a feed-forward part, ``x + g U relu(D x)``; prefixes and prompts are keys whose
    scores get ``log g`` added. Every layer has its own gates; those of a prefix and of a LoRA
    look at the attention's input, those of an adapter at its own, that of the prompts at the
    embedded tokens [1]_. LoRA and adapters start as the model was; prefixes and prompts take a
    part of the softmax from the start that is proportional to ``initial_gate``.

    Padding does not count in gates where its mask reaches them: with a `TransformerClassifier`,
    ``nn.TransformerEncoderLayer`` and self-attention of ``nn.MultiheadAttention``, and in other
    models whose ``forward`` has an argument ``attention_mask`` or ``mask`` of shape (B, T). In
    cross-attention padding of the queries is not known.

    Batches must not be split among threads (``nn.DataParallel``); processes of their own are
    fine.

    References
    ----------
    .. [1] Y. Mao et al., "UniPELT: A Unified Framework for Parameter-Efficient Language Model
       Tuning", ACL 2022, arXiv:2110.07577.

    Examples
    --------
    >>> from tensoralg.nn import EncoderConfig, TransformerClassifier
    >>> sizes = EncoderConfig(50, classes=2, hidden=8, heads=2, layers=2, feed_forward=16)
    >>> model = adapt(TransformerClassifier(sizes), PELT(lora=2, gate=False))
    >>> trainable(model)  # layers * 2 * rank * (in + out)
    128
    """
    if not isinstance(config, PELT):
        raise TypeError(f"config must be a PELT; got {type(config).__name__}")
    record = record_of(model)
    if record is not None and not record.merged:
        raise ValueError("the model is adapted already; call merge or unadapt first")
    if inside := [name for name, _ in model.named_modules() if "pelt_" in name]:
        raise ValueError(f"a part of the model is adapted already ({inside[0]}); unadapt it first")
    sites = find_sites(model, config)
    trained = set(trained_names(model, config))
    parts = build_parts(model, config, sites)
    required = {name: p.requires_grad for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    shortcuts = install(model, config, sites, parts)
    model.pelt_record = AdapterRecord(config, required, shortcuts)  # type: ignore[assignment]
    return model


def trainable(model: nn.Module) -> int:
    """Count the numbers that training would change.

    Parameters
    ----------
    model : Module
        Adapted or not.

    Returns
    -------
    int
        Of all parameters that require gradients, shared ones once. For a model with L layers of
        width h and F = 1 for gates, otherwise 0: LoRA of rank r on two layers
        ``L 2 (2 r h + F (h + 1))``, an adapter of width k ``L (2 k h + k + h + F (h + 1))``, a
        prefix of P slots ``L (2 P h + F (h + 1))``, P prompts ``P h + F (h + 1)``.

    Examples
    --------
    >>> trainable(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def unadapt(model: nn.Module, *methods: str) -> nn.Module:
    """Take parts away, in place; without names all of them.

    Parameters
    ----------
    model : Module
        An adapted model.
    *methods : {"lora", "adapter", "prefix", "prompt"}
        What goes. When nothing is left, parameters require gradients as before `adapt`.
        Parameters that ``PELT.train`` named keep what they learned.

    Returns
    -------
    Module
        The given one.

    Raises
    ------
    ValueError
        The model is not adapted, or has no such part.

    Examples
    --------
    >>> layer = adapt(nn.MultiheadAttention(8, 2), PELT(lora=2, prefix=4))
    >>> unadapt(layer, "prefix").pelt_record.config.methods
    ('lora',)
    >>> type(unadapt(layer))
    <class 'torch.nn.modules.activation.MultiheadAttention'>
    """
    record = record_of(model, adapted=True)
    assert record is not None
    if wrong := sorted(set(methods) - set(record.config.methods)):
        raise ValueError(f"methods: the model has no {wrong}; it has {record.config.methods}")
    gone = set(methods) or set(METHODS)
    remove_parts(model, gone)
    rest = set(record.config.methods) - gone
    left: dict[str, Any] = dict.fromkeys(gone, 0)
    if rest or (methods and record.config.train):
        record.config = replace(record.config, **left)
    else:
        restore(model, record)
        del model.pelt_record
    return model


def merge(model: nn.Module) -> nn.Module:
    """Add the changes of weights to the weights, in place; the model is then as it was, retrained.

    Parameters
    ----------
    model : Module
        Adapted with `lora` alone, and without gates or with gates fixed by `fix_gates`.

    Returns
    -------
    Module
        The given one, without any part; parameters require gradients as before `adapt`.

    Raises
    ------
    ValueError
        A gate depends on the input, there is an adapter, a prefix or a prompt, a weight is no
        dense one or shared with another module, or the model was merged already. The model is
        then as it was.

    Examples
    --------
    >>> layer = adapt(nn.MultiheadAttention(8, 2), PELT(lora=2))
    >>> try:
    ...     merge(layer)
    ... except ValueError as error:
    ...     print(str(error).partition(";")[0])
    the model cannot be merged: pelt_query.gate depends on the input (see fix_gates)
    >>> from tensoralg.nn import fix_gates
    >>> type(merge(fix_gates(layer, 0.5)))
    <class 'torch.nn.modules.activation.MultiheadAttention'>
    """
    record = record_of(model, adapted=True)
    assert record is not None
    if reasons := _reasons_not_to_merge(model, record.config):
        raise ValueError(f"the model cannot be merged: {'; '.join(reasons)}")
    with torch.no_grad():
        for module in model.modules():
            for _, delta, weight in changed_weights(module):
                change = delta.matrix()
                assert change is not None
                weight.add_(change.to(weight.dtype))
                for parameter in delta.delta.parameters():
                    parameter.zero_()  # whoever shares weights and parts does not add it again
    config = record.config
    unadapt(model)
    model.pelt_record = AdapterRecord(config, {}, {}, merged=True)  # type: ignore[assignment]
    return model


def _reasons_not_to_merge(model: nn.Module, config: PELT) -> list[str]:
    """List what stands against merging."""
    reasons = [
        f"{name}={getattr(config, name)} is no change of a weight"
        for name in config.methods
        if name != "lora"
    ]
    if "lora" not in config.methods:
        reasons.append("there is no lora")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    mergeable = 0
    for name, module in model.named_modules():
        for child, delta, weight in changed_weights(module):
            mergeable += 1
            where = f"{name}.{child}".lstrip(".")
            change = delta.matrix()
            base = weight if weight._base is None else weight._base
            if change is None:
                reasons.append(f"{where}.gate depends on the input (see fix_gates)")
            elif not bool(torch.isfinite(change).all()):
                reasons.append(f"{where} is not finite")
            if owners.get(id(base), 1) > 1:
                reasons.append(f"the weight of {name!r} is shared with another module")
    changes = sum(isinstance(module, WeightDelta) for module in model.modules())
    if changes > mergeable:
        reasons.append("a layer's weight is no dense matrix of its own (such as a TTLinear)")
    return reasons
