"""Search for the rank-one terms of a symmetric tensor: algebra first, least squares after.

Starts come from the flattenings, from the commuting conditions beyond their reach, and at random.
Real terms are preferred; complex ones are kept when they fit and no real ones were found.
"""

from collections.abc import Iterator
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import multi_indices, multiplicities, number_of_multi_indices
from tensoralg.solvers.binary_forms import binary_form_points
from tensoralg.solvers.symmetric_candidates import Outcome, Pool, Tolerances, verdict
from tensoralg.solvers.symmetric_extension import extension_points
from tensoralg.solvers.symmetric_flattening import (
    change_variables,
    flattening_points,
    flattening_svd,
    numerical_rank,
)
from tensoralg.solvers.symmetric_least_squares import EntryFit, terms_from_points

__all__ = ["complete_fit", "generic_rank", "search_complete"]

Array = NDArray[Any]

_EXTENSION_STARTS, _RANDOM_STARTS, _BINARY_STARTS = 32, 12, 40
_SMALL_PROBLEM = 64  # unknowns up to which ranks are tried one after the other


def generic_rank(dimension: int, order: int) -> int:
    """Rank of a generic complex symmetric tensor (Alexander and Hirschowitz).

    Parameters
    ----------
    dimension, order : int
        n and m >= 3.

    Returns
    -------
    int
        ceil(C(n+m-1, m) / n), one more in the four exceptional cases. No tensor has more than
        twice this rank.

    References
    ----------
    .. [1] J. Alexander, A. Hirschowitz, "Polynomial interpolation in several variables", Journal
       of Algebraic Geometry 4 (1995).
    .. [2] G. Blekherman, Z. Teitler, "On maximum, typical and generic ranks", Mathematische
       Annalen 362 (2015).

    Examples
    --------
    >>> generic_rank(3, 3), generic_rank(3, 4)
    (4, 6)
    """
    exceptional = (dimension, order) in {(3, 4), (4, 4), (5, 4), (5, 3)}
    return -(-comb(dimension + order - 1, order) // dimension) + exceptional


def search_complete(
    entries: Array,
    order: int,
    dimension: int,
    rank: int | None,
    *,
    rng: np.random.Generator,
    refine: bool = True,
    tolerances: Tolerances | None = None,
) -> Outcome:
    """Decompose a complete symmetric tensor.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Real entries, not all zero, of moderate size.
    order, dimension : int
        m >= 3 and n.
    rank : int or None
        Number of terms; None detects it.
    rng : Generator
        Source of all random choices.
    refine : bool, default True
        Whether algebraic results are refined by least squares.
    tolerances : Tolerances, optional
        Relative sizes that count as zero.

    Returns
    -------
    Outcome
        Terms in the given coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> found = search_complete(np.array([1.0, 0, 0, 2.0]), 3, 2, None,
    ...                         rng=np.random.default_rng(0))
    >>> found.status, found.terms.weights.size
    ('exact', 2)
    """
    limits = tolerances or Tolerances()
    left, singular, _ = flattening_svd(entries, order, dimension, 1)
    essential, _ = numerical_rank(singular, limits.rank)
    reduced, frame = entries, np.eye(dimension)
    if singular[essential:].max(initial=0.0) <= limits.rank * singular[0] and (
        essential < dimension
    ):
        # fewer essential variables: the same problem in a subspace that contains all points
        frame = left[:, :essential]
        reduced = change_variables(entries, order, dimension, frame)
    search = _CompleteSearch(reduced, order, frame.shape[1], rng, refine, limits)
    outcome = search.detect() if rank is None else search.asked(rank)
    if frame.shape[1] == dimension:
        return outcome
    fit = complete_fit(entries, order, dimension)
    terms = terms_from_points(fit, outcome.terms.points @ frame.T)
    return Outcome(terms, outcome.status, outcome.message)


def complete_fit(entries: Array, order: int, dimension: int) -> EntryFit:
    """All entries, weighted as in the Frobenius norm.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    order, dimension : int
        m and n.

    Returns
    -------
    EntryFit
        The fit.

    Examples
    --------
    >>> import numpy as np
    >>> round(complete_fit(np.ones(4), 3, 2).norm ** 2, 9)
    8.0
    """
    indices = multi_indices(dimension, order)
    return EntryFit(indices, entries, np.sqrt(multiplicities(indices)), dimension)


class _CompleteSearch:
    """Ranks and candidates of one complete tensor in its essential variables."""

    def __init__(
        self,
        entries: Array,
        order: int,
        dimension: int,
        rng: np.random.Generator,
        refine: bool,
        limits: Tolerances,
    ) -> None:
        self.entries, self.order, self.dimension = entries, order, dimension
        self.rng, self.refine, self.limits = rng, refine, limits
        self.fit = complete_fit(entries, order, dimension)
        self.singular = flattening_svd(entries, order, dimension, order // 2)[1]
        self.revealed, self.gap = numerical_rank(self.singular, limits.rank)
        self.full = int(np.sum(self.singular > limits.rank * self.singular[0]))

    def asked(self, rank: int) -> Outcome:
        """Fit the given rank, or fewer terms when fewer are exact in real numbers."""
        # a deficient flattening has the rank; a full one only where algebra at its rank says so
        deficient = self.full < len(self.singular) or self.dimension == 1
        if self.full < rank and (deficient or self._within_reach(self.full)):
            fewer = self.fixed(self.full)
            if fewer.status == "exact":
                note = f"{self.full} terms are exact; {rank} were asked for. "
                return Outcome(fewer.terms, fewer.status, note + fewer.message)
        return self.fixed(rank)

    def fixed(self, rank: int) -> Outcome:
        """Fit exactly the given number of terms."""
        pool = Pool(self.fit, self.limits.residual, self.refine)
        for points in self._starts(rank, pool):
            pool.add(points)
        return verdict(pool, rank, self.refine)

    def detect(self) -> Outcome:
        """Find the rank: from the flattening, then upwards until the fit is exact."""
        if self.gap < 10 and self.full > 1 and not self._small(self.full):
            ratios = self.singular[: self.full - 1] / self.singular[1 : self.full]
            rank = int(np.argmax(ratios)) + 1
            chosen = self.full if self._within_reach(self.full) else rank
            outcome = self.fixed(chosen)
            note = f"the flattening shows no clear rank (largest gap {ratios.max():.1f}). "
            return Outcome(outcome.terms, outcome.status, note + outcome.message)
        small = self.revealed * (self.dimension + 1) <= _SMALL_PROBLEM
        first = self.fixed(self.revealed)
        if first.status in ("exact", "complex"):
            return first
        if self.revealed < self.full:
            # weights of very different sizes look like a gap, too
            outcome = self.fixed(self.full) if self._within_reach(self.full) else first
            if outcome.status in ("exact", "complex"):
                return outcome
        noted = f"rank {self.revealed} by the largest gap of the flattening ({self.gap:.1e}). "
        if self.revealed < self.full and (self.gap >= 100 or not small):
            return Outcome(first.terms, first.status, noted + first.message)
        return self._climb(first) if small else first

    def _within_reach(self, rank: int) -> bool:
        """Whether algebra alone nearly reproduces the tensor."""
        if self.dimension == 2:
            return True
        points = flattening_points(self.entries, self.order, self.dimension, rank, rng=self.rng)
        if points is None or not np.all(np.isfinite(points)):
            return False
        return bool(terms_from_points(self.fit, points).residual <= self.limits.residual**0.5)

    def _climb(self, first: Outcome) -> Outcome:
        best = first
        top = self.order if self.dimension == 2 else 2 * generic_rank(self.dimension, self.order)
        for rank in range(self.full + 1, top + 1):
            if rank * (self.dimension + 1) > _SMALL_PROBLEM:
                break
            outcome = self.fixed(rank)
            if outcome.status in ("exact", "complex"):
                note = (
                    f"the flattening has rank {self.full}, but no exact decomposition with fewer "
                    f"than {rank} terms was found. "
                )
                if rank >= generic_rank(self.dimension, self.order):
                    note += "So many terms fit almost any tensor: give rank if entries are noisy. "
                return Outcome(outcome.terms, outcome.status, note + outcome.message)
        return best

    def _starts(self, rank: int, pool: Pool) -> Iterator[Array | None]:
        """Algebraic points, each judged before the next; then random starts, added here."""
        if self.dimension == 1:
            yield np.ones((1, 1))
            return
        if self.dimension == 2:
            yield from self._binary_starts(rank, pool)
        else:
            algebraic = flattening_points(
                self.entries, self.order, self.dimension, rank, rng=self.rng
            )
            yield algebraic
            # where the flattenings determine the points they are unique: complex is final
            if pool.settled(real=algebraic is None):
                return
            for _ in range(_EXTENSION_STARTS if algebraic is None and self._small(rank) else 0):
                yield self._extension(rank)
                if pool.settled(real=True):
                    return
        reached = bool(pool.terms)
        for _ in range(self._random_starts(rank, reached)):
            if pool.settled(real=True):
                return
            pool.add_random(rank, self.rng)

    def _binary_starts(self, rank: int, pool: Pool) -> Iterator[Array | None]:
        if rank > self.order:
            return
        unique = 2 * rank <= self.order + 1
        for _ in range(1 if unique else _BINARY_STARTS):
            yield binary_form_points(self.entries, rank, rng=self.rng)
            if pool.settled(real=not unique):
                return

    def _extension(self, rank: int) -> Array | None:
        try:
            return extension_points(self.entries, self.order, self.dimension, rank, rng=self.rng)
        except np.linalg.LinAlgError:  # a start that ran away
            return None

    def _small(self, rank: int) -> bool:
        return rank <= 24 and number_of_multi_indices(self.dimension, self.order) <= 500

    def _random_starts(self, rank: int, reached: bool) -> int:
        if reached and not self.refine:
            return 0
        large = rank * (self.dimension + 1) > 4 * _SMALL_PROBLEM
        return 0 if large and reached else (3 if large or reached else _RANDOM_STARTS)
