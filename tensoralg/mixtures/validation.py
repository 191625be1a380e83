"""The estimator's border: what comes in is checked once, here."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.solvers.coordinate_splits import Form

__all__ = [
    "all_bounds",
    "check_cells",
    "check_chunk",
    "check_enough_rows",
    "check_rows",
    "check_settings",
    "check_spread",
    "is_automatic",
    "is_count",
    "positive_rows",
    "refuse_dtype",
    "refuse_rank",
]

Array = NDArray[Any]


def is_count(value: Any, least: int = 1) -> bool:
    """Whether a value is an integer (no bool) of at least `least`."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, Integral) and int(value) >= least


def is_automatic(n_components: Any) -> bool:
    """Whether the number of components is to be detected."""
    return isinstance(n_components, str) and n_components == "auto"


def check_settings(estimator: Any) -> None:
    """Check the constructor's arguments; scikit-learn wants that in fit, not in ``__init__``."""
    r = estimator.n_components
    if not (is_count(r) or is_automatic(r)):
        raise ValueError(f"n_components must be an integer >= 1 or 'auto'; got {r!r}")
    m = estimator.order
    if not is_count(m, 3):
        raise ValueError(
            f"order must be an integer >= 3 (moments below order 3 do not identify a mixture); "
            f"got {m!r}"
        )
    if estimator.form not in get_args(Form):
        raise ValueError(f"form must be one of {', '.join(get_args(Form))}; got {estimator.form!r}")
    if estimator.polish not in ("em", None):
        raise ValueError(f"polish must be 'em' or None; got {estimator.polish!r}")
    if not is_count(estimator.max_iter):
        raise ValueError(f"max_iter must be an integer >= 1; got {estimator.max_iter!r}")
    for name in ("tol", "reg_covar"):
        value = getattr(estimator, name)
        if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
            raise ValueError(f"{name} must be a finite number >= 0; got {value!r}")
    for name in ("robust", "missing", "warm_start"):
        value = getattr(estimator, name)
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False; got {value!r}")


def check_cells(X: Array, rows: Array, *, missing: bool) -> None:
    """Refuse infinite cells, and NaN unless missing cells are allowed, by row and column."""
    bad = np.isinf(X) if missing else ~np.isfinite(X)
    if bad.any():
        i, j = np.argwhere(bad)[0]
        hint = "" if missing or np.isinf(X[i, j]) else "; missing=True accepts NaN as missing cells"
        seen = "NaN" if np.isnan(X[i, j]) else "inf"
        raise ValueError(f"X contains {seen} at row {int(rows[i])}, column {int(j)}{hint}")


def _least_rows(n_components: int | str) -> int:
    """Return how few rows can show so many components, and a variance."""
    return 2 if isinstance(n_components, str) else max(2, n_components)


def check_enough_rows(rows: int, n_components: int | str) -> None:
    """Refuse fewer rows than components, and a single row: it cannot show a variance."""
    least = _least_rows(n_components)
    if rows < least:
        raise ValueError(
            f"n_components={n_components} needs at least {least} rows of positive "
            f"weight with data; got n_samples = {rows} (1 sample cannot show a variance)"
        )


def check_spread(spread: Array, dtype: np.dtype[Any]) -> None:
    """Refuse columns whose variance is no normal number of the dtype; a spread of 0 is constant."""
    limits = np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        square = np.asarray(spread, dtype=np.float64) ** 2
    wrong = (spread > 0) & ((square < limits.tiny) | ~(square <= limits.max))
    if wrong.any():
        j = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"column {j} of X spreads over {spread[j]:g}: its variance is no {limits.dtype} "
            "number; rescale the column" + (" or pass float64" if dtype == np.float32 else "")
        )


