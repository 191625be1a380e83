"""Sums over the rows for the three-block read-out: one pass each, chunk by chunk.

A callable that yields chunks may also have a method ``reduce(function, merge)``, which computes
``function(number, X, sample_weight)`` where the chunks are and merges the results: then only
sums are moved.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import namespace_of, to_numpy
from tensoralg.gpu.row_chunks import rows_of
from tensoralg.solvers.block_tensor import BlockFunctionals

__all__ = [
    "BlockRows",
    "Chunks",
    "covariances_with_sketches",
    "observed_share",
    "read_blocks",
    "sum_over_rows",
    "third_moment",
]

Array = NDArray[Any]
Chunks = Callable[[], Iterable[tuple[Any, Any]]]
Sums = tuple[Any, ...]  # the last one is the total weight

_CELLS = 2**20  # numbers in a chunk


class BlockRows:
    """Standardised rows with the coordinates in the order of the blocks, as often as wanted.

    Parameters
    ----------
    chunks : callable
        Returns an iterable of ``(X, sample_weight)``.
    blocks : list of three ndarray of int
        Coordinates of every block.
    shift, scale : ndarray of shape (d,)
        Standardisation.
    """

    def __init__(
        self, chunks: Chunks, blocks: list[NDArray[np.int64]], shift: Array, scale: Array
    ) -> None:
        self.chunks, self.order = chunks, np.concatenate(blocks)
        self.shift, self.inverse_scale = shift[self.order], 1.0 / scale[self.order]
        ends = np.cumsum([len(block) for block in blocks])
        self.spans = [slice(int(e) - len(b), int(e)) for e, b in zip(ends, blocks, strict=True)]
        self.dimension = len(shift)
        self._in_order = np.array_equal(self.order, np.arange(self.dimension))
        self.observed: Array | None = None  # share of the observed cells, where some are missing

    def __call__(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield chunks of values, NaN where missing, with their weights and their namespace."""
        for X, weight in self.chunks():
            if X.ndim != 2 or X.shape[1] != self.dimension:
                raise ShapeError(f"a chunk has shape {X.shape}; expected (n, {self.dimension})")
            xp = namespace_of(X)
            order, shift, factor = (
                xp.asarray(a) for a in (self.order, self.shift, self.inverse_scale)
            )
            for rows, w in rows_of(X, weight, max(_CELLS // self.dimension, 64)):
                # where the order is that of the columns a difference is copy enough
                values = rows if self._in_order else xp.take(rows, order, axis=1)
                values = values - shift
                values *= factor
                yield values, w, xp

    def filled(self) -> Iterator[tuple[Any, Any, Any]]:
        """As a call; missing cells are 0, and the others scaled so that products stay unbiased."""
        for values, w, xp in self():
            yield self.without_gaps(values, xp), w, xp

    def without_gaps(self, values: Any, xp: Any) -> Any:
        """Return the values of `filled`."""
        if self.observed is None:
            return values
        values = xp.where(xp.isnan(values), xp.zeros_like(values), values)
        return values / xp.asarray(self.observed)


def _weighted(values: Any, w: Any) -> Any:
    return values if w is None else values * w[:, None]


def _weight_of(values: Any, w: Any, xp: Any) -> float:
    return float(values.shape[0] if w is None else xp.sum(w))


def sum_over_rows(rows: BlockRows, sums_of: Callable[..., Sums], *arguments: Any) -> Sums:
    """Sum over all rows, where they are if they can be reached there.

    Parameters
    ----------
    rows : BlockRows
        The rows.
    sums_of : callable
        Called as ``sums_of(rows, *arguments)``, for all rows or for those of one chunk; returns a
        tuple of sums, the total weight last. It must be picklable.
    *arguments
        What `sums_of` needs.

    Returns
    -------
    tuple
        The sums as ndarrays, the total weight as a float.

    Raises
    ------
    ValueError
        No row has a positive weight.
    """
    reduce = getattr(rows.chunks, "reduce", None)
    if reduce is None:
        found = sums_of(rows, *arguments)
    else:
        without = copy(rows)
        without.chunks = tuple
        found = reduce(partial(_sums_of_chunk, without, sums_of, arguments), _added)
    if found is None or not found[-1] > 0:
        raise ValueError("chunks gave no row of positive weight")
    return (*(to_numpy(part) for part in found[:-1]), float(found[-1]))


def _sums_of_chunk(
    rows: BlockRows, sums_of: Callable[..., Sums], arguments: Any, number: int, X: Any, weight: Any
) -> Sums:
    alone = copy(rows)
    alone.chunks = lambda: [(X, weight)]
    return sums_of(alone, *arguments)


def _added(left: Sums, right: Sums) -> Sums:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _others(b: int) -> tuple[int, int]:
    return (b + 1) % 3, (b + 2) % 3


def covariances_with_sketches(rows: BlockRows, bases: list[Array]) -> list[Array]:
    """Average products of each block with the sketches of the two others.

    Parameters
    ----------
    rows : BlockRows
        The rows.
    bases : list of three ndarray, shapes (d_b, l_b)
        Directions in every block.

    Returns
    -------
    list of three ndarray
        Block b: shape (d_b, l of the next block + l of the one after).
    """
    *sums, total = sum_over_rows(rows, _sketch_sums, bases)
    covariances = [s / total for s in sums]
    if not all(np.isfinite(c).all() for c in covariances):
        raise ValueError("chunks: X holds NaN or inf, or products overflow (NaN: missing=True)")
    return covariances


def _sketch_sums(rows: BlockRows, bases: list[Array]) -> Sums:
    sums: list[Any] = [0.0, 0.0, 0.0]
    total = 0.0
    for values, w, xp in rows.filled():
        total += _weight_of(values, w, xp)
        parts = [values[:, span] for span in rows.spans]
        small = [
            _weighted(part @ xp.asarray(basis), w) for part, basis in zip(parts, bases, strict=True)
        ]
        for b, part in enumerate(parts):
            i, j = _others(b)
            sums[b] = sums[b] + part.T @ xp.concat([small[i], small[j]], axis=1)
    return (*sums, total)


def third_moment(rows: BlockRows, bases: list[Array]) -> tuple[Array, Array]:
    """Average the products of three features, the constant first in each block.

    Parameters
    ----------
    rows : BlockRows
        The rows.
    bases : list of three ndarray, shapes (d_b, l_b)
        Directions of the features.

    Returns
    -------
    mean, variance : ndarray, both of shape (l_0 + 1, l_1 + 1, l_2 + 1)
        The average and the variance of the average.
    """
    sums, squares, total = sum_over_rows(rows, _third_sums, bases)
    shape = tuple(basis.shape[1] + 1 for basis in bases)
    tensor = sums.reshape(shape) / total
    variance = np.maximum(squares.reshape(shape) / total - tensor**2, 0.0)
    return tensor, variance / total


def _third_sums(rows: BlockRows, bases: list[Array]) -> Sums:
    sums: Any = 0.0
    squares: Any = 0.0
    total = 0.0
    for values, w, xp in rows.filled():
        total += _weight_of(values, w, xp)
        a, b, c = _block_features(values, rows, bases, xp)
        products = xp.reshape(a[:, :, None] * b[:, None, :], (a.shape[0], -1))
        sums = sums + products.T @ _weighted(c, w)
        squares = squares + (products * products).T @ _weighted(c * c, w)
    return sums, squares, total


def _block_features(values: Any, rows: BlockRows, bases: list[Array], xp: Any) -> list[Any]:
    one = xp.ones_like(values[:, :1])
    return [
        xp.concat([one, values[:, span] @ xp.asarray(basis)], axis=1)
        for span, basis in zip(rows.spans, bases, strict=True)
    ]


def read_blocks(
    rows: BlockRows, bases: list[Array], functionals: BlockFunctionals
) -> tuple[list[tuple[Array, Array, Array]], Array]:
    """Read every block through the functionals of the two others.

    Parameters
    ----------
    rows : BlockRows
        The rows; missing cells (NaN) are left out of the sums.
    bases : list of three ndarray, shapes (d_b, r - 1)
        Directions of the features.
    functionals : BlockFunctionals
        Dual to the components.

    Returns
    -------
    list of three tuples of ndarray of shape (r, d_b)
        For every block the means of x and x^2 in every component, and the variance of the former.
    ndarray of shape (r,)
        Weights of the components.
    """
    *sums, weights, total = sum_over_rows(rows, _read_sums, bases, functionals)
    return [_moments(sums[k : k + 6]) for k in (0, 6, 12)], weights / total


def _read_sums(rows: BlockRows, bases: list[Array], functionals: BlockFunctionals) -> Sums:
    """Six sums for each block as `_block_sums`, those of the functionals, and the total weight."""
    sums: list[Any] = [0.0] * 18
    weights: Any = 0.0
    total = 0.0
    for values, w, xp in rows():
        parts = _block_features(rows.without_gaps(values, xp), rows, bases, xp)
        dual = [f @ xp.asarray(m.T) for f, m in zip(parts, functionals.matrices, strict=True)]
        for b, span in enumerate(rows.spans):
            i, j = _others(b)
            new = _block_sums(0.5 * (dual[i] + dual[j]), values[:, span], w, xp)
            for k, part in enumerate(new, start=6 * b):
                sums[k] = sums[k] + part
        weights = weights + xp.sum(_weighted((dual[0] + dual[1] + dual[2]) / 3.0, w), axis=0)
        total += _weight_of(values, w, xp)
    return (*sums, weights, total)


def _block_sums(functionals: Any, values: Any, w: Any, xp: Any) -> list[Any]:
    """Sum l, l x and l x^2, and l^2 with the same; a missing cell adds to none of them."""
    known = ~xp.isnan(values)
    values = xp.where(known, values, xp.zeros_like(values))
    columns = (xp.astype(known, xp.float64), values, values * values)
    powers = (functionals, functionals * functionals)
    return [_weighted(left, w).T @ right for left in powers for right in columns]


def _moments(sums: list[Array]) -> tuple[Array, Array, Array]:
    zeroth, first, second, q0, q1, q2 = sums
    mass = _away_from_zero(zeroth)
    mean = first / mass
    variance = np.maximum(q2 - 2.0 * mean * q1 + mean**2 * q0, 0.0) / mass**2
    return mean, second / mass, variance


def observed_share(rows: BlockRows) -> Array:
    """Find the share of the cells of every column that are there, in the order of the blocks."""
    seen, total = sum_over_rows(rows, _seen)
    return np.asarray(np.where(seen > 0, seen / total, 1.0))


def _seen(rows: BlockRows) -> Sums:
    seen: Any = 0.0
    total = 0.0
    for values, w, xp in rows():
        present = xp.astype(~xp.isnan(values), xp.float64)
        seen = seen + xp.sum(_weighted(present, w), axis=0)
        total += _weight_of(values, w, xp)
    return seen, total


def _away_from_zero(mass: Array) -> Array:
    """Replace masses that are 0 up to rounding: what they divide is noise anyway."""
    tiny = 1e-12 * max(float(np.abs(mass).max()), 1e-300)
    return np.where(np.abs(mass) < tiny, tiny, mass)
