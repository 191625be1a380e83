"""PyTorch's Transformer encoders read dense weights past the layers that own them."""

from torch import nn

from tensoralg.nn.quantized_layers import QuantizedLayer
from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["leave_shortcuts"]


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
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(part, TensorizedLayer | QuantizedLayer) for part in module.modules()
        ):
            module.use_nested_tensor = False
        elif isinstance(module, nn.TransformerEncoderLayer) and any(
            isinstance(part, QuantizedLayer) for part in module.modules()
        ):
            module.activation_relu_or_gelu = 0  # PyTorch's own mark of one that cannot be fused
