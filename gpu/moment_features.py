"""Monomial features of data rows and their Gram matrix, the inner loop of every moment pass.

The features of a row z are its monomials of degree 0 to q, degree by degree, lexicographic within
a degree: square-free ones, or all of them. Each is its *parent* (the monomial without its last
coordinate) times one coordinate, so that a feature costs one multiplication.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import IndexArray, rank_multi_indices, rank_square_free
from tensoralg.core.monomials import graded_indices
from tensoralg.gpu.namespaces import namespace_of

__all__ = [
    "FeaturePlan",
    "chunk_mean",
    "chunk_rows",
    "feature_count",
    "feature_plan",
    "gram_of_rows",
    "reference_features",
    "rows_of",
]

FloatArray = NDArray[np.float64]

# The features of one row chunk should stay in a core's second-level cache ...
_CACHE_BYTES = 512 * 1024
_FEWEST_ROWS, _MOST_ROWS = 256, 1024
# ... and on an accelerator a chunk should be large, but a small part of its memory.
_DEVICE_ELEMENTS = 2**24
_MEAN_ROWS = 2**12


def feature_count(dimension: int, degree: int, *, powers: bool = False) -> int:
    """Count the features of degree 0 to `degree`.

    Parameters
    ----------
    dimension : int
        Number d of coordinates.
    degree : int
        Highest degree q of a feature.
    powers : bool, default False
        Count all monomials instead of the square-free ones.

    Returns
    -------
    int
        sum_{k<=q} C(d, k), or C(d+q, q) with powers.

    Examples
    --------
    >>> feature_count(15, 2), feature_count(15, 2, powers=True)
    (121, 136)
    """
    if powers:
        return comb(dimension + degree, degree)
    return sum(comb(dimension, k) for k in range(min(degree, dimension) + 1))


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


def reference_features(points: FloatArray, degree: int, *, powers: bool = False) -> FloatArray:
    """Features by their definition: the slow way that the others are tested against.

    Parameters
    ----------
    points : ndarray of float64, shape (N, d)
        The rows.
    degree : int
        Highest degree q of a feature.
    powers : bool, default False
        All monomials instead of the square-free ones.

    Returns
    -------
    ndarray of float64, shape (N, n)
        One column for each feature.

    Examples
    --------
    >>> reference_features(np.array([[2.0, 3.0]]), 2)
    array([[1., 2., 3., 6.]])
    """
    monomials = graded_indices(points.shape[1], degree, powers=powers)
    return np.concatenate([points[:, indices].prod(axis=-1) for indices in monomials], axis=1)


def gram_of_rows(
    X: Any,
    weight: Any,
    shift: FloatArray,
    scale: FloatArray,
    plan: FeaturePlan,
    left: int,
    *,
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
    plan : FeaturePlan
        The n features of the right side.
    left : int
        The left side has the first `left` features.
    missing : bool, default False
        NaN marks a missing value: it adds nothing to the products that it takes part in.

    Returns
    -------
    gram : array of float64, shape (left, n)
        sum_n w_n V(z_n)[:left]^T V(z_n), in X's namespace and on its device.
    mask_gram : array of float64, shape (left, n), or None
        With `missing`, the sums of the weights of the rows that took part in each entry.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> gram, _ = gram_of_rows(X, None, np.zeros(2), np.ones(2), feature_plan(2, 2), 3)
    >>> gram[1].tolist()  # sums of x_0, x_0^2, x_0 x_1, x_0^2 x_1
    [4.0, 10.0, 14.0, 38.0]
    """
    if isinstance(X, np.ndarray):
        return _gram_numpy(X, weight, shift, 1.0 / scale, plan, left, missing)
    return _gram_generic(X, weight, shift, scale, plan, left, missing)


def chunk_mean(X: Any, weight: Any, *, missing: bool = False) -> Any:
    """Weighted mean of every column, in one pass over row chunks.

    Parameters
    ----------
    X : array, shape (N, d)
        Real rows of any namespace.
    weight : array, shape (N,), or None
        Weights >= 0, not all 0; None means 1.
    missing : bool, default False
        NaN marks a missing value, which is left out; a column without any value has mean 0.

    Returns
    -------
    array of float64, shape (d,)
        In X's namespace. A constant column comes out without rounding.

    Examples
    --------
    >>> chunk_mean(np.array([[1.0, 5.0], [3.0, 5.0]]), None).tolist()
    [2.0, 5.0]
    """
    xp = namespace_of(X)
    origin: Any = None
    total: Any = None
    mass: Any = None
    for rows, w in rows_of(X, weight, _MEAN_ROWS):
        factor = xp.ones_like(rows[:, 0]) if w is None else w
        present = None
        if missing:
            present = ~xp.isnan(rows)
            rows = xp.where(present, rows, 0.0 if origin is None else origin)
        if origin is None:
            # differences from a row of the data keep the sums small
            origin = rows[0, :]
            total, mass = xp.zeros_like(origin), xp.zeros_like(origin)
        total = total + factor @ (rows - origin)
        mass = mass + (
            xp.sum(factor) if present is None else factor @ xp.astype(present, xp.float64)
        )
    return origin + total / xp.where(mass > 0, mass, xp.ones_like(mass))


