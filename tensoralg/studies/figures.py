"""Figures that are saved as PNG files; matplotlib loads when the first one is drawn."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tensoralg.core.errors import TensorAlgError
from tensoralg.studies.files import replace_when_complete

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CYCLE",
    "PlottingUnavailableError",
    "add_legend",
    "new_figure",
    "require_matplotlib",
    "save_figure",
]

# Okabe and Ito's colours, distinct for colour-blind readers
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555")


class PlottingUnavailableError(TensorAlgError):
    """matplotlib is not installed: reports come without pictures."""


def require_matplotlib() -> None:
    """Make sure that pictures can be drawn.

    Raises
    ------
    PlottingUnavailableError
        If matplotlib cannot be imported; the message says how to install it.

    Examples
    --------
    >>> from tensoralg.studies.figures import require_matplotlib
    >>> require_matplotlib()
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlottingUnavailableError(
            f"no plots: matplotlib cannot be imported ({error}); "
            "install it with: pip install 'tensoralg[plot]'"
        ) from None


def new_figure(width: float, height: float, columns: int = 1) -> tuple["Figure", list["Axes"]]:
    """Make a figure with panels side by side that share their vertical axis.

    Parameters
    ----------
    width, height : float
        Size in inches.
    columns : int
        Number of panels.

    Returns
    -------
    tuple of Figure and list of Axes
        The figure and its panels.

    Examples
    --------
    >>> from tensoralg.studies.figures import new_figure
    >>> len(new_figure(6.0, 4.0, columns=2)[1])
    2
    """
    # a bare Figure draws with Agg and leaves pyplot's state and the user's backend alone
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="0.9", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, list(axes)


def save_figure(figure: "Figure", path: Path) -> None:
    """Save a figure as a PNG file, complete or not at all.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    path : Path
        The file.
    """
    with replace_when_complete(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the font lacks
        figure.savefig(temporary, dpi=150, metadata={"Software": None})


def add_legend(figure: "Figure", axes: "Axes") -> None:
    """Put one legend below all panels, from the labels of one of them.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    axes : matplotlib.axes.Axes
        The panel whose labels are shown.
    """
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(len(names), 5), frameon=False
        )
