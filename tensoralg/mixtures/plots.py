"""Pictures of a mixture: pairs of columns with ellipses, columns with densities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.core.figures import add_legend, bare_figure, plain_axes
from tensoralg.mixtures.dask_rows import as_dask_array, is_dask
from tensoralg.mixtures.panels import (
    TRUTH,
    draw_density,
    draw_ellipses,
    draw_rows,
    separating_columns,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_mixture"]

Array = NDArray[Any]

_MOST_POINTS = 4000
_MOST_COLUMNS = 12  # that can be asked for: 66 pairs
_SHOWN_COLUMNS = 4  # where none are asked for


@dataclass(frozen=True, slots=True, eq=False)
class _Parameters:
    """Weights (r,), means and variances (r, d) of a mixture."""

    weights: Array
    means: Array
    covariances: Array


def plot_mixture(
    mixture: Any,
    X: Any = None,
    *,
    columns: Sequence[int | str] | None = None,
    names: Sequence[str] | None = None,
    labels: ArrayLike | None = None,
    truth: Any = None,
) -> "Figure":
    """Draw a mixture in pairs of columns, with ellipses at one and two standard deviations.

    The panels of the diagonal show one column each, with the densities of the components. One
    column gives that panel alone.

    Parameters
    ----------
    mixture : DiagonalGaussianMixture
        A fitted estimator; or anything with ``weights_``, ``means_`` and ``covariances_``
        (or the same names without underscores) of shapes (r,), (r, d) and (r, d).
    X : array_like or Dask array of shape (N, d), optional
        Rows to draw beneath: at most 4,000, evenly spaced. A row with a missing cell is left out
        of the panels of its column.
    columns : sequence of int or str, optional
        Up to 12 positions or names. By default the columns, at most four, that tell the
        components apart best.
    names : sequence of str, optional
        Names of all d columns; by default those of the fit or of a data frame, or "column 0" and
        so on.
    labels : array_like of int, shape (N,), optional
        Colours of the rows, from 0; by default their most probable component.
    truth : object, optional
        A second mixture, as the first, drawn dashed: the one that is known, say.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, not pyplot's: save it by ``figure.savefig("mixture.png")``. A notebook
        shows it as the last value of a cell.

    Raises
    ------
    PlottingUnavailableError
        matplotlib, the extra ``plot``, is not installed.
    ValueError
        Columns, names, labels or shapes that do not fit; the message names them.
    TypeError
        `mixture` or `truth` has no parameters: it is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.mixtures import DiagonalGaussianMixture, plot_mixture
    >>> model = DiagonalGaussianMixture.from_parameters(
    ...     [0.3, 0.7], [[2, 2, 0], [-1, 0, 1]], np.ones((2, 3)))
    >>> X, _ = model.sample(500, random_state=0)
    >>> figure = plot_mixture(model, X)
    >>> [axes.get_xlabel() for axes in figure.axes[-3:]]
    ['column 0', 'column 1', 'column 2']
    """
    fitted = _parameters(mixture, "mixture")
    known = None if truth is None else _parameters(truth, "truth")
    d = fitted.means.shape[1]
    if known is not None and known.means.shape[1] != d:
        raise ShapeError(
            f"truth has {known.means.shape[1]} columns where mixture has {d}: {known.means.shape} "
            f"against {fitted.means.shape}"
        )
    titles = _names(mixture, X, names, d)
    chosen = _chosen(columns, titles, fitted)
    rows, colors = _rows(X, labels, fitted)
    k = len(chosen)
    side = 5.2 if k == 1 else max(2.0, 8.4 / k + 0.5)
    figure = bare_figure(side * k + 1.0, side * k + (-1.0 if k == 1 else 0.4))
    grid = figure.subplots(k, k, squeeze=False, sharex="col")
    for i in range(k):
        for j in range(k):
            axes = grid[i, j]
            if j > i:
                axes.set_axis_off()
                continue
            plain_axes(axes)
            if i == j:
                draw_density(axes, rows, fitted, chosen[i], known)
            else:
                _pair(axes, rows, colors, fitted, known, (chosen[j], chosen[i]))
            if i == k - 1:
                axes.set_xlabel(titles[chosen[j]])
            if j == 0:
                axes.set_ylabel(titles[chosen[i]] if i else "density")
    _share_rows(grid)
    _legend(figure, grid)
    return figure


def _parameters(mixture: Any, name: str) -> _Parameters:
    found = []
    for part in ("weights", "means", "covariances"):
        value = getattr(mixture, f"{part}_", getattr(mixture, part, None))
        if value is None or callable(value):
            raise TypeError(
                f"{name} must be a fitted mixture with weights_, means_ and covariances_; "
                f"{type(mixture).__name__} has no {part}"
            )
        found.append(np.asarray(value, dtype=np.float64))
    weights, means, covariances = found
    if means.ndim != 2 or weights.shape != means.shape[:1] or covariances.shape != means.shape:
        raise ShapeError(
            f"{name} must have weights (r,), means (r, d) and variances (r, d); got shapes "
            f"{weights.shape}, {means.shape} and {covariances.shape}"
        )
    return _Parameters(weights, means, covariances)


def _names(mixture: Any, X: Any, names: Sequence[str] | None, dimension: int) -> list[str]:
    if names is None:
        names = getattr(mixture, "feature_names_in_", getattr(X, "columns", None))
    if names is None:
        return [f"column {j}" for j in range(dimension)]
    titles = [str(name) for name in names]
    if len(titles) != dimension:
        raise ShapeError(f"names must name all {dimension} columns, got {len(titles)} names")
    return titles


def _chosen(
    columns: Sequence[int | str] | None, titles: list[str], mixture: _Parameters
) -> list[int]:
    d = len(titles)
    if columns is None:
        return separating_columns(
            mixture.weights, mixture.means, mixture.covariances, min(d, _SHOWN_COLUMNS)
        )
    if isinstance(columns, str) or not 1 <= len(columns) <= _MOST_COLUMNS:
        raise ValueError(f"columns must be a list of 1 to {_MOST_COLUMNS} columns; got {columns!r}")
    chosen = []
    for column in columns:
        if isinstance(column, str):
            if column not in titles:
                raise ValueError(f"columns: there is no column {column!r} among {titles[:20]}")
            chosen.append(titles.index(column))
        elif (
            isinstance(column, bool | np.bool_)
            or not isinstance(column, int | np.integer)
            or not -d <= column < d
        ):
            raise ValueError(f"columns must be from 0 to {d - 1}, or names; got {column!r}")
        else:
            chosen.append(int(column) % d)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"columns must be different; got {columns!r}")
    return chosen


def _rows(
    X: Any, labels: ArrayLike | None, mixture: _Parameters
) -> tuple[Array | None, NDArray[np.int64] | None]:
    """Choose some rows, and the numbers of their colours."""
    d = mixture.means.shape[1]
    if X is None:
        if labels is not None:
            raise ValueError("labels colour the rows of X, and no X was given")
        return None, None
    X = as_dask_array(X) if is_dask(X) else np.asarray(X)
    if X.ndim != 2 or X.shape[1] != d:
        raise ShapeError(f"X must have shape (N, {d}) as the mixture has columns, got {X.shape}")
    if np.isnan(X.shape[0]):
        raise ValueError("X has chunks of unknown sizes; call X.compute_chunk_sizes() first")
    keep = np.unique(np.linspace(0, len(X) - 1, min(len(X), _MOST_POINTS)).astype(int))
    rows = np.asarray(X[keep], dtype=np.float64)
    if labels is None:
        return rows, _most_probable(rows, mixture)
    colors = np.asarray(labels)
    if colors.shape != (len(X),) or colors.dtype.kind not in "iub":
        raise ValueError(
            f"labels must be integers of shape ({len(X)},), one per row of X; got "
            f"{colors.dtype} of shape {colors.shape}"
        )
    return rows, colors[keep].astype(np.int64)


def _most_probable(rows: Array, mixture: _Parameters) -> NDArray[np.int64]:
    """Component of the largest posterior probability; missing cells say nothing."""
    best, label = np.full(len(rows), -np.inf), np.zeros(len(rows), dtype=np.int64)
    with np.errstate(divide="ignore", over="ignore"):
        parts = zip(np.log(mixture.weights), mixture.means, mixture.covariances, strict=True)
        for s, (log_weight, mean, variance) in enumerate(parts):
            terms = np.log(variance) + (rows - mean) ** 2 / variance
            value = log_weight - 0.5 * np.nansum(terms, axis=1)
            label[value > best], best = s, np.maximum(value, best)
    return label


def _pair(
    axes: "Axes",
    rows: Array | None,
    labels: NDArray[np.int64] | None,
    fitted: _Parameters,
    known: _Parameters | None,
    columns: tuple[int, int],
) -> None:
    a, b = columns
    if rows is not None:
        draw_rows(axes, rows, a, b, labels)
    own = None if rows is None else "black"
    draw_ellipses(axes, fitted, a, b, color=own, style="-", name="fitted")
    if known is not None:
        draw_ellipses(axes, known, a, b, color=TRUTH, style="--", name="known")
    axes.autoscale_view()


def _share_rows(grid: Any) -> None:
    """Give the pairs of a row one vertical axis; the densities keep their own."""
    for i in range(1, len(grid)):
        for j in range(i):
            grid[i, j].set_ylim(grid[i, i].get_xlim())
            if j:
                grid[i, j].tick_params(labelleft=False)


def _legend(figure: "Figure", grid: Any) -> None:
    k = len(grid)
    if k == 1:
        add_legend(figure, grid[0, 0], columns=3)
        return
    handles, names = grid[0, 0].get_legend_handles_labels()
    more = grid[1, 0].get_legend_handles_labels()
    # the panels above the diagonal are empty
    grid[0, k - 1].legend(handles + more[0], names + more[1], loc="upper right", frameon=False,
                          fontsize="small")  # fmt: skip
