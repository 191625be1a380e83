"""Starts for expectation-maximization when nothing better is known: k-means++ on raw arrays.

A draw depends on the distinct rows and their total weights only: repeating a row equals giving it
weight, and the order of rows does not matter.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError

FloatArray = npt.NDArray[np.float64]

_MAX_ROWS = 20_000  # seeding needs the shape of the data, not every row


def kmeans_plus_plus(
    X: npt.ArrayLike,
    n_clusters: int,
    *,
    sample_weight: npt.ArrayLike | None = None,
    rng: int | np.random.Generator | None = None,
    n_trials: int | None = None,
) -> FloatArray:
    """Draw cluster centres from the rows by k-means++.

    Parameters
    ----------
    X : (n, d) array_like
        Finite where the weight is positive.
    n_clusters : int
        At most the number of distinct rows.
    sample_weight : (n,) array_like, optional
        Weight 0 counts as deletion.
    rng : int, Generator or None
    n_trials : int, optional
        Candidates for each centre; scikit-learn's default when None.

    Returns
    -------
    (n_clusters, d) array

    Raises
    ------
    ShapeError
        X is not a table, or sample_weight does not fit it.
    ValueError
        There are fewer distinct rows than clusters, or a row is not finite.

    References
    ----------
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, SODA 2007.

    Examples
    --------
    >>> centers = kmeans_plus_plus([[0.0], [0.0], [5.0]], 2, rng=0)
    >>> sorted(centers[:, 0].tolist())
    [0.0, 5.0]
    """
    generator = np.random.default_rng(rng)
    rows, weight = _subsample(*_distinct_rows(X, sample_weight), generator)
    if np.isnan(rows).any():
        raise ValueError("X holds NaN; expected finite numbers")
    _check_count(n_clusters, "n_clusters")
    if n_clusters > len(rows):
        raise ValueError(f"n_clusters={n_clusters}, but X has {len(rows)} distinct rows")
    return _seed(rows, weight, n_clusters, generator, n_trials)


def initial_parameters(
    X: npt.ArrayLike,
    n_components: int,
    *,
    sample_weight: npt.ArrayLike | None = None,
    rng: int | np.random.Generator | None = None,
    floor: npt.ArrayLike = 1e-6,
    shift: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mixture parameters from k-means++ and a few k-means iterations, in standardised coordinates.

    Parameters
    ----------
    X : (n, d) array_like
        NaN cells take the mean of their column.
    n_components : int
    sample_weight : (n,) array_like, optional
        Weight 0 counts as deletion.
    rng : int, Generator or None
    floor : float or (d,) array_like
        Smallest variance, in standardised coordinates.
    shift, scale : (d,) array_like, optional
        0 and 1 when None.

    Returns
    -------
    weights, means, covariances : (r,), (r, d), (r, d) arrays
        r is n_components, or the number of distinct rows when that is smaller.

    Raises
    ------
    ShapeError
        X is not a table, or another array does not fit it.
    ValueError
        n_components is below 1, or X holds inf.

    Examples
    --------
    >>> weights, means, covariances = initial_parameters([[0.0], [0.2], [5.0], [5.2]], 2, rng=0)
    >>> weights
    array([0.5, 0.5])
    >>> sorted(means[:, 0].round(6).tolist())
    [0.1, 5.1]
    """
    return several_initial_parameters(
        X,
        n_components,
        1,
        sample_weight=sample_weight,
        rng=rng,
        floor=floor,
        shift=shift,
        scale=scale,
    )[0]


