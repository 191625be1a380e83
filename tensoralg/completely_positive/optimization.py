"""Linear optimization over the cone of completely positive tensors.

Bounds from below are proven by multipliers of moment relaxations, bounds from above by tensors
that are sums of nonnegative powers and satisfy the constraints; where the two meet the problem is
solved. Neither rests on a solver's word.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np

from tensoralg.completely_positive.cone_bounds import mass_bound, simple_bound, simple_infeasibility
from tensoralg.completely_positive.cone_points import best_atoms, local_minimizers
from tensoralg.completely_positive.cone_problem import ConeProblem, Floats, cone_problem
from tensoralg.completely_positive.cone_relaxation import Bound, extracted_points, relaxed, violated
from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import positive_integer
from tensoralg.solvers.conic import automatic_solver, predict_bytes
from tensoralg.solvers.moment_relaxation import predict_size
from tensoralg.solvers.svec import svec_size

__all__ = ["ConeResult", "minimize", "relaxation_orders"]

_GAP = 1e-6  # relative: bounds this close have met
_LARGEST_BLOCK = 60  # of the orders that are tried unasked
_MORE_ORDERS = 3
_SEED = 0
_GIB = 1024**3
_MEMORY = 4 * _GIB


@dataclass(frozen=True, slots=True, eq=False)
class ConeResult:
    """Bounds on the least value of an objective, and the tensor that attains the upper one.

    The objective is ``<C, X>`` in `minimize`, and the distance ``|A - X|`` in `closest`.

    Attributes
    ----------
    value : float
        Objective of `tensor`; infinite where no feasible tensor was found, -inf if unbounded.
    lower_bound : float
        No feasible tensor has a smaller objective; -inf where nothing was proven, inf where
        nothing is feasible.
    tensor : SymmetricTensor or None
        A feasible tensor: every constraint holds to 1e-9, relative to its terms.
    decomposition : SymmetricDecomposition or None
        Its nonnegative points, all weights 1.
    relaxation_order : int
        Highest order k of a relaxation that was solved; 0 where none was needed.
    status : str
        "optimal": value and lower bound differ by at most 1e-6 of ``<|C|, X>`` (where that is tiny,
        1e-9 of the largest numbers of the problem), or of ``|A|``; "feasible": they differ by
        more; "lower bound only"; "infeasible"; "unbounded"; "undecided".
    message : str
        What to know or to do next.

    Examples
    --------
    >>> result = ConeResult(1.0, 1.0, None, None, 2, "optimal")
    >>> result.gap
    0.0
    """

    value: float
    lower_bound: float
    tensor: SymmetricTensor | None
    decomposition: SymmetricDecomposition | None
    relaxation_order: int
    status: str
    message: str = ""

    @property
    def gap(self) -> float:
        """Difference of the two bounds."""
        return 0.0 if self.value == self.lower_bound else self.value - self.lower_bound


def minimize(
    C: Any, constraints: Sequence[tuple[Any, str, float]], *, max_order: int | None = None
) -> ConeResult:
    """Minimise ``<C, X>`` over completely positive tensors X with linear constraints.

    Parameters
    ----------
    C : SymmetricTensor or array_like, shape (n,) * d
        The objective: order d, dimension n, real.
    constraints : sequence of (SymmetricTensor or array_like, str, float)
        Each ``(B, "==" | "<=" | ">=", b)`` asks that ``<B, X>`` compares so with b; the inner
        products are those of the dense arrays, so the tensor of ones as B constrains the sum of
        all entries of X.
    max_order : int, optional
        Highest order of relaxation, at least ceil(d/2). By default three orders are tried beyond
        that, as long as blocks have no more than 60 rows.

    Returns
    -------
    ConeResult
        Lower bound, upper bound, the tensor that attains it, and a status.

    Raises
    ------
    ShapeError
        Tensors of different order or dimension.
    NotSymmetricError
        A tensor that is not symmetric.
    ValueError
        Input that is not real and finite, an unknown sense, `max_order` below ceil(d/2).
    ProblemTooLargeError
        The first relaxation is too large already; the message has the estimate.

    Notes
    -----
    With variables on the simplex the dual problem asks for the best ``lambda.b`` such that
    ``C - sum lambda_i B_i`` is copositive. A relaxation [1]_ replaces that by sums of squares times
    products of at most two coordinates. The residual that a solver leaves in the identity is
    bounded on the simplex and paid for by a bound on the sum of the entries of X: where the
    constraints allow tensors of any size at the same objective, no lower bound is proven.

    References
    ----------
    .. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
       arXiv:2206.12553.

    Examples
    --------
    The largest product ``x_1 x_2 x_3`` on the simplex:

    >>> C = SymmetricTensor.from_function(lambda i, j, k: -(len({i, j, k}) == 3) / 6, 3, 3)
    >>> result = minimize(C, [(np.ones((3, 3, 3)), "==", 1.0)])
    >>> result.status, round(result.value, 6)
    ('optimal', -0.037037)
    >>> result.decomposition.points.round(4).tolist()
    [[0.3333, 0.3333, 0.3333]]
    """
    problem = cone_problem(C, constraints)
    orders = relaxation_orders(problem.dimension, problem.order, max_order)
    _check_size(problem, orders[0])
    scaled, units = problem.in_own_units()
    search = _Search(scaled, np.random.default_rng(_SEED), orders)
    return _unscaled(search.run(), problem, units)


class _Search:
    """Bounds of one problem, tightened order by order."""

    def __init__(self, problem: ConeProblem, rng: np.random.Generator, orders: range) -> None:
        self.problem, self.rng, self.orders = problem, rng, orders
        self.atoms: Floats = np.zeros((0, problem.dimension))
        self.value, self.lower = np.inf, -np.inf
        self.mass, self.order, self.message = np.inf, 0, ""

    def run(self) -> ConeResult:
        problem = self.problem
        if simple_infeasibility(problem):
            return self._infeasible("a combination of the constraints is impossible")
        self._improve(np.zeros((0, problem.dimension)))
        self.mass = self._mass()
        if self.mass == np.inf and (answer := self._unlimited()) is not None:
            return answer
        self.lower = simple_bound(problem)
        if problem.dimension == 1 and np.isfinite(self.value):
            # one nonnegative number: the linear program over its only atom is exact
            self.lower = self.value
        for order in self.orders if problem.dimension > 1 else ():
            if self._met() or not self._step(order):
                break
            if self.lower == np.inf:
                return self._infeasible(f"proven by the relaxation of order {order}")
        return self._result()

    def _improve(self, candidates: Floats) -> None:
        atoms, value = best_atoms(self.problem, candidates, self.rng)
        if value < self.value:
            self.atoms, self.value = atoms, value

    def _mass(self) -> float:
        bound = mass_bound(self.problem)
        if np.isfinite(self.value):
            size = float(np.abs(self.problem.cost).max())
            bound = min(bound, mass_bound(self.problem, self.value + 1e-9 * size))
        return bound

    def _met(self) -> bool:
        if not np.isfinite(self.value):
            return False
        return self.value - self.lower <= _GAP * self._size()

    def _size(self) -> float:
        # forms and numbers of the scaled problem are about 1: a tiny optimum is compared with that
        return max(float(_entries(self.problem, self.atoms) @ np.abs(self.problem.cost)), 1e-3)

    def _step(self, order: int) -> bool:
        """Solve one relaxation; False where it is too large."""
        mass = self.mass
        if mass == 0.0:  # only the zero tensor is left
            self.lower = 0.0 if np.isfinite(self.value) else np.inf
            return True
        try:
            unit = mass if np.isfinite(mass) else 1.0
            problem = replace(self.problem, bounds=self.problem.bounds / unit)  # for X / unit
            if np.isfinite(mass):
                # redundant, but relaxations of low order do not know it
                problem = problem.with_row(problem.mass, "<=", 2.0)
            bound = relaxed(problem, order)
            self.order = order
            if np.isfinite(mass):
                self.lower = max(self.lower, float(unit * (bound.value - bound.loss)))
            elif bound.result.status != "failed":
                self.message = (
                    f"the relaxation of order {order} has the value {unit * bound.value:.9g}, but "
                    "no bound on the sum of the entries is known that would make it a proof"
                )
            if self._met():
                return True
            self._improve(self._candidates(problem, bound))
            if not np.isfinite(self.value) and self._excluded(problem, order):
                self.lower = np.inf
        except ProblemTooLargeError as error:
            if not self.order:
                raise
            self.message = str(error)
            return False
        return True

    def _candidates(self, problem: ConeProblem, bound: Bound) -> Floats:
        """Points of the simplex that optimal atoms may be."""
        n_rows = len(self.problem.bounds)
        # complementarity: the bound's form is zero at every optimal atom
        form = problem.cost - bound.multipliers[:n_rows] @ problem.rows[:n_rows]
        lowest = local_minimizers(form, problem.order, problem.dimension, self.rng, 30)
        return np.concatenate(
            [lowest, extracted_points(bound.moments, problem.dimension, self.rng)]
        )

    def _excluded(self, problem: ConeProblem, order: int) -> bool:
        """Whether the relaxation proves that no tensor is feasible."""
        mass = 1.0 if np.isfinite(self.mass) else np.inf
        if mass == np.inf:
            return False
        proof = violated(problem, order, mass)
        return proof.value - proof.loss > 1e-9 * float(np.abs(problem.bounds).max(initial=0.0))

    def _unlimited(self) -> ConeResult | None:
        """Bound the mass by a relaxation, or find a direction of descent without end."""
        problem = self.problem
        ones = problem.mass
        rays = replace(problem, bounds=np.zeros_like(problem.bounds)).with_row(ones, "==", 1.0)
        _, slope = best_atoms(rays, np.zeros((0, problem.dimension)), self.rng)
        size = float(np.abs(problem.cost).max(initial=0.0))
        if slope < -1e-7 * size and np.isfinite(self.value):
            return self._result("unbounded", "a ray of feasible tensors lowers it without end")
        # the most that e^d can be, given that the objective need not exceed the known value
        if not np.isfinite(self.value) or problem.dimension == 1:
            return None
        level = replace(problem, cost=-ones).with_row(problem.cost, "<=", self.value + 1e-9 * size)
        for order in self.orders:
            try:
                bound = relaxed(level, order)
            except ProblemTooLargeError:
                break
            self.order = max(self.order, order)
            if bound.loss < 0.5:
                self.mass = max(-bound.value, 0.0) / (1.0 - bound.loss)
                break
        return None

    def _infeasible(self, message: str) -> ConeResult:
        return ConeResult(np.inf, np.inf, None, None, self.order, "infeasible", message)

    def _result(self, status: str = "", message: str = "") -> ConeResult:
        message = message or self.message
        n, order = self.problem.dimension, self.problem.order
        if status == "unbounded":
            return ConeResult(-np.inf, -np.inf, None, None, self.order, status, message)
        if not np.isfinite(self.value):
            status = "lower bound only" if np.isfinite(self.lower) else "undecided"
            message = message or "no feasible tensor was found; a higher max_order may tell"
            return ConeResult(np.inf, self.lower, None, None, self.order, status, message)
        status = "optimal" if self._met() else "feasible"
        if status == "feasible":
            message = message or "the bounds have not met; a higher max_order may close the gap"
        points = SymmetricDecomposition(np.ones(len(self.atoms)), self.atoms, order)
        tensor = SymmetricTensor(_entries(self.problem, self.atoms), order, n)
        lower = min(self.lower, self.value) + 0.0  # no minus zeros
        return ConeResult(self.value + 0.0, lower, tensor, points, self.order, status, message)


def relaxation_orders(dimension: int, order: int, max_order: int | None) -> range:
    """List the orders of relaxations that are to be solved.

    Parameters
    ----------
    dimension, order : int
        Dimension n and order d of the tensors.
    max_order : int or None
        The last one; by default up to three beyond the first, as long as blocks have no more than
        60 rows.

    Returns
    -------
    range
        From ceil(d/2).

    Raises
    ------
    ValueError
        `max_order` is less.
    """
    least = (order + 1) // 2
    if max_order is not None:
        if positive_integer("max_order", max_order) < least:
            raise ValueError(
                f"max_order must be at least ceil(d/2) = {least} for order d={order}; "
                f"got {max_order}"
            )
        return range(least, max_order + 1)
    last = least
    while last < least + _MORE_ORDERS:
        if comb(dimension + last, last + 1) > _LARGEST_BLOCK:
            break
        last += 1
    return range(least, last + 1)


def _check_size(problem: ConeProblem, order: int) -> None:
    """Refuse the first relaxation before anything is done."""
    n, d = problem.dimension, problem.order
    if n == 1:
        return
    m, sizes = predict_size(n, d, order)
    m += len(problem.cost)
    coefficients = sum(map(svec_size, sizes))  # at least; the solver's own check counts them
    solver = automatic_solver(sizes, m, coefficients, memory_limit=_MEMORY)
    needed = predict_bytes(sizes, m, coefficients, solver)
    if needed > _MEMORY:
        raise ProblemTooLargeError(
            f"relaxation k={order} for n={n}, d={d} has {m} moments and blocks of size up to "
            f"{sizes[0]}: about {needed / _GIB:.3g} GiB, more than {_MEMORY / _GIB:.3g} GiB"
        )


def _unscaled(result: ConeResult, problem: ConeProblem, units: tuple[float, float]) -> ConeResult:
    cost, unit = units
    factor = cost * unit
    value, lower = factor * result.value, factor * result.lower_bound
    if result.tensor is None or result.decomposition is None:
        return replace(result, value=value, lower_bound=lower)
    points = result.decomposition.points * unit ** (1.0 / problem.order)
    decomposition = SymmetricDecomposition(result.decomposition.weights, points, problem.order)
    entries = result.tensor.entries * unit
    tensor = SymmetricTensor(entries, problem.order, problem.dimension)
    return replace(
        result, value=value, lower_bound=lower, tensor=tensor, decomposition=decomposition
    )


def _entries(problem: ConeProblem, atoms: Floats) -> Floats:
    """Entries of the sum of the atoms' powers."""
    if not len(atoms):
        return np.zeros(len(problem.cost))
    points = SymmetricDecomposition(np.ones(len(atoms)), atoms, problem.order)
    return np.asarray(points.to_tensor().entries)
