"""Medians, ratios and counts of a study's cells, per grid point and method."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensoralg.studies.cells import CellResult
from tensoralg.studies.specification import GridPoint, StudySpecification

__all__ = [
    "SHARES",
    "SUCCESS_GAP",
    "MethodSummary",
    "grid_labels",
    "median",
    "number",
    "summarize",
    "value_label",
]

SUCCESS_GAP = -1e-3
_LIMIT = "em-truth"
_LETTERS = {"dimension": "d", "components": "r", "order": "m", "samples": "N", "separation": "sep"}
SHARES = ("outliers", "missing")


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """What one method did at one grid point, over the seeds that are finished.

    Attributes
    ----------
    grid_point : GridPoint
        Dimension, components, order, samples, separation, shares of outliers and missing cells.
    method : str
        The method.
    cells, failed, not_converged, successes : int
        Counts; a success has a log-likelihood per row within 1e-3 of that of ``em-truth`` on the
        same rows. Where the study does not run it, or the rows are spoiled, within 1e-3 of that of
        the known mixture.
    mean_error, weight_error, variance_error, seconds : float
        Medians over the cells that did not fail.
    ratio : float
        Median over seeds of the mean error divided by that of ``em-truth`` on the same data;
        NaN where the study does not run it.
    """

    grid_point: GridPoint
    method: str
    cells: int
    failed: int
    not_converged: int
    successes: int
    mean_error: float
    weight_error: float
    variance_error: float
    ratio: float
    seconds: float


def summarize(
    specification: StudySpecification, cells: Iterable[CellResult]
) -> list[MethodSummary]:
    """Summarize the finished cells per grid point and method, in the study's order.

    Parameters
    ----------
    specification : StudySpecification
        The study; cells that it does not have are passed over.
    cells : iterable of CellResult
        Finished cells.

    Returns
    -------
    list of MethodSummary
        One per grid point and method, those without a finished cell included.

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification, run_cell
    >>> from tensoralg.studies.summary import summarize
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> summarize(study, [run_cell(key) for key in study.cells()])[0].ratio
    1.0
    """
    groups: dict[tuple[GridPoint, str], list[CellResult]] = {}
    for key in specification.cells():
        groups.setdefault((key.grid_point, key.method), [])
    wanted = set(specification.cells())
    for cell in cells:
        if cell.key in wanted:
            groups[cell.key.grid_point, cell.key.method].append(cell)
    return [
        _summary(point, method, group, groups.get((point, _LIMIT), []))
        for (point, method), group in groups.items()
    ]


def _summary(
    point: GridPoint, method: str, group: Sequence[CellResult], limits: Sequence[CellResult]
) -> MethodSummary:
    limit = {cell.key.seed: cell.mean_error for cell in limits}
    fitted = [cell for cell in group if cell.status != "failed"]
    # spoiled rows tell less than the clean ones that em-truth sees: its likelihood is out of reach
    reached = {c.key.seed: c.log_likelihood_gap for c in limits if point.is_clean()}
    ratios = [cell.mean_error / limit[cell.key.seed] for cell in fitted if limit.get(cell.key.seed)]
    return MethodSummary(
        grid_point=point,
        method=method,
        cells=len(group),
        failed=len(group) - len(fitted),
        not_converged=sum(cell.status == "not converged" for cell in group),
        successes=sum(
            cell.log_likelihood_gap > SUCCESS_GAP + _finite_or_zero(reached.get(cell.key.seed))
            for cell in fitted
        ),
        mean_error=median(cell.mean_error for cell in fitted),
        weight_error=median(cell.weight_error for cell in fitted),
        variance_error=median(cell.variance_error for cell in fitted),
        ratio=median(ratios),
        seconds=median(cell.seconds for cell in fitted),
    )


def _finite_or_zero(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def grid_labels(specification: StudySpecification) -> tuple[str, dict[GridPoint, str]]:
    """Name the grid points by what varies, and say once what does not.

    Parameters
    ----------
    specification : StudySpecification
        The study.

    Returns
    -------
    tuple of str and dict
        What is common ("d=15, r=6, m=3"), and a label for every grid point ("N=1,000").

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification
    >>> from tensoralg.studies.summary import grid_labels
    >>> study = StudySpecification("s", (8,), (2, 3), (3,), (500,), (1.0,), (0,), ("em-truth",))
    >>> grid_labels(study)[0]
    'd=8, m=3, N=500, sep=1'
    """
    varies = {name: len(getattr(specification, name)) > 1 for name in GridPoint._fields}

    def label(point: GridPoint, varying: bool) -> str:
        values = point._asdict().items()
        return ", ".join(
            value_label(name, value)
            for name, value in values
            # clean rows go without saying, unless others are beside them
            if varies[name] is varying and (varying or value or name not in SHARES)
        )

    points = specification.grid_points()
    return label(points[0], False), {p: label(p, True) or label(p, False) for p in points}


def value_label(name: str, value: float) -> str:
    """Write one value of a grid: "N=1,000", "outliers=0.5%".

    Parameters
    ----------
    name : str
        Field of `GridPoint`.
    value : float
        The value.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> from tensoralg.studies.summary import value_label
    >>> value_label("samples", 1000), value_label("outliers", 0.005)
    ('N=1,000', 'outliers=0.5%')
    """
    if name in SHARES:
        return f"{name}={100 * value:g}%"
    return f"{_LETTERS[name]}={value:,}" if name == "samples" else f"{_LETTERS[name]}={value:g}"


def median(values: Iterable[float]) -> float:
    """Median of the finite values; NaN when there is none.

    Parameters
    ----------
    values : iterable of float
        Numbers.

    Returns
    -------
    float
        Their median.

    Examples
    --------
    >>> from tensoralg.studies.summary import median
    >>> median([3.0, float("nan"), 1.0])
    2.0
    """
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan


def number(value: float, digits: int = 3) -> str:
    """Write a number for a table: significant digits, a dash where there is none.

    Parameters
    ----------
    value : float
        The number.
    digits : int
        Significant digits.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> from tensoralg.studies.summary import number
    >>> number(0.0123456), number(1234.5), number(float("nan"))
    ('0.0123', '1234', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0 or 1e-4 <= abs(value) < 10**6:
        text = f"{value:#.{digits}g}"
        if "e" in text:
            return f"{value:.0f}"
        return text.rstrip(".")
    return f"{value:.{digits - 1}e}"
