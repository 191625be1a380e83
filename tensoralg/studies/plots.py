"""The pictures of the reports; matplotlib loads when the first one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import TensorAlgError
from tensoralg.studies.cells import CellResult
from tensoralg.studies.files import replace_when_complete
from tensoralg.studies.generation import MixtureParameters
from tensoralg.studies.specification import StudySpecification
from tensoralg.studies.summary import SUCCESS_GAP, grid_labels, median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PlottingUnavailableError",
    "error_against_samples",
    "mixture_histogram",
    "mixture_scatter",
    "require_matplotlib",
    "responsibility_histogram",
    "separating_columns",
    "strip_plot",
]

# Okabe and Ito's colours, distinct for colour-blind readers
COLORS = {
    "moments": "#0072B2",
    "moments-only": "#56B4E9",
    "em-default": "#D55E00",
    "em-restarts": "#E69F00",
    "em-truth": "#555555",
}
MARKERS = {
    "moments": "o",
    "moments-only": "s",
    "em-default": "^",
    "em-restarts": "v",
    "em-truth": "D",
}
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555")
_MOST_GROUPS = 16
_MOST_POINTS = 4000


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
    >>> from tensoralg.studies.plots import require_matplotlib
    >>> require_matplotlib()
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlottingUnavailableError(
            f"no plots: matplotlib cannot be imported ({error}); "
            "install it with: pip install 'tensoralg[plot]'"
        ) from None


def _figure(width: float, height: float, columns: int = 1) -> tuple["Figure", list["Axes"]]:
    # a bare Figure draws with Agg and leaves pyplot's state and the user's backend alone
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="0.9", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, list(axes)


def _save(figure: "Figure", path: Path) -> None:
    with replace_when_complete(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={"Software": None})


def _style(method: str, methods: Sequence[str]) -> tuple[str, str]:
    fallback = _CYCLE[methods.index(method) % len(_CYCLE)]
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
    points = list(labels)[:_MOST_GROUPS]
    methods = specification.methods
    figure, (axes,) = _figure(max(7.0, 2.6 + 0.28 * len(points) * (len(methods) + 1)), 4.2)
    step = 1 / (len(methods) + 1)
    for k, method in enumerate(methods):
        color, marker = _style(method, methods)
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
    _legend(figure, axes)
    _save(figure, path)


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
        "success above", (1, SUCCESS_GAP), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", fontsize="small", color="0.3",
    )  # fmt: skip


def _decades() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(len(names), 5), frameon=False
        )


def error_against_samples(
    path: Path, specification: StudySpecification, cells: Sequence[CellResult]
) -> None:
    """Draw the mean error against the number of samples, one panel per remaining grid point.

    Parameters
    ----------
    path : Path
        The PNG file.
    specification : StudySpecification
        The study; at most its first four panels are drawn.
    cells : sequence of CellResult
        Its finished cells.
    """
    panels = list(dict.fromkeys((*k.grid_point[:3], k.separation) for k in specification.cells()))[
        :4
    ]
    figure, axes = _figure(3.2 + 3.4 * len(panels), 4.2, len(panels))
    for panel, one in zip(panels, axes, strict=True):
        group = [c for c in cells if (*c.key.grid_point[:3], c.key.separation) == panel]
        for method in specification.methods:
            _line(one, method, specification, [c for c in group if c.key.method == method])
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_xlabel("samples N")
        one.set_xticks(
            sorted(specification.samples), [f"{n:,}" for n in sorted(specification.samples)]
        )
        one.minorticks_off()
        one.yaxis.set_major_formatter("{x:g}")
        one.yaxis.set_major_locator(_decades())
        d, r, m, separation = panel
        one.set_title(f"d={d}, r={r}, m={m}, sep={separation:g}", fontsize="medium", loc="left")
    axes[0].set_ylabel("relative error of the means")
    _legend(figure, axes[0])
    _save(figure, path)


def _line(
    axes: "Axes", method: str, specification: StudySpecification, cells: Sequence[CellResult]
) -> None:
    color, marker = _style(method, specification.methods)
    found = {
        n: [c.mean_error for c in cells if c.key.samples == n and np.isfinite(c.mean_error)]
        for n in sorted(specification.samples)
    }
    line = [(n, median(values)) for n, values in found.items() if values]
    if not line:
        return
    dots = [(n, value) for n, values in found.items() for value in values]
    # side by side: methods that reach the same optimum would hide each other
    place = specification.methods.index(method) - (len(specification.methods) - 1) / 2
    shift = 1.04**place
    x, y = np.transpose(dots)
    axes.plot(x * shift, y, marker, color=color, alpha=0.4, markersize=4, markeredgewidth=0)
    x, y = np.transpose(line)
    style = "--" if method == "em-truth" else "-"
    axes.plot(x * shift, y, style, marker=marker, markersize=6, color=color, label=method)


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
        colors = [_CYCLE[label % len(_CYCLE)] for label in labels[keep]]
    figure, axes = _figure(1.2 + 3.9 * len(mixtures), 4.3, len(mixtures))
    for (title, mixture), one in zip(mixtures.items(), axes, strict=True):
        one.scatter(rows[keep, a], rows[keep, b], c=colors, s=7, alpha=0.45, linewidths=0)
        _ellipses(one, mixture, a, b, "black", "-", "fitted")
        if truth is not None:
            _ellipses(one, truth, a, b, "#D55E00", "--", "known")
        one.set_title(title, fontsize="medium", loc="left")
        one.set_xlabel(names[a])
        one.sharex(axes[0])
    axes[0].set_ylabel(names[b])
    _legend(figure, axes[0])
    _save(figure, path)


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
    >>> from tensoralg.studies.plots import separating_columns
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
    figure, (axes,) = _figure(6.4, 3.8)
    axes.hist(seen, bins=60, density=True, color="0.85")
    x = np.linspace(seen.min(), seen.max(), 800)
    variances = mixture.covariances[:, 0]
    squares = (x[:, None] - mixture.means[:, 0]) ** 2 / variances
    parts = mixture.weights * np.exp(-squares / 2) / np.sqrt(2 * np.pi * variances)
    for k, part in enumerate(parts.T):
        axes.plot(x, part, color=_CYCLE[k % len(_CYCLE)], linewidth=1, label=f"component {k}")
    axes.plot(x, parts.sum(axis=1), color="black", label="mixture")
    axes.set_xlabel(name)
    axes.set_ylabel("density")
    _legend(figure, axes)
    _save(figure, path)


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
    figure, (axes,) = _figure(6.4, 3.6)
    axes.hist(
        [largest[labels == k] for k in range(count)],
        bins=np.linspace(1 / count if count > 1 else 0, 1, 31).tolist(),
        stacked=True,
        color=[_CYCLE[k % len(_CYCLE)] for k in range(count)],
        label=[f"component {k}" for k in range(count)],
    )
    axes.set_xlabel("largest responsibility of the row")
    axes.set_ylabel("rows")
    _legend(figure, axes)
    _save(figure, path)
