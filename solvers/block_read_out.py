"""Mixtures of product distributions in many coordinates: the three-block dual read-out of order 3.

The coordinates are split into three blocks A, B, C, independent of each other inside every
component. In each block the data are reduced to a constant and r - 1 linear features, the leading
singular vectors of the covariance with the two other blocks, found by a randomised range finder.
The third-order moment of the three sets of features is an r x r x r tensor of rank r; its
decomposition gives, for each block, functionals l_s of the features with
``E[l_s | component t] = [s = t]``. Hence ``E[l_s g] = w_s E_s[g]`` for every function g of a
coordinate in another block: g = 1, x_j and x_j^2 are the weights, means and second moments.

Nothing beyond order 3 is formed. The data are read a fixed number of times, in chunks; a pass
costs O(N d r) operations, and the memory is that of a chunk and O(d r).

The simultaneous diagonalisation is that of

References
----------
.. [1] S. E. Leurgans, R. T. Ross, R. B. Abel, "A decomposition for three-way arrays", SIAM J.
   Matrix Anal. Appl. 14 (1993).
.. [2] N. Halko, P. G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review
   53 (2011): the range finder.
.. [3] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete tensor
   decompositions", arXiv:2102.04500: mixtures from moments over distinct indices. The blocks and
   the dual read-out are ours.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.gpu.namespaces import namespace_of, to_numpy
from tensoralg.gpu.row_chunks import rows_of
from tensoralg.solvers.block_tensor import BlockFunctionals, block_functionals

__all__ = ["BlockReadOut", "block_bound", "block_read_out"]

Array = NDArray[np.float64]
Chunks = Callable[[], Iterable[tuple[Any, Any]]]

_CELLS = 2**20  # numbers in a chunk
_EXTRA = 4  # sketched directions beyond the r - 1 that are kept
_DROP = 2.0  # of the singular values where r components stand out; 1.0 to 1.3 in noise
_SKETCHES = 3  # passes that find the features: a random one, then two power steps


@dataclass(frozen=True, slots=True, eq=False)
class BlockReadOut:
    """What the read-out of three blocks yields, in standardised coordinates.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Weights; noise can make them negative.
    means, second_moments : ndarray of shape (r, d)
        Component means of x and of x^2 in every coordinate.
    singular_values : ndarray
        Singular values of the covariance between one block (the one that drops least) and the
        two others, largest first: the r - 1 that are kept and a few more, which are noise.
    n_complex : int
        Eigenvalues that were not real; their eigenvectors were replaced by the real span.
    misfit : float
        Largest deviation of the third-order moments of the features from those of the estimate,
        in standard errors.
    mean_error : float
        Standard error of the means of the component known worst (root mean square over the
        coordinates), as far as it comes from the rows that the functionals average; their own
        error is not counted. Infinite where the last singular value kept is less than twice the
        next one: the means of so many components do not stand out from the noise.
    n_passes : int
        How often the data were read.
    """

    weights: Array
    means: Array
    second_moments: Array
    singular_values: Array
    n_complex: int
    misfit: float
    mean_error: float
    n_passes: int


def block_bound(dimension: int) -> int:
    """Largest number of components that three blocks of coordinates determine.

    Each block needs r - 1 coordinates and one more that shows the noise, so that r <= floor(d / 3).

    Parameters
    ----------
    dimension : int
        Number of coordinates d.

    Returns
    -------
    int
        The bound.

    Examples
    --------
    >>> block_bound(2000)
    666
    """
    return dimension // 3


class _Rows:
    """Standardised rows with the coordinates in the order of the blocks, as often as wanted."""

    def __init__(
        self, chunks: Chunks, blocks: list[NDArray[np.int64]], shift: Array, scale: Array
    ) -> None:
        self.chunks, self.order = chunks, np.concatenate(blocks)
        self.shift, self.inverse_scale = shift[self.order], 1.0 / scale[self.order]
        ends = np.cumsum([len(block) for block in blocks])
        self.spans = [slice(int(e) - len(b), int(e)) for e, b in zip(ends, blocks, strict=True)]
        self.dimension = len(shift)
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
                values = xp.take(rows, order, axis=1)
                values -= shift
                values *= factor
                yield values, w, xp

    def filled(self) -> Iterator[tuple[Any, Any, Any]]:
        """As a call; missing cells are 0, and the others scaled so that products stay unbiased."""
        for values, w, xp in self():
            if self.observed is not None:
                values = xp.where(xp.isnan(values), xp.zeros_like(values), values)
                values /= xp.asarray(self.observed)
            yield values, w, xp


def _weighted(values: Any, w: Any) -> Any:
    return values if w is None else values * w[:, None]


def _others(b: int) -> tuple[int, int]:
    return (b + 1) % 3, (b + 2) % 3


def _sketch(rows: _Rows, bases: list[Array]) -> list[Array]:
    """Covariances of each block with the sketches of the two others."""
    sums: list[Any] = [0.0, 0.0, 0.0]
    total = 0.0
    for values, w, xp in rows.filled():
        total += float(values.shape[0] if w is None else xp.sum(w))
        parts = [values[:, span] for span in rows.spans]
        small = [
            _weighted(part @ xp.asarray(basis), w) for part, basis in zip(parts, bases, strict=True)
        ]
        for b, part in enumerate(parts):
            i, j = _others(b)
            sums[b] = sums[b] + part.T @ xp.concat([small[i], small[j]], axis=1)
    if not total > 0:
        raise ValueError("chunks gave no row of positive weight")
    covariances = [to_numpy(s) / total for s in sums]
    if not all(np.isfinite(c).all() for c in covariances):
        raise ValueError("chunks: X holds NaN or inf, or products overflow (NaN: missing=True)")
    return covariances


def _features(rows: _Rows, rank: int, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Orthonormal directions of every block that carry its covariance with the others.

    Their singular values come from the block in which they drop least after the first r - 1.
    """
    width = rank - 1 + _EXTRA
    bases = [
        np.linalg.qr(rng.standard_normal((s.stop - s.start, min(width, s.stop - s.start))))[0]
        for s in rows.spans
    ]
    for _ in range(_SKETCHES):
        covariances = _sketch(rows, bases)
        pairs = [np.linalg.svd(c, full_matrices=False)[:2] for c in covariances]
        bases = [left[:, :width] for left, _ in pairs]
    values = [singular[:width] for _, singular in pairs]
    return bases, min(values, key=lambda v: float(v[rank - 2] / max(v[rank - 1], 1e-300)))


