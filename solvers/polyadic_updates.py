"""One factor of a polyadic model, given the others: least squares, free or nonnegative."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of, to_numpy

__all__ = [
    "cancellation",
    "gram_matrix",
    "hadamard",
    "solve_factor",
    "solve_nonnegative_factor",
    "unit_columns",
]

FloatArray = NDArray[np.float64]

# squared distance of a unit column from the span of the others below which the Gram matrix is
# taken as singular: its inverse amplifies the errors of the right-hand side
_DEPENDENT = {
    "float64": 1e-13,
    "float32": 1e-9,
    "tf32": 1e-5,
    "float16": 1e-5,
    "bfloat16": 1e-4,
    "int8": 1e-4,
    "float8": 1e-3,
}
_INNER_PASSES = 30
_INNER_TOL = 1e-3


def gram_matrix(factor: Any) -> FloatArray:
    """Inner products of the columns of a factor, in float64, on the host.

    Parameters
    ----------
    factor : array, shape (n, r)
        float32 or float64, any namespace.

    Returns
    -------
    numpy.ndarray, shape (r, r)
        Only these r * r numbers leave a device.

    Examples
    --------
    >>> gram_matrix(np.ones((3, 2), dtype=np.float32)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    if isinstance(factor, np.ndarray):
        wide = factor.astype(np.float64, copy=False)
        result: FloatArray = wide.T @ wide
        return result
    xp = namespace_of(factor)
    wide = xp.astype(factor, xp.float64, copy=False)
    return to_numpy(xp.matmul(wide.T, wide))


def solve_factor(gram: FloatArray, product: Any, *, precision: str = "float64") -> Any:
    """Solve ``factor @ gram = product``; the solution of minimum norm where `gram` is singular.

    Parameters
    ----------
    gram : numpy.ndarray, shape (r, r)
        Elementwise product of the other factors' Gram matrices, with a diagonal of ones.
    product : array of float64, shape (n, r)
        The tensor contracted with the other factors.
    precision : str, default "float64"
        Policy by which the product was computed: it says when `gram` is too close to singular to be
        inverted.

    Returns
    -------
    array of float64, shape (n, r)
        In the namespace of `product`.

    Examples
    --------
    >>> solve_factor(np.ones((2, 2)), np.array([[2.0, 2.0]])).round(12).tolist()
    [[1.0, 1.0]]
    """
    from scipy.linalg import lapack  # slow to import

    rank = len(gram)
    cholesky, info = lapack.dpotrf(gram, lower=1)
    regular = info == 0 and min(cholesky.diagonal()) ** 2 > _DEPENDENT[precision]
    if regular and isinstance(product, np.ndarray):
        solution, _ = lapack.dpotrs(cholesky, product.T, lower=1)
        result: FloatArray = solution.T
        return result
    if regular:
        inverse, _ = lapack.dpotrs(cholesky, np.eye(rank), lower=1)
    else:
        values, vectors = np.linalg.eigh(gram)
        kept = values > _DEPENDENT[precision] * max(values[-1], 0.0)
        inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    xp = namespace_of(product)
    return xp.matmul(product, _beside(product, inverse))


def solve_nonnegative_factor(gram: FloatArray, product: Any, factor: Any) -> Any:
    """Improve a nonnegative factor by hierarchical alternating least squares (HALS).

    Columns are minimised one after the other, in closed form, with several passes over all of
    them; the error never grows. A column that vanishes stays zero in the result.

    Parameters
    ----------
    gram : numpy.ndarray, shape (r, r)
        Elementwise product of the other factors' Gram matrices.
    product : array of float64, shape (n, r)
        The tensor contracted with the other factors.
    factor : array of float64, shape (n, r)
        Where the passes start; nonnegative.

    Returns
    -------
    array of float64, shape (n, r)
        Nonnegative.

    References
    ----------
    Cichocki, Zdunek and Amari, Hierarchical ALS algorithms for nonnegative matrix and 3D tensor
    factorization, ICA 2007. Gillis and Glineur, Accelerated multiplicative updates and
    hierarchical ALS algorithms, Neural Computation 24, 2012 (several inner passes).

    Examples
    --------
    >>> gram, product = np.eye(2), np.array([[3.0, -1.0]])
    >>> solve_nonnegative_factor(gram, product, np.ones((1, 2))).tolist()
    [[3.0, 0.0]]
    """
    if isinstance(product, np.ndarray):
        result = np.array(factor, dtype=np.float64, order="C")
        from tensoralg.solvers import polyadic_row_loops  # numba is slow to load

        polyadic_row_loops.descend_alike(
            gram, np.ascontiguousarray(product), result, _INNER_PASSES, _INNER_TOL
        )
        return result
    xp = namespace_of(product)
    columns = [factor[:, s] for s in range(len(gram))]
    for _ in range(_INNER_PASSES):
        largest = 0.0
        for s in range(len(gram)):
            if gram[s, s] <= 0.0:
                continue
            gradient = product[:, s] - sum(
                column * float(gram[k, s]) for k, column in enumerate(columns)
            )
            new = xp.clip(columns[s] + gradient / float(gram[s, s]), min=0.0)
            largest = max(largest, float(xp.max(xp.abs(new - columns[s]))))
            columns[s] = new
        scale = max(float(xp.max(column)) for column in columns)
        if largest <= _INNER_TOL * scale:
            break
    return xp.stack(columns, axis=1)


def unit_columns(factor: Any, dtype: Any, fallback: Any = None) -> tuple[Any, FloatArray]:
    """Divide columns by their norms; a zero column becomes that of the fallback, with norm zero.

    Parameters
    ----------
    factor : array of float64, shape (n, r)
        Any namespace.
    dtype : dtype
        Of the result.
    fallback : array, shape (n, r), optional
        Unit columns in that dtype; None means columns of equal entries.

    Returns
    -------
    array, shape (n, r)
        Unit columns, so rounded.
    numpy.ndarray, shape (r,)
        Norms, on the host.

    Examples
    --------
    >>> unit, norms = unit_columns(np.array([[3.0, 0.0], [4.0, 0.0]]), np.float64, np.eye(2))
    >>> unit.tolist(), norms.tolist()
    ([[0.6, 0.0], [0.8, 1.0]], [5.0, 0.0])
    """
    if isinstance(factor, np.ndarray):
        norms = np.sqrt(np.einsum("is,is->s", factor, factor))
        if norms.all():
            return (factor / norms).astype(dtype, copy=False), norms
    xp = namespace_of(factor)
    there = xp.sqrt(xp.sum(factor * factor, axis=0))
    nonzero = there > 0.0
    scaled = factor / xp.where(nonzero, there, xp.ones_like(there))
    if fallback is None:
        fallback = xp.full_like(factor, 1.0 / math.sqrt(factor.shape[0]))
    unit = xp.where(nonzero, xp.astype(scaled, dtype), xp.astype(fallback, dtype))
    return unit, to_numpy(there)


def hadamard(grams: Sequence[FloatArray]) -> FloatArray:
    """Elementwise product of matrices.

    Parameters
    ----------
    grams : sequence of (r, r) arrays
        At least one.

    Returns
    -------
    (r, r) array
        A new one.

    Examples
    --------
    >>> hadamard([np.full((1, 1), 2.0), np.full((1, 1), 3.0)]).tolist()
    [[6.0]]
    """
    result = grams[0].copy()
    for gram in grams[1:]:
        result *= gram
    return result


def _beside(array: Any, values: FloatArray) -> Any:
    """Small host numbers next to an array of any library."""
    if isinstance(array, np.ndarray):
        return values
    return namespace_of(array).asarray(values, device=device_of(array))


def cancellation(weights: FloatArray, model_norm: float) -> float:
    """Tell how much larger the terms of a model are together than the model.

    Parameters
    ----------
    weights : (r,) array
        Norms of the terms.
    model_norm : float
        Norm of their sum.

    Returns
    -------
    float
        About 1 for terms that do not cancel; grows without bound where a best model does not
        exist.

    Examples
    --------
    >>> cancellation(np.array([3.0, 4.0]), 5.0)
    1.0
    """
    return float(np.linalg.norm(weights)) / model_norm if model_norm > 0.0 else math.inf
