"""Search for the terms of a symmetric tensor of which only some entries are known."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.index_maps import catalecticant_positions
from tensoralg.core.indices import multi_indices
from tensoralg.solvers.coordinate_splits import largest_rank
from tensoralg.solvers.symmetric_candidates import Outcome, Pool, Tolerances, verdict
from tensoralg.solvers.symmetric_flattening import numerical_rank
from tensoralg.solvers.symmetric_generating_polynomials import homogeneous_components
from tensoralg.solvers.symmetric_least_squares import EntryFit

__all__ = ["detect_rank", "search_incomplete"]

Array = NDArray[Any]

_RANDOM_STARTS, _SPLIT_STARTS, _RANK_SPLITS = 60, 8, 12
_LARGEST_FLATTENING = 2_000_000  # entries of a flattening that is searched for known blocks
_CLEAR_GAP = 20


def detect_rank(
    entries: Array,
    known: NDArray[np.bool_],
    order: int,
    dimension: int,
    *,
    rng: np.random.Generator,
    tol: float = 1e-9,
) -> tuple[int, bool]:
    """Rank of the known blocks of the flattenings, where they reveal it.

    Parameters
    ----------
    entries, known : ndarray, shape (C(n+m-1, m),)
        All entries, lexicographic, and which are known.
    order, dimension : int
        m and n.
    rng : Generator
        Source of random splits of the coordinates.
    tol : float, default 1e-9
        Relative size of singular values that count as zero.

    Returns
    -------
    rank : int
        The largest rank of a block: by `tol` where that leaves a larger block deficient, and
        otherwise by the largest gap over the largest blocks.
    revealed : bool
        False when no block is deficient: then `rank` is a lower bound only.

    Examples
    --------
    >>> import numpy as np
    >>> indices = multi_indices(6, 3)
    >>> entries = np.arange(1.0, 7.0)[indices].prod(axis=1)
    >>> detect_rank(entries, (np.diff(indices, axis=1) > 0).all(axis=1), 3, 6,
    ...             rng=np.random.default_rng(0))
    (1, True)
    """
    spectra: list[Array] = []
    for k in range(1, order // 2 + 1):
        rows, columns = multi_indices(dimension, k), multi_indices(dimension, order - k)
        if len(rows) * len(columns) > _LARGEST_FLATTENING:
            continue
        position = catalecticant_positions(dimension, order, k)
        for _ in range(_RANK_SPLITS):
            chosen = _known_block(known[position], rows, columns, dimension, rng)
            block = entries[position[np.ix_(*chosen)]]
            if min(block.shape):
                spectra.append(np.linalg.svd(block, compute_uv=False))
    if not spectra:
        return 1, False
    size = max(map(len, spectra))
    strict = max(int(np.sum(s > tol * s[0])) for s in spectra)
    if strict < size:
        return max(strict, 1), True
    guesses = [numerical_rank(s, tol) for s in spectra if len(s) == size]
    by_gap = [rank for rank, gap in guesses if gap >= _CLEAR_GAP]
    # noise: most of the largest blocks must agree that they are deficient
    if 2 * len(by_gap) > len(guesses):
        return max(by_gap), True
    return strict, False


def _known_block(
    mask: NDArray[np.bool_], rows: Array, columns: Array, dimension: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Rows and columns of a block that is completely known: start from a random split, prune."""
    inside = np.zeros(dimension, dtype=bool)
    inside[rng.permutation(dimension)[: int(rng.integers(1, dimension + 1))]] = True
    # rows inside the split; if it is everything, the pruning alone decides
    row_set = np.flatnonzero(inside[rows].all(axis=1))
    outside = ~inside if not inside.all() else inside
    column_set = np.flatnonzero(outside[columns].all(axis=1))
    part = mask[np.ix_(row_set, column_set)]
    while part.size and not part.all():
        by_row, by_column = (~part).mean(axis=1), (~part).mean(axis=0)
        if by_row.max() >= by_column.max():
            row_set = np.delete(row_set, by_row.argmax())
        else:
            column_set = np.delete(column_set, by_column.argmax())
        part = mask[np.ix_(row_set, column_set)]
    return row_set, column_set


def search_incomplete(
    fit: EntryFit,
    entries: Array,
    known: NDArray[np.bool_],
    rank: int,
    *,
    rng: np.random.Generator,
    refine: bool = True,
    tolerances: Tolerances | None = None,
) -> Outcome:
    """Decompose a symmetric tensor from some of its entries.

    Parameters
    ----------
    fit : EntryFit
        The known entries.
    entries, known : ndarray, shape (C(n+m-1, m),)
        All entries, lexicographic, and which are known.
    rank : int
        Number of terms.
    rng : Generator
        Source of all random choices.
    refine : bool, default True
        Whether algebraic results are refined by least squares.
    tolerances : Tolerances, optional
        Relative sizes that count as zero.

    Returns
    -------
    Outcome
        The terms; the message says whether algebra or random starts found them.

    Examples
    --------
    >>> import numpy as np
    >>> indices = multi_indices(6, 3)
    >>> entries = np.arange(1.0, 7.0)[indices].prod(axis=1)
    >>> known = (np.diff(indices, axis=1) > 0).all(axis=1)
    >>> fit = EntryFit(indices[known], entries[known], np.ones(known.sum()), 6)
    >>> search_incomplete(fit, entries, known, 1, rng=np.random.default_rng(0)).status
    'exact'
    """
    limits = tolerances or Tolerances()
    order, dimension = fit.order, fit.dimension
    pool = Pool(fit, limits.residual, refine)
    bound = largest_rank(dimension, order, "homogeneous")
    indices = multi_indices(dimension, order)
    distinct = np.all(np.diff(indices, axis=1) > 0, axis=1)
    square_free = not known[~distinct].any()
    algebraic = rank <= bound and bool(known[distinct].all())
    if algebraic:
        note = "By the generating polynomials: "
        for points in _split_starts(entries, distinct, order, dimension, rank, rng):
            pool.add(points)
            if pool.settled(real=False):
                break
    else:
        reason = (
            f"rank {rank} exceeds the bound {bound} of the generating polynomials"
            if rank > bound
            else "entries with distinct indices are missing"
        )
        note = f"{reason}: least squares from random starts. "
    several = _RANDOM_STARTS if rank * (dimension + 1) <= 80 else _RANDOM_STARTS // 4
    for _ in range(3 if algebraic else several):
        if pool.settled(real=not algebraic) or (algebraic and not refine):
            break
        pool.add_random(rank, rng, square_free=square_free)
    outcome = verdict(pool, rank, refine)
    return Outcome(outcome.terms, outcome.status, note + outcome.message)


def _split_starts(
    entries: Array,
    distinct: NDArray[np.bool_],
    order: int,
    dimension: int,
    rank: int,
    rng: np.random.Generator,
) -> list[Array]:
    """Points of several random splits, the best fits first."""
    found = []
    indices = multi_indices(dimension, order)[distinct]
    for _ in range(_SPLIT_STARTS):
        try:
            points, weights = homogeneous_components(
                entries, distinct, order, dimension, rank, rng=rng, n_splits=1
            )
        except np.linalg.LinAlgError:
            continue
        model = weights @ points[:, indices].prod(axis=2)
        found.append((float(np.linalg.norm(model - entries[distinct])), points))
    return [points for _, points in sorted(found, key=lambda item: item[0])]
