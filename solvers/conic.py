"""Semidefinite programs: one form in, one result out, whichever solver does the work.

::

    minimise  c'y   subject to   S_j = h_j - smat(G_j y) positive semidefinite,   E y = f

The result carries multipliers Z_j and v with, at a solution, Z_j positive semidefinite,

    c + sum_j G_j' svec(Z_j) + E'v = 0,   <Z_j, S_j> = 0,   c'y = -sum_j <Z_j, h_j> - v'f.

Residuals are computed here, from y and the Z_j; no solver's word is taken for them.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.solvers.conic_clarabel import clarabel_bytes, solve_clarabel
from tensoralg.solvers.conic_problem import (
    ConicBlock,
    ConicProblem,
    ConicResult,
    RawSolution,
    Status,
)
from tensoralg.solvers.conic_scaling import ProblemScales, measure, problem_scales, split_duals
from tensoralg.solvers.conic_scs import scs_bytes, solve_scs
from tensoralg.solvers.conic_sdpa import sdpa_bytes, solve_sdpa

__all__ = [
    "ConicBlock",
    "ConicProblem",
    "ConicResult",
    "automatic_solver",
    "available_solvers",
    "predict_bytes",
    "predict_memory",
    "solve_conic",
]

Array = NDArray[Any]
Adapter = Callable[[ConicProblem, float, float | None], RawSolution]

_GIB = 1024**3
_INACCURATE = 1e-5  # worse residuals tell nothing
_SECOND = 10.0  # a second attempt follows residuals beyond so many times the tolerance ..
_HOPELESS = 1e-3  # .. unless they are as large as this
_LARGE_SIDE = 35  # from here on SDPA's Schur complement beats Clarabel's dense KKT blocks
_SECOND_SIDE = 60  # up to here Clarabel has a try after SDPA
_ADAPTERS: dict[str, Adapter] = {
    "clarabel": solve_clarabel,
    "sdpa": solve_sdpa,
    "scs": solve_scs,
}
_BYTES = {"clarabel": clarabel_bytes, "sdpa": sdpa_bytes, "scs": scs_bytes}
_MODULES = {"clarabel": "clarabel", "sdpa": "sdpap", "scs": "scs"}


def available_solvers() -> tuple[str, ...]:
    """Names of the solvers that are installed.

    Returns
    -------
    tuple of str
        Some of "clarabel", "sdpa", "scs".

    Examples
    --------
    >>> "clarabel" in available_solvers()
    True
    """
    return tuple(name for name in _MODULES if _installed(name))


def predict_bytes(sides: tuple[int, ...], n_variables: int, n_nonzeros: int, solver: str) -> int:
    """Peak of memory that a solver will take, before anything is allocated.

    Parameters
    ----------
    sides : tuple of int
        Number of rows of each block.
    n_variables : int
        Number m of variables.
    n_nonzeros : int
        Number of coefficients in all blocks.
    solver : str
        One of the solvers' names.

    Returns
    -------
    int
        Bytes, right within a factor of two or so.

    Examples
    --------
    >>> predict_bytes((1365,), 73_000, 10**6, "clarabel") > 10**13
    True
    """
    _check_name(solver)
    return int(_BYTES[solver](tuple(sides), n_variables, n_nonzeros))


def automatic_solver(
    sides: tuple[int, ...], n_variables: int, n_nonzeros: int, *, memory_limit: int = 4 * _GIB
) -> str:
    """Name of the solver that "auto" stands for.

    Parameters
    ----------
    sides : tuple of int
        Number of rows of each block.
    n_variables : int
        Number m of variables.
    n_nonzeros : int
        Number of coefficients in all blocks.
    memory_limit : int, optional
        Bytes that the solver may take.

    Returns
    -------
    str
        "clarabel" or "sdpa"; the one that takes less memory when neither fits.

    Examples
    --------
    >>> automatic_solver((20, 10, 10), 100, 2000)
    'clarabel'
    """
    order = ["clarabel"]
    if _installed("sdpa"):
        order = ["sdpa", "clarabel"] if max(sides) > _LARGE_SIDE else ["clarabel", "sdpa"]
    needed = {name: predict_bytes(sides, n_variables, n_nonzeros, name) for name in order}
    fitting = [name for name in order if needed[name] <= memory_limit]
    return fitting[0] if fitting else min(order, key=needed.__getitem__)


def predict_memory(problem: ConicProblem, solver: str) -> int:
    """Peak of memory that a solver will take for a problem; see `predict_bytes`.

    Parameters
    ----------
    problem : ConicProblem
        The problem.
    solver : str
        One of the solvers' names.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> import numpy as np
    >>> problem = ConicProblem(np.ones(1), (ConicBlock(np.eye(2), np.ones((3, 1))),))
    >>> predict_memory(problem, "clarabel") < 10_000
    True
    """
    return predict_bytes(problem.sides, problem.n_variables, problem.n_nonzeros, solver)


def solve_conic(
    problem: ConicProblem,
    *,
    solver: str = "auto",
    tol: float = 1e-9,
    memory_limit: int = 4 * _GIB,
    time_limit: float | None = None,
    objective_weight: float = 1.0,
) -> ConicResult:
    """Solve a semidefinite program.

    Parameters
    ----------
    problem : ConicProblem
        With m variables and blocks of s_j rows.
    solver : {"auto", "clarabel", "sdpa", "scs"}, optional
        Which solver; "auto" takes Clarabel up to blocks of 35 rows, beyond that SDPA where it is
        installed, else Clarabel; what SDPA leaves inaccurate goes to Clarabel up to 60 rows. SCS
        reaches three to six digits only: nothing for a verdict.
    tol : float, optional
        Relative residuals up to which a solution counts as solved.
    memory_limit : int, optional
        Bytes that the solver may take by prediction.
    time_limit : float, optional
        Seconds.
    objective_weight : float, optional
        Norm of the objective that the solver sees, all other norms being 1. Larger ones favour
        the multipliers over the variables: about 100 gives three to six digits more to the
        multipliers of a problem with a single variable in its objective. Clarabel only.

    Returns
    -------
    ConicResult
        `status` is "solved" (residuals up to `tol`), "inaccurate" (up to 1e-5) or "failed";
        `message` tells why. A solver's exception ends up there, too.

    Raises
    ------
    ProblemTooLargeError
        If the predicted memory exceeds `memory_limit`; nothing has been allocated then.
    ValueError
        If an argument is out of range.
    ImportError
        If the named solver is not installed.

    Examples
    --------
    The largest eigenvalue: the least y with y I - A positive semidefinite.

    >>> import numpy as np
    >>> from tensoralg.solvers.svec import svec
    >>> A = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> block = ConicBlock(-A, -svec(np.eye(2))[:, None])
    >>> result = solve_conic(ConicProblem(np.ones(1), (block,)))
    >>> result.status, round(result.objective, 6)
    ('solved', 3.0)
    >>> result.multipliers[0].round(4).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if not (np.isfinite(tol) and tol > 0):
        raise ValueError(f"tol is {tol}: accepted are positive numbers")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit is {time_limit}: accepted are positive seconds or None")
    name = _choose(problem, solver, memory_limit)
    if not (np.isfinite(objective_weight) and objective_weight > 0):
        raise ValueError(f"objective_weight is {objective_weight}: accepted are positive numbers")
    start = time.perf_counter()
    result = _attempt(problem, name, tol, time_limit, objective_weight)
    worst = max(result.primal_residual, result.dual_residual, result.gap)
    if name == "clarabel" and _SECOND * tol < worst < _HOPELESS:
        # another weight takes another path, which seldom loses its way at the same place
        other = objective_weight * (1 / 16 if objective_weight > 1 else 16)
        rest = None if time_limit is None else time_limit - (time.perf_counter() - start)
        if rest is None or rest > 0:
            result = _better(result, _attempt(problem, name, tol, rest, other))
    elif (
        solver == "auto"
        and name == "sdpa"
        and worst > tol
        and _suits_clarabel(problem, memory_limit)
    ):
        # SDPA stops short where its Schur complement is singular
        result = _better(result, _attempt(problem, "clarabel", tol, time_limit, objective_weight))
    return replace(result, seconds=time.perf_counter() - start)


