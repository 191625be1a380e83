"""The uniform probability measure on a simplex: moments, and bases that are orthonormal for it.

On the full simplex of points ``x >= 0, 1 - x_1 - .. - x_N >= 0`` write ``u = (x, 1 - e'x)``, which
has n = N + 1 entries. The measure is Dirichlet's with all parameters 1, hence [1]_

    E[u^b] = b_1! .. b_n! (n-1)! / (|b| + n - 1)!.

Moment and localizing matrices of this measure are Gram matrices of monomials. Their inverse
Cholesky factors turn the monomials into orthonormal polynomials; a semidefinite program written in
such a basis can be solved to rounding level, one written in monomials cannot.

References
----------
.. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
   arXiv:2206.12553, section 4.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from tensoralg.core.indices import multi_indices
from tensoralg.core.validation import integer_array, nonnegative_integer, positive_integer

__all__ = ["orthonormal_basis", "simplex_moments", "uniform_moments"]

Array = NDArray[np.float64]

_LARGEST_FACTORIAL = 170  # 171! exceeds float64


def simplex_moments(exponents: ArrayLike) -> Array:
    """Moments E[u^b] of the uniform measure on ``{u >= 0, e'u = 1}``.

    Parameters
    ----------
    exponents : array_like of int, shape (..., n)
        Exponents b of the n coordinates, at least 0.

    Returns
    -------
    ndarray, shape (...)
        The moments.

    Raises
    ------
    ValueError
        A negative exponent, or a degree so large that a factorial exceeds float64.

    Examples
    --------
    >>> simplex_moments([[0, 0], [1, 0], [1, 1]]).round(6).tolist()
    [1.0, 0.5, 0.166667]
    """
    powers = integer_array("exponents", exponents)
    if powers.size and powers.min() < 0:
        raise ValueError(f"exponents must be at least 0; got {powers.min()}")
    n = powers.shape[-1]
    degrees = powers.sum(axis=-1)
    top = int(degrees.max(initial=0)) + n - 1
    if top > _LARGEST_FACTORIAL:
        raise ValueError(
            f"exponents of degree {degrees.max()} in {n} coordinates need {top}!, which exceeds "
            f"float64; degree + n - 1 may be at most {_LARGEST_FACTORIAL}"
        )
    factorials = np.array([float(math.factorial(i)) for i in range(max(top, 0) + 1)])
    values: Array = factorials[powers].prod(axis=-1) * factorials[n - 1]
    return np.asarray(values / factorials[degrees + n - 1])


def uniform_moments(n_variables: int, degree: int) -> Array:
    """All moments E[x^b], |b| <= degree, of the uniform measure on the full simplex.

    Parameters
    ----------
    n_variables : int
        Number N of variables x, at least 1.
    degree : int
        Largest degree D, at least 0.

    Returns
    -------
    ndarray, shape (C(N+D, D),)
        In the order of ``multi_indices(N + 1, D)``, index 0 standing for the constant 1.

    Raises
    ------
    ValueError
        ``n_variables < 1`` or ``degree < 0``.

    Examples
    --------
    >>> uniform_moments(1, 2).round(6).tolist()
    [1.0, 0.5, 0.333333]
    """
    n = positive_integer("n_variables", n_variables) + 1
    indices = multi_indices(n, nonnegative_integer("degree", degree))
    counts = count_indices(indices, n)
    counts[:, 0] = 0  # the constant is 1, not 1 - e'x
    return simplex_moments(counts)


def orthonormal_basis(
    n_variables: int, degree: int, factors: tuple[int, ...] = ()
) -> tuple[Array, Array]:
    """Orthonormal polynomials of degree at most t for the uniform measure times a weight.

    Parameters
    ----------
    n_variables : int
        Number N of variables x.
    degree : int
        Largest degree t of the polynomials.
    factors : tuple of int, default ()
        The weight is the product of ``u_i`` over these i in 0 .. N, ``u = (x, 1 - e'x)``.

    Returns
    -------
    change : ndarray, shape (s, s)
        Lower triangular: ``change @ b`` is orthonormal, b the monomials of degree at most t in the
        order of ``multi_indices(N + 1, t)``, s = C(N+t, t).
    gram : ndarray, shape (s, s)
        Gram matrix of b; ``change @ gram @ change.T`` is the identity.

    Raises
    ------
    IndexError
        A factor outside 0 .. N.

    Examples
    --------
    >>> change, gram = orthonormal_basis(2, 2)
    >>> bool(abs(change @ gram @ change.T - np.eye(6)).max() < 1e-12)
    True
    """
    n = positive_integer("n_variables", n_variables) + 1
    if any(not 0 <= i < n for i in factors):
        raise IndexError(f"factors must lie in 0 .. {n - 1}; got {factors}")
    # columns: constant, x_1 .. x_N; the constant's column is reused for u_{n-1} = 1 - e'x
    counts = count_indices(multi_indices(n, degree), n)
    counts[:, 0] = 0
    counts = np.roll(counts, -1, axis=1)
    weight = np.bincount(np.asarray(factors, dtype=np.int64), minlength=n)
    gram = simplex_moments(counts[:, None, :] + counts[None, :, :] + weight)
    scale = 1 / np.sqrt(gram.diagonal())
    factor = np.linalg.cholesky(gram * np.outer(scale, scale))
    inverse = solve_triangular(factor, np.eye(len(gram)), lower=True)
    return np.tril(inverse) * scale, gram


def count_indices(indices: NDArray[np.int64], dimension: int) -> NDArray[np.int64]:
    """Exponents of multi-indices, shape (..., m) to (..., dimension); an own, writable array."""
    counts: NDArray[np.int64] = (indices[..., None] == np.arange(dimension)).sum(axis=-2)
    return counts
