"""Many columns: where the moments are too many, the three-block read-out takes their place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tensoralg.core.errors import RankBoundError
from tensoralg.mixtures.bounds import counting_bound
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.rows import ColumnSummary, RowSource
from tensoralg.solvers.block_read_out import BlockReadOut, block_bound, block_read_out

__all__ = ["read_out_starts"]

Array = NDArray[Any]

_LEAST_WEIGHT = 0.1  # of a start, in units of 1 / r
_LEAST_VARIANCE = 0.05  # of a start, in units of the column's


def read_out_starts(
    source: RowSource, summary: ColumnSummary, settings: Settings, diagnostics: FitDiagnostics
) -> list[Mixture]:
    """Find a start by the three-block read-out.

    Parameters
    ----------
    source : RowSource
        Checked rows that can be read again.
    summary : ColumnSummary
        Their means and variances.
    settings : Settings
        What the estimator was told.
    diagnostics : FitDiagnostics
        Filled with what happened.

    Returns
    -------
    list of Mixture
        One start in standardised coordinates; none where there are too many components and a
        polish follows.

    Raises
    ------
    RankBoundError
        More components than the blocks determine, and no polish.
    ValueError
        Rows that can be read only once.
    """
    if not source.again:
        raise ValueError(
            f"X can be read only once and has {len(summary.mean)} columns: the moments of order "
            f"up to {settings.order} for n_components={settings.n_components} are too many for "
            "memory, and the read-out for many columns needs several passes. Pass an array, a "
            "list of chunks, or an object whose iterator can be made anew"
        )
    columns = np.flatnonzero(~summary.constant)
    r, d = settings.n_components, len(columns)
    bound = block_bound(d)
    diagnostics.order, diagnostics.form = 3, "blocks"
    diagnostics.bounds = {"blocks": bound, "counting": counting_bound(d, 3)}
    if r > bound:
        diagnostics.message = (
            f"the moments of {len(summary.mean)} columns are too many, and three blocks of the "
            f"{d} that vary determine at most {bound} components, fewer than n_components={r}"
        )
        if settings.polish:
            return []
        raise RankBoundError(diagnostics.message + ". Use polish='em', which needs no such bound")
    with threadpool_limits(limits=1, user_api="blas"):
        found = block_read_out(
            source,
            r,
            shift=summary.mean,
            scale=summary.scale,
            columns=columns,
            missing=settings.missing,
            rng=settings.rng,
        )
    diagnostics.start = "block read-out"
    diagnostics.singular_values = found.singular_values.tolist()
    diagnostics.complex_pairs = found.n_complex
    diagnostics.negative_weights = int((found.weights < 0).sum())
    diagnostics.moment_misfit = found.misfit
    diagnostics.mean_error = found.mean_error
    diagnostics.splits = 1
    if not settings.polish:
        diagnostics.message = (
            f"parameters from the read-out of three blocks of columns, {found.n_passes} passes "
            "over moments of order 3; no likelihood was maximised"
        )
    if not np.isfinite(found.means).all():
        diagnostics.message = "the read-out gave no finite means"
        return []
    return [_feasible(found, columns, settings)]


def _feasible(found: BlockReadOut, columns: NDArray[np.int64], settings: Settings) -> Mixture:
    """Make estimates a mixture whose columns have variance 1: noise takes them out of it."""
    r = settings.n_components
    weights = np.maximum(found.weights, _LEAST_WEIGHT / r)
    weights = weights / weights.sum()
    # w mu^2 <= 1 and w var <= 1
    largest = 1.0 / weights[:, None]
    means = np.clip(found.means, -np.sqrt(largest), np.sqrt(largest))
    variances = np.full(means.shape, max(settings.floor, 1e-12))
    spread = np.clip(found.second_moments - means**2, _LEAST_VARIANCE, largest)
    variances[:, columns] = np.maximum(spread[:, columns], settings.floor)
    return Mixture(weights, means, variances)
