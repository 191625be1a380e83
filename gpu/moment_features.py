"""Monomial features of data rows and their Gram matrix, the inner loop of every moment pass.

The features of a row z are its monomials of degree 0 to q, degree by degree, lexicographic within
a degree: square-free ones, or all of them. Each is its *parent* (the monomial without its last
coordinate) times one coordinate, so that a feature costs one multiplication.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import IndexArray, rank_multi_indices, rank_square_free
from tensoralg.core.monomials import graded_indices, number_of_monomials
from tensoralg.gpu.moment_sweep import sweep_gram
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.row_chunks import rows_of

__all__ = [
    "FeaturePlan",
    "feature_plan",
    "gram_of_rows",
    "product_gram",
]

FloatArray = NDArray[np.float64]

# The features of a chunk: as many as keep an accelerator busy, or as a core's cache holds.
_DEVICE_ELEMENTS = 2**24
_HOST_ELEMENTS = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class FeaturePlan:
    """How each feature is made from an earlier one.

    Parameters
    ----------
    dimension : int
        Number d of coordinates.
    offsets : tuple of int
        Position of the first feature of each degree, and the number n of features at the end.
    parent : ndarray of int64, shape (n,)
        Position of the monomial without its last coordinate; 0 for the constant.
    coordinate : ndarray of int64, shape (n,)
        The last coordinate of the monomial; 0 for the constant.
    """

    dimension: int
    offsets: tuple[int, ...]
    parent: IndexArray
    coordinate: IndexArray

    @property
    def size(self) -> int:
        """Number n of features."""
        return self.offsets[-1]


@lru_cache(maxsize=32)
def feature_plan(dimension: int, degree: int, *, powers: bool = False) -> FeaturePlan:
    """Plan the features of degree 0 to `degree`.

    Parameters
    ----------
    dimension : int
        Number d of coordinates.
    degree : int
        Highest degree q of a feature.
    powers : bool, default False
        All monomials instead of the square-free ones.

    Returns
    -------
    FeaturePlan
        Parents and coordinates of all features.

    Examples
    --------
    >>> feature_plan(3, 2).parent.tolist()
    [0, 0, 0, 0, 1, 1, 2]
    >>> feature_plan(3, 2).coordinate.tolist()
    [0, 0, 1, 2, 1, 2, 2]
    """
    monomials = graded_indices(dimension, degree, powers=powers)
    offsets = np.cumsum([0, *(len(indices) for indices in monomials)])
    parents = [np.zeros(1, dtype=np.int64)]
    rank = rank_multi_indices if powers else rank_square_free
    parents += [
        offsets[q - 1] + rank(monomials[q][:, :-1], dimension) for q in range(1, degree + 1)
    ]
    parent = np.concatenate(parents)
    coordinate = np.concatenate(
        [np.zeros(1, dtype=np.int64), *(indices[:, -1] for indices in monomials[1:])]
    )
    parent.flags.writeable = coordinate.flags.writeable = False
    return FeaturePlan(dimension, tuple(offsets.tolist()), parent, coordinate)


def gram_of_rows(
    X: Any,
    weight: Any,
    shift: FloatArray,
    scale: FloatArray,
    order: int,
    *,
    powers: bool = False,
    missing: bool = False,
) -> tuple[Any, Any]:
    """Weighted Gram matrix of the features of (X - shift) / scale, in one pass over the rows.

    The rows are taken in chunks, so that no temporary grows with N. Rows of weight 0 are dropped
    before anything is computed from them. NaN and infinite values are not looked for: they show
    as NaN or infinity in the result.

    Parameters
    ----------
    X : array, shape (N, d)
        Real rows of any array-API namespace; computed in float64 where they live.
    weight : array, shape (N,), or None
        Weights >= 0 in X's namespace; None means 1.
    shift, scale : ndarray of float64, shape (d,)
        Origin and unit of every coordinate, on the host.
    order : int
        Highest degree m of a product: the left side has the features up to degree a = floor(m/2),
        the right side those up to b = m - a.
    powers : bool, default False
        All monomials as features instead of the square-free ones.
    missing : bool, default False
        NaN marks a missing value: it adds nothing to the products that it takes part in.

    Returns
    -------
    gram : array of float64, shape (n_a, n_b)
        sum_n w_n V_a(z_n)^T V_b(z_n), in X's namespace and on its device.
    mask_gram : array of float64, shape (n_a, n_b), or None
        With `missing`, the sums of the weights of the rows that took part in each entry.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> gram, _ = gram_of_rows(X, None, np.zeros(2), np.ones(2), 3)
    >>> gram[1].tolist()  # sums of x_0, x_0^2, x_0 x_1, x_0^2 x_1
    [4.0, 10.0, 14.0, 38.0]
    """
    compute = sweep_gram if isinstance(X, np.ndarray) else product_gram
    return compute(X, weight, shift, scale, order, powers=powers, missing=missing)


def product_gram(
    X: Any,
    weight: Any,
    shift: FloatArray,
    scale: FloatArray,
    order: int,
    *,
    powers: bool = False,
    missing: bool = False,
) -> tuple[Any, Any]:
    """Compute what `gram_of_rows` says by one matrix product per chunk, in any namespace.

    Parameters
    ----------
    X, weight, shift, scale, order, powers, missing
        As in `gram_of_rows`.

    Returns
    -------
    gram, mask_gram : array of float64, shape (n_a, n_b)
        As in `gram_of_rows`.

    Examples
    --------
    >>> gram, _ = product_gram(np.array([[2.0]]), None, np.zeros(1), np.ones(1), 2)
    >>> gram.tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    plan = feature_plan(X.shape[1], order - order // 2, powers=powers)
    left = number_of_monomials(X.shape[1], order // 2, powers=powers)
    xp, device = namespace_of(X), array_api_compat.device(X)
    origin, unit = (xp.asarray(a, device=device) for a in (shift, scale))
    parent, coordinate = (
        xp.asarray(a.copy(), device=device) for a in (plan.parent, plan.coordinate)
    )

    def product(points: Any, w: Any) -> Any:
        blocks = [xp.ones((points.shape[0], 1), dtype=xp.float64, device=device)]
        for q in range(1, len(plan.offsets) - 1):
            degree = slice(plan.offsets[q], plan.offsets[q + 1])
            within = parent[degree] - plan.offsets[q - 1]
            blocks.append(
                xp.take(blocks[-1], within, axis=1) * xp.take(points, coordinate[degree], axis=1)
            )
        features = xp.concat(blocks, axis=1)
        right = features if w is None else features * w[:, None]
        return xp.matmul(xp.matrix_transpose(features[:, :left]), right)

    elements = _HOST_ELEMENTS if "cpu" in str(device).lower() else _DEVICE_ELEMENTS
    gram = xp.zeros((left, plan.size), dtype=xp.float64, device=device)
    mask_gram = xp.zeros_like(gram) if missing else None
    for rows, w in rows_of(X, weight, max(64, elements // plan.size)):
        points = (rows - origin) / unit
        if mask_gram is not None:
            absent = xp.isnan(points)
            points = xp.where(absent, xp.zeros_like(points), points)
            mask_gram = mask_gram + product(xp.astype(~absent, xp.float64), w)
        gram = gram + product(points, w)
    return gram, mask_gram
