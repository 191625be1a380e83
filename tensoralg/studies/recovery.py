"""How far a fitted mixture is from the known one."""

import math
from dataclasses import dataclass

import numpy as np

from tensoralg.studies.generation import MixtureParameters

__all__ = ["RecoveryErrors", "match_components", "recovery_errors"]


@dataclass(frozen=True, slots=True)
class RecoveryErrors:
    """Relative Frobenius errors after matching: of the means, the weights, the variances."""

    mean_error: float
    weight_error: float
    variance_error: float


def match_components(
    truth: MixtureParameters, fitted: MixtureParameters
) -> tuple[list[int], list[int]]:
    """Pair components so that the sum of squared distances of their means is least.

    Parameters
    ----------
    truth, fitted : MixtureParameters
        Mixtures of one dimension, with r and s components.

    Returns
    -------
    tuple of two lists of int
        ``min(r, s)`` positions in `truth` and the matched positions in `fitted`.

    Examples
    --------
    >>> from tensoralg.studies.generation import MixtureParameters
    >>> from tensoralg.studies.recovery import match_components
    >>> truth = MixtureParameters([0.5, 0.5], [[0.0], [9.0]], [[1.0], [1.0]])
    >>> fitted = MixtureParameters([0.4, 0.6], [[8.0], [1.0]], [[1.0], [1.0]])
    >>> match_components(truth, fitted)
    ([0, 1], [1, 0])
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    # squared: the pairing then minimises the very Frobenius error that is reported
    rows, columns = linear_sum_assignment(cdist(truth.means, fitted.means, "sqeuclidean"))
    return rows.tolist(), columns.tolist()


def recovery_errors(truth: MixtureParameters, fitted: MixtureParameters) -> RecoveryErrors:
    """Measure relative Frobenius errors after matching the components by their means.

    When the numbers of components differ, the shorter list is filled up with zeros: a component
    that was not found, and one that does not exist, each count with their full norm.

    Parameters
    ----------
    truth, fitted : MixtureParameters
        Mixtures of one dimension.

    Returns
    -------
    RecoveryErrors
        ``||fitted - truth|| / ||truth||`` of means, weights and variances; NaN where
        the known norm is zero.

    Examples
    --------
    >>> from tensoralg.studies.generation import MixtureParameters
    >>> from tensoralg.studies.recovery import recovery_errors
    >>> truth = MixtureParameters([0.5, 0.5], [[0.0], [9.0]], [[1.0], [1.0]])
    >>> fitted = MixtureParameters([0.5, 0.5], [[9.0], [0.9]], [[1.0], [1.0]])
    >>> round(recovery_errors(truth, fitted).mean_error, 12)
    0.1
    """
    rows, columns = match_components(truth, fitted)

    def error(name: str) -> float:
        known, found = getattr(truth, name), getattr(fitted, name)
        missed = np.delete(known, rows, axis=0)
        surplus = np.delete(found, columns, axis=0)
        difference = known[rows] - found[columns]
        norms = [np.linalg.norm(part) for part in (difference, missed, surplus)]
        size = float(np.linalg.norm(known))
        return math.hypot(*norms) / size if size else math.nan

    return RecoveryErrors(error("means"), error("weights"), error("covariances"))