def refuse_dtype(X: Any) -> None:
    """Refuse what scikit-learn would turn into numbers quietly: masked cells, dates."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise ValueError(
            "X has masked cells; pass X.filled(numpy.nan) and missing=True to leave them open"
        )
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind in ("m", "M"):
        raise ValueError(f"X has dtype {X.dtype}; numbers are needed")


def positive_rows(X: Array, sample_weight: Any) -> tuple[Array, Array | None]:
    """Check the weights; return the numbers of the rows that count, and their weights."""
    if sample_weight is None:
        return np.arange(len(X)), None
    w = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (w < 0).any():
        i = int(np.flatnonzero(w < 0)[0])
        raise ValueError(f"sample_weight must be nonnegative; got {w[i]:g} at row {i}")
    rows = np.flatnonzero(w > 0)
    if len(rows) == 0:
        raise ValueError("sample_weight must have a positive sum; every weight is zero")
    w = w[rows]
    exponent = int(np.frexp(w.max())[1])
    if abs(exponent) > 500:  # sums of such weights overflow or lose digits; the scale is free
        w = np.ldexp(w, -exponent)
        rows, w = rows[w > 0], w[w > 0]
    return rows, w


def check_rows(estimator: Any, X: Any, sample_weight: Any) -> tuple[Array, Array | None]:
    """Check an array of data and its weights; rows of weight zero are dropped.

    Returns
    -------
    X : ndarray of shape (n, d), float64 or float32
    sample_weight : ndarray of shape (n,) or None
    """
    refuse_dtype(X)
    _refuse_one_row(X, estimator.n_components)
    X = validate_data(
        estimator, X, dtype=[np.float64, np.float32], ensure_all_finite=False, ensure_min_samples=1
    )
    rows, weights = positive_rows(X, sample_weight)
    X = X if weights is None else X[rows]
    check_cells(X, rows, missing=estimator.missing)
    if estimator.missing:
        X, weights = _observed_rows(X, weights)
    check_enough_rows(len(X), estimator.n_components)
    return np.ascontiguousarray(X), weights


def _observed_rows(X: Array, weights: Array | None) -> tuple[Array, Array | None]:
    empty = np.isnan(X).all(axis=0)
    if len(X) and empty.any():
        raise ValueError(f"column {int(np.flatnonzero(empty)[0])} of X holds nothing but NaN")
    there = ~np.isnan(X).all(axis=1)
    return X[there], None if weights is None else weights[there]


def _refuse_one_row(X: Any, n_components: int | str) -> None:
    shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) == 2 and shape[0] == 1:
        raise ValueError(
            f"X has shape {shape}: 1 sample, but n_components={n_components} needs at "
            f"least {_least_rows(n_components)}. Reshape your data with X.reshape(-1, 1) if these "
            f"{shape[1]} numbers are samples of one feature"
        )


def check_chunk(estimator: Any) -> Callable[[Any], tuple[Array, Array | None]]:
    """Return a function that checks one chunk of a stream: finite, 2-D, of one width."""
    width: list[int] = []

    def check(chunk: Any) -> tuple[Array, Array | None]:
        refuse_dtype(chunk)
        X = check_array(
            chunk, dtype=[np.float64, np.float32], ensure_all_finite=False, ensure_min_samples=0
        )
        if not width:
            width.append(X.shape[1])
        if X.shape[1] != width[0]:
            raise ShapeError(f"a chunk has {X.shape[1]} columns; the first one had {width[0]}")
        check_cells(X, np.arange(len(X)), missing=estimator.missing)
        if estimator.missing:
            X = X[~np.isnan(X).all(axis=1)]
        return np.ascontiguousarray(X), None

    return check


def all_bounds(dimension: int, order: int) -> dict[str, int]:
    """Every bound on the number of components, by name."""
    bounds = {form: component_bound(dimension, order, form=form) for form in get_args(Form)}
    bounds["counting"] = counting_bound(dimension, order)
    bounds["variances"] = variance_bound(dimension, order)
    return bounds


def refuse_rank(rank: int, dimension: int, order: int, bounds: dict[str, int]) -> RankBoundError:
    """Build the error for more components than moments can determine."""
    listed = ", ".join(f"{name} {value}" for name, value in bounds.items())
    return RankBoundError(
        f"n_components={rank} exceeds what moments of order m={order} over distinct indices in "
        f"d={dimension} coordinates determine (bounds: {listed}). Raise order, lower "
        "n_components, or keep polish='em' and fit an array: it then starts from k-means++"
    )
