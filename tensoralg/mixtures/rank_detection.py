"""The number of components from moments: a split-half test of the rank of flattenings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import number_of_monomials
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.moment_algebra import gram_positions
from tensoralg.mixtures.moment_input import checked_integer
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.split_moments import SplitMomentAccumulator

__all__ = ["RankTest", "detect_rank"]

Array = NDArray[np.float64]
_SPLITS = 9
_HALVES = 100  # random halves whose difference shows the noise
_LARGEST_SIDE = 64
_EXACT = 1e-9  # singular values of exact moments below this share of the first are rounding
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class RankTest:
    """How many components the moments show.

    Attributes
    ----------
    rank : int
        The number: the largest that some split shows, at least 1.
    ranks : list of int
        What each split shows alone.
    room : int
        The largest number that these splits can show. A rank that equals it may be too small.
    singular_values : list of float
        Singular values of the flattening that decided.
    thresholds : list of float
        Entry k is what singular value k must exceed to be counted: the largest that noise reaches
        beside the k directions before it; NaN where it was not needed.

    Examples
    --------
    >>> exact = MomentAccumulator.from_parameters(
    ...     [0.4, 0.6], [[1, 2, 3, 0], [3, 1, 0, 2]], np.ones((2, 4)), 3)
    >>> test = detect_rank(exact, rng=0)
    >>> test.rank, test.ranks, test.room
    (2, [2, 2, 2, 2, 2, 2, 2, 2, 2], 3)
    """

    rank: int
    ranks: list[int]
    room: int
    singular_values: list[float]
    thresholds: list[float]


def detect_rank(
    accumulator: MomentAccumulator,
    *,
    n_splits: int = _SPLITS,
    columns: Sequence[int] | None = None,
    rng: int | np.random.Generator | None = None,
) -> RankTest:
    r"""Count the components of a mixture of product distributions.

    The coordinates are split at random into blocks S and T. With features L of the first and Q of
    the second, E[L Q^T] has rank r: inside a component the blocks are independent. A singular
    value of its estimate counts when it exceeds what noise reaches in the directions that the
    larger ones leave; noise is (H_1 - H_2) / 2, where H_1 and H_2 come from random halves of the
    rows. The largest count over several splits is returned: a split can hide a component, but
    noise rarely shows one.

    Parameters
    ----------
    accumulator : MomentAccumulator
        Moments of order m >= 3 in units in which all columns are of similar size. A
        :class:`SplitMomentAccumulator`, or exact moments (`from_parameters`).
    n_splits : int, default 9
        Number of random splits, at least 1.
    columns : sequence of int, optional
        The columns to use, by default all; constant ones show nothing.
    rng : int, Generator or None
        Source of splits and halves.

    Returns
    -------
    RankTest
        The number and the evidence.

    Raises
    ------
    TypeError
        No accumulator.
    ValueError
        Moments of rows without parts, which do not show their noise, or with rows in one part
        only; an order below 3; fewer than two columns; moments that no row has observed.

    Notes
    -----
    Nothing is assumed of the components but that their coordinates are independent; they need not
    be Gaussian. Features are monomials of a block with exponents up to 2, which adds squares to
    the square-free ones. The differences of random halves are drawn from the deviations of the
    parts with random signs, a wild bootstrap.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500, for the flattenings. The test is ours.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(20000, 6)) + 2.0 * rng.integers(0, 2, (20000, 1))
    >>> detect_rank(SplitMomentAccumulator(6, 3).update(X), rng=0).rank
    2
    """
    n_splits = checked_integer(n_splits, "n_splits", 1)
    active = _checked(accumulator, columns)
    sums, weights = _parts(accumulator)
    d, order = accumulator.dimension, accumulator.order
    degree, size, others = _roomiest(len(active), order)
    generator = np.random.default_rng(rng)
    room, best = 0, (np.zeros(1), np.zeros(1))
    ranks: list[int] = []
    with threadpool_limits(limits=1, user_api="blas"):
        for _ in range(n_splits):
            shuffled = generator.permutation(active)
            left = _monomials(shuffled[:size], degree)
            right = _monomials(shuffled[size : size + others], order - degree)
            position = _positions(left, right, order, d, accumulator.powers)
            mean, noise = _noise(sums, weights, *position)
            if not np.isfinite(mean).all():
                continue
            room = min(mean.shape)
            rank, values, thresholds = _count(mean, noise, generator)
            if rank > max(ranks, default=-1):
                best = values, thresholds
            ranks.append(rank)
    if not ranks:
        raise ValueError(
            "n_components cannot be detected: no row holds all of the columns that a moment needs"
        )
    return RankTest(max(1, *ranks), ranks, room, best[0].tolist(), best[1].tolist())


def _checked(accumulator: Any, columns: Sequence[int] | None) -> NDArray[np.int64]:
    """Check the accumulator; return the columns in use."""
    if not isinstance(accumulator, MomentAccumulator):
        raise TypeError(f"accumulator must be a MomentAccumulator; got {type(accumulator)}")
    if accumulator.order < 3:
        raise ValueError(f"accumulator must have order >= 3; it has {accumulator.order}")
    if accumulator.total_weight <= 0:
        raise ValueError("accumulator is empty: it has seen no row of positive weight")
    seen = len(accumulator.parts) if isinstance(accumulator, SplitMomentAccumulator) else 0
    if accumulator.count and seen < 2:
        raise ValueError(
            "n_components cannot be detected from one sum over all rows, which does not show its "
            f"noise (parts with rows: {seen}, at least 2 are needed); accumulate in a "
            "SplitMomentAccumulator, or give n_components a number"
        )
    d = accumulator.dimension
    active = np.arange(d) if columns is None else np.unique(np.asarray(columns, dtype=np.int64))
    if len(active) and not (active[0] >= 0 and active[-1] < d):
        raise ValueError(f"columns must be from 0 to {d - 1}; got {active.tolist()}")
    if len(active) < 2:
        raise ValueError(
            f"n_components cannot be detected from {len(active)} column: at least two that vary "
            "are needed, since components show in what columns have in common; give n_components "
            "a number"
        )
    return active


def _parts(accumulator: MomentAccumulator) -> tuple[Array, Array]:
    """Return the sums of the groups and the weights in them; one group for exact moments."""
    groups = accumulator.parts if isinstance(accumulator, SplitMomentAccumulator) else ()
    members = list(groups) if accumulator.count else [accumulator]
    sums = np.array([to_numpy(part.gram) for part in members])
    if accumulator.missing:
        return sums, np.array([to_numpy(part.mask_gram) for part in members])
    totals = np.array([part.total_weight for part in members])
    return sums, np.broadcast_to(totals[:, None, None], sums.shape)


def _sizes(count: int, degree: int) -> int:
    """Count the monomials of `count` coordinates up to a degree with exponents up to 2."""
    # a choice of the squared coordinates, then of the others
    return sum(
        number_of_monomials(count - s, degree - 2 * s) * _choose(count, s)
        for s in range(min(count, degree // 2) + 1)
    )


def _choose(n: int, k: int) -> int:
    """Binomial coefficient of the numbers of monomials."""
    return number_of_monomials(n, k) - (number_of_monomials(n, k - 1) if k else 0)


def _roomiest(dimension: int, order: int) -> tuple[int, int, int]:
    """Degree over S, and the numbers of coordinates in S and T, of the roomiest small split."""
    best, found = (-1, 0), (1, 1, 1)
    for p in range(1, order // 2 + 1):
        for k in range(1, dimension):
            t = dimension - k
            rows = _sizes(k, p)
            while t > 1 and _sizes(t, order - p) > _LARGEST_SIDE:
                t -= 1
            columns = _sizes(t, order - p)
            score = min(rows, columns), -max(rows, columns)
            if rows <= _LARGEST_SIDE and score > best:
                best, found = score, (p, k, t)
    return found


def _monomials(block: NDArray[np.int64], degree: int) -> NDArray[np.int64]:
    """Monomials of a block as homogenised multi-indices, no coordinate more than twice."""
    index = multi_indices(len(block) + 1, degree)
    if degree > 2:
        thrice = ((index[:, 2:] == index[:, :-2]) & (index[:, 2:] > 0)).any(axis=1)
        index = index[~thrice]
    labels = np.concatenate([[0], block + 1])
    return np.asarray(labels[index])


def _positions(
    left: NDArray[np.int64], right: NDArray[np.int64], order: int, dimension: int, powers: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the sums of the products of features are, each of shape (rows, columns)."""
    shape = (len(left), len(right))
    joined = np.concatenate(
        [
            np.broadcast_to(left[:, None], (*shape, left.shape[1])),
            np.broadcast_to(right[None], (*shape, right.shape[1])),
        ],
        axis=2,
    ).reshape(-1, order)
    joined.sort(axis=1)
    row, column = gram_positions(joined, dimension, powers=powers)
    return row.reshape(shape), column.reshape(shape)


