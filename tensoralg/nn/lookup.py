"""Rows of a table in tensor-train matrix form: merged tables, gathers, batched products."""

import math
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from tensoralg.nn.core_products import merge_left, merge_right

__all__ = [
    "gather_groups",
    "gather_pairs",
    "gather_slices",
    "merged_tables",
    "row_digits",
    "table_root_mean_square",
    "whole_table",
]

# rows for each slice of the right table from which on large products are faster than many small
# ones, and how much filling up may add
_LEAST_PER_GROUP = 16
_LARGEST_WASTE = 1.6


def row_digits(ids: Tensor, row_shape: Sequence[int]) -> list[Tensor]:
    """Split numbers of rows into one index for every mode.

    Parameters
    ----------
    ids : Tensor of int, shape (u,)
        Numbers of rows, not negative.
    row_shape : sequence of int, length d
        Modes, the slowest first.

    Returns
    -------
    list of Tensor of int, d of shape (u,)
        Below their modes, but for the first where a number is too large.

    Examples
    --------
    >>> [digit.tolist() for digit in row_digits(torch.tensor([0, 5, 6]), (2, 3))]
    [[0, 1, 2], [0, 2, 0]]
    """
    digits: list[Tensor] = []
    for v in reversed(row_shape[1:]):
        digits.insert(0, ids % v)
        ids = torch.div(ids, v, rounding_mode="floor")
    return [ids, *digits]


def merged_tables(
    cores: Sequence[Tensor], row_shape: Sequence[int], column_shape: Sequence[int], split: int
) -> tuple[Tensor, Tensor]:
    """Merge the cores on both sides of a bond.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, v_k e_k, r_k)
        The train.
    row_shape, column_shape : sequence of int, length d
        The v and the e.
    split : int
        Number of cores on the left side; at most d.

    Returns
    -------
    left : Tensor, shape (v_1 e_1 .. v_s, e_s r_s)
        Left as the product of the cores comes, so that nothing is copied.
    right : Tensor, shape (v_{s+1} .. v_d, r_s, e_{s+1} .. e_d)
        A slice for each combination of row indices; (1, 1, 1) where no cores are left.

    Examples
    --------
    >>> cores = [torch.ones(1, 6, 4), torch.ones(4, 6, 1)]
    >>> [tuple(t.shape) for t in merged_tables(cores, (2, 3), (3, 2), 1)]
    [(2, 12), (3, 4, 2)]
    """
    left = merge_left(cores[:split])
    bond = left.shape[1]
    left = left.reshape(-1, column_shape[split - 1] * bond)
    if split == len(cores):
        return left, left.new_ones(1, 1, 1)
    rows, columns = row_shape[split:], column_shape[split:]
    right = merge_right(cores[split:])
    pairs = [n for pair in zip(rows, columns, strict=True) for n in pair]
    right = right.reshape(bond, *pairs)
    right = right.permute(*range(1, right.ndim, 2), 0, *range(2, right.ndim, 2))
    return left, right.reshape(prod(rows), bond, prod(columns))


def gather_pairs(
    left: Tensor,
    right: Tensor,
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    split: int,
    digits: Sequence[Tensor],
) -> Tensor:
    """Gather a slice of each merged table for every row and multiply the pairs.

    Parameters
    ----------
    left, right : Tensor
        As from `merged_tables`.
    row_shape, column_shape : sequence of int, length d
        The modes.
    split : int
        Number of cores on the left side.
    digits : sequence of Tensor of int, d of shape (u,)
        As from `row_digits`.

    Returns
    -------
    Tensor, shape (u, prod(column_shape))
        The rows.
    """
    count, width = digits[0].shape[0], prod(column_shape[:split])
    lefts = left.index_select(0, _left_places(row_shape, column_shape, digits[:split]))
    if split == len(row_shape):
        return lefts.reshape(count, width)
    rights = right.index_select(0, _joined(row_shape[split:], digits[split:]))
    lefts = lefts.reshape(count, width, right.shape[1])
    return torch.bmm(lefts, rights).reshape(count, prod(column_shape))