def _better(first: ConicResult, second: ConicResult) -> ConicResult:
    """Take the result with the smaller residuals."""
    worst = [max(r.primal_residual, r.dual_residual, r.gap) for r in (first, second)]
    return second if worst[1] < worst[0] else first


def _suits_clarabel(problem: ConicProblem, memory_limit: int) -> bool:
    """Whether Clarabel's dense blocks take seconds and fit the memory."""
    sides_fit = max(problem.sides, default=0) <= _SECOND_SIDE
    return sides_fit and predict_memory(problem, "clarabel") <= memory_limit


def _attempt(
    problem: ConicProblem, name: str, tol: float, time_limit: float | None, weight: float
) -> ConicResult:
    """Run the solver once; its exception becomes a status."""
    # SDPA's bounds on the objective and SCS's balance of residuals do not bear a weight
    scales = problem_scales(problem, weight if name == "clarabel" else 1.0)
    try:
        raw = _run(name, problem, scales, tol, time_limit)
    except BaseException as error:
        # a Rust panic is no Exception; an interrupt by the user must go through
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raw = _no_solution(problem, f"{name} raised {type(error).__name__}: {error}")
    return _judge(problem, raw, name, tol)


def _installed(solver: str) -> bool:
    return importlib.util.find_spec(_MODULES[solver]) is not None


