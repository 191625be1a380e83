"""Moment relaxations of linear problems over the completely positive cone, and proven bounds.

The variables are all moments w, of degree at most 2k, of a measure of any mass on the full
simplex; the tensor's entries are linear in those of degree at most d. Multipliers lambda of the
constraints and positive semidefinite Z_j of the blocks prove, whatever solver found them,

    <C, u^d> - sum lambda_i <B_i, u^d> = sum_j <Z_j, block_j(u)> + r(u)    on the simplex,

so that ``<C, X> >= lambda.b - epsilon <e^d, X>`` where ``r >= -epsilon`` by Bernstein's
coefficients: an inaccurate solution costs accuracy, never truth.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.completely_positive.cone_problem import ConeProblem, Floats
from tensoralg.core.index_maps import insertion_positions, listed_multiplicities
from tensoralg.core.indices import multi_indices, number_of_multi_indices, rank_multi_indices
from tensoralg.solvers.atoms import extract_atoms, flat_truncations
from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.moment_matrices import congruence
from tensoralg.solvers.moment_relaxation import build_relaxation
from tensoralg.solvers.simplex_measure import uniform_moments
from tensoralg.solvers.svec import positive_part, svec, svec_side

__all__ = [
    "Bound",
    "block_maps",
    "extracted_points",
    "form_to_polynomial",
    "polynomial_to_form",
    "relaxed",
    "violated",
]

_EXTRACTIONS = 3  # gaps of the singular values that are tried


@dataclass(frozen=True, eq=False)
class Bound:
    """What a relaxation proves and finds.

    Attributes
    ----------
    value, loss : float
        ``<C, X> >= value - loss <e^d, X>`` for every feasible X.
    multipliers : ndarray, shape (q,)
        lambda, with the signs that the constraints' senses ask for.
    moments : ndarray, shape (C(N+2k, 2k),)
        Of the relaxation's optimum.
    result : ConicResult
        The solver's answer.
    """

    value: float
    loss: float
    multipliers: Floats
    moments: Floats
    result: ConicResult


def form_to_polynomial(coefficients: Floats, dimension: int, order: int) -> Floats:
    """Coefficients in x of forms in u, where ``u = (x, 1 - e'x)``.

    Parameters
    ----------
    coefficients : ndarray, shape (..., C(n+d-1, d))
        Forms of degree d over the sorted multi-indices.
    dimension, order : int
        Number n of variables u and degree d.

    Returns
    -------
    ndarray, shape (..., C(n-1+d, d))
        Polynomials over the sorted multi-indices in which index 0 is the constant 1 and index i
        the variable x_i.
    """
    n = dimension
    result = coefficients[..., -1:]  # of u_n^d; then Horner's rule in u_n
    for degree in range(1, order + 1):
        positions = insertion_positions(n, degree)
        raised = np.zeros((*coefficients.shape[:-1], number_of_multi_indices(n, degree)))
        raised[..., positions[0]] += result
        for i in range(1, n):
            raised[..., positions[i]] -= result
        rest = multi_indices(n - 1, degree)
        slack = np.full((len(rest), order - degree), n - 1)
        source = rank_multi_indices(np.concatenate([rest, slack], axis=1), n)
        raised[..., rank_multi_indices(rest + 1, n)] += coefficients[..., source]
        result = raised
    return result


def polynomial_to_form(coefficients: Floats, dimension: int, order: int) -> Floats:
    """Invert `form_to_polynomial`: the form of degree D that agrees on the simplex.

    Parameters
    ----------
    coefficients : ndarray, shape (..., C(n-1+D, D))
        Polynomials in x of degree at most D, index 0 standing for the constant.
    dimension, order : int
        Number n of variables u of the form and degree D.

    Returns
    -------
    ndarray, shape (..., C(n+D-1, D))
        Forms over the sorted multi-indices. Divided by the multiplicities these are Bernstein's
        coefficients: their extremes bound the values on the simplex.
    """
    n = dimension
    result = coefficients[..., :1]
    for degree in range(1, order + 1):
        positions = insertion_positions(n, degree)
        raised = np.zeros((*coefficients.shape[:-1], number_of_multi_indices(n, degree)))
        for i in range(n):  # times u_1 + .. + u_n = 1
            raised[..., positions[i]] += result
        part = multi_indices(n - 1, degree)
        constants = np.zeros((len(part), order - degree), dtype=np.int64)
        source = rank_multi_indices(np.concatenate([constants, part + 1], axis=1), n)
        raised[..., rank_multi_indices(part, n)] += coefficients[..., source]
        result = raised
    return result


def block_maps(dimension: int, order: int, relaxation_order: int) -> list[Any]:
    """Linear maps from all moments to the blocks of a relaxation, in orthonormal polynomials.

    Parameters
    ----------
    dimension, order, relaxation_order : int
        n, d and k.

    Returns
    -------
    list of csc_array, shapes (s(s+1)/2, C(N+2k, 2k))
        Block j of moments w is ``smat(maps[j] @ w)``.

    Raises
    ------
    ProblemTooLargeError
        By prediction, before memory is taken.
    """
    N = dimension - 1
    relaxation = build_relaxation(uniform_moments(N, order), N, order, relaxation_order)
    return [congruence(block.change, block.map) for block in relaxation.blocks]


def relaxed(problem: ConeProblem, order: int, **options: Any) -> Bound:
    """Solve the relaxation of an order and prove what its multipliers prove.

    Parameters
    ----------
    problem : ConeProblem
        In units in which its tensors have a mass of about 1.
    order : int
        Relaxation order k, at least d/2.
    **options
        For `tensoralg.solvers.conic.solve_conic`.

    Returns
    -------
    Bound
        Its value is -inf where the solver failed.

    Raises
    ------
    ProblemTooLargeError
        By prediction, before memory is taken.
    """
    maps, cost, rows = _pieces(problem, order)
    m = len(cost)
    blocks = [ConicBlock(_zeros(A), -A) for A in maps]
    equal, signs = problem.signs == 0, problem.signs
    blocks += [  # sign (row.w - bound) >= 0
        _scalar(-signs[j] * problem.bounds[j], -signs[j] * rows[j]) for j in np.flatnonzero(~equal)
    ]
    equations = (rows[equal], problem.bounds[equal]) if equal.any() else (None, None)
    result = solve_conic(ConicProblem(cost, tuple(blocks), *equations), **options)
    multipliers = np.zeros(len(rows))
    multipliers[equal] = -result.equality_multipliers
    for j, Z in zip(np.flatnonzero(~equal), result.multipliers[len(maps) :], strict=True):
        multipliers[j] = signs[j] * max(float(Z[0, 0]), 0.0)
    return _proven(problem, order, maps, cost, rows, multipliers, result, m)


def violated(problem: ConeProblem, order: int, mass: float, **options: Any) -> Bound:
    """Solve for the least violation of the constraints by a moment sequence of bounded mass.

    Parameters
    ----------
    problem : ConeProblem
        Its constraints count, the objective does not.
    order : int
        Relaxation order k.
    mass : float
        Bound on ``<e^d, X>``.
    **options
        For `tensoralg.solvers.conic.solve_conic`.

    Returns
    -------
    Bound
        For the objective 0: no X of at most this mass is feasible if ``value > loss * mass``.

    Raises
    ------
    ProblemTooLargeError
        By prediction, before memory is taken.
    """
    zero = np.zeros_like(problem.cost)
    bounded = ConeProblem(
        problem.order, problem.dimension, zero, problem.rows, problem.senses, problem.bounds
    ).with_row(problem.mass, "<=", mass)
    maps, cost, rows = _pieces(bounded, order)
    m = len(cost)
    blocks = [ConicBlock(_zeros(A), -np.pad(A.toarray(), ((0, 0), (0, 1)))) for A in maps]
    owners = []
    for j, (row, bound) in enumerate(zip(rows, bounded.bounds, strict=True)):
        slack = 0.0 if j == len(rows) - 1 else 1.0  # the mass may not be violated
        kinds = (-1, 1) if bounded.signs[j] == 0 else (int(bounded.signs[j]),)
        for sign in kinds:  # sign (row.w - bound) + s >= 0
            blocks.append(_scalar(-sign * bound, np.append(-sign * row, -slack)))
            owners.append((j, sign))
    blocks.append(_scalar(0.0, np.append(np.zeros(m), -1.0)))
    result = solve_conic(ConicProblem(np.append(cost, 1.0), tuple(blocks)), **options)
    multipliers = np.zeros(len(rows))
    for (j, sign), Z in zip(owners, result.multipliers[len(maps) : -1], strict=True):
        multipliers[j] += sign * max(float(Z[0, 0]), 0.0)
    return _proven(bounded, order, maps, cost, rows, multipliers, result, m)


def extracted_points(moments: Floats, dimension: int, rng: np.random.Generator) -> Floats:
    """Points of the simplex at which moments may sit, from every clear gap of their ranks.

    Parameters
    ----------
    moments : ndarray, shape (C(N+2k, 2k),)
        Of an optimum; NaN if there is none.
    dimension : int
        Dimension n of the tensor.
    rng : numpy.random.Generator
        For the combination of the multiplication matrices.

    Returns
    -------
    ndarray, shape (r, n)
        Clipped and scaled to ``e'u = 1``.
    """
    N, degree = dimension - 1, 2
    while number_of_multi_indices(dimension, degree) < len(moments):
        degree += 2
    points = [np.zeros((0, N))]
    if np.isfinite(moments).all():
        for truncation in flat_truncations(moments, N, degree)[:_EXTRACTIONS]:
            with contextlib.suppress(np.linalg.LinAlgError):
                points.append(extract_atoms(moments, N, degree, truncation.t, truncation.rank, rng))
    found = np.concatenate(points)
    found = np.maximum(np.column_stack([found, 1.0 - found.sum(axis=1)]), 0.0)
    found = found[np.isfinite(found).all(axis=1)]
    result: Floats = found / found.sum(axis=1, keepdims=True)
    return result


def _proven(
    problem: ConeProblem,
    order: int,
    maps: list[Any],
    cost: Floats,
    rows: Floats,
    multipliers: Floats,
    result: ConicResult,
    m: int,
) -> Bound:
    """Bound from multipliers, their residual measured by Bernstein's coefficients."""
    numbers = [multipliers, *result.multipliers]
    if not all(np.isfinite(values).all() for values in numbers):
        return Bound(-np.inf, np.inf, np.zeros(len(rows)), np.full(m, np.nan), result)
    rest = cost - multipliers @ rows
    sizes = np.abs(cost) + np.abs(multipliers) @ np.abs(rows)
    for A, Z in zip(maps, result.multipliers, strict=False):
        vector = svec(positive_part(Z))
        rest = rest - A.T @ vector
        sizes = sizes + abs(A).T @ np.abs(vector)
    forms = polynomial_to_form(np.stack([rest, sizes]), problem.dimension, 2 * order)
    forms = forms / listed_multiplicities(problem.dimension, 2 * order)
    least = float(forms[0].min())
    rounding = 4 * np.finfo(float).eps * float(forms[1].max())  # of the sums above
    value = float(multipliers @ problem.bounds)
    return Bound(value, max(-least, 0.0) + rounding, multipliers, result.y[:m], result)


def _pieces(problem: ConeProblem, order: int) -> tuple[list[Any], Floats, Floats]:
    """Return the blocks' maps, and objective and rows as functions of the moments."""
    n, d = problem.dimension, problem.order
    maps = block_maps(n, d, order)
    m = number_of_multi_indices(n, 2 * order)
    forms = form_to_polynomial(np.vstack([problem.cost, problem.rows]), n, d)
    padded = np.zeros((len(forms), m))
    padded[:, : forms.shape[1]] = forms  # moments of degree at most d come first
    return maps, padded[0], padded[1:]


def _scalar(h: float, row: Floats) -> ConicBlock:
    return ConicBlock(np.array([[h]]), row[None, :])


def _zeros(matrix: Any) -> Floats:
    side = svec_side(matrix.shape[0])
    return np.zeros((side, side))
