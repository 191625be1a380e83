"""Facial reduction: what a singular known block says about the free moments.

Where the moments give ``L_w(g q^2) = 0`` for a polynomial q, every measure that has them lives on
the zeros of g q, because g q^2 >= 0 on the simplex. Hence ``L_w(g q x^b) = 0`` for all b: linear
equations for the free moments. Without them a relaxation of a tensor of low rank has no interior
and solvers lose half their digits; with them it often has no free variable left [1]_ [2]_.

A kernel is judged in float64 and may be false. Nothing here proves anything: atoms that are found
in the reduced relaxation must rebuild the tensor.

References
----------
.. [1] J. Borwein, H. Wolkowicz, "Regularizing the abstract convex program", J. Math. Anal. Appl.
   83 (1981).
.. [2] M. Laurent, "Sums of squares, moment matrices and optimization over polynomials" (2009),
   section 5.
"""

from dataclasses import dataclass, replace
from math import comb

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.solvers.moment_blocks import MomentBlock, Relaxation, frozen
from tensoralg.solvers.moment_matrices import times_factor
from tensoralg.solvers.simplex_measure import orthonormal_basis
from tensoralg.solvers.svec import smat, svec

__all__ = ["reduce_faces"]

Array = NDArray[np.float64]

_LARGEST = 2**26  # coefficients that are worth the dense algebra: 512 MiB
_STRUCTURAL = 1e-9  # derivatives below are rounding errors; real ones are near 1
_ROUNDS = 20  # every round raises the rank of the equations


@dataclass(frozen=True, slots=True, eq=False)
class _Dense:
    """One block: value (r, r) at the origin and derivatives (r, r, m)."""

    block: MomentBlock
    value: Array
    derivatives: Array

    def leading(self, n_variables: int) -> list[int]:
        """Sizes of the leading blocks, by the degree of their polynomials."""
        return [comb(n_variables + e, e) for e in range(self.block.degree + 1)]


def reduce_faces(relaxation: Relaxation, *, tolerance: float = 1e-9) -> Relaxation:
    """Restrict a relaxation to the smallest face that its known blocks reveal.

    Parameters
    ----------
    relaxation : Relaxation
        Dehomogenised, as built.
    tolerance : float, default 1e-9
        Eigenvalues below this times the largest count as zero.

    Returns
    -------
    Relaxation
        Fewer free variables and smaller blocks, written in the polynomials ``change @ b`` that
        are left; blocks that vanish are dropped. The same relaxation where nothing is singular,
        where the equations contradict each other, or where it is too large for dense algebra.

    Raises
    ------
    ValueError
        A homogeneous relaxation.

    Examples
    --------
    Two points of an interval: their moments of degree 4 leave nothing free.

    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> moments = (np.array([0.2, 0.7]) ** np.arange(5)[:, None]).mean(axis=1)
    >>> reduced = reduce_faces(build_relaxation(moments, 1, 4, 3))
    >>> reduced.n_free, bool(np.allclose(reduced.known[6], (0.2**6 + 0.7**6) / 2))
    (0, True)
    """
    if relaxation.homogeneous:
        raise ValueError("relaxation must be dehomogenised; got a homogeneous one")
    sizes = [block.size for block in relaxation.blocks]
    if relaxation.n_free * sum(size**2 for size in sizes) > _LARGEST:
        return relaxation
    blocks = [_dense(block) for block in relaxation.blocks]
    known, directions = relaxation.known, np.asarray(relaxation.directions)
    for _ in range(_ROUNDS):
        equations = _equations(blocks, relaxation, known, directions, tolerance)
        solved = _solve(*equations, tolerance)
        if solved is None:  # contradiction: no face at all, or a false kernel
            return relaxation
        origin, free = solved
        if free.shape[1] == directions.shape[1]:
            break
        known, directions = known + directions @ origin, directions @ free
        blocks = [
            replace(b, value=b.value + b.derivatives @ origin, derivatives=b.derivatives @ free)
            for b in blocks
        ]
    if directions.shape[1] == relaxation.n_free:
        return relaxation
    compressed = [_compress(b, tolerance) for b in blocks]
    kept = tuple(block for block in compressed if block.size)
    return frozen(replace(relaxation, known=known, directions=directions, blocks=kept))


def _dense(block: MomentBlock) -> _Dense:
    derivatives = smat(block.derivatives.toarray().T).transpose(1, 2, 0)
    return _Dense(block, np.array(block.offset), np.ascontiguousarray(derivatives))


