"""Whether a fit's own intervals hold the known parameters, and what its moment test says."""

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.studies.generation import MixtureParameters
from tensoralg.studies.recovery import match_components

if TYPE_CHECKING:
    from tensoralg.mixtures.inference import MixtureInference

__all__ = ["HALF_WIDTH", "IntervalCounts", "count_intervals"]

HALF_WIDTH = 1.959963984540054  # standard errors to each side of a nominal 95% interval


@dataclass(frozen=True, slots=True)
class IntervalCounts:
    """How many nominal 95% intervals of one fit hold the known parameters.

    Attributes
    ----------
    weights_intervals, means_intervals, variances_intervals : int or None
        Intervals that the fit gave; None where it gave none.
    weights_inside, means_inside, variances_inside : int or None
        How many of them hold the known value.
    moment_test_p_value : float
        P-value of the test against leftover moments; NaN where there is none.
    """

    weights_intervals: int | None = None
    weights_inside: int | None = None
    means_intervals: int | None = None
    means_inside: int | None = None
    variances_intervals: int | None = None
    variances_inside: int | None = None
    moment_test_p_value: float = math.nan


def count_intervals(
    model: "MixtureInference | None",
    X: NDArray[Any],
    truth: MixtureParameters,
    fitted: MixtureParameters,
) -> tuple[IntervalCounts, str]:
    """Ask a fitted model for standard errors and the moment test, and compare with the truth.

    Components are matched by their means; the intervals of a component that matches none of the
    known ones are not counted.

    Parameters
    ----------
    model : MixtureInference or None
        The fitted estimator; None where the method has no standard errors.
    X : (N, d) float array
        The rows that were fitted.
    truth, fitted : MixtureParameters
        Known and fitted mixture.

    Returns
    -------
    tuple of IntervalCounts and str
        The counts, and why something is missing from them, or "".

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.mixtures import DiagonalGaussianMixture
    >>> from tensoralg.studies.generation import MixtureParameters
    >>> from tensoralg.studies.intervals import count_intervals
    >>> X = np.random.default_rng(1).normal(size=(1000, 3))
    >>> model = DiagonalGaussianMixture().fit(X)
    >>> truth = MixtureParameters([1.0], np.zeros((1, 3)), np.ones((1, 3)))
    >>> fitted = MixtureParameters(model.weights_, model.means_, model.covariances_)
    >>> counts, _ = count_intervals(model, X, truth, fitted)
    >>> counts.means_inside, counts.means_intervals
    (3, 3)
    """
    if model is None:
        return IntervalCounts(), ""
    values: dict[str, Any] = {}
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit itself has said what there is to say
        try:
            errors = model.standard_errors(X)
        except ValueError as error:
            said.append(f"no standard errors: {error}")
        else:
            rows, columns = match_components(truth, fitted)
            for name, kind in (("weights", "weights"), ("means", "means"),
                               ("covariances", "variances")):  # fmt: skip
                gap = (getattr(fitted, name)[columns] - getattr(truth, name)[rows]).ravel()
                width = HALF_WIDTH * np.asarray(getattr(errors, name), np.float64)[columns].ravel()
                given = np.isfinite(width) & (width > 0)  # the only weight of all is no estimate
                values[f"{kind}_intervals"] = int(given.sum())
                values[f"{kind}_inside"] = int((np.abs(gap[given]) <= width[given]).sum())
        try:
            values["moment_test_p_value"] = float(model.moment_test(X).p_value)
        except ValueError as error:
            said.append(f"no moment test: {error}")
    return IntervalCounts(**values), "; ".join(said)
