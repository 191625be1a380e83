"""Pictures of ranks over training: parameters, ranks of the layers, and what accuracy they cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensoralg.core.errors import ShapeError
from tensoralg.core.figures import CYCLE, new_figure
from tensoralg.nn.rank_scheduler import RankReport, RankScheduler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_ranks"]

_NAMED_LAYERS = 8  # more lines could not be told apart


def plot_ranks(
    reports: RankScheduler | Sequence[RankReport], *, accuracies: Sequence[float] | None = None
) -> "Figure":
    """Draw how ranks fell: parameters and the layers' ranks over roundings, and their price.

    Parameters
    ----------
    reports : RankScheduler or sequence of RankReport
        The scheduler itself, or the reports of its `step` in order.
    accuracies : sequence of float, optional
        A figure of the model after each rounding, such as its accuracy: a third panel shows it
        over the parameters.

    Returns
    -------
    matplotlib.figure.Figure
        A figure of its own, not pyplot's: save it by ``figure.savefig("ranks.png")``. A notebook
        shows it as the last value of a cell.

    Raises
    ------
    PlottingUnavailableError
        matplotlib, the extra ``plot``, is not installed.
    ShapeError
        Another number of accuracies than reports.
    ValueError
        No reports.

    Examples
    --------
    >>> from torch import nn
    >>> from tensoralg.nn import TTLinear
    >>> model = nn.Sequential(TTLinear(64, 64, rank=16), nn.ReLU(), TTLinear(64, 10, rank=8))
    >>> scheduler = RankScheduler(model, target_parameters=600, roundings=3)
    >>> for _ in range(3):
    ...     report = scheduler.step()
    >>> [axes.get_ylabel() for axes in plot_ranks(scheduler).axes]
    ['parameters in the cores', 'mean rank']
    """
    found = reports.history if isinstance(reports, RankScheduler) else list(reports)
    if not found:
        raise ValueError("reports must hold at least one report; the scheduler has not rounded yet")
    if accuracies is not None and len(accuracies) != len(found):
        raise ShapeError(
            f"accuracies must have one entry for each of the {len(found)} reports; "
            f"got {len(accuracies)}"
        )
    panels = 2 if accuracies is None else 3
    figure, axes = new_figure(4.0 * panels, 3.4, panels, sharey=False)
    from matplotlib.ticker import MaxNLocator  # which new_figure has found installed

    sizes, places = [report.parameters for report in found], range(1, len(found) + 1)
    axes[0].plot(places, sizes, color=CYCLE[0], marker="o", markersize=3)
    axes[0].set(xlabel="rounding", ylabel="parameters in the cores", ylim=(0, 1.05 * max(sizes)))
    _draw_layers(axes[1], found)
    for panel in axes[:2]:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    if accuracies is not None:
        axes[2].plot(sizes, list(accuracies), color=CYCLE[1], marker="o", markersize=3)
        axes[2].set(xlabel="parameters in the cores", ylabel="accuracy")
        axes[2].invert_xaxis()  # training goes from left to right here too
    return figure


def _draw_layers(axes: "Axes", reports: Sequence[RankReport]) -> None:
    """Draw the mean inner rank of every layer."""
    names = list(reports[-1].ranks)
    for k, name in enumerate(names):
        inner = [report.ranks[name][1:-1] or (1,) for report in reports]
        means = [sum(ranks) / len(ranks) for ranks in inner]
        axes.plot(
            range(1, len(means) + 1),
            means,
            color=CYCLE[k % len(CYCLE)],
            marker="o",
            markersize=3,
            label=name or "the model",
        )
    axes.set(xlabel="rounding", ylabel="mean rank", ylim=(0, None))
    if len(names) <= _NAMED_LAYERS:
        axes.legend(frameon=False, fontsize="small")
