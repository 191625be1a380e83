"""One pass of expectation-maximization over a chunk of rows: numba kernels.

Rows are read in blocks of `BLOCK`, standardised and transposed on load, so that every inner loop
runs over the rows of a block with unit stride. No array of N x r entries exists beyond a block.
Importing this module imports numba; `expectation_maximization` does so on first use.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tensoralg.solvers.vector_functions import exponential, logarithm

BLOCK = 128  # rows: a block of 15 columns and its responsibilities stay in the first-level cache
NEAR = 16.0  # sums about the origin lose NEAR^2 units in the last place of a variance
COLUMNS = 4  # handled at once; blocks are padded with columns of 0 to a multiple
LOWEST = -1e300  # log densities are clipped here: squared distances beyond it overflow
LOG_TWO_PI = 1.8378770664093453

_strict = njit(cache=True, nogil=True, error_model="numpy")
# no `nnan` and `ninf`: wild rows must reach the test for them
_sums = njit(
    fastmath={"reassoc", "contract", "nsz", "arcp"}, cache=True, nogil=True, error_model="numpy"
)


@_strict
def _load(X, start, stop, shift, inverse_scale, weight, values):  # type: ignore[no-untyped-def]
    """Standardise rows start..stop into `values` (>= d, BLOCK); rows of weight 0 become 0."""
    d = X.shape[1]
    i = 0
    # four rows at a time: their values of a column are one vector of `values`
    while start + i + 4 <= stop:
        row = start + i
        x0, x1, x2, x3 = X[row], X[row + 1], X[row + 2], X[row + 3]
        for j in range(d):
            origin, factor, column = shift[j], inverse_scale[j], values[j]
            y0, y1 = (x0[j] - origin) * factor, (x1[j] - origin) * factor
            y2, y3 = (x2[j] - origin) * factor, (x3[j] - origin) * factor
            column[i], column[i + 1], column[i + 2], column[i + 3] = y0, y1, y2, y3
        i += 4
    while start + i < stop:
        for j in range(d):
            values[j, i] = (X[start + i, j] - shift[j]) * inverse_scale[j]
        i += 1
    for i in range(BLOCK):
        if weight[i] == 0.0:
            for j in range(d):
                values[j, i] = 0.0


@_strict
def _mask(values, observed):  # type: ignore[no-untyped-def]
    """Mark the cells that are observed and set the others to 0."""
    for j in range(observed.shape[0]):
        for i in range(BLOCK):
            known = values[j, i] == values[j, i]
            observed[j, i] = 1.0 if known else 0.0
            values[j, i] = values[j, i] if known else 0.0


@_sums
def _log_joint(values, root, offset, constant, q):  # type: ignore[no-untyped-def]
    """q[s, i] = constant_s - sum_j z_sj^2 / 2 with z_sj = x_j root_sj - offset_sj."""
    half = np.sqrt(0.5)
    for s in range(root.shape[0]):
        row = q[s]
        for i in range(BLOCK):
            row[i] = constant[s]
        for j in range(0, values.shape[0], COLUMNS):
            x0, x1, x2, x3 = values[j], values[j + 1], values[j + 2], values[j + 3]
            a0, a1 = half * root[s, j], half * root[s, j + 1]
            a2, a3 = half * root[s, j + 2], half * root[s, j + 3]
            b0, b1 = half * offset[s, j], half * offset[s, j + 1]
            b2, b3 = half * offset[s, j + 2], half * offset[s, j + 3]
            for i in range(BLOCK):
                z0, z1 = x0[i] * a0 - b0, x1[i] * a1 - b1
                z2, z3 = x2[i] * a2 - b2, x3[i] * a3 - b3
                row[i] -= z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3


@_sums
def _log_joint_missing(values, observed, root, offset, constant, q):  # type: ignore[no-untyped-def]
    """As `_log_joint` over the observed cells; `constant` holds the log weights only."""
    for s in range(root.shape[0]):
        row = q[s]
        for i in range(BLOCK):
            row[i] = constant[s]
        for j in range(observed.shape[0]):
            x, known, a, b = values[j], observed[j], root[s, j], offset[s, j]
            level = np.log(a) - 0.5 * LOG_TWO_PI
            for i in range(BLOCK):
                z = x[i] * a - b
                row[i] += known[i] * (level - 0.5 * z * z)


@_strict
def _padded(table):  # type: ignore[no-untyped-def]
    """Append columns of 0 up to a multiple of `COLUMNS`."""
    r, d = table.shape
    result = np.zeros((r, (d + COLUMNS - 1) // COLUMNS * COLUMNS))
    for s in range(r):
        for j in range(d):
            result[s, j] = table[s, j]
    return result


@_sums
def _largest_joint(q, density):  # type: ignore[no-untyped-def]
    """Write the largest of each row's log joint densities; count the far rows."""
    for i in range(BLOCK):
        density[i] = q[0, i]
    for s in range(1, q.shape[0], 2):
        row0, row1 = q[s], q[min(s + 1, q.shape[0] - 1)]
        for i in range(BLOCK):
            a, b, c = row0[i], row1[i], density[i]
            b = b if b > a else a
            density[i] = b if b > c else c
    far = 0
    for i in range(BLOCK):
        far += 0 if density[i] > LOWEST else 1
    return far


