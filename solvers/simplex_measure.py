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
.. [2] C. F. Dunkl, Y. Xu, Orthogonal Polynomials of Several Variables (2014), section 5.3.
"""

import math
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from tensoralg.core.indices import multi_indices
from tensoralg.core.validation import integer_array, nonnegative_integer, positive_integer

__all__ = ["orthogonal_moments", "orthonormal_basis", "simplex_moments", "uniform_moments"]

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


def orthogonal_moments(
    n_variables: int, degree: int, *, above: int = -1, factors: tuple[int, ...] = ()
) -> Array:
    """Moments of monomials in terms of those of orthonormal polynomials.

    With q_p the product basis of orthonormal polynomials of the measure [2]_, a functional w is its
    numbers ``z_p = w(q_p)``, and ``w(x^b) = sum_p E[x^b q_p] z_p``. In the variables

        s_j = x_j / (1 - x_1 - .. - x_{j-1})

    x^b, q_p and the measure are products over j, so that every E[x^b q_p] is a product of N
    integrals, each of them rational up to the norm of q_p and computed exactly before rounding.

    Parameters
    ----------
    n_variables : int
        Number N of variables.
    degree : int
        Largest degree D of monomials and polynomials.
    above : int, default -1
        Only polynomials of a degree above this one.
    factors : tuple of int, default ()
        The measure is the uniform one times the product of ``u_i`` over these i in 0 .. N,
        ``u = (x, 1 - e'x)``, scaled to total mass 1.

    Returns
    -------
    ndarray, shape (C(N+D, D), m)
        ``E[x^b q_p]``, rows b and columns p in the order of ``multi_indices(N + 1, D)``. With all
        columns it is lower triangular: the Cholesky factor, up to signs, of the monomials' Gram
        matrix, as accurate as float64 can write it.

    Raises
    ------
    IndexError
        A factor outside 0 .. N.

    Examples
    --------
    One variable: 1 and ``sqrt 3 (1 - 2 x)``.

    >>> orthogonal_moments(1, 1).round(4).tolist()
    [[1.0, 0.0], [0.5, -0.2887]]
    """
    N = positive_integer("n_variables", n_variables)
    if any(not 0 <= i <= N for i in factors):
        raise IndexError(f"factors must lie in 0 .. {N}; got {factors}")
    weight = np.bincount(np.asarray(factors, dtype=np.int64), minlength=N + 1)
    powers = count_indices(multi_indices(N + 1, degree), N + 1)[:, 1:]
    later = np.cumsum(powers[:, ::-1], axis=1)[:, ::-1] - powers
    chosen = powers.sum(axis=1) > above
    result = np.ones((len(powers), int(chosen.sum())))
    for j in range(N):
        rest = N - 1 - j + int(weight[j + 1 :].sum())
        table = _interval_integrals(degree, int(weight[j]), rest)
        rows = powers[:, j, None], later[:, j, None]
        result *= table[*rows, powers[chosen, j], later[chosen, j]]
    return result


def orthonormal_basis(n_variables: int, degree: int, factors: tuple[int, ...] = ()) -> Array:
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
    ndarray, shape (s, s)
        Lower triangular change of basis: ``change @ b`` is orthonormal, b the monomials of degree
        at most t in the order of ``multi_indices(N + 1, t)``, s = C(N+t, t).

    Raises
    ------
    IndexError
        A factor outside 0 .. N.

    Examples
    --------
    >>> orthonormal_basis(1, 1).round(4).tolist()
    [[1.0, 0.0], [1.7321, -3.4641]]
    """
    moments = orthogonal_moments(n_variables, degree, factors=factors)
    mass = simplex_moments(np.bincount(np.asarray(factors, dtype=int), minlength=n_variables + 1))
    inverse = solve_triangular(moments, np.eye(len(moments)), lower=True)
    return np.asarray(inverse / np.sqrt(mass))


@lru_cache(maxsize=128)
def _interval_integrals(degree: int, power: int, rest: int) -> Array:
    """Means of ``s^b (1-s)^B`` times an orthonormal polynomial of s on [0, 1], ``[b, B, p, P]``.

    The density is that of ``s^power (1-s)^rest``; the polynomial is ``(1-s)^P`` times Jacobi's
    ``2F1(-p, p+a+power+1; power+1; s)`` for the weight ``s^power (1-s)^a``, a = 2 P + rest.
    What is left zero has B < P or b + B < p + P, and vanishes in every use.
    """
    f = [math.factorial(i) for i in range(4 * degree + rest + 2 * power + 2)]
    table = np.zeros(4 * (degree + 1,))
    density = Fraction(f[power + rest + 1], f[power] * f[rest])
    for p, P in product(range(degree + 1), repeat=2):
        if p + P > degree:
            continue
        a = 2 * P + rest
        jacobi = [
            (-1) ** i * math.comb(p, i) * Fraction(f[p + a + power + i] * f[power], f[power + i])
            / f[p + a + power]
            for i in range(p + 1)
        ]  # fmt: skip
        norm = Fraction(f[p] * f[power] ** 2 * f[p + a], f[p + power] * f[p + a + power])
        norm *= density / (2 * p + a + power + 1)
        common = math.lcm(*(c.denominator for c in jacobi))
        whole = [int(c * common) for c in jacobi]
        scale = float(density / common) / math.sqrt(norm)
        for B in range(P, degree + 1):
            c = B + P + rest
            for b in range(max(p + P - B, 0), degree + 1 - B):
                top = f[b + power + p + c + 1]
                total = sum(
                    coefficient * f[b + power + i] * (top // f[b + power + i + c + 1])
                    for i, coefficient in enumerate(whole)
                )
                table[b, B, p, P] = scale * (f[c] * total / top)
    table.flags.writeable = False
    return table


def count_indices(indices: NDArray[np.int64], dimension: int) -> NDArray[np.int64]:
    """Exponents of multi-indices, shape (..., m) to (..., dimension); an own, writable array."""
    counts: NDArray[np.int64] = (indices[..., None] == np.arange(dimension)).sum(axis=-2)
    return counts
