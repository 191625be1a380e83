"""From moments to parameters in the units of the data, without rows to polish on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ConvergenceWarning, RankBoundError
from tensoralg.core.indices import multi_indices, pad_multi_indices, rank_multi_indices
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.automatic import with_detected
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings, closed_form, starts_from_values
from tensoralg.mixtures.moment_noise import ERROR_LIMIT, MISFIT_LIMIT, largest_deviation, mean_error
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.validation import all_bounds, check_spread, refuse_rank

__all__ = [
    "Fitted",
    "finish_one",
    "fit_accumulator",
    "in_units",
    "judged_starts",
    "note_constant",
    "observed_rows",
    "one_if_constant",
    "unpolished",
]

Array = NDArray[Any]
_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A fitted mixture in the units of the data.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means, covariances : ndarray of shape (r, d)
    n_iter : int
        EM steps over all rows.
    converged : bool
        Whether the polish met its tolerance, or none was needed.
    lower_bound : float
        Log-likelihood per unit weight; NaN where no likelihood was computed.
    diagnostics : FitDiagnostics
        How it came about.
    """

    weights: Array
    means: Array
    covariances: Array
    n_iter: int
    converged: bool
    lower_bound: float
    diagnostics: FitDiagnostics


def in_units(
    mixture: Mixture,
    shift: Array,
    scale: Array,
    diagnostics: FitDiagnostics,
    *,
    dtype: np.dtype[Any],
    n_iter: int = 0,
    converged: bool = True,
    lower_bound: float = float("nan"),
) -> Fitted:
    """Undo the standardisation and return arrays of the data's dtype."""
    means = shift + scale * mixture.means
    # a floor below the smallest number of the dtype would round to 0
    covariances = np.maximum(scale**2 * mixture.variances, np.finfo(dtype).tiny)
    return Fitted(
        mixture.weights.astype(dtype),
        means.astype(dtype),
        covariances.astype(dtype),
        n_iter,
        converged,
        lower_bound,
        diagnostics,
    )


def finish_one(diagnostics: FitDiagnostics) -> None:
    """Say that one component needed no search."""
    diagnostics.status = diagnostics.start = "closed form"
    diagnostics.message = "one component: the mean and variance of each column"


def note_constant(constant: NDArray[np.bool_], diagnostics: FitDiagnostics) -> None:
    """Record the constant columns and warn of them."""
    diagnostics.constant_columns = np.flatnonzero(constant).tolist()
    if diagnostics.constant_columns:
        warn(
            f"columns {diagnostics.constant_columns} are constant: they take no part in the "
            "moments and get their value as mean and a variance at the floor"
        )