@_strict
def _assign_far_rows(values, root, offset, q, density):  # type: ignore[no-untyped-def]
    """Give rows whose squared distances overflow, or are NaN, to their nearest component."""
    for i in range(BLOCK):
        if density[i] > LOWEST:
            continue
        nearest, best = 0, np.inf
        for s in range(root.shape[0]):
            # squares overflow: the largest scaled distance along a column stands for the distance
            largest = 0.0
            for j in range(root.shape[1]):
                largest = max(largest, abs(values[j, i] * root[s, j] - offset[s, j]))
            if largest < best:
                nearest, best = s, largest
        for s in range(root.shape[0]):
            q[s, i] = LOWEST if s == nearest else -np.inf
        density[i] = LOWEST


@_sums
def _exponentiate(q, total):  # type: ignore[no-untyped-def]
    """Exponentials in place and their sums; count the rows whose sum is too small or large."""
    for i in range(BLOCK):
        total[i] = 0.0
    for s in range(q.shape[0]):
        row = q[s]
        # alone in its loop: with the sum beside it the compiled code is slower
        for i in range(BLOCK):
            row[i] = exponential(row[i])
        for i in range(BLOCK):
            total[i] += row[i]
    outside = 0
    for i in range(BLOCK):
        outside += 0 if 1e-200 < total[i] < 1e300 else 1
    return outside


@_sums
def _subtract(q, density):  # type: ignore[no-untyped-def]
    for s in range(q.shape[0]):
        row = q[s]
        for i in range(BLOCK):
            row[i] -= density[i]


@_sums
def _normalise(q, weight, density, total, mass):  # type: ignore[no-untyped-def]
    """Turn exponentials into weight * responsibility and add the log of their sums to `density`."""
    for i in range(BLOCK):
        density[i] += logarithm(total[i])
        total[i] = weight[i] / total[i]
    for s in range(q.shape[0]):
        row = q[s]
        column_sum = 0.0
        for i in range(BLOCK):
            share = row[i] * total[i]
            row[i] = share
            column_sum += share
        mass[s] += column_sum


@_strict
def _expect(values, observed, missing, root, offset, constant, weight, q, density, total, mass):  # type: ignore[no-untyped-def]
    """E step of a block: weight * responsibility in `q`, log densities; return the far rows."""
    far = 0
    if missing:
        _mask(values, observed)
    # exponentials of log joint densities as they are, and less each row's largest where these
    # leave the range of numbers
    for attempt in range(2):
        if missing:
            _log_joint_missing(values, observed, root, offset, constant, q)
        else:
            _log_joint(values, root, offset, constant, q)
        if attempt == 0:
            for i in range(BLOCK):
                density[i] = 0.0
        else:
            far = _largest_joint(q, density)
            if far > 0:
                _assign_far_rows(values, root, offset, q, density)
            _subtract(q, density)
        if _exponentiate(q, total) == 0:
            break
    _normalise(q, weight, density, total, mass)
    return far


