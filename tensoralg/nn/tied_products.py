"""Products with a whole table in tensor-train matrix form, from its two merged tables.

No table of all rows is needed: with ``E[(i, j), (a, b)] = sum_r L[i, a, r] R[j, r, b]`` the input
is multiplied with R first, then with L.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tensoralg.core.tensor_train_shapes import count_parameters
from tensoralg.nn.planner import Plan, Route, chain_cost, cheapest_plan

__all__ = ["plan_tied", "table_of_factors", "times_factors"]


@functools.lru_cache(maxsize=1024)
def plan_tied(
    row_shape: tuple[int, ...],
    column_shape: tuple[int, ...],
    ranks: tuple[int, ...],
    *,
    tokens: int,
    num_embeddings: int,
    embedding_dim: int,
    cached: bool = False,
    split: int | None = None,
) -> tuple[Plan, int]:
    """Choose how inputs are multiplied with all rows of a table.

    Parameters
    ----------
    row_shape, column_shape : tuple of int, length d
        Modes of the rows' numbers and of the columns.
    ranks : tuple of int, length d + 1
        All bonds.
    tokens : int
        Number of inputs.
    num_embeddings, embedding_dim : int
        Rows and columns of the table.
    cached : bool, default False
        Whether merged tables are kept from call to call (eval mode).
    split : int, optional
        Number of cores in the first of the two tables; the cheapest by default.

    Returns
    -------
    plan : Plan
        "factors" multiplies with one merged table after the other; "dense" builds the whole table.
    split : int
        Number of cores in the first table of "factors".

    Examples
    --------
    >>> plan, split = plan_tied((31, 31, 32), (6, 4, 32), (1, 32, 32, 1), tokens=64,
    ...     num_embeddings=30522, embedding_dim=768)
    >>> plan.chosen, split
    ('factors', 2)
    """
    sizes = tuple(v * e for v, e in zip(row_shape, column_shape, strict=True))
    product = 2 * tokens * num_embeddings * embedding_dim
    touched = num_embeddings * embedding_dim + tokens * (num_embeddings + embedding_dim)
    whole = (0, 0) if cached else chain_cost(sizes, ranks)[:2]
    dense = Route(
        "dense",
        whole[0] + product,
        # besides the product the table is written twice: by the last core, and in order
        whole[1] + touched + (0 if cached else 2 * num_embeddings * embedding_dim),
        num_embeddings * embedding_dim,
        1 if cached else len(sizes) + 1,
    )
    routes = [dense]
    chosen = split or 1
    if len(sizes) > 1:
        options = [split] if split else range(1, len(sizes))
        found = [
            (_factors_route(row_shape, column_shape, ranks, tokens, s, cached), s) for s in options
        ]
        best, chosen = min(found, key=lambda pair: pair[0].cost)
        routes.insert(0, best)
    parameters = count_parameters(sizes, ranks)
    dense_parameters = num_embeddings * embedding_dim
    return cheapest_plan(tuple(routes), tokens, parameters, dense_parameters, cached), chosen


def _factors_route(
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    ranks: Sequence[int],
    tokens: int,
    split: int,
    cached: bool,
) -> Route:
    """Two merged tables, the first of so many cores."""
    sizes = [v * e for v, e in zip(row_shape, column_shape, strict=True)]
    rows = math.prod(row_shape[:split]), math.prod(row_shape[split:])
    near, far, bond = math.prod(column_shape[:split]), math.prod(column_shape[split:]), ranks[split]
    tables = bond * (rows[0] * near + rows[1] * far)
    between = tokens * near * bond * rows[1]
    operations = 2 * tokens * near * far * bond * rows[1] + 2 * between * rows[0]
    moved = tables + 2 * between + tokens * (near * far + rows[0] * rows[1])
    if not cached:
        left = chain_cost(sizes[:split], ranks[: split + 1])
        right = chain_cost(sizes[split:][::-1], ranks[split:][::-1])
        operations, moved = operations + left[0] + right[0], moved + left[1] + right[1]
    return Route("factors", operations, moved, tables + between, 2 if cached else len(ranks))


def times_factors(
    inputs: Tensor,
    left: Tensor,
    right: Tensor,
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    split: int,
) -> Tensor:
    """Multiply inputs with every row of a table.

    Parameters
    ----------
    inputs : Tensor, shape (u, prod(column_shape))
        With zeros where the columns are padding.
    left, right : Tensor
        As from `tensoralg.nn.lookup.merged_tables`.
    row_shape, column_shape : sequence of int, length d
        The modes.
    split : int
        Number of cores on the left side.

    Returns
    -------
    Tensor, shape (u, prod(row_shape))
        The products, those with padded rows too.

    Examples
    --------
    >>> from tensoralg.nn.lookup import merged_tables
    >>> shapes = (2, 3), (3, 2)
    >>> tables = merged_tables([torch.ones(1, 6, 4), torch.ones(4, 6, 1)], *shapes, 1)
    >>> times_factors(torch.ones(1, 6), *tables, *shapes, 1)
    tensor([[24., 24., 24., 24., 24., 24.]])
    """
    first = _separated(left, right, row_shape, column_shape, split)
    rows, near, bond = first.shape
    others, _, far = right.shape
    count = inputs.shape[0]
    second = right.permute(2, 1, 0).reshape(far, bond * others)
    between = torch.matmul(inputs.reshape(count * near, far), second)
    product = torch.matmul(
        first.reshape(rows, near * bond), between.reshape(count, near * bond, others)
    )
    return product.reshape(count, rows * others)


def table_of_factors(
    left: Tensor, right: Tensor, row_shape: Sequence[int], column_shape: Sequence[int], split: int
) -> Tensor:
    """Multiply two merged tables to the whole one.

    Parameters
    ----------
    left, right : Tensor
        As from `tensoralg.nn.lookup.merged_tables`.
    row_shape, column_shape : sequence of int, length d
        The modes.
    split : int
        Number of cores on the left side.

    Returns
    -------
    Tensor, shape (prod(row_shape), prod(column_shape))
        The table with its padding.

    Examples
    --------
    >>> from tensoralg.nn.lookup import merged_tables
    >>> shapes = (2, 3), (3, 2)
    >>> tables = merged_tables([torch.ones(1, 6, 4), torch.ones(4, 6, 1)], *shapes, 1)
    >>> table_of_factors(*tables, *shapes, 1).shape
    torch.Size([6, 6])
    """
    first = _separated(left, right, row_shape, column_shape, split)
    rows, near, bond = first.shape
    others, _, far = right.shape
    second = right.permute(1, 0, 2).reshape(bond, others * far)
    table = (first.reshape(rows * near, bond) @ second).reshape(rows, near, others, far)
    return table.permute(0, 2, 1, 3).reshape(rows * others, near * far)


def _separated(
    left: Tensor, right: Tensor, row_shape: Sequence[int], column_shape: Sequence[int], split: int
) -> Tensor:
    """Bring the left table, whose modes take turns, into the form (rows, columns, bond)."""
    pairs = zip(row_shape[:split], column_shape[:split], strict=True)
    modes = [n for pair in pairs for n in pair]
    table = left.reshape(*modes, right.shape[1])
    order = (*range(0, 2 * split, 2), *range(1, 2 * split, 2), 2 * split)
    rows, near = math.prod(row_shape[:split]), math.prod(column_shape[:split])
    return table.permute(order).reshape(rows, near, right.shape[1])
