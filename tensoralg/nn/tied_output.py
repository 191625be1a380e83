"""An output layer that shares the table of an embedding in tensor-train form."""

from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn.tt_embedding import TTMEmbedding

__all__ = ["TiedOutput"]


class TiedOutput(nn.Module):
    """Linear layer whose weight is the table of an embedding: ``y = x E^T + b``.

    Parameters
    ----------
    embedding : TTMEmbedding
        The embedding itself, not a copy: both layers train the same cores.
    bias : Tensor, shape (num_embeddings,), optional
        A bias; a copy is kept.

    Raises
    ------
    ShapeError
        A bias or an input of another size.
    TypeError
        No `TTMEmbedding`.

    Notes
    -----
    The logits of all rows need the whole table, so it is built for every call in training, and
    kept in eval mode without gradients.

    Examples
    --------
    >>> import torch
    >>> table = TTMEmbedding(100, 16, rank=4)
    >>> output = TiedOutput(table)
    >>> output(torch.zeros(3, 16)).shape
    torch.Size([3, 100])
    >>> sum(p.numel() for p in nn.ModuleList([table, output]).parameters())
    320
    """

    bias: nn.Parameter | None

    def __init__(self, embedding: TTMEmbedding, bias: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(embedding, TTMEmbedding):
            raise TypeError(f"embedding must be a TTMEmbedding; got {type(embedding).__name__}")
        self.embedding = embedding
        if bias is None:
            self.register_parameter("bias", None)
        elif tuple(bias.shape) != (embedding.num_embeddings,):
            expected = (embedding.num_embeddings,)
            raise ShapeError(f"bias must have shape {expected}; got {tuple(bias.shape)}")
        else:
            self.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)

    @property
    def weight(self) -> Tensor:
        """The embedding's table, shape (num_embeddings, embedding_dim), computed anew."""
        return self.embedding.weight

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute the logits of all rows.

        Parameters
        ----------
        input : Tensor, shape (..., embedding_dim)
            Hidden states.

        Returns
        -------
        Tensor, shape (..., num_embeddings)
            The logits.
        """
        width = self.embedding.embedding_dim
        if input.ndim == 0 or input.shape[-1] != width:
            raise ShapeError(f"input must have shape (..., {width}); got {tuple(input.shape)}")
        return functional.linear(input, self.embedding.kept_weight(), self.bias)
