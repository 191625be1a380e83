"""Mixtures with many columns: the three-block read-out beside EM from the truth and scikit-learn.

``python -m benchmarks.large_dimension [--seeds 3] [--peer-budget 240]``. One thread, CPU seconds.
The seeds start at 7000; none of them was used while the code was written.

The errors are relative Frobenius errors of the means after matching: of the read-out alone, of
the moments alone (``polish=None``: the read-out and least squares over implicit moments after it),
of the whole fit with its defaults, and of EM started at the truth, the statistical limit. "Said"
is the standard error of the worst component that ``diagnostics_.mean_error`` reports without a
polish, over the one that was made. Memory is the growth of the process's largest resident size
during the whole fit, the rows themselves excluded. scikit-learn's EM runs where a few of its
iterations are affordable: with its defaults, and with k-means++ starts until one comes within 1e-3
per row of the likelihood of EM from the truth or a budget is spent.
"""

import argparse
import resource
import time
import warnings
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from benchmarks.mixtures import NEAR, Case, TimedGaussianMixture, from_truth, mean_error
from tensoralg.mixtures import DiagonalGaussianMixture
from tensoralg.mixtures.rows import summarise
from tensoralg.solvers.block_read_out import block_read_out

FIRST_SEED = 7000
CASES = (
    Case(400, 8, 3, 50_000, 0.5),
    Case(400, 20, 3, 50_000, 0.3),
    Case(250, 30, 3, 50_000, 0.5),
    Case(2000, 10, 3, 100_000, 0.5),
)
_PEER_CELLS = 5e7  # entries of X beyond which scikit-learn is left out


def draw(case: Case, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rows and truth as in `benchmarks.mixtures`, row by row in place: one array of that size."""
    rng = np.random.default_rng(seed)
    r, d = case.components, case.dimension
    means = case.separation * rng.standard_normal((r, d))
    variances = rng.uniform(0.3, 1.5, (r, d))
    weights = rng.dirichlet(np.full(r, 5.0))
    labels = rng.choice(r, case.samples, p=weights)
    X = np.empty((case.samples, d))
    for begin in range(0, case.samples, 1000):
        rows = slice(begin, begin + 1000)
        rng.standard_normal(out=X[rows])
        X[rows] *= np.sqrt(variances[labels[rows]])
        X[rows] += means[labels[rows]]
    return X, weights, means, variances


def peak() -> float:
    """Largest resident size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(X: Any, case: Case, seed: int, **options: Any) -> tuple[Any, float]:
    """Fit and its CPU seconds."""
    begin = time.process_time()
    model = DiagonalGaussianMixture(case.components, random_state=seed, **options).fit(X)
    return model, time.process_time() - begin


def read_out(X: Any, case: Case, seed: int) -> tuple[Any, float]:
    """Means by the read-out of three blocks alone, and its CPU seconds with those of the scale."""
    begin = time.process_time()
    summary = summarise(X)
    found = block_read_out(
        lambda: [(X, None)], case.components, shift=summary.mean, scale=summary.scale, rng=seed
    )
    return summary.mean + summary.scale * found.means, time.process_time() - begin


def said(X: Any, model: Any, means: Any) -> float:
    """Standard error of the worst component as the fit reports it, over the one it made."""
    scale = X.std(axis=0)
    distance = np.array([(((m - model.means_) / scale) ** 2).mean(axis=1) for m in means])
    worst = float(np.sqrt(distance[linear_sum_assignment(distance)].max()))
    return float(model.diagnostics_.mean_error) / worst


def beside(X: Any, case: Case, seed: int, target: float, budget: float) -> str:
    """scikit-learn: whether its default reaches the target, and seconds of k-means++ starts."""
    if X.size > _PEER_CELLS:
        return "left out | left out"
    begin = time.process_time()
    default = GaussianMixture(case.components, covariance_type="diag", random_state=seed).fit(X)
    seconds = time.process_time() - begin
    word = "reaches it" if default.score(X) >= target - NEAR else "misses it"
    race = TimedGaussianMixture(
        case.components,
        covariance_type="diag",
        tol=1e-6,
        max_iter=500,
        n_init=1000,
        init_params="k-means++",
        random_state=seed,
    ).race(X, target - NEAR, budget)
    spent = f"{race.first:.0f}" if np.isfinite(race.first) else f"not in {budget:.0f}"
    return f"{word}, {seconds:.0f} | {spent}"


def row(case: Case, seed: int, budget: float) -> str:
    """One fit of one seed."""
    X, weights, means, variances = draw(case, seed)
    before = peak()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, seconds = timed(X, case, seed)
        grown = peak() - before
        first, first_seconds = read_out(X, case, seed)
        alone, alone_seconds = timed(X, case, seed, polish=None)
        limit = from_truth(X, weights, means, variances)
        target = float(limit.score(X))
        peer = beside(X, case, seed, target, budget)
    found = (first, alone.means_, model.means_, limit.means_)
    errors = " | ".join(f"{mean_error(m, means):.4f}" for m in found)
    return (
        f"| {case} | {seed} | {errors} | {said(X, alone, means):.2f} | "
        f"{float(model.score(X)) - target:+.1e} | {model.diagnostics_.start} | {model.n_iter_} | "
        f"{first_seconds:.1f} | {alone_seconds:.1f} | {seconds:.1f} | {grown:.2f} | {peer} |"
    )


def run(n_seeds: int = 3, budget: float = 240.0) -> str:
    """Build the table as Markdown."""
    with threadpool_limits(1):
        warm_up, *_ = draw(Case(200, 2, 3, 2000, 1.0), 0)
        timed(warm_up, Case(200, 2, 3, 2000, 1.0), 0)  # compiles the kernels
        rows = [
            row(case, seed, budget)
            for case in CASES
            for seed in range(FIRST_SEED, FIRST_SEED + n_seeds)
        ]
    return "\n".join(
        [
            "## Mixtures with many columns: relative error of the means",
            "",
            "| case | seed | read-out alone | moments alone | whole fit | EM from the truth | "
            "said | likelihood per row, less that of EM from the truth | start | EM steps | "
            "CPU s, read-out | CPU s, moments alone | CPU s, fit | "
            "memory beyond the rows, GiB | sklearn default: likelihood, CPU s | "
            "sklearn k-means++ starts, CPU s to the likelihood |",
            "|" + "---|" * 16,
            *rows,
            "",
        ]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-budget", type=float, default=240.0)
    chosen = parser.parse_args()
    print(run(chosen.seeds, chosen.peer_budget))


if __name__ == "__main__":
    main()
