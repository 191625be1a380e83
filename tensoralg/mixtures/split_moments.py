"""Moments of a data set beside those of interleaved groups of its rows, which show their noise."""

from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.moment_input import checked_integer, checked_rows, checked_weights
from tensoralg.mixtures.moments import MomentAccumulator

__all__ = ["SplitMomentAccumulator", "scrambled"]

_PARTS = 32


class SplitMomentAccumulator(MomentAccumulator):
    """Moments in one pass, beside those of some interleaved groups of the rows.

    A :class:`MomentAccumulator` for every purpose. The spread between its groups shows how noisy
    the moments are, from which :func:`detect_rank` and ``n_components="auto"`` tell the number of
    components. Memory is that of ``n_parts + 1`` accumulators.

    Parameters
    ----------
    dimension, order : int
        Number d of columns, highest degree m of the products.
    shift, scale, powers, missing
        As in :class:`MomentAccumulator`.
    n_parts : int, default 32
        Number of groups, at least 2. Rows are dealt by their number, scrambled, so that neither
        sorted nor periodic data matter.

    Attributes
    ----------
    parts : tuple of MomentAccumulator
        The groups that have seen rows.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.
    ProblemTooLargeError
        The sums of one group would take more than 1 GiB.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(1000, 3))
    >>> moments = SplitMomentAccumulator(3, 3).update(X)
    >>> len(moments.parts), sum(part.count for part in moments.parts)
    (32, 1000)
    """

    def __init__(
        self,
        dimension: int,
        order: int,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        powers: bool = False,
        missing: bool = False,
        n_parts: int = _PARTS,
    ) -> None:
        super().__init__(dimension, order, shift=shift, scale=scale, powers=powers, missing=missing)
        self.n_parts = checked_integer(n_parts, "n_parts", 2)
        self._parts: list[MomentAccumulator] = []

    def __repr__(self) -> str:
        return f"Split{super().__repr__()} in {self.n_parts} parts"

    @property
    def parts(self) -> tuple[MomentAccumulator, ...]:
        """The groups that have seen rows."""
        return tuple(part for part in self._parts if part.count)

    def update(self, X: Any, sample_weight: Any = None) -> Self:
        """Add rows, dealt out to the groups.

        Parameters
        ----------
        X : array, shape (N, d), N >= 1
            As in :meth:`MomentAccumulator.update`; numpy arrays only.
        sample_weight : array, shape (N,), optional
            Weights >= 0.

        Returns
        -------
        SplitMomentAccumulator
            Itself.

        Raises
        ------
        TypeError
            Arrays of another library.
        ShapeError, ValueError
            As :meth:`MomentAccumulator.update`.

        Examples
        --------
        >>> SplitMomentAccumulator(2, 3, n_parts=2).update([[1.0, 2.0], [3.0, 5.0]])
        SplitMomentAccumulator(dimension=2, order=3) of 2 rows in 2 parts
        """
        rows = checked_rows(X, self.dimension)
        if not isinstance(rows, np.ndarray):
            raise TypeError(
                f"X is a {type(X).__module__}.{type(X).__name__}: moments in parts take NumPy "
                "arrays; convert X, or feed a MomentAccumulator"
            )
        weights = checked_weights(sample_weight, rows)
        # a first update finds the shift, a failed one names the row: both need all rows at once
        if self.shift is None or not np.isfinite(rows).all():
            whole = self._empty().update(rows, weights)
            if whole.shift is None:
                return self
            self.shift = whole.shift
        if weights is not None:
            rows, weights = rows[weights > 0], weights[weights > 0]
        place = scrambled(self.count, len(rows), self.n_parts)
        old = self._parts if self._gram is not None else []
        parts = [copy(part) for part in old] or [self._empty() for _ in range(self.n_parts)]
        for i, part in enumerate(parts):
            mine = place == i
            if mine.any():
                part.update(rows[mine], None if weights is None else weights[mine])
        return self._of(parts)

    def merge(self, other: "MomentAccumulator") -> Self:
        """Add the rows that another accumulator has seen, group by group.

        Parameters
        ----------
        other : SplitMomentAccumulator
            One with the same dimension, order, powers, missing and number of parts.

        Returns
        -------
        SplitMomentAccumulator
            Itself.

        Raises
        ------
        TypeError
            `other` has no parts.
        ValueError
            As :meth:`MomentAccumulator.merge`, or another number of parts.

        Examples
        --------
        >>> other = SplitMomentAccumulator(2, 3).update([[7.0, 7.0]])
        >>> SplitMomentAccumulator(2, 3).update([[1.0, 2.0], [3.0, 5.0]]).merge(other).count
        3
        """
        if not isinstance(other, SplitMomentAccumulator):
            raise TypeError(f"other must be a SplitMomentAccumulator, got {type(other).__name__}")
        if other.n_parts != self.n_parts:
            raise ValueError(
                f"cannot merge: n_parts is {self.n_parts} here and {other.n_parts} in other"
            )
        first = self._gram is None
        super().merge(other)
        if other._gram is None:
            return self
        if first:
            parts = [part.rebased(self.shift, self.scale) for part in other._parts]
        else:
            pairs = zip(self._parts, other._parts, strict=True)
            parts = [copy(mine).merge(theirs) for mine, theirs in pairs]
        self._parts = parts
        return self

    def rebased(self, shift: ArrayLike | None = None, scale: ArrayLike | None = None) -> Self:
        """Express the same sums, and those of the groups, with another origin and unit.

        Parameters
        ----------
        shift, scale : array_like, shape (d,), or number, optional
            The new origin and unit; by default the present ones.

        Returns
        -------
        SplitMomentAccumulator
            A new one.

        Raises
        ------
        ValueError
            As :meth:`MomentAccumulator.rebased`.

        Examples
        --------
        >>> moments = SplitMomentAccumulator(1, 2, shift=2).update([[1.0], [3.0]])
        >>> moments.rebased(shift=0).homogenised().tolist()  # 1, x, x^2
        [1.0, 2.0, 5.0]
        """
        result = super().rebased(shift, scale)
        result._parts = [part.rebased(result.shift, result.scale) for part in self._parts]
        return result

    def _of(self, parts: list[MomentAccumulator]) -> Self:
        """Take over groups and their sums."""
        seen = [part for part in parts if part.count]
        if seen:
            self._parts = parts
            self._gram = np.sum([to_numpy(part.gram) for part in seen], axis=0)
            if self.missing:
                self._mask_gram = np.sum([to_numpy(part.mask_gram) for part in seen], axis=0)
            self.count = sum(part.count for part in seen)
            self.total_weight = float(sum(part.total_weight for part in seen))
        return self


def scrambled(first: int, rows: int, n_parts: int) -> NDArray[np.int64]:
    """Deal rows to groups by their numbers alone, with the finaliser of SplitMix64.

    Parameters
    ----------
    first : int
        Number of the first row.
    rows : int
        How many rows.
    n_parts : int
        Number of groups.

    Returns
    -------
    ndarray of int64, shape (rows,)
        The group of each.

    Examples
    --------
    >>> scrambled(0, 8, 2).tolist() == scrambled(0, 4, 2).tolist() + scrambled(4, 4, 2).tolist()
    True
    """
    z = np.arange(first + 1, first + rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(n_parts)).astype(np.int64)
