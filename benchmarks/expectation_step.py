"""CPU time of one EM iteration, beside scikit-learn's and the machine's arithmetic limit.

One thread. The two take turns, so that a busy moment hits both alike; medians count.

    python -m benchmarks.expectation_step
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from tensoralg.solvers.expectation_maximization import expectation_maximization

CASES = ((200_000, 15, 6), (60_000, 15, 10), (1_000_000, 20, 9))  # rows, columns, components
ITERATIONS = 4


def problem(
    n: int, d: int, r: int, seed: int = 0
) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
    """Rows of an overlapping mixture, and its parameters."""
    rng = np.random.default_rng(seed)
    parameters = {
        "weights": rng.dirichlet(np.full(r, 5.0)),
        "means": 0.5 * rng.standard_normal((r, d)),
        "covariances": rng.uniform(0.3, 1.5, (r, d)),
    }
    label = rng.choice(r, n, p=parameters["weights"])
    X = rng.standard_normal((n, d))
    X *= np.sqrt(parameters["covariances"])[label]
    X += parameters["means"][label]
    return X, parameters


def cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def ours(X: npt.NDArray[Any], parameters: dict[str, npt.NDArray[np.float64]]) -> float:
    """CPU seconds of an iteration."""
    call = lambda: expectation_maximization(  # noqa: E731
        lambda: [(X, None)], **parameters, tol=0.0, max_iter=ITERATIONS, acceleration=None
    )
    return cpu_seconds(call) / ITERATIONS


def theirs(X: npt.NDArray[Any], parameters: dict[str, npt.NDArray[np.float64]]) -> float:
    """CPU seconds of an iteration: a fit of several less a fit of one."""

    def fit(iterations: int) -> float:
        model = GaussianMixture(
            len(parameters["weights"]),
            covariance_type="diag",
            tol=0.0,
            max_iter=iterations,
            init_params="random",
            weights_init=parameters["weights"],
            means_init=parameters["means"],
            precisions_init=1.0 / parameters["covariances"],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # neither fit is meant to converge
            return cpu_seconds(lambda: model.fit(X))

    return (fit(1 + ITERATIONS) - fit(1)) / ITERATIONS


def product_rate(size: int = 1024) -> float:
    """GFLOP/s of the BLAS matrix product."""
    a = np.ones((size, size))
    a @ a
    return 2e-9 * size**3 / min(cpu_seconds(lambda: a @ a) for _ in range(5))


def read_rate(X: npt.NDArray[np.float64]) -> float:
    """GB/s of summing the rows."""
    return 1e-9 * X.nbytes / min(cpu_seconds(X.sum) for _ in range(5))


def passes(seeds: int = 3) -> list[str]:
    """Passes to tol=1e-6 from a start near the truth, and what they leave to gain."""
    lines = [
        "| rows | columns | components | seed | passes, plain | accelerated | left, plain | left |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, d, r in CASES[:2]:
        for seed in range(1, 1 + seeds):
            X, truth = problem(n, d, r, seed)
            noise = np.random.default_rng(seed).standard_normal((r, d))
            start = truth | {"means": truth["means"] + 0.05 * noise}
            fits = [
                expectation_maximization(
                    lambda X=X: [(X, None)], **start, tol=tol, acceleration=name, max_iter=1000
                )
                for tol, name in ((1e-6, None), (1e-6, "anderson"), (1e-12, "anderson"))
            ]
            left = [fits[2].log_likelihood - fit.log_likelihood for fit in fits[:2]]
            lines.append(
                f"| {n} | {d} | {r} | {seed} | {fits[0].n_iter} | {fits[1].n_iter} "
                f"| {left[0]:.0e} | {left[1]:.0e} |"
            )
    return lines


def run(repeats: int = 5) -> str:
    """Measure and return a Markdown table."""
    lines = [
        "| rows | columns | components | dtype | scikit-learn, ms | ours, ms | ratio "
        "| smallest ratio | GFLOP/s | GB/s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    with threadpool_limits(1):
        limit = product_rate()
        for n, d, r in CASES:
            X64, parameters = problem(n, d, r)
            bandwidth = read_rate(X64)
            for dtype in (np.float64, np.float32):
                X = X64.astype(dtype)
                ours(X[:100], parameters)  # compile
                pairs = [(theirs(X, parameters), ours(X, parameters)) for _ in range(repeats)]
                peer, own = (statistics.median(times) for times in zip(*pairs, strict=True))
                ratios = [a / b for a, b in pairs]
                # a cell: 4 for z^2, 4 for the sums of r x and r x^2; 36 for an exponential
                rate = 1e-9 * n * r * (8 * d + 36) / own
                lines.append(
                    f"| {n} | {d} | {r} | {np.dtype(dtype)} | {1e3 * peer:.1f} | {1e3 * own:.2f} "
                    f"| {statistics.median(ratios):.1f} | {min(ratios):.1f} "
                    f"| {rate:.1f} | {1e-9 * X.nbytes / own:.1f} |"
                )
    lines += [
        "",
        f"Limits measured in the same run, one thread: {limit:.0f} GFLOP/s (matrix product), "
        f"{bandwidth:.0f} GB/s (summing an array). The pass is bound by arithmetic: fused "
        "multiply-adds, and the exponentials; reading the rows takes about a fifth of it.",
        "",
        *passes(),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    print(run(parser.parse_args().repeats))


if __name__ == "__main__":
    main()