@_sums
def _weighted_sum(weight, density):  # type: ignore[no-untyped-def]
    likelihood, total = 0.0, 0.0
    for i in range(BLOCK):
        likelihood += weight[i] * density[i]
        total += weight[i]
    return likelihood, total


@_sums
def _gather_plain(values, q, first, second):  # type: ignore[no-untyped-def]
    """Add the block's sums of r x and r x^2: cheaper, for means within some sd of the origin."""
    r = q.shape[0]
    for s in range(0, r, 2):
        # two components by two columns share their loads; the last may be its own neighbour
        t = min(s + 1, r - 1)
        row0, row1 = q[s], q[t]
        for j in range(0, values.shape[0], 2):
            x, y = values[j], values[j + 1]
            x0, x1, xx0, xx1, y0, y1, yy0, yy1 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(BLOCK):
                x_square, y_square = x[i] * x[i], y[i] * y[i]
                x0 += row0[i] * x[i]
                x1 += row1[i] * x[i]
                xx0 += row0[i] * x_square
                xx1 += row1[i] * x_square
                y0 += row0[i] * y[i]
                y1 += row1[i] * y[i]
                yy0 += row0[i] * y_square
                yy1 += row1[i] * y_square
            first[s, j] += x0
            first[s, j + 1] += y0
            second[s, j] += xx0
            second[s, j + 1] += yy0
            if t > s:
                first[t, j] += x1
                first[t, j + 1] += y1
                second[t, j] += xx1
                second[t, j + 1] += yy1


@_strict
def _recentre(plain, mass, root, offset, first, second):  # type: ignore[no-untyped-def]
    """Add sums of r x and r x^2 to those of r z and r z^2."""
    for s in range(mass.shape[0]):
        for j in range(first.shape[1]):
            a, b, x, xx = root[s, j], offset[s, j], plain[0][s, j], plain[1][s, j]
            first[s, j] += a * x - b * mass[s]
            second[s, j] += a * (a * xx - 2.0 * b * x) + b * b * mass[s]


@_sums
def _gather(values, q, root, offset, first, second):  # type: ignore[no-untyped-def]
    """Add the block's sums of r z and r z^2; z is centred at the current mean."""
    r = root.shape[0]
    for s in range(0, r, 2):
        # two components share the loads of x; the last one may be its own neighbour
        t = min(s + 1, r - 1)
        row0, row1 = q[s], q[t]
        for j in range(first.shape[1]):
            x, a0, a1, b0, b1 = values[j], root[s, j], root[t, j], offset[s, j], offset[t, j]
            linear0, linear1, square0, square1 = 0.0, 0.0, 0.0, 0.0
            for i in range(BLOCK):
                z0, z1 = x[i] * a0 - b0, x[i] * a1 - b1
                y0, y1 = row0[i] * z0, row1[i] * z1
                linear0 += y0
                linear1 += y1
                square0 += y0 * z0
                square1 += y1 * z1
            first[s, j] += linear0
            second[s, j] += square0
            if t > s:
                first[t, j] += linear1
                second[t, j] += square1


@_sums
def _gather_missing(values, known, q, root, offset, seen, first, second):  # type: ignore[no-untyped-def]
    """As `_gather` over the observed cells; `seen` sums r over them."""
    for s in range(root.shape[0]):
        row = q[s]
        for j in range(first.shape[1]):
            x, mask, a, b = values[j], known[j], root[s, j], offset[s, j]
            count = 0.0
            linear = 0.0
            quadratic = 0.0
            for i in range(BLOCK):
                z = x[i] * a - b
                weight = row[i] * mask[i]
                t = weight * z
                count += weight
                linear += t
                quadratic += t * z
            seen[s, j] += count
            first[s, j] += linear
            second[s, j] += quadratic