def _third_moment(rows: _Rows, bases: list[Array]) -> tuple[Array, Array]:
    """Mean of the products of three features, the constant first in each, and its variance."""
    sums: Any = 0.0
    squares: Any = 0.0
    total = 0.0
    for values, w, xp in rows.filled():
        total += float(values.shape[0] if w is None else xp.sum(w))
        a, b, c = _block_features(values, rows, bases, xp)
        products = xp.reshape(a[:, :, None] * b[:, None, :], (a.shape[0], -1))
        sums = sums + products.T @ _weighted(c, w)
        squares = squares + (products * products).T @ _weighted(c * c, w)
    shape = tuple(basis.shape[1] + 1 for basis in bases)
    tensor = to_numpy(sums).reshape(shape) / total
    variance = np.maximum(to_numpy(squares).reshape(shape) / total - tensor**2, 0.0)
    return tensor, variance / total


def _block_features(values: Any, rows: _Rows, bases: list[Array], xp: Any) -> list[Any]:
    one = xp.ones_like(values[:, :1])
    return [
        xp.concat([one, values[:, span] @ xp.asarray(basis)], axis=1)
        for span, basis in zip(rows.spans, bases, strict=True)
    ]


@dataclass(slots=True)
class _Sums:
    """Weighted sums over the rows, for one block: of l, l x, l x^2 and of l^2 with the same."""

    zeroth: Any = 0.0
    first: Any = 0.0
    second: Any = 0.0
    square_zeroth: Any = 0.0
    square_first: Any = 0.0
    square_second: Any = 0.0

    def add(self, functionals: Any, values: Any, w: Any, xp: Any) -> None:
        """Add rows; a missing cell (NaN) adds nothing, to the sums of l neither."""
        known = ~xp.isnan(values)
        values = xp.where(known, values, xp.zeros_like(values))
        present = xp.astype(known, xp.float64)
        squares = values * values
        left = _weighted(functionals, w).T
        self.zeroth = self.zeroth + left @ present
        self.first = self.first + left @ values
        self.second = self.second + left @ squares
        left = _weighted(functionals * functionals, w).T
        self.square_zeroth = self.square_zeroth + left @ present
        self.square_first = self.square_first + left @ values
        self.square_second = self.square_second + left @ squares

    def moments(self) -> tuple[Array, Array, Array]:
        """Means of x and x^2 in every component, and the variance of the former."""
        zeroth, first, second, q0, q1, q2 = (to_numpy(getattr(self, f.name)) for f in fields(self))
        mass = _away_from_zero(zeroth)
        mean = first / mass
        variance = np.maximum(q2 - 2.0 * mean * q1 + mean**2 * q0, 0.0) / mass**2
        return mean, second / mass, variance


