"""Moments of numpy rows in one sweep: every product of coordinates is summed exactly once.

With the constant 1 as coordinate 0, a moment of degree m or less is a sorted multi-index
``i_1 <= .. <= i_m``. Its first a = floor(m/2) indices make a *left* feature, the others a *right*
feature, and it is their inner product over the rows. Left features are ordered by their largest
index, so that a right feature meets a leading run of them: those that do not exceed its smallest.
This takes C(d+m, m) inner products where a matrix product of the two feature sets repeats every
moment in all ways to split it (2.4 times as many for d = 15, m = 3; 4.5 times for m = 5).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import IndexArray, multi_indices, pad_multi_indices, rank_multi_indices
from tensoralg.core.monomials import graded_indices
from tensoralg.gpu.row_chunks import rows_of

__all__ = ["SweepPlan", "sweep_gram", "sweep_plan"]

FloatArray = NDArray[np.float64]

_RIGHT, _LEFT = 3, 4  # features in one tile of the compiled sweep
# The left features of a chunk should stay in a core's second-level cache.
_CACHE_BYTES = 2**18
_FEWEST_ROWS, _MOST_ROWS = 128, 512
_CALL_ROWS = 2**14  # rows handed to one compiled call


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """Which feature is made from which, and where each sum goes.

    Parameters
    ----------
    left_parent, left_coordinate : ndarray of int64, shape (n_left,)
        A left feature is its parent times one data coordinate; number 0 is the constant.
    right_parent, right_coordinate : ndarray of int64, shape (n_right,)
        A right feature is a left feature times a factor (a coordinate, or the weight where both
        sides have the same degree); n_right is a multiple of three.
    reach : ndarray of int64, shape (n_right,)
        How many left features it meets, a multiple of four, equal within each three.
    start : ndarray of int64, shape (n_right,)
        Where its sums begin.
    gram_position : ndarray of int64, shape (n_a, n_b)
        Which sum is each entry of the Gram matrix of the graded features.
    """

    left_parent: IndexArray
    left_coordinate: IndexArray
    right_parent: IndexArray
    right_coordinate: IndexArray
    reach: IndexArray
    start: IndexArray
    gram_position: IndexArray

    @property
    def n_left(self) -> int:
        """Left features, padded to whole tiles."""
        return -len(self.left_parent) % _LEFT + len(self.left_parent)

    @property
    def n_sums(self) -> int:
        """Inner products taken, those that fill up tiles included."""
        return int(self.reach.sum())


@lru_cache(maxsize=8)
def sweep_plan(dimension: int, order: int, *, powers: bool = False) -> SweepPlan:
    """Plan the sweep over all moments up to an order.

    Parameters
    ----------
    dimension : int
        Number d of coordinates.
    order : int
        Highest degree m >= 1 of a moment.
    powers : bool, default False
        Whether a coordinate may occur more than twice.

    Returns
    -------
    SweepPlan
        For `sweep_gram`. Tiles that are not full make `n_sums` larger than C(d+m, m).

    Examples
    --------
    >>> sweep_plan(15, 3).n_sums
    1080
    """
    a, b = order // 2, order - order // 2
    left = _features(dimension, a, powers)
    # by largest index, then degree: parents come before their children
    left = left[np.lexsort(((left > 0).sum(axis=1), left[:, -1]))] if a else left
    place = np.full(rank_multi_indices(np.full((1, a), dimension), dimension + 1)[0] + 1, -1)
    place[rank_multi_indices(left, dimension + 1)] = np.arange(len(left))
    shorter = np.concatenate([np.zeros((len(left), 1), np.int64), left[:, :-1]], axis=1)[:, :a]
    right = _features(dimension, b, powers)
    number = np.full(rank_multi_indices(np.full((1, b), dimension), dimension + 1)[0] + 1, -1)
    number[rank_multi_indices(right, dimension + 1)] = np.arange(len(right))
    right = np.concatenate([right, np.repeat(right[-1:], -len(right) % _RIGHT, axis=0)])
    # a tile reaches as far as its last right feature, whose smallest index is the largest
    smallest = right[:, 0].reshape(-1, _RIGHT).max(axis=1)
    largest = left[:, -1] if a else np.zeros(1, np.int64)
    reach = np.searchsorted(largest, smallest, side="right")
    reach = np.repeat(reach + -reach % _LEFT, _RIGHT)
    start = np.cumsum(reach) - reach
    return SweepPlan(
        left_parent=place[rank_multi_indices(shorter, dimension + 1)],
        left_coordinate=np.maximum(largest - 1, 0),
        right_parent=place[rank_multi_indices(right[:, b - a :], dimension + 1)],
        right_coordinate=right[:, 0].copy() if b > a else np.zeros(len(right), np.int64),
        reach=reach,
        start=start,
        gram_position=_gram_positions(dimension, order, powers, place, start[number]),
    )


def _features(dimension: int, degree: int, powers: bool) -> IndexArray:
    """Homogenised multi-indices that can be a side of a moment."""
    indices = multi_indices(dimension + 1, degree)
    if powers or degree < 3:
        return indices
    thrice = (indices[:, 2:] == indices[:, :-2]) & (indices[:, 2:] > 0)
    return np.asarray(indices[~thrice.any(axis=1)])


def _gram_positions(
    dimension: int, order: int, powers: bool, place: IndexArray, start: IndexArray
) -> IndexArray:
    """Sort every pair of graded features into one multi-index and look its sum up."""
    a, b = order // 2, order - order // 2
    left, right = (_graded(dimension, degree, powers) for degree in (a, b))
    positions = np.empty((len(left), len(right)), dtype=np.int64)
    for row, indices in zip(positions, left, strict=True):
        pair = np.concatenate([np.broadcast_to(indices, (len(right), a)), right], axis=1)
        pair.sort(axis=1)
        row[:] = start[rank_multi_indices(pair[:, a:], dimension + 1)]
        row += place[rank_multi_indices(pair[:, :a], dimension + 1)]
    return positions


def _graded(dimension: int, degree: int, powers: bool) -> IndexArray:
    """Graded features as homogenised multi-indices of one degree."""
    parts = graded_indices(dimension, degree, powers=powers)
    return np.concatenate([pad_multi_indices(part + 1, degree) for part in parts])


def chunk_rows(n_left: int) -> int:
    """Rows of a chunk whose left features fit the cache, a power of two.

    Parameters
    ----------
    n_left : int
        Left features of a row.

    Returns
    -------
    int
        Between 128 (fewer leave the sums waiting for memory) and 512.

    Examples
    --------
    >>> chunk_rows(16), chunk_rows(1000)
    (512, 128)
    """
    fitting = max(_CACHE_BYTES // (8 * n_left), 1)
    return max(_FEWEST_ROWS, min(_MOST_ROWS, 1 << fitting.bit_length() - 1))


def sweep_gram(
    X: NDArray[Any],
    weight: NDArray[Any] | None,
    shift: FloatArray,
    scale: FloatArray,
    order: int,
    *,
    powers: bool = False,
    missing: bool = False,
) -> tuple[FloatArray, FloatArray | None]:
    """Weighted Gram matrix of the graded features of (X - shift) / scale.

    Parameters
    ----------
    X : ndarray, shape (N, d)
        Real rows, converted to float64 chunk by chunk.
    weight : ndarray, shape (N,), or None
        Weights >= 0; None means 1.
    shift, scale : ndarray of float64, shape (d,)
        Origin and unit of every coordinate.
    order : int
        Highest degree m >= 1 of the moments.
    powers : bool, default False
        All monomials as features instead of the square-free ones.
    missing : bool, default False
        NaN marks a missing value.

    Returns
    -------
    gram : ndarray of float64, shape (n_a, n_b)
        sum_n w_n V_a(z_n)^T V_b(z_n).
    mask_gram : ndarray of float64, shape (n_a, n_b), or None
        With `missing`, the sums of the weights of the rows that took part in each entry.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> gram, _ = sweep_gram(X, None, np.zeros(2), np.ones(2), 3)
    >>> gram[1].tolist()  # sums of x_0, x_0^2, x_0 x_1, x_0^2 x_1
    [4.0, 10.0, 14.0, 38.0]
    """
    from tensoralg.gpu.moment_kernels import sweep_rows

    plan = sweep_plan(X.shape[1], order, powers=powers)
    size = chunk_rows(plan.n_left)
    sums = np.zeros(plan.n_sums)
    mask_sums = np.zeros(plan.n_sums if missing else 0)
    left = plan.left_parent, plan.left_coordinate
    right = plan.right_parent, plan.right_coordinate, plan.reach, plan.start
    # one compiled signature serves all calls: writable arrays, an empty one for no weights
    shift = shift.copy()
    for rows, w in rows_of(X, weight, _CALL_ROWS):
        w = np.zeros(0) if w is None else w
        sweep_rows(rows, w, shift, 1.0 / scale, left, right, plan.n_left, size, sums, mask_sums)
    gram = sums[plan.gram_position]
    return gram, mask_sums[plan.gram_position] if missing else None
