"""Permutations of coordinates that leave a tensor as it is, and what they spare a relaxation.

If permuting the n coordinates leaves A unchanged, the least shift of A towards the uniform measure
is reached at moments that are unchanged, too: averaging over the group keeps every block
semidefinite. Then moments of one orbit are equal, and one block of every orbit of blocks is enough
[1]_. Multipliers of the reduced program spread over all blocks by the same average.

A group is kept as a chain: ``chain[i]`` has one element for every image of i under the permutations
that fix 0 .. i-1, and every element of the group is exactly one product ``c_0 c_1 .. c_{n-1}``.

References
----------
.. [1] K. Gatermann, P. Parrilo, "Symmetry groups, semidefinite programs, and sums of squares",
   J. Pure Appl. Algebra 192 (2004).
"""

from dataclasses import replace
from math import comb

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.solvers.moment_blocks import MomentBlock, Relaxation, frozen
from tensoralg.solvers.moment_matrices import rehomogenize, times_factor
from tensoralg.solvers.svec import smat

__all__ = ["reduce_symmetry", "spread_multipliers", "substitution", "symmetry_chain"]

Array = NDArray[np.float64]
Permutation = tuple[int, ...]
Chain = tuple[tuple[Permutation, ...], ...]

_EQUAL = 1e-12  # entries that agree to this, relative to the largest, count as equal
_MOST_STEPS = 20_000


def symmetry_chain(entries: Array, dimension: int, order: int) -> Chain:
    """Find all permutations p of the coordinates with ``A[p(i_1), .., p(i_d)] = A[i_1, .., i_d]``.

    Parameters
    ----------
    entries : ndarray, shape (C(n+d-1, d),)
        Entries over ``multi_indices(n, d)``.
    dimension, order : int
        n and d.

    Returns
    -------
    tuple of tuples of permutations
        The chain; a permutation p is the tuple (p(0), .., p(n-1)). Only identities where the
        search takes too long.

    Examples
    --------
    A circulant matrix has the symmetries of a square.

    >>> M = np.array([[3, 1, 0, 1], [1, 3, 1, 0], [0, 1, 3, 1], [1, 0, 1, 3.0]])
    >>> [len(c) for c in symmetry_chain(M[tuple(multi_indices(4, 2).T)], 4, 2)]
    [4, 2, 1, 1]
    """
    n = dimension
    search = _Search(np.asarray(entries, dtype=np.float64), n, order)
    identity = tuple(range(n))
    chain: list[tuple[Permutation, ...]] = []
    try:
        for i in range(n):
            found = [search.complete([*range(i), j]) for j in range(i + 1, n)]
            chain.append((identity, *(p for p in found if p is not None)))
    except TimeoutError:
        return ((identity,),) * n
    return tuple(chain)


