"""Splits of the coordinates into two blocks, and how many components each split has room for.

A *split* ``(p, k)`` puts k coordinates into a block S and the others into T. Monomials of degree
up to p over S index the rows of a flattening, monomials over T its columns.
"""

from math import comb
from typing import Literal, get_args

from tensoralg.core.monomials import number_of_monomials
from tensoralg.core.validation import positive_integer

__all__ = ["Form", "feasible_splits", "largest_rank", "split_sides"]

Form = Literal["affine", "homogeneous", "power"]


def split_sides(dimension: int, order: int, split: tuple[int, int], form: Form) -> tuple[int, int]:
    """Count the rows of a split's flattening, and its columns without one coordinate of T.

    Parameters
    ----------
    dimension, order : int
        d and m.
    split : tuple of int
        Degree p over the block S, and its number k < d of coordinates.
    form : {"homogeneous", "affine", "power"}
        Which monomials are used: square-free of the full degrees, beside a leading coordinate of
        its own; square-free up to these degrees; all up to these degrees.

    Returns
    -------
    tuple of int
        The split has room for as many components as the smaller of the two.

    Raises
    ------
    ValueError
        An unknown form.

    Examples
    --------
    >>> split_sides(15, 3, (1, 7), "affine"), split_sides(15, 3, (1, 7), "homogeneous")
    ((8, 8), (7, 6))
    """
    if form not in get_args(Form):
        raise ValueError(
            f"form must be one of {', '.join(map(repr, get_args(Form)))}, got {form!r}"
        )
    p, k = split
    others, degree = dimension - k - 1, order - p - 1
    if form == "homogeneous":
        return comb(k, p), comb(max(others - 1, 0), degree)
    powers = form == "power"
    return (
        number_of_monomials(k, p, powers=powers),
        number_of_monomials(others, degree, powers=powers),
    )


def largest_rank(dimension: int, order: int, form: Form) -> int:
    """Largest number of components that some split has room for.

    Parameters
    ----------
    dimension, order : int
        d and m.
    form : {"homogeneous", "affine", "power"}
        As in `split_sides`.

    Returns
    -------
    int
        0 where no split has room for one.

    Examples
    --------
    >>> largest_rank(15, 3, "affine"), largest_rank(15, 3, "homogeneous")
    (8, 6)
    """
    sides = (split_sides(dimension, order, split, form) for split in _splits(dimension, order))
    return max(map(min, sides), default=0)


def feasible_splits(dimension: int, order: int, rank: int, form: Form) -> list[tuple[int, int]]:
    """List every split with room for `rank` components, roomiest first.

    Parameters
    ----------
    dimension, order, rank : int
        d, m and r >= 1.
    form : {"homogeneous", "affine", "power"}
        As in `split_sides`.

    Returns
    -------
    list of tuple of int
        Pairs ``(p, k)``; empty when `rank` exceeds `largest_rank`. Among equals the one whose
        larger side is largest comes first, then the smallest p, then the smallest k.

    Raises
    ------
    ValueError
        A rank below 1, or an unknown form.

    Examples
    --------
    >>> feasible_splits(15, 3, 8, "affine"), feasible_splits(15, 3, 9, "affine")
    ([(1, 7)], [])
    """
    r = positive_integer("rank", rank)
    sides = {s: split_sides(dimension, order, s, form) for s in _splits(dimension, order)}
    found = [split for split in sides if min(sides[split]) >= r]
    return sorted(found, key=lambda s: (-min(sides[s]), -max(sides[s]), *s))


def _splits(d: int, m: int) -> list[tuple[int, int]]:
    return [(p, k) for p in range(1, m - 1) for k in range(d)]
