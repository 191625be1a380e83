"""Adapter for Clarabel through its own Python interface: no modelling layer in between."""

import importlib
from typing import Any

import numpy as np
import scipy.sparse

from tensoralg.solvers.conic_problem import ConicProblem, RawSolution

__all__ = ["clarabel_bytes", "solve_clarabel"]

_ITERATIONS = 100  # what has not settled by then gains less than a digit in twice as many
_SERIAL_SIDE = 35  # blocks up to this size are solved in one thread


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
    settings = _settings(max(problem.sides), tol, time_limit)
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


def _settings(largest: int, tol: float, time_limit: float | None) -> Any:
    clarabel = importlib.import_module("clarabel")

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = _ITERATIONS
    # asked for more than is needed: the last digits come at three or four iterations
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = max(1e-3 * tol, 1e-13)
    # the problem comes scaled: a second scaling costs moment problems up to four digits
    settings.equilibrate_enable = False
    # smaller ones lose digits in the factors, larger ones cost refinement
    settings.static_regularization_constant = 3e-8
    settings.max_step_fraction = 0.95
    settings.iterative_refinement_max_iter = 30
    settings.iterative_refinement_stop_ratio = 2.0
    # with several threads the last digits change from run to run
    settings.max_threads = 1 if largest <= _SERIAL_SIDE else 0
    settings.chordal_decomposition_enable = False
    settings.presolve_enable = False
    if time_limit is not None:
        settings.time_limit = float(time_limit)
    return settings
