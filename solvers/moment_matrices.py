"""Moment and localizing matrices as sparse linear maps of the moments, without loops over entries.

Moments of degree at most D in N variables are one vector in the order of
``multi_indices(N + 1, D)``, where index 0 stands for the constant. The constant sorts first, so the
position of a monomial does not depend on D, and the moments of degree at most d lead the list.
Symmetric matrices are vectors in the order of :mod:`tensoralg.solvers.svec`.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import multi_indices, number_of_multi_indices, rank_multi_indices
from tensoralg.solvers.svec import triangle_indices

__all__ = [
    "congruence",
    "dehomogenize",
    "localizing_map",
    "rehomogenize",
    "simplex_equations",
    "times_factor",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_CHUNK = 2**23  # numbers held at a time: 64 MiB


def dehomogenize(entries: NDArray[Any], dimension: int, order: int) -> NDArray[Any]:
    """Moments of ``x = (u_1, .., u_{n-1})`` when ``e'u = 1``, from a tensor's entries.

    Parameters
    ----------
    entries : ndarray, shape (C(n+d-1, d),)
        Entries A_a over ``multi_indices(n, d)``; objects (Fractions, integers) stay exact.
    dimension : int
        Dimension n, at least 1.
    order : int
        Order d, at least 0.

    Returns
    -------
    ndarray, shape (C(n-1+d, d),)
        ``w_b = sum_{|g| = d-|b|} m(g) A_{(b,0)+g}`` in the order of ``multi_indices(n, d)`` with
        index 0 the constant and index i the coordinate i-1 of the tensor. The tensor need not be
        normalised: ``w[0]`` is ``<A, e^d>``.

    Raises
    ------
    ShapeError
        A wrong number of entries.

    Examples
    --------
    >>> dehomogenize(np.array([1, 0, 2]), 2, 2).tolist()
    [3, 1, 1]
    """
    return _substitute(entries, dimension, order, [1] * dimension, dimension - 1)


def rehomogenize(moments: NDArray[Any], dimension: int, order: int) -> NDArray[Any]:
    """Invert `dehomogenize`: a tensor's entries from the moments of x.

    Parameters
    ----------
    moments : ndarray, shape (C(n-1+d, d),)
        Moments of degree at most d, index 0 the constant; objects stay exact.
    dimension : int
        Dimension n of the tensor.
    order : int
        Order d of the tensor.

    Returns
    -------
    ndarray, shape (C(n+d-1, d),)
        Entries over ``multi_indices(n, d)``.

    Raises
    ------
    ShapeError
        A wrong number of moments.

    Examples
    --------
    >>> rehomogenize(np.array([3, 1, 1]), 2, 2).tolist()
    [1, 0, 2]
    """
    return _substitute(moments, dimension, order, [1] + [-1] * (dimension - 1), 0)


def _substitute(
    values: NDArray[Any], n: int, d: int, coefficients: Sequence[int], removed: int
) -> NDArray[Any]:
    """Entries of a symmetric tensor after the variable `removed` gave way to a linear form.

    Contracting j times with the form's coefficients gives all entries that hold the new variable
    j times. The new variable takes the other end of the order: 0 if n-1 was removed, or else n-1.
    """
    count = number_of_multi_indices(n, d)
    if values.shape != (count,):
        raise ShapeError(f"expected {count} values for n={n}, d={d}; got shape {values.shape}")
    shift, new = (1, 0) if removed == n - 1 else (-1, n - 1)
    result = np.empty_like(values)
    for j in range(d + 1):
        indices = multi_indices(n, d - j)
        keep = (indices != removed).all(axis=1)
        kept = indices[keep] + shift
        ends = np.full((len(kept), j), new)
        where = np.concatenate([ends, kept] if new == 0 else [kept, ends], axis=1)
        result[rank_multi_indices(where, n)] = values[keep]
        if j < d:
            values = _contract(values, multi_indices(n, d - j - 1), n, coefficients)
    return result


def _contract(
    values: NDArray[Any], indices: Indices, n: int, coefficients: Sequence[int]
) -> NDArray[Any]:
    """Sum over i of coefficients[i] times the entries at ``indices`` joined by i."""
    total = np.zeros(len(indices), dtype=values.dtype)
    for i, c in enumerate(coefficients):
        joined = np.sort(np.column_stack([indices, np.full(len(indices), i)]), axis=1)
        total = total + c * values[rank_multi_indices(joined, n)]
    return np.asarray(total)


def localizing_map(
    n_variables: int,
    degree: int,
    basis_degree: int,
    weights: Sequence[Sequence[tuple[int, int]]] = (),
) -> sp.csc_array:
    """Matrix that takes moments to the svec of the localizing matrix of a product of linear forms.

    Parameters
    ----------
    n_variables : int
        Number N of variables.
    degree : int
        Largest degree D of the moments.
    basis_degree : int
        Degree t of the monomials b, with ``2 t + len(weights) <= D``.
    weights : sequence of linear forms, default ()
        Each a sequence of (coefficient, index), index 0 the constant; their product is g. None at
        all gives the moment matrix.

    Returns
    -------
    csc_array, shape (s(s+1)/2, C(N+D, D))
        ``map @ w`` is the svec of L_w(g b b'), s = C(N+t, t).

    Raises
    ------
    ValueError
        ``2 t + len(weights)`` exceeds D.

    Examples
    --------
    >>> localizing_map(1, 2, 1).toarray().round(3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.414, 0.0], [0.0, 0.0, 1.0]]
    """
    if 2 * basis_degree + len(weights) > degree:
        raise ValueError(
            f"basis_degree={basis_degree} and {len(weights)} factors need moments of degree "
            f"{2 * basis_degree + len(weights)}; got degree={degree}"
        )
    n = n_variables + 1
    basis = multi_indices(n, basis_degree)
    rows, columns = triangle_indices(len(basis))
    pairs = np.concatenate([basis[rows], basis[columns]], axis=1)
    scale = np.where(rows == columns, 1.0, np.sqrt(2.0))
    terms = list(product(*weights))
    labels = np.array([[i for _, i in term] for term in terms], dtype=np.int64)
    values = np.array([np.prod([c for c, _ in term]) for term in terms], dtype=np.float64)
    # one row of indices for every (term, pair)
    joined = np.concatenate(
        [
            np.broadcast_to(pairs, (len(terms), *pairs.shape)),
            np.broadcast_to(labels[:, None, :], (len(terms), len(pairs), labels.shape[1])),
        ],
        axis=2,
    )
    positions = rank_multi_indices(np.sort(joined, axis=2), n)
    entries = np.outer(values, scale)
    where = np.broadcast_to(np.arange(len(pairs)), positions.shape)
    shape = (len(pairs), number_of_multi_indices(n, degree))
    return sp.csc_array((entries.ravel(), (where.ravel(), positions.ravel())), shape=shape)


def times_factor(polynomials: Array, n_variables: int, degree: int, factor: int) -> Array:
    """Multiply polynomials in x by ``u_i``, where ``u = (x, 1 - e'x)``.

    Parameters
    ----------
    polynomials : ndarray, shape (q, C(N+e, e))
        Coefficients, in the order of ``multi_indices(N + 1, e)``.
    n_variables : int
        Number N of variables.
    degree : int
        Degree e.
    factor : int
        Index i in 0 .. N.

    Returns
    -------
    ndarray, shape (q, C(N+e+1, e+1))
        Coefficients of the products.

    Examples
    --------
    >>> times_factor(np.array([[1.0]]), 2, 0, 2).tolist()
    [[1.0, -1.0, -1.0]]
    """
    n = n_variables + 1
    base = multi_indices(n, degree)
    result = np.zeros((len(polynomials), number_of_multi_indices(n, degree + 1)))
    last = [(1, 0), *((-1, i) for i in range(1, n))]
    for sign, index in [(1, factor + 1)] if factor < n_variables else last:
        joined = np.sort(np.column_stack([base, np.full(len(base), index)]), axis=1)
        result[:, rank_multi_indices(joined, n)] += sign * polynomials
    return result


def simplex_equations(n: int, degree: int) -> sp.csc_array:
    """``y_b - sum_i y_{b+e_i} = 0`` for all |b| < degree, in n variables.

    Parameters
    ----------
    n, degree : int
        Number of variables and largest degree of the moments.

    Returns
    -------
    csc_array, shape (C(n+degree-1, n), C(n+degree, n))
        What moments on ``e'u = 1`` are mapped to zero by.

    Examples
    --------
    >>> simplex_equations(2, 1).toarray().tolist()
    [[1.0, -1.0, -1.0]]
    """
    base = multi_indices(n + 1, degree - 1)
    joined = np.stack([np.column_stack([base, np.full(len(base), i)]) for i in range(n + 1)])
    positions = rank_multi_indices(np.sort(joined, axis=2), n + 1)
    signs = np.r_[1.0, -np.ones(n)]
    values = np.broadcast_to(signs[:, None], positions.shape)
    rows = np.broadcast_to(np.arange(len(base)), positions.shape)
    shape = (len(base), number_of_multi_indices(n + 1, degree))
    return sp.csc_array((values.ravel(), (rows.ravel(), positions.ravel())), shape=shape)


def congruence(change: Array, matrices: sp.csc_array) -> sp.csc_array:
    """Apply ``X -> change X change'`` to many symmetric matrices.

    Parameters
    ----------
    change : ndarray, shape (r, s)
        New basis in terms of the old one.
    matrices : csc_array, shape (s(s+1)/2, q)
        One matrix per column, as svec.

    Returns
    -------
    csc_array, shape (r(r+1)/2, q)
        The new matrices; exact zeros are not stored.

    Examples
    --------
    >>> from tensoralg.solvers.svec import svec
    >>> X = sp.csc_array(svec(np.array([[1.0, 2.0], [2.0, 3.0]]))[:, None])
    >>> congruence(np.array([[1.0, 1.0]]), X).toarray().tolist()
    [[8.0]]
    """
    r, s = change.shape
    q = matrices.shape[1]
    width = max(1, _CHUNK // (s * max(r, s)))
    parts = [_congruence(change, matrices[:, i : i + width]) for i in range(0, q, width)]
    if len(parts) == 1:
        return parts[0]
    return sp.csc_array(sp.hstack(parts) if parts else (r * (r + 1) // 2, 0))


def _congruence(change: Array, matrices: sp.csc_array) -> sp.csc_array:
    r, s = change.shape
    q = matrices.shape[1]
    rows, columns = triangle_indices(s)
    full = np.zeros((s, s, q))
    # dense: a quarter of the time of a sparse product where it matters
    values = matrices.toarray() * np.where(rows == columns, 1.0, np.sqrt(0.5))[:, None]
    full[rows, columns] = values
    full[columns, rows] = values
    half = (change @ full.reshape(s, s * q)).reshape(r, s, q)
    result = np.matmul(change, half)  # (r, r, q)
    rows, columns = triangle_indices(r)
    return sp.csc_array(
        result[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))[:, None]
    )
