"""Sandwich standard errors and the test of leftover moments, in one pass over the rows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.monomials import graded_indices
from tensoralg.mixtures.estimating_equations import Equations
from tensoralg.mixtures.rows import Chunk

__all__ = [
    "MomentTest",
    "Pass",
    "StandardErrors",
    "check_size",
    "leftover_moments",
    "moment_test",
    "read_rows",
    "sandwich",
]

Array = NDArray[np.float64]
_CHUNK_NUMBERS = 1_000_000  # numbers per array while rows are read
_LARGEST_MATRIX = 2**30  # bytes
_MOST_MOMENTS = 500
_ROWS_PER_MOMENT = 50
_SINGULAR = 1e-8  # eigenvalues of the moments' correlations below are zero


@dataclass(frozen=True, slots=True, eq=False)
class StandardErrors:
    """Standard errors of a fitted mixture; NaN where nothing was estimated.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Of the weights.
    means, covariances : ndarray of shape (r, d)
        Of the means and of the variances. NaN in constant columns, and for variances at the
        floor, which are then taken as known.
    joint : ndarray of shape (r (2 d + 1), r (2 d + 1))
        Covariance matrix of all parameters: weights, means row by row, variances row by row;
        for differences of parameters. Zero where nothing was estimated; infinite or 0 where a
        product of units is beyond the range of numbers, which spares the standard errors.
    method : str
        "sandwich" or "jackknife".
    rows : float
        Rows that were read, each counted by its weight; or the rows of the accumulators.
    """

    weights: Array
    means: Array
    covariances: Array
    joint: Array
    method: str
    rows: float

    @classmethod
    def from_joint(
        cls, joint: Array, scale: Array, columns: NDArray[np.int64], method: str, rows: float
    ) -> "StandardErrors":
        """Take a covariance matrix in standardised coordinates to the units of the data.

        Parameters
        ----------
        joint : ndarray of shape (r (2 k + 1), r (2 k + 1))
            Covariance matrix of the parameters of k columns.
        scale : ndarray of shape (d,)
            Units of all columns.
        columns : ndarray of int, shape (k,)
            The columns that vary.
        method : str
            How it was found.
        rows : float
            From how many rows.

        Returns
        -------
        StandardErrors
            Of all d columns.
        """
        k, d = len(columns), len(scale)
        r = len(joint) // (2 * k + 1)
        places = np.arange(r)[:, None] * d + columns
        means, variances = r + places.ravel(), r + r * d + places.ravel()
        place = np.concatenate([np.arange(r), means, variances])
        unit = np.tile(scale[columns], r)
        unit = np.concatenate([np.ones(r), unit, unit**2])
        full = np.zeros((r * (2 * d + 1),) * 2)
        with np.errstate(over="ignore", under="ignore"):
            full[np.ix_(place, place)] = joint * unit * unit[:, None]
            # roots first: squares of the units may leave the range of numbers
            error = np.zeros(len(full))
            error[place] = np.sqrt(np.maximum(np.diag(joint), 0.0)) * unit
        rest = np.where(error > 0, error, np.nan)[r:].reshape(2, r, d)
        return cls(error[:r], rest[0], rest[1], full, method, rows)


@dataclass(frozen=True, slots=True)
class MomentTest:
    """Test of a fitted mixture against moments that its parameters leave over.

    Attributes
    ----------
    statistic : float
        Quadratic form of the differences between moments of the rows and of the mixture
        (Hotelling's T squared); NaN when no moment is left over.
    degrees_of_freedom : int
        Number of independent leftover moments.
    p_value : float
        Probability of so large a statistic for rows of a diagonal mixture; NaN when no moment is
        left over.
    moments : int
        Number of moments compared.
    """

    statistic: float
    degrees_of_freedom: int
    p_value: float
    moments: int


def leftover_moments(dimension: int, order: int, rows: float) -> list[NDArray[np.int64]]:
    """Choose the square-free moments that a mixture is tested against.

    Whole degrees from 2 on as long as there are fifty rows for every moment, at most 500 moments;
    where the pairs alone are too many, a fixed random choice of them.

    Parameters
    ----------
    dimension, order : int
        Number d of columns, highest degree.
    rows : float
        Number of rows.

    Returns
    -------
    list of ndarray of int
        Index sets of each degree, one a row.

    Examples
    --------
    >>> [len(index) for index in leftover_moments(6, 3, 1000)]
    [15]
    >>> [len(index) for index in leftover_moments(6, 3, 10_000)]
    [15, 20]
    """
    most = int(min(_MOST_MOMENTS, max(rows // _ROWS_PER_MOMENT, 1)))
    chosen: list[NDArray[np.int64]] = []
    total = 0
    for index in graded_indices(dimension, min(order, dimension))[2:]:
        if total + len(index) > most:
            if not chosen:
                some = np.random.default_rng(0).choice(len(index), most, replace=False)
                chosen.append(index[np.sort(some)])
            break
        chosen.append(index)
        total += len(index)
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Sums of one pass over the rows.

    Attributes
    ----------
    rows : float
        Total weight.
    outer : ndarray of shape (P + p, P + p)
        Weighted products of scores and moment differences with each other.
    total : ndarray of shape (P + p,)
        Their weighted sums.
    observed : ndarray of shape (p,)
        Weight of the rows that hold all factors of each moment.
    """

    rows: float
    outer: Array
    total: Array
    observed: Array


def _differences(
    z: Array, means: Array, weights: Array, moments: list[NDArray[np.int64]]
) -> tuple[Array, NDArray[np.bool_]]:
    """Products of the cells minus their expectation, 0 where one is missing; which are there."""
    if not moments:
        return np.empty((len(z), 0)), np.empty((len(z), 0), dtype=bool)
    products = np.hstack([z[:, index].prod(axis=2) for index in moments])
    expected = weights @ np.hstack([means[:, index].prod(axis=2) for index in moments])
    known = np.isfinite(products)
    return np.where(known, products - expected, 0.0), known


def read_rows(
    chunks: Iterable[Chunk],
    equations: Equations,
    shift: Array,
    scale: Array,
    columns: NDArray[np.int64],
    moments: list[NDArray[np.int64]],
) -> Pass:
    """Sum scores and moment differences over the rows.

    Parameters
    ----------
    chunks : iterable of (X, sample_weight)
        Checked rows.
    equations : Equations
        Of the estimate, in standardised coordinates; their bread is added up.
    shift, scale : ndarray of shape (d,)
        Standardisation.
    columns : ndarray of int, shape (k,)
        The columns that vary.
    moments : list of ndarray of int
        Index sets among those columns.

    Returns
    -------
    Pass
        The sums.

    Raises
    ------
    ProblemTooLargeError
        The covariance matrix of the parameters would take more than 1 GiB.
    ValueError
        No rows.
    """
    n_moments = sum(len(index) for index in moments)
    natural, free = equations.expansion.shape
    size = free + n_moments
    mixture = equations.mixture
    outer, total = np.zeros((size, size)), np.zeros(size)
    observed, rows = np.zeros(n_moments), 0.0
    step = max(16, _CHUNK_NUMBERS // (2 * natural + size))
    for X, sample_weight in chunks:
        for begin in range(0, len(X), step):
            part = slice(begin, begin + step)
            z = (X[part].astype(np.float64) - shift)[:, columns] / scale[columns]
            w = np.ones(len(z)) if sample_weight is None else sample_weight[part]
            gaps, known = _differences(z, mixture.means, mixture.weights, moments)
            both = np.hstack([equations.scores(z, w), gaps])
            outer += both.T @ (w[:, None] * both)
            total += w @ both
            observed += w @ known
            rows += float(w.sum())
    if rows == 0:
        raise ValueError("X has no rows of positive weight")
    return Pass(rows, outer, total, observed)


def check_size(r: int, dimension: int) -> None:
    """Refuse a covariance matrix of the parameters that would take more than 1 GiB."""
    n = r * (2 * dimension + 1)
    if 8 * n * n > _LARGEST_MATRIX:
        raise ProblemTooLargeError(
            f"standard errors of {r} components in {dimension} columns need matrices of {n} x {n} "
            f"numbers: {8 * n * n / 2**30:.1f} GiB, at most {_LARGEST_MATRIX / 2**30:.0f} are "
            "accepted"
        )


def _answer(equations: Equations) -> Array:
    """Solve for the answer of all parameters to every score."""
    bread = equations.bread()
    unit = np.sqrt(np.maximum(np.abs(np.diag(bread)), 1e-300))
    try:
        inverse = np.linalg.inv(bread / unit / unit[:, None])
    except np.linalg.LinAlgError:
        raise ValueError(
            "the rows do not determine the parameters: their information matrix is singular. "
            "Fit fewer components, or give more rows"
        ) from None
    answer: Array = equations.expansion @ (inverse / unit / unit[:, None])
    return answer


def sandwich(equations: Equations, found: Pass) -> Array:
    """Covariance matrix of the parameters, right also where the model is not.

    Parameters
    ----------
    equations : Equations
        Of the estimate, after the pass.
    found : Pass
        Its sums.

    Returns
    -------
    ndarray
        In standardised coordinates.

    References
    ----------
    .. [1] P. J. Huber, "The behavior of maximum likelihood estimates under nonstandard
       conditions", Proc. Fifth Berkeley Symp., 1967.
    """
    answer = _answer(equations)
    free = answer.shape[1]
    centre = found.total[:free]
    meat = found.outer[:free, :free] - np.outer(centre, centre) / found.rows
    covariance: Array = answer @ meat @ answer.T
    return covariance


def _slopes(equations: Equations, moments: list[NDArray[np.int64]]) -> Array:
    """Differentiate the moments of the mixture by all parameters."""
    w, mu = equations.mixture.weights, equations.mixture.means
    r, d = mu.shape
    parts = []
    for index in moments:
        factors = mu[:, index]
        slope = np.zeros((len(index), r, d))
        for place in range(index.shape[1]):
            others = np.delete(factors, place, axis=2).prod(axis=2)
            slope[np.arange(len(index)), :, index[:, place]] = (w[:, None] * others).T
        by_variance = np.zeros((len(index), r * d))
        parts.append(
            np.hstack([factors.prod(axis=2).T, slope.reshape(len(index), -1), by_variance])
        )
    return np.concatenate(parts)


def moment_test(equations: Equations, found: Pass, moments: list[NDArray[np.int64]]) -> MomentTest:
    """Compare moments of the rows with those of the mixture, estimation accounted for.

    To first order the mean difference of a moment is that of ``h_n - J bread^-1 s_n`` with the
    moment's difference h_n, its slope J and the score s_n of row n. The quadratic form in the
    covariance of these, over the directions in which they vary, is Hotelling's T squared.

    Parameters
    ----------
    equations : Equations
        Of the estimate, after the pass.
    found : Pass
        Its sums.
    moments : list of ndarray of int
        Index sets of the moments.

    Returns
    -------
    MomentTest
        The outcome.

    References
    ----------
    .. [1] L. P. Hansen, "Large sample properties of generalized method of moments estimators",
       Econometrica 50, 1982.
    .. [2] W. K. Newey, "Maximum likelihood specification testing and conditional moment tests",
       Econometrica 53, 1985.
    """
    compared = len(found.observed)
    if compared == 0:
        return MomentTest(float("nan"), 0, float("nan"), 0)
    rows = found.rows
    slopes = found.observed[:, None] * _slopes(equations, moments)
    combine = np.hstack([-slopes @ _answer(equations), np.eye(compared)])
    centre = combine @ found.total / rows
    covariance = combine @ found.outer @ combine.T / rows - np.outer(centre, centre)
    free = len(found.total) - compared
    spread = np.diag(found.outer)[free:] / rows - (found.total[free:] / rows) ** 2
    unit = np.sqrt(np.maximum(spread, 1e-300))
    values, vectors = np.linalg.eigh(covariance / unit / unit[:, None])
    kept = values > _SINGULAR * max(float(values[-1]), 1.0)
    freedom = int(kept.sum())
    if freedom == 0 or rows <= freedom + 1:
        return MomentTest(float("nan"), 0, float("nan"), compared)
    along = vectors[:, kept].T @ (centre / unit)
    statistic = float(rows * np.sum(along**2 / values[kept]))
    ratio = statistic * (rows - freedom) / (freedom * (rows - 1.0))
    p_value = float(scipy.stats.f.sf(ratio, freedom, rows - freedom))
    return MomentTest(statistic, freedom, p_value, compared)