def rows_of(X: Any, weight: Any, size: int) -> Iterator[tuple[Any, Any]]:
    """Cut rows into chunks of `size` without those of weight 0, as float64 arrays.

    Parameters
    ----------
    X : array, shape (N, d)
        Real rows of any namespace.
    weight : array, shape (N,), or None
        Weights >= 0, or None.
    size : int
        Rows in a chunk.

    Yields
    ------
    rows : array of float64, shape (n, d)
        A chunk with n <= size; never empty; C-contiguous in numpy.
    weight : array of float64, shape (n,), or None
        Its weights, all positive.

    Examples
    --------
    >>> [len(rows) for rows, _ in rows_of(np.ones((5, 2)), np.array([1, 1, 0, 1, 1.0]), 2)]
    [2, 1, 1]
    """
    xp = namespace_of(X)
    for start in range(0, X.shape[0], size):
        stop = min(start + size, X.shape[0])
        rows = X[start:stop, :]
        w = None
        if weight is not None:
            w = xp.astype(weight[start:stop], xp.float64)
            keep = w > 0
            if not bool(xp.all(keep)):
                rows, w = rows[keep], w[keep]
                if rows.shape[0] == 0:
                    continue
        if isinstance(rows, np.ndarray):
            yield np.ascontiguousarray(rows, dtype=np.float64), w
        else:
            yield xp.astype(rows, xp.float64), w


def chunk_rows(features: int) -> int:
    """Rows whose features fit the second-level cache, a power of two.

    Parameters
    ----------
    features : int
        Features of a row.

    Returns
    -------
    int
        Between 256 (fewer make the matrix product slow) and 1024.

    Examples
    --------
    >>> chunk_rows(121), chunk_rows(5000)
    (512, 256)
    """
    fitting = _CACHE_BYTES // (8 * features)
    return max(_FEWEST_ROWS, min(_MOST_ROWS, 1 << max(fitting, 1).bit_length() - 1))


def _gram_numpy(
    X: NDArray[Any],
    weight: NDArray[Any] | None,
    shift: FloatArray,
    inverse_scale: FloatArray,
    plan: FeaturePlan,
    left: int,
    missing: bool,
) -> tuple[FloatArray, FloatArray | None]:
    """Feature sweeps into one buffer that stays in cache, a matrix product behind each."""
    from tensoralg.gpu.moment_kernels import expand_features, standardise_rows

    d, n = plan.dimension, plan.size
    size = min(chunk_rows(n), X.shape[0])
    gram, product = np.zeros((left, n)), np.empty((left, n))
    mask_gram = np.zeros((left, n)) if missing else None
    buffer, points_buffer = np.empty(n * size), np.empty(d * size)
    # both sides carry the square root of the weight, so that one buffer serves both
    separate = missing or weight is not None

    def add_product(features: FloatArray, target: FloatArray) -> None:
        # equal sides are recognised by numpy: a symmetric product at half the cost
        np.matmul(features[:left], features.T, out=product)
        np.add(target, product, out=target)

    with np.errstate(invalid="ignore", over="ignore"):
        for rows, w in rows_of(X, weight, size):
            count = len(rows)
            features = buffer[: n * count].reshape(n, count)
            features[0] = 1.0 if w is None else np.sqrt(w)
            points = features[1 : d + 1]
            if separate:
                points = points_buffer[: d * count].reshape(d, count)
            standardise_rows(rows, shift, inverse_scale, points)
            if mask_gram is not None:
                absent = np.isnan(points)
                points[absent] = 0.0
            first = 1 if separate else d + 1
            expand_features(features, points, plan.parent, plan.coordinate, first)
            add_product(features, gram)
            if mask_gram is not None:
                np.logical_not(absent, out=points, casting="unsafe")
                expand_features(features, points, plan.parent, plan.coordinate, 1)
                add_product(features, mask_gram)
    return gram, mask_gram


def _gram_generic(
    X: Any,
    weight: Any,
    shift: FloatArray,
    scale: FloatArray,
    plan: FeaturePlan,
    left: int,
    missing: bool,
) -> tuple[Any, Any]:
    """Do the same through the array-API standard, in X's namespace and on its device."""
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

    gram = xp.zeros((left, plan.size), dtype=xp.float64, device=device)
    mask_gram = xp.zeros_like(gram) if missing else None
    for rows, w in rows_of(X, weight, max(1, _DEVICE_ELEMENTS // plan.size)):
        points = (rows - origin) / unit
        if mask_gram is not None:
            absent = xp.isnan(points)
            points = xp.where(absent, xp.zeros_like(points), points)
            mask_gram = mask_gram + product(xp.astype(~absent, xp.float64), w)
        gram = gram + product(points, w)
    return gram, mask_gram
