"""Pictures of what a study asks beyond recovery: counted components, intervals, p-values."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tensoralg.studies.cells import CellResult
from tensoralg.studies.evidence import KINDS, interval_shares, moment_p_values
from tensoralg.studies.figures import add_legend, new_figure, save_figure
from tensoralg.studies.methods import METHODS
from tensoralg.studies.plots import method_style
from tensoralg.studies.specification import GridPoint, StudySpecification
from tensoralg.studies.summary import grid_labels

__all__ = ["plot_counts", "plot_intervals", "plot_p_values"]

_NOMINAL, _LOWEST, _HIGHEST = 0.95, 0.92, 0.98
_MOST_GROUPS = 24


def _cells_of(cells: Sequence[CellResult], point: GridPoint, method: str) -> list[CellResult]:
    return [c for c in cells if (c.key.grid_point, c.key.method) == (point, method)]


def plot_counts(path: Path, specification: StudySpecification, cells: Sequence[CellResult]) -> None:
    """Draw how far the found numbers of components are from the known ones.

    The area of a dot is the share of the seeds.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study; of more than 24 grid points, the first 24 are drawn.
    cells : sequence of CellResult
        Its finished cells.
    """
    from matplotlib.ticker import MaxNLocator

    common, labels = grid_labels(specification)
    points = list(labels)[:_MOST_GROUPS]
    methods = [name for name in specification.methods if METHODS[name].counts]
    figure, (axes,) = new_figure(max(7.0, 2.6 + 0.3 * len(points) * (len(methods) + 1)), 4.2)
    step = 1 / (len(methods) + 1)
    for k, method in enumerate(methods):
        color, marker = method_style(method, specification.methods)
        dots = []
        for j, point in enumerate(points):
            group = [
                c.components_found - point.components
                for c in _cells_of(cells, point, method)
                if c.components_found is not None
            ]
            center = j + (k - (len(methods) - 1) / 2) * step
            dots += [(center, off, n / len(group)) for off, n in Counter(group).items()]
        if dots:
            x, y, share = np.transpose(dots)
            axes.scatter(x, y, 110 * share, color=color, marker=marker, label=method, linewidths=0)
    axes.axhline(0, color="0.5", linewidth=0.8, zorder=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks(
        range(len(points)), [labels[point] for point in points], rotation=30, ha="right"
    )
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_ylabel("components found, minus known")
    axes.set_title(common or specification.name, fontsize="medium", loc="left")
    add_legend(figure, axes)
    save_figure(figure, path)


def plot_intervals(
    path: Path, specification: StudySpecification, cells: Sequence[CellResult]
) -> None:
    """Draw the shares of nominal 95% intervals that hold the known values.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study; of more than 24 grid points, the first 24 are drawn.
    cells : sequence of CellResult
        Its finished cells.
    """
    common, labels = grid_labels(specification)
    points = list(labels)[:_MOST_GROUPS]
    figure, panels = new_figure(max(7.5, 3.0 + 0.9 * len(points) * len(KINDS)), 4.2, len(KINDS))
    # a single grid point is in the title
    names = [labels[point] for point in points] if len(points) > 1 else [""]
    methods = specification.methods
    for kind, axes in zip(KINDS, panels, strict=True):
        axes.axhspan(_LOWEST, _HIGHEST, color="0.93", zorder=0)
        axes.axhline(_NOMINAL, color="0.5", linewidth=0.8)
        for k, method in enumerate(methods):
            color, marker = method_style(method, methods)
            found = [interval_shares(_cells_of(cells, p, method), kind) for p in points]
            share, error = np.transpose(found)
            place = np.arange(len(points)) + 0.7 * ((k + 0.5) / len(methods) - 0.5)
            if np.isfinite(share).any():
                # shares end at 0 and 1, and so do their bars
                reach = 1.96 * np.nan_to_num(error)
                bars = np.minimum(reach, share), np.minimum(reach, 1 - share)
                axes.errorbar(place, share, bars, fmt=marker, color=color, label=method, capsize=2)
        axes.set_xticks(range(len(points)), names, rotation=20, ha="right")
        axes.set_xlim(-0.6, len(points) - 0.4)
        axes.set_title(kind, fontsize="medium", loc="left")
    panels[0].set_ylabel("share of intervals that hold the truth")
    figure.suptitle(common or specification.name, fontsize="medium")
    add_legend(figure, panels[0])
    save_figure(figure, path)


def plot_p_values(
    path: Path, specification: StudySpecification, cells: Sequence[CellResult]
) -> None:
    """Draw the distribution of the p-values of the moment test: on the diagonal if it holds.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study; at most its first four grid points are drawn.
    cells : sequence of CellResult
        Its finished cells.
    """
    _, labels = grid_labels(specification)
    points = list(labels)[:4]
    figure, panels = new_figure(1.6 + 3.2 * len(points), 4.2, len(points))
    for point, axes in zip(points, panels, strict=True):
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        for method in specification.methods:
            values = np.sort(moment_p_values(_cells_of(cells, point, method)))
            if values.size:
                color, _ = method_style(method, specification.methods)
                share = np.arange(1, values.size + 1) / values.size
                axes.step(values, share, where="post", color=color, label=method)
        axes.set_xlabel("p-value of the moment test")
        axes.set_title(labels[point], fontsize="medium", loc="left")
    panels[0].set_ylabel("share of fits with at most that")
    add_legend(figure, panels[0])
    save_figure(figure, path)
