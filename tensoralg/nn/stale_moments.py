"""Optimizers that remember moments of cores whose ranks came from elsewhere forget them.

A layer that takes other ranks over from a state knows no optimizer. So every optimizer, before a
step, looks at such layers: where its moments of a core have another shape, all that it remembers
of the layer's cores belongs to the ranks before, and goes. An optimizer whose own state was loaded
too has moments of the right shapes, and keeps them.
"""

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensoralg.nn.core_moments import forget_moments

if TYPE_CHECKING:
    from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["forget_stale_moments"]

_logger = logging.getLogger("tensoralg.nn")
# for each layer the optimizers that have looked at it since its ranks changed
_looked: WeakKeyDictionary["TensorizedLayer", WeakSet[torch.optim.Optimizer]] = WeakKeyDictionary()
_handles: list[Any] = []


def forget_stale_moments(layer: "TensorizedLayer") -> None:
    """Have optimizers forget, at their next step, what they remember of a layer's old ranks.

    Parameters
    ----------
    layer : TensorizedLayer
        Whose cores have other shapes now.

    Notes
    -----
    PyTorch would stop at the first step with a message about the sizes of two tensors, or, in
    some fused kernels, read past the end of one.
    """
    _looked[layer] = WeakSet()
    if not _handles:  # nothing is looked at in programs that never load other ranks
        _handles.append(register_optimizer_step_pre_hook(_look))


def _look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Look for moments of other shapes before a step."""
    for layer, done in list(_looked.items()):
        if optimizer in done:
            continue
        done.add(optimizer)
        parameters = layer._dependencies()
        if not any(_is_stale(optimizer, parameter) for parameter in parameters):
            continue
        kind = type(layer).__name__
        _logger.warning(
            "moments of a %s belong to other ranks than %s: forgotten", kind, layer.ranks
        )
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.state.clear()
            optimizer._numel_cache = None
        for parameter in parameters:
            forget_moments(optimizer, parameter, parameter.shape)


def _is_stale(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    """Tell whether an optimizer remembers something of a parameter in another shape."""
    if isinstance(optimizer, torch.optim.LBFGS):  # one flat vector of all parameters
        owned = optimizer._params
        now = sum(p.numel() for p in owned)
        return any(p is parameter for p in owned) and optimizer._numel_cache not in (None, now)
    whole = tuple(parameter.shape)
    factored = {"row_var": (*whole[:-1], 1), "col_var": (*whole[:-2], 1, *whole[-1:])}
    return any(
        tuple(value.shape) != factored.get(name, whole)
        for name, value in optimizer.state.get(parameter, {}).items()
        if torch.is_tensor(value) and value.ndim
    )
