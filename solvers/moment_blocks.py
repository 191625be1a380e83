"""Blocks of a moment relaxation: semidefinite matrices that depend affinely on free moments.

The free moments enter through orthonormal polynomials of the uniform measure, the blocks are
written in such polynomials, too. Then the block of the uniform measure is the identity, and the
coefficients of the free variables are nearly orthonormal up to high orders. Written in float64 they
are right to 1e-13 at relaxation order 3, to 1e-9 at order 6 and to 1e-6 at order 8.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import lsmr

from tensoralg.core.indices import multi_indices
from tensoralg.solvers.moment_matrices import congruence, localizing_map, rehomogenize
from tensoralg.solvers.simplex_measure import (
    count_indices,
    orthogonal_moments,
    orthonormal_basis,
    simplex_moments,
    uniform_moments,
)
from tensoralg.solvers.svec import smat, svec

__all__ = [
    "MomentBlock",
    "MomentSpace",
    "Relaxation",
    "centred",
    "frozen",
    "make_block",
    "moment_space",
]

Array = NDArray[np.float64]

_LARGEST_CACHED = 2**16  # coefficients of a block that is kept for the next tensor: .75 MiB


@dataclass(frozen=True, slots=True, eq=False)
class MomentBlock:
    """One moment or localizing matrix, as an affine function of the free variables.

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
        The block at the moments `Relaxation.known`, in these polynomials.
    uniform : ndarray, shape (r, r)
        The block of the uniform measure in these polynomials; the identity unless homogeneous.
    derivatives : csc_array, shape (r(r+1)/2, m)
        Its derivatives by the m free variables, as svec.
    """

    factors: tuple[int, ...]
    degree: int
    map: sp.csc_array
    change: Array
    offset: Array
    uniform: Array
    derivatives: sp.csc_array

    @property
    def size(self) -> int:
        """Number of polynomials r of the block in the conic problem."""
        return len(self.change)


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A moment relaxation: moments ``w = known + directions @ y`` with semidefinite blocks.

    Attributes
    ----------
    n_variables : int
        Number N of variables: n - 1, or n if homogeneous.
    dimension, order, relaxation_order : int
        Dimension n and order d of the tensor, order k of the relaxation.
    homogeneous : bool
        Which of the two forms.
    known : ndarray, shape (C(N+2k, 2k),)
        The known moments, and at the places of free ones values that make the blocks small.
    uniform : ndarray, shape (C(N+2k, 2k),)
        The moments of the uniform measure.
    directions : ndarray or csc_array, shape (C(N+2k, 2k), m)
        What the m free variables y do to the moments: nothing at the known ones.
    free : ndarray of int64
        Positions of the free moments; of those above degree d, unless homogeneous.
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
    directions: Array | sp.csc_array
    free: NDArray[np.int64]
    blocks: tuple[MomentBlock, ...]
    equations: sp.csc_array

    @property
    def n_free(self) -> int:
        """Number m of free variables."""
        return int(self.directions.shape[1])

    def polynomial(self, multipliers: tuple[Array, ...]) -> Array:
        """Write ``p = sum_j g_j b' Q_j b`` out.

        Parameters
        ----------
        multipliers : tuple of ndarray, shapes (s_j, s_j)
            Q_j, in the monomials of block j.

        Returns
        -------
        ndarray, shape (C(N+2k, 2k),)
            Coefficients of p over all monomials of degree at most 2k.
        """
        total = np.zeros(len(self.known))
        for block, Q in zip(self.blocks, multipliers, strict=True):
            total += block.map.T @ svec(Q)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class MomentSpace:
    """Moments of degree at most 2k of which some are known: a relaxation without its blocks.

    Attributes
    ----------
    n_variables, order, relaxation_order, homogeneous, known, uniform, directions, free
        As in `Relaxation`.
    """

    n_variables: int
    order: int
    relaxation_order: int
    homogeneous: bool
    known: Array
    uniform: Array
    directions: Array | sp.csc_array
    free: NDArray[np.int64]


def moment_space(values: Array, n: int, d: int, k: int, homogeneous: bool) -> MomentSpace:
    """Place the known moments and choose the free variables.

    Parameters
    ----------
    values : ndarray, shape (C(n-1+d, d),)
        Dehomogenised moments of the tensor.
    n, d, k : int
        Dimension and order of the tensor, order of the relaxation.
    homogeneous : bool
        Which of the two forms.

    Returns
    -------
    MomentSpace
        Free moments are zero in `known`.

    Examples
    --------
    >>> space = moment_space(np.array([1.0, 0.5, 0.3]), 2, 2, 2, False)
    >>> space.known.tolist(), space.free.tolist()
    ([1.0, 0.5, 0.3, 0.0, 0.0], [3, 4])
    """
    N = n if homogeneous else n - 1
    if homogeneous:
        uniform = simplex_moments(count_indices(multi_indices(n + 1, 2 * k), n + 1)[:, 1:])
        values = rehomogenize(values, n, d).astype(np.float64)
    else:
        uniform = uniform_moments(N, 2 * k)
    free = _free(N, k, d, homogeneous)
    known = np.zeros(len(uniform))
    known[np.delete(np.arange(len(known)), free)] = values
    directions = _directions(N, k, d, homogeneous)
    return MomentSpace(N, d, k, homogeneous, known, uniform, directions, free)


def make_block(space: MomentSpace, factors: tuple[int, ...]) -> MomentBlock:
    """Write down the block that belongs to a product of factors.

    Parameters
    ----------
    space : MomentSpace
        The moments.
    factors : tuple of int
        Indices i of the factors u_i.

    Returns
    -------
    MomentBlock
        Its offset is taken at ``space.known``.

    Examples
    --------
    >>> space = moment_space(np.array([1.0, 0.5, 0.3]), 2, 2, 2, False)
    >>> make_block(space, (0, 1)).map.toarray().round(2).tolist()[0]
    [0.0, 1.0, -1.0, 0.0, 0.0]
    """
    N, k = space.n_variables, space.relaxation_order
    rows = comb(N + k, k)
    small = rows * (rows + 1) // 2 * space.directions.shape[1] <= _LARGEST_CACHED
    shape = _cached_shape if small else _shape
    map_, change, derivatives = shape(N, k, space.order, factors, space.homogeneous)
    fixed = map_ @ np.column_stack([space.known, space.uniform])
    offset, uniform = smat(congruence(change, sp.csc_array(fixed)).toarray().T)
    if not space.homogeneous:
        uniform = np.eye(len(change))  # exact, where the product would round
    degree = k if not factors else k - 1
    return MomentBlock(factors, degree, map_, change, offset, uniform, derivatives)


def _shape(
    N: int, k: int, order: int, factors: tuple[int, ...], homogeneous: bool
) -> tuple[sp.csc_array, Array, sp.csc_array]:
    """Map, change and derivatives: all of a block that does not depend on its tensor."""
    degree = k if not factors else k - 1
    ones = [(1, 0), *((-1, i) for i in range(1, N + 1))]
    weights = [[(1, i + 1)] if homogeneous or i < N else ones for i in factors]
    map_ = localizing_map(N, 2 * k, degree, weights)
    change = orthonormal_basis(N, degree, factors)
    directions = _directions(N, k, order, homogeneous)
    derivatives = congruence(change, sp.csc_array(map_ @ directions))
    for matrix in (map_, derivatives):
        for array in (matrix.data, matrix.indices, matrix.indptr):
            array.flags.writeable = False
    change.flags.writeable = False
    return map_, change, derivatives


_cached_shape = lru_cache(maxsize=128)(_shape)


@lru_cache(maxsize=8)
def _directions(N: int, k: int, order: int, homogeneous: bool) -> Array | sp.csc_array:
    """Moments that the free variables stand for, one column each."""
    if homogeneous:
        identity = sp.eye_array(comb(N + 2 * k, N), format="csc")
        return sp.csc_array(identity[:, _free(N, k, order, True)])
    directions = orthogonal_moments(N, 2 * k, above=order)
    directions.flags.writeable = False
    return directions


def _free(N: int, k: int, order: int, homogeneous: bool) -> NDArray[np.int64]:
    """Positions of the moments above degree d; of all but those of degree d, if homogeneous."""
    start = comb(N + order - 1, N) if homogeneous else 0
    return np.delete(np.arange(comb(N + 2 * k, N)), np.arange(start, comb(N + order, N)))


def centred(relaxation: Relaxation) -> Relaxation:
    """Move the origin of the free variables to where all blocks together are smallest.

    With free moments at zero a block is larger by orders of magnitude than at any sensible
    moments, and a solver loses as many digits.

    Parameters
    ----------
    relaxation : Relaxation
        With any origin.

    Returns
    -------
    Relaxation
        The same moments and blocks, counted from another origin.

    Examples
    --------
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> relaxation = centred(build_relaxation(uniform_moments(1, 3), 1, 3, 3))
    >>> bool(abs(relaxation.blocks[0].offset).max() < 2)
    True
    """
    if relaxation.n_free == 0:
        return relaxation
    stacked = sp.vstack([block.derivatives for block in relaxation.blocks], format="csr")
    target = np.concatenate([svec(block.offset) for block in relaxation.blocks])
    y = lsmr(stacked, -target, atol=1e-4, btol=1e-4, maxiter=50)[0]
    blocks = tuple(
        replace(block, offset=block.offset + smat(block.derivatives @ y))
        for block in relaxation.blocks
    )
    return replace(relaxation, known=relaxation.known + relaxation.directions @ y, blocks=blocks)


def frozen(relaxation: Relaxation) -> Relaxation:
    """Set all arrays read-only.

    Parameters
    ----------
    relaxation : Relaxation
        Its dense arrays are marked in place.

    Returns
    -------
    Relaxation
        The same object.

    Examples
    --------
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> frozen(build_relaxation(uniform_moments(1, 3), 1, 3, 2)).known.flags.writeable
    False
    """
    arrays = [relaxation.known, relaxation.uniform, relaxation.free, relaxation.directions]
    for block in relaxation.blocks:
        arrays += [block.change, block.offset, block.uniform]
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return relaxation
