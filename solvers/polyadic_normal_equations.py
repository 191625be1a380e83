"""Compiled normal equations of the polyadic model, imported on first use: numba is slow to load.

All factors lie in one array of shape (n_0 + .. + n_{N-1}, r), the rows of mode k between
``offsets[k]`` and ``offsets[k + 1]``. The Gauss-Newton matrix is never formed: its product with
a direction needs only r x r matrices [1]_.

References
----------
.. [1] L. Sorber, M. Van Barel, L. De Lathauwer, "Optimization-based algorithms for tensor
   decompositions", SIAM Journal on Optimization 23 (2013), section 3.2 and 4.1.
"""

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "conjugate_gradients",
    "curvature_gradient",
    "gauss_newton_product",
    "gram_products",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# sums may be reordered and fused, so that they run in vector registers; NaN stays NaN
_SUMS = {"reassoc", "contract", "nsz"}


# slice assignments and array expressions are written as loops: they compile ten times faster


@numba.njit(cache=True, nogil=True)
def gram_products(factors: FloatArray, offsets: IntArray) -> tuple[FloatArray, FloatArray]:
    """Hadamard products of the Gram matrices of all modes but one, and of all but two."""
    order, rank = len(offsets) - 1, factors.shape[1]
    grams = np.empty((order, rank, rank))
    for n in range(order):
        block = factors[offsets[n] : offsets[n + 1]]
        np.dot(block.T, block, grams[n])
    but_one = np.empty((order, rank, rank))
    but_two = np.empty((order, order, rank, rank))
    for s in range(rank):
        for t in range(rank):
            for n in range(order):
                for m in range(order):
                    product = 1.0
                    for k in range(order):
                        if k not in (n, m):
                            product *= grams[k, s, t]
                    if m == n:
                        but_one[n, s, t] = product
                    but_two[n, m, s, t] = product
    return but_one, but_two


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def gauss_newton_product(
    direction: FloatArray,
    factors: FloatArray,
    offsets: IntArray,
    but_one: FloatArray,
    but_two: FloatArray,
    damping: FloatArray,
    out: FloatArray,
) -> None:
    """Write (J'J + D) times a direction to `out`, with D[n, s] the damping of mode n, column s."""
    order, rank = len(offsets) - 1, factors.shape[1]
    cross = np.empty((order, rank, rank))
    mixed = np.empty((rank, rank))
    for n in range(order):
        begin, end = offsets[n], offsets[n + 1]
        np.dot(direction[begin:end].T, factors[begin:end], cross[n])
    for n in range(order):
        begin, end = offsets[n], offsets[n + 1]
        for s in range(rank):
            for t in range(rank):
                mixed[s, t] = 0.0
        for m in range(order):
            if m != n:
                for s in range(rank):
                    for t in range(rank):
                        mixed[s, t] += cross[m, s, t] * but_two[n, m, s, t]
        own = np.dot(direction[begin:end], but_one[n])
        other = np.dot(factors[begin:end], mixed)
        for i in range(end - begin):
            for s in range(rank):
                out[begin + i, s] = (
                    own[i, s] + other[i, s] + damping[n, s] * direction[begin + i, s]
                )


@numba.njit(cache=True, nogil=True)
def curvature_gradient(
    step: FloatArray,
    factors: FloatArray,
    offsets: IntArray,
    but_two: FloatArray,
    out: FloatArray,
) -> None:
    """Write J'w to `out`, where w is the second derivative of the model along a step."""
    order, rank = len(offsets) - 1, factors.shape[1]
    grams = np.empty((order, rank, rank))
    cross = np.empty((order, rank, rank))
    for n in range(order):
        block = factors[offsets[n] : offsets[n + 1]]
        np.dot(block.T, block, grams[n])
        np.dot(step[offsets[n] : offsets[n + 1]].T, block, cross[n])
    moved = np.empty((rank, rank))
    fixed = np.empty((rank, rank))
    for k in range(order):
        begin, end = offsets[k], offsets[k + 1]
        for s in range(rank):
            for t in range(rank):
                moved[s, t] = 0.0
                fixed[s, t] = 0.0
                for n in range(order):
                    if n == k:
                        continue
                    moved[s, t] += 2.0 * cross[n, s, t] * but_two[k, n, s, t]
                    for m in range(n + 1, order):
                        if m == k:
                            continue
                        product = 2.0 * cross[n, s, t] * cross[m, s, t]
                        for j in range(order):
                            if j not in (n, m, k):
                                product *= grams[j, s, t]
                        fixed[s, t] += product
        own = np.dot(step[begin:end], moved)
        other = np.dot(factors[begin:end], fixed)
        for i in range(end - begin):
            for s in range(rank):
                out[begin + i, s] = own[i, s] + other[i, s]


@numba.njit(cache=True, nogil=True)
def _precondition(
    residual: FloatArray, offsets: IntArray, inverses: FloatArray, out: FloatArray
) -> None:
    """Multiply the rows of every mode by the inverse of its diagonal block."""
    for n in range(len(offsets) - 1):
        begin, end = offsets[n], offsets[n + 1]
        np.dot(residual[begin:end], inverses[n], out[begin:end])


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def _inner(a: FloatArray, b: FloatArray) -> float:
    """Inner product of two arrays of one shape."""
    total = 0.0
    for i in range(a.shape[0]):
        for s in range(a.shape[1]):
            total += a[i, s] * b[i, s]
    return total


@numba.njit(cache=True, nogil=True, fastmath=_SUMS)
def conjugate_gradients(
    gradient: FloatArray,
    factors: FloatArray,
    offsets: IntArray,
    but_one: FloatArray,
    but_two: FloatArray,
    damping: FloatArray,
    inverses: FloatArray,
    max_steps: int,
    tolerance: float,
) -> tuple[FloatArray, float, int]:
    """Solve (J'J + D) step = -gradient; return the step, the predicted decrease, the count.

    The decrease is that of the undamped model, -(g'p + p'J'Jp / 2). Iteration ends when the
    residual in the norm of the preconditioner has fallen by the factor `tolerance`.
    """
    rows, rank = factors.shape
    step = np.zeros((rows, rank))
    residual = np.empty((rows, rank))
    for i in range(rows):
        for s in range(rank):
            residual[i, s] = -gradient[i, s]
    scaled = np.empty((rows, rank))
    product = np.empty((rows, rank))
    _precondition(residual, offsets, inverses, scaled)
    direction = scaled.copy()
    size = first = _inner(residual, scaled)
    count = 0
    while count < max_steps and size > tolerance * tolerance * first:
        gauss_newton_product(direction, factors, offsets, but_one, but_two, damping, product)
        curvature = _inner(direction, product)
        if not curvature > 0.0:
            break
        length = size / curvature
        for i in range(rows):
            for s in range(rank):
                step[i, s] += length * direction[i, s]
                residual[i, s] -= length * product[i, s]
        _precondition(residual, offsets, inverses, scaled)
        previous, size = size, _inner(residual, scaled)
        ratio = size / previous
        for i in range(rows):
            for s in range(rank):
                direction[i, s] = scaled[i, s] + ratio * direction[i, s]
        count += 1
    # the undamped model at the step: (J'J + D) step = -gradient - residual
    damped = 0.0
    for n in range(len(offsets) - 1):
        for i in range(offsets[n], offsets[n + 1]):
            for s in range(rank):
                damped += damping[n, s] * step[i, s] ** 2
    decrease = -0.5 * _inner(gradient, step) + 0.5 * _inner(residual, step) + 0.5 * damped
    return step, decrease, count
