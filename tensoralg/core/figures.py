"""Bare figures in the house's style; matplotlib loads when the first one is drawn."""

from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

from tensoralg.core.errors import TensorAlgError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CYCLE",
    "PlottingUnavailableError",
    "add_legend",
    "bare_figure",
    "new_figure",
    "plain_axes",
    "require_matplotlib",
]

# Okabe and Ito's colours, distinct for colour-blind readers
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555")


class PlottingUnavailableError(TensorAlgError):
    """matplotlib is not installed: nothing can be drawn."""


def require_matplotlib() -> None:
    """Make sure that pictures can be drawn.

    Raises
    ------
    PlottingUnavailableError
        If matplotlib cannot be imported; the message says how to install it.

    Examples
    --------
    >>> from tensoralg.core.figures import require_matplotlib
    >>> require_matplotlib()
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlottingUnavailableError(
            f"no plots: matplotlib cannot be imported ({error}); "
            "install it with: pip install 'tensoralg[plot]'"
        ) from None


def bare_figure(width: float, height: float) -> "Figure":
    """Make an empty figure that no window manager knows of; notebooks show it.

    Parameters
    ----------
    width, height : float
        Size in inches.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, with a constrained layout.

    Raises
    ------
    PlottingUnavailableError
        If matplotlib cannot be imported.

    Examples
    --------
    >>> from tensoralg.core.figures import bare_figure
    >>> bare_figure(6.0, 4.0).axes
    []
    """
    require_matplotlib()
    # a bare figure draws with Agg and leaves pyplot's state and the user's backend alone
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    # what a notebook asks the last value of a cell for; a subclass would load matplotlib at once
    vars(figure)["_repr_png_"] = partial(_picture, figure)
    return figure


def _picture(figure: "Figure") -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def plain_axes(axes: "Axes") -> None:
    """Leave out what carries no data: the frame's upper and right sides; add faint lines.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        The panel.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def new_figure(
    width: float, height: float, columns: int = 1, *, sharey: bool = True
) -> tuple["Figure", list["Axes"]]:
    """Make a figure with panels side by side.

    Parameters
    ----------
    width, height : float
        Size in inches.
    columns : int
        Number of panels.
    sharey : bool, default True
        Whether they share their vertical axis.

    Returns
    -------
    tuple of Figure and list of Axes
        The figure and its panels.

    Raises
    ------
    PlottingUnavailableError
        If matplotlib cannot be imported.

    Examples
    --------
    >>> from tensoralg.core.figures import new_figure
    >>> len(new_figure(6.0, 4.0, columns=2)[1])
    2
    """
    figure = bare_figure(width, height)
    axes = figure.subplots(1, columns, squeeze=False, sharey=sharey)[0]
    for one in axes:
        plain_axes(one)
    return figure, list(axes)


def add_legend(figure: "Figure", axes: "Axes", *, columns: int = 5) -> None:
    """Put one legend below all panels, from the labels of one of them.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    axes : matplotlib.axes.Axes
        The panel whose labels are shown.
    columns : int, default 5
        Labels side by side, at most.
    """
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=min(len(names), columns),
            frameon=False,
        )
