"""Moment relaxations of the cone of completely positive tensors.

A tensor A of order d with ``<A, e^d> = 1`` is completely positive iff its dehomogenised moments
``w_b, |b| <= d``, belong to a measure on the full simplex ``x >= 0, 1 - e'x >= 0`` [1]_.
Relaxation k keeps of that: all moments of degree at most 2k, of which those above degree d are
free, with positive semidefinite

- moment matrix ``M_k[w] = L_w(b b')``,
- localizing matrices ``L_w(u_i b b')`` of the n factors ``u = (x_1, .., x_{n-1}, 1 - e'x)``,
- and, with ``products``, those of all ``u_i u_j``, i < j,

where L_w takes a monomial x^b to w_b. Blocks and free variables are written in polynomials that
are orthonormal for the uniform measure (:mod:`tensoralg.solvers.moment_blocks`).

The homogeneous relaxation keeps all n variables u with ``e'u = 1`` as equations; it is there for
comparison and has several times as many moments.

References
----------
.. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
   arXiv:2206.12553, sections 3 and 4.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.validation import as_values, nonnegative_integer, positive_integer
from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.moment_blocks import (
    MomentBlock,
    Relaxation,
    centred,
    frozen,
    make_block,
    moment_space,
)
from tensoralg.solvers.moment_matrices import simplex_equations
from tensoralg.solvers.svec import svec

__all__ = [
    "MomentBlock",
    "MomentResult",
    "Relaxation",
    "build_relaxation",
    "equation_parts",
    "generic_objective",
    "predict_size",
    "solve_moments",
]

Array = NDArray[np.float64]

_GIB = 1024**3


@dataclass(frozen=True, slots=True, eq=False)
class MomentResult:
    """Moments of degree at most 2k that minimise a linear objective over a relaxation.

    Attributes
    ----------
    moments : ndarray, shape (C(N+2k, 2k),)
        In the order of ``multi_indices(N + 1, 2 k)``; NaN if the solver failed with an exception.
    objective : ndarray, shape (C(N+2k, 2k),)
        The objective's coefficients.
    status : {"solved", "inaccurate", "failed"}
        From residuals that were computed from the result.
    message : str
        What the solver said.
    conic : ConicResult
        Everything else.
    """

    moments: Array
    objective: Array
    status: str
    message: str
    conic: ConicResult


def predict_size(
    dimension: int,
    order: int,
    relaxation_order: int,
    products: bool = True,
    *,
    homogeneous: bool = False,
) -> tuple[int, tuple[int, ...]]:
    """Size of the semidefinite program, before anything is allocated.

    Parameters
    ----------
    dimension, order, relaxation_order : int
        n, d and k.
    products : bool, default True
        Whether products of two factors count.
    homogeneous : bool, default False
        The form in n variables.

    Returns
    -------
    n_free : int
        Number m of free moments.
    sizes : tuple of int
        Sizes of the blocks.

    Raises
    ------
    ValueError
        ``dimension < 2``, ``order < 1`` or ``relaxation_order < ceil(order / 2)``.

    Examples
    --------
    >>> predict_size(4, 3, 3, False)
    (64, (20, 10, 10, 10, 10))
    """
    n, d, k = _check_orders(dimension, order, relaxation_order)
    N = n if homogeneous else n - 1
    known = comb(n + d - 1, d)
    count = n + (comb(n, 2) if products else 0)
    return comb(N + 2 * k, 2 * k) - known, (comb(N + k, k),) + count * (comb(N + k - 1, k - 1),)


def _check_orders(dimension: int, order: int, relaxation_order: int) -> tuple[int, int, int]:
    n, d = nonnegative_integer("dimension", dimension, least=2), positive_integer("order", order)
    k = positive_integer("relaxation_order", relaxation_order)
    if 2 * k < d:
        raise ValueError(
            f"relaxation_order must be at least ceil(d/2) = {(d + 1) // 2} for order d={d}; got {k}"
        )
    return n, d, k


def build_relaxation(
    known: ArrayLike,
    n_variables: int,
    order: int,
    relaxation_order: int,
    *,
    products: bool = True,
    homogeneous: bool = False,
    memory_limit: int = 4 * _GIB,
) -> Relaxation:
    """Write down relaxation k of a tensor that is given by its dehomogenised moments.

    Parameters
    ----------
    known : array_like, shape (C(N+d, d),)
        Moments of degree at most d in N = n - 1 variables, as from
        :func:`tensoralg.solvers.moment_matrices.dehomogenize`; ``known[0] = 1`` is expected.
    n_variables : int
        N, at least 1.
    order : int
        Order d of the tensor.
    relaxation_order : int
        k, at least ceil(d/2).
    products : bool, default True
        Add the localizing matrices of products of two factors.
    homogeneous : bool, default False
        The form in n variables with ``e'u = 1`` as equations.
    memory_limit : int
        Bytes that the coefficients may take.

    Returns
    -------
    Relaxation
        All arrays are read-only.

    Raises
    ------
    ValueError
        ``n_variables < 1``, ``k < ceil(d/2)`` or moments that are not finite.
    ShapeError
        A wrong number of moments.
    ProblemTooLargeError
        The predicted size exceeds `memory_limit`; nothing has been allocated then.

    Examples
    --------
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> relaxation = build_relaxation(uniform_moments(2, 3), 2, 3, 2)
    >>> [block.size for block in relaxation.blocks], relaxation.n_free
    ([6, 3, 3, 3, 3, 3, 3], 5)
    """
    N = positive_integer("n_variables", n_variables)
    n, d, k = _check_orders(N + 1, order, relaxation_order)
    values = np.asarray(as_values("known", known), dtype=np.float64)
    if values.shape != (comb(N + d, d),):
        raise ShapeError(
            f"known must have shape ({comb(N + d, d)},) for N={N}, d={d}; got {values.shape}"
        )
    _check_memory(n, d, k, products, homogeneous, memory_limit)
    space = moment_space(values, n, d, k, homogeneous)
    chosen: list[tuple[int, ...]] = [(), *((i,) for i in range(n))]
    chosen += combinations(range(n), 2) if products else []
    blocks = tuple(make_block(space, factors) for factors in chosen)
    size = len(space.known)
    equations = simplex_equations(n, 2 * k) if homogeneous else sp.csc_array((0, size))
    relaxation = Relaxation(
        space.n_variables, n, d, k, homogeneous, space.known, space.uniform, space.directions,
        space.free, blocks, equations,
    )  # fmt: skip
    return frozen(relaxation if homogeneous else centred(relaxation))


def _check_memory(
    n: int, d: int, k: int, products: bool, homogeneous: bool, memory_limit: int
) -> None:
    m, sizes = predict_size(n, d, k, products, homogeneous=homogeneous)
    needed = 12 * sum(s * (s + 1) // 2 for s in sizes) * max(m, 1)
    if needed > memory_limit:
        raise ProblemTooLargeError(
            f"relaxation k={k} of a tensor with n={n}, d={d} has {m} free moments and blocks of "
            f"size up to {sizes[0]}: about {needed / _GIB:.3g} GiB of coefficients, more than "
            f"memory_limit={memory_limit / _GIB:.3g} GiB"
        )


def generic_objective(relaxation: Relaxation, seed: int) -> Array:
    """Coefficients of ``R = b' J J' b``, b the orthonormal polynomials of degree at most k.

    Parameters
    ----------
    relaxation : Relaxation
        Gives b.
    seed : int
        Seed of the Gaussian matrix J.

    Returns
    -------
    ndarray, shape (C(N+2k, 2k),)
        Over all monomials of degree at most 2k; a positive polynomial without symmetry.

    Examples
    --------
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> relaxation = build_relaxation(uniform_moments(1, 2), 1, 2, 1)
    >>> generic_objective(relaxation, 0).shape
    (3,)
    """
    block = relaxation.blocks[0]
    J = np.random.default_rng(seed).standard_normal(2 * (block.size,)) / block.size
    return np.asarray(block.map.T @ svec(block.change.T @ (J @ J.T) @ block.change))


def _moment_problem(relaxation: Relaxation, objective: ArrayLike) -> ConicProblem:
    """Conic problem of minimising a linear function of the moments over a relaxation."""
    coefficients = np.asarray(objective, dtype=np.float64)
    if coefficients.shape != relaxation.known.shape:
        raise ShapeError(
            f"objective must have shape {relaxation.known.shape}; got {coefficients.shape}"
        )
    blocks = tuple(ConicBlock(block.offset, -block.derivatives) for block in relaxation.blocks)
    return ConicProblem(relaxation.directions.T @ coefficients, blocks, *equation_parts(relaxation))


def equation_parts(relaxation: Relaxation) -> tuple[Any, Any]:
    """Equations for the free variables and their right-hand sides.

    Parameters
    ----------
    relaxation : Relaxation
        Of either form, with m free variables.

    Returns
    -------
    equation_matrix : csc_array, shape (p, m), or None
        None for both in the dehomogenised form, which has no equations.
    equation_vector : ndarray, shape (p,), or None
        The right-hand sides.

    Examples
    --------
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> known = uniform_moments(1, 3)
    >>> equation_parts(build_relaxation(known, 1, 3, 2))
    (None, None)
    >>> E, f = equation_parts(build_relaxation(known, 1, 3, 2, homogeneous=True))
    >>> E.shape, f.shape
    ((10, 11), (10,))
    """
    if not relaxation.homogeneous:
        return None, None
    equations = relaxation.equations
    return sp.csc_array(equations @ relaxation.directions), -(equations @ relaxation.known)


def solve_moments(
    relaxation: Relaxation,
    objective: ArrayLike | None = None,
    *,
    seed: int = 0,
    solver: str = "auto",
    tol: float = 1e-9,
    **options: Any,
) -> MomentResult:
    """Minimise a linear function of the moments over a relaxation.

    Parameters
    ----------
    relaxation : Relaxation
        The relaxation.
    objective : array_like, shape (C(N+2k, 2k),), optional
        Coefficients; by default `generic_objective` of `seed`.
    seed : int, default 0
        Used without an objective only.
    solver, tol, **options
        As in :func:`tensoralg.solvers.conic.solve_conic`.

    Returns
    -------
    MomentResult
        Moments of degree at most 2k and what the solver said. Without any free moment they are
        the known ones, and the status tells whether all blocks are semidefinite.

    Raises
    ------
    ShapeError
        A wrong number of coefficients.

    Examples
    --------
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> relaxation = build_relaxation(uniform_moments(1, 3), 1, 3, 2)
    >>> result = solve_moments(relaxation)
    >>> result.status, result.moments.shape
    ('solved', (5,))
    """
    if objective is None:
        objective = generic_objective(relaxation, seed)
    problem = _moment_problem(relaxation, objective)
    result = solve_conic(problem, solver=solver, tol=tol, **options)
    moments = relaxation.known + relaxation.directions @ result.y
    coefficients = np.array(objective, dtype=np.float64)
    for array in (moments, coefficients):
        array.flags.writeable = False
    return MomentResult(moments, coefficients, result.status, result.message, result)
