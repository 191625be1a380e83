"""Moment relaxations beside the homogeneous form and beside cvxpy; known optima.

``python -m benchmarks.completely_positive``. One thread, CPU seconds, medians over tensors; the
contestants take turns on the same tensor.

The program is the least shift t such that A + t U lies in the relaxation of order k. Both forms
are built by the same vectorised code and solved by the same solver (Clarabel) to the same
tolerance. "cvxpy" is the dehomogenised program in cvxpy, with the same solver: written as one
would write it down, block matrices of moments (`bmat`), and vectorised, one gather per block.
Ours keeps the blocks of small relaxations for the next tensor of the same size, cvxpy compiles
every time. The whole of `detect` needs no relaxation for most of these tensors.
Build times of ncpol2sdpa (it then needs a solver of its own) appear where it is installed.
"""

import contextlib
import functools
import gc
import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tensoralg.completely_positive import detect, minimize
from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.solvers.moment_matrices import dehomogenize, rehomogenize
from tensoralg.solvers.moment_relaxation import build_relaxation
from tensoralg.solvers.simplex_measure import uniform_moments
from tensoralg.solvers.uniform_shift import shift_problem, solve_shift

FIRST_SEED = 7000
SOLVER = "clarabel"
# n, d, k, and the ratios that are wanted: homogeneous, detect
CASES = ((3, 3, 3, 5.0, None), (3, 4, 4, 10.0, 5.0), (4, 3, 3, 4.0, 3.0))
WANTED_CVXPY = 5.0
# n, d, k, and the seconds that building may take
BUILDS = ((4, 3, 3, 0.05), (5, 4, 4, 1.0))


@dataclass
class Times:
    """CPU seconds of one contestant, one number per tensor, and what it found."""

    build: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    shifts: list[float] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)


