"""Multi-index arithmetic: enumerate, rank and unrank, without a Python loop over entries.

A sorted multi-index ``i1 <= .. <= im`` over ``0 .. n-1`` names one entry of a symmetric tensor of
order m and dimension n. They are numbered lexicographically. With the combinatorial number system
[1]_ the position is ``C(n+m-1, m) - 1 - sum_k C(n-1-i_k+m-k, m-k+1)``, so one table lookup per
index ranks an entry and one binary search per index unranks it.

References
----------
.. [1] D. E. Knuth, The Art of Computer Programming, volume 4A, section 7.2.1.3 (2011).
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.validation import check_range, first_row, integer_array, nonnegative_integer

__all__ = [
    "multi_indices",
    "multiplicities",
    "number_of_multi_indices",
    "pad_multi_indices",
    "rank_multi_indices",
    "rank_square_free",
    "square_free_indices",
    "unrank_multi_indices",
    "unrank_square_free",
]

IndexArray = npt.NDArray[np.int64]

_LARGEST_RANK = 2**63 - 1
_LARGEST_LISTING = 2**30  # integers in one enumerated array: 8 GiB
_LARGEST_CACHED = 2**18  # integers: 2 MiB for each of the cached listings
_LARGEST_TABLE = 2**27  # numbers in one table of binomial coefficients: 1 GiB
_LARGEST_COUNT = 10_000  # bits of an exact count: beyond, it takes long and cannot be shown
_LARGEST_EXACT_ORDER = 20  # 20! is the last factorial that fits int64


def number_of_multi_indices(dimension: int, order: int) -> int:
    """Count the sorted multi-indices of an order: C(dimension + order - 1, order).

    Parameters
    ----------
    dimension : int
        Number n of values that an index takes, at least 0.
    order : int
        Number m of indices, at least 0.

    Returns
    -------
    int
        The exact count (a Python integer, never rounded).

    Raises
    ------
    ValueError
        A negative `dimension` or `order`.
    ProblemTooLargeError
        The count has thousands of digits.

    Examples
    --------
    >>> number_of_multi_indices(3, 2)
    6
    """
    n, m = nonnegative_integer("dimension", dimension), nonnegative_integer("order", order)
    return _combinations(n + m - 1, m) if n else int(m == 0)


def multi_indices(dimension: int, order: int) -> IndexArray:
    """List all sorted multi-indices in lexicographic order.

    Parameters
    ----------
    dimension : int
        Number n of values that an index takes, at least 0.
    order : int
        Number m of indices, at least 0.

    Returns
    -------
    ndarray of int64, shape (C(n+m-1, m), m)
        Read-only; every row is nondecreasing. Order 0 gives shape (1, 0).

    Raises
    ------
    ProblemTooLargeError
        The list would hold more than 2**30 integers.

    Examples
    --------
    >>> multi_indices(2, 2).tolist()
    [[0, 0], [0, 1], [1, 1]]
    """
    n, m = nonnegative_integer("dimension", dimension), nonnegative_integer("order", order)
    size = _check_listing(number_of_multi_indices(n, m), m, f"dimension={n}, order={m}")
    return _cached_listing(n, m) if size <= _LARGEST_CACHED else _listing(n, m)


def rank_multi_indices(indices: npt.ArrayLike, dimension: int) -> IndexArray:
    """Position of sorted multi-indices in the lexicographic list.

    Parameters
    ----------
    indices : array_like of int, shape (..., m)
        Nondecreasing along the last axis, every value in ``0 .. dimension-1``.
    dimension : int
        Number n of values that an index takes.

    Returns
    -------
    ndarray of int64, shape (...)
        ``multi_indices(dimension, m)[rank]`` equals `indices`.

    Raises
    ------
    IndexError
        A value outside ``0 .. dimension-1``.
    ValueError
        A row that is not sorted.
    ProblemTooLargeError
        Positions of this dimension and order do not fit 64 bits.

    Examples
    --------
    >>> rank_multi_indices([[0, 1], [1, 1]], 2).tolist()
    [1, 2]
    """
    n = nonnegative_integer("dimension", dimension)
    array = integer_array("indices", indices)
    check_range(array, n)
    if np.any(array[..., 1:] < array[..., :-1]):
        raise ValueError(
            "indices must be sorted (nondecreasing) along the last axis; "
            f"got {first_row(array, (array[..., 1:] < array[..., :-1]).any(axis=-1))}"
        )
    return _rank(array, n)


def unrank_multi_indices(ranks: npt.ArrayLike, dimension: int, order: int) -> IndexArray:
    """Sorted multi-indices at given positions of the lexicographic list.

    Parameters
    ----------
    ranks : array_like of int, shape (...)
        Positions in ``0 .. C(dimension+order-1, order)-1``.
    dimension : int
        Number n of values that an index takes.
    order : int
        Number m of indices.

    Returns
    -------
    ndarray of int64, shape (..., m)
        The inverse of `rank_multi_indices`.

    Raises
    ------
    IndexError
        A position outside the list.
    ProblemTooLargeError
        Positions of this dimension and order do not fit 64 bits.

    Examples
    --------
    >>> unrank_multi_indices([1, 2], 2, 2).tolist()
    [[0, 1], [1, 1]]
    """
    n, m = nonnegative_integer("dimension", dimension), nonnegative_integer("order", order)
    array = integer_array("ranks", ranks, scalars=True)
    total = number_of_multi_indices(n, m)
    wrong = (array < 0) | (array >= total)
    if wrong.any():
        raise IndexError(f"ranks must lie in 0 .. {total - 1}; got {array[wrong].flat[0]}")
    return _unrank(array, n, m)


def square_free_indices(dimension: int, order: int) -> IndexArray:
    """List all strictly increasing multi-indices in lexicographic order.

    Parameters
    ----------
    dimension : int
        Number d of values that an index takes, at least 0.
    order : int
        Number m of indices, at least 0.

    Returns
    -------
    ndarray of int64, shape (C(d, m), m)
        Read-only; empty where `order` exceeds `dimension`. Order 0 gives shape (1, 0).

    Raises
    ------
    ProblemTooLargeError
        The list would hold more than 2**30 integers.

    Examples
    --------
    >>> square_free_indices(3, 2).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    d, m = nonnegative_integer("dimension", dimension), nonnegative_integer("order", order)
    size = _check_listing(_combinations(d, m), m, f"dimension={d}, order={m}")
    return _cached_square_free(d, m) if size <= _LARGEST_CACHED else _square_free(d, m)


