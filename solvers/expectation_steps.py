"""The two steps of expectation-maximization on raw arrays, and the checks at their border."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.expectation_parameters import (
    FloatArray,
    Parameters,
    bounded_weights,
    check_parameters,
)

Chunks = Callable[[], Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any] | None]]]

_PIECE = 4096  # rows
_LOG_TWO_PI = 1.8378770664093453


class Statistics(NamedTuple):
    """Sums over the rows of r, of r z and of r z^2 with z = (x - mean) / sd, and totals."""

    mass: FloatArray  # (r,)
    seen: FloatArray  # (r, d), over observed cells, or (r, 1)
    first: FloatArray
    second: FloatArray
    log_likelihood: float  # per unit weight
    total_weight: float


class Data(NamedTuple):
    """Where the rows come from and how they are read."""

    chunks: Chunks
    shift: FloatArray
    inverse_scale: FloatArray
    missing: bool


Sums = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


def collect(data: Data, parameters: Parameters) -> Statistics:
    """One fused pass: E step and sufficient statistics."""
    r, d = parameters.means.shape
    mixture = _kernel_parameters(parameters, data.missing)
    reduce = getattr(data.chunks, "reduce", None)
    if reduce is None:
        sums = _no_sums(r, d)
        for number, (chunk, sample_weight) in enumerate(data.chunks()):
            _add_chunk(sums, data, mixture, number, chunk, sample_weight)
    else:
        # elsewhere, and without the chunks themselves
        task = partial(_sums_of_chunk, data._replace(chunks=tuple), mixture)
        sums = reduce(task, _added) or _no_sums(r, d)
    mass, seen, first, second, scalars = sums
    if not scalars[2] > 0:
        raise ValueError(
            f"chunks: the total weight of the rows is {scalars[2]}, it must be positive"
        )
    if not (np.isfinite(second).all() and np.isfinite(first).all()):
        raise ValueError("chunks: squared distances overflow; standardise with shift and scale")
    if not data.missing:
        seen = mass[:, None]
    return Statistics(mass, seen, first, second, float(scalars[0] / scalars[2]), float(scalars[2]))


def _no_sums(r: int, d: int) -> Sums:
    return np.zeros(r), np.zeros((r, d)), np.zeros((r, d)), np.zeros((r, d)), np.zeros(4)


def _add_chunk(
    sums: Sums, data: Data, mixture: Any, number: int, chunk: Any, sample_weight: Any
) -> None:
    """Add the statistics of one chunk in place."""
    from tensoralg.solvers.expectation_kernels import accumulate

    X, weight = check_chunk(chunk, sample_weight, sums[1].shape[1], f"chunk {number}")
    far = sums[4][3]
    for piece, rows in _pieces(X):
        accumulate(rows, weight[piece], data.shift, data.inverse_scale, mixture, data.missing, sums)
    if sums[4][3] > far:
        check_finite(X, weight, data.missing, f"chunk {number}")


def _sums_of_chunk(data: Data, mixture: Any, number: int, chunk: Any, sample_weight: Any) -> Sums:
    sums = _no_sums(*mixture[0].shape)
    _add_chunk(sums, data, mixture, number, chunk, sample_weight)
    return sums


def _added(left: Sums, right: Sums) -> Sums:
    mass, seen, first, second, scalars = (a + b for a, b in zip(left, right, strict=True))
    return mass, seen, first, second, scalars


def _pieces(X: npt.NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """X as the kernels read it: whole, or in converted pieces small enough for the cache."""
    direct = X.dtype == np.float64 and X.flags.c_contiguous
    size = max(len(X), 1) if direct else _PIECE
    for start in range(0, len(X), size):
        piece = slice(start, start + size)
        yield piece, _read_only(np.ascontiguousarray(X[piece], dtype=np.float64))


def maximise(
    old: Parameters, statistics: Statistics, floor: FloatArray, minimum_weight: float
) -> Parameters:
    """M step; a component or column without any weight keeps its parameters."""
    known = statistics.seen > np.finfo(float).tiny
    divisor = np.where(known, statistics.seen, 1.0)
    drift = statistics.first / divisor
    spread = statistics.second / divisor - drift * drift
    deviation = np.sqrt(old.covariances)
    means = np.where(known, old.means + deviation * drift, old.means)
    covariances = np.where(known, np.maximum(old.covariances * spread, floor), old.covariances)
    return Parameters(
        bounded_weights(statistics.mass / statistics.total_weight, minimum_weight),
        means,
        covariances,
    )


def _kernel_parameters(
    parameters: Parameters, missing: bool
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """1 / sd, mean / sd, log constants and the reference that the kernels take."""
    root = 1.0 / np.sqrt(parameters.covariances)
    with np.errstate(divide="ignore"):
        constant = np.log(parameters.weights)
    levels = np.log(root) - 0.5 * _LOG_TWO_PI
    if missing:
        largest = np.max(constant + np.maximum(levels, 0.0).sum(axis=1))
    else:
        constant += levels.sum(axis=1)
        largest = constant.max()
    # squared distances are about d, and exponentials of up to 600 stay finite
    reference = float(largest) - min(0.5 * root.shape[1], 600.0)
    return root, parameters.means * root, constant - reference, reference


def worst_row(data: Data, parameters: Parameters) -> FloatArray:
    """Find the standardised row of positive weight with the lowest density."""
    task = partial(_worst_of_chunk, data._replace(chunks=tuple), parameters)
    reduce = getattr(data.chunks, "reduce", None)
    if reduce is None:
        found: tuple[float, FloatArray] = (np.inf, np.array(parameters.means[0]))
        for number, (chunk, sample_weight) in enumerate(data.chunks()):
            found = _worse(found, task(number, chunk, sample_weight))
    else:
        found = reduce(task, _worse)
    return found[1] if found[0] < np.inf else np.array(parameters.means[0])


def _worst_of_chunk(
    data: Data, parameters: Parameters, number: int, chunk: Any, sample_weight: Any
) -> tuple[float, FloatArray]:
    X, weight = check_chunk(chunk, sample_weight, data.shift.size, f"chunk {number}")
    density = _evaluate(X, parameters, data, 0)[0]
    if weight.size:
        density[weight == 0] = np.inf
    if not density.size:
        return np.inf, data.shift
    row = np.asarray(X[density.argmin()], dtype=np.float64)
    return float(density.min()), (row - data.shift) * data.inverse_scale


def _worse(left: tuple[float, FloatArray], right: tuple[float, FloatArray]) -> Any:
    return right if right[0] < left[0] else left


def log_density(
    X: npt.ArrayLike,
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covariances: npt.ArrayLike,
    *,
    shift: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    missing: bool = False,
) -> FloatArray:
    """Log density of every row under a diagonal Gaussian mixture, in standardised coordinates.

    Parameters
    ----------
    X : (n, d) array_like
    weights : (r,) array_like
        Nonnegative; normalised to sum 1.
    means, covariances : (r, d) array_like
        Of (x - shift) / scale; `covariances` holds variances.
    shift, scale : (d,) array_like, optional
        0 and 1 when None. Subtract sum(log(scale)) for the density of X itself.
    missing : bool
        NaN marks a missing cell: the density of the observed ones.

    Returns
    -------
    (n,) array
        float64; never below -1e300, where squared distances overflow.

    Raises
    ------
    ShapeError
        An array does not fit the others.
    ValueError
        NaN or inf, or a number out of its range.

    Examples
    --------
    >>> log_density([[0.0], [1e160]], [1.0], [[0.0]], [[1.0]])
    array([-9.18938533e-001, -1.00000000e+300])
    """
    return _evaluated(X, weights, means, covariances, shift, scale, missing, False)[0]


def responsibilities(
    X: npt.ArrayLike,
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covariances: npt.ArrayLike,
    *,
    shift: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    missing: bool = False,
) -> FloatArray:
    """Probability of every component given the row; the rows of the result sum to 1.

    A row so far away that its squared distances overflow belongs to its nearest component.

    Parameters
    ----------
    X, weights, means, covariances, shift, scale, missing
        As for `log_density`.

    Returns
    -------
    (n, r) array
        float64.

    Raises
    ------
    ShapeError, ValueError
        As `log_density`.

    Examples
    --------
    >>> responsibilities([[0.0], [1e160]], [0.5, 0.5], [[-1.0], [1.0]], [[1.0], [1.0]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    return _evaluated(X, weights, means, covariances, shift, scale, missing, True)[1]


def _evaluated(
    X: npt.ArrayLike,
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covariances: npt.ArrayLike,
    shift: npt.ArrayLike | None,
    scale: npt.ArrayLike | None,
    missing: bool,
    table: bool,
) -> tuple[FloatArray, FloatArray]:
    parameters = check_parameters(weights, means, covariances)
    r, d = parameters.means.shape
    rows, weight = check_chunk(X, None, d, "X")
    data = Data(lambda: (), *check_standardisation(shift, scale, d), bool(missing))
    density, probabilities, far = _evaluate(rows, parameters, data, r if table else 0)
    if far:
        check_finite(rows, weight, data.missing, "X")
    return density, probabilities


def _evaluate(
    X: npt.NDArray[Any], parameters: Parameters, data: Data, columns: int
) -> tuple[FloatArray, FloatArray, int]:
    """Log densities (n,), responsibilities (n, columns) for columns 0 or r, number of far rows."""
    from tensoralg.solvers.expectation_kernels import evaluate as kernel

    density, table = np.empty(len(X)), np.empty((len(X), columns))
    mixture = _kernel_parameters(parameters, data.missing)
    far = 0
    for piece, rows in _pieces(X):
        far += kernel(
            rows,
            data.shift,
            data.inverse_scale,
            mixture,
            data.missing,
            density[piece],
            table[piece],
        )
    return density, table, far


def check_standardisation(
    shift: npt.ArrayLike | None, scale: npt.ArrayLike | None, d: int
) -> tuple[FloatArray, FloatArray]:
    """Shift and reciprocal scale as (d,) arrays."""
    origin = _column_values(0.0 if shift is None else shift, d, "shift")
    unit = _column_values(1.0 if scale is None else scale, d, "scale")
    if not (unit > 0).all():
        raise ValueError(f"scale: smallest is {unit.min()}; expected positive")
    return origin, 1.0 / unit


def check_floor(floor: npt.ArrayLike, d: int) -> FloatArray:
    """Return the floor of each column as a (d,) array."""
    values = _column_values(floor, d, "floor")
    if not (values > 0).all():
        raise ValueError(f"floor: smallest is {values.min()}; expected positive")
    return values


def _column_values(values: npt.ArrayLike, d: int, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), (d,)):
        raise ShapeError(f"{name}: shape {array.shape}, expected a number or ({d},)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: NaN or inf; expected finite numbers")
    return np.array(np.broadcast_to(array, (d,)))


def check_chunk(
    X: npt.ArrayLike, sample_weight: npt.ArrayLike | None, d: int, name: str
) -> tuple[npt.NDArray[Any], FloatArray]:
    """Rows, not copied, and weights as float64, (0,) for None."""
    rows = np.asarray(X)
    if rows.ndim != 2 or rows.shape[1] != d:
        hint = "; use X.reshape(-1, 1) for one column" if rows.ndim == 1 else ""
        raise ShapeError(f"{name}: X has shape {rows.shape}, expected (n, {d}){hint}")
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"{name}: X has dtype {rows.dtype}, expected real numbers")
    if sample_weight is None:
        return rows, _read_only(np.empty(0))
    weight = np.ascontiguousarray(sample_weight, dtype=np.float64)
    if weight.shape != (len(rows),):
        raise ShapeError(f"{name}: sample_weight has shape {weight.shape}, expected ({len(rows)},)")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError(f"{name}: sample_weight must be finite and nonnegative")
    return rows, _read_only(weight)


def _read_only(array: FloatArray) -> FloatArray:
    """Return a read-only view, so that the kernels see one type of array and compile once."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_finite(X: npt.NDArray[Any], weight: FloatArray, missing: bool, name: str) -> None:
    """Name the first cell that is not a number, in a row of positive weight."""
    bad = np.isinf(X) if missing else ~np.isfinite(X)
    if weight.size:
        bad &= weight[:, None] > 0
    if bad.any():
        row, column = np.argwhere(bad)[0]
        hint = "" if missing else " (NaN is accepted with missing=True)"
        raise ValueError(
            f"{name}: X holds {X[row, column]} in row {row}, column {column}; "
            f"expected finite numbers{hint}"
        )
