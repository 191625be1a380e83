"""An output layer that shares the table of an embedding in tensor-train form."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import positive_integer
from tensoralg.nn.factor_cache import records_graph
from tensoralg.nn.planner import Plan
from tensoralg.nn.tied_products import plan_tied, times_factors
from tensoralg.nn.tt_embedding import TTMEmbedding

__all__ = ["TiedOutput"]


class TiedOutput(nn.Module):
    """Linear layer whose weight is the table of an embedding: ``y = x E^T + b``.

    Parameters
    ----------
    embedding : TTMEmbedding
        The embedding itself, not a copy: both layers train the same cores.
    bias : Tensor, shape (num_embeddings,), optional
        A bias; a copy is kept, and is trained unless it is a frozen parameter.

    Raises
    ------
    ShapeError
        A bias or an input of another size.
    TypeError
        No `TTMEmbedding`.

    Notes
    -----
    The input is multiplied with the two merged tables of the embedding, one after the other, or
    with the whole table where that is cheaper (`explain` shows it). In eval mode without
    gradients the merged tables are kept. Under quantization-aware training these are the
    quantized tables from which the embedding takes its rows.

    Examples
    --------
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
            learns = bias.requires_grad or not isinstance(bias, nn.Parameter)
            self.bias = nn.Parameter(bias.detach().clone(), requires_grad=learns)

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
        keep = self.embedding._may_keep()
        # in a recorded graph, for any number of tokens, the whole table
        plan, split = (None, 1) if records_graph() else self._plan(input.numel() // width, keep)
        if plan is None or plan.chosen == "dense":
            return functional.linear(input, self.embedding.kept_weight(), self.bias)
        logits = self._times_tables(input, split, keep)
        return logits if self.bias is None else logits + self.bias.to(logits.dtype)

    def _times_tables(self, input: Tensor, split: int, keep: bool) -> Tensor:  # noqa: A002
        """Multiply with one merged table after the other."""
        table = self.embedding
        left, right = table._factors(split, lambda: table._tables(split), keep)
        shapes, width = (table.row_shape, table.column_shape), prod(table.column_shape)
        inputs = input.reshape(prod(input.shape[:-1]), table.embedding_dim)
        if width > table.embedding_dim:
            inputs = functional.pad(inputs, (0, width - table.embedding_dim))
        logits = times_factors(inputs, left, right, *shapes, split)[:, : table.num_embeddings]
        if table.padding_idx is not None:
            place = torch.tensor([table.padding_idx], device=logits.device)
            logits = logits.index_fill(1, place, 0.0)
        return logits.reshape(*input.shape[:-1], table.num_embeddings)

    def _plan(self, tokens: int, keep: bool) -> tuple[Plan, int]:
        """Plan for a number of inputs; quantizers' scales belong to one pair of tables."""
        table = self.embedding
        return plan_tied(
            table.row_shape,
            table.column_shape,
            table.ranks,
            tokens=tokens,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            cached=keep,
            split=None if table.quantizers is None else table._recorded_plan[1],
        )

    def explain(self, tokens: int) -> Plan:
        """Show how the layer computes its output and what the other way would cost.

        Parameters
        ----------
        tokens : int
            Rows of the input.

        Returns
        -------
        Plan
            Printing it shows a table. In eval mode merging the cores counts nothing.

        Examples
        --------
        >>> TiedOutput(TTMEmbedding(30522, 768, rank=32)).explain(64).chosen
        'factors'
        """
        return self._plan(positive_integer("tokens", tokens), not self.training)[0]
