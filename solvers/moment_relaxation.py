"""Moment relaxations of the cone of completely positive tensors.

A tensor A of order d with ``<A, e^d> = 1`` is completely positive iff its dehomogenised moments
w_b, |b| <= d, belong to a measure on the full simplex ``x >= 0, 1 - e'x >= 0`` [1]_. Relaxation k
keeps of that: all moments of degree at most 2k, of which those above degree d are free, with
positive semidefinite

- moment matrix ``M_k[w] = L_w(b b')``,
- localizing matrices ``L_w(u_i b b')`` of the n factors ``u = (x_1, .., x_{n-1}, 1 - e'x)``,
- and, with ``products``, those of all ``u_i u_j``, i < j,

where L_w takes a monomial x^b to w_b. Every block is written in polynomials that are orthonormal
for the uniform measure, so that its blocks are identity matrices.

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
from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.core.validation import as_values, nonnegative_integer, positive_integer
from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.moment_matrices import congruence, localizing_map, rehomogenize
from tensoralg.solvers.simplex_measure import (
    count_indices,
    orthonormal_basis,
    simplex_moments,
    uniform_moments,
)
from tensoralg.solvers.svec import smat, svec

__all__ = [
    "MomentBlock",
    "MomentResult",
    "Relaxation",
    "build_relaxation",
    "generic_objective",
    "generic_problem",
    "predict_size",
    "solve_moments",
]

Array = NDArray[np.float64]

_GIB = 1024**3


@dataclass(frozen=True, slots=True, eq=False)
class MomentBlock:
    """One moment or localizing matrix, as an affine function of the free moments.

    Attributes
    ----------
    factors : tuple of int
        The block belongs to ``g = prod u_i`` over these i in 0 .. n-1, ``u_{n-1} = 1 - e'x``;
        () is the moment matrix.
    degree : int
        Degree t of its monomials b, in the order of ``multi_indices(N + 1, t)``.
    map : csc_array, shape (s(s+1)/2, C(N+2k, 2k))
        From all moments to the svec of L_w(g b b'), in monomials.
    change : ndarray, shape (r, s)
        The polynomials ``change @ b`` in which the conic problem writes the block.
    offset : ndarray, shape (r, r)
        The block at the known moments, free ones zero, in these polynomials.
    uniform : ndarray, shape (r, r)
        The block of the uniform measure in these polynomials; the identity unless homogeneous.
    columns : csc_array, shape (r(r+1)/2, m)
        Its derivatives by the m free moments.
    """

    factors: tuple[int, ...]
    degree: int
    map: sp.csc_array
    change: Array
    offset: Array
    uniform: Array
    columns: sp.csc_array

    @property
    def size(self) -> int:
        """Number of polynomials r of the block in the conic problem."""
        return len(self.change)


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A moment relaxation: ``w = known + directions @ y`` with blocks that must be semidefinite.

    Attributes
    ----------
    n_variables : int
        Number N of variables: n - 1, or n if homogeneous.
    dimension, order, relaxation_order : int
        Dimension n and order d of the tensor, order k of the relaxation.
    homogeneous : bool
        Which of the two forms.
    known : ndarray, shape (C(N+2k, 2k),)
        The known moments; zero where free.
    uniform : ndarray, shape (C(N+2k, 2k),)
        The moments of the uniform measure.
    free : ndarray of int64, shape (m,)
        Positions of the free moments.
    blocks : tuple of MomentBlock
        The moment matrix first.
    equations : csc_array, shape (p, C(N+2k, 2k))
        ``equations @ w = 0``; no rows unless homogeneous.
    """

    n_variables: int
    dimension: int
    order: int
    relaxation_order: int
    homogeneous: bool
    known: Array
    uniform: Array
    free: NDArray[np.int64]
    blocks: tuple[MomentBlock, ...]
    equations: sp.csc_array

    def polynomial(self, multipliers: tuple[Array, ...]) -> Array:
        """Coefficients of ``p = sum_j g_j b' Q_j b`` over all monomials of degree at most 2k."""
        total = np.zeros(len(self.known))
        for block, Q in zip(self.blocks, multipliers, strict=True):
            total += block.map.T @ svec(Q)
        return total


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
    >>> relaxation = build_relaxation(uniform_moments(2, 3), 2, 3, 2)
    >>> [block.size for block in relaxation.blocks], len(relaxation.free)
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
    moments, uniform, free = _moments(values, n, d, k, homogeneous)
    if homogeneous:
        N = n
    chosen: list[tuple[int, ...]] = [(), *((i,) for i in range(n))]
    chosen += combinations(range(n), 2) if products else []
    pieces = np.column_stack([moments, uniform])
    blocks = tuple(_block(N, k, factors, homogeneous, pieces, free) for factors in chosen)
    equations = _simplex_equations(n, 2 * k) if homogeneous else sp.csc_array((0, len(moments)))
    for array in (moments, uniform, free):
        array.flags.writeable = False
    return Relaxation(N, n, d, k, homogeneous, moments, uniform, free, blocks, equations)


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


def _moments(
    known: Array, n: int, d: int, k: int, homogeneous: bool
) -> tuple[Array, Array, NDArray[np.int64]]:
    """All moments with zeros where free, those of the uniform measure, positions of the free."""
    if homogeneous:
        counts = count_indices(multi_indices(n + 1, 2 * k), n + 1)[:, 1:]
        uniform = simplex_moments(counts)
        start, values = comb(n + d - 1, d - 1), rehomogenize(known, n, d)
    else:
        uniform, start, values = uniform_moments(n - 1, 2 * k), 0, known
    moments = np.zeros(len(uniform))
    moments[start : start + len(values)] = values
    free = np.delete(np.arange(len(moments)), np.arange(start, start + len(values)))
    return moments, uniform, free


def _block(
    N: int,
    k: int,
    factors: tuple[int, ...],
    homogeneous: bool,
    pieces: Array,
    free: NDArray[np.int64],
) -> MomentBlock:
    """One block; `pieces` holds the known and the uniform moments as columns."""
    degree = k if not factors else k - 1
    ones = [(1, 0), *((-1, i) for i in range(1, N + 1))]
    weights = [[(1, i + 1)] if homogeneous or i < N else ones for i in factors]
    map_ = localizing_map(N, 2 * k, degree, weights)
    change, _ = orthonormal_basis(N, degree, factors)
    fixed = congruence(change, sp.csc_array(map_ @ pieces)).toarray()
    columns = congruence(change, map_[:, free])
    offset, uniform = smat(fixed.T)
    for array in (change, offset, uniform):
        array.flags.writeable = False
    return MomentBlock(factors, degree, map_, change, offset, uniform, columns)


def _simplex_equations(n: int, degree: int) -> sp.csc_array:
    """``y_b - sum_i y_{b+e_i} = 0`` for all |b| < degree, in n variables."""
    base = multi_indices(n + 1, degree - 1)
    joined = np.stack([np.column_stack([base, np.full(len(base), i)]) for i in range(n + 1)])
    positions = rank_multi_indices(np.sort(joined, axis=2), n + 1)
    signs = np.r_[1.0, -np.ones(n)]
    values = np.broadcast_to(signs[:, None], positions.shape)
    rows = np.broadcast_to(np.arange(len(base)), positions.shape)
    shape = (len(base), comb(n + degree, degree))
    return sp.csc_array((values.ravel(), (rows.ravel(), positions.ravel())), shape=shape)


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
    >>> relaxation = build_relaxation(uniform_moments(1, 2), 1, 2, 1)
    >>> generic_objective(relaxation, 0).shape
    (3,)
    """
    block = relaxation.blocks[0]
    J = np.random.default_rng(seed).standard_normal(2 * (block.size,)) / block.size
    return np.asarray(block.map.T @ svec(block.change.T @ (J @ J.T) @ block.change))


def moment_problem(relaxation: Relaxation, objective: ArrayLike) -> ConicProblem:
    """Conic problem of minimising a linear function of the moments over a relaxation."""
    coefficients = np.asarray(objective, dtype=np.float64)
    if coefficients.shape != relaxation.known.shape:
        raise ShapeError(
            f"objective must have shape {relaxation.known.shape}; got {coefficients.shape}"
        )
    blocks = tuple(ConicBlock(block.offset, -block.columns) for block in relaxation.blocks)
    return ConicProblem(coefficients[relaxation.free], blocks, *equation_parts(relaxation))


def equation_parts(relaxation: Relaxation) -> tuple[Any, Any]:
    """Equations for the free moments and their right-hand sides; None where there are none."""
    if not relaxation.homogeneous:
        return None, None
    equations = relaxation.equations
    return sp.csc_array(equations[:, relaxation.free]), -(equations @ relaxation.known)


def generic_problem(relaxation: Relaxation, seed: int) -> ConicProblem:
    """Conic problem whose optimum is, for almost all seeds, an extreme point of the relaxation.

    Parameters
    ----------
    relaxation : Relaxation
        The relaxation.
    seed : int
        Seed of `generic_objective`.

    Returns
    -------
    ConicProblem
        Its variables are the free moments.

    Examples
    --------
    >>> relaxation = build_relaxation(uniform_moments(1, 3), 1, 3, 2)
    >>> generic_problem(relaxation, 0).n_variables
    1
    """
    return moment_problem(relaxation, generic_objective(relaxation, seed))


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
    >>> relaxation = build_relaxation(uniform_moments(1, 3), 1, 3, 2)
    >>> result = solve_moments(relaxation)
    >>> result.status, result.moments.shape
    ('solved', (5,))
    """
    if objective is None:
        objective = generic_objective(relaxation, seed)
    problem = moment_problem(relaxation, objective)
    result = solve_conic(problem, solver=solver, tol=tol, **options)
    moments = relaxation.known.copy()
    moments[relaxation.free] = result.y
    coefficients = np.array(objective, dtype=np.float64)
    for array in (moments, coefficients):
        array.flags.writeable = False
    return MomentResult(moments, coefficients, result.status, result.message, result)
