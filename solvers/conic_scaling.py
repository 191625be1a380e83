"""Scaling of a conic problem and the residuals that judge a solution.

All factors are powers of two, so that scaling and its inverse round nothing. Columns of the
coefficients get norm 1 (within sqrt 2), as do the objective and the right-hand sides.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.solvers.conic_problem import ConicBlock, ConicProblem
from tensoralg.solvers.svec import smat, svec_size

__all__ = ["ProblemScales", "Residuals", "measure", "problem_scales", "split_duals"]

Array = NDArray[Any]

_DROP = 1e-11  # smaller coefficients, relative to the largest, only spoil the sparsity


def _power_of_two(values: Any) -> Array:
    """Nearest power of two of positive numbers; 1 for zeros."""
    values = np.asarray(values, dtype=np.float64)
    exponents = np.round(np.log2(np.where(values > 0, values, 1.0)))
    return np.asarray(np.ldexp(1.0, exponents.astype(np.int64)))


@dataclass(frozen=True, slots=True, eq=False)
class ProblemScales:
    """Units of a problem: ``y = right * columns * y_scaled``, ``Z = objective * Z_scaled``.

    Attributes
    ----------
    columns : ndarray, shape (m,)
        Unit of each variable, relative to `right`.
    right : float
        Unit of the right-hand sides h and f.
    objective : float
        Unit of the objective's coefficients after the change of variables.
    """

    columns: Array
    right: float
    objective: float

    def scaled(self, problem: ConicProblem) -> ConicProblem:
        """Return the problem in these units, tiny coefficients left out."""
        matrices = [self._scaled_columns(G) for G in _coefficients(problem)]
        largest = max((float(np.abs(G.data).max()) for G in matrices if G.nnz), default=0.0)
        for G in matrices:
            G.data[np.abs(G.data) < _DROP * largest] = 0.0
            G.eliminate_zeros()
        assert problem.equality_vector is not None
        return ConicProblem(
            problem.c * self.columns / self.objective,
            tuple(
                ConicBlock(block.h / self.right, G)
                for block, G in zip(problem.blocks, matrices[1:], strict=True)
            ),
            matrices[0],
            problem.equality_vector / self.right,
        )

    def _scaled_columns(self, matrix: Any) -> Any:
        data = matrix.data * self.columns[_column_of(matrix)]
        # copied, for the elimination of zeros works in place
        return scipy.sparse.csc_array(
            (data, matrix.indices, matrix.indptr), matrix.shape, copy=True
        )


def _coefficients(problem: ConicProblem) -> list[Any]:
    """E, then the G of every block."""
    return [problem.equality_matrix, *(block.G for block in problem.blocks)]


def _column_of(matrix: Any) -> Array:
    """Column of every stored coefficient."""
    return np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))


def problem_scales(problem: ConicProblem, objective_weight: float = 1.0) -> ProblemScales:
    """Powers of two that bring columns, objective and right-hand sides near norm 1.

    Parameters
    ----------
    problem : ConicProblem
        With m variables.
    objective_weight : float, optional
        Norm that the objective gets.

    Returns
    -------
    ProblemScales
        The units; 1 wherever a norm vanishes.
    """
    squares = np.zeros(problem.n_variables)
    for G in _coefficients(problem):
        squares += np.bincount(_column_of(G), G.data**2, minlength=len(squares))
    columns = 1.0 / _power_of_two(np.sqrt(squares))
    assert problem.equality_vector is not None
    right = max(
        float(np.linalg.norm(problem.equality_vector)),
        *(float(np.linalg.norm(block.h)) for block in problem.blocks),
    )
    objective = float(np.linalg.norm(problem.c * columns)) / objective_weight
    return ProblemScales(columns, float(_power_of_two(right)), float(_power_of_two(objective)))


def split_duals(problem: ConicProblem, duals: Array) -> tuple[Array, tuple[Array, ...]]:
    """Split one vector into v and the matrices Z_j: v, then ``svec(Z_j)`` one after another."""
    start = problem.equality_matrix.shape[0]
    v, matrices = duals[:start], []
    for side in problem.sides:
        matrices.append(smat(duals[start : start + svec_size(side)]))
        start += svec_size(side)
    return v, tuple(matrices)


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Objectives and relative residuals; see `tensoralg.solvers.conic_problem.ConicResult`."""

    objective: float
    dual_objective: float
    primal: float
    dual: float
    gap: float

    @property
    def worst(self) -> float:
        """The largest of the three residuals; inf when one is NaN."""
        worst = max(self.primal, self.dual, self.gap)
        return worst if np.isfinite([self.primal, self.dual, self.gap]).all() else float("inf")


def measure(problem: ConicProblem, scales: ProblemScales, y: Array, duals: Array) -> Residuals:
    """Residuals of a primal and dual pair for a problem in its original units.

    Parameters
    ----------
    problem : ConicProblem
        With m variables.
    scales : ProblemScales
        Units in which violations count.
    y : ndarray, shape (m,)
        Variables.
    duals : ndarray
        v, then ``svec(Z_j)`` one after another.

    Returns
    -------
    Residuals
        All infinite when `y` or `duals` is not finite.
    """
    if not (np.isfinite(y).all() and np.isfinite(duals).all()):
        return Residuals(np.nan, np.nan, np.inf, np.inf, np.inf)
    matrix, vector = problem.stacked()
    slack = vector - matrix @ y
    v_slack, slacks = split_duals(problem, slack)
    _, multipliers = split_duals(problem, duals)
    primal = max(float(np.linalg.norm(v_slack)), *(_negative_part(S) for S in slacks))
    stationarity = (problem.c + matrix.T @ duals) * scales.columns
    dual = max(float(np.linalg.norm(stationarity)), *(_negative_part(Z) for Z in multipliers))
    objective, dual_objective = float(problem.c @ y), -float(vector @ duals)
    unit = max(scales.objective * scales.right, abs(objective), abs(dual_objective))
    return Residuals(
        objective,
        dual_objective,
        primal / scales.right,
        dual / scales.objective,
        abs(objective - dual_objective) / unit,
    )


def _negative_part(matrix: Array) -> float:
    """How far the least eigenvalue lies below zero."""
    return max(0.0, -float(np.linalg.eigvalsh(matrix)[0]))
