"""Densities and probabilities of rows, in memory or where the chunks of a Dask array are."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures.dask_rows import DaskRows, as_dask_array, checked_block
from tensoralg.solvers.expectation_maximization import log_density, responsibilities

__all__ = ["Scorer", "lazily", "total_score"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Scorer:
    """A mixture as workers need it.

    Attributes
    ----------
    weights : ndarray of shape (r,)
    means, covariances : ndarray of shape (r, d)
        Parameters; means are measured from the origin.
    origin : ndarray of shape (d,)
        One of the means: large offsets would cost digits.
    missing : bool
        Whether NaN is a missing cell.
    """

    weights: Array
    means: Array
    covariances: Array
    origin: Array
    missing: bool

    def log_density(self, X: Array) -> Array:
        """Return ``log p(x)`` of checked rows."""
        return log_density(X, *self._mixture(), shift=self.origin, missing=self.missing)

    def responsibilities(self, X: Array) -> Array:
        """Return the probabilities of the components of checked rows."""
        return responsibilities(X, *self._mixture(), shift=self.origin, missing=self.missing)

    def labels(self, X: Array) -> Array:
        """Return the most probable components of checked rows."""
        return np.asarray(self.responsibilities(X).argmax(axis=1))

    def sums(self, number: int, X: Array, weights: Array | None) -> Array:
        """Sum the weighted log densities, and the weights, of one unchecked chunk."""
        X, w = _checked(self, X, weights)
        scores = self.log_density(X)
        return np.array([scores.sum(), len(X)] if w is None else [w @ scores, w.sum()])

    def _mixture(self) -> tuple[Array, Array, Array]:
        return self.weights, self.means, self.covariances


def _checked(scorer: Scorer, X: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Check a chunk; unlike in a fit, rows without any cell stay: their density is 1."""
    rows, w = checked_block(X, weights, missing=scorer.missing, empty=True)
    return rows, w


def _width_checked(X: Any, scorer: Scorer) -> Any:
    X = as_dask_array(X)
    if X.shape[1] != len(scorer.origin):
        raise ShapeError(f"X has {X.shape[1]} features; the mixture has {len(scorer.origin)}")
    return X


def lazily(X: Any, scorer: Scorer, method: str, dtype: Any, columns: int | None = None) -> Any:
    """Return the results of a method of all rows as a Dask array, to be computed when asked for.

    Parameters
    ----------
    X : dask.array.Array or data frame, shape (N, d)
        Rows; they stay where they are.
    scorer : Scorer
        The mixture.
    method : str
        Name of a method of rows.
    dtype : dtype
        Of its results.
    columns : int, optional
        Width of its results; without it they have one axis.

    Returns
    -------
    dask.array.Array
        With the chunks of X.
    """
    X = _width_checked(X, scorer)
    call = partial(_of_block, scorer, method)
    meta = np.empty((0,) if columns is None else (0, columns), dtype=dtype)
    options: dict[str, Any] = {"drop_axis": 1} if columns is None else {}
    if columns is not None:
        options["chunks"] = (X.chunks[0], (columns,))
    return X.map_blocks(call, dtype=dtype, meta=meta, **options)


def _of_block(scorer: Scorer, method: str, X: Array, block_info: Any = None) -> Array:
    place = block_info[None]["chunk-location"][0] if block_info else 0
    function: Callable[[Array], Array] = getattr(scorer, method)
    try:
        return function(_checked(scorer, X, None)[0])
    except ValueError as error:
        raise type(error)(f"chunk {place} of X: {error}") from None


def total_score(X: Any, sample_weight: Any, scorer: Scorer) -> tuple[float, float]:
    """Sum log densities where the chunks of a Dask array are.

    Parameters
    ----------
    X : dask.array.Array or data frame, shape (N, d)
        Rows.
    sample_weight : array_like, Dask array or None
        Weights.
    scorer : Scorer
        The mixture.

    Returns
    -------
    tuple of float
        Sum of the weighted log densities, sum of the weights.

    Raises
    ------
    ValueError
        No row of positive weight.
    """
    rows = DaskRows(_width_checked(X, scorer), sample_weight, missing=None)
    found = rows.reduce(scorer.sums, np.add)
    if found is None or not found[1] > 0:
        raise ValueError("X has no row of positive weight")
    return float(found[0]), float(found[1])
