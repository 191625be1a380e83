"""One pass of expectation-maximization over a chunk of rows: numba kernels and a numpy reference.

Rows are read in blocks of `BLOCK`, standardised and transposed on load, so that every inner loop
runs over the rows of a block with unit stride. No array of N x r entries exists beyond a block.
Importing this module imports numba; `expectation_maximization` does so on first use.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from tensoralg.solvers.vector_functions import exponential, logarithm

FloatArray = npt.NDArray[np.float64]

BLOCK = 128  # rows: a block of 15 columns and its responsibilities stay in the first-level cache
LOWEST = -1e300  # log densities are clipped here: squared distances beyond it overflow
LOG_TWO_PI = 1.8378770664093453

_strict = njit(cache=True, nogil=True, error_model="numpy")
# no `nnan` and `ninf`: wild rows must reach the test for them
_sums = njit(
    fastmath={"reassoc", "contract", "nsz", "arcp"}, cache=True, nogil=True, error_model="numpy"
)


@_strict
def _load(X, start, stop, shift, inverse_scale, weight, values):  # type: ignore[no-untyped-def]
    """Standardise rows start..stop into `values` (d, BLOCK); rows of weight 0 become 0."""
    count = stop - start
    for j in range(X.shape[1]):
        column = values[j]
        origin, factor = shift[j], inverse_scale[j]
        for i in range(count):
            column[i] = (float(X[start + i, j]) - origin) * factor if weight[i] != 0.0 else 0.0
        for i in range(count, BLOCK):
            column[i] = 0.0


@_strict
def _mask(values, observed):  # type: ignore[no-untyped-def]
    """Mark the cells that are observed and set the others to 0."""
    for j in range(values.shape[0]):
        for i in range(BLOCK):
            known = values[j, i] == values[j, i]
            observed[j, i] = 1.0 if known else 0.0
            values[j, i] = values[j, i] if known else 0.0


@_sums
def _log_joint(values, root, offset, constant, q):  # type: ignore[no-untyped-def]
    """q[s, i] = constant_s - sum_j z_sj^2 / 2 with z_sj = x_j root_sj - offset_sj."""
    d = values.shape[0]
    for s in range(root.shape[0]):
        row = q[s]
        for i in range(BLOCK):
            row[i] = -2.0 * constant[s]
        j = 0
        while j + 3 < d:
            x0, x1, x2, x3 = values[j], values[j + 1], values[j + 2], values[j + 3]
            a0, a1, a2, a3 = root[s, j], root[s, j + 1], root[s, j + 2], root[s, j + 3]
            b0, b1, b2, b3 = offset[s, j], offset[s, j + 1], offset[s, j + 2], offset[s, j + 3]
            for i in range(BLOCK):
                z0, z1 = x0[i] * a0 - b0, x1[i] * a1 - b1
                z2, z3 = x2[i] * a2 - b2, x3[i] * a3 - b3
                row[i] += z0 * z0 + z1 * z1 + z2 * z2 + z3 * z3
            j += 4
        while j < d:
            x0, a0, b0 = values[j], root[s, j], offset[s, j]
            for i in range(BLOCK):
                z0 = x0[i] * a0 - b0
                row[i] += z0 * z0
            j += 1
        for i in range(BLOCK):
            row[i] *= -0.5


@_sums
def _log_joint_missing(values, observed, root, offset, constant, q):  # type: ignore[no-untyped-def]
    """As `_log_joint` over the observed cells; `constant` holds the log weights only."""
    for s in range(root.shape[0]):
        row = q[s]
        for i in range(BLOCK):
            row[i] = constant[s]
        for j in range(values.shape[0]):
            x, known, a, b = values[j], observed[j], root[s, j], offset[s, j]
            level = np.log(a) - 0.5 * LOG_TWO_PI
            for i in range(BLOCK):
                z = x[i] * a - b
                row[i] += known[i] * (level - 0.5 * z * z)


@_strict
def _far_row(values, i, root, offset, q):  # type: ignore[no-untyped-def]
    """Give a row whose squared distances overflow to its nearest component."""
    nearest, best = 0, np.inf
    for s in range(root.shape[0]):
        largest = 0.0
        for j in range(values.shape[0]):
            largest = max(largest, abs(values[j, i] * root[s, j] - offset[s, j]))
        # the largest distances are compared first: their squares overflow
        if largest < best:
            nearest, best = s, largest
    for s in range(root.shape[0]):
        q[s, i] = 1.0 if s == nearest else 0.0


@_sums
def _normalise(q, density, total):  # type: ignore[no-untyped-def]
    """Turn log joint densities into responsibilities, in place; return the number of far rows."""
    r = q.shape[0]
    for i in range(BLOCK):
        density[i] = q[0, i]
        total[i] = 0.0
    for s in range(1, r):
        for i in range(BLOCK):
            density[i] = q[s, i] if q[s, i] > density[i] else density[i]
    for s in range(r):
        for i in range(BLOCK):
            term = exponential(q[s, i] - density[i])
            q[s, i] = term
            total[i] += term
    far = 0
    for i in range(BLOCK):
        far += 0 if density[i] > LOWEST else 1
        density[i] += logarithm(total[i])
        total[i] = 1.0 / total[i]
    for s in range(r):
        for i in range(BLOCK):
            q[s, i] *= total[i]
    return far


@_strict
def _expectation(values, observed, missing, root, offset, constant, q, density, total):  # type: ignore[no-untyped-def]
    """E step of one block: responsibilities in `q`, log densities in `density`."""
    if missing:
        _mask(values, observed)
        _log_joint_missing(values, observed, root, offset, constant, q)
    else:
        _log_joint(values, root, offset, constant, q)
    far = _normalise(q, density, total)
    if far > 0:
        for i in range(BLOCK):
            if not density[i] > LOWEST:
                _far_row(values, i, root, offset, q)
                density[i] = LOWEST
    return far


@_sums
def _gather(values, q, root, offset, mass, first, second):  # type: ignore[no-untyped-def]
    """Add the block's sums of r, r z and r z^2; z is centred at the current mean."""
    for s in range(root.shape[0]):
        row = q[s]
        total = 0.0
        for i in range(BLOCK):
            total += row[i]
        mass[s] += total
        for j in range(values.shape[0]):
            x, a, b = values[j], root[s, j], offset[s, j]
            linear = 0.0
            quadratic = 0.0
            for i in range(BLOCK):
                z = x[i] * a - b
                t = row[i] * z
                linear += t
                quadratic += t * z
            first[s, j] += linear
            second[s, j] += quadratic


