"""What the programs show in a terminal: a progress bar and tables; rich loads on use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensoralg.studies.cells import CellResult
from tensoralg.studies.evidence import evidence_tables
from tensoralg.studies.program import show
from tensoralg.studies.runner import Progress
from tensoralg.studies.specification import StudySpecification
from tensoralg.studies.summary import grid_labels, number, summarize

__all__ = ["print_study", "print_table", "progress_bar"]

# where the output is no terminal there is no width to respect
_WIDE = 160


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show cells done and time left on the error stream while the block runs.

    Parameters
    ----------
    title : str
        What is running.

    Yields
    ------
    callable
        The ``callback`` of `tensoralg.studies.run_study`.

    Examples
    --------
    >>> from tensoralg.studies.terminal import progress_bar
    >>> with progress_bar("study") as callback:
    ...     callback(None, 0, 3)
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells, left"),
        TimeRemainingColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(title, total=None)

    def advance(result: CellResult | None, done: int, total: int) -> None:
        # not before: a study that is refused shows no bar
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; columns of numbers are set flush right.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        Cells.
    title : str
        A line above.

    Examples
    --------
    >>> from tensoralg.studies.terminal import print_table
    >>> print_table(["method", "error"], [["moments", "0.01"]])  # doctest: +NORMALIZE_WHITESPACE
    <BLANKLINE>
      method    error
     ─────────────────
      moments    0.01
    <BLANKLINE>
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    table = Table(title=Text(title) if title else None, title_justify="left", box=SIMPLE_HEAD)
    for k, name in enumerate(header):
        numeric = all(row[k][:1].isdigit() or row[k][:1] in "-–" for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    with console.capture() as printed:
        console.print(table)
    show(printed.get())


def print_study(specification: StudySpecification, cells: Sequence[CellResult]) -> None:
    """Print the tables of a study: medians, one line per grid point and method, and the rest.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    cells : sequence of CellResult
        What is finished of it.

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification
    >>> from tensoralg.studies.terminal import print_study
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> print_study(study, [])  # doctest: +ELLIPSIS
    s: d=4, r=2, m=3, N=200, sep=2...
    """
    common, labels = grid_labels(specification)
    rows = []
    for entry in summarize(specification, cells):
        where = [labels[entry.grid_point]] if len(labels) > 1 else []
        rows.append(
            [
                *where,
                entry.method,
                number(entry.mean_error),
                number(entry.ratio),
                f"{entry.successes}/{entry.cells}",
                number(entry.seconds),
                str(entry.failed),
            ]
        )
    header = ["method", "mean error", "x limit", "success", "seconds", "failed"]
    title = f"{specification.name}: {common}" if common else specification.name
    print_table(["grid point", *header] if len(labels) > 1 else header, rows, title)
    for table in evidence_tables(specification, cells):
        print_table(table.header, table.rows, table.title)
