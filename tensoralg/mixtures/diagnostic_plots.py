"""Pictures of a fit: the spectrum that counts the components, the likelihood of the polish."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.figures import CYCLE, add_legend, new_figure
from tensoralg.mixtures.diagnostics import FitDiagnostics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_convergence", "plot_spectrum"]

Array = NDArray[np.float64]

_SMALLEST = 1e-16  # share of the largest singular value that is drawn
_MOST_TICKS = 20


def plot_spectrum(fit: Any) -> "Figure":
    """Draw the singular values that count the components, and what noise reaches.

    Parameters
    ----------
    fit : DiagonalGaussianMixture, FitDiagnostics, RankTest or mapping
        A fitted estimator, its ``diagnostics_``, the answer of :func:`detect_rank`, or the
        ``rank_test`` of the diagnostics. Where the number of components was detected, the
        singular values of the split that decided are drawn with their thresholds. Where it was
        given, those of one flattening are drawn, which have no thresholds.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, as that of :func:`plot_mixture`.

    Raises
    ------
    PlottingUnavailableError
        matplotlib, the extra ``plot``, is not installed.
    ValueError
        No spectrum was computed; the message says why.
    TypeError
        `fit` is none of the above.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.mixtures import MomentAccumulator, detect_rank, plot_spectrum
    >>> exact = MomentAccumulator.from_parameters(
    ...     [0.4, 0.6], [[1, 2, 3, 0], [3, 1, 0, 2]], np.ones((2, 4)), 3)
    >>> figure = plot_spectrum(detect_rank(exact, rng=0))
    >>> figure.axes[0].get_title()
    '2 components detected'
    """
    values, thresholds, rank, title = _spectrum(fit)
    number = np.arange(1, len(values) + 1)
    shown = values > _SMALLEST * values.max()
    figure, (axes,) = new_figure(max(4.5, min(2.5 + 0.35 * len(values), 9.0)), 4.0)
    axes.plot(number[shown], values[shown], "o-", color=CYCLE[0], label="singular value", zorder=3)
    known = np.isfinite(thresholds)
    if known.any():
        axes.plot(
            number[known], thresholds[known], "_", color=CYCLE[1], markersize=14,
            markeredgewidth=2, label="reach of noise",
        )  # fmt: skip
    if rank:
        axes.axvline(rank + 0.5, color="0.6", linestyle=":")
    axes.set_yscale("log")
    axes.set_xticks(number[:: 1 + len(number) // _MOST_TICKS])
    axes.set_xlabel("number")
    axes.set_title(title, fontsize="medium")
    add_legend(figure, axes)
    return figure


def _spectrum(fit: Any) -> tuple[Array, Array, int, str]:
    """Singular values, thresholds (NaN where there is none), how many count (or 0), title."""
    diagnostics = getattr(fit, "diagnostics_", fit)
    test = diagnostics.rank_test if isinstance(diagnostics, FitDiagnostics) else diagnostics
    if isinstance(test, Mapping):
        test = dict(test)
    elif all(hasattr(test, name) for name in ("rank", "singular_values", "thresholds")):
        test = {"rank": test.rank, "singular_values": test.singular_values,
                "thresholds": test.thresholds}  # fmt: skip
    else:
        raise TypeError(
            "fit must be a fitted DiagonalGaussianMixture, its diagnostics_, or a RankTest; got "
            f"{type(fit).__name__}"
        )
    if test:
        values = np.asarray(test["singular_values"], dtype=np.float64)
        rank = int(test["rank"])
        title = f"{rank} component{'s' if rank > 1 else ''} detected"
        return values, np.asarray(test["thresholds"], dtype=np.float64), rank, title
    if not isinstance(diagnostics, FitDiagnostics):
        raise ValueError(
            "rank_test is empty: only a fit with n_components='auto' of columns that vary has one"
        )
    values = np.asarray(diagnostics.singular_values, dtype=np.float64)
    if not values.size:
        raise ValueError(
            f"the fit has no spectrum: its start was {diagnostics.start or 'none'!r}, for which "
            "no flattening of moments was decomposed. Fit with n_components='auto', or pass the "
            "answer of detect_rank"
        )
    rank = int(getattr(fit, "n_components_", 0))  # diagnostics alone do not know it
    title = "flattening of one split: one value for each component"
    if diagnostics.form == "blocks":
        rank = max(rank - 1, 0)
        title = "covariance between blocks: one value less than components"
    return values, np.full(len(values), np.nan), rank, title


def plot_convergence(fit: Any) -> "Figure":
    """Draw the log-likelihood per row over the passes of the polish, and what each pass gained.

    Parameters
    ----------
    fit : DiagonalGaussianMixture or FitDiagnostics
        A fitted estimator, or its ``diagnostics_``; only the former knows the tolerance.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, as that of :func:`plot_mixture`.

    Raises
    ------
    PlottingUnavailableError
        matplotlib, the extra ``plot``, is not installed.
    ValueError
        The fit was not polished by expectation maximization.
    TypeError
        `fit` is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.mixtures import DiagonalGaussianMixture, plot_convergence
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 5)) + 2.0 * rng.integers(0, 2, (2000, 1))
    >>> model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    >>> figure = plot_convergence(model)
    >>> len(figure.axes[0].lines[0].get_xdata()) == len(model.diagnostics_.log_likelihoods)
    True
    """
    diagnostics = getattr(fit, "diagnostics_", fit)
    if not isinstance(diagnostics, FitDiagnostics):
        raise TypeError(
            "fit must be a fitted DiagonalGaussianMixture or its diagnostics_; got "
            f"{type(fit).__name__}"
        )
    history = np.asarray(diagnostics.log_likelihoods, dtype=np.float64)
    if not history.size:
        raise ValueError(
            f"the fit was not polished (status {diagnostics.status!r}, start "
            f"{diagnostics.start!r}): it has no history of likelihoods"
        )
    figure, panels = new_figure(
        9.0 if len(history) > 1 else 5.0, 3.8, 1 + (len(history) > 1), sharey=False
    )
    from matplotlib.ticker import MaxNLocator

    passes = np.arange(1, len(history) + 1)
    panels[0].plot(passes, history, "o-", color=CYCLE[0], markersize=4)
    panels[0].set_ylabel("log-likelihood per row")
    # a polish that changes nothing but rounding has room around it, too
    room = max(0.05 * float(np.ptp(history)), 1e-9 * float(np.abs(history).max()), 1e-12)
    panels[0].set_ylim(history.min() - room, history.max() + room)
    panels[0].ticklabel_format(axis="y", useOffset=False)
    panels[0].set_title(f"from {diagnostics.start}: {diagnostics.status}", fontsize="medium")
    if len(history) > 1:
        _draw_gains(panels[1], np.diff(history), float(getattr(fit, "tol", 0.0)))
        panels[1].set_xlim(panels[0].get_xlim())
    for panel in panels:
        panel.set_xlabel("accepted pass over the rows")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _draw_gains(axes: "Axes", gains: Array, tolerance: float) -> None:
    """Draw what each pass after the first gained; losses, after a restart, have no logarithm."""
    grown = gains > 0
    passes = np.arange(2, len(gains) + 2)
    axes.plot(passes[grown], gains[grown], "o-", color=CYCLE[0], markersize=4)
    axes.set_yscale("log")
    axes.set_title("gained in the pass", fontsize="medium")
    levels = np.append(gains[grown], tolerance)
    levels = levels[levels > 0]
    if levels.size:
        axes.set_ylim(levels.min() / 2, levels.max() * 2)
    if tolerance > 0:
        axes.axhline(tolerance, color="0.5", linestyle=":")
        axes.annotate(
            "tolerance", (1, tolerance), xycoords=("axes fraction", "data"), ha="right",
            va="bottom", fontsize="small", color="0.4",
        )  # fmt: skip
