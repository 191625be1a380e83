"""Training flags of a model, put aside for a while and put back one by one."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


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
