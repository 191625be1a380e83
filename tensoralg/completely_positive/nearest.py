"""The nearest completely positive tensor in the Frobenius norm, with a proven bound.

The cone K is closed and convex, so that a tensor A has one nearest X in it. With ``P = X - A`` it
is the one for which P is copositive and ``<P, X> = 0``. Any copositive P bounds the distance,

    |A - X| >= -<P, A> / |P|    for all X in K,

for ``<P, X> >= 0``. Here X comes from atoms (weights by nonnegative least squares, new atoms where
the form ``<P, u^d>`` is least on the simplex), and ``P - lambda e^d`` is copositive for the bound
lambda that a moment relaxation proves.

References
----------
.. [1] J. J. Moreau, "Decomposition orthogonale d'un espace hilbertien selon deux cones mutuellement
   polaires", Comptes rendus 255 (1962).
.. [2] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
   arXiv:2206.12553.
"""

from typing import Any

import numpy as np
from scipy.optimize import nnls

from tensoralg.completely_positive.cone_points import local_minimizers
from tensoralg.completely_positive.cone_problem import ConeProblem, Floats, form_values
from tensoralg.completely_positive.cone_relaxation import extracted_points, relaxed
from tensoralg.completely_positive.optimization import ConeResult, relaxation_orders
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.index_maps import listed_multiplicities
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition

__all__ = ["closest"]

_GAP = 1e-6  # of |A|: bounds this close have met
_INSIDE = 1e-9  # of |A|: such a distance is none
_ROUNDS = 60
_STARTS = 20
_DEEP = 1e-13  # values of <P, u^d> on the simplex, |A| = 1, that are zero


def closest(
    A: Any,
    *,
    max_order: int | None = None,
    rng: int | np.random.Generator | None = 0,
    symmetrize: bool = False,
) -> ConeResult:
    """Find the completely positive tensor that is nearest to a tensor in the Frobenius norm.

    Parameters
    ----------
    A : SymmetricTensor, array_like of shape (n,) * d, or nested lists
        Real, d >= 1.
    max_order : int, optional
        Highest order of the relaxations that bound the distance from below, at least ceil(d/2).
        By default three orders are tried beyond that, as long as blocks have no more than 60 rows.
    rng : int, Generator or None, default 0
        Source of all random choices.
    symmetrize : bool, default False
        Average over all orders of the indices instead of asking for symmetry.

    Returns
    -------
    ConeResult
        `value` is the distance of A from `tensor`, the sum of powers of the points of
        `decomposition`, and no completely positive tensor is nearer than `lower_bound`. The status
        is "optimal" where these differ by at most 1e-6 of the norm of A, else "feasible".

    Raises
    ------
    NotSymmetricError, ShapeError, ValueError
        As for :func:`tensoralg.completely_positive.detect`.

    See Also
    --------
    tensoralg.completely_positive.detect : Whether the distance is zero, with a proof.

    Notes
    -----
    Where ``P = tensor - A`` has minimum lambda <= 0 on the simplex by a relaxation, ``P - lambda
    e^d`` is copositive, and its angle with A bounds the distance. The atoms converge to the optimum
    also where every relaxation that is tried leaves a gap; then only the status is "feasible".

    Examples
    --------
    The matrix [[1, 2], [2, 1]] has the eigenvalues 3 and -1; its positive semidefinite part is
    nonnegative.

    >>> result = closest([[1, 2], [2, 1]])
    >>> result.status, round(result.value, 6)
    ('optimal', 1.0)
    >>> result.tensor.to_dense().round(6).tolist()
    [[1.5, 1.5], [1.5, 1.5]]
    """
    given = read_tensor(A, symmetrize=symmetrize).symmetric
    n, d = given.dimension, given.order
    orders = relaxation_orders(n, d, max_order)
    search = _Projection(given, np.random.default_rng(rng))
    search.run(orders if n > 1 else range(0))
    return search.result()


