"""Polyadic decomposition in low precision: the fit with and without the exact finish, stuck runs.

``python -m benchmarks.polyadic_precision [--seeds 20] [--size 50] [--rank 8] [--epochs 30]``.
Float32 data of exact rank plus 1 % noise, normal random starts, seeds from 9000 on; none of them
was used while the code was written. One thread.

The reference of a seed is the fit that float64 alternating least squares reaches from the true
factors: the optimum, computed apart. A run is stuck if it ends 1e-3 or more below after the
finish; gaps are over the other runs. Random starts get stuck in float64 too, so that its rows are
what the others are to be compared with. "stored": A, H and the sampled data are rounded.
"residual": only the error and H are, where they are multiplied. The exact finish is ten sweeps in
float32, as `decompose` does them.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.gpu.precision import PRECISIONS, precision_policy
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.stochastic_gradient import stochastic_polyadic
from tensoralg.solvers.stochastic_steps import StochasticSchedule

FIRST_SEED = 9000
NOISE = 0.01
STUCK = 1e-3
NEAR = 1e-5
SWEEPS = 300
FINISH = 10
METHODS = ("ALS, rounded operands", "SGD, residual", "SGD, stored")


@dataclass(frozen=True)
class Problem:
    tensor: Any
    start: list[Any]
    optimum: float


@dataclass
class Runs:
    """Fits below the optimum of one method in one precision."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def row(self) -> str:
        before, after = np.array(self.before), np.array(self.after)
        n = len(before)
        stuck_before, stuck_after = before >= STUCK, after >= STUCK
        cells = [gaps(before[~stuck_after]), gaps(after[~stuck_after])]
        return (
            f"{cells[0]} | {cells[1]} | {sum(after <= NEAR)}/{n} | {sum(stuck_before)}/{n} | "
            f"{sum(stuck_after)}/{n} | {np.median(self.seconds):.2f}"
        )


def gaps(values: Any) -> str:
    """Median and worst."""
    return f"{np.median(values):.1e} | {max(values):.1e}" if len(values) else "- | -"


def draw(seed: int, size: int, rank: int) -> Problem:
    """Normal factors, noise, a normal start; the optimum by sweeps from the truth."""
    rng = np.random.default_rng(seed)
    truth = [rng.standard_normal((size, rank)) for _ in range(3)]
    X = np.einsum("is,js,ks->ijk", *truth, optimize=True)
    X += NOISE * np.linalg.norm(X) / np.sqrt(X.size) * rng.standard_normal(X.shape)
    X = X.astype(np.float32)
    start = [rng.standard_normal((size, rank)) for _ in range(3)]
    best = alternating_least_squares(X.astype(np.float64), truth, tol=1e-10)
    return Problem(X, start, best.fit)


def settings() -> Iterator[tuple[str, str, str]]:
    """Method, precision and rounding of every row."""
    for method in METHODS:
        for name in PRECISIONS:
            exact = name in ("float64", "float32")
            if exact and method == "SGD, stored":
                continue
            for rounding in ("nearest",) if exact else ("nearest", "stochastic"):
                yield method, name, rounding


def solve(problem: Problem, seed: int, epochs: int, setting: tuple[str, str, str]) -> Any:
    """One run without the finish."""
    method, name, rounding = setting
    policy = precision_policy(name, rounding=rounding)
    tensor = problem.tensor.astype(np.float64) if name == "float64" else problem.tensor
    if method == METHODS[0]:
        return alternating_least_squares(tensor, problem.start, max_iter=SWEEPS, policy=policy)
    return stochastic_polyadic(
        tensor,
        problem.start,
        max_iter=epochs,
        policy=policy,
        rng=seed,
        schedule=StochasticSchedule(residual_form=method == METHODS[1]),
    )


def run(n_seeds: int = 20, size: int = 50, rank: int = 8, epochs: int = 30) -> str:
    """The table as Markdown."""
    table = {setting: Runs() for setting in settings()}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warm_up = draw(0, 12, 2)
        for setting in table:  # compiles the kernels
            solve(warm_up, 0, 2, setting)
        for seed in range(FIRST_SEED, FIRST_SEED + n_seeds):
            problem = draw(seed, size, rank)
            for setting, runs in table.items():
                begin = time.process_time()
                found = solve(problem, seed, epochs, setting)
                runs.seconds.append(time.process_time() - begin)
                finished = alternating_least_squares(
                    problem.tensor, list(found.factors), max_iter=FINISH
                )
                runs.before.append(problem.optimum - found.fit)
                runs.after.append(problem.optimum - max(found.fit, finished.fit))
    return "\n".join(
        [
            f"## Polyadic decomposition in low precision, {size}^3 rank {rank}, {n_seeds} seeds",
            "",
            "Gaps to the float64 optimum of the runs that do not end stuck, 1e-3 or more below it; "
            f"at most {SWEEPS} sweeps or {epochs} epochs, then {FINISH} exact sweeps.",
            "",
            "| method | precision | rounding | gap without finish: median | worst | "
            "with finish: median | worst | within 1e-5 | 1e-3 below without finish | stuck | "
            "CPU s (median, without finish) |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(setting)} | {runs.row()} |" for setting, runs in table.items()),
            "",
        ]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=30)
    chosen = parser.parse_args()
    print(run(chosen.seeds, chosen.size, chosen.rank, chosen.epochs))


if __name__ == "__main__":
    main()
