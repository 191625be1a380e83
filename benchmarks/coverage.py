"""Do nominal 95% intervals hold the truth 95% of the time, and is the moment test of its size?

    python -m benchmarks.coverage --fits 200

One mixture, samples that no other part of the project draws (seeds from 7000). Every fit gives an
interval, estimate plus and minus 1.96 standard errors, for each weight, mean and variance. Wanted
is a share of intervals that hold the true value between 92% and 98%, for every kind of parameter.
The moment test is run on the same fits, then on samples in which two columns are correlated.
"""

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tensoralg.mixtures import DiagonalGaussianMixture
from tensoralg.studies.generation import MixtureParameters
from tensoralg.studies.recovery import match_components

DIMENSION, COMPONENTS, ROWS, SEPARATION = 8, 3, 20_000, 0.8
FIRST_SEED = 7000
FITS = 500
WORKERS = 2
CORRELATION = 0.15
LOWEST, HIGHEST = 0.92, 0.98
NAMES = ("weights", "means", "covariances")


def known_mixture() -> DiagonalGaussianMixture:
    """The mixture of all samples."""
    rng = np.random.default_rng(FIRST_SEED)
    return DiagonalGaussianMixture.from_parameters(
        np.arange(4.0, 4.0 + COMPONENTS) / np.arange(4.0, 4.0 + COMPONENTS).sum(),
        SEPARATION * rng.standard_normal((COMPONENTS, DIMENSION)),
        rng.uniform(0.3, 1.5, (COMPONENTS, DIMENSION)),
    )


def correlated(X: Any, labels: Any, truth: DiagonalGaussianMixture, seed: int) -> Any:
    """Give the first two columns a correlation inside every component; variances stay."""
    factor = np.random.default_rng([seed, 1]).standard_normal(len(X))
    result = X.copy()
    for j in range(2):
        deviation = np.sqrt(truth.covariances_[labels, j])
        inside = (X[:, j] - truth.means_[labels, j]) * np.sqrt(1.0 - CORRELATION)
        result[:, j] = truth.means_[labels, j] + inside
        result[:, j] += deviation * np.sqrt(CORRELATION) * factor
    return result


def one_fit(seed: int, polish: str | None) -> tuple[list[Any], float, float]:
    """Which intervals hold the truth, and both p-values."""
    truth = known_mixture()
    X, labels = truth.sample(ROWS, random_state=seed)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DiagonalGaussianMixture(COMPONENTS, polish=polish, random_state=seed).fit(X)
        errors = model.standard_errors(X)
        p_value = model.moment_test(X).p_value
        wrong = correlated(X, labels, truth, seed)
        model_wrong = DiagonalGaussianMixture(COMPONENTS, polish=polish, random_state=seed)
        p_wrong = model_wrong.fit(wrong).moment_test(wrong).p_value
    _, order = match_components(
        *(MixtureParameters(m.weights_, m.means_, m.covariances_) for m in (truth, model))
    )
    gaps = [getattr(model, f"{n}_")[order] - getattr(truth, f"{n}_") for n in NAMES]
    widths = [1.96 * getattr(errors, n)[order] for n in NAMES]
    inside = [np.abs(g) <= w for g, w in zip(gaps, widths, strict=True)]
    return inside, p_value, p_wrong


def measure(polish: str | None, fits: int) -> tuple[list[str], str]:
    """Rows of both tables for one estimator."""
    with ProcessPoolExecutor(WORKERS) as pool:
        seeds = range(FIRST_SEED + 1, FIRST_SEED + 1 + fits)
        found = list(pool.map(partial(one_fit, polish=polish), seeds, chunksize=10))
    kind = "moments + EM" if polish else "moments only"
    rows = []
    for k, name in enumerate(("weights", "means", "variances")):
        inside = np.array([f[0][k] for f in found])
        share, single = inside.mean(), inside.mean(axis=0)
        rows.append(
            f"| {kind} | {name} | {100 * share:.1f}% | {100 * single.min():.1f}% .. "
            f"{100 * single.max():.1f}% | {'yes' if LOWEST <= share <= HIGHEST else 'NO'} |"
        )
    sizes = [np.mean([f[1] < level for f in found]) for level in (0.05, 0.01)]
    power = np.mean([f[2] < 0.05 for f in found])
    return rows, f"| {kind} | {sizes[0]:.3f} | {sizes[1]:.3f} | {power:.3f} |"


def run(fits: int = FITS) -> str:
    """Measure everything and return the Markdown report."""
    results = [measure(polish, fits) for polish in ("em", None)]
    return "\n".join(
        [
            f"{fits} samples of {ROWS:,} rows of one mixture, d={DIMENSION}, r={COMPONENTS}, "
            f"means {SEPARATION:g} standard normals.",
            "",
            "| estimator | intervals of | hold the truth | single parameters | 92% to 98% |",
            "|---|---|---|---|---|",
            *(row for rows, _ in results for row in rows),
            "",
            "| estimator | moment test rejects at .05 | at .01 "
            f"| at .05, two columns correlated by {CORRELATION:g} |",
            "|---|---|---|---|",
            *(row for _, row in results),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=FITS)
    print(run(parser.parse_args().fits))


if __name__ == "__main__":
    main()
