"""Work on the layers of a model: flags and parts that are put back, names in messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["evaluating", "naming", "restored_on_error"]

# the dictionaries that PyTorch keeps in every module: parameters, children, hooks
_DICTIONARIES = frozenset(k for k, v in vars(nn.Module()).items() if isinstance(v, dict))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model in eval mode inside the context; afterwards every module's flag is as before.

    Parameters
    ----------
    model : Module
        Any; parts that were in eval mode on purpose stay so.

    Examples
    --------
    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put a layer's name before the message of a ValueError.

    Parameters
    ----------
    name : str
        The layer's name in its model; empty for the model itself.

    Examples
    --------
    >>> with naming("head"):
    ...     raise ValueError("no")
    Traceback (most recent call last):
    ValueError: layer 'head': no
    """
    try:
        yield
    except ValueError as error:
        if not name:
            raise
        raise type(error)(f"layer {name!r}: {error}") from error


@contextmanager
def restored_on_error(model: nn.Module) -> Iterator[None]:
    """Put a model back together as it was where the block inside raises.

    Parameters
    ----------
    model : Module
        Its modules' classes, attributes, parameters, buffers and children are put back, in their
        order and as the same objects; numbers and the caller's own dictionaries that were changed
        in place are not.

    Examples
    --------
    >>> model = nn.Sequential(nn.ReLU())
    >>> try:
    ...     with restored_on_error(model):
    ...         model[0] = nn.Tanh()
    ...         raise ValueError
    ... except ValueError:
    ...     model[0]
    ReLU()
    """
    held = [
        (module, type(module), vars(module).copy(), _contents(module)) for module in model.modules()
    ]
    try:
        yield
    except BaseException:
        for module, kind, attributes, contents in held:
            module.__class__ = kind  # a parametrization gives a module a class of its own
            vars(module).clear()
            vars(module).update(attributes)
            for dictionary, items in contents:  # the same objects: handles of hooks know them
                dictionary.clear()
                dictionary.update(items)
        raise


def _contents(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pair PyTorch's dictionaries in a module with copies; those of its user stay its user's."""
    own = [v for k, v in vars(module).items() if k in _DICTIONARIES and isinstance(v, dict)]
    return [(dictionary, dictionary.copy()) for dictionary in own]
