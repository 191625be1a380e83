"""A uniform sample of the distinct rows: the same however rows are repeated, ordered or cut."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowSample", "limit_of_keys", "merged_samples", "salt_of", "sample_of"]

Array = NDArray[Any]
LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RowSample:
    """The distinct rows of smallest key, with the total weight of each.

    Attributes
    ----------
    keys : ndarray of uint64, shape (n,)
        Keys of the contents, ascending.
    rows : ndarray of shape (n, d)
        The rows.
    weights : ndarray of shape (n,)
        Total weights; without weights the numbers of repetitions.
    """

    keys: NDArray[np.uint64]
    rows: Array
    weights: Array

    def chunk(self, *, weighted: bool) -> tuple[Array, Array | None]:
        """Return rows and weights; None where rows have no weights and none is repeated."""
        plain = not weighted and bool((self.weights == 1.0).all())
        return self.rows, None if plain else self.weights


def salt_of(rng: np.random.Generator) -> np.uint64:
    """Draw the number that decides which rows have small keys."""
    return np.uint64(rng.integers(2**63))


def limit_of_keys(share: float) -> np.uint64:
    """Return the key below which about that share of the rows lies."""
    return np.uint64(LARGEST if share >= 1.0 else int(share * LARGEST))


def sample_of(
    size: int,
    salt: np.uint64,
    limit: np.uint64,
    number: int,
    X: Array,
    weights: Array | None,
) -> RowSample:
    """Sample one chunk.

    Parameters
    ----------
    size : int
        How many distinct rows at most.
    salt : uint64
        From :func:`salt_of`, the same for all chunks.
    limit : uint64
        Rows of larger keys are passed over.
    number : int
        Number of the chunk: any will do.
    X : ndarray of shape (n, d)
        Rows.
    weights : ndarray of shape (n,) or None
        Positive weights.

    Returns
    -------
    RowSample
        Of the rows within the limit.
    """
    from tensoralg.solvers.row_kernels import content_keys

    block = np.ascontiguousarray(X).view()
    block.flags.writeable = False  # one type of array: compiled once
    keys = content_keys(block, salt)
    near = np.flatnonzero(keys <= limit)
    w = np.ones(len(near)) if weights is None else weights[near]
    keys = keys[near]
    most = size
    while len(keys) > most:
        # repeated rows fill the smallest keys without being distinct
        few = np.flatnonzero(keys <= np.partition(keys, most)[most])
        found = _distinct(size, keys[few], near[few], X, w[few])
        if len(found.keys) == size:
            return found
        most *= 4
    return _distinct(size, keys, near, X, w)


def merged_samples(size: int, left: RowSample, right: RowSample) -> RowSample:
    """Sample the rows of two samples, which stay as they are."""
    keys = np.concatenate([left.keys, right.keys])
    rows = np.concatenate([left.rows, right.rows])
    weights = np.concatenate([left.weights, right.weights])
    return _distinct(size, keys, np.arange(len(keys)), rows, weights)


def _distinct(
    size: int,
    keys: NDArray[np.uint64],
    places: NDArray[np.int64],
    rows: Array,
    weights: Array,
) -> RowSample:
    """Pool the weights of equal rows, which stand in some places, and keep the smallest keys."""
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=weights, minlength=len(distinct))
    return RowSample(distinct[:size], rows[places[first[:size]]], total[:size])
