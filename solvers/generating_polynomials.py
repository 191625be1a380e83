"""Weighted points from moments by generating polynomials, in affine form.

The input is the moment sequence of a mixture of ``r`` product distributions up to order ``m``:
coordinates are independent inside each component. The coordinates are split into two blocks S and
T. With ``L`` the monomials in S of degree at most p and ``Q`` those in T of degree at most m - p,
the matrix ``H = E[L Q^T]`` has rank ``r``, its columns for ``g`` and ``x_j g`` are related by
multiplication matrices ``M_j`` (transposed generating polynomials) with common eigenvectors, and
their eigenvalues are the means of coordinate j.

This is the affine form: it works for centred data, where the homogeneous form of the papers
(:mod:`tensoralg.solvers.symmetric_generating_polynomials`) breaks down. The SVD basis in place of
a monomial one and the dual read-out of weights and means are ours.

References
----------
.. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete tensor
   decompositions", arXiv:2102.04500, section 3.
.. [2] B. Guo, J. Nie, Z. Yang, "Diagonal Gaussian mixture models and higher order tensor
   decompositions", arXiv:2401.01337, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.core.indices import number_of_multi_indices, pad_multi_indices, rank_multi_indices
from tensoralg.core.monomials import graded_indices
from tensoralg.solvers.coordinate_splits import Form, split_sides
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors

__all__ = ["AffineComponents", "affine_components", "flattening"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class AffineComponents:
    """What one split of the coordinates yields.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Weights; may be negative or not sum to one when the moments are noisy.
    means : ndarray of shape (r, d)
        Component means.
    singular_values : ndarray
        Singular values of the flattening, largest first.
    n_complex : int
        Eigenvalues that were not real; their eigenvectors were replaced by the real span.
    condition : float
        Condition number of the matrix of common eigenvectors.
    """

    weights: Array
    means: Array
    singular_values: Array
    n_complex: int
    condition: float


def _block(coordinates: Sequence[int], degree: int, powers: bool) -> NDArray[np.int64]:
    """Monomials of a block up to `degree` as homogenised multi-indices, 0 for the constant."""
    labels = np.concatenate([[0], np.asarray(coordinates, dtype=np.int64) + 1])
    parts = graded_indices(len(coordinates), degree, powers=powers)
    return np.concatenate([pad_multi_indices(labels[part + 1], degree) for part in parts])


def _look_up(
    values: Array, rows: NDArray[np.int64], columns: NDArray[np.int64], order: int, dimension: int
) -> Array:
    """Moments of all products of a row monomial and a column monomial."""
    shape = (len(rows), len(columns))
    width = rows.shape[1] + columns.shape[1]
    joined = np.zeros((*shape, max(order, width)), dtype=np.int64)
    joined[..., : rows.shape[1]] = rows[:, None, :]
    joined[..., rows.shape[1] : width] = columns[None, :, :]
    joined.sort(axis=-1)
    return np.asarray(values[rank_multi_indices(joined[..., -order:], dimension + 1)])


def flattening(
    values: ArrayLike,
    order: int,
    dimension: int,
    block: Sequence[int],
    degree: int,
    *,
    powers: bool = False,
) -> Array:
    """Arrange moments as the matrix ``E[L Q^T]`` of one split of the coordinates.

    Parameters
    ----------
    values : array_like of shape (C(d + m, m),)
        All moments up to order m, as one symmetric tensor in ``(1, x_1, .., x_d)``: entry k is
        the moment of the k-th sorted multi-index, NaN where it is not known.
    order, dimension : int
        m and d.
    block : sequence of int
        Coordinates of block S; all others form block T.
    degree : int
        Degree p of the row monomials; columns go up to degree m - p.
    powers : bool, default False
        Whether monomials inside a block may have powers.

    Returns
    -------
    ndarray of shape (rows, columns)
        The flattening.

    Raises
    ------
    ShapeError
        If `values` has another length, or `block` is no proper subset of the coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 3.0, 5.0])      # the constant, then one point
    >>> from tensoralg.core.indices import multi_indices
    >>> moments = x[multi_indices(4, 3)].prod(axis=1)
    >>> flattening(moments, 3, 3, [0], 1).tolist()
    [[1.0, 3.0, 5.0, 15.0], [2.0, 6.0, 10.0, 30.0]]
    """
    v = _checked(values, order, dimension)
    inside, outside = _split(block, dimension)
    rows = _block(inside, degree, powers)
    columns = _block(outside, order - degree, powers)
    return _look_up(v, rows, columns, order, dimension)


def _checked(values: ArrayLike, order: int, dimension: int) -> Array:
    v = np.asarray(values, dtype=np.float64)
    expected = number_of_multi_indices(dimension + 1, order)
    if v.shape != (expected,):
        raise ShapeError(
            f"values must have shape ({expected},) for order {order} in {dimension} coordinates "
            f"and the constant; got {v.shape}"
        )
    return v


def _split(block: Sequence[int], dimension: int) -> tuple[list[int], list[int]]:
    inside = sorted({int(i) for i in block})
    outside = [j for j in range(dimension) if j not in inside]
    if not outside or any(not 0 <= i < dimension for i in inside) or len(inside) != len(block):
        raise ShapeError(
            f"block must name distinct coordinates from 0 to {dimension - 1} and leave at least "
            f"one out; got {list(block)}"
        )
    return inside, outside


@lru_cache(maxsize=64)
def _raised(outside: int, degree: int, powers: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns of the monomials g without x_j, and those of x_j g, one row for each j."""
    columns = _block(range(outside), degree, powers)
    ranks = rank_multi_indices(columns, outside + 1)
    by_rank = np.argsort(ranks)
    sources, targets = [], []
    for label in range(1, outside + 1):
        # a leading 0 is room for one more factor
        source = np.flatnonzero((columns[:, 0] == 0) & (columns != label).all(axis=1))
        raised = columns[source]
        raised[:, 0] = label
        raised.sort(axis=1)
        wanted = rank_multi_indices(raised, outside + 1)
        sources.append(source)
        targets.append(by_rank[np.searchsorted(ranks, wanted, sorter=by_rank)])
    return np.array(sources), np.array(targets)