def gather_groups(
    left: Tensor,
    right: Tensor,
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    split: int,
    digits: Sequence[Tensor],
) -> tuple[Tensor, Tensor] | None:
    """Multiply all rows that share a slice of the right table at once.

    Parameters
    ----------
    left, right : Tensor
        As from `merged_tables`.
    row_shape, column_shape : sequence of int, length d
        The modes.
    split : int
        Number of cores on the left side.
    digits : sequence of Tensor of int, d of shape (u,)
        As from `row_digits`, of distinct rows.

    Returns
    -------
    rows : Tensor, shape (w, prod(column_shape))
        The rows in the order of their groups, which are filled up to one size.
    places : Tensor of int, shape (u,)
        Where in `rows` each row stands.

    Notes
    -----
    None is returned where the groups are too few or too uneven for this to be faster than
    `gather_pairs`. The right slices are never copied, and the products are large ones.
    """
    count, groups = digits[0].shape[0], right.shape[0]
    if split == len(row_shape) or count < _LEAST_PER_GROUP * groups:
        return None
    group = _joined(row_shape[split:], digits[split:])
    counts = torch.bincount(group, minlength=groups)
    size = int(counts.max())
    if size * groups > _LARGEST_WASTE * count:
        return None
    order = torch.argsort(group)
    shifts = torch.arange(groups, device=group.device) * size - (torch.cumsum(counts, 0) - counts)
    places = torch.empty_like(order)
    places[order] = torch.arange(count, device=group.device) + shifts[group[order]]
    # the places that are left over stand for row 0 and are never read
    spread = [
        digit.new_zeros(groups * size).index_copy(0, places, digit) for digit in digits[:split]
    ]
    lefts = left.index_select(0, _left_places(row_shape, column_shape, spread))
    rows = torch.bmm(lefts.reshape(groups, -1, right.shape[1]), right)
    return rows.reshape(groups * size, prod(column_shape)), places


def _left_places(
    row_shape: Sequence[int], column_shape: Sequence[int], digits: Sequence[Tensor]
) -> Tensor:
    """Find the rows of the left table, which count v_1, e_1, v_2, .., v_s: all e of each row."""
    count, places = digits[0].shape[0], digits[0][:, None]
    for v, e, digit in zip(row_shape[1:], column_shape, digits[1:], strict=False):
        columns = torch.arange(e, device=places.device)
        places = (places[:, :, None] * e + columns).reshape(count, -1) * v + digit[:, None]
    return places.reshape(-1)


def _joined(row_shape: Sequence[int], digits: Sequence[Tensor]) -> Tensor:
    """Join digits to one number, the first the slowest."""
    number = digits[0]
    for v, digit in zip(row_shape[1:], digits[1:], strict=True):
        number = number * v + digit
    return number


def gather_slices(
    cores: Sequence[Tensor], row_shape: Sequence[int], digits: Sequence[Tensor]
) -> Tensor:
    """Gather a slice of every core for every row and multiply them.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, v_k e_k, r_k)
        The train.
    row_shape : sequence of int, length d
        The v.
    digits : sequence of Tensor of int, d of shape (u,)
        As from `row_digits`.

    Returns
    -------
    Tensor, shape (u, e_1 .. e_d)
        The rows.
    """
    count = digits[0].shape[0]
    rows: Tensor | None = None
    for core, v, digit in zip(cores, row_shape, digits, strict=True):
        r, n, s = core.shape
        places = torch.arange(r, device=digit.device) * v + digit[:, None]
        slices = core.reshape(r * v, -1).index_select(0, places.reshape(-1))
        slices = slices.reshape(count, r, (n // v) * s)
        rows = (slices if rows is None else torch.bmm(rows, slices)).reshape(count, -1, s)
    assert rows is not None
    return rows.reshape(count, -1)


def whole_table(
    cores: Sequence[Tensor], row_shape: Sequence[int], column_shape: Sequence[int]
) -> Tensor:
    """Multiply all cores to the table.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, v_k e_k, r_k)
        The train.
    row_shape, column_shape : sequence of int, length d
        The v and the e.

    Returns
    -------
    Tensor, shape (prod(row_shape), prod(column_shape))
        The table with its padding.

    Examples
    --------
    >>> whole_table([torch.ones(1, 6, 4), torch.ones(4, 6, 1)], (2, 3), (3, 2)).shape
    torch.Size([6, 6])
    """
    table = merge_left(cores)
    table = table.reshape([n for pair in zip(row_shape, column_shape, strict=True) for n in pair])
    table = table.permute(*range(0, table.ndim, 2), *range(1, table.ndim, 2))
    return table.reshape(prod(row_shape), prod(column_shape))


def table_root_mean_square(
    cores: Sequence[Tensor], row_shape: Sequence[int], column_shape: Sequence[int]
) -> float:
    """Root mean square of the table's entries, without ever building it.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, v_k e_k, r_k)
        The train.
    row_shape, column_shape : sequence of int, length d
        The v and the e.

    Returns
    -------
    float
        In double precision, padding included.

    Examples
    --------
    >>> table_root_mean_square([torch.ones(1, 6, 4), torch.ones(4, 6, 1)], (2, 3), (3, 2))
    4.0
    """
    squares = torch.ones(1, 1, dtype=torch.float64, device=cores[0].device)
    for core in cores:
        wide = core.double()
        squares = torch.einsum("ab,anc,bnd->cd", squares, wide, wide)
    return math.sqrt(float(squares) / prod(row_shape) / prod(column_shape))
