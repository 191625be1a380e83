"""Compiled sums of `tensoralg.gpu.implicit_sums`, imported on first use: numba is slow to load."""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "sum_rows"]

FloatArray = NDArray[np.float64]

COLUMNS = 4  # handled at once: points come padded with columns of 0
_BLOCK = 32  # rows: a block of 2,000 columns stays in the second-level cache
# sums may be reordered and fused, so that they run in vector registers; NaN stays NaN
_SUMS = {"reassoc", "contract", "nsz"}


@numba.njit(cache=True, nogil=True)
def sum_rows(
    X: FloatArray,
    weight: FloatArray,
    points: FloatArray,
    factors: FloatArray,
    orders: tuple[int, ...],
    degrees: tuple[int, ...],
    powers: tuple[int, ...],
    values: FloatArray,
    reads: FloatArray,
) -> None:
    """Add the sums over the rows to `values` (r, m + 1) and `reads` (r, padded d).

    `points` is (r, padded d); an empty weight means ones. The lengths of `orders`, `degrees` and
    `powers` are m, that of `factors` less 1, and the power that is read.
    """
    rows, dimension = X.shape
    order = len(orders)
    columns = np.zeros((points.shape[1], _BLOCK))
    w = np.zeros(_BLOCK)
    sums, e = np.zeros((order + 1, _BLOCK)), np.zeros((order + 1, _BLOCK))
    coefficients = np.zeros((len(factors), _BLOCK))
    for begin in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - begin)
        for i in range(count):
            w[i] = weight[begin + i] if len(weight) > 0 else 1.0
            row = X[begin + i]
            for j in range(dimension):
                columns[j, i] = row[j]
        if count < _BLOCK:
            columns[:, count:] = 0.0
            w[count:] = 0.0
        for s in range(len(points)):
            _power_sums(columns, points[s], orders, sums)
            _elementary(sums, e)
            for q in range(order + 1):
                values[s, q] += _dot(e[q], w)
            _coefficients(e, factors, w, coefficients)
            _read(columns, points[s], coefficients, degrees, powers, reads[s])


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _dot(a: FloatArray, b: FloatArray) -> float:
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _power_sums(
    columns: FloatArray, point: FloatArray, degrees: tuple[int, ...], sums: FloatArray
) -> None:
    """Power sums of degree 1 to m of the products of each row with the point."""
    sums[:] = 0.0
    for j in range(0, columns.shape[0], COLUMNS):
        x0, x1, x2, x3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        z0, z1, z2, z3 = point[j], point[j + 1], point[j + 2], point[j + 3]
        for i in range(_BLOCK):
            a, b, c, d = x0[i] * z0, x1[i] * z1, x2[i] * z2, x3[i] * z3
            ak, bk, ck, dk = a, b, c, d
            # unrolled: the length of a tuple is known to the compiler
            for k in range(1, len(degrees) + 1):
                sums[k, i] += (ak + bk) + (ck + dk)
                ak *= a
                bk *= b
                ck *= c
                dk *= d


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _elementary(sums: FloatArray, e: FloatArray) -> None:
    """Elementary symmetric polynomials from power sums, by Newton's identities."""
    e[0] = 1.0
    for q in range(1, e.shape[0]):
        e[q] = 0.0
        for k in range(1, q + 1):
            sign = 1.0 / q if k % 2 == 1 else -1.0 / q
            target, lower, power = e[q], e[q - k], sums[k]
            for i in range(_BLOCK):
                target[i] += sign * lower[i] * power[i]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _coefficients(
    e: FloatArray, factors: FloatArray, weight: FloatArray, coefficients: FloatArray
) -> None:
    """Write ``(-1)^a w sum_q factors[q] e_{q-a}``, the powers of c in a sum without c."""
    for a in range(len(factors)):
        target = coefficients[a]
        for i in range(_BLOCK):
            target[i] = 0.0
        for q in range(a, len(factors)):
            lower, factor = e[q - a], factors[q] if a % 2 == 0 else -factors[q]
            for i in range(_BLOCK):
                target[i] += factor * lower[i]
        for i in range(_BLOCK):
            target[i] *= weight[i]


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _read(
    columns: FloatArray,
    point: FloatArray,
    coefficients: FloatArray,
    degrees: tuple[int, ...],
    powers: tuple[int, ...],
    read: FloatArray,
) -> None:
    """Add the sums of x_j^p times a polynomial in c_j = x_j z_j; lengths of tuples tell degrees."""
    for j in range(0, columns.shape[0], COLUMNS):
        x0, x1, x2, x3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        z0, z1, z2, z3 = point[j], point[j + 1], point[j + 2], point[j + 3]
        t0 = t1 = t2 = t3 = 0.0
        for i in range(_BLOCK):
            a, b, c, d = x0[i] * z0, x1[i] * z1, x2[i] * z2, x3[i] * z3
            k = coefficients[len(degrees), i]
            ta, tb, tc, td = k, k, k, k
            for q in range(1, len(degrees) + 1):
                k = coefficients[len(degrees) - q, i]
                ta = ta * a + k
                tb = tb * b + k
                tc = tc * c + k
                td = td * d + k
            for _ in range(len(powers)):
                ta *= x0[i]
                tb *= x1[i]
                tc *= x2[i]
                td *= x3[i]
            t0 += ta
            t1 += tb
            t2 += tc
            t3 += td
        read[j] += t0
        read[j + 1] += t1
        read[j + 2] += t2
        read[j + 3] += t3
