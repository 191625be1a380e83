"""Generating polynomials of symmetric tensors: points from the kernel structure of flattenings.

A decomposition ``T = sum_s w_s u_s^(x)m`` makes every flattening of T (rows: monomials of degree
a, columns: monomials of degree m - a) equal to ``V_a^T diag(w) V_(m-a)`` with the monomials of the
points in the rows of V. Multiplying the row or column monomials by one coordinate and dividing by
another gives matrices ``M_j`` (the transposed generating polynomials of Nie) that commute, with
the monomial vectors of the points as eigenvectors and ratios of coordinates as eigenvalues.

This module treats tensors whose entries are known at pairwise distinct indices only, in the
papers' homogeneous form; it also serves mixtures. An orthonormal basis from the SVD replaces the
papers' monomial bases. Complete tensors: :mod:`tensoralg.solvers.symmetric_flattening`.

References
----------
.. [1] J. Nie, "Generating polynomials and symmetric tensor decompositions", Foundations of
   Computational Mathematics 17 (2017).
.. [2] J. Brachat, P. Comon, B. Mourrain, E. Tsigaridas, "Symmetric tensor decomposition", Linear
   Algebra and its Applications 433 (2010).
.. [3] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete tensor
   decompositions", arXiv:2102.04500.
.. [4] B. Guo, J. Nie, Z. Yang, "Diagonal Gaussian mixture models and higher order tensor
   decompositions", arXiv:2401.01337.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.core.indices import (
    multi_indices,
    number_of_multi_indices,
    rank_multi_indices,
    rank_square_free,
    square_free_indices,
)
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.solvers.coordinate_splits import feasible_splits, largest_rank
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors
from tensoralg.solvers.symmetric_least_squares import fit_weights

__all__ = [
    "fit_weights",
    "flattening_block",
    "homogeneous_components",
]

Array = NDArray[Any]
Split = tuple[int, Sequence[int]]


def flattening_block(
    entries: Array, known: NDArray[np.bool_], rows: Array, columns: Array, dimension: int
) -> Array:
    """Entries of a symmetric tensor at all products of row and column monomials.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    known : ndarray of bool, same shape
        Which entries are given.
    rows, columns : ndarray of int, shapes (R, a) and (C, m-a)
        Multi-indices.
    dimension : int
        n.

    Returns
    -------
    ndarray, shape (R, C)
        The block of the flattening.

    Raises
    ------
    ValueError
        The block reads an entry that is not known.

    Examples
    --------
    >>> import numpy as np
    >>> flattening_block(np.arange(4.0), np.ones(4, bool), np.eye(2, 1, dtype=int)[::-1],
    ...                  np.array([[0, 0], [0, 1], [1, 1]]), 2).tolist()
    [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    """
    shape = (len(rows), len(columns))
    joined = np.concatenate(
        [
            np.broadcast_to(rows[:, None, :], (*shape, rows.shape[1])),
            np.broadcast_to(columns[None, :, :], (*shape, columns.shape[1])),
        ],
        axis=2,
    )
    joined.sort(axis=2)
    ranks = rank_multi_indices(joined, dimension)
    if not known[ranks].all():
        missing = joined[~known[ranks]][0].tolist()
        raise ValueError(f"the flattening needs the entry {missing}, which is not known")
    return np.asarray(entries[ranks])


def homogeneous_components(
    entries: ArrayLike,
    known: ArrayLike | None,
    order: int,
    dimension: int,
    rank: int,
    *,
    degree: int | None = None,
    split: Split | None = None,
    rng: int | np.random.Generator | None = None,
    n_splits: int = 6,
) -> tuple[Array, Array]:
    """Rank-one terms of a symmetric tensor that is known at pairwise distinct indices.

    One coordinate leads, k coordinates form the left block, the others the right block. Rows are
    the square-free monomials of degree p of the left block. The matrices that multiply by a right
    coordinate and divide by the leading one give the right coordinates of the points; products of
    degree p and p - 1 in the left block give the left ones; weights follow by least squares.

    Parameters
    ----------
    entries : array_like, shape (C(d+m-1, m),)
        Entries at the sorted multi-indices, lexicographic; anything where not known.
    known : array_like of bool, same shape, or None
        Which entries are given; None: those with pairwise distinct indices.
    order, dimension, rank : int
        m, d and r.
    degree : int, optional
        Degree p of the rows, 1 <= p <= m - 2. Default: a random one that has room for `rank`.
    split : tuple of (int, sequence of int), optional
        The leading coordinate and the left block. Default: the best of `n_splits` random ones by
        the residual on the known entries.
    rng : int, Generator or None
        Source of random splits and combinations.
    n_splits : int, default 6
        How many random splits are tried when `split` is None.

    Returns
    -------
    points : ndarray, shape (r, d)
        Unit vectors u_s; complex when the eigenvalues are.
    weights : ndarray, shape (r,)
        The tensor is ``sum_s weights[s] u_s^(x)m`` on the known entries, by least squares.

    Raises
    ------
    RankBoundError
        The split, or with no split given every split, has no room for `rank`.
    ShapeError
        `entries`, `known` or `split` do not fit `order` and `dimension`.
    ValueError
        A needed entry is not known.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, arXiv:2102.04500, section 3 (order 3), and arXiv:2401.01337,
       section 3 (higher order).

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.core.indices import multi_indices
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((2, 6))
    >>> entries = points[:, multi_indices(6, 3)].prod(axis=2).sum(axis=0)
    >>> found, weights = homogeneous_components(entries, None, 3, 6, 2, rng=1)
    >>> sizes = np.linalg.norm(points, axis=1) ** 3
    >>> bool(np.allclose(np.sort(np.abs(weights)), np.sort(sizes)))
    True
    """
    values, mask = _checked(entries, known, order, dimension)
    generator = np.random.default_rng(rng)
    where = np.flatnonzero(mask)
    indices = multi_indices(dimension, order)[where]
    best: tuple[float, Array, Array] | None = None
    for _ in range(max(n_splits, 1) if split is None else 1):
        p, leading, left, right = _choose_split(order, dimension, rank, degree, split, generator)
        tensor = _Known(values, mask, dimension, left, np.array([leading, *right]))
        points = _points_of_split(tensor, right, rank, p, order, generator)
        monomials = evaluate_monomials(points, indices)
        weights = fit_weights(monomials, values[where])
        residual = float(np.linalg.norm(weights @ monomials - values[where]))
        if best is None or residual < best[0]:
            best = (residual, points, weights)
    assert best is not None
    return best[1], best[2]


def _points_of_split(
    tensor: "_Known", right: Array, rank: int, p: int, order: int, generator: np.random.Generator
) -> Array:
    """Find unit points from one split: eigenvalues outside the left block, ratios inside."""
    left, outside = tensor.left, tensor.outside
    flat = tensor.block(p, order - p)
    basis = np.linalg.svd(flat, full_matrices=False)[0][:, :rank]
    matrices = _right_multiplications(basis.T @ flat, len(outside), order - p)
    _, ratios = joint_eigenvectors(matrices, rng=generator)
    points = np.ones((rank, tensor.dimension), dtype=ratios.dtype)
    points[:, right] = ratios.T
    points[:, left] = _left_coordinates(tensor, points[:, outside], flat, p, order)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


class _Known:
    """Blocks of square-free entries between left and outside coordinates."""

    def __init__(
        self, values: Array, mask: NDArray[np.bool_], dimension: int, left: Array, outside: Array
    ) -> None:
        self.values, self.mask, self.dimension = values, mask, dimension
        self.left, self.outside = left, outside

    def block(self, row_degree: int, column_degree: int) -> Array:
        rows = self.left[square_free_indices(len(self.left), row_degree)]
        columns = self.outside[square_free_indices(len(self.outside), column_degree)]
        return flattening_block(self.values, self.mask, rows, columns, self.dimension)


def _checked(
    entries: ArrayLike, known: ArrayLike | None, order: int, dimension: int
) -> tuple[Array, NDArray[np.bool_]]:
    values = np.asarray(entries)
    expected = number_of_multi_indices(dimension, order)
    if values.shape != (expected,):
        raise ShapeError(
            f"entries must have shape ({expected},) for order {order} and dimension {dimension}; "
            f"got {values.shape}"
        )
    if known is None:
        indices = multi_indices(dimension, order)
        return values, np.all(indices[:, 1:] > indices[:, :-1], axis=1)
    mask = np.asarray(known, dtype=bool)
    if mask.shape != values.shape:
        raise ShapeError(f"known must have the shape {values.shape} of entries; got {mask.shape}")
    return values, mask


def _choose_split(
    order: int,
    dimension: int,
    rank: int,
    degree: int | None,
    split: Split | None,
    generator: np.random.Generator,
) -> tuple[int, int, Array, Array]:
    """Degree, leading coordinate, left and right block, random where not given."""
    if rank < 1:
        raise RankBoundError(f"rank must be at least 1; got {rank}")
    options = feasible_splits(dimension, order, rank, "homogeneous")
    if degree is not None:
        options = [s for s in options if s[0] == degree]
    if split is not None:
        leading, left = int(split[0]), np.asarray(split[1], dtype=np.int64)
        named = [leading, *left.tolist()]
        if len(set(named)) < len(named) or not all(0 <= i < dimension for i in named):
            raise ShapeError(
                "split must be (leading, left block) of distinct coordinates from 0 to "
                f"{dimension - 1}; got {split}"
            )
        options = [s for s in options if s[1] == len(left)]
    if not options:
        raise RankBoundError(
            f"rank={rank}: no split{'' if split is None and degree is None else ' as asked'} of "
            f"the d={dimension} coordinates has room for it at order m={order}; over all splits "
            f"the homogeneous form allows at most {largest_rank(dimension, order, 'homogeneous')}"
        )
    p, k = options[int(generator.integers(len(options)))]
    if split is None:
        shuffled = generator.permutation(dimension)
        leading, left = int(shuffled[0]), np.sort(shuffled[1 : k + 1])
    right = np.setdiff1d(np.arange(dimension), [leading, *left.tolist()])
    return p, leading, left, right


def _right_multiplications(projected: Array, n_outside: int, degree: int) -> Array:
    """Matrices with ``M_j K[:, 0 + g] = K[:, j + g]``, local label 0 being the leading one."""
    matrices = []
    for label in range(1, n_outside):
        others = np.array([j for j in range(1, n_outside) if j != label])
        rest = others[square_free_indices(len(others), degree - 1)]
        source = np.column_stack([np.zeros(len(rest), dtype=np.int64), rest])
        target = np.sort(np.column_stack([np.full(len(rest), label), rest]), axis=1)
        before = projected[:, rank_square_free(source, n_outside)]
        after = projected[:, rank_square_free(target, n_outside)]
        matrices.append(np.linalg.lstsq(before.T, after.T, rcond=None)[0].T)
    return np.array(matrices)


def _left_coordinates(tensor: _Known, outer: Array, flat: Array, p: int, order: int) -> Array:
    """Left coordinates as ratios of monomials of degree p and p - 1, each by least squares.

    C(d-k, m-p+1) >= C(d-k-2, m-p-1) >= r, so both systems are overdetermined when the split is.
    """
    k, n_outside = len(tensor.left), len(tensor.outside)
    higher = _components_of(outer, flat, square_free_indices(n_outside, order - p))
    lower_flat = tensor.block(p - 1, order - p + 1)
    lower = _components_of(outer, lower_flat, square_free_indices(n_outside, order - p + 1))
    coordinates = np.empty((len(outer), k), dtype=outer.dtype)
    for i in range(k):
        others = np.array([j for j in range(k) if j != i], dtype=np.int64)
        rest = others[square_free_indices(k - 1, p - 1)]
        raised = np.sort(np.column_stack([np.full(len(rest), i), rest]), axis=1)
        below = lower[:, rank_square_free(rest, k)] if p > 1 else lower
        above = higher[:, rank_square_free(raised, k)]
        size = np.maximum(np.sum(np.abs(below) ** 2, axis=1), 1e-300)
        coordinates[:, i] = np.sum(above * below.conj(), axis=1) / size
    return coordinates


def _components_of(outer: Array, flat: Array, columns: Array) -> Array:
    """Split the rows of a block into the contributions of the points, (r, rows)."""
    monomials = evaluate_monomials(outer, columns)
    return np.asarray(np.linalg.lstsq(monomials.T, flat.T, rcond=None)[0])
