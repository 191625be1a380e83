"""Delete-block jackknife of the moment estimator: blocks of rows are accumulators left out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.mixtures.fitting import Mixture
from tensoralg.mixtures.moment_input import checked_gram_shape
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.rows import Chunk
from tensoralg.mixtures.starts import second_moments, square_free_moments
from tensoralg.mixtures.variances import variances_from_moments
from tensoralg.solvers.feasible_least_squares import feasible_least_squares

__all__ = [
    "Refit",
    "accumulate_blocks",
    "jackknife",
    "jackknife_errors",
    "merged",
    "without_each",
]

Array = NDArray[np.float64]
_LARGEST_PARTS = 2**31  # bytes
Sums = TypeVar("Sums", bound=MomentAccumulator)


def accumulate_blocks(
    chunks: Iterable[Chunk], blocks: int, shift: Array, scale: Array, order: int, *, missing: bool
) -> list[MomentAccumulator]:
    """Deal rows to accumulators: every chunk is cut into as many pieces as there are blocks.

    Parameters
    ----------
    chunks : iterable of (X, sample_weight)
        Checked rows.
    blocks : int
        Number of blocks.
    shift, scale : ndarray of shape (d,)
        Standardisation.
    order : int
        Highest degree of the moments.
    missing : bool
        Whether NaN is a missing cell.

    Returns
    -------
    list of MomentAccumulator
        Those that have seen rows.

    Raises
    ------
    ProblemTooLargeError
        The sums of all blocks would take more than 2 GiB.
    """
    left, right = checked_gram_shape(len(shift), order, powers=False)
    parts: dict[int, MomentAccumulator] = {}  # as rows come: there may be fewer than blocks
    first = 0
    for X, weights in chunks:
        # short chunks would always fill the same blocks: go on where the last one ended
        ends = np.linspace(0, len(X), min(blocks, len(X)) + 1).astype(np.int64)
        for k, (begin, end) in enumerate(pairwise(ends.tolist())):
            place = (first + k) % blocks
            if place not in parts:
                _check_memory(len(parts) + 1, left * right, blocks)
                parts[place] = MomentAccumulator(
                    len(shift), order, shift=shift, scale=scale, missing=missing
                )
            parts[place].update(X[begin:end], None if weights is None else weights[begin:end])
        first = (first + len(ends) - 1) % blocks
    return [parts[place] for place in sorted(parts) if parts[place].count > 0]


def _check_memory(parts: int, numbers: int, blocks: int) -> None:
    """Refuse blocks whose sums take gigabytes; what is left without each takes three times more."""
    if 8 * parts * numbers > _LARGEST_PARTS:
        raise ProblemTooLargeError(
            f"the jackknife over blocks={blocks} keeps {numbers} sums for each: more than "
            f"{_LARGEST_PARTS / 2**30:.0f} GiB in all. Ask for fewer blocks, or fit with "
            "polish='em' and take method='sandwich'"
        )


def merged(parts: Sequence[Sums]) -> Sums:
    """Merge accumulators into a new one."""
    total = parts[0].rebased()
    for part in parts[1:]:
        total.merge(part)
    return total


def without_each(parts: Sequence[Sums]) -> list[Sums]:
    """Leave out each accumulator in turn, by sums from the left and from the right.

    Parameters
    ----------
    parts : sequence of MomentAccumulator
        At least two, of one shift and scale.

    Returns
    -------
    list of MomentAccumulator
        One for each: all the others merged. Nothing is subtracted, so no digits are lost.
    """
    before, after = [parts[0].rebased()], [parts[-1].rebased()]
    for left, right in zip(parts[1:-1], parts[-2:0:-1], strict=True):
        before.append(before[-1].rebased().merge(left))
        after.append(after[-1].rebased().merge(right))
    middle = [a.rebased().merge(b) for a, b in zip(before, after[-2::-1], strict=False)]
    return [after[-1], *middle, before[-1]]


@dataclass(frozen=True, slots=True, eq=False)
class Refit:
    """The moment estimator near an estimate, as a function of accumulated moments.

    Attributes
    ----------
    mixture : Mixture
        The estimate, in the coordinates of the accumulators.
    columns : ndarray of int, shape (k,)
        The columns that vary, those of the mixture.
    order : int
        Highest degree of the moments that the estimate read.
    floor : float
        Smallest variance.
    """

    mixture: Mixture
    columns: NDArray[np.int64]
    order: int
    floor: float

    def __call__(self, accumulator: MomentAccumulator) -> Array:
        """Estimate again; all parameters in one vector."""
        d, m, k = accumulator.dimension, accumulator.order, len(self.columns)
        labels = np.concatenate([[0], self.columns + 1])[multi_indices(k + 1, self.order)]
        padded = np.concatenate([np.zeros((len(labels), m - self.order), np.int64), labels], axis=1)
        values = accumulator.homogenised()[rank_multi_indices(padded, d + 1)]
        moments = square_free_moments(values, self.order, k)
        second = second_moments(values, self.order, k)
        if len(self.mixture.weights) == 1:
            mean = moments[1]
            return np.concatenate([[1.0], mean, second - mean**2])
        w = self.mixture.weights
        fit = feasible_least_squares(
            moments,
            w,
            self.mixture.means,
            second_moments=second,
            minimum_weight=0.5 * float(w.min()),
        )
        weights = np.maximum(fit.weights, 1e-6)
        weights /= weights.sum()
        variances = variances_from_moments(
            values,
            self.order,
            weights,
            fit.points,
            floor=np.full(k, self.floor),
            noise=fit.residual,
        )
        return np.concatenate([weights, fit.points.ravel(), variances.ravel()])


def jackknife(parts: Sequence[MomentAccumulator], refit: Refit) -> Array:
    """Covariance matrix of the moment estimate from estimates without one block each.

    Parameters
    ----------
    parts : sequence of MomentAccumulator
        The blocks; of different sizes if need be.
    refit : Refit
        The estimator.

    Returns
    -------
    ndarray
        In the coordinates of the accumulators, of all parameters.

    References
    ----------
    .. [1] F. Busing, E. Meijer, R. van der Leeden, "Delete-m jackknife for unequal m", Statistics
       and Computing 9, 1999.
    """
    gap, times = _gaps(parts, refit, refit(merged(parts)))
    covariance: Array = gap.T @ (gap / (times - 1.0)[:, None]) / len(parts)
    return covariance


def jackknife_errors(parts: Sequence[Sums], refit: Callable[[Sums], Array], whole: Array) -> Array:
    """Find standard errors alone, of any estimate: from the diagonal of what `jackknife` finds.

    Parameters
    ----------
    parts : sequence of MomentAccumulator
        The blocks.
    refit : callable
        Takes merged blocks and returns the estimates in one vector.
    whole : ndarray of shape (P,)
        The estimates from all blocks.

    Returns
    -------
    ndarray of shape (P,)
        Standard errors of the estimates.
    """
    gap, times = _gaps(parts, refit, whole)
    gap = gap / np.sqrt(times - 1.0)[:, None]
    size = np.abs(gap).max(axis=0)  # squares of large numbers overflow
    unit = np.where(size > 0, size, 1.0)
    return np.asarray(size * np.sqrt(np.mean((gap / unit) ** 2, axis=0)))


def _gaps(
    parts: Sequence[Sums], refit: Callable[[Sums], Array], whole: Array
) -> tuple[Array, Array]:
    """Deviations of pseudo-values from their centre; how often each block fits into the whole."""
    times = merged(parts).total_weight / np.array([part.total_weight for part in parts])
    estimates = np.array([refit(rest) for rest in without_each(parts)])
    pseudo = times[:, None] * whole - (times[:, None] - 1.0) * estimates
    centre = len(parts) * whole - (1.0 - 1.0 / times) @ estimates
    return pseudo - centre, times
