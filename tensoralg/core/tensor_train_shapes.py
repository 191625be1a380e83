"""Shapes and ranks of tensor trains: how an index is split into modes, how far ranks can go."""

import math
from collections.abc import Iterator, Sequence

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer, positive_integer

__all__ = ["cap_ranks", "count_parameters", "full_rank_bounds", "plan_shape"]

_LARGEST_RATIO = 2  # of two factors that still count as near-balanced
_LARGEST_SEARCH = 2**20  # divisors that are tried; more would take seconds


def plan_shape(size: int, factors: int, *, multiple: int = 1) -> tuple[int, ...]:
    """Split an index of any size into near-balanced modes, padding it where it has no such factors.

    Parameters
    ----------
    size : int
        Number of values of the index, at least 1; it may be prime.
    factors : int
        Number of modes, at least 1.
    multiple : int, default 1
        Every mode is a multiple of this number, as hardware may want it.

    Returns
    -------
    tuple of int, length `factors`
        In ascending order. Their product is `size` itself where `size` has factors of which none
        is larger than twice another: the most balanced ones. Otherwise it is the smallest product
        of factors that differ by at most one `multiple` which is not below `size`; the values of
        the index from `size` on are then padding.

    Raises
    ------
    TypeError
        An argument that is no integer.
    ValueError
        One below 1.

    Notes
    -----
    A train has about ``r**2 * sum(factors)`` entries, and the sum is smallest when all factors
    are equal; at a ratio of two it is at most six percent larger. That is less than what padding
    costs at run time, so exact factors come first.

    Examples
    --------
    >>> plan_shape(30522, 3), plan_shape(768, 3), plan_shape(7919, 2)
    ((31, 31, 32), (8, 8, 12), (89, 89))
    >>> plan_shape(30522, 3, multiple=8)
    (32, 32, 32)
    """
    size, factors = positive_integer("size", size), positive_integer("factors", factors)
    multiple = positive_integer("multiple", multiple)
    unit = multiple**factors
    reduced = -(-size // unit)
    exact = _exact_factors(reduced, factors) if reduced * unit == size else None
    return tuple(multiple * factor for factor in exact or _padded_factors(reduced, factors))


def full_rank_bounds(shape: Sequence[int]) -> tuple[int, ...]:
    """Largest ranks that a tensor of a shape can need.

    Parameters
    ----------
    shape : sequence of int
        Numbers of values of the d modes; for the matrix form rows times columns of each.

    Returns
    -------
    tuple of int, length d + 1
        ``min(n_1 .. n_k, n_{k+1} .. n_d)``, the smaller side of each unfolding, at least 1.

    Raises
    ------
    TypeError
        A number that is no integer.
    ValueError
        A negative number.

    Examples
    --------
    >>> full_rank_bounds((12, 8, 8, 8, 8, 12))
    (1, 12, 96, 768, 96, 12, 1)
    """
    sizes = [nonnegative_integer(f"shape[{k}]", n) for k, n in enumerate(shape)]
    return tuple(
        max(1, min(math.prod(sizes[:k]), math.prod(sizes[k:]))) for k in range(len(sizes) + 1)
    )


def cap_ranks(shape: Sequence[int], ranks: int | Sequence[int] | None) -> tuple[int, ...]:
    """Bring wanted ranks into the form of all d + 1 bonds, none larger than it can be of use.

    Parameters
    ----------
    shape : sequence of int
        Numbers of values of the d modes; for the matrix form rows times columns of each.
    ranks : int, sequence of int, or None
        One number for every bond, or one for each of the d - 1 inner bonds or of all d + 1.
        None asks for the largest.

    Returns
    -------
    tuple of int, length d + 1
        Ones at both ends; no bond is larger than the cores beside it can fill,
        ``r_k <= min(r_{k-1} n_k, n_{k+1} r_{k+1})``.

    Raises
    ------
    ShapeError
        Another number of ranks, or ranks at the ends that are not 1.
    TypeError
        A rank that is no integer.
    ValueError
        A rank below 1.

    Examples
    --------
    >>> cap_ranks((4, 3, 5), 100), cap_ranks((4, 3, 5), [2, 9])
    ((1, 4, 5, 1), (1, 2, 5, 1))
    """
    bounds = full_rank_bounds(shape)
    modes = len(bounds) - 1
    result = list(bounds)
    for k, rank in enumerate(_as_all_bonds(modes, ranks)):
        if rank is not None:
            result[k] = min(result[k], rank)
    for k in range(1, modes):
        result[k] = min(result[k], result[k - 1] * max(1, shape[k - 1]))
    for k in range(modes - 1, 0, -1):
        result[k] = min(result[k], max(1, shape[k]) * result[k + 1])
    return tuple(result)


def count_parameters(shape: Sequence[int], ranks: Sequence[int]) -> int:
    """Count the entries of all cores.

    Parameters
    ----------
    shape : sequence of int, length d
        Numbers of values of the modes; for the matrix form rows times columns of each.
    ranks : sequence of int, length d + 1
        Ranks of all bonds, the ones at the ends included.

    Returns
    -------
    int
        ``sum_k r_{k-1} n_k r_k``.

    Examples
    --------
    >>> count_parameters((4, 3, 5), (1, 2, 5, 1))
    63
    """
    return sum(a * n * b for a, n, b in zip(ranks[:-1], shape, ranks[1:], strict=True))


def _as_all_bonds(modes: int, ranks: int | Sequence[int] | None) -> list[int | None]:
    """One wanted rank for each of the d + 1 bonds, None where nothing is asked."""
    if ranks is None:
        return [None] * (modes + 1)
    if isinstance(ranks, int) or not hasattr(ranks, "__len__"):
        return [positive_integer("ranks", ranks)] * (modes + 1)
    given: list[int | None] = [positive_integer(f"ranks[{k}]", r) for k, r in enumerate(ranks)]
    if len(given) == modes + 1:
        if given[0] != 1 or given[-1] != 1:
            raise ShapeError(f"ranks must begin and end with 1; got {tuple(given)}")
        return given
    if len(given) != modes - 1:
        raise ShapeError(
            f"ranks must be one number, {modes - 1} numbers for the inner bonds or {modes + 1} "
            f"for all; got {len(given)}"
        )
    return [None, *given, None]


def _padded_factors(size: int, factors: int) -> tuple[int, ...]:
    """Smallest product, not below the size, of factors that differ by at most one."""
    base = _integer_root(size, factors)
    larger = next(j for j in range(factors + 1) if base ** (factors - j) * (base + 1) ** j >= size)
    return (base,) * (factors - larger) + (base + 1,) * larger


def _exact_factors(size: int, factors: int) -> tuple[int, ...] | None:
    """Most balanced factors of exactly this size, none larger than twice another; or None."""
    candidates = list(_ascending_factors(size, factors, 1, size))
    if not candidates:
        return None
    return min(candidates, key=lambda c: (c[-1] / c[0], sum(c)))


def _ascending_factors(size: int, factors: int, least: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ascending factors of the size between bounds, the last at most twice the first."""
    if factors == 1:
        if least <= size <= most:
            yield (size,)
        return
    root = _integer_root(size, factors)
    start = max(least, -(-root // _LARGEST_RATIO))
    if root - start > _LARGEST_SEARCH:
        return
    for first in range(start, root + 1):
        if size % first == 0:
            bound = min(most, _LARGEST_RATIO * first)
            for rest in _ascending_factors(size // first, factors - 1, first, bound):
                yield (first, *rest)


def _integer_root(size: int, degree: int) -> int:
    """Largest integer whose power of this degree does not exceed the size."""
    if degree == 1:
        return size
    low, high = 1, 1 << -(-size.bit_length() // degree)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= size:
            low = middle
        else:
            high = middle - 1
    return low
