"""PyTorch's fused Transformer encoders read dense weights past the layers that own them."""

import weakref
from typing import Any

from torch import nn

from tensoralg.nn.quantized_layers import QuantizedLayer
from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["leave_shortcuts", "plain_tensors"]


def leave_shortcuts(model: nn.Module) -> None:
    """Have encoders with tensorized or quantized layers call these layers, in eval mode too.

    Parameters
    ----------
    model : Module
        Its ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` with such layers
        inside are changed in place.

    Notes
    -----
    In eval mode without gradients PyTorch hands ``linear1.weight`` and ``linear2.weight`` to one
    kernel: quantizers would not be seen, and the weights would be built anew for every call.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> layer.linear1 = TTLinear(16, 32, rank=4)
    >>> leave_shortcuts(layer)
    >>> layer.activation_relu_or_gelu  # PyTorch's own mark of a layer that cannot be fused
    0
    """
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            continue
        if any(isinstance(part, TensorizedLayer | QuantizedLayer) for part in module.modules()):
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            else:
                module.activation_relu_or_gelu = 0


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
