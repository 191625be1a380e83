"""Tables of what a study asks beyond recovery: spoiled rows, counted components, intervals."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensoralg.studies.cells import CellResult
from tensoralg.studies.methods import METHODS
from tensoralg.studies.specification import GridPoint, StudySpecification
from tensoralg.studies.summary import grid_labels, median, number

__all__ = [
    "KINDS",
    "EvidenceTable",
    "counting_table",
    "evidence_tables",
    "interval_shares",
    "interval_table",
    "moment_p_values",
    "spoiled_table",
]

KINDS = ("weights", "means", "variances")
_LEVELS = (0.05, 0.01)


class EvidenceTable(NamedTuple):
    """A table of a report, and how to read it.

    Attributes
    ----------
    title : str
        Heading.
    header : tuple of str
        Names of the columns.
    rows : list of list of str
        Cells.
    explanation : str
        What the columns mean.
    """

    title: str
    header: tuple[str, ...]
    rows: list[list[str]]
    explanation: str


def evidence_tables(
    specification: StudySpecification, cells: Sequence[CellResult]
) -> list[EvidenceTable]:
    """Make the tables that a study calls for; none for a study of clean recovery alone.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        Finished cells.

    Returns
    -------
    list of EvidenceTable
        Those with at least one row.

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification
    >>> from tensoralg.studies.evidence import evidence_tables
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> evidence_tables(study, [])
    []
    """
    makers = (spoiled_table, counting_table, interval_table)
    return [table for table in (make(specification, cells) for make in makers) if table.rows]


def _groups(
    specification: StudySpecification, cells: Sequence[CellResult]
) -> list[tuple[str, GridPoint, str, list[CellResult]]]:
    """List the label, grid point, method and finished cells of every line of a table."""
    _, labels = grid_labels(specification)
    several = len(labels) > 1
    found: dict[tuple[GridPoint, str], list[CellResult]] = {
        (point, method): [] for point in labels for method in specification.methods
    }
    seeds = set(specification.seeds)
    for cell in cells:
        if cell.key.seed in seeds and (cell.key.grid_point, cell.key.method) in found:
            found[cell.key.grid_point, cell.key.method].append(cell)
    return [
        (f"{labels[point]}, {method}" if several else method, point, method, group)
        for (point, method), group in found.items()
    ]


def spoiled_table(specification: StudySpecification, cells: Sequence[CellResult]) -> EvidenceTable:
    """Compare errors on spoiled rows with those of the same method on the same rows unspoiled.

    Parameters
    ----------
    specification : StudySpecification
        The study; grid points whose clean rows it does not fit are left out.
    cells : sequence of CellResult
        Finished cells.

    Returns
    -------
    EvidenceTable
        One row per spoiled grid point and method.
    """
    clean = {
        c.key: c.mean_error for c in cells if c.key.grid_point.is_clean() and c.status != "failed"
    }
    points = set(specification.grid_points())
    rows = []
    for label, point, method, group in _groups(specification, cells):
        if point.is_clean() or point._replace(outliers=0.0, missing=0.0) not in points:
            continue
        if method == "em-truth":  # it is given the clean rows
            continue
        fitted = [c for c in group if c.status != "failed"]
        ratios = [_ratio(c.mean_error, clean.get(c.key.clean(), math.nan)) for c in fitted]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        rows.append(
            [
                label,
                number(median(c.mean_error for c in fitted)),
                number(median(clean.get(c.key.clean(), math.nan) for c in fitted)),
                number(median(ratios)),
                number(max(ratios, default=math.nan)),
                f"{len(fitted)}/{len(group)}",
            ]
        )
    return EvidenceTable(
        "Outliers and missing cells",
        ("grid point, method", "mean error", "on clean rows", "x clean", "worst x clean", "fitted"),
        rows,
        "Medians over the seeds. `x clean` divides the error of a seed by that of the same method "
        "on the same rows before outliers and gaps came in. A method that refuses missing cells "
        "has no fits.",
    )


def _ratio(error: float, clean: float) -> float:
    return error / clean if clean else math.nan


def counting_table(specification: StudySpecification, cells: Sequence[CellResult]) -> EvidenceTable:
    """Count how often methods that are not told the number of components find it.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        Finished cells.

    Returns
    -------
    EvidenceTable
        One row per grid point and such a method, one for all grid points together.
    """
    rows: list[list[str]] = []
    together: dict[str, list[CellResult]] = {}
    for label, _, method, group in _groups(specification, cells):
        if METHODS[method].counts and group:
            rows.append(_counting_row(label, group))
            together.setdefault(method, []).extend(group)
    if len(rows) > len(together):
        rows += [_counting_row(f"all, {method}", group) for method, group in together.items()]
    return EvidenceTable(
        "Number of components",
        ("grid point, method", "right", "share", "found minus known"),
        rows,
        "How often the number of components that a method found by itself is the known one; a "
        "failed cell is not right. The last column counts the fits by how far they are off.",
    )


def _counting_row(label: str, group: Sequence[CellResult]) -> list[str]:
    found = Counter(
        c.components_found - c.key.components for c in group if c.components_found is not None
    )
    wrong = ", ".join(f"{shift:+d}: {n}" for shift, n in sorted(found.items()) if shift) or "–"
    return [label, f"{found[0]}/{len(group)}", f"{found[0] / len(group):.0%}", wrong]


def interval_shares(cells: Sequence[CellResult], kind: str) -> tuple[float, float]:
    """Share of intervals that hold the known value, and its standard error over fits.

    Parameters
    ----------
    cells : sequence of CellResult
        Cells of one method.
    kind : str
        "weights", "means" or "variances".

    Returns
    -------
    tuple of float
        NaN where there are no intervals; the error is NaN for fewer than two fits. Intervals of
        one fit depend on each other, so the error comes from the shares of the fits.
    """
    pairs = []
    for cell in cells:
        if cell.intervals is not None:
            given = getattr(cell.intervals, f"{kind}_intervals")
            if given:
                pairs.append((getattr(cell.intervals, f"{kind}_inside"), given))
    if not pairs:
        return math.nan, math.nan
    inside, given = np.array(pairs, dtype=np.float64).T
    share = float(inside.sum() / given.sum())
    if len(pairs) < 2:
        return share, math.nan
    deviation = np.sqrt(np.sum((inside - share * given) ** 2) * len(pairs) / (len(pairs) - 1))
    return share, float(deviation / given.sum())


def interval_table(specification: StudySpecification, cells: Sequence[CellResult]) -> EvidenceTable:
    """Count the intervals that hold the known values, and the rejections of the moment test.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        Finished cells.

    Returns
    -------
    EvidenceTable
        One row per grid point and method with intervals.
    """
    rows = []
    for label, _, _, group in _groups(specification, cells):
        asked = [c for c in group if c.intervals is not None]
        shares = [interval_shares(asked, kind) for kind in KINDS]
        p_values = moment_p_values(asked)
        if not p_values and not any(math.isfinite(share) for share, _ in shares):
            continue
        rows.append(
            [
                label,
                str(len(asked)),
                *(_share_in_words(*share) for share in shares),
                *(
                    number(float(np.mean(np.array(p_values) < level))) if p_values else "–"
                    for level in _LEVELS
                ),
            ]
        )
    return EvidenceTable(
        "Intervals and moment test",
        (
            "grid point, method",
            "fits",
            *KINDS,
            *(f"test rejects at {level:g}" for level in _LEVELS),
        ),
        rows,
        "Share of the nominal 95% intervals (estimate plus and minus 1.96 standard errors) that "
        "hold the known value, plus or minus its own standard error over the fits; intervals of "
        "components that were not found do not exist. The known mixtures are diagonal, so the "
        "moment test should reject as often as its level says.",
    )


def moment_p_values(cells: Sequence[CellResult]) -> list[float]:
    """List the p-values of the moment tests that were made."""
    values = [c.intervals.moment_test_p_value for c in cells if c.intervals is not None]
    return [value for value in values if math.isfinite(value)]


def _share_in_words(share: float, error: float) -> str:
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.1f}%" + (f" ± {100 * error:.1f}" if math.isfinite(error) else "")
