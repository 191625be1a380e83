"""Feasible completely positive tensors, as sums of nonnegative atoms.

Weights of given atoms solve a linear program; its multipliers price new atoms, which are local
minimisers of a form on the simplex (column generation [1]_). Small violations of the constraints
are removed by least-norm Newton steps on the atoms, whose zeros stay zeros.

References
----------
.. [1] G. B. Dantzig, P. Wolfe, "Decomposition principle for linear programs", Operations Research
   8 (1960).
"""

import math
from dataclasses import replace

import numpy as np

from tensoralg.completely_positive.cone_problem import (
    ConeProblem,
    Floats,
    form_gradients,
    form_values,
    linear_program,
)
from tensoralg.core.index_maps import insertion_positions, listed_multiplicities
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials

__all__ = ["best_atoms", "local_minimizers", "violation"]

_ROUNDS = 12
_DESCENT = 60  # steps of all starts together
_FEASIBLE = 1e-9
_PENALTY = 1e3


def violation(problem: ConeProblem, atoms: Floats) -> float:
    """Largest relative violation of the constraints by the sum of the atoms' powers.

    Parameters
    ----------
    problem : ConeProblem
        With q rows.
    atoms : ndarray, shape (r, n)
        Weights absorbed.

    Returns
    -------
    float
        0 without constraints.
    """
    sizes = np.abs(problem.bounds) + form_values(np.abs(problem.rows), atoms, problem.order).sum(
        axis=1
    )
    excess = _excess(problem, atoms)
    return float((np.abs(excess) / np.where(sizes > 0, sizes, 1.0)).max(initial=0.0))


def local_minimizers(
    form: Floats, order: int, dimension: int, rng: np.random.Generator, n_starts: int
) -> Floats:
    """Local minimisers of a form on the simplex, from many starts.

    Parameters
    ----------
    form : ndarray, shape (K,)
        Coefficients over the sorted multi-indices.
    order, dimension : int
        Degree d and number n of variables.
    rng : numpy.random.Generator
        For the starts.
    n_starts : int
        Number of starts besides one close to each vertex.

    Returns
    -------
    ndarray, shape (r, n)
        Distinct points with ``u >= 0``, ``e'u = 1``, the lowest value first.
    """
    if dimension == 1:
        return np.ones((1, 1))
    starts = np.concatenate(
        [
            0.98 * np.eye(dimension) + 0.02 / dimension,
            rng.dirichlet(np.full(dimension, 0.5), n_starts),
        ]
    )
    z = np.sqrt(starts / starts.sum(axis=1, keepdims=True))
    u = _descend(form / (float(np.abs(form).max()) or 1.0), order, z) ** 2
    u[u < 1e-9] = 0.0
    points = u / u.sum(axis=1, keepdims=True)
    return _distinct(points[np.argsort(form_values(form, points, order))])


def _descend(form: Floats, order: int, z: Floats) -> Floats:
    """Minimise ``form(z*z)`` on the unit sphere from all rows of z at once.

    Newton's steps with the eigenvalues of the Hessian replaced by their magnitudes, damped where
    the value does not fall.
    """
    r, n = z.shape
    damping = np.full(r, 1e-2)
    value = form_values(form, z * z, order)
    for _ in range(_DESCENT):
        slope = form_gradients(form[None], z * z, order)[0]
        gradient = 2 * z * (slope - order * value[:, None])  # tangent: Euler's identity
        going = (np.abs(gradient).max(axis=1) > 1e-10) & (damping < 1e4)
        if not going.any():
            break
        hessian = 4 * z[:, :, None] * _hessians(form, z * z, order) * z[:, None, :]
        diagonal = np.arange(n)
        hessian[:, diagonal, diagonal] += 2 * (slope - order * value[:, None])
        tangent = np.eye(n) - z[:, :, None] * z[:, None, :]
        values, vectors = np.linalg.eigh(tangent @ hessian @ tangent)
        size = np.abs(values) + damping[:, None] + 1e-14
        along = (vectors * gradient[:, :, None]).sum(axis=1) / size
        moved = z - (vectors * along[:, None, :]).sum(axis=2)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        new = form_values(form, moved * moved, order)
        better = new <= value
        z = np.where(better[:, None], moved, z)
        value = np.where(better, new, value)
        damping = np.where(better, 0.2 * damping, 5.0 * damping + 1e-12)
    return z


def _hessians(form: Floats, points: Floats, order: int) -> Floats:
    """Second derivatives of a form at points, shape (r, n, n)."""
    r, n = points.shape
    if order < 2:
        return np.zeros((r, n, n))
    tensor = form / listed_multiplicities(n, order)
    weights = order * (order - 1) * listed_multiplicities(n, order - 2)
    slices = tensor[insertion_positions(n, order)][:, insertion_positions(n, order - 1)] * weights
    monomials = evaluate_monomials(points, multi_indices(n, order - 2))
    result: Floats = np.moveaxis(slices @ monomials.T, 2, 0)
    return result