def rank_square_free(indices: npt.ArrayLike, dimension: int) -> IndexArray:
    """Position of strictly increasing multi-indices in the lexicographic list.

    Parameters
    ----------
    indices : array_like of int, shape (..., m)
        Strictly increasing along the last axis, every value in ``0 .. dimension-1``.
    dimension : int
        Number d of values that an index takes.

    Returns
    -------
    ndarray of int64, shape (...)
        ``square_free_indices(dimension, m)[rank]`` equals `indices`.

    Raises
    ------
    IndexError
        A value outside ``0 .. dimension-1``.
    ValueError
        A row that is not strictly increasing.
    ProblemTooLargeError
        Positions of this dimension and order do not fit 64 bits.

    Examples
    --------
    >>> rank_square_free([[0, 2], [1, 2]], 3).tolist()
    [1, 2]
    """
    d = nonnegative_integer("dimension", dimension)
    array = integer_array("indices", indices)
    check_range(array, d)
    if np.any(array[..., 1:] <= array[..., :-1]):
        raise ValueError(
            "indices must be strictly increasing along the last axis; "
            f"got {first_row(array, (array[..., 1:] <= array[..., :-1]).any(axis=-1))}"
        )
    m = array.shape[-1]
    # i_k - k is a sorted multi-index over d-m+1 values, in the same lexicographic order
    return _rank(array - np.arange(m), max(d - m + 1, 0))


def unrank_square_free(ranks: npt.ArrayLike, dimension: int, order: int) -> IndexArray:
    """Strictly increasing multi-indices at given positions of the lexicographic list.

    Parameters
    ----------
    ranks : array_like of int, shape (...)
        Positions in ``0 .. C(dimension, order)-1``.
    dimension : int
        Number d of values that an index takes.
    order : int
        Number m of indices.

    Returns
    -------
    ndarray of int64, shape (..., m)
        The inverse of `rank_square_free`.

    Raises
    ------
    IndexError
        A position outside the list.
    ProblemTooLargeError
        Positions of this dimension and order do not fit 64 bits.

    Examples
    --------
    >>> unrank_square_free([1, 2], 3, 2).tolist()
    [[0, 2], [1, 2]]
    """
    d, m = nonnegative_integer("dimension", dimension), nonnegative_integer("order", order)
    array = unrank_multi_indices(ranks, max(d - m + 1, 0), m)
    return array + np.arange(m)


def pad_multi_indices(indices: npt.ArrayLike, order: int) -> IndexArray:
    """Write multi-indices at a higher order, with zeros in front.

    In homogenised indices, where 0 stands for the constant 1, both name the same monomial.

    Parameters
    ----------
    indices : array_like of int, shape (N, q)
        Multi-indices of order q, at most `order`.
    order : int
        The order wanted.

    Returns
    -------
    ndarray of int64, shape (N, order)
        The rows stay sorted.

    Raises
    ------
    ValueError
        `order` is below q.

    Examples
    --------
    >>> pad_multi_indices([[1, 2]], 3).tolist()
    [[0, 1, 2]]
    """
    rows = np.asarray(indices, dtype=np.int64)
    if order < rows.shape[1]:
        raise ValueError(
            f"order must be at least {rows.shape[1]}, that of the indices; got {order}"
        )
    return np.pad(rows, ((0, 0), (order - rows.shape[1], 0)))


