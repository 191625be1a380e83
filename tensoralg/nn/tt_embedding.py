"""An embedding whose table is a tensor train in matrix form."""

import math
from collections.abc import Sequence
from operator import index
from typing import Self, SupportsIndex

import torch
from torch import Tensor, nn

from tensoralg.core.validation import positive_integer
from tensoralg.nn.factor_cache import records_graph
from tensoralg.nn.layer_shapes import default_ranks, table_shape
from tensoralg.nn.lookup import (
    gather_groups,
    gather_pairs,
    gather_slices,
    merged_tables,
    row_digits,
    table_root_mean_square,
    whole_table,
)
from tensoralg.nn.parameters import full_precision
from tensoralg.nn.planner import Plan, plan_lookup
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.tied_products import table_of_factors
from tensoralg.nn.weight_train import table_cores

__all__ = ["TTMEmbedding"]

_MANY_TOKENS = 1 << 12


class TTMEmbedding(TensorizedLayer):
    """Embedding whose table is a tensor train in matrix form.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns of the table; any numbers (the modes are padded where they have no near-
        balanced factors; padded rows are never returned).
    rank : int or sequence of int, optional
        As for `TTLinear`.
    row_shape, column_shape : int or sequence of int, optional
        Modes that rows and columns are split into, or how many; as many of one as of the other.
    padding_idx : int, optional
        A row that is zero and gets no gradient; counted from the end where negative.
    dtype : torch.dtype, optional
        Of the cores.
    device : torch.device or str, optional
        Of the cores.

    Attributes
    ----------
    cores : ParameterList
        Shapes (r_{k-1}, v_k, e_k, r_k): modes of rows and of columns.

    Raises
    ------
    ShapeError
        Modes whose product is too small, different numbers of modes, or ranks that do not fit.
    TypeError
        A padding row that is no integer.
    ValueError
        A padding row that does not exist.

    Notes
    -----
    Every distinct row is computed once: the cores are merged to two tables, a slice of each is
    gathered for every row, and one batched product gives the rows [1]_; for few rows, a slice of
    every core is gathered instead (`explain` shows it). In eval mode without gradients the merged
    tables are kept. The root mean square of the initial table is 1, as ``nn.Embedding`` has it.
    Under autocast the rows keep the dtype of the cores, as those of ``nn.Embedding`` do.

    References
    ----------
    .. [1] Z. Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive
       Tensor Optimization", NeurIPS 2024, arXiv:2405.14377.

    Examples
    --------
    >>> table = TTMEmbedding(30522, 768, rank=32)
    >>> table(torch.tensor([[0, 7], [7, 30521]])).shape
    torch.Size([2, 2, 768])
    >>> table.row_shape, table.column_shape, table.compressed_parameters
    ((31, 31, 32), (6, 4, 32), 165696)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rank: int | Sequence[int] | None = None,
        row_shape: int | Sequence[int] | None = None,
        column_shape: int | Sequence[int] | None = None,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        num_embeddings = positive_integer("num_embeddings", num_embeddings)
        embedding_dim = positive_integer("embedding_dim", embedding_dim)
        rows, columns = table_shape(num_embeddings, embedding_dim, row_shape, column_shape)
        sizes = tuple(v * e for v, e in zip(rows, columns, strict=True))
        ranks = default_ranks(sizes, rank, num_embeddings * embedding_dim)
        shapes = list(zip(ranks[:-1], rows, columns, ranks[1:], strict=True))
        super().__init__(shapes, dtype=dtype, device=device)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.row_shape, self.column_shape = rows, columns
        self.padding_idx = _padding_row(padding_idx, num_embeddings)
        self.dense_parameters = num_embeddings * embedding_dim
        self.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The table, (num_embeddings, embedding_dim), computed anew; quantized if the cores are."""
        shapes = self.row_shape, self.column_shape
        if self.quantizers is None:
            table = whole_table(self.train_cores(), *shapes)
        else:  # of the same quantized factors as the rows that are looked up
            split = self._recorded_plan[1]
            table = table_of_factors(*self._tables(split), *shapes, split)
        table = table[: self.num_embeddings, : self.embedding_dim]
        if self.padding_idx is None:
            return table
        keep = torch.ones(self.num_embeddings, 1, dtype=table.dtype, device=table.device)
        keep[self.padding_idx] = 0.0
        return table * keep

    def kept_weight(self) -> Tensor:
        """Return `weight`; kept in eval mode."""
        table: Tensor = self._factors("table", lambda: self.weight, self._may_keep())
        return table

    def reset_parameters(self) -> None:
        """Draw new cores; the entries of the table have mean square 1, padding left out."""
        self._draw_cores(1.0, self._root_mean_square)

    def _root_mean_square(self) -> float:
        """Measure the table's entries, padding of the modes included."""
        return table_root_mean_square(self.train_cores(), self.row_shape, self.column_shape)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Look up rows.

        Parameters
        ----------
        input : Tensor of int, shape (...)
            Numbers of rows.

        Returns
        -------
        Tensor, shape (..., embedding_dim)
            The rows.

        Raises
        ------
        IndexError
            A number outside 0 .. num_embeddings - 1. In a compiled or exported graph the lookup
            itself fails, with that backend's error.
        TypeError
            Numbers that are no integers.
        """
        if input.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"input must be int64 or int32; got {input.dtype}")
        ids = input.reshape(-1).long()
        with full_precision(input.device.type):
            if _records_graph(ids):
                rows = self._rows_in_graph(ids)
            else:
                self._check(ids)
                distinct, places = torch.unique(ids, return_inverse=True)
                rows = self._distinct_rows(distinct, places)
        return self._quantized("output", rows.reshape(*input.shape, self.embedding_dim))

    def _check(self, ids: Tensor) -> None:
        """Raise an IndexError that names the first number that is no row."""
        wrong = (ids < 0) | (ids >= self.num_embeddings)
        if bool(wrong.any()):
            raise IndexError(
                f"input must lie in 0 .. {self.num_embeddings - 1}; got {int(ids[wrong][0])}"
            )

    def _distinct_rows(self, ids: Tensor, places: Tensor) -> Tensor:
        """Compute the rows of ascending, valid numbers; the result takes them in this order."""
        keep = self._may_keep()
        plan, split = self._plan(ids.shape[0], keep)
        if self.quantizers is not None:  # whose scales belong to one pair of tables
            split = self._recorded_plan[1]
        rows, slots = self._compute_rows(ids, plan.chosen, split, keep, ids.device.type == "cpu")
        if self.padding_idx is not None:
            place = (ids == self.padding_idx).nonzero().reshape(-1)
            if place.shape[0]:
                rows = rows.index_fill(0, place if slots is None else slots[place], 0.0)
        return rows.index_select(0, places if slots is None else slots[places])

    def _rows_in_graph(self, ids: Tensor) -> Tensor:
        """Rows by steps that depend on no value; a wrong number addresses what does not exist."""
        beyond = math.prod(self.row_shape)
        wrong = (ids < 0) | (ids >= self.num_embeddings)
        plan, split = self._recorded_plan
        ids = torch.where(wrong, beyond, ids)
        rows, _ = self._compute_rows(ids, plan.chosen, split, False, False)
        if self.padding_idx is not None:
            rows = torch.where((ids == self.padding_idx)[:, None], 0.0, rows)
        return rows

    def _compute_rows(
        self, ids: Tensor, route: str, split: int, keep: bool, may_group: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute rows by a route; with them their places where they stand in another order."""
        if route == "dense" and self.quantizers is None:
            return self.kept_weight().index_select(0, ids), None
        digits, shapes = row_digits(ids, self.row_shape), (self.row_shape, self.column_shape)
        if route == "slices" and self.quantizers is None:
            rows = gather_slices(self.train_cores(), self.row_shape, digits)
            return rows[:, : self.embedding_dim], None
        left, right = self._factors(split, lambda: self._tables(split), keep)
        if may_group and (groups := gather_groups(left, right, *shapes, split, digits)):
            return groups[0][:, : self.embedding_dim], groups[1]
        rows = gather_pairs(left, right, *shapes, split, digits)
        return rows[:, : self.embedding_dim], None

    def _tables(self, split: int) -> tuple[Tensor, Tensor]:
        """Merge the cores on both sides of a bond."""
        cores = self._forward_cores()
        left, right = merged_tables(cores, self.row_shape, self.column_shape, split)
        return self._quantized("left", left), self._quantized("right", right)

    def _plan(self, tokens: int, keep: bool) -> tuple[Plan, int]:
        """Plan for a number of distinct rows."""
        return plan_lookup(
            self.row_shape,
            self.column_shape,
            self.ranks,
            tokens=tokens,
            num_embeddings=self.num_embeddings,
            embedding_dim=self.embedding_dim,
            cached=keep,
        )

    def _cores_changed(self) -> None:
        """Bring up to date what depends on the ranks."""
        super()._cores_changed()
        # in a graph for any number of rows: what is best for some thousands
        self._recorded_plan = self._plan(_MANY_TOKENS, False)

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Embedding,
        *,
        rank: int | Sequence[int] | None = None,
        rtol: float | None = None,
        row_shape: int | Sequence[int] | None = None,
        column_shape: int | Sequence[int] | None = None,
    ) -> Self:
        """Factorise the table of a dense embedding.

        Parameters
        ----------
        embedding : nn.Embedding
            The layer; it is not changed, and nothing is shared with it.
        rank : int or sequence of int, optional
            Largest ranks.
        rtol : float, optional
            Largest relative error of the table in the Frobenius norm. Without `rank` and `rtol`
            the factorisation is exact, which is rarely smaller than the table.
        row_shape, column_shape : int or sequence of int, optional
            As for the constructor.

        Returns
        -------
        TTMEmbedding
            With the dtype, the device, the mode and the padding row of `embedding`.

        Raises
        ------
        TypeError
            No ``nn.Embedding``.
        ValueError
            A table that is not finite, or an embedding with `max_norm` or `scale_grad_by_freq`,
            which have no counterpart here.

        Notes
        -----
        Tables of trained models have hardly any structure of low rank: at a fourteenth of its
        size such a table loses most of its norm. Train the cores, or distil.

        The padding row is zero here. ``nn.Embedding`` returns whatever its own holds, which is
        not zero in some trained models: their masks have to keep it out.

        Examples
        --------
        >>> dense = nn.Embedding(10, 4)
        >>> table = TTMEmbedding.from_embedding(dense)
        >>> ids = torch.arange(10)
        >>> bool(torch.allclose(table(ids), dense(ids), atol=1e-5))
        True
        """
        if not isinstance(embedding, nn.Embedding):
            raise TypeError(f"embedding must be an nn.Embedding; got {type(embedding).__name__}")
        for name in ("max_norm", "scale_grad_by_freq"):
            if getattr(embedding, name):
                raise ValueError(f"embedding has {name} set, which a tensor train cannot follow")
        weight = embedding.weight.detach()
        table = cls(
            embedding.num_embeddings,
            embedding.embedding_dim,
            rank=1,
            row_shape=row_shape,
            column_shape=column_shape,
            padding_idx=embedding.padding_idx,
            device="meta",  # nothing is drawn
        )
        ranks = None if rank is None else default_ranks(table.mode_sizes, rank, 0)
        cores = table_cores(weight, table.row_shape, table.column_shape, ranks=ranks, rtol=rtol)
        table._adopt(cores, embedding.weight)
        return table.train(embedding.training)

    def to_embedding(self) -> nn.Embedding:
        """Build the dense embedding with the same rows; it shares nothing with this layer."""
        return nn.Embedding(
            self.num_embeddings,
            self.embedding_dim,
            padding_idx=self.padding_idx,
            _weight=self.weight.detach().clone(),
        ).train(self.training)

    def explain(self, tokens: int) -> Plan:
        """Show how the layer looks up rows and what the other ways would cost.

        Parameters
        ----------
        tokens : int
            Number of distinct rows.

        Returns
        -------
        Plan
            Printing it shows a table. In eval mode merging the cores counts nothing.

        Examples
        --------
        >>> TTMEmbedding(30522, 768, rank=32).explain(2000).chosen
        'gather'
        """
        return self._plan(positive_integer("tokens", tokens), not self.training)[0]

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, row_shape={self.row_shape}, "
            f"column_shape={self.column_shape}, ranks={self.ranks}, "
            f"padding_idx={self.padding_idx}"
        )


def _records_graph(ids: Tensor) -> bool:
    """Whether a graph is being recorded, so that no step may depend on values."""
    if records_graph() or torch._C._functorch.is_functorch_wrapped_tensor(ids):
        return True  # vmap has no values either
    return ids.is_cuda and torch.cuda.is_current_stream_capturing()


def _padding_row(padding_idx: int | None, count: int) -> int | None:
    """Count the number of the padding row from the start."""
    if padding_idx is None:
        return None
    if not isinstance(padding_idx, SupportsIndex):
        raise TypeError(f"padding_idx must be an integer; got {padding_idx!r}")
    padding_idx = index(padding_idx)
    if not -count <= padding_idx < count:
        raise ValueError(f"padding_idx must lie in {-count} .. {count - 1}; got {padding_idx}")
    return padding_idx % count