@_sums
def _gather_missing(values, known, q, root, offset, mass, seen, first, second):  # type: ignore[no-untyped-def]
    """As `_gather` over the observed cells; `seen` sums r over them."""
    for s in range(root.shape[0]):
        row = q[s]
        total = 0.0
        for i in range(BLOCK):
            total += row[i]
        mass[s] += total
        for j in range(values.shape[0]):
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
def accumulate(X, sample_weight, shift, inverse_scale, root, offset, constant, missing, sums):  # type: ignore[no-untyped-def]
    """Add the sufficient statistics of one chunk to `sums`.

    Parameters
    ----------
    X : (n, d) float32 or float64 array
    sample_weight : (n,) or (0,) float64 array
        Empty means that every weight is 1.
    shift, inverse_scale : (d,) arrays
    root, offset : (r, d) arrays
        1 / sd and mean / sd of every component and column.
    constant : (r,) array
        Log weight, plus the Gaussian's log constant unless `missing`.
    missing : bool
        NaN marks a missing cell.
    sums : tuple of arrays
        mass (r,), seen (r, d), first (r, d), second (r, d) and scalars (4,): the log-likelihood,
        its rounding error, the total weight and the number of far rows.
    """
    n, d = X.shape
    mass, seen, first, second, scalars = sums
    values = np.empty((d, BLOCK))
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
        scalars[3] += _expectation(
            values, observed, missing, root, offset, constant, q, density, total
        )
        likelihood = 0.0
        for i in range(BLOCK):
            likelihood += weight[i] * density[i]
            scalars[2] += weight[i]
        for s in range(root.shape[0]):
            for i in range(BLOCK):
                q[s, i] *= weight[i]
        # compensated over blocks: the stopping rule compares sums that agree to many digits
        likelihood -= scalars[1]
        updated = scalars[0] + likelihood
        scalars[1] = (updated - scalars[0]) - likelihood
        scalars[0] = updated
        if missing:
            _gather_missing(values, observed, q, root, offset, mass, seen, first, second)
        else:
            _gather(values, q, root, offset, mass, first, second)


@_strict
def evaluate(X, shift, inverse_scale, root, offset, constant, missing, density_out, q_out):  # type: ignore[no-untyped-def]
    """Write log densities (n,) and responsibilities (n, r or 0); return the number of far rows."""
    n, d = X.shape
    values = np.empty((d, BLOCK))
    observed = np.empty((d if missing else 1, BLOCK))
    q = np.empty((root.shape[0], BLOCK))
    density, total, weight = np.empty(BLOCK), np.empty(BLOCK), np.ones(BLOCK)
    far = 0
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        _load(X, start, stop, shift, inverse_scale, weight, values)
        far += _expectation(values, observed, missing, root, offset, constant, q, density, total)
        for i in range(stop - start):
            density_out[start + i] = density[i]
            for s in range(q_out.shape[1]):
                q_out[start + i, s] = q[s, i]
    return far


def reference_statistics(
    X: FloatArray,
    sample_weight: FloatArray,
    weights: FloatArray,
    means: FloatArray,
    covariances: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]:
    """Compute what `accumulate` does, in plain numpy on standardised rows; NaN: a missing cell.

    Parameters
    ----------
    X : (n, d) array
    sample_weight, weights : (n,) and (r,) arrays
    means, covariances : (r, d) arrays

    Returns
    -------
    mass, seen, first, second, log_likelihood : (r,), (r, d), (r, d), (r, d) arrays and float
        Sums of r, of r over observed cells, of r z and of r z^2 with z = (x - mean) / sd.
    """
    observed = ~np.isnan(X)
    z = (np.where(observed, X, 0.0)[:, None, :] - means) / np.sqrt(covariances)
    cells = -0.5 * (z * z + np.log(covariances) + LOG_TWO_PI)
    joint = np.log(weights) + np.sum(np.where(observed[:, None, :], cells, 0.0), axis=2)
    top = joint.max(axis=1, keepdims=True)
    density = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
    r = np.exp(joint - density[:, None]) * sample_weight[:, None]
    seen = r.T @ observed
    masked = r[:, :, None] * observed[:, None, :]
    return (
        r.sum(axis=0),
        seen,
        np.sum(masked * z, axis=0),
        np.sum(masked * z * z, axis=0),
        float(sample_weight @ density),
    )
