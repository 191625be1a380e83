"""Parts of the pictures of a mixture: points, ellipses, densities, and which columns to show."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.figures import CYCLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TRUTH", "draw_density", "draw_ellipses", "draw_rows", "separating_columns"]

Array = NDArray[Any]

TRUTH = "#A50026"  # no component's colour
_MOST_NAMED = 12  # components in a legend


def separating_columns(
    weights: ArrayLike, means: ArrayLike, covariances: ArrayLike, count: int = 2
) -> list[int]:
    """Choose columns that together tell every two components apart, the best one first.

    Parameters
    ----------
    weights : array_like of shape (r,)
        Weights.
    means, covariances : array_like of shape (r, d)
        Means and variances.
    count : int, default 2
        How many columns; fewer when there are no more.

    Returns
    -------
    list of int
        Positions of the columns.

    Notes
    -----
    Column by column, that which adds most to the sum over pairs of components (s, t) of
    sqrt(w_s w_t) log(1 + D), where D adds up (mu_sj - mu_tj)^2 / (var_sj + var_tj) over the chosen
    columns j: pairs that are far apart already count little.

    Examples
    --------
    >>> separating_columns([0.5, 0.5], [[0, 0, 0], [1, 9, 3]], [[1, 1, 1], [1, 1, 1]])
    [1, 2]
    """
    w, mu, var = (np.asarray(a, dtype=np.float64) for a in (weights, means, covariances))
    r, d = mu.shape
    tiny = np.finfo(np.float64).tiny
    importance = np.sqrt(np.outer(w, w))
    reached = np.zeros((r, r))
    chosen: list[int] = []

    def distances(j: int) -> Array:
        gap = (mu[:, None, j] - mu[None, :, j]) ** 2
        return np.asarray(gap / np.maximum(var[:, None, j] + var[None, :, j], tiny))

    while len(chosen) < min(count, d):
        gains = np.full(d, -np.inf)
        for j in set(range(d)) - set(chosen):
            gains[j] = float((importance * np.log1p(reached + distances(j))).sum())
        chosen.append(int(gains.argmax()))
        reached = reached + distances(chosen[-1])
    return chosen


def draw_rows(
    axes: "Axes", rows: Array, a: int, b: int, labels: NDArray[np.int64] | None = None
) -> None:
    """Draw two columns of rows as points.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        The panel.
    rows : ndarray of shape (n, d)
        Rows.
    a, b : int
        The horizontal and the vertical column.
    labels : ndarray of int, shape (n,), optional
        Colours of the rows; grey without.
    """
    there = np.isfinite(rows[:, a]) & np.isfinite(rows[:, b])
    colors: Any = "0.6"
    if labels is not None:
        colors = [CYCLE[label % len(CYCLE)] for label in labels[there]]
    axes.scatter(rows[there, a], rows[there, b], c=colors, s=7, alpha=0.45, linewidths=0)


def draw_ellipses(
    axes: "Axes", mixture: Any, a: int, b: int, *, color: str | None, style: str, name: str
) -> None:
    """Draw components as ellipses at one and two standard deviations.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        The panel.
    mixture : object
        With means and covariances of shape (r, d).
    a, b : int
        The horizontal and the vertical column.
    color : str or None
        Of the lines; None gives every component a colour of its own.
    style : str
        Of the lines, as "-" or "--".
    name : str
        What the legend calls the mixture.
    """
    from matplotlib.patches import Ellipse

    for s, (mean, variance) in enumerate(zip(mixture.means, mixture.covariances, strict=True)):
        line = color or CYCLE[s % len(CYCLE)]
        for deviations in (1, 2):
            width, height = 2 * deviations * np.sqrt(variance[[a, b]])
            axes.add_patch(
                Ellipse(
                    (mean[a], mean[b]), width, height, fill=False, edgecolor=line,
                    linestyle=style, linewidth=1.4 if deviations == 1 else 0.7,
                )
            )  # fmt: skip
        axes.plot(
            mean[a], mean[b], "+" if style == "-" else "x", color=line, markersize=8,
            label=f"{name}: means, 1 and 2 sd" if s == 0 else None,
        )  # fmt: skip


def draw_density(
    axes: "Axes", rows: Array | None, fitted: Any, column: int, known: Any = None
) -> None:
    """Draw one column as a histogram, with the densities of the mixture and its components.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        The panel.
    rows : ndarray of shape (n, d) or None
        Rows; without a histogram when None.
    fitted : object
        Mixture with weights, means and covariances.
    column : int
        The column.
    known : object, optional
        Another mixture, drawn dashed.
    """
    reach = [
        mixture.means[:, column] + k * np.sqrt(mixture.covariances[:, column])
        for mixture in (fitted, known)
        if mixture is not None
        for k in (-3.0, 3.0)
    ]
    if rows is not None:
        seen = rows[np.isfinite(rows[:, column]), column]
        if seen.size:
            bins = int(np.clip(1.5 * np.sqrt(seen.size), 10, 60))
            axes.hist(seen, bins=bins, density=True, color="0.85")
            reach.append(seen)
    x = np.linspace(np.concatenate(reach).min(), np.concatenate(reach).max(), 800)
    # the peaks of narrow components lie between any grid's points
    x = np.sort(np.concatenate([x, fitted.means[:, column]]))
    parts = _densities(x, fitted, column)
    for s, part in enumerate(parts):
        name = f"component {s} ({fitted.weights[s]:.3g})" if s < _MOST_NAMED else None
        axes.plot(x, part, color=CYCLE[s % len(CYCLE)], linewidth=1, label=name)
    axes.plot(x, parts.sum(axis=0), color="black", label="mixture")
    if known is not None:
        total = _densities(x, known, column).sum(axis=0)
        axes.plot(x, total, color=TRUTH, linestyle="--", label="known mixture")
    axes.set_ylim(bottom=0)


def _densities(x: Array, mixture: Any, column: int) -> Array:
    mean, variance = mixture.means[:, column], mixture.covariances[:, column]
    squares = (x - mean[:, None]) ** 2 / variance[:, None]
    height = mixture.weights / np.sqrt(2 * np.pi * variance)
    return np.asarray(height[:, None] * np.exp(-squares / 2))
