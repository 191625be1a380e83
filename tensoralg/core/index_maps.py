"""Where the entries of a symmetric tensor lie in larger arrays: gathers instead of loops.

Everything rests on one table: the position of a sorted multi-index after one more index has been
inserted. Contractions, dense arrays and catalecticants are compositions of such gathers, so no
dense tensor is formed unless it is the result.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.indices import (
    IndexArray,
    multi_indices,
    multiplicities,
    number_of_multi_indices,
    rank_multi_indices,
)

__all__ = [
    "catalecticant_positions",
    "dense_values",
    "insertion_positions",
    "listed_multiplicities",
    "positions_of",
]

_LARGEST_CACHED = 2**18  # numbers in one cached table: 2 MiB
_LARGEST_DENSE = 2**30  # numbers in one dense array: 8 GiB


def insertion_positions(dimension: int, order: int) -> IndexArray:
    """Positions of all sorted multi-indices of order m-1 with one more index inserted.

    Parameters
    ----------
    dimension : int
        Number n of values that an index takes, at least 1.
    order : int
        Number m of indices after the insertion, at least 1.

    Returns
    -------
    ndarray of int64, shape (n, C(n+m-2, m-1))
        Entry (v, k) is the position, among the multi-indices of order m, of number k of order m-1
        together with the index v. Read-only.

    Examples
    --------
    >>> insertion_positions(2, 2).tolist()
    [[0, 1], [1, 2]]
    """
    size = dimension * number_of_multi_indices(dimension, order - 1)
    build = _cached_insertions if size <= _LARGEST_CACHED else _insertions
    return build(dimension, order)


def dense_values(entries: npt.NDArray[Any], dimension: int, order: int) -> npt.NDArray[Any]:
    """Spread the entries of a symmetric tensor over the dense array.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        One value for each sorted multi-index (the positions themselves, for instance).
    dimension : int
        Number n of values that an index takes.
    order : int
        Number m of indices.

    Returns
    -------
    ndarray, shape (n,) * m
        A new array, in the dtype of `entries`.

    Raises
    ------
    ProblemTooLargeError
        More than 2**30 numbers, or more axes than numpy supports (64).

    Examples
    --------
    >>> import numpy as np
    >>> dense_values(np.arange(3), 2, 2).tolist()
    [[0, 1], [1, 2]]
    """
    if order > 64 or dimension**order > _LARGEST_DENSE:
        raise ProblemTooLargeError(
            f"a dense array of dimension {dimension} and order {order} has {dimension}**{order} "
            f"numbers; the limit is {_LARGEST_DENSE} and 64 axes"
        )
    values = entries.reshape(1, -1)
    for k in range(order, 0, -1):
        # (n**(m-k), N_k) -> (n**(m-k), n, N_(k-1)): split one index off
        values = values[:, insertion_positions(dimension, k)]
        values = values.reshape(-1, values.shape[-1])
    return values.reshape((dimension,) * order)


def catalecticant_positions(dimension: int, order: int, k: int) -> IndexArray:
    """Positions of the entries of the k-th catalecticant matrix.

    Parameters
    ----------
    dimension : int
        Number n of values that an index takes.
    order : int
        Number m of indices.
    k : int
        Number of indices that number the rows, 0 to m.

    Returns
    -------
    ndarray of int64, shape (C(n+k-1, k), C(n+m-k-1, m-k))
        Entry (I, J) is the position of the multi-index I and J together.

    Raises
    ------
    ProblemTooLargeError
        More than 2**30 numbers.

    Examples
    --------
    >>> catalecticant_positions(2, 3, 1).tolist()
    [[0, 1, 2], [1, 2, 3]]
    """
    if 2 * k > order:  # insert the smaller number of indices
        return catalecticant_positions(dimension, order, order - k).T
    rows = multi_indices(dimension, k)
    columns = number_of_multi_indices(dimension, order - k)
    if len(rows) * columns > _LARGEST_DENSE:
        raise ProblemTooLargeError(
            f"the catalecticant of shape ({len(rows)}, {columns}) exceeds the limit of "
            f"{_LARGEST_DENSE} numbers"
        )
    positions = np.broadcast_to(np.arange(columns), (len(rows), columns))
    for j in range(k):
        table = insertion_positions(dimension, order - k + j + 1)
        positions = table[rows[:, j, None], positions]
    return positions


def listed_multiplicities(dimension: int, order: int) -> npt.NDArray[Any]:
    """Multiplicities of all sorted multi-indices, in lexicographic order.

    Parameters
    ----------
    dimension : int
        Number n of values that an index takes.
    order : int
        Number m of indices.

    Returns
    -------
    ndarray, shape (C(n+m-1, m),)
        Read-only; they sum to n**m.

    Examples
    --------
    >>> listed_multiplicities(2, 3).tolist()
    [1, 3, 3, 1]
    """
    size = number_of_multi_indices(dimension, order)
    build = _cached_multiplicities if size <= _LARGEST_CACHED else _multiplicities
    return build(dimension, order)


def positions_of(index: Any, dimension: int, order: int) -> IndexArray:
    """Positions that a subscript ``T[i1, .., im]`` addresses.

    Parameters
    ----------
    index : int, integer array, or tuple of them
        The m indices in any order; arrays broadcast together. Negative ones count from the end.
    dimension : int
        Number n of values that an index takes.
    order : int
        Number m of indices.

    Returns
    -------
    ndarray of int64, the broadcast shape
        Positions among the sorted multi-indices.

    Raises
    ------
    IndexError
        Not m indices, not integers, or one outside ``-n .. n-1``.

    Examples
    --------
    >>> int(positions_of((1, 0), 2, 2)), int(positions_of((-1, -1), 2, 2))
    (1, 2)
    """
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) != order:
        raise IndexError(f"a tensor of order {order} takes {order} indices; got {len(parts)}")
    arrays = [np.asarray(part) for part in parts]
    for part, array in zip(parts, arrays, strict=True):
        if array.dtype.kind not in "iu":
            raise IndexError(f"indices must be integers or integer arrays; got {part!r}")
    rows = np.stack(np.broadcast_arrays(*arrays), axis=-1).astype(np.int64)
    wrong = (rows < -dimension) | (rows >= dimension)
    if wrong.any():
        raise IndexError(f"index {rows[wrong].flat[0]} is out of range for dimension {dimension}")
    rows = np.sort(np.where(rows < 0, rows + dimension, rows), axis=-1)
    return rank_multi_indices(rows, dimension)


def _insertions(dimension: int, order: int) -> IndexArray:
    rows = multi_indices(dimension, order - 1)
    new = np.arange(dimension)[:, None]
    shape = (dimension, len(rows))
    merged = np.empty((*shape, order), dtype=np.int64)
    for k in range(order):
        # insert into a sorted row: clip the new index between the two neighbours of place k
        column = np.broadcast_to(new, shape)
        if k < order - 1:
            column = np.minimum(column, rows[:, k])
        if k > 0:
            column = np.maximum(column, rows[:, k - 1])
        merged[..., k] = column
    result = rank_multi_indices(merged, dimension)
    result.flags.writeable = False
    return result


def _multiplicities(dimension: int, order: int) -> npt.NDArray[Any]:
    result = multiplicities(multi_indices(dimension, order))
    result.flags.writeable = False
    return result


_cached_insertions = lru_cache(maxsize=64)(_insertions)
_cached_multiplicities = lru_cache(maxsize=64)(_multiplicities)
