"""Checks of what a user hands to a moment accumulator: every error names what was seen."""

from operator import index
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.monomials import number_of_monomials
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

_WEIGHT_SUM_TOLERANCE = 1e-6  # sums of float32 weights
_LARGEST_GRAM = 2**30  # bytes


def checked_integer(value: int, name: str, smallest: int) -> int:
    """Check an integer argument.

    Parameters
    ----------
    value : int
        The argument.
    name : str
        Its name, for the message.
    smallest : int
        The least value that is accepted.

    Returns
    -------
    int
        The value.

    Raises
    ------
    ValueError
        Not an integer, or too small.

    Examples
    --------
    >>> checked_integer(3, "order", 1)
    3
    """
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {value!r}") from None
    if number < smallest:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {number}")
    return number


def checked_gram_shape(dimension: int, order: int, *, powers: bool) -> tuple[int, int]:
    """Sides of the Gram matrix of an accumulator.

    Parameters
    ----------
    dimension, order : int
        Number d of columns and highest degree m.
    powers : bool
        Whether the features have powers.

    Returns
    -------
    tuple of int
        ``(n_a, n_b)``.

    Raises
    ------
    ProblemTooLargeError
        The matrix would take more than 1 GiB; the message predicts its size.

    Examples
    --------
    >>> checked_gram_shape(15, 3, powers=False)
    (16, 121)
    """
    left, right = (
        number_of_monomials(dimension, degree, powers=powers)
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
    """Check that new arrays are where the sums so far are.

    Parameters
    ----------
    gram : array or None
        The sums so far; None allows any place.
    array : array
        The new rows or sums.

    Raises
    ------
    TypeError
        Arrays of different libraries.
    ValueError
        Arrays on different devices.

    Examples
    --------
    >>> check_same_place(np.ones(2), np.zeros(3))
    """
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
    """Check a shift or a scale.

    Parameters
    ----------
    value : array_like, shape (d,), number or None
        The argument; a number stands for every column.
    name : str
        Its name, for the message.
    dimension : int
        Number d of columns.
    positive : bool, default False
        Refuse values that are not positive.

    Returns
    -------
    ndarray of float64, shape (d,), or None
        A read-only copy; None stays None.

    Raises
    ------
    ValueError
        Another shape, no numbers, or a value that is not finite or not positive.

    Examples
    --------
    >>> checked_unit(2, "scale", 3, positive=True)
    array([2., 2., 2.])
    """
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
    """Check shape and dtype of data rows, but not their values.

    Parameters
    ----------
    X : array_like, shape (N, d)
        The argument.
    dimension : int
        Number d of columns that is expected.

    Returns
    -------
    array, shape (N, d)
        X itself where it is an array; lists and data frames become numpy arrays.

    Raises
    ------
    ShapeError
        Not two-dimensional, no rows, or another number of columns.
    ValueError
        A dtype that is not real, a masked array or a sparse matrix.

    Examples
    --------
    >>> checked_rows([[1, 2], [3, 4]], 2).shape
    (2, 2)
    """
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
    """Check sample weights.

    Parameters
    ----------
    sample_weight : array_like, shape (N,), or None
        The argument.
    X : array, shape (N, d)
        The rows, already checked.

    Returns
    -------
    array, shape (N,), or None
        Real weights in X's namespace; None stays None.

    Raises
    ------
    ValueError
        Another shape or device, or a weight that is negative or not finite (its row is named).
    TypeError
        An array of another library than X.

    Examples
    --------
    >>> checked_weights([1, 0], np.ones((2, 3)))
    array([1., 0.])
    """
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
    """Find why moments came out as NaN or infinite.

    Parameters
    ----------
    X : array, shape (N, d)
        The rows.
    weight : array, shape (N,), or None
        Their weights; rows of weight 0 are no reason.
    missing : bool
        Whether NaN is accepted.
    order : int
        Highest degree of the products.

    Returns
    -------
    ValueError
        To be raised: it names the first bad cell, or else an overflow.

    Examples
    --------
    >>> explain_not_finite(np.array([[1.0, np.inf]]), None, False, 3).args[0][:45]
    'X must be finite, got inf in row 0, column 1;'
    """
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
    weights: ArrayLike, means: ArrayLike, covariances: ArrayLike, *, positive: bool = False
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Check the parameters of a diagonal Gaussian mixture.

    Parameters
    ----------
    weights : array_like, shape (r,)
        Weights >= 0 with sum 1.
    means, covariances : array_like, shape (r, d)
        Means and variances >= 0.
    positive : bool, default False
        Refuse a variance of 0.

    Returns
    -------
    tuple of ndarray of float64
        Weights of sum 1 up to rounding, means and covariances; copies.

    Raises
    ------
    ValueError
        A shape, sign or sum that is not accepted, or a value that is not finite.

    Examples
    --------
    >>> checked_mixture([1], [[0, 0]], [[1, 2]])[2]
    array([[1., 2.]])
    """
    named = {"weights": weights, "means": means, "covariances": covariances}
    arrays = {}
    for name, value in named.items():
        array = np.array(as_float_array(value, np, name=name), dtype=np.float64)
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]}")
        arrays[name] = array
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
            f"weights must lie in [0, 1] and sum to 1, got a sum of {w.sum():g} and a range from "
            f"{w.min():g} to {w.max():g}"
        )
    wrong = variance <= 0 if positive else variance < 0
    if wrong.any():
        s, j = np.argwhere(wrong)[0]
        kind = "positive" if positive else "nonnegative"
        raise ValueError(f"covariances must be {kind}, got {variance[s, j]:g} at [{s}, {j}]")
    return w / w.sum(), mu, variance
