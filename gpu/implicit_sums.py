"""Sums over data rows of elementary symmetric polynomials: moments that are never formed.

The square-free monomials of degree q of a row x and of a point z have the inner product
``e_q(x_1 z_1, .., x_d z_d)``. By Newton's identities it follows from the power sums
``p_k = sum_j (x_j z_j)^k``, and so do its derivatives; over many rows and points, power sums are
matrix products.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import array_api_compat
import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.row_chunks import rows_of

__all__ = ["elementary_from_powers", "implicit_sums", "product_sums", "sweep_sums"]

# rows whose powers are formed at once, on a host and on an accelerator
_HOST_ELEMENTS = 2**16
_DEVICE_ELEMENTS = 2**24
# cells that a thread takes at once: parts do not depend on the number of threads, nor do sums
_PART = 2**17
# a thread must have at least this many products to be worth its start
_PRODUCTS = 2**24


def implicit_sums(
    X: Any, sample_weight: Any, points: Any, order: int, factors: Any, *, power: int = 1
) -> tuple[Any, Any]:
    """Sum polynomials of the products of rows with points, in one pass over the rows.

    Parameters
    ----------
    X : array of float, shape (N, d)
        Rows of any array-API namespace; computed in float64 where they live.
    sample_weight : array of float, shape (N,), or None
        Weights, in X's namespace; rows of weight 0 are dropped. None means 1.
    points : array of float64, shape (r, d)
        Points z_s, in X's namespace.
    order : int
        Highest degree m >= 1 of the values.
    factors : sequence of float, length at most m + 1
        Factor C_q of every degree q from 0, in `reads`.
    power : int, default 1
        Power p >= 0 of the coordinate that is read.

    Returns
    -------
    values : array of float64, shape (r, m + 1)
        ``sum_n w_n e_q(x_n * z_s)`` for every degree q.
    reads : array of float64, shape (r, d)
        ``sum_n w_n x_nj^p sum_q C_q e_q(x_n * z_s without coordinate j)``. With p = 1 and the
        factors ``C_1, .., C_m`` these are the derivatives of ``sum_n w_n sum_q C_q e_q(x_n * z_s)``
        by the coordinates of the points.

    Raises
    ------
    ShapeError
        The shapes do not belong together.
    ValueError
        `order`, `power` or the number of factors is out of range.

    References
    ----------
    .. [1] S. Sherman, T. G. Kolda, "Estimating higher-order moments using symmetric tensor
       decomposition", SIAM J. Matrix Anal. Appl. 41 (2020): moments that stay implicit. That
       work has all monomials, hence powers of inner products; square-free ones need the
       elementary symmetric polynomials.

    Examples
    --------
    >>> values, reads = implicit_sums(
    ...     np.array([[2.0, 3.0, 5.0]]), None, np.ones((1, 3)), 3, [1.0, 1.0])
    >>> values.tolist()  # 1, 2 + 3 + 5, 2 * 3 + 2 * 5 + 3 * 5, 2 * 3 * 5
    [[1.0, 10.0, 31.0, 30.0]]
    >>> reads.tolist()  # 2 (1 + 8), 3 (1 + 7), 5 (1 + 5)
    [[18.0, 24.0, 30.0]]
    """
    if X.ndim != 2 or points.ndim != 2 or X.shape[1] != points.shape[1]:
        raise ShapeError(
            f"X must have shape (N, d) and points (r, d); got {tuple(X.shape)} and "
            f"{tuple(points.shape)}"
        )
    if order < 1 or power < 0 or not 1 <= len(factors) <= order + 1:
        raise ValueError(
            f"order must be at least 1, power at least 0, and factors 1 to order + 1 numbers; "
            f"got order={order}, power={power} and {len(factors)} factors"
        )
    compute = sweep_sums if isinstance(X, np.ndarray) else product_sums
    return compute(X, sample_weight, points, order, factors, power=power)


def sweep_sums(
    X: Any, sample_weight: Any, points: Any, order: int, factors: Any, *, power: int = 1
) -> tuple[Any, Any]:
    """Compute what `implicit_sums` says by a compiled sweep over numpy rows, on several threads.

    Parameters
    ----------
    X, sample_weight, points, order, factors, power
        As in `implicit_sums`; numpy arrays.

    Returns
    -------
    values, reads : ndarray
        As in `implicit_sums`; the same on any number of threads.

    Examples
    --------
    >>> sweep_sums(np.array([[2.0, 3.0]]), None, np.ones((1, 2)), 2, [1.0])[1].tolist()
    [[2.0, 3.0]]
    """
    from tensoralg.gpu.implicit_kernels import COLUMNS, sum_rows

    r, d = points.shape
    padded = np.zeros((r, -(-d // COLUMNS) * COLUMNS))
    padded[:, :d] = points
    degree_factors = np.array(factors, dtype=np.float64)

    # tuples whose lengths tell the compiler how often to unroll
    counts = (0,) * order, (0,) * (len(factors) - 1), (0,) * power

    def part(rows_and_weight: tuple[Any, Any]) -> tuple[Any, Any]:
        rows, w = rows_and_weight
        values, reads = np.zeros((r, order + 1)), np.zeros(padded.shape)
        # compiled code would treat a read-only array as another type
        weight = np.zeros(0) if w is None else np.array(w)
        sum_rows(rows, weight, padded, degree_factors, *counts, values, reads)
        return values, reads

    size = max(64, _PART // max(d, 1))
    threads = _threads(-(-X.shape[0] // size), X.size * r * 2 * order)
    values, reads = np.zeros((r, order + 1)), np.zeros(padded.shape)
    with ThreadPoolExecutor(threads) as pool:
        parts = rows_of(X, sample_weight, size)
        for more, read in pool.map(part, parts) if threads > 1 else map(part, parts):
            values += more
            reads += read
    return values, np.ascontiguousarray(reads[:, :d])


def _threads(parts: int, products: int) -> int:
    """Count the threads that so many products in so many parts are worth."""
    worth = min(parts, products // _PRODUCTS)
    if worth < 2:
        return 1
    from tensoralg.gpu.register_tiles import thread_count

    return min(worth, thread_count())


def product_sums(
    X: Any, sample_weight: Any, points: Any, order: int, factors: Any, *, power: int = 1
) -> tuple[Any, Any]:
    """Compute what `implicit_sums` says by matrix products, in any namespace.

    Parameters
    ----------
    X, sample_weight, points, order, factors, power
        As in `implicit_sums`.

    Returns
    -------
    values, reads : array
        As in `implicit_sums`.

    Examples
    --------
    >>> product_sums(np.array([[2.0, 3.0]]), None, np.ones((1, 2)), 2, [1.0])[1].tolist()
    [[2.0, 3.0]]
    """
    xp, device = namespace_of(X, points), array_api_compat.device(X)
    z = [xp.ones_like(points)]
    for _ in range(order):
        z.append(z[-1] * points)
    degrees, top = order + 1, len(factors)
    values = [xp.zeros(points.shape[0], dtype=xp.float64, device=device) for _ in range(degrees)]
    reads = xp.zeros_like(points)
    host = "cpu" in str(device).lower()
    size = max(64, (_HOST_ELEMENTS if host else _DEVICE_ELEMENTS) // max(points.shape[1], 1))
    for rows, w in rows_of(X, sample_weight, size):
        x = [xp.ones_like(rows)]
        for _ in range(max(order, top - 1 + power)):
            x.append(x[-1] * rows)
        e = elementary_from_powers([x[k] @ z[k].T for k in range(1, degrees)])
        weight = xp.ones_like(rows[:, 0]) if w is None else w
        values = [v + weight @ part for v, part in zip(values, e, strict=True)]
        for a in range(top):
            kept = sum(float(factors[q]) * e[q - a] for q in range(a, top))
            sums = xp.matrix_transpose(kept * weight[:, None]) @ x[a + power]
            reads = reads + (z[a] * sums if a % 2 == 0 else -(z[a] * sums))
    return xp.stack(values, axis=1), reads


def elementary_from_powers(power_sums: list[Any]) -> list[Any]:
    """Elementary symmetric polynomials from power sums, by Newton's identities.

    Parameters
    ----------
    power_sums : list of array
        ``p_1, .., p_m``, at least one.

    Returns
    -------
    list of array
        ``e_0, .., e_m``.

    Examples
    --------
    >>> [float(e) for e in elementary_from_powers([np.float64(10.0), np.float64(38.0)])]
    [1.0, 10.0, 31.0]
    """
    e = [power_sums[0] * 0.0 + 1.0]
    for q in range(1, len(power_sums) + 1):
        total = power_sums[0] * 0.0
        for k in range(1, q + 1):
            term = e[q - k] * power_sums[k - 1]
            total = total + term if k % 2 == 1 else total - term
        e.append(total / float(q))
    return e
