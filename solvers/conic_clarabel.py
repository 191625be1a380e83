"""Adapter for Clarabel through its own Python interface: no modelling layer in between."""

import importlib
from typing import Any

import numpy as np
import scipy.sparse

from tensoralg.solvers.conic_problem import ConicProblem, RawSolution

__all__ = ["clarabel_bytes", "solve_clarabel"]


def clarabel_bytes(sides: tuple[int, ...], n_variables: int, n_nonzeros: int) -> int:
    """Predicted peak of memory in bytes.

    The KKT matrix holds a dense triangle over the s (s + 1) / 2 rows of every block, seven or
    eight numbers and indices for each; the factor adds the fill between blocks and variables.
    """
    rows = [side * (side + 1) // 2 for side in sides]
    dense = sum(size * (size + 1) // 2 for size in rows)
    fill = n_variables * (n_variables + 1) // 2
    return 120 * dense + 16 * fill + 64 * n_nonzeros


def solve_clarabel(problem: ConicProblem, tol: float, time_limit: float | None) -> RawSolution:
    """Solve a scaled problem.

    Clarabel's triangles are in our order: upper, by columns, off-diagonals times sqrt 2.
    """
    clarabel = importlib.import_module("clarabel")

    matrix, vector = problem.stacked()
    m = problem.n_variables
    settings = _settings(tol, time_limit)
    solver = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix((m, m)),
        np.array(problem.c),
        scipy.sparse.csc_matrix(matrix),
        vector,
        _cones(problem),
        settings,
    )
    solution = solver.solve()
    word = str(solution.status)
    return RawSolution(
        np.array(solution.x), np.array(solution.z), word, claims_infeasible="Infeasible" in word
    )


def _cones(problem: ConicProblem) -> list[Any]:
    """Cones in the order of the stacked rows; one-row blocks are plain inequalities."""
    clarabel = importlib.import_module("clarabel")

    n_equations = problem.equality_matrix.shape[0]
    cones = [clarabel.ZeroConeT(n_equations)] if n_equations else []
    blocks = [
        clarabel.NonnegativeConeT(1) if side == 1 else clarabel.PSDTriangleConeT(side)
        for side in problem.sides
    ]
    return cones + blocks


def _settings(tol: float, time_limit: float | None) -> Any:
    clarabel = importlib.import_module("clarabel")

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = 200
    # asked for more than is needed: the residuals are measured in other units on our side
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 0.1 * tol
    # the problem comes scaled: a second scaling costs moment problems up to four digits
    settings.equilibrate_enable = False
    settings.chordal_decomposition_enable = False
    settings.presolve_enable = False
    if time_limit is not None:
        settings.time_limit = float(time_limit)
    return settings
