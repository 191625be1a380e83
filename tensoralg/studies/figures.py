"""Figures that are saved as PNG files."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tensoralg.core.figures import (
    CYCLE,
    PlottingUnavailableError,
    add_legend,
    new_figure,
    require_matplotlib,
)
from tensoralg.studies.files import replace_when_complete

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "CYCLE",
    "PlottingUnavailableError",
    "add_legend",
    "new_figure",
    "require_matplotlib",
    "save_figure",
]


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