def _multiplication_matrices(projected: Array, outside: int, degree: int, powers: bool) -> Array:
    """``M_j`` with ``M_j K[:, g] = K[:, g x_j]`` for all g without j, by least squares."""
    source, target = _raised(outside, degree, powers)
    columns = projected.T
    basis, triangle = np.linalg.qr(columns[source])
    # the pseudo-inverse of the small factor: singular values are those of K[:, g]
    inverse = np.linalg.pinv(triangle, rcond=1e-13)
    solution = inverse @ (basis.swapaxes(1, 2) @ columns[target])
    return np.asarray(solution.swapaxes(1, 2))


def _real_span(vectors: NDArray[Any]) -> Array:
    """Real columns that span the same space: a + b and a - b for each pair a +- ib."""
    return np.asarray(vectors.real + vectors.imag)


def affine_components(
    values: ArrayLike,
    order: int,
    dimension: int,
    rank: int,
    block: Sequence[int],
    degree: int,
    *,
    powers: bool = False,
    rng: int | np.random.Generator | None = None,
    n_draws: int = 20,
) -> AffineComponents:
    """Weights and means of a mixture of product distributions from one split of the coordinates.

    Parameters
    ----------
    values : array_like of shape (C(d + m, m),)
        All moments up to order m as in :func:`flattening`; only products over the split that the
        method reads need to be known.
    order, dimension, rank : int
        m, d and the number r of components.
    block : sequence of int
        Coordinates of block S.
    degree : int
        Degree p of the monomials of block S.
    powers : bool, default False
        Whether monomials inside a block may have powers, which raises the bound on `rank`.
    rng : int, Generator or None
        Source of the random combinations of multiplication matrices.
    n_draws : int, default 20
        How many combinations are tried.

    Returns
    -------
    AffineComponents
        Real weights and means, with the evidence.

    Raises
    ------
    RankBoundError
        If the split has fewer than `rank` rows, or fewer columns without one coordinate of T.
    ShapeError
        If `values` or `block` do not fit `order` and `dimension`.
    ValueError
        If a moment that the split reads is not known.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, arXiv:2102.04500, section 3 (order 3) and arXiv:2401.01337,
       section 3 (higher order). The affine form and its dual read-out are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.core.indices import multi_indices
    >>> means = np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 1.0]])
    >>> one = np.column_stack([np.ones(2), means])
    >>> moments = np.array([0.25, 0.75]) @ one[:, multi_indices(4, 3)].prod(axis=2)
    >>> found = affine_components(moments, 3, 3, 2, block=[0], degree=1, rng=0)
    >>> np.round(np.sort(found.weights), 9).tolist()
    [0.25, 0.75]
    """
    v = _checked(values, order, dimension)
    inside, outside = _split(block, dimension)
    generator = np.random.default_rng(rng)
    rows = _block(inside, degree, powers)
    columns = _block(outside, order - degree, powers)
    form: Form = "power" if powers else "affine"
    room = min(split_sides(dimension, order, (degree, len(inside)), form))
    if not 1 <= rank <= room:
        raise RankBoundError(
            f"rank={rank}: the split into {len(inside)} and {len(outside)} coordinates with "
            f"degree {degree} determines at most {room} components"
        )
    matrix = _look_up(v, rows, columns, order, dimension)
    if not np.isfinite(matrix).all():
        i, j = np.argwhere(~np.isfinite(matrix))[0]
        factors = [label - 1 for label in (*rows[i].tolist(), *columns[j].tolist()) if label]
        raise ValueError(
            f"the split needs the moment of the coordinates {factors}, which is not known"
        )
    left, singular, _ = np.linalg.svd(matrix, full_matrices=False)
    basis = left[:, :rank]
    projected = basis.T @ matrix
    matrices = _multiplication_matrices(projected, len(outside), order - degree, powers)
    vectors, _ = joint_eigenvectors(matrices, rng=generator, n_draws=n_draws)
    sizes = np.linalg.norm(vectors, axis=0)
    n_complex = int(np.sum(np.linalg.norm(vectors.imag, axis=0) > 1e-8 * sizes))
    real = _real_span(vectors)
    evaluations = basis @ real
    scale = evaluations[0]
    tiny = 1e-12 * np.abs(evaluations).max(axis=0)
    real = real / np.where(np.abs(scale) < tiny, tiny, scale)
    weights, means = _read_out(v, order, dimension, rows, basis, real, inside, outside)
    return AffineComponents(weights, means, singular, n_complex, float(np.linalg.cond(vectors)))


def _read_out(
    values: Array,
    order: int,
    dimension: int,
    rows: NDArray[np.int64],
    basis: Array,
    real: Array,
    inside: list[int],
    outside: list[int],
) -> tuple[Array, Array]:
    """Weights and means by functionals dual to the components: ``E[l_s g] = w_s E_s[g]``."""
    dual = np.linalg.pinv(real) @ basis.T
    linear = np.array([[0], *([j + 1] for j in outside)], dtype=np.int64)
    moments = dual @ _look_up(values, rows, linear, order, dimension)
    weights = moments[:, 0]
    safe = np.where(np.abs(weights) < 1e-12, 1e-12, weights)
    means = np.zeros((len(weights), dimension))
    means[:, outside] = moments[:, 1:] / safe[:, None]
    if inside:
        means[:, inside] = (basis @ real)[1 : 1 + len(inside)].T
    return weights, means
