"""Detection by a shift towards the uniform measure: a program that is always feasible.

With U the moments of the uniform measure on the simplex,

    t_k = min t  such that  A + t U  lies in relaxation k.

``A + t U`` is in the relaxation for all large t, and total mass 1 + t >= 0 bounds t by -1, so no
solver ever has to report infeasibility. ``t_k > 0`` proves that A is not completely positive,
``t_k < 0`` that A is interior to the relaxation.

The dual solution is the proof. With ``g_j`` the product of the factors of block j and b its
monomials, multipliers Q_j, positive semidefinite, give a polynomial ::

    p(x) = sum_j g_j(x) b(x)' Q_j b(x) = sum_{|b| <= d} p_b x^b        (degrees above d cancel)

that is nonnegative on the simplex, with ``L_U(p) = 1`` and ``sum_b p_b w_b(A) = -t_k``. As a form
of degree d, nonnegative on the orthant, it is ``p(u) = sum_b p_b u^b (e'u)^(d-|b|)``, where b runs
over the first n - 1 entries of u, and ``<p, A> = sum_b p_b w_b(A)``.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.moment_blocks import MomentBlock, Relaxation
from tensoralg.solvers.moment_relaxation import equation_parts
from tensoralg.solvers.permutation_symmetry import reduce_symmetry, spread_multipliers
from tensoralg.solvers.svec import svec

__all__ = ["ShiftResult", "shift_problem", "solve_shift"]

Array = NDArray[np.float64]

_WEIGHT = 256.0  # the multipliers are what a proof is made of


@dataclass(frozen=True, slots=True, eq=False)
class ShiftResult:
    """The least shift t and the multipliers that prove it.

    Attributes
    ----------
    t : float
        Least t such that A + t U lies in the relaxation; positive only if A is not completely
        positive. NaN if the solver raised an exception.
    dual_bound : float
        ``-<p, A>`` of the multipliers: equals t up to `residual`, and bounds it from below up to
        the violation of the dual constraints.
    moments : ndarray, shape (C(N+2k, 2k),)
        Moments of A + t U, degrees above d as the solver completed them.
    multipliers : tuple of ndarray, shapes (s_j, s_j)
        Q_j in the monomials of block j, index 0 of ``multi_indices(N + 1, t_j)`` the constant:
        ``p = sum_j g_j b' Q_j b`` has no terms above degree d, ``L_U(p) = 1`` and ``<p, A> = -t``,
        each up to `residual`. Positive semidefinite up to rounding.
    relaxation : Relaxation
        Where block j's factors and degree stand: ``relaxation.blocks[j].factors`` and ``.degree``.
    status : {"solved", "inaccurate", "failed"}
        Judged by residuals computed from the result.
    residual : float
        The largest of the primal and dual residuals and the gap.
    message : str
        What the solver said.
    conic : ConicResult or None
        None if there was no free moment: then t is an eigenvalue. Its variables and blocks are
        those of the program after reduction by symmetry.
    seconds : float
        Wall time.
    """

    t: float
    dual_bound: float
    moments: Array
    multipliers: tuple[Array, ...]
    relaxation: Relaxation
    status: str
    residual: float
    message: str
    conic: ConicResult | None
    seconds: float


def shift_problem(relaxation: Relaxation) -> ConicProblem:
    """Conic problem of the least shift; its variables are t, then the free ones.

    ``w = known + t uniform + directions @ y``, so the column of t is the identity in every block.

    Parameters
    ----------
    relaxation : Relaxation
        The relaxation, of either form.

    Returns
    -------
    ConicProblem
        Minimise t.

    Examples
    --------
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> from tensoralg.solvers.simplex_measure import uniform_moments
    >>> shift_problem(build_relaxation(uniform_moments(1, 3), 1, 3, 2)).n_variables
    2
    """
    c = np.zeros(1 + relaxation.n_free)
    c[0] = 1
    blocks = tuple(
        ConicBlock(
            block.offset,
            sp.hstack(
                [sp.csc_array(-svec(block.uniform)[:, None]), -block.derivatives], format="csc"
            ),
        )
        for block in relaxation.blocks
    )
    E, f = equation_parts(relaxation)
    if E is not None:  # the uniform measure solves the equations, t drops out
        E = sp.hstack([sp.csc_array((E.shape[0], 1)), E], format="csc")
    return ConicProblem(c, blocks, E, f)


def solve_shift(
    relaxation: Relaxation,
    *,
    symmetry: bool = True,
    solver: str = "auto",
    tol: float = 1e-9,
    **options: Any,
) -> ShiftResult:
    """Least t such that A + t U lies in the relaxation, with multipliers as proof.

    Parameters
    ----------
    relaxation : Relaxation
        As from :func:`tensoralg.solvers.moment_relaxation.build_relaxation`, of a tensor with
        ``<A, e^d> = 1``.
    symmetry : bool, default True
        Use permutations of coordinates that leave A as it is.
    solver, tol, **options
        As in :func:`tensoralg.solvers.conic.solve_conic`.

    Returns
    -------
    ShiftResult
        Without free moments (d = 2k) no solver is called: t is an eigenvalue.

    Examples
    --------
    A tensor of dimension 2 and order 3 with entries 1, .5, .5, .3, scaled to total 4.3.

    >>> from tensoralg.solvers.moment_matrices import dehomogenize
    >>> from tensoralg.solvers.moment_relaxation import build_relaxation
    >>> known = dehomogenize(np.array([1, 0.5, 0.5, 0.3]) / 4.3, 2, 3)
    >>> result = solve_shift(build_relaxation(known, 1, 3, 2))
    >>> bool(abs(result.t - 12 / 43) < 1e-7)
    True
    """
    start = time.perf_counter()
    if relaxation.n_free == 0:
        return _eigenvalue_shift(relaxation, start)
    # the equations of the homogeneous form leave no interior: there it does harm
    options = {"objective_weight": 1.0 if relaxation.homogeneous else _WEIGHT} | options
    reduced, chain = reduce_symmetry(relaxation) if symmetry else (relaxation, ())
    result = solve_conic(shift_problem(reduced), solver=solver, tol=tol, **options)
    moments = reduced.known + result.y[0] * relaxation.uniform + reduced.directions @ result.y[1:]
    orthonormal = result.multipliers
    if reduced is not relaxation:
        orthonormal = spread_multipliers(relaxation, reduced, chain, orthonormal)
    multipliers = tuple(
        block.change.T @ Z @ block.change
        for block, Z in zip(relaxation.blocks, orthonormal, strict=True)
    )
    residual = max(result.primal_residual, result.dual_residual, result.gap)
    return ShiftResult(
        float(result.y[0]),
        float(result.dual_objective),
        _read_only(moments),
        tuple(_read_only(Q) for Q in multipliers),
        relaxation,
        result.status,
        float(residual),
        result.message,
        result,
        time.perf_counter() - start,
    )


def _eigenvalue_shift(relaxation: Relaxation, start: float) -> ShiftResult:
    """Every block is known: t is minus the least eigenvalue of all, its vector the proof."""
    least = [np.linalg.eigh(block.offset) for block in relaxation.blocks]
    j = int(np.argmin([values[0] for values, _ in least]))
    t = -float(least[j][0][0])
    vector = least[j][1][:, 0]
    multipliers = [np.zeros(2 * (block.change.shape[1],)) for block in relaxation.blocks]
    multipliers[j] = _rank_one(relaxation.blocks[j], vector)
    return ShiftResult(
        t,
        t,
        _read_only(relaxation.known + t * relaxation.uniform),
        tuple(_read_only(Q) for Q in multipliers),
        relaxation,
        "solved",
        float(np.finfo(float).eps * max(abs(values).max() for values, _ in least)),
        f"no free moment: the least eigenvalue is that of the block of factors "
        f"{relaxation.blocks[j].factors}",
        None,
        time.perf_counter() - start,
    )


def _rank_one(block: MomentBlock, vector: Array) -> Array:
    monomial = block.change.T @ vector
    return np.outer(monomial, monomial)


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array
