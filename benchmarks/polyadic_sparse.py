"""Sparse tensors beside pyttb: one MTTKRP, whole sweeps, and memory.

    python -m benchmarks.polyadic_sparse

One thread, CPU seconds, 1000 x 800 x 600 with a million nonzeros and 16 columns. The limit is the
traffic of the factors' rows: every nonzero reads two rows and updates a third.
"""

import argparse
import functools
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.moment_pass import own_peak
from benchmarks.polyadic_problems import fresh_peak, timed

SHAPE, NONZEROS, RANK = (1000, 800, 600), 1_000_000, 16
WANTED = 30.0  # times pyttb's MTTKRP
SEED = 9000
SHORT, LONG = 1, 6  # sweeps


def draw(shape: tuple[int, ...], nonzeros: int, rank: int, seed: int) -> tuple[Any, Any, list[Any]]:
    """Coordinates without repetitions, the values there of a nonnegative model, its factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, rank)).astype(np.float32) for n in shape]
    total = int(np.prod(shape, dtype=np.int64))
    drawn: Any = np.empty(0, dtype=np.int64)
    while len(drawn) < nonzeros:
        drawn = np.unique(np.append(drawn, rng.integers(0, total, size=nonzeros)))
    flat = np.sort(rng.permutation(drawn)[:nonzeros])
    where = np.stack(np.unravel_index(flat, shape))
    values = np.zeros(nonzeros, dtype=np.float32)
    for s in range(rank):
        term = np.ones(nonzeros, dtype=np.float32)
        for factor, index in zip(factors, where, strict=True):
            term *= factor[index, s]
        values += term
    return where, values, factors


def medians(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of calls that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compile, warm up
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed(call)[1])
    return {name: statistics.median(values) for name, values in times.items()}


def product_lines(nonzeros: int, repeats: int) -> list[str]:
    """Milliseconds of one MTTKRP in every mode, and whether the results agree."""
    import pyttb

    from tensoralg.gpu.mttkrp import mttkrp
    from tensoralg.gpu.sparse_tensor import SparseTensor

    where, values, factors = draw(SHAPE, nonzeros, RANK, SEED)
    tensor = SparseTensor(where, values, SHAPE)
    peer = pyttb.sptensor(where.T, values[:, None].astype(np.float64), SHAPE)
    wide = [factor.astype(np.float64) for factor in factors]
    tensor64 = SparseTensor(where, values.astype(np.float64), SHAPE)
    lines = [
        "| mode | ours f32, ms | ours f64, ms | pyttb f64, ms | pyttb / ours f32 "
        f"| ≥ {WANTED:.0f} | largest relative difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode in range(len(SHAPE)):
        seconds = medians(
            {
                "f32": lambda mode=mode: mttkrp(tensor, factors, mode),
                "f64": lambda mode=mode: mttkrp(tensor64, wide, mode),
                "pyttb": lambda mode=mode: peer.mttkrp(wide, mode),
            },
            repeats,
        )
        exact = peer.mttkrp(wide, mode)
        difference = np.abs(mttkrp(tensor, factors, mode) / exact - 1.0).max()
        ratio = seconds["pyttb"] / seconds["f32"]
        lines.append(
            f"| {mode} | {1e3 * seconds['f32']:.2f} | {1e3 * seconds['f64']:.2f} "
            f"| {1e3 * seconds['pyttb']:.0f} | {ratio:.0f} "
            f"| {'yes' if ratio >= WANTED else 'NO'} | {difference:.0e} |"
        )
    return lines


def sweep_lines(nonzeros: int, repeats: int) -> list[str]:
    """CPU seconds of one sweep from runs of two lengths, and the fits after the longer."""
    import pyttb

    from tensoralg.gpu.sparse_tensor import SparseTensor
    from tensoralg.polyadic import decompose

    where, values, _ = draw(SHAPE, nonzeros, RANK, SEED)
    tensor = SparseTensor(where, values, SHAPE)
    peer = pyttb.sptensor(where.T, values[:, None].astype(np.float64), SHAPE)

    def ours(sweeps: int) -> float:
        return decompose(tensor, RANK, max_iter=sweeps, tol=0, rng=0).fit

    def pyttb_als(sweeps: int) -> float:
        np.random.seed(0)  # noqa: NPY002  (the peer reads the global state)
        found = pyttb.cp_als(peer, RANK, maxiters=sweeps, stoptol=0, printitn=0)
        return float(found[2]["fit"])

    lines = [
        f"| program | one sweep, ms | whole call of {LONG} sweeps, ms | its fit |",
        "|---|---|---|---|",
    ]
    times = []
    for name, call in (("ours, f32", ours), ("pyttb, f64", pyttb_als)):
        calls = {n: functools.partial(call, n) for n in (SHORT, LONG)}
        seconds = medians({str(n): call_ for n, call_ in calls.items()}, repeats)
        times.append((seconds[str(LONG)] - seconds[str(SHORT)]) / (LONG - SHORT))
        whole, fit = 1e3 * seconds[str(LONG)], call(LONG)
        lines.append(f"| {name} | {1e3 * times[-1]:.1f} | {whole:.0f} | {fit:.5f} |")
    lines.append(f"| ratio | {times[1] / times[0]:.0f} | | |")
    return lines


def extra_megabytes(nonzeros: int) -> tuple[float, float]:
    """Peak memory of a decomposition above what holds the tensor; in a process of its own."""
    from tensoralg.gpu.sparse_tensor import SparseTensor
    from tensoralg.polyadic import decompose

    small = draw((5, 4, 3), 20, 2, 0)
    decompose(SparseTensor(small[0], small[1], (5, 4, 3)), 2, max_iter=3, tol=0, rng=0)
    where, values, _ = draw(SHAPE, nonzeros, RANK, SEED)
    tensor = SparseTensor(where, values, SHAPE)
    held = 1e-6 * (tensor.coordinates.nbytes + tensor.values.nbytes)
    before = fresh_peak()
    decompose(tensor, RANK, max_iter=5, tol=0, rng=0)
    return own_peak() - before, held


def memory_lines(nonzeros: int) -> list[str]:
    """One line from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.polyadic_sparse", "--memory", str(nonzeros)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    extra, held = (float(word) for word in done.stdout.split())
    dense = 4e-6 * float(np.prod(SHAPE, dtype=np.float64))
    return [
        "| nonzeros | stored, MB | as a dense array, MB | decompose's peak above that, MB |",
        "|---|---|---|---|",
        f"| {nonzeros:,} | {held:.0f} | {dense:.0f} | {extra:.0f} |",
    ]


def run(nonzeros: int = NONZEROS, repeats: int = 3) -> str:
    """Measure and return Markdown tables."""
    with threadpool_limits(1):
        parts = [
            f"MTTKRP, {' x '.join(map(str, SHAPE))}, {nonzeros:,} nonzeros, {RANK} columns:",
            "",
            *product_lines(nonzeros, repeats),
            "",
            "Alternating least squares on it:",
            "",
            *sweep_lines(nonzeros, repeats),
            "",
            "Memory:",
            "",
            *memory_lines(nonzeros),
        ]
    return "\n".join(parts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nonzeros", type=int, default=NONZEROS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, help="print the memory of one decomposition only")
    arguments = parser.parse_args()
    if arguments.memory:
        print(*extra_megabytes(arguments.memory))
    else:
        print(run(arguments.nonzeros, arguments.repeats))


if __name__ == "__main__":
    main()
