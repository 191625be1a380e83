"""Bounds that hold for every feasible tensor, proven by linear programming.

A form whose coefficients are nonnegative is nonnegative on the orthant, and so is every
``sum_i (a_i / d) u_i^d - u^a`` (means). Forms in the cone that these span are cheap proofs.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.cone_problem import ConeProblem, Floats, linear_program
from tensoralg.core.indices import multi_indices
from tensoralg.solvers.simplex_measure import count_indices

__all__ = ["mass_bound", "simple_bound", "simple_infeasibility"]

Places = npt.NDArray[np.intp]

_DIGITS = (3, 6, 9, 16)  # to which multipliers are rounded until a proof is exact
# contradictions below this are what rounding of the numbers of a problem does to repeated rows
_CONTRADICTION = Fraction(1, 10**9)


def mass_bound(problem: ConeProblem, upper: float | None = None) -> float:
    """Bound the sum of all entries over the feasible tensors.

    Parameters
    ----------
    problem : ConeProblem
        Its constraints count; its objective only together with `upper`.
    upper : float, optional
        A number that the objective need not exceed: the value of a feasible tensor.

    Returns
    -------
    float
        ``<e^d, X>`` is at most this for every feasible X (whose objective is at most `upper`);
        infinite where linear programming finds no bound.
    """
    if upper is not None:
        problem = problem.with_row(problem.cost, "<=", upper)
    if not len(problem.bounds):
        return np.inf
    found = _search(problem, problem.mass, limit=None)
    if found is None:
        return np.inf
    # sum nu_j rows_j >= (1 - loss) e^d on the orthant, so mass <= nu.b / (1 - loss)
    combination = found @ problem.rows
    loss = _shortfall(combination - problem.mass, problem)
    value = float(found @ problem.bounds)
    return max(value, 0.0) / (1.0 - loss) if loss < 0.5 else np.inf


def simple_infeasibility(problem: ConeProblem) -> bool:
    """Tell whether a combination of the constraints is impossible for a cheap, exact reason.

    Parameters
    ----------
    problem : ConeProblem
        Its constraints count.

    Returns
    -------
    bool
        True only where numbers nu were found, and checked in exact arithmetic, with
        ``sum nu_j rows_j`` nonnegative on the orthant while ``sum nu_j bounds_j`` is negative by
        more than 1e-9 of the largest number of either kind.
    """
    if not len(problem.bounds):
        return False
    found = _search(problem, np.zeros(len(problem.cost)), limit=1.0)
    if found is None or found @ problem.bounds >= 0.0:
        return False
    zero = np.zeros(len(problem.cost))
    for digits in _DIGITS:
        nu = np.round(found, digits)
        size = Fraction(float(np.abs(nu).max())) * Fraction(float(np.abs(problem.bounds).max()))
        if _dot(nu, problem.bounds) < -_CONTRADICTION * size and _nonnegative(problem, zero, nu):
            return True
    return False


def simple_bound(problem: ConeProblem) -> float:
    """Bound the objective by a combination of the constraints, checked in exact arithmetic.

    Unlike the bounds of relaxations it needs no bound on the mass.

    Parameters
    ----------
    problem : ConeProblem
        The problem.

    Returns
    -------
    float
        ``<C, X>`` is at least this for every feasible X; -inf where no combination was found.
    """
    found = _search(problem, -problem.cost, limit=None)
    if found is not None:
        for digits in _DIGITS:
            nu = np.round(found, digits)
            if _nonnegative(problem, problem.cost, nu):
                return -float(_dot(nu, problem.bounds))
    return -np.inf


def _search(problem: ConeProblem, target: Floats, limit: float | None) -> Floats | None:
    """Minimise nu.b with sum nu_j rows_j - target in the span of the cheap forms; None: no such."""
    pure, mixed, powers = _means(problem)
    q, t = len(problem.bounds), len(mixed)
    # rows by coefficient: nu enters with `rows`, the weights tau of the means with -1 on their
    # powers and +1 on their monomials
    matrix = np.zeros((len(target), q + t))
    matrix[:, :q] = problem.rows.T
    matrix[pure, q:] = -powers.T
    matrix[mixed, q + np.arange(t)] = 1.0
    cost = np.concatenate([problem.bounds, np.zeros(t)])
    reach = np.inf if limit is None else limit
    # nu is minus a multiplier: nonnegative for <=, nonpositive for >=
    low = np.where(problem.signs < 0, 0.0, -reach)
    high = np.where(problem.signs > 0, 0.0, reach)
    box = np.column_stack(
        [np.concatenate([low, np.zeros(t)]), np.concatenate([high, np.full(t, np.inf)])]
    )
    result = linear_program(cost, A_ub=-matrix, b_ub=-target, bounds=box)
    if result is None:
        return None
    nu: Floats = np.clip(result.x[:q], low, high)
    return nu


def _means(problem: ConeProblem) -> tuple[Places, Places, Floats]:
    """Positions of the powers u_i^d and of the other monomials, and a / d for the latter."""
    powers = _exponents(problem) / problem.order
    is_pure = powers.max(axis=1) == 1.0
    pure = np.flatnonzero(is_pure)
    pure = pure[np.argsort(powers[pure].argmax(axis=1))]
    mixed = np.flatnonzero(~is_pure)
    return pure, mixed, powers[mixed]


def _exponents(problem: ConeProblem) -> npt.NDArray[np.int64]:
    """How often each variable occurs in each monomial, shape (K, n)."""
    n = problem.dimension
    return count_indices(multi_indices(n, problem.order), n)


def _shortfall(form: Floats, problem: ConeProblem) -> float:
    """Find s with ``form + s e^d`` nonnegative on the orthant, by means and signs."""
    pure, mixed, powers = _means(problem)
    used = np.maximum(-form[mixed], 0.0)
    left = form[pure] - powers.T @ used
    # every power u_i^d occurs once in e^d
    return float(max(-left.min(), 0.0)) + 1e-12


def _dot(nu: Floats, values: Floats) -> Fraction:
    products = (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(nu, values, strict=True))
    return sum(products, Fraction(0))


def _nonnegative(problem: ConeProblem, start: Floats, nu: Floats) -> bool:
    """Check in fractions that ``start + sum nu_j rows_j`` is in the span of the cheap forms."""
    form = [
        Fraction(float(value)) + _dot(nu, column)
        for value, column in zip(start, problem.rows.T, strict=True)
    ]
    left = [Fraction(0)] * problem.dimension
    for value, count in zip(form, _exponents(problem).tolist(), strict=True):
        if max(count) == problem.order:
            left[count.index(problem.order)] += value
        elif value < 0:
            left = [a + value * c / problem.order for a, c in zip(left, count, strict=True)]
    return all(a >= 0 for a in left)