def several_initial_parameters(
    X: npt.ArrayLike,
    n_components: int,
    n_starts: int,
    *,
    sample_weight: npt.ArrayLike | None = None,
    rng: int | np.random.Generator | None = None,
    floor: npt.ArrayLike = 1e-6,
    shift: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Draw several starts from rows that are prepared once.

    Parameters
    ----------
    X, n_components, sample_weight, rng, floor, shift, scale
        As for `initial_parameters`.
    n_starts : int
        How many.

    Returns
    -------
    list of (weights, means, covariances)

    Raises
    ------
    ShapeError, ValueError
        As `initial_parameters`.

    Examples
    --------
    >>> X = [[0.0], [0.2], [5.0], [5.2]]
    >>> [weights.tolist() for weights, _, _ in several_initial_parameters(X, 2, 3, rng=0)]
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    _check_count(n_components, "n_components")
    generator = np.random.default_rng(rng)
    rows, weight = _distinct_rows(X, sample_weight)
    rows = (rows - (0.0 if shift is None else np.asarray(shift, dtype=np.float64))) / (
        1.0 if scale is None else np.asarray(scale, dtype=np.float64)
    )
    rows, weight = _subsample(_fill(rows, weight), weight, generator)
    least = np.asarray(floor, dtype=np.float64)
    return [_clustered(rows, weight, n_components, generator, least) for _ in range(n_starts)]


def _clustered(
    rows: FloatArray,
    weight: FloatArray,
    n_components: int,
    rng: np.random.Generator,
    floor: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Shares, means and variances of clusters."""
    from sklearn.cluster import KMeans

    r = min(n_components, len(rows))
    centers = _seed(rows, weight, r, rng, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten iterations are not meant to converge
        labels = KMeans(r, init=centers, n_init=1, max_iter=10).fit_predict(
            rows, sample_weight=weight
        )
    mass, means, variances = [], [], []
    for s in np.unique(labels):
        member = labels == s
        cluster, share = rows[member], weight[member]
        total = share.sum()
        mean = share @ cluster / total
        mass.append(total)
        means.append(mean)
        variances.append(share @ (cluster - mean) ** 2 / total)
    covariances = np.maximum(np.array(variances), floor)
    return np.array(mass) / np.sum(mass), np.array(means), covariances


def _seed(
    rows: FloatArray,
    weight: FloatArray,
    n_clusters: int,
    rng: np.random.Generator,
    n_trials: int | None,
) -> FloatArray:
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(
        rows,
        n_clusters,
        sample_weight=weight,
        random_state=int(rng.integers(2**31 - 1)),
        n_local_trials=n_trials,
    )
    return np.asarray(centers, dtype=np.float64)


def _distinct_rows(
    X: npt.ArrayLike, sample_weight: npt.ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Distinct rows, in an order that depends on their values only, with summed weights."""
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ShapeError(f"X: shape {rows.shape}, expected (n, d) with d >= 1")
    weight = np.ones(len(rows)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    if weight.shape != (len(rows),):
        raise ShapeError(f"sample_weight: shape {weight.shape}, expected ({len(rows)},)")
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.sum() > 0):
        raise ValueError("sample_weight: expected finite, nonnegative numbers, not all 0")
    rows, weight = rows[weight > 0], weight[weight > 0]
    if np.isinf(rows).any():
        raise ValueError("X holds inf; expected finite numbers")
    _, first, inverse = np.unique(_hash(rows), return_index=True, return_inverse=True)
    total = np.asarray(np.bincount(inverse, weights=weight), dtype=np.float64)
    return rows[first], total


def _hash(rows: FloatArray) -> npt.NDArray[np.uint64]:
    """64 bits of each row: sorting them is far cheaper than sorting rows."""
    code = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        bits = np.where(np.isnan(column), np.nan, column + 0.0).view(np.uint64)
        code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    return code


def _fill(rows: FloatArray, weight: FloatArray) -> FloatArray:
    """Replace NaN by the mean of the column."""
    missing = np.isnan(rows)
    if not missing.any():
        return rows
    mass = weight @ ~missing
    means = weight @ np.where(missing, 0.0, rows) / np.where(mass > 0, mass, 1.0)
    return np.where(missing, means, rows)


def _subsample(
    rows: FloatArray, weight: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """At most `_MAX_ROWS` rows, drawn in proportion to their weights."""
    if len(rows) <= _MAX_ROWS:
        return rows, weight
    counts: npt.NDArray[np.int64] = rng.multinomial(_MAX_ROWS, weight / weight.sum())
    drawn = np.flatnonzero(counts)
    return rows[drawn], np.asarray(counts[drawn], dtype=np.float64)


def _check_count(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: {value!r}; expected an integer >= 1")
