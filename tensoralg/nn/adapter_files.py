"""Adapters without their model, in a file that runs no code when it is read."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.core.errors import PersistenceError
from tensoralg.nn.adapter_installation import record_of
from tensoralg.nn.adapter_sites import trained_names
from tensoralg.nn.adapters import adapt, unadapt
from tensoralg.nn.gated_parts import Gate
from tensoralg.nn.pelt import PELT
from tensoralg.nn.training_state import load_checkpoint, save_checkpoint

__all__ = ["load_adapter", "save_adapter"]

_KIND = "tensoralg adapter"
_TOLERANCE = 1e-2  # a model in half precision is the same model


def save_adapter(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the parts of an adapted model, and what `PELT.train` names, without the model.

    Parameters
    ----------
    model : Module
        An adapted model.
    path : path_like
        The file; its folder must exist. A crash leaves the old file or the new one.

    Raises
    ------
    ValueError
        The model is not adapted, or a number to be written is not finite.

    See Also
    --------
    load_adapter : Read it.

    Examples
    --------
    >>> import copy, pathlib, tempfile
    >>> from tensoralg.nn import PELT, adapt
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "adapter.pt"
    >>> layer = nn.MultiheadAttention(8, 2)
    >>> save_adapter(adapt(copy.deepcopy(layer), PELT(lora=2)), path)
    >>> load_adapter(layer, path).pelt_record.config.lora
    2
    """
    record = record_of(model, adapted=True)
    assert record is not None
    weights = {name: p.detach().cpu().clone() for name, p in _own(model, record.config).items()}
    if wrong := [name for name, value in weights.items() if not bool(value.isfinite().all())]:
        raise ValueError(f"{wrong[0]} has NaN or infinite entries; nothing was written")
    gates = {n: m.constant for n, m in model.named_modules() if isinstance(m, Gate)}
    save_checkpoint(
        path,
        {
            "kind": _KIND,
            "config": {n: _plain(value) for n, value in asdict(record.config).items() if n != "_"},
            "gates": gates,
            "weights": weights,
            "model": _norms(model, set(weights)),
        },
    )


def load_adapter(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Put the parts in a file into a model, in place.

    Parameters
    ----------
    model : Module
        The model that was adapted, as it was before; or adapted already in the same way.
    path : path_like
        A file of `save_adapter`.

    Returns
    -------
    Module
        The given one; only its parts (and what ``PELT.train`` names) require gradients.

    Raises
    ------
    PersistenceError
        The file is torn or no adapter, or belongs to a model of other shapes or other weights
        (norms differ by more than 1 %).
    ValueError
        The model is adapted in another way, or has no place for a part. The model is then as it
        was.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "adapter.pt"
    >>> torch.save({"format": 1}, path)
    >>> try:
    ...     load_adapter(nn.MultiheadAttention(8, 2), path)
    ... except PersistenceError as error:
    ...     print(str(error).partition(" ")[2])
    is not a file of save_adapter
    """
    stored = load_checkpoint(path)
    if stored.get("kind") != _KIND:
        raise PersistenceError(f"{os.fspath(path)} is not a file of save_adapter")
    try:
        config = PELT(**stored["config"])
        gates, weights, norms = stored["gates"], stored["weights"], stored["model"]
        _check_values(gates, weights, norms)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PersistenceError(f"{os.fspath(path)} holds no usable adapter: {error}") from None
    record = record_of(model)
    fresh = record is None or record.merged
    if record is not None and not fresh and record.config != config:
        raise ValueError(f"the model is adapted as {record.config}, the file is for {config}")
    if reason := _foreign(model, norms):
        raise PersistenceError(f"{os.fspath(path)} belongs to another model: {reason}")
    if fresh:
        adapt(model, config)
    try:
        _fill(model, config, gates, weights)
    except PersistenceError as error:
        if fresh:
            unadapt(model)
        raise PersistenceError(f"{os.fspath(path)} does not fit: {error}") from None
    return model


def _own(model: nn.Module, config: PELT) -> dict[str, nn.Parameter]:
    """List the parameters that belong to the adapter."""
    parameters = dict(model.named_parameters())
    parts = [name for name in parameters if ".pelt_" in f".{name}"]
    return {name: parameters[name] for name in (*parts, *trained_names(model, config))}


def _plain(value: Any) -> Any:
    """Turn tuples into lists, which every reader knows."""
    return list(value) if isinstance(value, tuple) else value


def _norms(model: nn.Module, without: set[str]) -> dict[str, list[float]]:
    """Shapes and Frobenius norms of a model's own parameters."""
    return {
        name: [*map(float, p.shape), float(torch.linalg.vector_norm(p.detach().double()))]
        for name, p in model.named_parameters()
        if name not in without and ".pelt_" not in f".{name}"
    }


def _foreign(model: nn.Module, norms: Mapping[str, list[float]]) -> str | None:
    """Why stored norms are those of another model; None where they are not."""
    parameters = dict(model.named_parameters())
    for name, (*shape, norm) in norms.items():
        if name not in parameters:
            return f"this one has no {name!r}"
        present = parameters[name].detach()
        if [float(n) for n in present.shape] != shape:
            sizes = tuple(int(n) for n in shape)
            return f"{name!r} has shape {tuple(present.shape)}, not {sizes}"
        value = float(torch.linalg.vector_norm(present.double()))
        if not abs(value - norm) <= _TOLERANCE * max(norm, 1e-30):
            return f"{name!r} has norm {value:.4g}, not {norm:.4g}"
    return None


def _check_values(gates: Any, weights: Any, norms: Any) -> None:
    """Raise TypeError or ValueError where a part of a file is not what it should be."""
    for name, value in weights.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise TypeError(f"{name} is no tensor of floating-point numbers")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite entries")
    for name, constant in gates.items():
        if constant is not None and not 0 <= constant <= 1:
            raise ValueError(f"{name} is {constant}, not in [0, 1]")
    for name, numbers in norms.items():
        if not numbers or not all(isinstance(n, float) for n in numbers):
            raise ValueError(f"the norm of {name} is no number")


def _fill(
    model: nn.Module, config: PELT, gates: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Copy weights and constants, after everything has been checked."""
    own = _own(model, config)
    if set(own) != set(weights):
        other = sorted(set(own) ^ set(weights))
        raise PersistenceError(f"{other[0]!r} is on one side only")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise PersistenceError(
                f"{name!r} has shape {tuple(weights[name].shape)} in the file, "
                f"{tuple(parameter.shape)} in the model"
            )
    modules = {n: m for n, m in model.named_modules() if isinstance(m, Gate)}
    if set(modules) != set(gates):
        raise PersistenceError("it has other gates")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    for name, gate in modules.items():
        gate.fix(gates[name])
