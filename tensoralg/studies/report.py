"""The report of a study: tables and pictures, from the stored cells alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensoralg.studies.cells import CellResult, read_cells, read_study
from tensoralg.studies.document import Document
from tensoralg.studies.evidence import evidence_tables, moment_p_values
from tensoralg.studies.evidence_plots import plot_counts, plot_intervals, plot_p_values
from tensoralg.studies.figures import PlottingUnavailableError, require_matplotlib
from tensoralg.studies.generation import OUTLIER_DEVIATIONS
from tensoralg.studies.machine import describe_machine, machine_in_words
from tensoralg.studies.methods import METHODS
from tensoralg.studies.plots import MOST_GROUPS, MOST_PANELS, error_against, strip_plot
from tensoralg.studies.specification import StudySpecification
from tensoralg.studies.summary import SHARES, MethodSummary, grid_labels, number, summarize

__all__ = ["SUMMARY_HEADER", "add_study", "summary_rows", "write_report"]

SUMMARY_HEADER = (
    "grid point, method",
    "mean error",
    "x limit",
    "weight error",
    "variance error",
    "success",
    "seconds",
    "not converged",
    "failed",
)
_MOST_FAILURES = 20


def write_report(folder: str | Path) -> Path:
    """Write ``report.md``, ``report.html`` and the plots of the study in a folder.

    Parameters
    ----------
    folder : str or Path
        Folder of a study, finished or not.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    StudyFolderError
        If the folder holds no study, or a damaged one.
    OSError
        If the report cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from tensoralg.studies import StudySpecification, run_study, write_report
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = run_study(study, folder)
    ...     write_report(folder).name
    'report.html'
    """
    folder = Path(folder)
    specification = read_study(folder)
    report = Document(f"Study: {specification.name}")
    add_study(report, specification, read_cells(folder), folder)
    _add_machine(report, folder)
    report.write(folder)
    return folder / "report.html"


def add_study(
    report: Document,
    specification: StudySpecification,
    cells: Sequence[CellResult],
    folder: Path,
) -> None:
    """Add the tables and pictures of a study to a report.

    Parameters
    ----------
    report : Document
        Where they go.
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        What is finished of it.
    folder : Path
        Where the pictures are saved.
    """
    wanted = specification.cells()
    known = set(wanted)
    finished = [cell for cell in cells if cell.key in known]
    common, labels = grid_labels(specification)
    state = "" if len(finished) == len(wanted) else ": the study is not finished"
    report.paragraph(
        f"{len(finished)} of {len(wanted)} cells finished{state}. Grid points: {len(labels)} "
        f"({common or 'nothing in common'}); seeds: {_seeds_in_words(specification.seeds)}."
    )
    report.paragraph(
        "Every cell draws a known mixture (means ~ sep·N(0, I), variances ~ U(0.3, 1.5), "
        "weights ~ Dirichlet(5)) and N rows from it; all methods of a grid point and seed see the "
        "same rows. d is the dimension, r the number of components, m the order of the moments."
    )
    _add_what_is_spoiled(report, specification)
    report.bullets([f"`{name}`: {METHODS[name].summary}" for name in specification.methods])
    report.heading("Results")
    report.table(
        SUMMARY_HEADER,
        summary_rows(specification, summarize(specification, finished)),
        "Medians over the seeds that did not fail; counts over all finished seeds.",
    )
    report.paragraph(
        "Errors are relative Frobenius norms after matching the components by their means; a "
        "component that was missed, or invented, counts with its full norm. The column `x limit` "
        "is the median of the mean error divided by that of `em-truth` on the same rows. A success "
        "is a log-likelihood per row that lies at most 0.001 below what `em-truth` reaches on the "
        "same rows, or, where the study does not run it or rows are spoiled, below the known "
        "mixture's; a failed cell is no success. Seconds are wall-clock time of the fit on one "
        "thread."
    )
    tables = evidence_tables(specification, finished)
    for table in tables:
        report.heading(table.title)
        report.table(table.header, table.rows)
        report.paragraph(table.explanation)
    fitted = [cell for cell in finished if cell.status != "failed"]
    _add_pictures(report, specification, fitted, folder)
    _add_failures(report, finished)


def summary_rows(
    specification: StudySpecification, summaries: Sequence[MethodSummary]
) -> list[list[str]]:
    """Write summaries as the rows of a table under `SUMMARY_HEADER`.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    summaries : sequence of MethodSummary
        From `summarize`.

    Returns
    -------
    list of list of str
        One row each.

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification
    >>> from tensoralg.studies.report import summary_rows
    >>> from tensoralg.studies.summary import summarize
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> summary_rows(study, summarize(study, []))[0][:2]
    ['em-truth', '–']
    """
    _, labels = grid_labels(specification)
    rows = []
    for entry in summaries:
        where = f"{labels[entry.grid_point]}, " if len(labels) > 1 else ""
        rows.append(
            [
                f"{where}{entry.method}",
                number(entry.mean_error),
                number(entry.ratio),
                number(entry.weight_error),
                number(entry.variance_error),
                f"{entry.successes}/{entry.cells}",
                number(entry.seconds),
                str(entry.not_converged),
                str(entry.failed),
            ]
        )
    return rows


def _add_what_is_spoiled(report: Document, specification: StudySpecification) -> None:
    """Say what is done to the rows, where anything is."""
    if any(specification.outliers):
        report.paragraph(
            f"Outliers: that share of the rows is drawn anew, every cell normal about the mean of "
            f"its column with {OUTLIER_DEVIATIONS:g} times the column's standard deviation."
        )
    if any(specification.missing):
        report.paragraph("Missing: every cell is missing with that probability, independently.")
    if any(specification.outliers) or any(specification.missing):
        report.paragraph(
            "Log-likelihoods are those of the rows before outliers and gaps came in; only "
            "`em-truth` is fitted to these rows."
        )


def _add_pictures(
    report: Document,
    specification: StudySpecification,
    cells: Sequence[CellResult],
    folder: Path,
) -> None:
    report.heading("Pictures")
    try:
        require_matplotlib()
    except PlottingUnavailableError as error:
        report.paragraph(f"{error}.")
        return
    points = specification.grid_points()
    for axis, what in (
        ("samples", "the number of samples"),
        ("outliers", "the share of outliers"),
        ("missing", "the share of missing cells"),
    ):
        if len(getattr(specification, axis)) > 1:
            error_against(folder / f"error_{axis}.png", specification, cells, axis)
            caption = f"Error of the means against {what}; lines are medians over the seeds."
            panels = len(points) // len(getattr(specification, axis))
            report.figure(f"error_{axis}.png", caption + _left_out(MOST_PANELS, panels, "panels"))
    for measure, label, caption in (
        (
            "mean_error",
            "relative error of the means",
            "Error of the means: one dot per seed, a bar at the median.",
        ),
        (
            "log_likelihood_gap",
            "log-likelihood per row, minus the known mixture's",
            "Log-likelihood per row minus the known mixture's, on the rows that were fitted: a "
            "good fit lies slightly above 0; well below it EM stopped early or at a local optimum.",
        ),
        ("seconds", "seconds", "Wall-clock time of the fit, one thread."),
    ):
        file = f"{measure}.png"
        strip_plot(folder / file, specification, cells, measure, label)
        report.figure(file, caption + _left_out(MOST_GROUPS, len(points), "grid points"))
    _add_evidence_pictures(report, specification, cells, folder)


def _left_out(most: int, count: int, what: str) -> str:
    """Say in a caption that a picture does not hold everything."""
    return f" The first {most} of {count} {what}." if count > most else ""


def _add_evidence_pictures(
    report: Document,
    specification: StudySpecification,
    cells: Sequence[CellResult],
    folder: Path,
) -> None:
    if any(cell.components_found is not None for cell in cells):
        plot_counts(folder / "components_found.png", specification, cells)
        report.figure(
            "components_found.png",
            "Components found minus components known; the area of a dot is the share of the seeds.",
        )
    asked = [cell for cell in cells if cell.intervals is not None]
    if any(cell.intervals.means_intervals for cell in asked if cell.intervals):
        plot_intervals(folder / "intervals.png", specification, asked)
        report.figure(
            "intervals.png",
            "Share of nominal 95% intervals that hold the known value; bars are twice its standard "
            "error over the fits, the band is 92% to 98%.",
        )
    if moment_p_values(asked):
        plot_p_values(folder / "moment_test.png", specification, asked)
        report.figure(
            "moment_test.png",
            "Distribution of the p-values of the moment test: the diagonal if it keeps its level.",
        )


def _add_failures(report: Document, cells: Sequence[CellResult]) -> None:
    failures = [cell for cell in cells if cell.status == "failed"]
    if not failures:
        return
    report.heading("Failed cells")
    # shares of outliers and missing cells only where there are some
    spoiled = [name for name in SHARES if any(getattr(c.key, name) for c in cells)]
    report.table(
        ("method", "d", "r", "m", "N", "sep", *spoiled, "seed", "message"),
        [
            [
                c.key.method,
                *(f"{value:g}" for value in c.key.grid_point[:5]),
                *(f"{100 * getattr(c.key, name):g}%" for name in spoiled),
                str(c.key.seed),
                c.message,
            ]
            for c in failures[:_MOST_FAILURES]
        ],
        f"Failed cells: {len(failures)}"
        + (f"; the first {_MOST_FAILURES} of them:" if len(failures) > _MOST_FAILURES else ":"),
    )


def _add_machine(report: Document, folder: Path) -> None:
    report.heading("Where it ran")
    runs = [f"{run['date']}: {run['cells']} cells to do, workers: {run['workers']}; "
            f"{machine_in_words(run)}" for run in _runs(folder)]  # fmt: skip
    report.bullets(runs or ["not recorded"])
    here = describe_machine()
    report.paragraph(f"Report written {here['date']} with tensoralg {_version(here)}.")


def _version(machine: dict[str, Any]) -> str:
    return str(machine["versions"]["tensoralg"])


def _runs(folder: Path) -> list[dict[str, Any]]:
    """Read the notes of the runs; they are comments, so a damaged one is left out."""
    try:
        lines = (folder / "runs.jsonl").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    runs = []
    for line in lines:
        try:
            entry = json.loads(line)
            machine_in_words(entry), entry["date"], entry["cells"], entry["workers"]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        runs.append(entry)
    return runs


def _seeds_in_words(seeds: Sequence[int]) -> str:
    if len(seeds) > 8:
        return f"{len(seeds)}, from {min(seeds)} to {max(seeds)}"
    return ", ".join(map(str, seeds))
