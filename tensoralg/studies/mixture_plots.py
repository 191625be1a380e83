"""Pictures of mixtures beside each other, and of responsibilities."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.mixtures import panels
from tensoralg.studies.figures import CYCLE, add_legend, new_figure, save_figure
from tensoralg.studies.generation import MixtureParameters

__all__ = [
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
    colors = None if labels is None else labels[keep]
    figure, axes = new_figure(1.2 + 3.9 * len(mixtures), 4.3, len(mixtures))
    for (title, mixture), one in zip(mixtures.items(), axes, strict=True):
        panels.draw_rows(one, rows[keep], a, b, colors)
        panels.draw_ellipses(one, mixture, a, b, color="black", style="-", name="fitted")
        if truth is not None:
            panels.draw_ellipses(one, truth, a, b, color=panels.TRUTH, style="--", name="known")
        one.set_title(title, fontsize="medium", loc="left")
        one.set_xlabel(names[a])
        one.sharex(axes[0])
    axes[0].set_ylabel(names[b])
    add_legend(figure, axes[0])
    save_figure(figure, path)


def separating_columns(mixture: MixtureParameters) -> tuple[int, int]:
    """Choose the two columns that tell the components apart best.

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
    found = panels.separating_columns(mixture.weights, mixture.means, mixture.covariances)
    return found[0], found[-1]


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