def _kernel(value: Array, derivatives: Array, tolerance: float) -> Array:
    """Columns v with ``derivatives v = 0`` and ``v' value v = 0``, orthonormal."""
    gram = np.einsum("ijm,ikm->jk", derivatives, derivatives)
    values, vectors = np.linalg.eigh(gram)
    # squared norms: rounding leaves 1e-20 where a true derivative is near 1
    fixed = vectors[:, values < _STRUCTURAL**2 * max(1.0, values[-1])]
    eigenvalues, rotation = np.linalg.eigh(fixed.T @ value @ fixed)
    # moments of mass 1 give blocks of size 1 in orthonormal polynomials
    scale = max(abs(np.linalg.eigvalsh(value)).max(), 1.0)
    return np.asarray(fixed @ rotation[:, eigenvalues < tolerance * scale])


def _equations(
    blocks: list[_Dense], relaxation: Relaxation, known: Array, directions: Array, tolerance: float
) -> tuple[Array, Array]:
    """Rows and right-hand sides of ``L(g q b) = 0`` for the kernels q of all leading blocks."""
    N, top = relaxation.n_variables, 2 * relaxation.relaxation_order
    moments = np.column_stack([known, directions])
    parts = [np.zeros((0, moments.shape[1]))]
    for b in blocks:
        for degree, size in enumerate(b.leading(N)):
            v = _kernel(b.value[:size, :size], b.derivatives[:size, :size], tolerance)
            if not v.shape[1]:
                continue
            polynomials = v.T @ b.block.change[:size, :size]
            for i in b.block.factors:
                polynomials = times_factor(polynomials, N, degree, i)
                degree += 1
            parts.append(_multiples(polynomials, N, degree, top - degree, moments))
    rows = np.concatenate(parts)
    return rows[:, 1:], -rows[:, 0]


def _multiples(
    polynomials: Array, n_variables: int, degree: int, rest: int, moments: Array
) -> Array:
    """Values of L at polynomials times an orthonormal basis of degree `rest`, one row each."""
    n = n_variables + 1
    a, b = multi_indices(n, degree), multi_indices(n, rest)
    shape = (len(b), len(a))
    joined = np.concatenate(
        [
            np.broadcast_to(b[:, None, :], (*shape, rest)),
            np.broadcast_to(a[None, :, :], (*shape, degree)),
        ],
        axis=2,
    )
    positions = rank_multi_indices(np.sort(joined, axis=2), n)
    values = np.stack([np.tensordot(p, moments[positions], axes=(0, 1)) for p in polynomials])
    change = orthonormal_basis(n_variables, rest)
    return np.asarray((change @ values).reshape(-1, moments.shape[1]))


def _solve(rows: Array, sides: Array, tolerance: float) -> tuple[Array, Array] | None:
    """Solution of least norm and a basis of the null space; None where there is no solution."""
    m = rows.shape[1]
    if not len(rows) or not m:
        return np.zeros(m), np.eye(m)
    left, values, right = np.linalg.svd(rows, full_matrices=True)
    rank = int((values > 1e-7 * max(values[0], 1.0)).sum())
    origin = right[:rank].T @ ((left[:, :rank].T @ sides) / values[:rank])
    if np.linalg.norm(rows @ origin - sides) > np.sqrt(tolerance) * max(1.0, np.linalg.norm(sides)):
        return None
    return origin, right[rank:].T


def _compress(b: _Dense, tolerance: float) -> MomentBlock:
    """Leave out the polynomials on which a block vanishes."""
    kernel = _kernel(b.value, b.derivatives, tolerance)
    r = len(b.value)
    q, _ = np.linalg.qr(np.concatenate([kernel, np.eye(r)], axis=1))
    keep = q[:, kernel.shape[1] : r]
    size = keep.shape[1]
    value = keep.T @ b.value @ keep
    half = np.einsum("ia,ijm->ajm", keep, b.derivatives)
    derivatives = np.einsum("ajm,jc->acm", half, keep)
    vectors = svec(derivatives.transpose(2, 0, 1)).T if size else np.zeros((0, half.shape[2]))
    return replace(
        b.block,
        change=keep.T @ b.block.change,
        offset=(value + value.T) / 2,
        uniform=keep.T @ b.block.uniform @ keep,
        derivatives=sp.csc_array(vectors),
    )
