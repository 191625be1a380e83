"""The pictures of a study: errors, log-likelihoods and seconds, per grid point and method."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensoralg.studies.cells import CellResult
from tensoralg.studies.figures import CYCLE, add_legend, new_figure, save_figure
from tensoralg.studies.specification import GridPoint, StudySpecification
from tensoralg.studies.summary import SHARES, SUCCESS_GAP, grid_labels, median, value_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_GROUPS", "MOST_PANELS", "error_against", "method_style", "strip_plot"]

COLORS = {
    "moments": CYCLE[0],
    "moments-only": CYCLE[5],
    "moments-robust": CYCLE[2],
    "moments-auto": "#003F5C",
    "moments-robust-auto": "#4B7F00",
    "em-default": CYCLE[1],
    "em-restarts": CYCLE[4],
    "em-imputed": CYCLE[3],
    "em-bic": "#8C510A",
    "em-truth": CYCLE[7],
}
MARKERS = {
    "moments": "o",
    "moments-only": "s",
    "moments-robust": "P",
    "moments-auto": "X",
    "moments-robust-auto": "*",
    "em-default": "^",
    "em-restarts": "v",
    "em-imputed": "<",
    "em-bic": ">",
    "em-truth": "D",
}
MOST_GROUPS = 16
MOST_PANELS = 4
_AXES = {
    "samples": "samples N",
    "outliers": "share of the rows that are outliers",
    "missing": "share of the cells that are missing",
}


def method_style(method: str, methods: Sequence[str]) -> tuple[str, str]:
    """Give the colour and the marker of a method, the same in all pictures."""
    fallback = CYCLE[methods.index(method) % len(CYCLE)]
    return COLORS.get(method, fallback), MARKERS.get(method, "o")


def strip_plot(
    path: Path,
    specification: StudySpecification,
    cells: Sequence[CellResult],
    measure: str,
    label: str,
) -> None:
    """Draw one dot per cell and one bar per median, for every grid point and method.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        Its finished cells; of more than 16 grid points, the first 16 are drawn.
    measure : str
        Attribute of the cells: "mean_error", "log_likelihood_gap" or "seconds".
    label : str
        Text of the vertical axis.
    """
    common, labels = grid_labels(specification)
    points = list(labels)[:MOST_GROUPS]
    methods = specification.methods
    figure, (axes,) = new_figure(max(7.0, 2.6 + 0.28 * len(points) * (len(methods) + 1)), 4.2)
    step = 1 / (len(methods) + 1)
    for k, method in enumerate(methods):
        color, marker = method_style(method, methods)
        shown = False
        for j, point in enumerate(points):
            group = [c for c in cells if (c.key.grid_point, c.key.method) == (point, method)]
            values = np.array([getattr(cell, measure) for cell in group])
            values = values[np.isfinite(values)]
            if not values.size:
                continue
            center = j + (k - (len(methods) - 1) / 2) * step
            # seeds side by side in a fixed pattern: no overlap, no randomness
            spread = np.linspace(-0.3, 0.3, values.size) * step if values.size > 1 else 0.0
            axes.plot(
                center + spread, values, marker, color=color, alpha=0.65, markersize=4.5,
                markeredgewidth=0, label=None if shown else method,
            )  # fmt: skip
            axes.hlines(np.median(values), center - 0.45 * step, center + 0.45 * step, color=color)
            shown = True
    _scale(axes, measure)
    long = max(map(len, labels.values())) > 14 and len(points) > 2
    axes.set_xticks(
        range(len(points)),
        [labels[point] for point in points],
        rotation=20 if long else 0,
        ha="right" if long else "center",
    )
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_ylabel(label)
    axes.set_title(common or specification.name, fontsize="medium", loc="left")
    add_legend(figure, axes)
    save_figure(figure, path)


def _scale(axes: "Axes", measure: str) -> None:
    if measure != "log_likelihood_gap":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(_decades())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        return
    axes.set_yscale("symlog", linthresh=1e-4, linscale=0.6)
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.axhline(SUCCESS_GAP, color="0.3", linewidth=0.8, linestyle="--")
    axes.annotate(
        "0.001 below it", (1, SUCCESS_GAP), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", fontsize="small", color="0.3",
    )  # fmt: skip


def _decades() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)


def error_against(
    path: Path, specification: StudySpecification, cells: Sequence[CellResult], axis: str
) -> None:
    """Draw the mean error against one list of the grid, one panel per remaining grid point.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study; at most its first four panels are drawn.
    cells : sequence of CellResult
        Its finished cells.
    axis : str
        "samples", "outliers" or "missing".
    """
    values = sorted(getattr(specification, axis))
    others = [point._replace(**{axis: values[0]}) for point in specification.grid_points()]
    panels = list(dict.fromkeys(others))[:MOST_PANELS]
    figure, axes = new_figure(3.2 + 3.4 * len(panels), 4.2, len(panels))
    for panel, one in zip(panels, axes, strict=True):
        group = [c for c in cells if c.key.grid_point._replace(**{axis: values[0]}) == panel]
        for method in specification.methods:
            _line(one, method, specification, [c for c in group if c.key.method == method], axis)
        one.set_yscale("log")
        if axis == "samples":
            one.set_xscale("log")
            one.set_xticks(values, [f"{n:,}" for n in values])
        else:
            one.set_xticks(range(len(values)), [f"{100 * share:g}%" for share in values])
        one.set_xlabel(_AXES[axis])
        one.minorticks_off()
        one.yaxis.set_major_formatter("{x:g}")
        one.yaxis.set_major_locator(_decades())
        one.set_title(_title(panel, axis), fontsize="medium", loc="left")
    axes[0].set_ylabel("relative error of the means")
    add_legend(figure, axes[0])
    save_figure(figure, path)


def _title(panel: GridPoint, axis: str) -> str:
    shown = (n for n, v in panel._asdict().items() if n != axis and (v or n not in SHARES))
    return ", ".join(value_label(name, getattr(panel, name)) for name in shown)


def _line(
    axes: "Axes",
    method: str,
    specification: StudySpecification,
    cells: Sequence[CellResult],
    axis: str,
) -> None:
    color, marker = method_style(method, specification.methods)
    values = sorted(getattr(specification, axis))
    found = {
        place if axis != "samples" else value: [
            c.mean_error
            for c in cells
            if getattr(c.key, axis) == value and np.isfinite(c.mean_error)
        ]
        for place, value in enumerate(values)
    }
    line = [(x, median(errors)) for x, errors in found.items() if errors]
    if not line:
        return
    dots = [(x, value) for x, errors in found.items() for value in errors]
    # side by side: methods that reach the same optimum would hide each other
    place = specification.methods.index(method) - (len(specification.methods) - 1) / 2

    def moved(x: np.ndarray) -> np.ndarray:
        return x * 1.04**place if axis == "samples" else x + 0.06 * place

    x, y = np.transpose(dots)
    axes.plot(moved(x), y, marker, color=color, alpha=0.4, markersize=4, markeredgewidth=0)
    x, y = np.transpose(line)
    style = "--" if method == "em-truth" else "-"
    axes.plot(moved(x), y, style, marker=marker, markersize=6, color=color, label=method)
