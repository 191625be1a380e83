"""Checks of what a user hands to a moment accumulator: every error names what was seen."""

from operator import index
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.gpu.moment_features import feature_count
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of

__all__ = [
    "check_same_place",
    "checked_gram_shape",
    "checked_integer",
    "checked_mixture",
    "checked_rows",
    "checked_unit",
    "checked_weights",
    "explain_not_finite",
]

FloatArray = NDArray[np.float64]

_WEIGHT_SUM_TOLERANCE = 1e-8
_LARGEST_GRAM = 2**30  # bytes


def checked_integer(value: int, name: str, smallest: int) -> int:
    """Return an integer argument of at least `smallest`, or raise a ValueError naming it."""
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {value!r}") from None
    if number < smallest:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {number}")
    return number


def checked_gram_shape(dimension: int, order: int, powers: bool) -> tuple[int, int]:
    """Return (n_a, n_b), or raise a ProblemTooLargeError that predicts the memory."""
    left, right = (
        feature_count(dimension, degree, powers=powers)
        for degree in (order // 2, order - order // 2)
    )
    size = 8 * left * right
    if size > _LARGEST_GRAM:
        raise ProblemTooLargeError(
            f"moments of dimension={dimension}, order={order} need a matrix of {left} x {right} "
            f"numbers: {size / 2**30:.1f} GiB, at most {_LARGEST_GRAM / 2**30:.0f} are accepted"
        )
    return left, right


def check_same_place(gram: Any, array: Any) -> None:
    """Raise unless both arrays (the first may be None) have one namespace and one device."""
    if gram is None:
        return
    namespace_of(gram, array)
    if device_of(array) != device_of(gram):
        raise ValueError(
            f"the sums so far are on {device_of(gram)}, but the new array is on "
            f"{device_of(array)}; move it first"
        )


def checked_unit(
    value: ArrayLike | None, name: str, dimension: int, *, positive: bool = False
) -> FloatArray | None:
    """Return a shift or scale as a read-only float64 copy of shape (d,); None stays None."""
    if value is None:
        return None
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be real numbers, got {value!r} ({error})") from None
    if array.ndim == 0:
        array = np.full(dimension, array)
    if array.shape != (dimension,):
        raise ShapeError(f"{name} must be a number or have shape ({dimension},), got {array.shape}")
    with np.errstate(divide="ignore", over="ignore"):
        wrong = ~np.isfinite(array) | (positive & ~((array > 0) & np.isfinite(1 / array)))
    if wrong.any():
        j = int(np.flatnonzero(wrong)[0])
        kind = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {kind}, got {array[j]} for column {j}")
    array.flags.writeable = False
    return array


def checked_rows(X: Any, dimension: int) -> Any:
    """Return the rows as an array of their own namespace whose shape and dtype are accepted."""
    if type(X).__module__.startswith("scipy.sparse"):
        raise ValueError("X is a scipy sparse matrix; pass X.toarray()")
    xp = namespace_of(X)
    if array_api_compat.is_numpy_namespace(xp):
        if isinstance(X, np.ma.MaskedArray):
            raise ValueError(
                "X is a masked array, whose mask would be lost; pass X.filled(numpy.nan) "
                "and missing=True"
            )
        if not isinstance(X, np.ndarray):
            X = as_float_array(X, xp, name="X")
    shape = tuple(X.shape)
    if len(shape) == 1:
        raise ShapeError(
            f"X must have shape (N, {dimension}), got {shape}; use X.reshape(-1, 1) if it is one "
            "column, or X.reshape(1, -1) if it is one row"
        )
    if len(shape) != 2:
        raise ShapeError(f"X must have shape (N, {dimension}), got {shape}")
    if shape[1] != dimension:
        raise ShapeError(
            f"X has {shape[1]} columns, but this accumulator has dimension {dimension}"
        )
    if shape[0] == 0:
        raise ShapeError(f"X has no rows: got shape {shape}, at least 1 row is needed")
    as_float_array(X[:1, :], xp, name="X")  # the dtype; rows are converted chunk by chunk
    return X


def checked_weights(sample_weight: Any, X: Any) -> Any:
    """Return the weights as a real array of shape (N,) beside X; None stays None."""
    if sample_weight is None:
        return None
    xp = namespace_of(X, sample_weight)
    w = as_float_array(sample_weight, xp, name="sample_weight")
    if device_of(w) != device_of(X):
        raise ValueError(
            f"sample_weight is on {device_of(w)}, but X is on {device_of(X)}; move one of them"
        )
    if tuple(w.shape) != (X.shape[0],):
        raise ShapeError(
            f"sample_weight must have shape ({X.shape[0]},), one per row of X; got {tuple(w.shape)}"
        )
    wrong = ~(w >= 0) | ~xp.isfinite(w)
    if bool(xp.any(wrong)):
        n = int(xp.argmax(xp.astype(wrong, xp.int8)))
        raise ValueError(
            f"sample_weight must be finite and not negative, got {float(w[n])} for row {n}"
        )
    return w


def explain_not_finite(X: Any, weight: Any, missing: bool, order: int) -> ValueError:
    """Find why moments came out as NaN or infinite: the first bad cell, or else an overflow."""
    xp = namespace_of(X)
    chunk = 1 << 16
    for start in range(0, X.shape[0], chunk):
        stop = min(start + chunk, X.shape[0])
        rows = xp.astype(X[start:stop, :], xp.float64)
        wrong = ~xp.isfinite(rows)
        if missing:
            wrong = wrong & ~xp.isnan(rows)
        if weight is not None:
            wrong = wrong & (weight[start:stop] > 0)[:, None]
        if bool(xp.any(wrong)):
            cell = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), xp.int8)))
            n, j = divmod(cell, X.shape[1])
            hint = "" if missing else "; NaN as missing values needs missing=True"
            return ValueError(
                f"X must be finite, got {float(rows[n, j])} in row {start + n}, column {j}{hint}"
            )
    return ValueError(
        f"products of {order} values of X exceed the float64 range; give a scale, or remove the "
        "far rows"
    )


def checked_mixture(
    weights: ArrayLike, means: ArrayLike, covariances: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the parameters of a diagonal Gaussian mixture as float64 arrays that fit together."""
    named = {"weights": weights, "means": means, "covariances": covariances}
    arrays = {}
    for name, value in named.items():
        arrays[name] = np.asarray(as_float_array(value, np, name=name), dtype=np.float64)
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} must be finite, got {value!r}")
    w, mu, variance = arrays.values()
    if mu.ndim != 2 or 0 in mu.shape:
        raise ShapeError(f"means must have shape (r, d) with r, d >= 1, got {mu.shape}")
    if w.shape != (len(mu),):
        raise ShapeError(f"weights must have shape ({len(mu)},) as means has rows, got {w.shape}")
    if variance.shape != mu.shape:
        raise ShapeError(
            f"covariances must have the shape {mu.shape} of means (variances of the coordinates), "
            f"got {variance.shape}"
        )
    if (w < 0).any() or abs(w.sum() - 1) > _WEIGHT_SUM_TOLERANCE:
        raise ValueError(
            f"weights must lie in [0, 1] and sum to 1, got the range [{w.min()}, {w.max()}] and "
            f"the sum {w.sum()}"
        )
    if (variance < 0).any():
        raise ValueError(f"covariances must not be negative, got {variance.min()}")
    return w, mu, variance
