"""PyTorch's Transformer encoders read dense weights past the layers that own them."""

import weakref
from typing import Any

from torch import nn

from tensoralg.nn.quantized_layers import QuantizedLayer
from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["call_layers", "leave_shortcuts", "plain_tensors"]

# PyTorch's own marks of what may be nested, and of layers that may be fused
_MARKS: tuple[tuple[type[nn.Module], str, Any], ...] = (
    (nn.TransformerEncoder, "use_nested_tensor", False),
    (nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
)


def leave_shortcuts(model: nn.Module) -> None:
    """Keep encoders with tensorized or quantized layers from going past these layers.

    Parameters
    ----------
    model : Module
        Its ``nn.TransformerEncoder`` with such layers inside, and ``nn.TransformerEncoderLayer``
        with quantized ones, are changed in place.

    Notes
    -----
    In eval mode and with a mask of padding they would build the weights of their first layer at
    every call, to find out whether its sequences could be nested. The fused kernel of the single
    ``nn.TransformerEncoderLayer`` takes no layer that has hooks, and tensorized ones have one.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2)
    >>> model.layers[0].linear1 = TTLinear(16, 32, rank=4)
    >>> leave_shortcuts(model)
    >>> model.use_nested_tensor
    False
    """
    for module in model.modules():
        kinds: tuple[type[nn.Module], ...] = (QuantizedLayer,)
        if isinstance(module, nn.TransformerEncoder):
            kinds = (TensorizedLayer, QuantizedLayer)
        if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer) and any(
            isinstance(part, kinds) for part in module.modules()
        ):
            call_layers(module)


def call_layers(module: nn.Module) -> dict[str, Any]:
    """Have one of PyTorch's encoders or encoder layers call what it holds, in eval mode too.

    Parameters
    ----------
    module : Module
        Changed in place if it is an ``nn.TransformerEncoder`` or ``nn.TransformerEncoderLayer``.

    Returns
    -------
    dict of str to object
        The attributes that were changed, as they were.

    Examples
    --------
    >>> call_layers(nn.TransformerEncoderLayer(16, 2, 32))
    {'activation_relu_or_gelu': 1}
    >>> call_layers(nn.Linear(2, 2))
    {}
    """
    before = {}
    for kind, mark, off in _MARKS:
        if isinstance(module, kind) and hasattr(module, mark):
            before[mark] = getattr(module, mark)
            setattr(module, mark, off)
    return before


def plain_tensors(model: nn.Module) -> list[Any]:
    """Have encoders keep padded batches as they are, until the results are removed.

    Parameters
    ----------
    model : Module
        In eval mode its ``nn.TransformerEncoder`` would else turn a batch with a padding mask
        into a nested tensor: layers with hooks cannot take it, nor does a mask fit it.

    Returns
    -------
    list
        One for each encoder; ``remove`` puts its own choice back.

    Examples
    --------
    >>> part = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> encoder = nn.TransformerEncoder(part, 1)
    >>> (handle,) = plain_tensors(encoder)
    >>> encoder.use_nested_tensor
    False
    >>> handle.remove()
    >>> encoder.use_nested_tensor
    True
    """
    return [_NestedOff(part) for part in model.modules() if isinstance(part, nn.TransformerEncoder)]


class _NestedOff:
    """An encoder without nested tensors, until `remove`."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        self._encoder, self._before = weakref.ref(encoder), encoder.use_nested_tensor
        encoder.use_nested_tensor = False

    def remove(self) -> None:
        """Put the encoder's own choice back."""
        encoder = self._encoder()
        if encoder is not None:
            encoder.use_nested_tensor = self._before
