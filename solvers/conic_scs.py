"""Adapter for SCS, a first-order method: rough answers to large problems, never a verdict."""

import importlib
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.solvers.conic_problem import ConicProblem, RawSolution
from tensoralg.solvers.svec import lower_columns, svec_size

__all__ = ["scs_bytes", "solve_scs"]

_ITERATIONS = 50_000


def scs_bytes(sides: tuple[int, ...], n_variables: int, n_nonzeros: int) -> int:
    """Predicted peak of memory in bytes.

    Coefficients several times over, a factor that fills the variables' square at worst, and a few
    work vectors.
    """
    rows = sum(svec_size(side) for side in sides)
    return 100 * n_nonzeros + 8 * n_variables * (n_variables + 1) + 200 * (rows + n_variables)


def solve_scs(problem: ConicProblem, tol: float, time_limit: float | None) -> RawSolution:
    """Solve a scaled problem.

    The triangles of SCS are lower ones taken by columns, off-diagonals times sqrt 2.
    """
    scs = importlib.import_module("scs")
    matrix, vector = problem.stacked()
    order = _row_order(problem)
    solver = scs.SCS(
        {
            "A": scipy.sparse.csc_matrix(scipy.sparse.csr_array(matrix)[order]),
            "b": vector[order],
            "c": np.array(problem.c),
        },
        {"z": problem.equality_matrix.shape[0], "s": list(problem.sides)},
        eps_abs=0.1 * tol,
        eps_rel=0.1 * tol,
        max_iters=_ITERATIONS,
        verbose=False,
        time_limit_secs=0.0 if time_limit is None else float(time_limit),
    )
    solution = solver.solve()
    word = str(solution["info"]["status"])
    duals = np.empty(len(order))
    duals[order] = solution["y"]
    claims = "infeasible" in word or "unbounded" in word
    return RawSolution(np.array(solution["x"]), duals, word, claims_infeasible=claims)


def _row_order(problem: ConicProblem) -> NDArray[Any]:
    """Our row at each of the solver's rows."""
    start = problem.equality_matrix.shape[0]
    parts = [np.arange(start)]
    for side in problem.sides:
        parts.append(start + lower_columns(side))
        start += svec_size(side)
    return np.concatenate(parts)
