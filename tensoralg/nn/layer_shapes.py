"""Modes and ranks that a tensorized layer takes where the caller leaves them open."""

from collections.abc import Sequence
from typing import Any

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_shapes import cap_ranks, count_parameters, plan_shape
from tensoralg.core.validation import positive_integer

__all__ = ["default_factors", "default_ranks", "layer_shape", "table_shape"]

_DEFAULT_RANK = 32


def default_factors(size: int) -> int:
    """Choose the number of modes that an index is split into.

    Parameters
    ----------
    size : int
        Number of values of the index.

    Returns
    -------
    int
        One below 8, two below 128, else three.

    Examples
    --------
    >>> [default_factors(n) for n in (7, 64, 768)]
    [1, 2, 3]
    """
    return 1 + (size >= 8) + (size >= 128)


def layer_shape(
    name: str, size: int, shape: int | Sequence[int] | None, *, factors: int | None = None
) -> tuple[int, ...]:
    """Modes of one side of a layer.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    size : int
        Number of features or rows.
    shape : int, sequence of int, or None
        Number of near-balanced modes, the modes themselves, or the default.
    factors : int, optional
        Number of modes that is taken, or demanded of a given shape.

    Returns
    -------
    tuple of int
        Ascending where it was planned; the product is at least `size`.

    Raises
    ------
    ShapeError
        Modes whose product is below `size`, or another number of modes than demanded.
    TypeError, ValueError
        No positive integers.

    Examples
    --------
    >>> layer_shape("in_shape", 768, None), layer_shape("in_shape", 768, 2)
    ((8, 8, 12), (24, 32))
    """
    if shape is None:
        return plan_shape(size, factors or default_factors(size))
    modes: tuple[int, ...]
    if not isinstance(shape, Sequence):
        modes = plan_shape(size, positive_integer(name, shape))
    else:
        modes = tuple(positive_integer(f"{name}[{k}]", n) for k, n in enumerate(shape))
    product = 1
    for mode in modes:
        product *= mode
    if not modes or product < size:
        raise ShapeError(f"the product of {name} must be at least {size}; got {modes}")
    if factors is not None and len(modes) != factors:
        raise ShapeError(f"{name} must have {factors} modes; got {modes}")
    return modes


def default_ranks(
    shape: Sequence[int], ranks: int | Sequence[int] | None, dense_parameters: int
) -> tuple[int, ...]:
    """All bonds of a train, capped at what can be of use.

    Parameters
    ----------
    shape : sequence of int
        Its modes; for a matrix form rows times columns of each.
    ranks : int, sequence of int, or None
        As in `cap_ranks`. None is the largest number up to 32 with which the cores hold at most
        half as many numbers as the dense weight; full ranks where none does.
    dense_parameters : int
        Numbers in the dense weight.

    Returns
    -------
    tuple of int, length d + 1
        The bonds.

    Examples
    --------
    >>> default_ranks((12, 8, 8, 8, 8, 12), None, 768 * 768)
    (1, 12, 32, 32, 32, 12, 1)
    >>> default_ranks((2, 2), None, 4)
    (1, 2, 1)
    """
    if ranks is not None:
        return cap_ranks(shape, _plain(ranks))
    for rank in range(_DEFAULT_RANK, 0, -1):
        capped = cap_ranks(shape, rank)
        if 2 * count_parameters(shape, capped) <= dense_parameters:
            return capped
    return cap_ranks(shape, None)


def table_shape(
    count: int,
    width: int,
    row_shape: int | Sequence[int] | None,
    column_shape: int | Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Modes of a table's rows and columns, as many of one as of the other.

    Parameters
    ----------
    count, width : int
        Numbers of rows and columns.
    row_shape, column_shape : int, sequence of int, or None
        Modes, or how many.

    Returns
    -------
    rows, columns : tuple of int
        Products at least `count` and `width`.

    Raises
    ------
    ShapeError
        Modes whose product is too small, or different numbers of modes.

    Notes
    -----
    Planned columns split into two sides of about equal size, so that a slice of either side
    costs the same to gather; inside a side the smaller modes stand at the middle of the train,
    where cores have a rank on both sides.

    Examples
    --------
    >>> table_shape(30522, 768, None, None)
    ((31, 31, 32), (6, 4, 32))
    """
    factors: int | None = None
    for shape in (row_shape, column_shape):
        if shape is not None and factors is None:
            factors = len(shape) if isinstance(shape, Sequence) else shape
    factors = default_factors(count) if factors is None else factors
    rows = layer_shape("row_shape", count, row_shape, factors=factors)
    columns = layer_shape("column_shape", width, column_shape, factors=factors)
    if isinstance(column_shape, Sequence) or factors == 1:
        return rows, columns
    near = -(-factors // 2)
    small, large = plan_shape(width, 2)
    return rows, (*plan_shape(small, near)[::-1], *plan_shape(large, factors - near))


def _plain(ranks: Any) -> int | Sequence[int]:
    """Turn any sequence into a tuple."""
    return tuple(ranks) if hasattr(ranks, "__len__") else ranks