def judged_starts(
    values: Array,
    dimension: int,
    columns: NDArray[np.int64],
    rows: float,
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> list[Mixture]:
    """Find starts from moments and compare the best one with them.

    Parameters
    ----------
    values : ndarray of shape (C(d + m, m),)
        Homogenised moments of all columns.
    dimension : int
        Number of columns d.
    columns : ndarray of int
        The columns that vary.
    rows : float
        Number of rows that the moments average; infinity for exact moments.
    settings : Settings
        Number of components, order, form.
    diagnostics : FitDiagnostics
        Filled with what happened, the misfit included.

    Returns
    -------
    list of Mixture
        As :func:`tensoralg.mixtures.fitting.starts_from_values`.
    """
    m = settings.order
    starts = starts_from_values(values, dimension, columns, settings, diagnostics, rows)
    if starts and not np.isfinite(diagnostics.mean_error):
        best = starts[0]
        diagnostics.moment_misfit = largest_deviation(
            values, m, columns, best.weights, best.means, best.variances, rows
        )
        diagnostics.mean_error = mean_error(
            m, columns, best.weights, best.means, best.variances, rows
        )
    if not starts and len(columns):
        unknown = _unknown_product(values, columns, dimension, m)
        if unknown:
            diagnostics.message = f"no row holds all of the columns {unknown}"
    return starts


def _unknown_product(
    values: Array, columns: NDArray[np.int64], dimension: int, order: int
) -> list[int]:
    """Return the first few columns whose product no row has observed; none when all are known."""
    for q in range(2, min(order, len(columns)) + 1):
        index = multi_indices(len(columns), q)
        index = columns[index[(np.diff(index, axis=1) > 0).all(axis=1)]]
        padded = pad_multi_indices(index + 1, order)
        unknown = np.flatnonzero(np.isnan(values[rank_multi_indices(padded, dimension + 1)]))
        if len(unknown):
            return [int(j) for j in index[unknown[0]]]
    return []


def unpolished(
    starts: list[Mixture],
    shift: Array,
    scale: Array,
    settings: Settings,
    diagnostics: FitDiagnostics,
    dtype: np.dtype[Any],
) -> Fitted:
    """Return the best moment start as the fit, with a warning where it contradicts the moments."""
    if not starts:
        d = len(shift) - len(diagnostics.constant_columns)
        bounds = diagnostics.bounds or all_bounds(max(d, 1), settings.order)
        if diagnostics.message and settings.n_components <= bounds["counting"]:
            raise RankBoundError(f"the moments are incomplete: {diagnostics.message}")
        raise refuse_rank(settings.n_components, d, settings.order, bounds)
    diagnostics.status = "moments only"
    diagnostics.message = diagnostics.message or (
        f"parameters match the moments up to order {settings.order} to a relative residual of "
        f"{diagnostics.moment_residual:.2g}; no likelihood was maximised"
    )
    _doubt(settings.n_components, diagnostics)
    trusted = diagnostics.status == "moments only"
    return in_units(starts[0], shift, scale, diagnostics, dtype=dtype, converged=trusted)


def _doubt(n_components: int, diagnostics: FitDiagnostics) -> None:
    """Say so where the start contradicts the moments, or the moments leave it open."""
    advice = "Check the data, try another n_components, or fit rows with polish='em'"
    if diagnostics.moment_misfit > MISFIT_LIMIT:
        diagnostics.status = "misfit"
        diagnostics.message = (
            f"no mixture of {n_components} diagonal Gaussians was found that explains the "
            f"moments: one of them is off by {diagnostics.moment_misfit:.3g} standard errors. "
            + advice
        )
    elif diagnostics.mean_error > ERROR_LIMIT:
        diagnostics.status = "undetermined"
        diagnostics.message = (
            f"the moments do not determine a mixture of {n_components} components: a mean has a "
            f"standard error of {diagnostics.mean_error:.3g} standard deviations. Components must "
            "differ in several columns. " + advice
        )
    else:
        return
    warn(diagnostics.message, ConvergenceWarning)


def fit_accumulator(
    accumulator: MomentAccumulator,
    settings: Settings,
    diagnostics: FitDiagnostics,
    dtype: np.dtype[Any] = _DOUBLE,
) -> Fitted:
    """Fit moments alone.

    Parameters
    ----------
    accumulator : MomentAccumulator
        Moments up to at least the order of the settings.
    settings : Settings
        What the estimator was told.
    diagnostics : FitDiagnostics
        Filled on the way.
    dtype : dtype, default float64
        Of the parameters.

    Returns
    -------
    Fitted
        Parameters in the units of the data.
    """
    _check_accumulator(accumulator, settings)
    values = accumulator.homogenised()
    d, m = accumulator.dimension, accumulator.order
    mean, second = _first_two(values, m, d)
    if np.isnan(mean).any():
        raise ValueError(f"column {int(np.flatnonzero(np.isnan(mean))[0])} holds nothing but NaN")
    variance = np.maximum(second - mean**2, 0.0)
    constant = variance <= 1e-14 * np.maximum(second, np.finfo(np.float64).tiny)
    shift = np.asarray(accumulator.shift, dtype=np.float64)
    scale = np.where(constant, 1.0, accumulator.scale * np.sqrt(variance))
    offset = accumulator.scale * mean
    if not accumulator.missing:
        shift, offset = shift + offset, np.zeros_like(shift)
    standardised = accumulator.rebased(shift, scale)
    values = standardised.homogenised()
    check_spread(np.where(constant, 0.0, scale), dtype)
    note_constant(constant, diagnostics)
    settings = with_detected(standardised, constant, settings, diagnostics)
    settings = one_if_constant(constant, settings)
    if settings.n_components == 1:
        finish_one(diagnostics)
        one = closed_form(d, settings.floor, constant)
        one = Mixture(one.weights, (offset / scale)[None], one.variances)
        return in_units(one, shift, scale, diagnostics, dtype=dtype)
    values = _up_to(values, m, settings.order, d)
    columns = np.flatnonzero(~constant)
    starts = judged_starts(values, d, columns, observed_rows(accumulator), settings, diagnostics)
    return unpolished(starts, shift, scale, settings, diagnostics, dtype)


def one_if_constant(constant: NDArray[np.bool_], settings: Settings) -> Settings:
    """Ask for one component, with a warning, where no column varies."""
    if settings.n_components == 1 or not constant.all():
        return settings
    warn(
        f"every column is constant: 1 effective component is fitted, fewer than "
        f"n_components={settings.n_components}"
    )
    return settings.with_components(1)


def observed_rows(accumulator: MomentAccumulator) -> float:
    """Count the rows that the least observed moment averages; infinity for exact moments."""
    if accumulator.count == 0:
        return float("inf")
    # integer weights stand for repeated rows
    rows = max(float(accumulator.count), float(accumulator.total_weight))
    if not accumulator.missing:
        return rows
    observed = np.asarray(to_numpy(accumulator.mask_gram))
    return rows * float(observed[observed > 0].min() / observed.max())


def _up_to(values: Array, order: int, lower: int, dimension: int) -> Array:
    """Homogenised moments of a lower order."""
    padded = pad_multi_indices(multi_indices(dimension + 1, lower), order)
    return np.asarray(values[rank_multi_indices(padded, dimension + 1)])


def _check_accumulator(accumulator: Any, settings: Settings) -> None:
    if not isinstance(accumulator, MomentAccumulator):
        raise TypeError(f"accumulator must be a MomentAccumulator; got {type(accumulator)}")
    if accumulator.order < settings.order:
        raise ValueError(
            f"accumulator holds moments up to order {accumulator.order}; order={settings.order} "
            "needs more"
        )
    if accumulator.total_weight <= 0:
        raise ValueError("accumulator is empty: it has seen no row of positive weight")
    sums = accumulator.mask_gram if accumulator.missing else accumulator.gram
    seen = float(to_numpy(sums)[0, 0])
    if not abs(seen - accumulator.total_weight) <= 1e-6 * accumulator.total_weight:
        raise ValueError(
            f"accumulator is damaged: its sums stand for a weight of {seen:g}, not for its "
            f"total_weight {accumulator.total_weight:g}"
        )
    if settings.form == "power" and not accumulator.powers:
        raise ValueError("form='power' needs MomentAccumulator(..., powers=True)")


def _first_two(values: Array, order: int, dimension: int) -> tuple[Array, Array]:
    index = np.zeros((dimension, order), dtype=np.int64)
    index[:, -1] = np.arange(1, dimension + 1)
    mean = values[rank_multi_indices(index, dimension + 1)]
    index[:, -2] = index[:, -1]
    return mean, values[rank_multi_indices(index, dimension + 1)]
