"""How many singular values of a bond are kept: by a tolerance, a largest rank, or a budget."""

import math
from collections.abc import Sequence
from typing import Any

from tensoralg.core.tensor_train_shapes import cap_ranks, count_parameters
from tensoralg.core.tensor_train_unfoldings import as_float
from tensoralg.core.validation import nonnegative_integer

__all__ = ["allocate_ranks", "check_tolerance", "droppable_square", "kept_rank", "tolerated_ranks"]


def check_tolerance(rtol: float | None) -> float | None:
    """Return a relative tolerance as a Python number, or raise unless it is one of at least 0.

    Parameters
    ----------
    rtol : float or None
        The tolerance.

    Returns
    -------
    float or None
        The same.

    Raises
    ------
    TypeError
        No real number.
    ValueError
        A negative number or NaN.

    Examples
    --------
    >>> check_tolerance(1e-3)
    0.001
    """
    if rtol is None:
        return None
    given: object = rtol
    scalar = hasattr(given, "__float__") and not isinstance(given, bool)
    if not scalar or getattr(given, "ndim", 0) != 0:
        raise TypeError(f"rtol must be a number of at least 0; got {given!r}")
    if not rtol >= 0:
        raise ValueError(f"rtol must be at least 0; got {rtol}")
    return float(rtol)


def kept_rank(xp: Any, singular_values: Any, square: float, cap: int) -> tuple[int, float]:
    """Decide how many singular values to keep.

    Parameters
    ----------
    xp : module
        Their namespace.
    singular_values : array, shape (r,)
        Descending, r at least 1.
    square : float
        Largest sum of squares of those that are dropped.
    cap : int
        Largest number that is kept.

    Returns
    -------
    rank : int
        At least 1.
    dropped : float
        Sum of squares of the others.

    Examples
    --------
    >>> import numpy as np
    >>> kept_rank(np, np.array([4.0, 1.0, 1.0]), 1.5, 9)
    (2, 1.0)
    """
    wide = xp.astype(singular_values, xp.float64, copy=False)
    tails = xp.cumulative_sum(xp.flip(wide * wide))  # sums of the last 1, 2, ... squares
    droppable = int(xp.sum(xp.astype(tails <= square, xp.int64)))
    count = int(wide.shape[0])
    rank = max(1, min(count - droppable, cap))
    return rank, as_float(tails[count - rank - 1]) if rank < count else 0.0


def allocate_ranks(
    spectra: Sequence[Sequence[Sequence[float]]],
    sizes: Sequence[Sequence[int]],
    max_parameters: int,
) -> list[tuple[int, ...]]:
    """Share one number of parameters among the bonds of one or many trains.

    Parameters
    ----------
    spectra : sequence over trains of sequence over inner bonds of sequence of float
        Singular values, descending, as `bond_singular_values` gives them; divide them by the
        norm of their train where the trains' sizes should not count.
    sizes : sequence over trains of sequence of int
        Numbers of values of each train's d modes.
    max_parameters : int
        Largest number of entries of all cores together.

    Returns
    -------
    list of tuple of int
        For each train its d + 1 ranks.

    Raises
    ------
    TypeError
        `max_parameters` is no integer.
    ValueError
        Not even ranks 1 are within the number.

    Notes
    -----
    Greedy: again and again the last singular value goes whose square is smallest for every entry
    that its removal frees; in the end those come back for which there is room. A bond keeps at
    least rank 1.

    Examples
    --------
    >>> allocate_ranks([[[2.0, 1.0]], [[3.0, 0.1]]], [[4, 4], [4, 4]], 24)
    [(1, 2, 1), (1, 1, 1)]
    """
    least = sum(sum(train) for train in sizes)
    max_parameters = nonnegative_integer("max_parameters", max_parameters)
    if max_parameters < least:
        raise ValueError(
            f"max_parameters must be at least {least}, the number at ranks 1; got {max_parameters}"
        )
    squares = [[[float(s) ** 2 for s in bond] for bond in train] for train in spectra]
    ranks = [
        list(cap_ranks(size, [max(1, len(bond)) for bond in train]))
        for size, train in zip(sizes, spectra, strict=True)
    ]
    counts = [count_parameters(s, r) for s, r in zip(sizes, ranks, strict=True)]
    offers = [_cheapest(*each) for each in zip(squares, sizes, ranks, strict=True)]
    while sum(counts) > max_parameters:
        t = min(range(len(offers)), key=lambda train: offers[train])
        ranks[t][offers[t][1]] -= 1
        ranks[t] = list(cap_ranks(sizes[t], ranks[t]))
        counts[t] = count_parameters(sizes[t], ranks[t])
        offers[t] = _cheapest(squares[t], sizes[t], ranks[t])
    room = max_parameters - sum(counts)
    while (best := _dearest(squares, sizes, ranks, room)) is not None:
        (t, k), price = best
        ranks[t][k] += 1
        room -= price
    return [tuple(r) for r in ranks]


