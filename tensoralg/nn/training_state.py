"""Checkpoints from which training goes on bit by bit: weights, moments, random states, place."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensoralg.core.errors import PersistenceError

__all__ = ["load_checkpoint", "random_state", "save_checkpoint", "set_random_state"]

FORMAT = 1


def random_state(data: Any = None) -> dict[str, Any]:
    """Return the states of all random generators that training may draw from.

    Parameters
    ----------
    data : object, optional
        A data loader; the generators that it or its sampler carries are included.

    Returns
    -------
    dict
        Tensors, lists and numbers only: it can be stored without pickled objects.

    Examples
    --------
    >>> import torch
    >>> state = random_state()
    >>> first = torch.rand(2)
    >>> set_random_state(state)
    >>> torch.equal(first, torch.rand(2))
    True
    """
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - data sets may draw from it
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": [version, list(words), gauss],
        "loaders": [generator.get_state() for generator in _generators(data)],
    }


def set_random_state(state: dict[str, Any], data: Any = None) -> None:
    """Put back what `random_state` returned.

    Parameters
    ----------
    state : dict
        Of `random_state`.
    data : object, optional
        The data loader whose generators were included.

    Raises
    ------
    ValueError
        The loader has another number of generators than the one that was stored.
    """
    generators = _generators(data) if state["loaders"] or data is not None else []
    if len(generators) != len(state["loaders"]):
        raise ValueError(
            f"data has {len(generators)} random generators, the stored state "
            f"{len(state['loaders'])}: training cannot go on with another kind of loader"
        )
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    for generator, value in zip(generators, state["loaders"], strict=True):
        generator.set_state(value)


def _generators(data: Any) -> list[torch.Generator]:
    """List the generators of a loader, its sampler and its batch sampler's sampler; each once."""
    holders = [data, getattr(data, "sampler", None)]
    holders.append(getattr(getattr(data, "batch_sampler", None), "sampler", None))
    found: list[torch.Generator] = []
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash leaves the old file or the new one, never half of one.

    Parameters
    ----------
    path : path_like
        The file; its folder must exist.
    state : dict
        Tensors, numbers, texts, lists and dicts.
    """
    target = Path(path)
    part = target.with_name(target.name + ".part")
    with part.open("wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)


def load_checkpoint(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Read a checkpoint; no code from the file is run.

    Parameters
    ----------
    path : path_like
        A file of `save_checkpoint`.
    device : torch.device or str, default "cpu"
        Where the tensors go.

    Returns
    -------
    dict
        What was stored.

    Raises
    ------
    PersistenceError
        The file is torn, of another format, or not a checkpoint.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for what is no file of its own
        raise PersistenceError(f"{os.fspath(path)} is not a readable checkpoint: {error}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        seen = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise PersistenceError(
            f"{os.fspath(path)} is not a checkpoint of format {FORMAT}; found {seen!r}"
        )
    return state


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to every tensor of nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(change, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(change, item) for item in value)
    return value


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor of nested tuples, lists and dicts, or None."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    if isinstance(items, list | tuple) or isinstance(value, dict):
        for item in items:
            if (found := first_tensor(item)) is not None:
                return found
    return None