def _check_name(solver: str) -> None:
    if solver not in _ADAPTERS:
        names = ", ".join(f'"{name}"' for name in _ADAPTERS)
        raise ValueError(f'solver is {solver!r}: accepted are "auto", {names}')


def _choose(problem: ConicProblem, solver: str, memory_limit: int) -> str:
    """Name of the solver to use, after the check of its predicted memory."""
    if solver != "auto":
        _check_name(solver)
    else:
        solver = automatic_solver(
            problem.sides, problem.n_variables, problem.n_nonzeros, memory_limit=memory_limit
        )
    if not _installed(solver):
        raise ImportError(
            f'solver "{solver}" is not installed: installed are {", ".join(available_solvers())}; '
            'SDPA comes with pip install "tensoralg[sdpa]"'
        )
    needed = predict_memory(problem, solver)
    if needed > memory_limit:
        raise ProblemTooLargeError(
            f"{solver} would take about {needed / _GIB:.3g} GiB for {problem.n_variables} "
            f"variables and a largest block of {max(problem.sides)} rows: memory_limit is "
            f"{memory_limit / _GIB:.3g} GiB"
        )
    return solver


def _run(
    name: str, problem: ConicProblem, scales: ProblemScales, tol: float, time_limit: float | None
) -> RawSolution:
    """Call the adapter and undo the scaling; without variables there is nothing to call it for."""
    if not problem.n_variables:
        n_rows = problem.stacked()[1].size
        return RawSolution(np.zeros(0), np.zeros(n_rows), "no variables: the blocks were examined")
    raw = _ADAPTERS[name](scales.scaled(problem), tol, time_limit)
    return RawSolution(
        raw.y * scales.columns * scales.right,
        raw.duals * scales.objective,
        raw.word,
        raw.claims_infeasible,
    )


def _no_solution(problem: ConicProblem, message: str) -> RawSolution:
    n_rows = problem.equality_matrix.shape[0] + sum(s * (s + 1) // 2 for s in problem.sides)
    return RawSolution(np.full(problem.n_variables, np.nan), np.full(n_rows, np.nan), message)


def _judge(
    problem: ConicProblem,
    raw: RawSolution,
    name: str,
    tol: float,
) -> ConicResult:
    """Measure the residuals and name the status."""
    y, duals = raw.y, raw.duals
    residuals = measure(problem, problem_scales(problem), y, duals)
    status: Status = "failed"
    if not raw.claims_infeasible and residuals.worst <= max(tol, _INACCURATE):
        status = "solved" if residuals.worst <= tol else "inaccurate"
    v, multipliers = split_duals(problem, duals)
    for array in (y, v, *multipliers):
        array.flags.writeable = False
    return ConicResult(
        y,
        multipliers,
        v,
        residuals.objective,
        residuals.dual_objective,
        residuals.primal,
        residuals.dual,
        residuals.gap,
        status,
        f"{raw.word} (largest residual {residuals.worst:.1e})",
        name,
        seconds=0.0,
    )
