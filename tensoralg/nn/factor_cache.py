"""Factors merged from parameters, kept until a parameter changes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["FactorCache", "records_graph"]


def records_graph() -> bool:
    """Tell whether operations are being recorded for later (compilation, export, tracing).

    Returns
    -------
    bool
        True where no step may depend on a value.
    """
    return torch.compiler.is_compiling() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]


class FactorCache:
    """Values computed from parameters, computed again once a parameter has changed.

    A change is seen by autograd's version counters, by a new storage and by a new Parameter
    object. Copies and pickles of a cache are empty: a module that owns one can be deep-copied
    and saved at any time.

    Notes
    -----
    As with autograd itself, arithmetic in place on ``parameter.data`` goes unseen; modules clear
    their cache in ``train()`` and ``eval()``, and `clear` does it at any other time.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> cache = FactorCache()
    >>> cache.get("double", [weight], lambda: 2 * weight).tolist()
    [2.0, 2.0]
    >>> with torch.no_grad():
    ...     _ = weight.add_(1.0)
    >>> cache.get("double", [weight], lambda: 2 * weight).tolist()
    [4.0, 4.0]
    """

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._state: list[tuple[Tensor, Tensor, int]] = []

    def clear(self) -> None:
        """Forget everything."""
        self._values, self._state = {}, []

    def get(self, key: Any, parameters: Iterable[Tensor], compute: Callable[[], Any]) -> Any:
        """Return a kept value, or compute and keep it.

        Parameters
        ----------
        key : hashable
            Name of the value.
        parameters : iterable of Tensor
            All that the value depends on, the same for every key.
        compute : callable
            Called without arguments, with gradients off.

        Returns
        -------
        object
            The value; it carries no gradient.
        """
        present = list(parameters)
        unchanged = len(present) == len(self._state) and all(
            now is then and now._version == version and now.data_ptr() == alias.data_ptr()
            for now, (then, alias, version) in zip(present, self._state, strict=True)
        )
        if not unchanged:
            # the alias keeps the storage alive: its address cannot be given to another tensor
            self._values = {}
            self._state = [(p, p.detach(), p._version) for p in present]
        if key not in self._values:
            # values made in inference mode could not be used in a later gradient
            with torch.inference_mode(False), torch.no_grad():
                self._values[key] = compute()
        return self._values[key]

    @staticmethod
    def may_keep(parameters: Iterable[Tensor]) -> bool:
        """Tell whether values of these parameters can be kept at this moment.

        Parameters
        ----------
        parameters : iterable of Tensor
            All that the values depend on.

        Returns
        -------
        bool
            False while a graph is being recorded (autograd through the parameters, compilation,
            tracing) and for parameters whose changes cannot be seen.
        """
        if records_graph():
            return False
        recording = torch.is_grad_enabled()
        return all(
            # exactly a parameter: transforms put other tensors in its place
            type(p) is torch.nn.Parameter
            and not (p.is_meta or p.is_inference() or (recording and p.requires_grad))
            for p in parameters
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "FactorCache":
        return FactorCache()

    def __reduce__(self) -> tuple[Any, ...]:
        return FactorCache, ()
