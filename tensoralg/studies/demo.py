"""The demo: mixtures of real data and a recovery study, ours beside scikit-learn's EM.

``python -m tensoralg.studies.demo --out demo-report``; it needs no network, and goes on where it
was interrupted.
"""

import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tensoralg.studies.cells import CellResult
from tensoralg.studies.document import Document
from tensoralg.studies.figures import PlottingUnavailableError, require_matplotlib
from tensoralg.studies.generation import MixtureParameters, draw_mixture, draw_samples, method_seed
from tensoralg.studies.machine import describe_machine, machine_in_words
from tensoralg.studies.methods import METHODS, Problem
from tensoralg.studies.mixture_plots import mixture_scatter, separating_columns
from tensoralg.studies.program import one_line_errors, run_app, show
from tensoralg.studies.real_data import (
    REAL_DATA,
    SplitResult,
    compare_on_splits,
    real_data_rows,
)
from tensoralg.studies.report import add_study
from tensoralg.studies.runner import run_study
from tensoralg.studies.specification import StudySpecification, parse_specification
from tensoralg.studies.terminal import print_study, print_table, progress_bar

__all__ = ["demo_study", "main", "write_demo"]

_METHODS = ("moments", "em-default", "em-restarts")
_REAL_HEADER = (
    "data, method",
    "held-out log-likelihood",
    "adjusted Rand index",
    "seconds",
    "failed",
)
_SPLITS = 10


def demo_study() -> StudySpecification:
    """Read the study that ships with the demo.

    Returns
    -------
    StudySpecification
        The study.

    Examples
    --------
    >>> from tensoralg.studies.demo import demo_study
    >>> demo_study().name
    'demo'
    """
    text = files("tensoralg.studies").joinpath("demo.toml").read_text(encoding="utf-8")
    return parse_specification(text)


def write_demo(
    out: Path, *, splits: int = _SPLITS, study: StudySpecification | None = None
) -> Path:
    """Run the demo, print its tables, and write its report.

    Parameters
    ----------
    out : Path
        Folder of the report; the study's cells are kept in its folder ``study``.
    splits : int
        Number of random splits of the real data.
    study : StudySpecification, optional
        Another study than `demo_study`.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    StudyFolderError
        If ``out/study`` holds another study, or another process runs there.
    OSError
        If the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    study = study or demo_study()
    results = _real_data(splits)
    rows = real_data_rows(results)
    print_table(_REAL_HEADER, rows, f"Real data: medians over {splits} random splits")
    with progress_bar("known mixtures") as callback:
        cells = run_study(study, out / "study", callback=callback)
    print_study(study, cells)
    report = Document("tensoralg: mixtures recovered from moments")
    _add_real_data(report, results, rows, splits, out)
    report.heading("Known mixtures")
    add_study(report, study, cells, out)
    _add_example(report, study, cells, out)
    here = describe_machine()
    report.heading("Where it ran")
    report.paragraph(f"{here['date']}: {machine_in_words(here)}.")
    report.write(out)
    return out / "report.html"


def _real_data(splits: int) -> list[SplitResult]:
    total, results = len(REAL_DATA) * len(_METHODS) * splits, []
    for method in _METHODS:  # imports and compilation before the clock runs
        compare_on_splits(REAL_DATA[0], [method], 1)
    with progress_bar("real data") as show:

        def count(result: SplitResult) -> None:
            results.append(result)
            show(None, len(results), total)

        for data in REAL_DATA:
            compare_on_splits(data, _METHODS, splits, callback=count)
    return results


def _add_real_data(
    report: Document, results: list[SplitResult], rows: list[list[str]], splits: int, out: Path
) -> None:
    report.heading("Real data")
    report.paragraph(
        f"As many components as there are true classes, fitted to a random 70% of the rows and "
        f"judged on the other 30%: log-likelihood per row, and agreement of the components with "
        f"the classes, which no method is shown. The columns are standardised. Medians over "
        f"{splits} splits, the same for every method; seconds on one thread."
    )
    report.bullets([f"{data.name}: {data.remark}" for data in REAL_DATA])
    report.bullets([f"`{name}`: {METHODS[name].summary}" for name in _METHODS])
    report.table(_REAL_HEADER, rows)
    for result in results:
        if result.message:
            report.paragraph(f"Failed: {result.method}, split {result.seed}: {result.message}")
    for data in REAL_DATA:
        fits = {
            r.method: r.fitted
            for r in results
            if r.data == data.name and r.seed == 0 and r.fitted is not None
        }
        if not fits or not _can_plot():
            continue
        X, classes, names = data.load()
        scaled = (X - X.mean(axis=0)) / X.std(axis=0)
        file = f"real_{data.name}.png"
        by_class = MixtureParameters(
            np.bincount(classes) / len(classes),
            [scaled[classes == k].mean(axis=0) for k in range(data.n_components)],
            [scaled[classes == k].var(axis=0) for k in range(data.n_components)],
        )
        columns = separating_columns(by_class)
        mixture_scatter(out / file, scaled, fits, names=names, labels=classes, columns=columns)
        report.figure(
            file,
            f"{data.name}, first split, standardised: the two columns that separate the true "
            "classes best, coloured by class, and what each method found.",
        )


def _add_example(
    report: Document, study: StudySpecification, cells: list[CellResult], out: Path
) -> None:
    """Draw the first seed of the last grid point: known, ours and scikit-learn's."""
    if not _can_plot():
        return
    last = study.cells()[-1]
    keys = [
        k for k in study.cells() if k.grid_point == last.grid_point and k.seed == study.seeds[0]
    ]
    fits = {}
    truth = draw_mixture(keys[0])
    X = draw_samples(keys[0], truth)
    failed = {cell.key for cell in cells if cell.status == "failed"}
    for key in keys:
        if key.method in ("moments", "em-default") and key not in failed:
            fit = METHODS[key.method].fit(
                Problem(X, key.components, key.order, method_seed(key), truth)
            )
            fits[key.method] = MixtureParameters(fit.weights, fit.means, fit.covariances)
    if fits:
        mixture_scatter(
            out / "example.png",
            X,
            fits,
            names=_names(X.shape[1]),
            truth=truth,
            columns=separating_columns(truth),
        )
        report.figure(
            "example.png",
            f"One of the known mixtures (N={len(X):,}, seed {keys[0].seed}), in the two columns "
            "that separate it best: known components dashed, fitted ones solid.",
        )


def _names(dimension: int) -> list[str]:
    return [f"x{k + 1}" for k in range(dimension)]


def _can_plot() -> bool:
    try:
        require_matplotlib()
    except PlottingUnavailableError:
        return False
    return True


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def _demo(
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("demo-report"),
) -> None:
    """Recover mixtures of real data and of known ones, beside scikit-learn's EM."""
    with one_line_errors():
        page = write_demo(out)
        show(f"The report is in {page}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo as a program.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments; ``sys.argv[1:]`` when None.

    Returns
    -------
    int
        The exit code.
    """
    return run_app(app, "python -m tensoralg.studies.demo", arguments)


if __name__ == "__main__":
    sys.exit(main())
