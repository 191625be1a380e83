"""The estimator behind `component_moments`: means from moments, then sums that read the rest."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ConvergenceWarning, RankBoundError
from tensoralg.core.monomials import number_of_monomials
from tensoralg.mixtures.automatic import with_detected
from tensoralg.mixtures.dask_rows import DaskRows
from tensoralg.mixtures.delete_block import Refit
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import (
    Mixture,
    Settings,
    accumulate,
    closed_form,
    starts_from_values,
)
from tensoralg.mixtures.functions import probe
from tensoralg.mixtures.moment_noise import ERROR_LIMIT, MISFIT_LIMIT, largest_deviation, mean_error
from tensoralg.mixtures.moments_only import note_constant, observed_rows, one_if_constant
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.read_out_sums import ReadOutSums, read_out
from tensoralg.mixtures.rows import ColumnSummary, RowSource
from tensoralg.mixtures.split_moments import scrambled
from tensoralg.mixtures.validation import all_bounds, check_enough_rows, check_spread

__all__ = ["Found", "ProductEstimate", "judge", "located", "monomial_degree", "sums_of_rows"]

Array = NDArray[np.float64]

_MOST_MONOMIALS = 256  # of degree 2; more cost more than they give
_MOST_COLUMNS = 1024
_ROWS_PER_MONOMIAL = 50  # with 20 the two degrees are equally noisy


def located(
    source: RowSource, settings: Settings, diagnostics: FitDiagnostics
) -> tuple[ColumnSummary, Mixture, Settings]:
    """Find weights and means in standardised columns, from moments over distinct columns."""
    summary, accumulator, dtype = accumulate(source, settings, moments=True)
    d = len(summary.mean)
    check_enough_rows(summary.rows, "auto" if settings.automatic else settings.n_components)
    check_spread(summary.spread, dtype)
    note_constant(summary.constant, diagnostics)
    if accumulator is None:
        raise ValueError(
            f"X has {d} columns: their moments of order {settings.order} are too many. Take fewer "
            "columns, or fit a DiagonalGaussianMixture with polish=None, which reads means and "
            "variances out of many columns"
        )
    settings = with_detected(accumulator, summary.constant, settings, diagnostics)
    settings = one_if_constant(summary.constant, settings)
    columns = np.flatnonzero(~summary.constant)
    if settings.n_components == 1:
        one = closed_form(len(columns), settings.floor, np.zeros(len(columns), dtype=bool))
        return summary, one, settings
    distinct = source.count_distinct(settings.n_components)
    if distinct < settings.n_components:
        raise ValueError(
            f"X has {distinct} distinct rows, fewer than n_components={settings.n_components}"
        )
    values = accumulator.homogenised()
    # as if a polish followed: too many components are refused here, and variances do not count
    starts = starts_from_values(values, d, columns, replace(settings, polish=True), diagnostics)
    if not starts:
        bounds = ", ".join(f"{k} {v}" for k, v in all_bounds(len(columns), settings.order).items())
        raise RankBoundError(
            f"the moments of order {settings.order} of {len(columns)} columns do not determine "
            f"n_components={settings.n_components} (bounds: {bounds})"
        )
    best = starts[0]
    # with missing cells the moments are about the first chunk's mean
    offset = (np.asarray(accumulator.shift) - summary.mean) / summary.scale
    means = best.means + offset
    active = Mixture(best.weights, means[:, columns], best.variances[:, columns])
    return summary, active, settings


def monomial_degree(dimension: int, rows: float, rank: int) -> int:
    """Choose the degree of the monomials: 2 where there are few, which lowers the noise."""
    if dimension > _MOST_COLUMNS:
        raise ValueError(f"X has {dimension} columns; at most {_MOST_COLUMNS} are read out")
    of_degree_two = number_of_monomials(dimension, 2)
    few = of_degree_two <= _MOST_MONOMIALS and rows >= _ROWS_PER_MONOMIAL * of_degree_two
    degree = 2 if dimension > 2 and rank > 1 and (few or rank > dimension) else 1
    room = number_of_monomials(dimension - 1, degree)
    if rank > room:
        raise RankBoundError(
            f"n_components={rank}: the monomials of all columns but one tell at most {room} "
            f"components apart, as X has {dimension} columns"
        )
    return degree


def sums_of_rows(source: RowSource, template: ReadOutSums, blocks: int) -> list[ReadOutSums]:
    """Sum over the rows, dealt to blocks; those blocks that have seen rows."""
    found: list[ReadOutSums] | None
    if isinstance(source, DaskRows):
        source.first(partial(_try, template))
        found = source.reduce(partial(_sums_of_chunk, template, blocks), _both)
    else:
        found = None
        for number, (X, weights) in enumerate(source()):
            if found is None:
                _try(template, number, X, weights)
            new = _sums_of_chunk(template, blocks, number, X, weights)
            found = new if found is None else _both(found, new)
    assert found is not None
    return [part for part in found if part.count]


def _try(template: ReadOutSums, number: int, X: Any, weights: Any) -> bool:
    probe(template.functions, template.filled(X))
    return True


def _sums_of_chunk(
    template: ReadOutSums, blocks: int, number: int, X: Any, weights: Any
) -> list[ReadOutSums]:
    parts = [template.rebased() for _ in range(blocks)]
    place = scrambled(number << 40, len(X), blocks)
    for k, part in enumerate(parts):
        mine = place == k
        if mine.any():
            part.update(X[mine], None if weights is None else weights[mine])
    return parts


def _both(left: list[ReadOutSums], right: list[ReadOutSums]) -> list[ReadOutSums]:
    # results of tasks stay as they are: a task may run again
    return [one.rebased().merge(two) for one, two in zip(left, right, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Estimates in standardised columns, or their standard errors.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means, variances : ndarray of shape (r, d)
    moments : ndarray of shape (k, r, d)
        Of the functions that were asked for, in their own units.
    """

    weights: Array
    means: Array
    variances: Array
    moments: Array