def draw(n: int, d: int, seed: int) -> SymmetricTensor:
    """A sum of powers of random points; every other one is pushed off the cone."""
    rng = np.random.default_rng(seed)
    count = 2 * len(multi_indices(n, d))
    tensor = SymmetricTensor.from_decomposition(
        np.full(count, 1.0 / count), rng.dirichlet(np.ones(n), count), d
    )
    if seed % 2 == 0:
        return tensor
    # 2 percent less of the uniform measure than a relaxation allows
    shift = solve_shift(build_relaxation(known_moments(tensor), n - 1, d, d // 2 + 1)).t
    uniform = SymmetricTensor(rehomogenize(uniform_moments(n - 1, d), n, d), d, n)
    return tensor + (shift - 0.02 * (1 + shift)) * uniform


def known_moments(tensor: SymmetricTensor) -> Any:
    """Dehomogenised moments of total 1."""
    moments = dehomogenize(tensor.entries, tensor.dimension, tensor.order)
    return moments / moments[0]


def cpu(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = action()
    return time.process_time() - begin, result


def ours(tensor: SymmetricTensor, k: int, times: Times, **form: bool) -> None:
    """Build and solve with our own code."""
    n, d = tensor.dimension, tensor.order
    known = known_moments(tensor)
    build, relaxation = cpu(lambda: build_relaxation(known, n - 1, d, k, **form))
    solve, result = cpu(lambda: solve_shift(relaxation, solver=SOLVER))
    times.build.append(build)
    times.total.append(build + solve)
    times.shifts.append(result.t)
    times.residuals.append(result.residual)


def through_cvxpy(tensor: SymmetricTensor, k: int, times: Times, write: Any) -> None:
    """Build and solve the same dehomogenised program in cvxpy."""
    import cvxpy as cp

    n, d = tensor.dimension, tensor.order
    known, uniform = known_moments(tensor), uniform_moments(n - 1, d)
    begin = time.process_time()
    t = cp.Variable()
    w = cp.Variable(len(multi_indices(n, 2 * k)))
    constraints = [w[: len(known)] == known + t * uniform]
    ones = [(1.0, 0), *((-1.0, i) for i in range(1, n))]
    for factor in (None, *([(1.0, i)] for i in range(1, n)), ones):
        basis = multi_indices(n, k if factor is None else k - 1)
        constraints.append(write(cp, w, basis, factor or [(1.0, None)], n) >> 0)
    problem = cp.Problem(cp.Minimize(t), constraints)
    problem.get_problem_data("CLARABEL")
    times.build.append(time.process_time() - begin)
    with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
        warnings.simplefilter("ignore")
        problem.solve(solver="CLARABEL")
    times.total.append(time.process_time() - begin)
    # written in monomials some programs end without an answer
    times.shifts.append(float("nan" if t.value is None else t.value))


def as_bmat(cp: Any, w: Any, basis: Any, factor: Any, n: int) -> Any:
    """A block as a matrix of expressions, entry by entry."""

    def entry(a: Any, b: Any) -> Any:
        terms = []
        for c, i in factor:
            index = sorted([*a, *b] if i is None else [*a, *b, i])
            terms.append(c * w[int(rank_multi_indices(index, n))])
        return sum(terms[1:], terms[0])

    return cp.bmat([[entry(a, b) for b in basis] for a in basis])


def as_gather(cp: Any, w: Any, basis: Any, factor: Any, n: int) -> Any:
    """A block as a sum of gathers, one for each term of the factor."""
    s = len(basis)
    pairs = np.concatenate(
        [np.repeat(basis, s, axis=0), np.tile(basis, (s, 1))],
        axis=1,
    )
    total = 0
    for c, i in factor:
        index = pairs if i is None else np.column_stack([pairs, np.full(s * s, i)])
        positions = rank_multi_indices(np.sort(index, axis=1), n)
        total = total + c * w[positions]
    return cp.reshape(total, (s, s), order="F")


def ncpol2sdpa_build(tensor: SymmetricTensor, k: int) -> float | None:
    """CPU seconds in which ncpol2sdpa writes down the same constraints, without solving."""
    if importlib.util.find_spec("ncpol2sdpa") is None:
        return None
    from ncpol2sdpa import SdpRelaxation, generate_variables

    n, d = tensor.dimension, tensor.order
    known = known_moments(tensor)
    begin = time.process_time()
    x = generate_variables("x", n - 1, commutative=True)
    letters = [1, *x]
    monomials = [np.prod([letters[i] for i in row]) for row in multi_indices(n, d).tolist()]
    SdpRelaxation(x).get_relaxation(
        k,
        objective=monomials[-1],
        inequalities=[*x, 1 - sum(x)],
        momentequalities=[m - v for m, v in zip(monomials[1:], known[1:], strict=True)],
    )
    return time.process_time() - begin


def race(n: int, d: int, k: int, n_tensors: int) -> dict[str, Times]:
    """All contestants on the same tensors."""
    names = ("plain", "homogeneous", "products", "bmat", "gather", "detect", "ncpol2sdpa")
    times = {name: Times() for name in names}
    # one round that does not count: imports, caches
    for seed in range(FIRST_SEED - 1, FIRST_SEED + n_tensors):
        if seed == FIRST_SEED:
            times = {name: Times() for name in names}
        tensor = draw(n, d, seed)
        ours(tensor, k, times["plain"], products=False)
        ours(tensor, k, times["products"])
        ours(tensor, k, times["homogeneous"], products=False, homogeneous=True)
        through_cvxpy(tensor, k, times["bmat"], as_bmat)
        through_cvxpy(tensor, k, times["gather"], as_gather)
        times["detect"].total.append(cpu(lambda tensor=tensor: detect(tensor))[0])
        if (build := ncpol2sdpa_build(tensor, k)) is not None:
            times["ncpol2sdpa"].total.append(build)
    return times


def row(n: int, d: int, k: int, wanted: float, wanted_detect: float | None, tensors: int) -> str:
    """One line of the table of times."""
    times = race(n, d, k, tensors)

    def ratio(name: str, to: str) -> float:
        return median([a / b for a, b in zip(times[name].total, times[to].total, strict=True)])

    def verdict(value: float, least: float | None) -> str:
        return f"**{value:.1f}**" + ("" if least is None or value >= least else f" (NOT {least:g})")

    peer = times["ncpol2sdpa"].total
    # the residual tells that ours is the accurate one
    off = np.abs(np.subtract(times["plain"].shifts, times["gather"].shifts))
    missing = int(np.isnan([times[name].shifts for name in ("bmat", "gather")]).sum())
    cells = [
        f"{n},{d},{k}",
        *(
            f"{median(times[name].build):.3f} / {median(times[name].total):.3f}"
            for name in ("plain", "homogeneous", "bmat", "gather")
        ),
        f"{median(times['products'].total):.3f}",
        f"{median(times['detect'].total):.3f}",
        verdict(ratio("homogeneous", "plain"), wanted),
        verdict(ratio("homogeneous", "detect"), wanted_detect),
        verdict(ratio("bmat", "plain"), WANTED_CVXPY),
        f"{ratio('gather', 'plain'):.1f}",
        f"{median(peer):.2f}" if peer else "-",
        f"{max(times['plain'].residuals):.0e} / {max(times['homogeneous'].residuals):.0e}",
        f"{np.nanmax(off):.0e}" + (f", {missing} failed" if missing else ""),
    ]
    return f"| {' | '.join(cells)} |"


CYCLE = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
HORN = np.ones((5, 5)) - 2 * CYCLE


def _diagonal(i: int, n: int, d: int) -> SymmetricTensor:
    return SymmetricTensor.from_function(lambda *j: float(set(j) == {i}), d, n)


def optima() -> dict[str, tuple[Any, Any, float]]:
    """Problems over the cone with their known optimal values."""
    product = SymmetricTensor.from_function(lambda *i: -float(i == (0, 1, 2)) / 6, 3, 3)
    cubes = SymmetricTensor.from_function(lambda *i: float(len(set(i)) == 1), 3, 4)
    total = [(np.ones((5, 5)), "==", 1.0)]
    diagonal = [(_diagonal(i, 3, 3), "==", 1.0) for i in range(3)]
    return {
        "I + adjacency of the 5-cycle": (np.eye(5) + CYCLE, total, 0.5),
        "Horn's matrix": (HORN, total, 0.0),
        "Motzkin-Straus, 5-cycle": (-CYCLE, total, -0.5),
        "max x1 x2 x3": (product, [(np.ones((3, 3, 3)), "==", 1.0)], -1 / 27),
        "sum of cubes, n=4": (cubes, [(np.ones((4, 4, 4)), "==", 1.0)], 1 / 16),
        "completion, max a_123": (product, diagonal, -1.0),
        "completion, least mass": (np.ones((3, 3, 3)), diagonal, 3.0),
    }


def optimum_row(name: str, C: Any, constraints: Any, optimum: float) -> str:
    seconds, found = cpu(lambda: minimize(C, constraints))
    good = abs(found.value - optimum) <= 1e-6 and abs(found.lower_bound - optimum) <= 1e-6
    return (
        f"| {name} | {optimum:.6f} | {found.value - optimum:+.0e} | "
        f"{found.lower_bound - optimum:+.0e} | {found.relaxation_order} | {seconds:.2f} | "
        f"{'yes' if good else 'NO'} |"
    )


def clear_caches() -> None:
    """Forget what was kept for the next relaxation of the same size."""
    for kept in gc.get_objects():
        if isinstance(kept, functools._lru_cache_wrapper):
            kept.cache_clear()


def build_row(n: int, d: int, k: int, allowed: float, repetitions: int = 5) -> str:
    """CPU seconds until the solver could start, products included, nothing kept from before."""
    known, seconds = known_moments(draw(n, d, FIRST_SEED)), []
    for _ in range(repetitions):
        clear_caches()
        seconds.append(cpu(lambda: shift_problem(build_relaxation(known, n - 1, d, k)))[0])
    again, problem = cpu(lambda: shift_problem(build_relaxation(known, n - 1, d, k)))
    typical = median(seconds)
    good = "yes" if typical < allowed else "NO"
    return (
        f"| {n},{d},{k} | {problem.n_variables} | {max(problem.sides)} | {problem.n_nonzeros} | "
        f"{typical:.3f} | {again:.3f} | {allowed:g}: {good} |"
    )


def run(n_tensors: int = 6) -> str:
    """All tables as Markdown."""
    with threadpool_limits(1):
        races = [row(*case, n_tensors) for case in CASES]
        values = [optimum_row(name, *problem) for name, problem in optima().items()]
        builds = [build_row(*case) for case in BUILDS]
    contestants = ("dehomogenised", "homogeneous", "cvxpy bmat", "cvxpy vectorised")
    head = [
        "n,d,k",
        *(f"{name}: build / all" for name in contestants),
        "with products",
        "whole detect",
        "homogeneous / ours",
        "homogeneous / detect",
        "cvxpy bmat / ours",
        "cvxpy vectorised / ours",
        "ncpol2sdpa, build only",
        "worst residual, ours / homogeneous",
        "cvxpy's shift off by",
    ]
    return "\n".join(
        [
            "## Moment relaxations: CPU seconds, one thread, Clarabel",
            "",
            f"| {' | '.join(head)} |",
            "|" + "---|" * len(head),
            *races,
            "",
            "## Optima over the cone, errors of both bounds",
            "",
            "| problem | optimum | value | lower bound | order | CPU s | both to 1e-6 |",
            "|---|---|---|---|---|---|---|",
            *values,
            "",
            "## Building alone, with products: CPU seconds",
            "",
            "| n,d,k | variables | largest block | coefficients | first | again | below |",
            "|---|---|---|---|---|---|---|",
            *builds,
            "",
        ]
    )


if __name__ == "__main__":
    print(run())
