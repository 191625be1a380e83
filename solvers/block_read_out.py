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

References
----------
.. [1] S. E. Leurgans, R. T. Ross, R. B. Abel, "A decomposition for three-way arrays", SIAM J.
   Matrix Anal. Appl. 14 (1993): the simultaneous diagonalisation of slices.
.. [2] N. Halko, P. G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review
   53 (2011): the range finder.
.. [3] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete tensor
   decompositions", arXiv:2102.04500: mixtures from moments over distinct indices. The blocks and
   the dual read-out are ours.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.solvers.block_sums import (
    BlockRows,
    Chunks,
    covariances_with_sketches,
    observed_share,
    read_blocks,
    third_moment,
)
from tensoralg.solvers.block_tensor import block_functionals

__all__ = ["BlockReadOut", "block_bound", "block_read_out"]

Array = NDArray[np.float64]

_EXTRA = 4  # sketched directions beyond the r - 1 that are kept
_DROP = 2.0  # of the singular values where r components stand out; 1.0 to 1.3 in noise
_SKETCHES = 3  # passes that find the features: a random one, then two power steps


@dataclass(frozen=True, slots=True, eq=False)
class _Evidence:
    """Third-order moments of the features, with the variance of every entry."""

    tensor: Array
    variance: Array
    blocks: list[NDArray[np.int64]]
    bases: list[Array]

    def deviation(self, weights: Array, means: Array) -> float:
        """Compare them with those of estimates, in standard errors.

        The directions were chosen by covariances: only products without the constant are a test.
        """
        features = [
            means[:, block] @ basis for block, basis in zip(self.blocks, self.bases, strict=True)
        ]
        model = np.einsum("s,si,sj,sk->ijk", weights, *features)
        found = self.tensor[1:, 1:, 1:]
        # rounding, where a product does not vary
        error = np.sqrt(self.variance[1:, 1:, 1:]) + 1e-9 * np.abs(self.tensor).max()
        return float((np.abs(found - model) / error).max())


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
    misfit_of_one : float
        The same for a single component: small where the moments show no mixture at all.
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
    misfit_of_one: float
    mean_error: float
    n_passes: int
    _evidence: "_Evidence" = field(repr=False)

    def deviation(self, weights: ArrayLike, means: ArrayLike) -> float:
        """Find the misfit of other estimates.

        Parameters
        ----------
        weights : array_like of shape (r,)
            Weights.
        means : array_like of shape (r, d)
            Component means in standardised coordinates.

        Returns
        -------
        float
            Largest deviation of the third-order moments of the features from those of the
            estimates, in standard errors.
        """
        return self._evidence.deviation(np.asarray(weights), np.asarray(means))


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


def _features(rows: BlockRows, rank: int, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Orthonormal directions of every block that carry its covariance with the others.

    Their singular values come from the block in which they drop least after the first r - 1.
    """
    width = rank - 1 + _EXTRA
    bases = [
        np.linalg.qr(rng.standard_normal((s.stop - s.start, min(width, s.stop - s.start))))[0]
        for s in rows.spans
    ]
    for _ in range(_SKETCHES):
        covariances = covariances_with_sketches(rows, bases)
        pairs = [np.linalg.svd(c, full_matrices=False)[:2] for c in covariances]
        bases = [left[:, :width] for left, _ in pairs]
    values = [singular[:width] for _, singular in pairs]
    return bases, min(values, key=lambda v: float(v[rank - 2] / max(v[rank - 1], 1e-300)))


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
        array library and sample_weight (n,) or None. With a method ``reduce(function, merge)``
        that is called instead: sums are then taken where the chunks are.
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
    rows = BlockRows(chunks, blocks, origin, unit)
    if missing:
        rows.observed = observed_share(rows)
    bases, singular = _features(rows, rank, generator)
    tensor, variance = third_moment(rows, bases)
    functionals = block_functionals(tensor[:rank, :rank, :rank], rng=generator)
    parts, weights = read_blocks(rows, [basis[:, : rank - 1] for basis in bases], functionals)
    means, seconds = np.zeros((2, rank, rows.dimension))
    errors = np.zeros((rank, 0))
    for block, (mean, second, error) in zip(blocks, parts, strict=True):
        means[:, block], seconds[:, block] = mean, second
        errors = np.concatenate([errors, error], axis=1)
    evidence = _Evidence(tensor, variance, blocks, bases)
    return BlockReadOut(
        weights,
        means,
        seconds,
        singular,
        functionals.n_complex,
        evidence.deviation(weights, means),
        evidence.deviation(np.zeros(rank), means),
        float(np.sqrt(errors.mean(axis=1).max())) if _stands_out(singular, rank) else np.inf,
        _SKETCHES + 2 + int(missing),
        evidence,
    )


def _stands_out(singular: Array, rank: int) -> bool:
    """Whether the last direction kept is more than noise."""
    return bool(singular[rank - 2] >= _DROP * singular[rank - 1])
