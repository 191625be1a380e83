"""Hooks that hand layers' inputs on, and what tells which rows of them count."""

import weakref
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Protocol

from torch import Tensor, nn

from tensoralg.nn.input_statistics import Convolution, InputSums

__all__ = ["Listener", "RecentSums", "as_patterns", "fitting_mask", "matches", "remove_hooks"]


class _Hearing(Protocol):
    """Who is told of inputs."""

    def _hear(self, name: str, layer: nn.Module, x: Tensor) -> None: ...


class Listener:
    """A forward hook that hands a layer's input to a calibrator; copies of it do nothing.

    Parameters
    ----------
    calibrator : Calibrator or None
        Referred to weakly.
    name : str
        The layer's name.

    Examples
    --------
    >>> import copy
    >>> import torch
    >>> from tensoralg.nn import Calibrator
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> calibrator = Calibrator(model)
    >>> _ = copy.deepcopy(model)(torch.ones(3, 2))  # a copy is not listened to
    >>> calibrator.rows("0")
    0
    """

    def __init__(self, calibrator: _Hearing | None, name: str) -> None:
        self._calibrator = None if calibrator is None else weakref.ref(calibrator)
        self._name = name

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Hand on the input."""
        calibrator = None if self._calibrator is None else self._calibrator()
        if calibrator is not None:
            calibrator._hear(self._name, layer, args[0] if args else kwargs["input"])

    def __deepcopy__(self, memo: dict[int, Any]) -> "Listener":
        return Listener(None, self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Listener, (None, self._name)


class RecentSums:
    """The sums of the last input, for a next layer that is given the same one.

    Parameters
    ----------
    name : str
        Of the layer that was given the input first.
    layer : Module
        That layer.
    x : Tensor
        The input; referred to weakly.
    mask : Tensor of bool or None
        The tokens that count.
    sums : InputSums
        Over the input.

    Examples
    --------
    >>> import torch
    >>> from tensoralg.nn.input_statistics import input_sums
    >>> query, key, x = nn.Linear(2, 2), nn.Linear(2, 3), torch.ones(4, 2)
    >>> recent = RecentSums("query", query, x, None, input_sums(query, x, None))
    >>> recent.serve("key", key, x, None), recent.serve("value", key, x.clone(), None)
    (True, False)
    """

    def __init__(
        self, name: str, layer: nn.Module, x: Tensor, mask: Tensor | None, sums: InputSums
    ) -> None:
        self.name = name
        self._served = {name}
        self._input, self._mask = weakref.ref(x), mask
        self._state = self._describe(layer, x, mask)
        self.sums = sums

    @staticmethod
    def _describe(layer: nn.Module, x: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
        """Describe all that the sums depend on, but for the tensors themselves."""
        versions = [None if t is None or t.is_inference() else t._version for t in (x, mask)]
        return *versions, isinstance(layer, Convolution)

    def serve(self, name: str, layer: nn.Module, x: Tensor, mask: Tensor | None) -> bool:
        """Tell whether the sums are those of this input, once for each layer.

        Parameters
        ----------
        name : str
            Of the next layer.
        layer : Module
            The next layer.
        x : Tensor
            Its input.
        mask : Tensor of bool or None
            The tokens that count.

        Returns
        -------
        bool
            False, too, for tensors of inference mode, whose changes cannot be seen, and for a
            layer that had these sums before: it is called anew, with what memory shared with
            numpy may hold by now.
        """
        if name in self._served or isinstance(layer, Convolution) or x.is_inference():
            return False
        same = self._input() is x and self._mask is mask
        if not same or self._state != self._describe(layer, x, mask):
            return False
        self._served.add(name)
        return True


def fitting_mask(mask: Tensor | None, name: str, layer: nn.Module, x: Tensor) -> Tensor | None:
    """Choose which rows of a layer's input count.

    Parameters
    ----------
    mask : Tensor of bool, shape (B, T), or None
        The tokens that count.
    name : str
        The layer's name, for the message.
    layer : Module
        The layer.
    x : Tensor
        Its input.

    Returns
    -------
    Tensor of bool or None
        Of the shape of the rows; None where all count.

    Raises
    ------
    ValueError
        The mask says nothing of such an input.
    """
    if mask is None:
        return None
    rows = tuple(x.shape) if isinstance(layer, nn.Embedding) else tuple(x.shape[:-1])
    if not isinstance(layer, Convolution):
        if rows[: mask.ndim] == tuple(mask.shape):
            return mask.reshape(*mask.shape, *(1,) * (len(rows) - mask.ndim)).expand(rows)
        if rows == (mask.numel(),):
            return mask.reshape(-1)
        if len(rows) == 1 and rows[0] == mask.shape[0]:
            return None
    raise ValueError(
        f"mask of shape {tuple(mask.shape)} does not tell which rows of an input of shape "
        f"{tuple(x.shape)} of layer {name!r} count; leave the layer out with exclude"
    )


def matches(patterns: str | Iterable[str], name: str) -> bool:
    """Tell whether a layer's name is one of some patterns.

    Parameters
    ----------
    patterns : str or iterable of str
        Such as ``"encoder.*"``.
    name : str
        The name.

    Returns
    -------
    bool
        Whether one fits.

    Examples
    --------
    >>> matches(("head", "encoder.*"), "encoder.0.query")
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in as_patterns(patterns))


def as_patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Return patterns of names as a tuple: an iterator could be gone through only once.

    Parameters
    ----------
    patterns : str or iterable of str
        As for `matches`.

    Returns
    -------
    tuple of str
        The patterns.

    Examples
    --------
    >>> as_patterns("head")
    ('head',)
    """
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def remove_hooks(handles: Iterable[Any]) -> None:
    """Take hooks away.

    Parameters
    ----------
    handles : iterable
        What registering them returned.
    """
    for handle in handles:
        handle.remove()