def multiplicities(indices: npt.ArrayLike) -> npt.NDArray[Any]:
    """Count the distinct orderings of every multi-index: m! / prod(counts!).

    Parameters
    ----------
    indices : array_like of int, shape (..., m)
        Multi-indices; a row may be in any order.

    Returns
    -------
    ndarray, shape (...)
        How often the entry occurs in the dense tensor: int64, exact, up to order 20, and float64
        beyond, where m! no longer fits.

    Examples
    --------
    >>> multiplicities([[0, 0, 1], [0, 1, 2], [2, 2, 2]]).tolist()
    [3, 6, 1]
    """
    array = np.sort(integer_array("indices", indices), axis=-1)
    m = array.shape[-1]
    exact = m <= _LARGEST_EXACT_ORDER
    result: npt.NDArray[Any] = np.ones(array.shape[:-1], np.int64 if exact else np.float64)
    run = np.ones(array.shape[:-1], dtype=np.int64)
    for k in range(1, m):
        run = np.where(array[..., k] == array[..., k - 1], run + 1, 1)
        # a multinomial coefficient at every step, so the integer division is exact
        divide = np.floor_divide if exact else np.true_divide
        result = np.asarray(divide(result * (k + 1), run))
    return result


def _combinations(n: int, k: int) -> int:
    """Return C(n, k), unless it is so large that counting would take long."""
    if max(min(k, n - k), 0) * n.bit_length() > _LARGEST_COUNT:
        raise ProblemTooLargeError(f"C({n}, {k}) multi-indices are too many to be counted")
    return math.comb(n, k)


def _check_listing(count: int, order: int, where: str) -> int:
    size = count * max(order, 1)
    if size > _LARGEST_LISTING:
        raise ProblemTooLargeError(
            f"{count} multi-indices ({where}) exceed the limit of "
            f"{_LARGEST_LISTING // max(order, 1)} for one list; use smaller values"
        )
    return size


def _tables(dimension: int, order: int) -> IndexArray:
    """Return table[p, j] = C(j+p-1, p), p = 0 .. order, j = 0 .. dimension-1 (row 0 unused)."""
    total = number_of_multi_indices(dimension, order)
    if total > _LARGEST_RANK:
        raise ProblemTooLargeError(
            f"C({dimension + order - 1}, {order}) multi-indices (dimension={dimension}, "
            f"order={order}) do not fit 64-bit positions"
        )
    size = (order + 1) * dimension
    if size > _LARGEST_TABLE:
        raise ProblemTooLargeError(
            f"positions for dimension={dimension}, order={order} need a table of {size} numbers; "
            f"the limit is {_LARGEST_TABLE}"
        )
    build = _cached_binomials if size <= _LARGEST_CACHED else _binomials
    return build(dimension, order)


def _binomials(dimension: int, order: int) -> IndexArray:
    table = np.zeros((order + 1, dimension), dtype=np.int64)
    for p in range(1, order + 1):
        table[p] = np.arange(dimension) if p == 1 else np.cumsum(table[p - 1])
    table.flags.writeable = False
    return table


def _rank(array: IndexArray, dimension: int) -> IndexArray:
    m = array.shape[-1]
    table = _tables(dimension, m)
    result = np.full(array.shape[:-1], number_of_multi_indices(dimension, m) - 1, dtype=np.int64)
    for k in range(m):
        result -= table[m - k][dimension - 1 - array[..., k]]
    return result


def _unrank(ranks: IndexArray, dimension: int, order: int) -> IndexArray:
    table = _tables(dimension, order)
    rest = np.asarray(number_of_multi_indices(dimension, order) - 1 - ranks)
    result = np.empty((*ranks.shape, order), dtype=np.int64)
    for k in range(order):
        row = table[order - k]
        j = np.searchsorted(row, rest, side="right") - 1  # the largest j with row[j] <= rest
        result[..., k] = dimension - 1 - j
        rest = rest - row[j]
    return result


def _listing(dimension: int, order: int) -> IndexArray:
    count = number_of_multi_indices(dimension, order)
    result = _unrank(np.arange(count, dtype=np.int64), dimension, order)
    result.flags.writeable = False
    return result


def _square_free(dimension: int, order: int) -> IndexArray:
    result = _listing(max(dimension - order + 1, 0), order) + np.arange(order)
    result.flags.writeable = False
    return result


_cached_binomials = lru_cache(maxsize=64)(_binomials)
_cached_listing = lru_cache(maxsize=64)(_listing)
_cached_square_free = lru_cache(maxsize=64)(_square_free)