def _read(
    rows: _Rows, bases: list[Array], functionals: BlockFunctionals
) -> tuple[list[_Sums], Array]:
    """Read every block through the functionals of the two others; return the weights, too."""
    sums = [_Sums(), _Sums(), _Sums()]
    weights: Any = 0.0
    total = 0.0
    for values, w, xp in rows():
        observed = values
        if rows.observed is not None:
            filled = xp.where(xp.isnan(values), xp.zeros_like(values), values)
            values = filled / xp.asarray(rows.observed)
        parts = _block_features(values, rows, bases, xp)
        dual = [f @ xp.asarray(m.T) for f, m in zip(parts, functionals.matrices, strict=True)]
        for b, span in enumerate(rows.spans):
            i, j = _others(b)
            sums[b].add(0.5 * (dual[i] + dual[j]), observed[:, span], w, xp)
        mean = (dual[0] + dual[1] + dual[2]) / 3.0
        weights = weights + xp.sum(_weighted(mean, w), axis=0)
        total += float(values.shape[0] if w is None else xp.sum(w))
    return sums, to_numpy(weights) / total


def _observed_share(rows: _Rows) -> Array:
    seen: Any = 0.0
    total = 0.0
    for values, w, xp in rows():
        present = xp.astype(~xp.isnan(values), xp.float64)
        seen = seen + xp.sum(_weighted(present, w), axis=0)
        total += float(values.shape[0] if w is None else xp.sum(w))
    share = to_numpy(seen) / total
    return np.asarray(np.where(share > 0, share, 1.0))


def _checked(
    rank: int, shift: ArrayLike, scale: ArrayLike, columns: ArrayLike | None
) -> tuple[Array, Array, NDArray[np.int64]]:
    origin = np.asarray(shift, dtype=np.float64)
    unit = np.asarray(scale, dtype=np.float64)
    if origin.ndim != 1 or origin.shape != unit.shape:
        raise ShapeError(
            f"shift and scale must both have shape (d,); got {origin.shape} and {unit.shape}"
        )
    if not (np.isfinite(origin).all() and np.isfinite(unit).all() and (unit > 0).all()):
        raise ValueError("shift must be finite and scale finite and positive")
    chosen = np.arange(len(origin)) if columns is None else np.asarray(columns, dtype=np.int64)
    bound = block_bound(len(chosen))
    if not 2 <= rank <= bound:
        raise RankBoundError(
            f"rank={rank}: three blocks of {len(chosen)} coordinates determine from 2 to {bound} "
            "components"
        )
    return origin, unit, chosen


