"""Monomials: which ones there are up to a degree, and their values at points."""

import math
from typing import Any

import array_api_compat
import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import IndexArray, multi_indices, square_free_indices

__all__ = ["evaluate_monomials", "graded_indices", "number_of_monomials", "sum_of_powers"]

_LARGEST_CHUNK = 2**21  # numbers in one temporary: 16 MiB


def number_of_monomials(dimension: int, degree: int, *, powers: bool = False) -> int:
    """Count the monomials of degree 0 to `degree`.

    Parameters
    ----------
    dimension : int
        Number d of variables.
    degree : int
        Highest degree q, at least 0.
    powers : bool, default False
        False counts the square-free monomials only, True all.

    Returns
    -------
    int
        sum_{k<=q} C(d, k), or C(d+q, q) with powers.

    Examples
    --------
    >>> number_of_monomials(15, 2), number_of_monomials(15, 2, powers=True)
    (121, 136)
    """
    if powers:
        return math.comb(dimension + degree, degree)
    return sum(math.comb(dimension, k) for k in range(min(degree, dimension) + 1))


def graded_indices(dimension: int, degree: int, *, powers: bool = False) -> tuple[IndexArray, ...]:
    """List the monomials up to a degree, degree by degree.

    Parameters
    ----------
    dimension : int
        Number d of variables.
    degree : int
        Highest degree q, at least 0.
    powers : bool, default False
        False lists the square-free monomials only (products of distinct variables), True all.

    Returns
    -------
    tuple of ndarray of int64
        Item k, for k = 0 .. q, has shape (number of monomials of degree k, k): the variables of
        each monomial, lexicographically sorted.

    Examples
    --------
    >>> [indices.tolist() for indices in graded_indices(2, 2)]
    [[[]], [[0], [1]], [[0, 1]]]
    >>> graded_indices(2, 2, powers=True)[2].tolist()
    [[0, 0], [0, 1], [1, 1]]
    """
    if degree < 0:
        raise ValueError(f"degree must be at least 0; got {degree}")
    list_degree = multi_indices if powers else square_free_indices
    return tuple(list_degree(dimension, k) for k in range(degree + 1))


def evaluate_monomials(points: Any, indices: npt.ArrayLike) -> Any:
    """Evaluate monomials of one degree at points.

    Parameters
    ----------
    points : array_like, shape (r, n)
        One point per row: a numpy array, a list, or an array of another array-API namespace.
        Real or complex; integers and booleans are promoted to float64, float16 to float32.
    indices : array_like of int, shape (N, m)
        The variables of each monomial.

    Returns
    -------
    array, shape (r, N)
        Entry (s, k) is the product of ``points[s, indices[k]]``, in the points' namespace and
        dtype. Degree m = 0 gives ones.

    Raises
    ------
    ShapeError
        `points` or `indices` is not two-dimensional.
    IndexError
        An index outside ``0 .. n-1``.

    Examples
    --------
    >>> evaluate_monomials([[2.0, 3.0]], [[0, 0], [0, 1]]).tolist()
    [[4.0, 6.0]]
    """
    if not array_api_compat.is_array_api_obj(points):
        points = np.asarray(points)
    xp = array_api_compat.array_namespace(points)
    rows = np.asarray(indices, dtype=np.int64)
    if points.ndim != 2 or rows.ndim != 2:
        raise ShapeError(
            "points must have shape (r, n) and indices shape (N, m); "
            f"got {tuple(points.shape)} and {rows.shape}"
        )
    n = points.shape[1]
    if rows.size and not (rows.min() >= 0 and rows.max() < n):
        raise IndexError(f"indices must lie in 0 .. {n - 1}; got {rows.min()} .. {rows.max()}")
    if xp.isdtype(points.dtype, ("integral", "bool")):
        points = xp.astype(points, xp.float64)
    elif points.dtype == getattr(xp, "float16", None):
        points = xp.astype(points, xp.float32)
    device = array_api_compat.device(points)
    if rows.shape[1] == 0:
        shape = (points.shape[0], rows.shape[0])
        return xp.ones(shape, dtype=points.dtype, device=device)
    result = None
    for column in rows.T:
        positions = xp.asarray(np.ascontiguousarray(column), device=device)
        factor = xp.take(points, positions, axis=1)
        result = factor if result is None else result * factor
    return result


def sum_of_powers(
    weights: npt.NDArray[Any], points: npt.NDArray[Any], indices: IndexArray
) -> npt.NDArray[Any]:
    """Entries of a weighted sum of symmetric powers of points.

    Parameters
    ----------
    weights : ndarray, shape (r,)
        Real or complex.
    points : ndarray, shape (r, n)
        One point per row, real or complex.
    indices : ndarray of int, shape (N, m)
        The wanted entries.

    Returns
    -------
    ndarray of float64 or complex128, shape (N,)
        Entry k is ``sum_s weights[s] * prod(points[s, indices[k]])``, in double precision and
        without an r x N temporary.

    Examples
    --------
    >>> import numpy as np
    >>> sum_of_powers(np.ones(2), np.eye(2), np.array([[0, 0], [0, 1]])).tolist()
    [1.0, 0.0]
    """
    dtype = np.result_type(weights.dtype, points.dtype, np.float64)
    weights, points = weights.astype(dtype), points.astype(dtype)
    result = np.empty(len(indices), dtype=dtype)
    step = max(_LARGEST_CHUNK // max(len(points), 1), 1)
    for start in range(0, len(indices), step):
        rows = indices[start : start + step]
        result[start : start + step] = weights @ evaluate_monomials(points, rows)
    return result