class _Projection:
    """Atoms of the nearest tensor, and a bound; everything for A / |A|."""

    def __init__(self, given: SymmetricTensor, rng: np.random.Generator) -> None:
        self.given, self.rng = given, rng
        self.order, self.dimension = given.order, given.dimension
        self.indices = multi_indices(self.dimension, self.order)
        self.counts = np.asarray(listed_multiplicities(self.dimension, self.order), dtype=float)
        self.roots = np.sqrt(self.counts)
        self.largest = float(np.abs(given.entries).max(initial=0.0)) or 1.0
        target = np.asarray(given.entries, dtype=float) / self.largest
        self.size = float(np.linalg.norm(self.roots * target)) or 1.0
        self.target = target / self.size
        self.atoms: Floats = np.zeros((0, self.dimension))  # weights absorbed
        self.lower, self.solved, self.message = 0.0, 0, ""

    def run(self, orders: range) -> None:
        """Improve atoms, then the bound, order by order."""
        if self.target.any() and self.target.min() >= 0:
            atoms, residual = multi_start_decomposition(
                self.target, self.dimension, self.order, rng=self.rng, n_starts=2
            )
            if residual <= _INSIDE:
                self.atoms = atoms
                return
        self._generate(np.zeros((0, self.dimension)))
        if self.dimension == 1 or self.order == 1:
            self.lower = self.distance  # entry by entry
            return
        for order in orders:
            if self._met():
                break
            try:
                self._bound(order)
            except ProblemTooLargeError as error:
                self.message = str(error)
                break

    @property
    def difference(self) -> Floats:
        """Entries of P = X - A."""
        powers = evaluate_monomials(self.atoms, self.indices).sum(axis=0)
        return np.asarray(powers - self.target)

    @property
    def distance(self) -> float:
        """Of the present X from A."""
        return float(np.linalg.norm(self.roots * self.difference))

    def _met(self) -> bool:
        return self.distance - self.lower <= _GAP

    def _generate(self, points: Floats) -> None:
        """Exchange atoms until no point of the simplex that is found improves them."""
        best = self.distance
        for _ in range(_ROUNDS):
            form = self.counts * self.difference
            found = local_minimizers(form, self.order, self.dimension, self.rng, _STARTS)
            values = form_values(form, found, self.order)
            new = np.concatenate([points, found[values < -_DEEP]])
            points = points[:0]
            if not len(new):
                break
            self._reweigh(np.concatenate([self.atoms, new]))
            distance = self.distance
            if best - distance <= 1e-15:
                break
            best = distance

    def _reweigh(self, points: Floats) -> None:
        """Nonnegative least squares over the powers of points; what gets no weight is dropped."""
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        units = points / lengths
        columns = (evaluate_monomials(units, self.indices) * self.roots).T
        weights = nnls(columns, self.roots * self.target)[0]
        kept = weights > 0
        self.atoms = units[kept] * weights[kept, None] ** (1.0 / self.order)

    def _bound(self, order: int) -> None:
        """Prove a multiple of e^d that makes P copositive."""
        n, d = self.dimension, self.order
        for _ in range(3):
            difference = self.difference
            size = float(np.linalg.norm(self.roots * difference))
            cost = self.counts * difference / size
            problem = ConeProblem(d, n, cost, self.counts[None], ("==",), np.ones(1))
            bound = relaxed(problem, order, solver="clarabel")  # the most accurate
            self.solved = order
            least = bound.value - bound.loss
            if np.isfinite(least):
                form = difference / size - min(least, 0.0)  # e^d has entries 1
                inner = float((self.counts * form) @ self.target)
                norm = float(np.linalg.norm(self.roots * form))
                self.lower = max(self.lower, -inner / norm - 1e-15)
            if self._met():
                return
            before = self.distance
            self._generate(extracted_points(bound.moments, n, self.rng))
            if before - self.distance <= 0.01 * _GAP:
                return

    def result(self) -> ConeResult:
        """In the units of A."""
        unit = self.largest * self.size
        points = self.atoms * unit ** (1.0 / self.order)
        decomposition = SymmetricDecomposition(np.ones(len(points)), points, self.order)
        tensor = SymmetricTensor(
            evaluate_monomials(points, self.indices).sum(axis=0), self.order, self.dimension
        )
        value = self.distance * unit
        status = "optimal" if self._met() else "feasible"
        message = self.message
        if status == "feasible":
            message = message or "the bounds have not met; a higher max_order may close the gap"
        lower = max(min(self.lower * unit, value), 0.0)
        return ConeResult(value, lower, tensor, decomposition, self.solved, status, message)
