"""Parameters of layers: copies, lists, other shapes, and the precision of their products."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn.core_moments import set_data

__all__ = ["copied", "full_precision", "listed", "resize", "stored_list"]


def full_precision(device_type: str) -> AbstractContextManager[Any]:
    """Switch autocast off for the short products of cores, whose errors would add up.

    Parameters
    ----------
    device_type : str
        Such as "cpu".

    Returns
    -------
    context manager
        One that does nothing where autocast is off.
    """
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def copied(tensor: Tensor) -> nn.Parameter:
    """Make a parameter of a tensor's values.

    Parameters
    ----------
    tensor : Tensor, any shape
        Not shared with the result.

    Returns
    -------
    Parameter, same shape
        It needs a gradient if the tensor does.

    Examples
    --------
    >>> copied(torch.ones(2)).requires_grad
    False
    """
    return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)


def listed(parameters: nn.ParameterList) -> list[Tensor]:
    """List parameters, past the list's slow access unless something stands in their place.

    Parameters
    ----------
    parameters : ParameterList
        Of a module, or what a transform of functions put there.

    Returns
    -------
    list of Tensor
        In order.

    Examples
    --------
    >>> len(listed(nn.ParameterList([torch.ones(2)])))
    1
    """
    present: list[Tensor] = [p for p in parameters._parameters.values() if p is not None]
    return present if len(present) == len(parameters) else list(parameters)


def resize(parameter: Tensor, shape: Sequence[int]) -> None:
    """Give a parameter another shape, as zeros, if it has not got it already.

    Parameters
    ----------
    parameter : Tensor
        A leaf; the object stays.
    shape : sequence of int
        The wanted one.

    Examples
    --------
    >>> weight = nn.Parameter(torch.ones(2))
    >>> resize(weight, (3,))
    >>> weight.tolist()
    [0.0, 0.0, 0.0]
    """
    if tuple(parameter.shape) != tuple(shape):
        set_data(parameter, parameter.data.new_zeros(tuple(shape)))


def stored_list(state_dict: Mapping[str, Any], prefix: str) -> list[Tensor]:
    """List the tensors of a state that are named ``prefix0``, ``prefix1``, ...

    Parameters
    ----------
    state_dict : mapping
        Of a module.
    prefix : str
        What comes before the number.

    Returns
    -------
    list of Tensor
        Up to the first number that is missing.

    Examples
    --------
    >>> stored_list({"cores.0": 1, "cores.1": 2, "cores.3": 4}, "cores.")
    [1, 2]
    """
    found: list[Tensor] = []
    while (value := state_dict.get(f"{prefix}{len(found)}")) is not None:
        found.append(value)
    return found
