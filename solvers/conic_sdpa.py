"""Adapter for SDPA (package sdpa-python): large blocks, a dense Schur complement of m x m."""

import importlib
import os
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.solvers.conic_problem import ConicProblem, RawSolution
from tensoralg.solvers.svec import svec_size, triangle_indices

__all__ = ["sdpa_bytes", "solve_sdpa"]

Array = NDArray[Any]

_INFEASIBLE = ("pINF_dFEAS", "pFEAS_dINF", "pdINF", "pUNBD", "dUNBD")


def sdpa_bytes(sides: tuple[int, ...], n_variables: int, n_nonzeros: int) -> int:
    """Predicted peak of memory in bytes.

    The Schur complement and its factor, about twenty matrices for every block, and the
    coefficients in full symmetric storage, several times over in the Python layer.
    """
    squares = sum(side * side for side in sides)
    return 20 * n_variables**2 + 160 * squares + 300 * n_nonzeros


def solve_sdpa(problem: ConicProblem, tol: float, time_limit: float | None) -> RawSolution:
    """Solve a scaled problem; SDPA knows no time limit and may print remarks of its own.

    Its form is ``max b'y`` with ``C - sum_i y_i A_i`` positive semidefinite, matrices in full.
    The front door of the package is passed by: it recomputes errors with ARPACK and prints.
    """
    call, param, cone = _package()
    equations = _Equations(problem)
    expand = _expansion(problem.sides)
    G = scipy.sparse.csc_matrix(expand @ scipy.sparse.csr_array(equations.coefficients))
    options = param(
        {
            "print": "no",
            # the problem is scaled: a small start and bold steps towards the boundary gain digits
            "lambdaStar": 1.0,
            "betaStar": 0.01,
            "betaBar": 0.05,
            "epsilonStar": 0.1 * tol,
            "epsilonDash": 0.1 * tol,
            "maxIteration": 200,
            "numThreads": _threads(),
        }
    )
    x, y, _, info = call.solve_sdpa(
        scipy.sparse.csc_matrix(G.T),
        scipy.sparse.csc_matrix(-equations.objective[:, None]),
        scipy.sparse.csc_matrix((expand @ equations.right)[:, None]),
        cone(s=tuple(problem.sides)),
        options,
    )
    word = str(info["phasevalue"])
    # inner products keep their value: the transpose of the expansion takes full matrices to svec
    multipliers = expand.T @ _dense(x)
    return RawSolution(
        equations.variables(_dense(y)),
        np.concatenate([equations.multipliers(multipliers), multipliers]),
        word,
        claims_infeasible=word in _INFEASIBLE,
    )


class _Equations:
    """``E y = f`` solved for: ``y = y0 + N w`` with an orthonormal basis N of the null space."""

    def __init__(self, problem: ConicProblem) -> None:
        n_equations = int(problem.equality_matrix.shape[0])
        matrix, vector = problem.stacked()
        self.gradient, self._G = np.array(problem.c), matrix[n_equations:]
        self.coefficients, self.right = self._G, vector[n_equations:]
        self.objective = self.gradient
        self._E = problem.equality_matrix.toarray()
        self._origin, self._basis = np.zeros(problem.n_variables), None
        if n_equations:
            self._origin = np.linalg.lstsq(self._E, vector[:n_equations], rcond=None)[0]
            self._basis = scipy.linalg.null_space(self._E)
            self.coefficients = scipy.sparse.csc_array(self._G @ self._basis)
            self.right = self.right - self._G @ self._origin
            self.objective = self._basis.T @ self.gradient

    def variables(self, free: Array) -> Array:
        """All variables from the free ones."""
        return free if self._basis is None else self._origin + self._basis @ free

    def multipliers(self, duals: Array) -> Array:
        """Find v that makes the gradient vanish, by least squares."""
        if self._basis is None:
            return np.zeros(0)
        gradient = self.gradient + self._G.T @ duals
        return np.asarray(np.linalg.lstsq(self._E.T, -gradient, rcond=None)[0])


def _package() -> tuple[Any, Any, Any]:
    """Entry into the solver, its parameters with defaults filled in, and its cone."""
    try:
        call = importlib.import_module("sdpap.sdpacall.sdpacall")
        param = importlib.import_module("sdpap.param").param
        cone = importlib.import_module("sdpap.symcone").SymCone
    except ImportError as error:
        raise ImportError(
            'solver "sdpa" needs the package sdpa-python: pip install "tensoralg[sdpa]"'
        ) from error
    return call, param, cone


def _threads() -> int:
    """Threads that the environment grants, as for the BLAS."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else (os.cpu_count() or 1)


def _dense(values: Any) -> Array:
    return np.asarray(values.toarray()).ravel()


def _expansion(sides: tuple[int, ...]) -> Any:
    """Sparse isometry from the rows of all blocks to full matrices, entry by entry."""
    parts = []
    for side in sides:
        rows, columns = triangle_indices(side)
        weight = np.where(rows == columns, 0.5, np.sqrt(0.5))
        position = np.arange(svec_size(side))
        full = np.concatenate([rows * side + columns, columns * side + rows])
        parts.append(
            scipy.sparse.csr_array(
                (np.concatenate([weight, weight]), (full, np.concatenate([position, position]))),
                shape=(side * side, svec_size(side)),
            )
        )
    return scipy.sparse.block_diag(parts, format="csr")