@dataclass(frozen=True, slots=True, eq=False)
class ProductEstimate:
    """The whole estimator near a start, as a function of sums.

    Attributes
    ----------
    refit : Refit
        Finds weights and means again.
    n_components : int
        Number r of components.
    """

    refit: Refit
    n_components: int

    def means(self, sums: ReadOutSums) -> tuple[Array, Array]:
        """Weights and, in all columns, means."""
        r, columns = self.n_components, self.refit.columns
        vector = self.refit(sums)
        means = np.zeros((r, sums.dimension))
        means[:, columns] = vector[r : r + r * len(columns)].reshape(r, -1)
        return vector[:r], means

    def __call__(self, sums: ReadOutSums) -> Array:
        """All estimates in one vector."""
        weights, means = self.means(sums)
        moments, _ = read_out(sums, means)
        variances = moments[1] - moments[0] ** 2
        parts = (weights, means, variances, moments[2:])
        return np.concatenate([part.ravel() for part in parts])

    def noise(self, sums: ReadOutSums) -> float:
        """Largest relative error that noise leaves on a weight, about."""
        _, noise = read_out(sums, self.means(sums)[1])
        return float(np.sqrt(noise.max() / observed_rows(sums)))

    def split(self, vector: Array, dimension: int) -> Found:
        """Undo the concatenation."""
        r = self.n_components
        weights, rest = vector[:r], vector[r:].reshape(-1, r, dimension)
        return Found(weights, rest[0], rest[1], rest[2:])


def judge(
    sums: ReadOutSums,
    found: Found,
    noise: float,
    columns: NDArray[np.int64],
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> None:
    """Compare the estimate with the moments it came from, and say how far it can be trusted."""
    r, m = settings.n_components, settings.order
    if r == 1:
        diagnostics.start = diagnostics.status = "closed form"
        diagnostics.message = "one component: averages over all rows"
        return
    rows = observed_rows(sums)
    parameters = (found.weights, found.means, np.maximum(found.variances, settings.floor))
    values = sums.homogenised()
    diagnostics.moment_misfit = largest_deviation(
        values, m, columns, *parameters, rows, repeated=False
    )
    diagnostics.mean_error = mean_error(m, columns, *parameters, rows)
    diagnostics.status = "moments only"
    diagnostics.message = (
        f"weights and means match the moments over distinct columns up to order {m}; other "
        f"moments by monomials of degree {sums.degree}"
    )
    if diagnostics.moment_misfit > MISFIT_LIMIT:
        diagnostics.status = "misfit"
        diagnostics.message = (
            f"no mixture of {r} product distributions was found that explains the moments: one of "
            f"them is off by {diagnostics.moment_misfit:.3g} standard errors. Columns may depend "
            "on each other inside components, or n_components be too small"
        )
    elif not max(diagnostics.mean_error, noise) <= ERROR_LIMIT:
        diagnostics.status = "undetermined"
        diagnostics.message = (
            f"the moments leave {r} components open: the error of a mean is about "
            f"{diagnostics.mean_error:.2g} standard deviations, that of a weight {noise:.2g} of "
            "it. Take more rows, or fewer components"
        )
    if diagnostics.status != "moments only":
        warn(diagnostics.message, ConvergenceWarning)