@_strict
def accumulate(X, sample_weight, shift, inverse_scale, mixture, missing, sums):  # type: ignore[no-untyped-def]
    """Add the sufficient statistics of one chunk to `sums`.

    Parameters
    ----------
    X : (n, d) array
    sample_weight : (n,) or (0,) float64 array
        Empty means that every weight is 1.
    shift, inverse_scale : (d,) arrays
    mixture : tuple
        root and offset (r, d): 1 / sd and mean / sd of every component and column; constant (r,):
        log weight, plus the Gaussian's log constant unless `missing`, less reference (float):
        about the log density of a typical row; log joint densities exceed it by less than 700.
    missing : bool
        NaN marks a missing cell.
    sums : tuple of arrays
        mass (r,), seen (r, d), first (r, d), second (r, d) and scalars (4,): the log-likelihood,
        its rounding error, the total weight and the number of far rows.
    """
    n, d = X.shape
    root, offset, constant, reference = mixture
    seen, first, second, scalars = sums[1:]
    mass = np.zeros(root.shape[0])
    near = not missing
    for s in range(root.shape[0]):
        for j in range(d):
            near = near and abs(offset[s, j]) <= NEAR
    root, offset = _padded(root), _padded(offset)
    values = np.zeros((root.shape[1], BLOCK))
    plain = (np.zeros(root.shape), np.zeros(root.shape))
    observed = np.empty((d if missing else 1, BLOCK))
    q = np.empty((root.shape[0], BLOCK))
    density, total, weight = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        for i in range(BLOCK):
            inside = start + i < stop
            if sample_weight.shape[0] == 0:
                weight[i] = 1.0 if inside else 0.0
            else:
                weight[i] = sample_weight[start + i] if inside else 0.0
        _load(X, start, stop, shift, inverse_scale, weight, values)
        scalars[3] += _expect(
            values, observed, missing, root, offset, constant, weight, q, density, total, mass
        )
        likelihood, block_weight = _weighted_sum(weight, density)
        likelihood += block_weight * reference
        scalars[2] += block_weight
        # compensated over blocks: the stopping rule compares sums that agree to many digits
        likelihood -= scalars[1]
        updated = scalars[0] + likelihood
        scalars[1] = (updated - scalars[0]) - likelihood
        scalars[0] = updated
        if missing:
            _gather_missing(values, observed, q, root, offset, seen, first, second)
        elif near:
            _gather_plain(values, q, *plain)
        else:
            _gather(values, q, root, offset, first, second)
    for s in range(root.shape[0]):
        sums[0][s] += mass[s]
    if near:
        _recentre(plain, mass, root, offset, first, second)


@_strict
def evaluate(X, shift, inverse_scale, mixture, missing, density_out, q_out):  # type: ignore[no-untyped-def]
    """Write log densities (n,) and responsibilities (n, r or 0); return the number of far rows."""
    n, d = X.shape
    root, offset, constant, reference = mixture
    root, offset = _padded(root), _padded(offset)
    values = np.zeros((root.shape[1], BLOCK))
    observed = np.empty((d if missing else 1, BLOCK))
    q = np.empty((root.shape[0], BLOCK))
    density, total, weight = np.empty(BLOCK), np.empty(BLOCK), np.ones(BLOCK)
    mass, far = np.zeros(root.shape[0]), 0
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        _load(X, start, stop, shift, inverse_scale, weight, values)
        far += _expect(
            values, observed, missing, root, offset, constant, weight, q, density, total, mass
        )
        for i in range(stop - start):
            density_out[start + i] = max(density[i] + reference, LOWEST)
            for s in range(q_out.shape[1]):
                q_out[start + i, s] = q[s, i]
    return far
