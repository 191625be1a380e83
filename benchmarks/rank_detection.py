"""The number of components that moments show, on data seeds that nothing was tuned on.

Every case has its own seed, from 7000 on: means ~ sep N(0, I), variances ~ U(.3, 1.5), weights
~ Dirichlet(5), every number of columns from 10 to 20 with every number of components from 1 to 8.
The test is that of ``n_components="auto"`` with order 3, on columns in units of their deviation.
"""

import time
from collections import Counter
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.mixtures import Case, draw
from tensoralg.mixtures import SplitMomentAccumulator, detect_rank

FIRST_SEED = 7000
SAMPLES = 100_000
SEPARATIONS = (0.5, 0.8)
DIMENSIONS = range(10, 21)
COMPONENTS = range(1, 9)
ORDER = 3


class Outcome(NamedTuple):
    """One data set: the true number, the detected one, CPU seconds of the pass and of the test."""

    true: int
    found: int
    accumulating: float
    testing: float


def detect(case: Case, seed: int) -> Outcome:
    """Accumulate the moments of one data set and count its components."""
    X, *_ = draw(case, seed)
    begin = time.process_time()
    moments = SplitMomentAccumulator(
        case.dimension, case.order, shift=X.mean(axis=0), scale=X.std(axis=0)
    ).update(X)
    middle = time.process_time()
    found = detect_rank(moments, rng=seed).rank
    return Outcome(case.components, found, middle - begin, time.process_time() - middle)


def outcomes(separation: float, first_seed: int) -> list[Outcome]:
    """Every number of columns with every number of components, each with a seed of its own."""
    grid = [(d, r) for r in COMPONENTS for d in DIMENSIONS]
    return [
        detect(Case(d, r, ORDER, SAMPLES, separation), first_seed + k)
        for k, (d, r) in enumerate(grid)
    ]


def row(name: str, found: list[Outcome]) -> str:
    """Write one line of the table: how often the number is right, and how it errs."""
    right = sum(one.found == one.true for one in found)
    errors = Counter(one.found - one.true for one in found if one.found != one.true)
    wrong = ", ".join(f"{shift:+d}: {count}" for shift, count in sorted(errors.items())) or "-"
    accumulating = np.median([one.accumulating for one in found])
    testing = np.median([one.testing for one in found])
    share = f"{right}/{len(found)} ({right / len(found):.0%})"
    return f"| {name} | {share} | {wrong} | {accumulating:.2f} | {testing:.2f} |"


def run() -> str:
    """Return the table, one line for each separation and number of components."""
    detect(Case(10, 2, ORDER, 1000, 0.5), 0)  # compiles
    lines = [
        f"N={SAMPLES}, order {ORDER}, d={DIMENSIONS[0]}..{DIMENSIONS[-1]}, seeds from {FIRST_SEED}",
        "",
        "| case | right | errors | CPU s of the pass | CPU s of the test |",
        "|---|---|---|---|---|",
    ]
    size = len(DIMENSIONS) * len(COMPONENTS)
    with threadpool_limits(1):
        for number, separation in enumerate(SEPARATIONS):
            found = outcomes(separation, FIRST_SEED + number * size)
            lines += [
                row(f"sep={separation} r={r}", [one for one in found if one.true == r])
                for r in COMPONENTS
            ]
            lines.append(row(f"sep={separation}, all", found))
    return "\n".join(lines)


if __name__ == "__main__":
    print(run())
