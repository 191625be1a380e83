"""Moments that grow batch by batch, in memory or where the chunks of a Dask array are."""

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.cell_limits import CellLimits
from tensoralg.mixtures.dask_rows import DaskRows
from tensoralg.mixtures.fitting import Settings
from tensoralg.mixtures.moment_count import check_moments_fit
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.rows import RowSource, summarise
from tensoralg.mixtures.split_moments import SplitMomentAccumulator
from tensoralg.mixtures.validation import check_spread

__all__ = ["fitting_limits", "with_rows"]

Array = NDArray[Any]


def with_rows(
    accumulator: MomentAccumulator | None, source: RowSource, settings: Settings
) -> tuple[MomentAccumulator, np.dtype[Any]]:
    """Add rows to the moments seen so far.

    Parameters
    ----------
    accumulator : MomentAccumulator or None
        The moments; it stays as it is. None where these rows are the first.
    source : RowSource
        Checked rows.
    settings : Settings
        Order, form, and whether cells may be missing, for a first batch.

    Returns
    -------
    MomentAccumulator
        A new one. The first batch decides its origin and its unit; on Dask its first chunk does.
    dtype
        Of the rows; float64 where there are none.

    Raises
    ------
    ValueError
        No rows in a first batch.
    """
    if isinstance(source, DaskRows):
        first = source.first(partial(_empty_like, accumulator, settings))
        if first is None:
            return _kept(accumulator), np.dtype(np.float64)
        empty, dtype = first
        sums = source.reduce(partial(_sums_of, empty), _both)
        return sums if accumulator is None else copy(accumulator).merge(sums), dtype
    dtype = np.dtype(np.float64)
    result = accumulator
    for number, (X, weights) in enumerate(source()):
        if result is None:
            result, dtype = _empty_like(None, settings, number, X, weights)
        elif result is accumulator:
            # an update replaces the sums: the copy leaves those of the last fit alone
            result, dtype = copy(accumulator), X.dtype
        result.update(X, sample_weight=weights)
    return _kept(result), dtype


def fitting_limits(
    accumulator: MomentAccumulator, limits: CellLimits | None, *, missing: bool
) -> CellLimits | None:
    """Bring limits of far cells in line with the moments seen so far.

    Parameters
    ----------
    accumulator : MomentAccumulator
        The moments.
    limits : CellLimits or None
        Of the rows to add.
    missing : bool
        Whether cells of these rows may be missing.

    Returns
    -------
    CellLimits or None
        Where the moments cannot leave out single cells, limits that leave out whole rows.

    Raises
    ------
    ValueError
        Cells may be missing now, but the moments were begun without that.
    """
    if accumulator.missing:
        return limits
    if missing:
        raise ValueError(
            "missing=True, but the moments so far were begun with missing=False, which cannot "
            "take up missing cells: begin anew with another estimator"
        )
    return limits and replace(limits, cells=False)


def _kept(accumulator: MomentAccumulator | None) -> MomentAccumulator:
    if accumulator is None:
        raise ValueError("X has no row of positive weight with data; the first batch needs some")
    return accumulator


def _empty_like(
    accumulator: MomentAccumulator | None,
    settings: Settings,
    number: int,
    X: Array,
    weights: Array | None,
) -> tuple[MomentAccumulator, np.dtype[Any]]:
    """Make an accumulator without rows, with the origin and unit of another one or of the rows."""
    if accumulator is None:
        check_moments_fit(X.shape[1], settings.order)
        first = summarise(X, weights)
        check_spread(first.spread, X.dtype)
        kind = SplitMomentAccumulator if settings.automatic else MomentAccumulator
        shift, scale = first.mean, first.scale
        powers, missing, order = settings.form == "power", settings.missing, settings.order
    else:
        kind = type(accumulator)
        shift, scale = np.asarray(accumulator.shift), accumulator.scale
        powers, missing, order = accumulator.powers, accumulator.missing, accumulator.order
    made = kind(X.shape[1], order, shift=shift, scale=scale, powers=powers, missing=missing)
    return made, X.dtype


def _sums_of(
    empty: MomentAccumulator, number: int, X: Array, weights: Array | None
) -> MomentAccumulator:
    return copy(empty).update(X, sample_weight=weights)


def _both(left: MomentAccumulator, right: MomentAccumulator) -> MomentAccumulator:
    # results of tasks stay as they are: a task may run again
    return copy(left).merge(right)