def tolerated_ranks(
    spectra: Sequence[Sequence[float]], sizes: Sequence[int], caps: Sequence[int], rtol: float
) -> tuple[list[int], list[float]]:
    """Spend a tolerance where it frees most entries.

    Parameters
    ----------
    spectra : sequence over the d - 1 inner bonds of sequence of float
        Singular values, descending, at least one each.
    sizes : sequence of int
        Numbers of values of the d modes.
    caps : sequence of int, length d + 1
        Largest ranks.
    rtol : float
        Largest root of the sum of squares that are given up, relative to the tensor's norm.

    Returns
    -------
    ranks : list of int, length d + 1
        What to cut to.
    reserves : list of float, length d - 1
        For each bond the square that it and the bonds before it may give up together, so that
        enough is left for those after it.

    Notes
    -----
    Greedy: again and again the last singular value goes whose square is smallest for every entry
    that its removal frees, as long as the tolerance has room for one. Where spectra decay slowly,
    as those of weight matrices do, an equal division leaves several times as many entries.

    Examples
    --------
    >>> tolerated_ranks([[3.0, 0.1], [3.0, 0.09, 0.08]], (2, 9, 9), (1, 2, 3, 1), 0.05)[0]
    [1, 2, 1, 1]
    """
    squares = [[float(s) ** 2 for s in bond] for bond in spectra]
    ranks = [1, *(min(c, len(b)) for c, b in zip(caps[1:-1], squares, strict=True)), 1]
    tails = [math.fsum(b[r:]) for b, r in zip(squares, ranks[1:-1], strict=True)]
    # a tolerance of one allows everything: no error of a projection is larger than the tensor
    weight = rtol**2 if rtol < 1 else float(len(squares))
    budget = max((math.fsum(b) for b in squares), default=0.0) * weight
    room = budget - math.fsum(tails)
    while (offer := _cheapest(squares, sizes, ranks, room))[1]:
        k = offer[1]
        ranks[k] -= 1
        room -= squares[k - 1][ranks[k]]
        tails[k - 1] += squares[k - 1][ranks[k]]
    reserves = [budget - math.fsum(tails[k + 1 :]) for k in range(len(tails))]
    return ranks, reserves


def droppable_square(xp: Any, matrix: Any, total: float, allowed: float | None) -> float:
    """Bound the sum of squares of the singular values that a cut may drop.

    Parameters
    ----------
    xp : module
        The matrix's namespace.
    matrix : array, shape (m, n)
        What is cut.
    total : float
        Its squared norm.
    allowed : float or None
        Part of the squared tolerance that the cut may use up; None where there is no tolerance.

    Returns
    -------
    float
        What is allowed, but at least the square of the unit roundoff relative to `total`: less
        changes no digit. Without a tolerance ``100 sqrt(max(m, n))`` times that square: rounding
        errors of singular values stay below it.

    Examples
    --------
    >>> import numpy as np
    >>> droppable_square(np, np.ones((4, 1)), 4.0, None) == 800 * 2.0**-104
    True
    """
    unit = float(total * xp.finfo(matrix.dtype).eps ** 2)
    return 100 * max(matrix.shape) ** 0.5 * unit if allowed is None else max(allowed, unit)


def _cheapest(
    squares: Sequence[Sequence[float]],
    sizes: Sequence[int],
    ranks: Sequence[int],
    room: float = math.inf,
) -> tuple[float, int]:
    """Smallest square that a bond can give up for each entry freed, and the bond; 0 for none."""
    offer = (math.inf, 0)
    for k in range(1, len(ranks) - 1):
        if ranks[k] > 1 and squares[k - 1][ranks[k] - 1] <= room:
            freed = ranks[k - 1] * sizes[k - 1] + sizes[k] * ranks[k + 1]
            offer = min(offer, (squares[k - 1][ranks[k] - 1] / freed, k))
    return offer


def _dearest(
    squares: Sequence[Sequence[Sequence[float]]],
    sizes: Sequence[Sequence[int]],
    ranks: Sequence[Sequence[int]],
    room: int,
) -> tuple[tuple[int, int], int] | None:
    """Train and bond that can gain the largest square within the room, and what it costs."""
    best, place = 0.0, None
    for t, rank in enumerate(ranks):
        for k in range(1, len(rank) - 1):
            price = rank[k - 1] * sizes[t][k - 1] + sizes[t][k] * rank[k + 1]
            if price > room or rank[k] >= len(squares[t][k - 1]):
                continue
            gain = squares[t][k - 1][rank[k]]
            more = [*rank[:k], rank[k] + 1, *rank[k + 1 :]]
            if gain > best and cap_ranks(sizes[t], more) == tuple(more):
                best, place = gain, ((t, k), price)
    return place
