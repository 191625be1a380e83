"""Operations of dense layers and of the tensorized layers that take their place."""

from torch import Tensor, nn

from tensoralg.nn.tt_convolution import TTConvolution
from tensoralg.nn.tt_embedding import TTMEmbedding
from tensoralg.nn.tt_linear import TTLinear

__all__ = ["dense_operations", "tensorized_operations"]


def dense_operations(layer: nn.Module, tokens: int) -> int:
    """Count the floating-point operations of a dense layer's forward pass.

    Parameters
    ----------
    layer : nn.Module
        A linear layer, an embedding or a convolution.
    tokens : int
        Rows of the input; for a convolution positions of its output.

    Returns
    -------
    int
        Two for each entry of the weight and token; none for an embedding.

    Examples
    --------
    >>> dense_operations(nn.Linear(3, 4), 10)
    240
    """
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Embedding) or not isinstance(weight, Tensor):
        return 0
    return 2 * tokens * weight.numel()


def tensorized_operations(layer: TTLinear | TTMEmbedding | TTConvolution, tokens: int) -> int:
    """Count the floating-point operations of a tensorized layer's forward pass.

    Parameters
    ----------
    layer : TTLinear, TTMEmbedding or TTConvolution
        The layer; in training mode the merging of its cores is counted.
    tokens : int
        Rows of the input; distinct rows of a table; for a convolution positions of its output.

    Returns
    -------
    int
        Those of the route that the layer takes.

    Examples
    --------
    >>> tensorized_operations(TTConvolution(8, 8, (3, 3), rank=2), 100)
    13600
    """
    if isinstance(layer, TTConvolution):
        return 2 * tokens * layer.compressed_parameters
    return layer.explain(tokens).route.operations