def block_read_out(
    chunks: Chunks,
    rank: int,
    *,
    shift: ArrayLike,
    scale: ArrayLike,
    columns: ArrayLike | None = None,
    missing: bool = False,
    rng: int | np.random.Generator | None = None,
) -> BlockReadOut:
    """Weights, means and second moments of a mixture of product distributions in many coordinates.

    Parameters
    ----------
    chunks : callable
        Called once per pass; returns an iterable of ``(X, sample_weight)`` with X (n, d) of any
        array library and sample_weight (n,) or None.
    rank : int
        Number r of components, 2 <= r <= floor(d / 3).
    shift, scale : array_like of shape (d,)
        Mean and standard deviation of every column.
    columns : array_like of int, optional
        Columns that take part; the others get mean 0 and second moment 0.
    missing : bool, default False
        NaN marks a missing cell. Cells must be missing independently of the values and of each
        other: the products that are averaged are corrected by the share of each column only.
        Takes one pass more.
    rng : int, Generator or None
        Source of the split and of the random combinations.

    Returns
    -------
    BlockReadOut
        Estimates in standardised coordinates, with the evidence.

    Raises
    ------
    RankBoundError
        `rank` is out of its range.
    ShapeError
        `shift`, `scale` and the chunks do not fit together.
    ValueError
        No rows of positive weight; a NaN without ``missing=True``.

    References
    ----------
    .. [1] As the module's.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> means = np.where(rng.random((2, 60)) < 0.5, -1.0, 1.0)
    >>> labels = rng.choice(2, 2000, p=[0.3, 0.7])
    >>> X = means[labels] + rng.standard_normal((2000, 60))
    >>> found = block_read_out(
    ...     lambda: [(X, None)], 2, shift=X.mean(axis=0), scale=X.std(axis=0), rng=0)
    >>> np.round(np.sort(found.weights), 1).tolist(), found.n_passes
    ([0.3, 0.7], 5)
    """
    origin, unit, chosen = _checked(rank, shift, scale, columns)
    generator = np.random.default_rng(rng)
    blocks = [np.sort(part) for part in np.array_split(generator.permutation(chosen), 3)]
    rows = _Rows(chunks, blocks, origin, unit)
    if missing:
        rows.observed = _observed_share(rows)
    bases, singular = _features(rows, rank, generator)
    tensor, variance = _third_moment(rows, bases)
    functionals = block_functionals(tensor[:rank, :rank, :rank], rng=generator)
    sums, weights = _read(rows, [basis[:, : rank - 1] for basis in bases], functionals)
    means, seconds = np.zeros((2, rank, rows.dimension))
    errors = np.zeros((rank, 0))
    for block, part in zip(blocks, sums, strict=True):
        means[:, block], seconds[:, block], error = part.moments()
        errors = np.concatenate([errors, error], axis=1)
    projected = [means[:, block] @ basis for block, basis in zip(blocks, bases, strict=True)]
    return BlockReadOut(
        weights,
        means,
        seconds,
        singular,
        functionals.n_complex,
        _largest_deviation(tensor, variance, weights, projected),
        float(np.sqrt(errors.mean(axis=1).max())) if _stands_out(singular, rank) else np.inf,
        _SKETCHES + 2 + int(missing),
    )


def _stands_out(singular: Array, rank: int) -> bool:
    """Whether the last direction kept is more than noise."""
    return bool(singular[rank - 2] >= _DROP * singular[rank - 1])


def _largest_deviation(
    tensor: Array, variance: Array, weights: Array, features: list[Array]
) -> float:
    """Compare third-order moments with those of the estimate, in standard errors.

    The directions were chosen by covariances: only products without the constant are a test.
    """
    model = np.einsum("s,si,sj,sk->ijk", weights, *features)
    found = tensor[1:, 1:, 1:]
    # rounding, where a product does not vary
    error = np.sqrt(variance[1:, 1:, 1:]) + 1e-9 * np.abs(tensor).max()
    return float((np.abs(found - model) / error).max())


def _away_from_zero(mass: Array) -> Array:
    """Replace masses that are 0 up to rounding: what they divide is noise anyway."""
    tiny = 1e-12 * max(float(np.abs(mass).max()), 1e-300)
    return np.where(np.abs(mass) < tiny, tiny, mass)
