"""Weak scaling of a fit on a Dask cluster: twice the rows on two workers, beside one worker.

    python -m benchmarks.dask_scaling [--rows 2000000] [--repeats 5]

Worker processes of one thread each on this machine; rows are held in the workers' memory. Both
cluster sizes take turns. Timed are the two passes that a fit is made of: the moments, and one step
of expectation maximization. "Throughput" is rows per wall second on two workers over that on one:
2 is perfect. Where other processes use the cores it says more about them, so CPU seconds of the
workers per row are compared, too: what distribution itself adds.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import dask.array
import numpy as np
from distributed import Client, LocalCluster, wait

from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator

DIMENSION, COMPONENTS, ORDER, CHUNK = 20, 9, 3, 100_000
WANTED = 1.8


def truth() -> DiagonalGaussianMixture:
    """A mixture to draw from and to start at."""
    rng = np.random.default_rng(0)
    shape = (COMPONENTS, DIMENSION)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(COMPONENTS, 5.0)),
        0.7 * rng.standard_normal(shape),
        rng.uniform(0.3, 1.5, shape),
    )


def draw(seed: int) -> Any:
    """Rows of one chunk; made where they stay."""
    return truth().sample(CHUNK, random_state=seed)[0]


def rows_on(client: Client, rows: int) -> Any:
    """A Dask array in the memory of the workers, the same number of chunks on each."""
    workers = list(client.nthreads())
    futures = [
        client.submit(draw, k, workers=workers[k % len(workers)], pure=False)
        for k in range(rows // CHUNK)
    ]
    wait(futures)
    parts = [
        dask.array.from_delayed(dask.delayed(future), (CHUNK, DIMENSION), np.float64)
        for future in futures
    ]
    return dask.array.concatenate(parts)


def moment_pass(X: Any) -> None:
    MomentAccumulator(DIMENSION, ORDER, shift=0).update(X)


def expectation_pass(X: Any) -> None:
    from tensoralg.mixtures.dask_rows import DaskRows
    from tensoralg.solvers.expectation_maximization import expectation_maximization

    model = truth()
    start = (model.weights_, model.means_, model.covariances_)
    source = DaskRows(X, None, missing=False)
    expectation_maximization(source, *start, max_iter=1)


def measure(client: Client, action: Callable[[Any], None], X: Any) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of all workers."""
    before = sum(client.run(time.process_time).values())
    begin = time.perf_counter()
    with client.as_current():
        action(X)
    wall = time.perf_counter() - begin
    return wall, sum(client.run(time.process_time).values()) - before


def run(rows: int = 2_000_000, repeats: int = 5) -> str:
    """Measure and return a Markdown table."""
    actions = {"moments": moment_pass, "one step of expectation maximization": expectation_pass}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, **options) as one,
        LocalCluster(n_workers=2, **options) as two,
        Client(one, set_as_default=False) as alone,
        Client(two, set_as_default=False) as pair,
    ):
        clients = {1: alone, 2: pair}
        data = {}
        for n, client in clients.items():
            with client.as_current():
                data[n] = rows_on(client, n * rows)
        for repeat in range(repeats + 1):
            for name, action in actions.items():
                for n, client in clients.items():
                    taken = measure(client, action, data[n])
                    if repeat:  # the first one compiles
                        times.setdefault((name, n), []).append(taken)
    lines = [
        "| pass | rows per worker | one worker, s | two workers, s | throughput, median "
        "| throughput, best times | CPU per row, two / one | >= 1.8 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in actions:
        single, double = times[name, 1], times[name, 2]
        wall = [median(t for t, _ in part) for part in (single, double)]
        best = 2 * min(t for t, _ in single) / min(t for t, _ in double)
        work = median(c for _, c in double) / median(c for _, c in single) / 2
        lines.append(
            f"| {name} | {rows} | {wall[0]:.2f} | {wall[1]:.2f} | {2 * wall[0] / wall[1]:.2f} "
            f"| {best:.2f} | {work:.2f} | {'yes' if best >= WANTED else 'NO'} |"
        )
    lines += ["", f"d={DIMENSION}, r={COMPONENTS}, m={ORDER}, chunks of {CHUNK} rows."]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print(run(chosen.rows, chosen.repeats))


if __name__ == "__main__":
    main()
