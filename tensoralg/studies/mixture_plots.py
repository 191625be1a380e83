"""Pictures of mixtures: rows with ellipses, densities, responsibilities."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.studies.figures import CYCLE, add_legend, new_figure, save_figure
from tensoralg.studies.generation import MixtureParameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "mixture_histogram",
    "mixture_scatter",
    "responsibility_histogram",
    "separating_columns",
]

_MOST_POINTS = 4000


def mixture_scatter(
    path: Path,
    X: ArrayLike,
    mixtures: Mapping[str, MixtureParameters],
    *,
    names: Sequence[str],
    labels: NDArray[np.int64] | None = None,
    columns: tuple[int, int] | None = None,
    truth: MixtureParameters | None = None,
) -> None:
    """Draw two columns of the data with an ellipse per component, one panel per mixture.

    Parameters
    ----------
    path : Path
        The PNG file.
    X : (N, d) array-like
        Rows; at most 4,000, evenly spaced, are drawn.
    mixtures : mapping of str to MixtureParameters
        Panels: title and mixture.
    names : sequence of str
        Names of the columns.
    labels : (N,) int array, optional
        Colours of the rows; grey without.
    columns : pair of int, optional
        Which columns; the two that separate the first mixture best when None.
    truth : MixtureParameters, optional
        A known mixture, drawn dashed in every panel.
    """
    rows = np.asarray(X)
    first = next(iter(mixtures.values()))
    a, b = columns or separating_columns(first)
    keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_POINTS)).astype(int))
    colors: Any = "0.6"
    if labels is not None:
        colors = [CYCLE[label % len(CYCLE)] for label in labels[keep]]
    figure, axes = new_figure(1.2 + 3.9 * len(mixtures), 4.3, len(mixtures))
    for (title, mixture), one in zip(mixtures.items(), axes, strict=True):
        one.scatter(rows[keep, a], rows[keep, b], c=colors, s=7, alpha=0.45, linewidths=0)
        _ellipses(one, mixture, a, b, "black", "-", "fitted")
        if truth is not None:
            _ellipses(one, truth, a, b, "#D55E00", "--", "known")
        one.set_title(title, fontsize="medium", loc="left")
        one.set_xlabel(names[a])
        one.sharex(axes[0])
    axes[0].set_ylabel(names[b])
    add_legend(figure, axes[0])
    save_figure(figure, path)


def separating_columns(mixture: MixtureParameters) -> tuple[int, int]:
    """Choose the two columns in which the means differ most, against the spread within.

    Parameters
    ----------
    mixture : MixtureParameters
        The mixture.

    Returns
    -------
    tuple of two int
        Positions; both 0 when there is one column.

    Examples
    --------
    >>> from tensoralg.studies.generation import MixtureParameters
    >>> from tensoralg.studies.mixture_plots import separating_columns
    >>> mixture = MixtureParameters([0.5, 0.5], [[0, 0, 0], [1, 9, 3]], [[1, 1, 1], [1, 1, 1]])
    >>> separating_columns(mixture)
    (1, 2)
    """
    center = mixture.weights @ mixture.means
    between = mixture.weights @ (mixture.means - center) ** 2
    within = mixture.weights @ mixture.covariances
    order = np.argsort(-between / np.maximum(within, np.finfo(float).tiny), kind="stable")
    return int(order[0]), int(order[min(1, len(order) - 1)])


def _ellipses(
    axes: "Axes", mixture: MixtureParameters, a: int, b: int, color: str, style: str, name: str
) -> None:
    from matplotlib.patches import Ellipse

    for k, (mean, variance) in enumerate(zip(mixture.means, mixture.covariances, strict=True)):
        for deviations in (1, 2):
            width, height = 2 * deviations * np.sqrt(variance[[a, b]])
            axes.add_patch(
                Ellipse(
                    (mean[a], mean[b]), width, height, fill=False, edgecolor=color,
                    linestyle=style, linewidth=1.4 if deviations == 1 else 0.7,
                )
            )  # fmt: skip
        axes.plot(
            mean[a], mean[b], "+" if style == "-" else "x", color=color,
            markersize=8, label=f"{name}: means, 1 and 2 sd" if k == 0 else None,
        )  # fmt: skip


def mixture_histogram(
    path: Path, values: NDArray[np.float64], mixture: MixtureParameters, name: str
) -> None:
    """Draw one column as a histogram, with the density of the mixture and of its components.

    Parameters
    ----------
    path : Path
        The PNG file.
    values : (N,) float array
        The column.
    mixture : MixtureParameters
        A mixture in one dimension.
    name : str
        Name of the column.
    """
    seen = values[np.isfinite(values)]
    figure, (axes,) = new_figure(6.4, 3.8)
    axes.hist(seen, bins=60, density=True, color="0.85")
    x = np.linspace(seen.min(), seen.max(), 800)
    variances = mixture.covariances[:, 0]
    squares = (x[:, None] - mixture.means[:, 0]) ** 2 / variances
    parts = mixture.weights * np.exp(-squares / 2) / np.sqrt(2 * np.pi * variances)
    for k, part in enumerate(parts.T):
        axes.plot(x, part, color=CYCLE[k % len(CYCLE)], linewidth=1, label=f"component {k}")
    axes.plot(x, parts.sum(axis=1), color="black", label="mixture")
    axes.set_xlabel(name)
    axes.set_ylabel("density")
    add_legend(figure, axes)
    save_figure(figure, path)


def responsibility_histogram(path: Path, responsibilities: NDArray[np.float64]) -> None:
    """Draw how sure the assignment of the rows is: the largest responsibility of each row.

    Parameters
    ----------
    path : Path
        The PNG file.
    responsibilities : (N, r) float array
        Posterior probabilities of the components.
    """
    labels, largest = responsibilities.argmax(axis=1), responsibilities.max(axis=1)
    count = responsibilities.shape[1]
    figure, (axes,) = new_figure(6.4, 3.6)
    axes.hist(
        [largest[labels == k] for k in range(count)],
        bins=np.linspace(1 / count if count > 1 else 0, 1, 31).tolist(),
        stacked=True,
        color=[CYCLE[k % len(CYCLE)] for k in range(count)],
        label=[f"component {k}" for k in range(count)],
    )
    axes.set_xlabel("largest responsibility of the row")
    axes.set_ylabel("rows")
    add_legend(figure, axes)
    save_figure(figure, path)
