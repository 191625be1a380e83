"""Maximum likelihood from the best of several starts."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.rows import Chunk, RowSource
from tensoralg.solvers.expectation_maximization import (
    EMResult,
    expectation_maximization,
)
from tensoralg.solvers.expectation_starts import several_initial_parameters

__all__ = [
    "best_start",
    "clustered_starts",
    "collapsed",
    "lifted",
    "polish",
    "sample_rows",
    "settled",
]

Array = NDArray[Any]
_SAMPLE = 20_000  # rows on which starts are compared
_TRIAL_STEPS = 10  # EM steps before starts are compared
_RESTARTS = 10  # k-means++ restarts where moments cannot start
_LEAST_VARIANCE = 0.01  # of a start, relative to the column's: less is a trap for EM
_SAME = 1e-3  # starts closer than this (relative) are one


def sample_rows(source: RowSource, rng: np.random.Generator, size: int = _SAMPLE) -> Chunk:
    """Draw distinct rows uniformly in one pass over the data; all of them when there are few.

    Parameters
    ----------
    source : RowSource
        The rows.
    rng : Generator
        Source of the draw.
    size : int
        How many rows at most.

    Returns
    -------
    X : ndarray of shape (n, d)
    sample_weight : ndarray of shape (n,) or None
    """
    # a stream of its own: later draws must not depend on how many rows there are
    (draw,) = rng.spawn(1)
    sample = source.sample(draw, size)
    if sample is None:
        raise ValueError(
            "X gave rows when it was read first and none later; pass a list of chunks, or an "
            "iterator that can be read once only"
        )
    return sample


def clustered_starts(
    sample: Chunk, shift: Array, scale: Array, settings: Settings, n_starts: int = _RESTARTS
) -> list[Mixture]:
    """Draw starts by k-means++ and a few k-means steps on a sample of the rows."""
    X, weights = sample
    found = several_initial_parameters(
        X,
        settings.n_components,
        n_starts,
        sample_weight=weights,
        rng=settings.rng,
        floor=max(settings.floor, 1e-12),
        shift=shift,
        scale=scale,
    )
    return [Mixture(*start) for start in found]


def _run(
    chunks: Callable[[], Any],
    start: Mixture,
    shift: Array,
    scale: Array,
    settings: Settings,
    max_iter: int,
) -> EMResult:
    return expectation_maximization(
        chunks,
        start.weights,
        start.means,
        start.variances,
        shift=shift,
        scale=scale,
        tol=settings.tol,
        max_iter=max_iter,
        floor=max(settings.floor, 1e-12),
        missing=settings.missing,
    )


def _distinct(starts: list[Mixture]) -> list[Mixture]:
    """Drop starts that another one repeats, up to the order of the components."""
    kept: list[Mixture] = []
    for start in starts:
        for other in kept:
            distance = np.abs(start.means[:, None] - other.means[None]).max(axis=2)
            near = distance.min(axis=1).max()
            if start.means.shape == other.means.shape and near <= _SAME:
                break
        else:
            kept.append(start)
    return kept


def best_start(
    candidates: dict[str, list[Mixture]],
    sample: Chunk,
    shift: Array,
    scale: Array,
    settings: Settings,
    constant: NDArray[np.bool_],
    diagnostics: FitDiagnostics,
    *,
    thorough: bool = False,
) -> Mixture:
    """Compare starts by their likelihood after a few EM steps on a sample of the rows.

    Starts that lead to a variance at the floor come last: their likelihood is spurious.

    Parameters
    ----------
    candidates : dict of list of Mixture
        Starts by kind.
    sample : (X, sample_weight)
        Rows to compare on.
    shift, scale : ndarray of shape (d,)
        Standardisation.
    settings : Settings
        Tolerances.
    constant : ndarray of bool, shape (d,)
        Columns that are at the floor anyway.
    diagnostics : FitDiagnostics
        Gets the kind of the winner and the likelihoods.
    thorough : bool, default False
        Compare after as many steps as the settings allow.

    Returns
    -------
    Mixture
        The winner after its trial steps.
    """
    best: tuple[int, float, str, Mixture] | None = None
    steps = settings.max_iter if thorough else _TRIAL_STEPS
    for kind, starts in candidates.items():
        for start in _distinct(starts):
            result = _run(lambda: [sample], start, shift, scale, settings, steps)
            failed, likelihood = collapsed(result, constant, settings), result.log_likelihood
            before = diagnostics.start_log_likelihoods.get(kind, -np.inf)
            diagnostics.start_log_likelihoods[kind] = max(before, likelihood)
            # a tie up to the tolerance goes to the start that came first
            if (
                best is None
                or failed < best[0]
                or (failed == best[0] and likelihood > best[1] + settings.tol)
            ):
                found = Mixture(result.weights, result.means, result.covariances)
                best = (failed, likelihood, kind, found)
    assert best is not None
    diagnostics.start = best[2]
    return best[3]


def polish(
    source: RowSource, start: Mixture, shift: Array, scale: Array, settings: Settings
) -> EMResult:
    """Run EM over all rows from one start."""
    return _run(source, start, shift, scale, settings, settings.max_iter)


def collapsed(result: EMResult, constant: NDArray[np.bool_], settings: Settings) -> int:
    """Count the components that are gone or have a variance at the floor."""
    floored = int(result.floored[:, ~constant].any(axis=1).sum())
    return floored + settings.n_components - len(result.weights)


def lifted(start: Mixture, constant: NDArray[np.bool_]) -> Mixture:
    """Raise the smallest variances of a start: EM shrinks them quickly where the data do."""
    raised = np.maximum(start.variances, _LEAST_VARIANCE)
    return Mixture(start.weights, start.means, np.where(constant, start.variances, raised))


def settled(result: EMResult) -> tuple[Mixture, NDArray[np.int64]]:
    """Merge components that are the same Gaussian, and sort by weight.

    Parameters
    ----------
    result : EMResult
        What EM found.

    Returns
    -------
    Mixture
        The largest weight first.
    ndarray of int
        Where each component of EM's start went; -1 for those that EM removed.
    """
    weights, means, variances = result.weights.copy(), result.means, result.covariances
    kept: list[int] = []
    into = np.arange(len(weights))
    for s in range(len(weights)):
        for t in kept:
            spread = np.sqrt(np.minimum(variances[s], variances[t]))
            near = np.abs(means[s] - means[t]) <= 1e-6 * spread
            alike = np.abs(np.log(variances[s] / variances[t])) <= 1e-6
            if near.all() and alike.all():
                weights[t] += weights[s]
                into[s] = t
                break
        else:
            kept.append(s)
    order = np.array(kept)[np.argsort(-weights[kept], kind="stable")]
    rank = np.full(len(weights), -1)
    rank[order] = np.arange(len(order))
    place = np.full(max([*result.restarted, int(result.kept.max())]) + 1, -1)
    place[result.kept] = rank[into]
    return Mixture(weights[order], means[order], variances[order]), place
