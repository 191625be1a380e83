"""Speed and memory of the moment pass, beside the machine's matrix product.

    python -m benchmarks.moment_pass

One thread, CPU seconds, medians; pass and matrix product take turns, so that a busy moment hits
both. The pass is all of ``MomentAccumulator(d, m).update(X)``: checks, mean of the rows, sums.

Its rate counts ``2 N n_a n_b`` operations, those of the plain product of the feature matrices up
to degree a = floor(m/2) and b = m - a. The compiled sweep sums each moment once and so executes
fewer ("executed", in the same time); that is how the ratio can exceed 1. "By products" is the
same pass through feature matrices and numpy's matrix product, the way taken on other devices.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tensoralg.core.monomials import number_of_monomials
from tensoralg.gpu.moment_features import product_gram
from tensoralg.gpu.moment_sweep import sweep_plan
from tensoralg.mixtures.moments import MomentAccumulator

REPEATS = 7
WANTED = 0.6  # of the matrix product's rate
CASES = ((15, 3, 200_000), (20, 3, 200_000), (30, 3, 100_000), (15, 4, 100_000), (20, 4, 60_000))
SQUARE = 1500  # rows and columns of the matrix product

STREAM_DIMENSION, STREAM_ORDER, STREAM_CHUNK = 15, 3, 100_000
STREAM_ROWS = (2_000_000, 20_000_000)
STREAM_LIMIT = 500  # MB


def cpu_seconds(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure_case(dimension: int, order: int, rows: int) -> str:
    """One line of the table."""
    X = np.random.default_rng(dimension).standard_normal((rows, dimension))
    A, B = np.random.default_rng(0).standard_normal((2, SQUARE, SQUARE))
    product = np.empty_like(A)
    shift, scale = X.mean(axis=0), np.ones(dimension)
    actions: dict[str, Callable[[], Any]] = {
        "pass": lambda: MomentAccumulator(dimension, order).update(X),
        "dgemm": lambda: np.matmul(A, B, out=product),
        "products": lambda: product_gram(X, None, shift, scale, order),
    }
    for action in actions.values():
        action()
    times = {name: [] for name in actions}
    for _ in range(REPEATS):
        for name, action in actions.items():
            times[name].append(cpu_seconds(action))
    seconds = {name: median(values) for name, values in times.items()}
    n_a, n_b = (number_of_monomials(dimension, q) for q in (order // 2, order - order // 2))
    operations = 2 * rows * n_a * n_b / 1e9
    executed = 2 * rows * sweep_plan(dimension, order).n_sums / 1e9
    dgemm = 2 * SQUARE**3 / 1e9 / seconds["dgemm"]
    ratio = operations / seconds["pass"] / dgemm
    return (
        f"| d={dimension} m={order} N={rows:.0e} | {rows / seconds['pass'] / 1e6:.2f} "
        f"| {operations / seconds['pass']:.1f} | {executed / seconds['pass']:.1f} "
        f"| {operations / seconds['products']:.1f} | {dgemm:.1f} | **{ratio:.2f}** "
        f"| {'yes' if ratio >= WANTED else 'NO'} |"
    )


def peak_megabytes(rows: int) -> float:
    """Stream rows that exist only chunk by chunk; call it in a process of its own."""
    rng = np.random.default_rng(1)
    accumulator = MomentAccumulator(STREAM_DIMENSION, STREAM_ORDER)
    chunks = (
        rng.standard_normal((STREAM_CHUNK, STREAM_DIMENSION)) for _ in range(rows // STREAM_CHUNK)
    )
    for chunk in chunks:
        accumulator.update(chunk)
    if accumulator.count != rows:
        raise RuntimeError(f"streamed {accumulator.count} rows instead of {rows}")
    return own_peak()


def own_peak() -> float:
    """Peak resident memory of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count the memory of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure_memory(rows: int) -> str:
    """One line of the memory table, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.moment_pass", "--stream", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = float(done.stdout)
    held = 8 * rows * STREAM_DIMENSION / 1e6
    return (
        f"| d={STREAM_DIMENSION} m={STREAM_ORDER} N={rows:.0e} | {held:.0f} | **{peak:.0f}** "
        f"| {'yes' if peak < STREAM_LIMIT else 'NO'} |"
    )


def run() -> str:
    """Measure everything and return the Markdown report."""
    lines = [
        "| case | 10^6 rows/s | pass, GFLOP/s | executed | by products | dgemm | pass / dgemm "
        f"| >= {WANTED} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with threadpool_limits(1):
        lines += [measure_case(*case) for case in CASES]
    lines += [
        "",
        f"| streamed | data, MB | peak memory of the process, MB | < {STREAM_LIMIT} |",
        "|---|---|---|---|",
        *(measure_memory(rows) for rows in STREAM_ROWS),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stream"]:
        print(peak_megabytes(int(sys.argv[2])))
    else:
        print(run())