def best_atoms(
    problem: ConeProblem,
    candidates: Floats,
    rng: np.random.Generator,
    *,
    n_starts: int = 12,
) -> tuple[Floats, float]:
    """Find a feasible sum of powers with a small objective, from candidates and new atoms.

    Parameters
    ----------
    problem : ConeProblem
        To be solved from above.
    candidates : ndarray, shape (r, n)
        Points of the simplex to begin with; r may be 0.
    rng : numpy.random.Generator
        For the starts of the pricing.
    n_starts : int, default 12
        Starts of each pricing.

    Returns
    -------
    atoms : ndarray, shape (s, n)
        Nonnegative, weights absorbed.
    objective : float
        ``<C, X>`` of their sum; infinite where the constraints are violated.
    """
    n, order, cost = problem.dimension, problem.order, problem.cost
    pool = _distinct(np.concatenate([candidates, np.eye(n), np.full((1, n), 1.0 / n)]))
    size = float(np.abs(problem.cost).max())
    for _ in range(_ROUNDS):
        solved = _weights(problem, pool)
        if solved is None:  # no end of descent: any feasible tensor will do
            problem = replace(problem, cost=np.zeros_like(problem.cost))
            continue
        reduced = problem.cost - solved[1] @ problem.rows
        new = local_minimizers(reduced, order, n, rng, n_starts)
        new = new[form_values(reduced, new, order) < -1e-11 * float(np.abs(reduced).max() + size)]
        before = len(pool)
        pool = _distinct(np.concatenate([pool, new]))
        if len(pool) == before:
            break
    solved = _weights(problem, pool)
    if solved is None:
        return np.zeros((0, n)), np.inf
    weights = solved[0]
    used = weights > 1e-12 * weights.max(initial=0.0)
    atoms = pool[used] * weights[used, None] ** (1.0 / order)
    atoms = _restore(problem, atoms)
    if violation(problem, atoms) > _FEASIBLE:
        return atoms, np.inf
    return atoms, float(form_values(cost, atoms, order).sum())


def _weights(problem: ConeProblem, points: Floats) -> tuple[Floats, Floats, float] | None:
    """Cheapest weights of the points, with a heavy price on what violates a row."""
    order, signs = problem.order, problem.signs
    costs = form_values(problem.cost, points, order)
    values = form_values(problem.rows, points, order)
    q, r = values.shape
    scale = np.abs(values).max(axis=1, initial=0.0)
    scale = np.where(scale > 0, scale, 1.0)
    values, bounds = values / scale[:, None], problem.bounds / scale
    unit = float(np.abs(bounds).max(initial=0.0)) or 1.0
    price = _PENALTY * (float(np.abs(costs).max()) or 1.0)
    # w >= 0, and up to two slacks a row: + for what is missing, - for what is too much
    equal, below, above = signs == 0, signs < 0, signs > 0
    slacks = np.concatenate([np.eye(q), -np.eye(q)], axis=1)
    matrix = np.concatenate([values, slacks], axis=1)
    cost = np.concatenate([costs, np.full(2 * q, price)])
    result = linear_program(
        cost / price,
        A_eq=matrix[equal] if equal.any() else None,
        b_eq=bounds[equal] / unit if equal.any() else None,
        A_ub=np.concatenate([matrix[below], -matrix[above]]) if (~equal).any() else None,
        b_ub=np.concatenate([bounds[below], -bounds[above]]) / unit if (~equal).any() else None,
    )
    if result is None:
        return None
    multipliers = np.zeros(q)
    multipliers[equal] = result.eqlin.marginals if equal.any() else 0.0
    if (~equal).any():
        marginals = result.ineqlin.marginals
        multipliers[below] = marginals[: below.sum()]
        multipliers[above] = -marginals[below.sum() :]
    weights = np.maximum(result.x[:r], 0.0) * unit
    return weights, multipliers * price / scale, float(result.fun) * price * unit


def _restore(problem: ConeProblem, atoms: Floats) -> Floats:
    """Newton steps of least norm until the constraints hold; zeros of the atoms stay."""
    best, best_violation = atoms, violation(problem, atoms)
    for _ in range(25):
        if best_violation < 1e-15 or not len(atoms):
            break
        excess = _excess(problem, atoms)
        # inequalities that hold with equality must not be broken by the step
        values = form_values(problem.rows, atoms, problem.order).sum(axis=1) - problem.bounds
        size = np.abs(problem.bounds) + np.abs(values)
        active = (problem.signs == 0) | (excess != 0) | (np.abs(values) <= 1e-9 * size)
        slopes = form_gradients(problem.rows[active], atoms, problem.order)
        slopes = (slopes * (atoms > 0)).reshape(int(active.sum()), -1)
        scale = np.linalg.norm(slopes, axis=1)
        scale = np.where(scale > 0, scale, 1.0)
        step = np.linalg.lstsq(slopes / scale[:, None], -excess[active] / scale, rcond=1e-9)[0]
        atoms = np.maximum(atoms + step.reshape(atoms.shape), 0.0)
        found = violation(problem, atoms)
        if found < best_violation:
            best, best_violation = atoms, found
        elif not math.isfinite(found) or found > 10 * best_violation:
            break
    return best


def _excess(problem: ConeProblem, atoms: Floats) -> Floats:
    """Signed violation of each row, 0 where it holds."""
    values = form_values(problem.rows, atoms, problem.order).sum(axis=1) - problem.bounds
    signs = problem.signs
    result: Floats = np.where(
        signs == 0, values, np.where(signs < 0, np.maximum(values, 0), np.minimum(values, 0))
    )
    return result


def _distinct(points: Floats) -> Floats:
    """Leave out points within 1e-7 of an earlier one."""
    near = np.abs(points[:, None] - points[None]).max(axis=2, initial=0.0) <= 1e-7
    kept = np.ones(len(points), dtype=bool)
    for k in range(1, len(points)):
        kept[k] = not (near[k, :k] & kept[:k]).any()
    return points[kept]
