"""What dirt, missing cells and many components cost: errors of the means over those of clean rows.

``python -m benchmarks.dirty_data [--seeds 10]``. Data seeds start at 5000; none was used while the
code was written. Means ~ sep N(0, I), variances ~ U(.3, 1.5), weights ~ Dirichlet(5).

Dirt is drawn at 40 standard deviations: rows replaced by N(0, 40^2), a cluster at (40, .., 40),
or single cells replaced by N(0, 40^2). Its fits have ``robust=True``, those of missing cells
``missing=True``, and nothing else differs from the fit of the same rows when they are clean and
complete. For comparison, the plain fit and scikit-learn's, k-means++ with ten restarts, of rows
with .5% of far rows.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from benchmarks.mixtures import Case, draw, mean_error
from tensoralg.mixtures import DiagonalGaussianMixture

FIRST_SEED = 5000
FAR = 40.0
CASES = (
    Case(15, 6, 3, 200_000, 0.5),
    Case(15, 10, 4, 60_000, 0.8),
    Case(10, 4, 3, 50_000, 1.0),
    Case(20, 8, 3, 20_000, 0.7),
    Case(3, 2, 3, 5_000, 1.5),
)
KINDS = (
    ("rows", 0.005),
    ("rows", 0.05),
    ("cluster", 0.05),
    ("cells", 0.005),
    ("cells", 0.05),
    ("missing", 0.25),
)


def soiled(X: Any, kind: str, share: float, seed: int) -> Any:
    """Rows with dirt, or with missing cells."""
    rng = np.random.default_rng(seed + 1_000_000)
    X = X.copy()
    n, d = X.shape
    if kind in ("cells", "missing"):
        at = rng.random((n, d)) < share
        X[at] = np.nan if kind == "missing" else FAR * rng.standard_normal(int(at.sum()))
    else:
        rows = rng.random(n) < share
        noise = rng.standard_normal((int(rows.sum()), d))
        X[rows] = FAR + noise if kind == "cluster" else FAR * noise
    return X


def error(case: Case, X: Any, means: Any, seed: int, **options: Any) -> float:
    """Relative error of the means of one fit; infinite where components are missing."""
    model = DiagonalGaussianMixture(
        case.components, order=case.order, random_state=seed, **options
    ).fit(X)
    if len(model.means_) < case.components:
        return np.inf
    return mean_error(model.means_, means)


def of_scikit_learn(case: Case, X: Any, means: Any, seed: int) -> float:
    """Relative error of the means of scikit-learn's fit."""
    model = GaussianMixture(
        case.components,
        covariance_type="diag",
        init_params="k-means++",
        n_init=10,
        random_state=seed,
    ).fit(X)
    return mean_error(model.means_, means)


def row(case: Case, seeds: range, polish: str | None) -> str:
    """One line: the clean error, then median and worst ratio for every kind of dirt."""
    clean, ratios = [], np.empty((len(seeds), len(KINDS)))
    plain, peer = [], []
    for i, seed in enumerate(seeds):
        X, _, means, _ = draw(case, seed)
        clean.append(error(case, X, means, seed, polish=polish))
        for k, (kind, share) in enumerate(KINDS):
            options = {"missing": True} if kind == "missing" else {"robust": True}
            dirty = soiled(X, kind, share, seed)
            ratios[i, k] = error(case, dirty, means, seed, polish=polish, **options) / clean[-1]
        if polish and i < 2:
            dirty = soiled(X, *KINDS[0], seed)
            plain.append(error(case, dirty, means, seed) / clean[-1])
            peer.append(of_scikit_learn(case, dirty, means, seed) / clean[-1])
    cells = [f"{np.median(r):.2f}, {r.max():.2f}" for r in ratios.T]
    others = [f"{np.median(r):.1f}" if r else "" for r in (plain, peer)]
    fit = "moments, then EM" if polish else "moments only"
    return f"| {case} | {fit} | {np.median(clean):.4f} | {' | '.join([*cells, *others])} |"


def run(n_seeds: int = 10) -> str:
    """Return the table."""
    seeds = range(FIRST_SEED, FIRST_SEED + n_seeds)
    names = [f"{share:.1%} {kind}" for kind, share in KINDS]
    lines = [
        f"Median and worst ratio over {n_seeds} seeds; the last two columns: medians of two seeds.",
        "",
        f"| case | fit | clean error | {' | '.join(names)} | 0.5% rows, plain fit | "
        "0.5% rows, scikit-learn |",
        "|" + "---|" * (len(KINDS) + 5),
    ]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            for polish in ("em", None):
                lines.append(row(case, seeds, polish))
                print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    print(run(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