def _noise(
    sums: Array, weights: Array, row: NDArray[np.int64], column: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Pooled flattening, and terms whose sum with random signs is distributed like its noise."""
    part, there = sums[:, row, column], weights[:, row, column]
    total = there.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = part.sum(axis=0) / total
        k = len(part)
        terms = (part - mean * there) / total * np.sqrt(k / max(k - 1, 1))
    return mean, terms


def _count(mean: Array, terms: Array, rng: np.random.Generator) -> tuple[int, Array, Array]:
    """Count the singular values that noise does not explain; return them and their thresholds."""
    left, values, right = np.linalg.svd(mean, full_matrices=False)
    thresholds = np.full(len(values), np.nan)
    if len(terms) == 1:
        thresholds[:] = _EXACT * values[0]
        return int(np.sum(values > thresholds)), values, thresholds
    # few groups know the size of the noise badly; two are the plain split-half test
    margin = 1.1 + 1.8 / len(terms)
    signs = rng.choice([-1.0, 1.0], (_HALVES, len(terms)))
    draws = np.tensordot(signs, terms, axes=1)
    full = margin * _largest(draws)
    # what is left by more directions is smaller: these need no threshold of their own
    sure = int(np.sum(values > full))
    thresholds[:sure] = full
    for k in range(sure, len(values)):
        rows = np.eye(len(mean)) - left[:, :k] @ left[:, :k].T
        columns = np.eye(mean.shape[1]) - right[:k].T @ right[:k]
        thresholds[k] = max(margin * _largest(rows @ draws @ columns), _ROUNDING * values[0])
        if values[k] <= thresholds[k]:
            return k, values, thresholds
    return len(values), values, thresholds


def _largest(draws: Array) -> float:
    """Return the largest spectral norm."""
    if draws.shape[1] > draws.shape[2]:
        draws = draws.transpose(0, 2, 1)
    squares = draws @ draws.transpose(0, 2, 1)
    return float(np.sqrt(max(np.linalg.eigvalsh(squares)[:, -1].max(), 0.0)))
