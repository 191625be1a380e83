"""Data rows, chunk by chunk: temporaries never grow with the number of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of

__all__ = ["chunk_mean", "rows_of"]

_MEAN_ROWS = 2**12


def chunk_mean(X: Any, weight: Any, *, missing: bool = False) -> Any:
    """Weighted mean of every column, in one pass over row chunks.

    Parameters
    ----------
    X : array, shape (N, d)
        Real rows of any namespace.
    weight : array, shape (N,), or None
        Weights >= 0, not all 0; None means 1.
    missing : bool, default False
        NaN marks a missing value, which is left out; a column without any value has mean 0.

    Returns
    -------
    array of float64, shape (d,)
        In X's namespace. A constant column comes out without rounding.

    Examples
    --------
    >>> chunk_mean(np.array([[1.0, 5.0], [3.0, 5.0]]), None).tolist()
    [2.0, 5.0]
    """
    xp = namespace_of(X)
    fast = isinstance(X, np.ndarray) and not missing
    origin: Any = None
    total: Any = None
    mass: Any = None
    for rows, w in rows_of(X, weight, _MEAN_ROWS):
        present = ~xp.isnan(rows) if missing else None
        if origin is None:
            # differences from a row of the data keep the sums small
            origin = xp.asarray(rows[0, :], copy=True)
            if present is not None:
                origin = xp.where(present[0, :], origin, xp.zeros_like(origin))
            total, mass = xp.zeros_like(origin), xp.zeros_like(origin)
        if present is not None:
            rows = xp.where(present, rows, origin)
        if fast:
            _add_column_sums(rows, w, origin, total)
            mass += rows.shape[0] if w is None else w.sum()
            continue
        factor = xp.ones_like(rows[:, 0]) if w is None else w
        total = total + factor @ (rows - origin)
        mass = mass + (
            xp.sum(factor) if present is None else factor @ xp.astype(present, xp.float64)
        )
    return origin + total / xp.where(mass > 0, mass, xp.ones_like(mass))


def _add_column_sums(rows: Any, w: Any, origin: Any, total: Any) -> None:
    from tensoralg.gpu.moment_kernels import column_sums

    column_sums(rows, np.zeros(0) if w is None else w, origin, total)


def rows_of(X: Any, weight: Any, size: int) -> Iterator[tuple[Any, Any]]:
    """Cut rows into chunks of `size` without those of weight 0, as float64 arrays.

    Parameters
    ----------
    X : array, shape (N, d)
        Real rows of any namespace.
    weight : array, shape (N,), or None
        Weights >= 0, or None.
    size : int
        Rows in a chunk.

    Yields
    ------
    rows : array of float64, shape (n, d)
        A chunk with n <= size; never empty; C-contiguous and writable in numpy.
    weight : array of float64, shape (n,), or None
        Its weights, all positive.

    Examples
    --------
    >>> [len(rows) for rows, _ in rows_of(np.ones((5, 2)), np.array([1, 1, 0, 1, 1.0]), 2)]
    [2, 1, 1]
    """
    xp = namespace_of(X)
    for start in range(0, X.shape[0], size):
        stop = min(start + size, X.shape[0])
        rows = X[start:stop, :]
        w = None
        if weight is not None:
            w = xp.astype(weight[start:stop], xp.float64)
            keep = w > 0
            if not bool(xp.all(keep)):
                rows, w = rows[keep], w[keep]
                if rows.shape[0] == 0:
                    continue
        if isinstance(rows, np.ndarray):
            rows = np.ascontiguousarray(rows, dtype=np.float64)
            # compiled code would treat a read-only array as another type
            yield rows if rows.flags.writeable else rows.copy(), w
        else:
            yield xp.astype(rows, xp.float64), w
