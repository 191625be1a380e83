"""Exact arithmetic on Gram matrices of moments: look-up, change of origin, Gaussian values.

Features and their order are those of `tensoralg.gpu.moment_features`. In *homogenised* indices
coordinate 0 is the constant 1 and data coordinate j has index j + 1, so that the moments of all
degrees up to m are the entries of one symmetric tensor of order m.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.core.indices import (
    IndexArray,
    multi_indices,
    rank_multi_indices,
    rank_square_free,
)
from tensoralg.core.monomials import graded_indices
from tensoralg.gpu.moment_features import FeaturePlan, feature_plan
from tensoralg.gpu.namespaces import device_of, namespace_of

__all__ = [
    "gaussian_gram",
    "gram_positions",
    "homogenised_positions",
    "rebased_gram",
    "shift_matrix",
]

FloatArray = NDArray[np.float64]


def gram_positions(
    indices: IndexArray, dimension: int, *, powers: bool = False
) -> tuple[IndexArray, IndexArray]:
    """Where the Gram matrix holds the moments of given homogenised multi-indices.

    Neighbours of a sorted multi-index go to different sides, so that a coordinate that occurs
    twice is split into two square-free monomials.

    Parameters
    ----------
    indices : ndarray of int64, shape (N, m)
        Homogenised multi-indices, sorted along the last axis.
    dimension : int
        Number d of data coordinates.
    powers : bool, default False
        Whether the features have powers.

    Returns
    -------
    left, right : ndarray of int64, shape (N,)
        Row and column; -1 in either where the moment is not in the Gram matrix.

    Examples
    --------
    >>> left, right = gram_positions(np.array([[0, 1, 1], [1, 1, 1]]), 2)
    >>> left.tolist(), right.tolist()
    ([1, 1], [1, -1])
    """
    return (
        _feature_positions(indices[:, 1::2], dimension, powers),
        _feature_positions(indices[:, 0::2], dimension, powers),
    )


def _feature_positions(rows: IndexArray, dimension: int, powers: bool) -> IndexArray:
    width = rows.shape[1]
    offsets = feature_plan(dimension, width, powers=powers).offsets
    degrees = (rows > 0).sum(axis=1)
    positions = np.full(len(rows), -1, dtype=np.int64)
    for q in range(width + 1):
        chosen = np.flatnonzero(degrees == q)
        monomials = rows[chosen, width - q :] - 1
        if powers:
            positions[chosen] = offsets[q] + rank_multi_indices(monomials, dimension)
            continue
        square_free = (monomials[:, 1:] > monomials[:, :-1]).all(axis=1)
        chosen, monomials = chosen[square_free], monomials[square_free]
        if len(chosen):
            positions[chosen] = offsets[q] + rank_square_free(monomials, dimension)
    return positions


@lru_cache(maxsize=8)
def homogenised_positions(
    dimension: int, order: int, *, powers: bool = False
) -> tuple[IndexArray, IndexArray]:
    """Row and column of every homogenised moment up to an order.

    Parameters
    ----------
    dimension : int
        Number d of data coordinates.
    order : int
        Highest degree m of the moments.
    powers : bool, default False
        Whether the features have powers.

    Returns
    -------
    left, right : ndarray of int64, shape (C(d+m, m),)
        For each row of ``multi_indices(d + 1, m)``; -1 where not accumulated. Read-only.

    Examples
    --------
    >>> left, right = homogenised_positions(1, 3)
    >>> left.tolist(), right.tolist()  # 1, x, x^2, x^3
    ([0, 0, 1, 1], [0, 1, 1, -1])
    """
    positions = gram_positions(multi_indices(dimension + 1, order), dimension, powers=powers)
    for array in positions:
        array.flags.writeable = False
    return positions


def shift_matrix(
    dimension: int, degree: int, factor: FloatArray, offset: FloatArray, *, powers: bool = False
) -> scipy.sparse.csr_array:
    """Features of ``factor * z + offset`` as linear combinations of the features of z.

    Parameters
    ----------
    dimension : int
        Number d of coordinates.
    degree : int
        Highest degree of a feature.
    factor, offset : ndarray of float64, shape (d,)
        The affine change of every coordinate.
    powers : bool, default False
        Whether the features have powers.

    Returns
    -------
    scipy.sparse.csr_array, shape (n, n)
        T with V(factor * z + offset) = V(z) T; a column has at most 2^degree entries.

    Examples
    --------
    >>> shift_matrix(1, 1, np.array([2.0]), np.array([5.0])).toarray().tolist()
    [[1.0, 5.0], [0.0, 2.0]]
    """
    plan = feature_plan(dimension, degree, powers=powers)
    child = _children(plan)
    rows = columns = np.zeros(1, dtype=np.int64)
    values = np.ones(1)
    parts = [(rows, columns, values)]
    for q in range(1, degree + 1):
        # a column is its parent's column times (factor_j z_j + offset_j)
        members = np.arange(plan.offsets[q], plan.offsets[q + 1])
        previous = scipy.sparse.csc_array(
            (values, (rows, columns - plan.offsets[q - 1])),
            shape=(plan.size, plan.offsets[q] - plan.offsets[q - 1]),
        )
        copied = previous[:, plan.parent[members] - plan.offsets[q - 1]].tocoo()
        old_rows, old_values = copied.coords[0], copied.data
        columns = members[copied.coords[1]]
        j = plan.coordinate[columns]
        rows = np.concatenate([child[old_rows, j], old_rows])
        values = np.concatenate([old_values * factor[j], old_values * offset[j]])
        columns = np.concatenate([columns, columns])
        parts.append((rows, columns, values))
    all_rows, all_columns, all_values = (
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    return scipy.sparse.csr_array(
        (all_values, (all_rows, all_columns)), shape=(plan.size, plan.size)
    )


def _children(plan: FeaturePlan) -> IndexArray:
    """Position of (monomial, coordinate appended), 0 where that is no feature."""
    child = np.zeros((plan.offsets[-2], plan.dimension), dtype=np.int64)
    child[plan.parent[1:], plan.coordinate[1:]] = np.arange(1, plan.size)
    return child


def rebased_gram(
    gram: Any,
    dimension: int,
    order: int,
    factor: FloatArray,
    offset: FloatArray,
    *,
    powers: bool = False,
) -> Any:
    """Gram matrix of the features of ``factor * z + offset``, from that of the features of z.

    Parameters
    ----------
    gram : array of float64, shape (n_a, n_b)
        Of any namespace.
    dimension, order : int
        Number d of coordinates, highest degree m.
    factor, offset : ndarray of float64, shape (d,)
        The affine change of every coordinate.
    powers : bool, default False
        Whether the features have powers.

    Returns
    -------
    array of float64, shape (n_a, n_b)
        T_a^T G T_b with the matrices of `shift_matrix`, where `gram` lives.

    Examples
    --------
    >>> gram = np.array([[1.0, 3.0], [3.0, 10.0]])  # 1, x, x^2 of one row x = 3 + noise
    >>> rebased_gram(gram, 1, 2, np.ones(1), np.array([-3.0])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    change = shift_matrix(dimension, order - order // 2, factor, offset, powers=powers)
    n = gram.shape[0]
    if isinstance(gram, np.ndarray):
        return np.ascontiguousarray(change[:n, :n].T @ (gram @ change))
    xp = namespace_of(gram)
    dense = xp.asarray(change.toarray(), device=device_of(gram))
    return xp.matrix_transpose(dense[:n, :n]) @ (gram @ dense)


def gaussian_gram(
    weights: FloatArray,
    means: FloatArray,
    covariances: FloatArray,
    order: int,
    *,
    powers: bool = False,
) -> FloatArray:
    """Exact Gram matrix of a diagonal Gaussian mixture.

    Parameters
    ----------
    weights : ndarray of float64, shape (r,)
        Weights of the components.
    means, covariances : ndarray of float64, shape (r, d)
        Means and variances of the coordinates.
    order : int
        Highest degree m of the moments.
    powers : bool, default False
        Whether the features have powers.

    Returns
    -------
    ndarray of float64, shape (n_a, n_b)
        E[z^A z^B] over the features up to degree floor(m/2) and ceil(m/2).

    Notes
    -----
    Univariate moments follow from E[z^{k+1}] = mu E[z^k] + k var E[z^{k-1}].

    Examples
    --------
    >>> one = np.ones(1)
    >>> gaussian_gram(one, 2 * one[None], 3 * one[None], 2).tolist()  # 1, mu, mu, mu^2 + var
    [[1.0, 2.0], [2.0, 7.0]]
    """
    r, d = means.shape
    raw = np.ones((order + 1, r, d))
    raw[1] = means
    for k in range(1, order):
        raw[k + 1] = means * raw[k] + k * covariances * raw[k - 1]
    exponents = _exponents(d, order - order // 2, powers)
    left = feature_plan(d, order // 2, powers=powers).size
    gram = np.zeros((left, len(exponents)))
    for s in range(r):
        product = np.full_like(gram, weights[s])
        for j in range(d):
            product *= raw[exponents[:left, None, j] + exponents[None, :, j], s, j]
        gram += product
    return gram


def _exponents(dimension: int, degree: int, powers: bool) -> IndexArray:
    """Exponent of every coordinate in every feature, shape (n, d)."""
    blocks = []
    for indices in graded_indices(dimension, degree, powers=powers):
        exponents = np.zeros((len(indices), dimension), dtype=np.int64)
        for column in indices.T:
            exponents[np.arange(len(indices)), column] += 1
        blocks.append(exponents)
    return np.concatenate(blocks)
