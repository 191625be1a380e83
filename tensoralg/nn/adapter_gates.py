"""Gates of an adapted model: what they were for a sample, and constants in their place."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn.adapter_installation import CHILDREN, record_of
from tensoralg.nn.gated_parts import Gate
from tensoralg.nn.module_modes import evaluating
from tensoralg.nn.pelt import METHODS

__all__ = ["fix_gates", "gate_values"]


def _gates(model: nn.Module) -> dict[str, Gate]:
    """List the gates of an adapted model by name."""
    record_of(model, adapted=True)
    return {name: gate for name, gate in model.named_modules() if isinstance(gate, Gate)}


def _method(name: str) -> str:
    """Tell which method a gate belongs to."""
    child = name.split(".")[-2]
    return next(method for method, children in CHILDREN.items() if child in children)


def fix_gates(model: nn.Module, value: float | Mapping[str, float] | None) -> nn.Module:
    """Put constants in the place of gates, or let them depend on the input again.

    Parameters
    ----------
    model : Module
        An adapted model with gates.
    value : float, mapping of str to float, or None
        From 0 (the part is off) to 1 (it counts fully): for all gates, for those of a method
        ("lora", "adapter", "prefix", "prompt") or for one gate by its name, as `gate_values`
        has it. None frees all gates.

    Returns
    -------
    Module
        The given one.

    Raises
    ------
    ValueError
        A value outside [0, 1], no such gate, or none at all.

    Examples
    --------
    >>> from tensoralg.nn import PELT, adapt
    >>> layer = adapt(nn.MultiheadAttention(8, 2), PELT(lora=2, prefix=4))
    >>> layer = fix_gates(layer, {"prefix": 0.0})
    >>> [name for name, gate in layer.named_modules() if getattr(gate, "constant", None) == 0.0]
    ['pelt_prefix.gate']
    """
    gates = _gates(model)
    if not gates:
        raise ValueError("the model has no gates: it was adapted with gate=False")
    chosen: dict[str, float | None] = {}
    values = value if isinstance(value, Mapping) else dict.fromkeys(METHODS, value)
    for key, constant in values.items():
        if constant is not None and not 0 <= constant <= 1:
            raise ValueError(f"value must lie in [0, 1]; got {constant} for {key!r}")
        hits = [n for n in gates if n == key or _method(n) == key]
        if not hits and isinstance(value, Mapping):
            raise ValueError(f"value: no gate is named {key!r}; there are {sorted(gates)}")
        chosen.update(dict.fromkeys(hits, None if constant is None else float(constant)))
    for name, constant in chosen.items():
        gates[name].fix(constant)
    return model


def gate_values(model: nn.Module, *inputs: Any, **named: Any) -> dict[str, Tensor]:
    """Run a model and return what its gates were.

    Parameters
    ----------
    model : Module
        An adapted model; run in eval mode and without gradients.
    *inputs, **named
        Its arguments.

    Returns
    -------
    dict of str to Tensor, shape (B,)
        By the gates' names; shape (1,) for a constant.

    Raises
    ------
    ValueError
        The model is not adapted.

    Examples
    --------
    >>> from tensoralg.nn import PELT, adapt
    >>> layer = adapt(nn.MultiheadAttention(8, 2, batch_first=True), PELT(lora=2, prefix=4))
    >>> x = torch.ones(3, 5, 8)
    >>> {name: value.tolist() for name, value in gate_values(layer, x, x, x).items()}
    {'pelt_query.gate': [0.5, 0.5, 0.5], 'pelt_value.gate': [0.5, 0.5, 0.5], \
'pelt_prefix.gate': [0.5, 0.5, 0.5]}
    """
    found: dict[str, Tensor] = {}
    names = {gate: name for name, gate in _gates(model).items()}

    def keep(gate: nn.Module, _: Any, output: Tensor) -> None:
        found[names[gate]] = output.exp().flatten()  # type: ignore[index]

    handles = [gate.register_forward_hook(keep) for gate in names]
    try:
        with evaluating(model), torch.no_grad():
            model(*inputs, **named)
    finally:
        for handle in handles:
            handle.remove()
    return {name: found[name] for name in names.values() if name in found}
