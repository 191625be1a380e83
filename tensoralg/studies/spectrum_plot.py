"""A scree plot: singular values of a flattening beside what noise reaches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensoralg.studies.figures import CYCLE, add_legend, new_figure, save_figure

__all__ = ["plot_spectrum"]


def plot_spectrum(path: str | Path, rank_test: Mapping[str, Any]) -> None:
    """Draw the singular values that decided on the number of components, and their thresholds.

    Parameters
    ----------
    path : str or Path
        The PNG file.
    rank_test : mapping
        ``diagnostics_.rank_test`` of a fit with ``n_components="auto"``.

    Raises
    ------
    ValueError
        An empty `rank_test`: the number of components was given.

    Examples
    --------
    >>> import tempfile
    >>> test = {"rank": 1, "singular_values": [1.0, 0.01], "thresholds": [0.1, 0.1]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_spectrum(Path(folder) / "spectrum.png", test)
    """
    if not rank_test:
        raise ValueError(
            "rank_test is empty: only a fit with n_components='auto' of columns that vary has one"
        )
    values = np.asarray(rank_test["singular_values"], dtype=np.float64)
    thresholds = np.asarray(rank_test["thresholds"], dtype=np.float64)
    number = np.arange(1, len(values) + 1)
    shown = values > 1e-16 * values.max()
    figure, (axes,) = new_figure(6.0, 4.0)
    axes.plot(number[shown], values[shown], "o-", color=CYCLE[0], label="singular value", zorder=3)
    axes.plot(number, thresholds, "_", color=CYCLE[1], markersize=14, label="reach of noise")
    axes.axvline(rank_test["rank"] + 0.5, color="0.6", linestyle=":")
    axes.set_yscale("log")
    axes.set_xticks(number)
    axes.set_xlabel("number")
    axes.set_title(f"{rank_test['rank']} detected", fontsize="medium")
    add_legend(figure, axes)
    save_figure(figure, Path(path))
