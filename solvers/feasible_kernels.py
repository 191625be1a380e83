"""Inner loops of feasible least squares: numba kernels, imported on first use.

Monomials of all degrees stand in one list, in graded order. Each is its parent, one degree lower,
times one coordinate; arrays over monomials and points keep the points adjacent.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["fill_normal_matrix", "pull_back", "push_forward"]

_sums = njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, nogil=True, error_model="numpy")


@_sums
def push_forward(weights, points, parent, last, moments, products, residual):  # type: ignore[no-untyped-def]
    """Write products and residuals of all monomials.

    Parameters
    ----------
    weights : (r,) array
    points : (d, r) array
    parent, last : (M,) int64 arrays
        Monomial i is monomial parent[i] times coordinate last[i]; number 0 is the constant.
    moments : (M,) array
    products : (M, r) array
        Out: the monomials at the points.
    residual : (M,) array
        Out: weighted sums less the moments.
    """
    r = weights.shape[0]
    total = 0.0
    for s in range(r):
        products[0, s] = 1.0
        total += weights[s]
    residual[0] = total - moments[0]
    for i in range(1, parent.shape[0]):
        below, factor, row = products[parent[i]], points[last[i]], products[i]
        total = 0.0
        for s in range(r):
            value = below[s] * factor[s]
            row[s] = value
            total += weights[s] * value
        residual[i] = total - moments[i]


@_sums
def pull_back(weights, points, parent, last, products, residual, carried, by_weight, by_point):  # type: ignore[no-untyped-def]
    """Write the gradient of half the squared norm of the residuals, by reverse accumulation.

    Parameters
    ----------
    weights, points, parent, last, products
        As in `push_forward`.
    residual : (M,) array
        Times the squared factors of the rows.
    carried : (M, r) array
        Workspace.
    by_weight : (r,) array
    by_point : (d, r) array
        Out: the gradient.
    """
    count, r = products.shape
    for i in range(count):
        for s in range(r):
            carried[i, s] = weights[s] * residual[i]
    by_weight[:] = 0.0
    by_point[:] = 0.0
    for i in range(count - 1, 0, -1):
        here, up, below = carried[i], carried[parent[i]], products[parent[i]]
        factor, row, out = points[last[i]], products[i], by_point[last[i]]
        rest = residual[i]
        for s in range(r):
            out[s] += here[s] * below[s]
            up[s] += here[s] * factor[s]
            by_weight[s] += rest * row[s]
    for s in range(r):
        by_weight[s] += residual[0]


@_sums
def fill_normal_matrix(weights, points, squared, normal):  # type: ignore[no-untyped-def]
    """Write the normal matrix of `normal_matrix`, pair of points by pair of points.

    Parameters
    ----------
    weights : (r,) array
    points : (r, d) array
    squared : (m + 1,) array
        Squared factors of the degrees.
    normal : (r (d + 1), r (d + 1)) array
        Out.
    """
    r, d = points.shape
    m = squared.shape[0] - 1
    c, e, rest = np.empty(d), np.empty(m + 1), np.empty(m + 1)
    twice = np.empty(d)
    for s in range(r):
        for t in range(s, r):
            e[:] = 0.0
            e[0] = 1.0
            for j in range(d):
                c[j] = points[s, j] * points[t, j]
                for q in range(m, 0, -1):
                    e[q] += c[j] * e[q - 1]
            total = 0.0
            for q in range(m + 1):
                total += e[q] * squared[q]
            normal[s, t] = normal[t, s] = total
            both = weights[s] * weights[t]
            for j in range(d):
                # without coordinate j, then without k as well: e_q - c e_{q-1} of the rest
                rest[0] = 1.0
                once = squared[1] if m > 0 else 0.0
                for q in range(1, m):
                    rest[q] = e[q] - c[j] * rest[q - 1]
                    once += rest[q] * squared[q + 1]
                row, column = r + s * d + j, r + t * d
                normal[s, column + j] = weights[t] * points[s, j] * once
                normal[column + j, s] = normal[s, column + j]
                normal[t, row] = weights[s] * points[t, j] * once
                normal[row, t] = normal[t, row]
                _without_two(rest, c, squared, twice)
                factor = both * points[t, j]
                for k in range(d):
                    normal[row, column + k] = factor * points[s, k] * twice[k]
                normal[row, column + j] = both * once
                if t > s:
                    for k in range(d):
                        normal[column + k, row] = normal[row, column + k]


@_sums
def _without_two(rest, c, squared, twice):  # type: ignore[no-untyped-def]
    """Sum the weighted degrees of `rest` without one more coordinate, for each of them."""
    m = squared.shape[0] - 1
    for k in range(c.shape[0]):
        value, total = 1.0, squared[2] if m > 1 else 0.0
        for q in range(1, m - 1):
            value = rest[q] - c[k] * value
            total += value * squared[q + 2]
        twice[k] = total