class _Search:
    """Backtracking over images of 0, 1, .., one at a time."""

    def __init__(self, entries: Array, n: int, d: int) -> None:
        indices = multi_indices(n, d)
        largest = indices.max(axis=1)
        self.n, self.entries, self.steps = n, entries, 0
        self.tolerance = _EQUAL * abs(entries).max(initial=0.0)
        self.rows = [indices[largest == i] for i in range(n)]
        self.values = [entries[largest == i] for i in range(n)]
        powers = (indices[:, :, None] == np.arange(n)).sum(axis=1)
        self.colours = []
        for i in range(n):  # entries by the power of i in them: equal for equivalent i
            keys = np.lexsort([entries, powers[:, i]])
            self.colours.append(entries[keys])

    def complete(self, images: list[int]) -> Permutation | None:
        """Extend the images of 0 .. len-1 to a symmetry; None where there is none."""
        if not self._fits(images):
            return None
        if len(images) == self.n:
            return tuple(images)
        for j in sorted(set(range(self.n)) - set(images)):
            found = self.complete([*images, j])
            if found is not None:
                return found
        return None

    def _fits(self, images: list[int]) -> bool:
        """Whether the entries that involve the last index, and no later one, agree."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise TimeoutError
        i = len(images) - 1
        if abs(self.colours[i] - self.colours[images[i]]).max() > self.tolerance:
            return False
        moved = np.sort(np.array(images)[self.rows[i]], axis=1)
        found = self.entries[rank_multi_indices(moved, self.n)]
        return bool(abs(found - self.values[i]).max() <= self.tolerance)


def substitution(permutation: Permutation, degree: int) -> Array:
    """Matrix S with ``b(p x) = S b(x)``, b the monomials in x of degree at most t.

    Parameters
    ----------
    permutation : tuple of int
        p: the new ``u_i`` is ``u_{p(i)}``, where ``u = (x, 1 - e'x)``.
    degree : int
        t.

    Returns
    -------
    ndarray, shape (C(N+t, t), C(N+t, t))
        Integers. A functional w moves to ``S w``.

    Examples
    --------
    Swapping x and 1 - x:

    >>> substitution((1, 0), 1).tolist()
    [[1.0, 0.0], [1.0, -1.0]]
    """
    n = len(permutation)
    result = np.ones((1, 1))
    for t in range(1, degree + 1):
        indices = multi_indices(n, t)
        shorter = rank_multi_indices(indices[:, :-1], n)
        raised = np.zeros((len(indices), len(indices)))
        for last in range(n):
            rows = indices[:, -1] == last
            part = result[shorter[rows]]
            if last == 0:  # the constant alone
                raised[rows, : part.shape[1]] = part
            else:
                raised[rows] = times_factor(part, n - 1, t - 1, permutation[last - 1])
        result = raised
    return result


def reduce_symmetry(relaxation: Relaxation) -> tuple[Relaxation, Chain]:
    """Restrict a relaxation to moments that its tensor's symmetries leave as they are.

    Parameters
    ----------
    relaxation : Relaxation
        Dehomogenised, as built.

    Returns
    -------
    reduced : Relaxation
        Fewer variables and one block of every orbit; the same object without symmetry.
    chain : tuple
        The group, for `spread_multipliers`.

    Examples
    --------
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> relaxation = build_relaxation(uniform_moments(3, 3), 3, 3, 2)
    >>> reduced, _ = reduce_symmetry(relaxation)
    >>> relaxation.n_free, reduced.n_free, len(relaxation.blocks), len(reduced.blocks)
    (15, 2, 11, 3)
    """
    n, d = relaxation.dimension, relaxation.order
    if relaxation.homogeneous:
        return relaxation, ((tuple(range(n)),),) * n
    # moments of degree at most d lead the list, the free ones follow
    entries = rehomogenize(relaxation.known[: -len(relaxation.free) or None], n, d)
    chain = symmetry_chain(entries, n, d)
    if all(len(c) == 1 for c in chain):
        return relaxation, chain
    directions = np.asarray(relaxation.directions)
    origin, average = _averages(relaxation.known, directions, relaxation.free, chain, relaxation)
    values, vectors = np.linalg.eigh((average + average.T) / 2)
    basis = vectors[:, values > 0.5]
    kept = []
    for block in relaxation.blocks:
        if block.factors != min(_orbit(block.factors, chain)):
            continue
        moved = smat(block.derivatives @ origin)
        columns = sp.csc_array(block.derivatives @ basis)
        kept.append(replace(block, offset=block.offset + moved, derivatives=columns))
    reduced = replace(
        relaxation,
        known=relaxation.known + directions @ origin,
        directions=directions @ basis,
        blocks=tuple(kept),
    )
    return frozen(reduced), chain


def _averages(
    known: Array,
    directions: Array,
    free: NDArray[np.int64],
    chain: Chain,
    relaxation: Relaxation,
) -> tuple[Array, Array]:
    """Variables that make the origin invariant, and the average of the group on the variables."""
    n, top = relaxation.dimension, 2 * relaxation.relaxation_order
    lower, point = directions[free], known
    average = np.eye(len(free))
    degrees = [slice(comb(n - 2 + e, n - 1), comb(n - 1 + e, n - 1)) for e in range(top + 1)]
    for level in chain:  # S of a product c_0 c_1 .. is .. S(c_1) S(c_0)
        if len(level) == 1:
            continue
        mean = np.mean([substitution(p, top) for p in level], axis=0)
        point = mean @ point
        # polynomials of a degree are orthogonal to all below: only the leading forms count
        for rows in degrees[relaxation.order + 1 :]:
            part = slice(rows.start - free[0], rows.stop - free[0])
            moved = mean[rows, rows] @ lower[part, part]
            step = solve_triangular(lower[part, part], moved, lower=True)
            average[part, part] = step @ average[part, part]
    return solve_triangular(lower, (point - known)[free], lower=True), average


def _orbit(factors: tuple[int, ...], chain: Chain) -> set[tuple[int, ...]]:
    orbit, new = {factors}, {factors}
    while new:
        images = {tuple(sorted(p[i] for i in f)) for f in new for level in chain for p in level}
        new = images - orbit
        orbit |= new
    return orbit


def spread_multipliers(
    relaxation: Relaxation, reduced: Relaxation, chain: Chain, multipliers: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Average the multipliers of a reduced program over the group.

    Parameters
    ----------
    relaxation, reduced : Relaxation
        All blocks and those of the reduced program.
    chain : tuple
        The group, from `reduce_symmetry`.
    multipliers : tuple of ndarray, shapes (s_j, s_j)
        Z_j of the reduced program, in the orthonormal polynomials of its blocks.

    Returns
    -------
    tuple of ndarray
        One Z for every block of `relaxation`. Their polynomial is the average over the group of
        ``sum_j g_j c' Z_j c``, c the polynomials of block j: there the terms above degree d cancel.

    Examples
    --------
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> relaxation = build_relaxation(uniform_moments(1, 1), 1, 1, 1)
    >>> reduced, chain = reduce_symmetry(relaxation)
    >>> Z = tuple(np.eye(block.size) for block in reduced.blocks)
    >>> [z.tolist() for z in spread_multipliers(relaxation, reduced, chain, Z)[1:3]]
    [[[0.5]], [[0.5]]]
    """
    blocks = {block.factors: block for block in relaxation.blocks}
    current = {b.factors: Z for b, Z in zip(reduced.blocks, multipliers, strict=True)}
    for level in reversed(chain):
        if len(level) == 1:
            continue
        spread: dict[tuple[int, ...], Array] = {}
        for p in level:
            matrix = substitution(p, relaxation.relaxation_order)
            for factors, Z in current.items():
                image = tuple(sorted(p[i] for i in factors))
                R = _rotation(matrix, blocks[factors], blocks[image], relaxation.n_variables)
                spread[image] = spread.get(image, 0.0) + R.T @ Z @ R / len(level)
        current = spread
    return tuple(current.get(f, np.zeros(2 * (block.size,))) for f, block in blocks.items())


def _rotation(matrix: Array, source: MomentBlock, target: MomentBlock, n_variables: int) -> Array:
    """Orthogonal R with ``source polynomials at p x = R @ target polynomials at x``."""
    R = np.zeros(2 * (source.size,))
    for e in range(source.degree + 1):
        # degrees do not mix, so that their leading forms tell all
        rows = slice(comb(n_variables + e - 1, n_variables), comb(n_variables + e, n_variables))
        right = source.change[rows, rows] @ matrix[rows, rows]
        R[rows, rows] = solve_triangular(target.change[rows, rows].T, right.T).T
    return R
