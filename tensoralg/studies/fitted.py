"""What ``tensoralg fit`` leaves behind: parameters, labels and a report, all or nothing."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ProblemTooLargeError, TensorAlgError
from tensoralg.mixtures import plot_convergence, plot_mixture, plot_spectrum
from tensoralg.studies.data_files import Table
from tensoralg.studies.document import Document
from tensoralg.studies.figures import save_figure
from tensoralg.studies.files import strict_json, write_text
from tensoralg.studies.machine import describe_machine, machine_in_words
from tensoralg.studies.mixture_plots import responsibility_histogram
from tensoralg.studies.summary import number

__all__ = ["FIT_FILES", "OutputExistsError", "refuse_to_overwrite", "write_fit"]

FIT_FILES = (
    "parameters.json",
    "labels.csv",
    "report.md",
    "report.html",
    "scatter.png",
    "responsibilities.png",
    "spectrum.png",
    "convergence.png",
)
_MOST_COLUMNS = 40
_MOST_WORK = 1e11  # rows times parameters squared: half a minute


class OutputExistsError(TensorAlgError):
    """The output folder already holds the files of a fit."""


def refuse_to_overwrite(folder: Path) -> None:
    """Make sure that a folder holds no earlier fit.

    Parameters
    ----------
    folder : Path
        The output folder.

    Raises
    ------
    OutputExistsError
        If one of the files of a fit is there, or `folder` is not a folder.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tensoralg.studies.fitted import refuse_to_overwrite
    >>> refuse_to_overwrite(Path("no such folder"))
    """
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file; give the name of a folder")
    there = [name for name in FIT_FILES if (folder / name).exists()]
    if there:
        raise OutputExistsError(
            f"{folder} already holds {there[0]}; choose another folder or add --overwrite"
        )


def write_fit(
    model: Any,
    table: Table,
    folder: str | Path,
    *,
    source: str,
    plot: bool = True,
    notes: Sequence[str] = (),
) -> Path:
    """Write ``parameters.json``, ``labels.csv``, the report and its plots.

    Everything is written beside the folder first and moved into it when complete.

    Parameters
    ----------
    model : DiagonalGaussianMixture
        A fitted estimator.
    table : Table
        What it was fitted to.
    folder : str or Path
        Where the files go; made when missing, older files of a fit are replaced.
    source : str
        Name of the data, for the report.
    plot : bool
        Whether to draw; needs matplotlib.
    notes : sequence of str
        Warnings and decisions to repeat in the report.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    responsibilities = np.asarray(model.predict_proba(table.values), dtype=np.float64)
    notes = [*notes, *_look_back(model, table)]
    # in the folder itself: moving is then renaming, on one file system
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as temporary:
        staging = Path(temporary)
        entry = _parameters(model, table, source, notes)
        write_text(staging / "parameters.json", strict_json(entry, indent=2) + "\n")
        write_text(staging / "labels.csv", _labels(responsibilities))
        _report(model, table, entry, responsibilities, staging, plot)
        for name in FIT_FILES:
            if (staging / name).exists():
                shutil.move(staging / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    return folder / "report.html"


def _look_back(model: Any, table: Table) -> list[str]:
    """Have the model find its standard errors and test itself; say why where that is left out."""
    n, parameters = len(table.values), model.weights_.size + 2 * model.means_.size
    if n * parameters**2 > _MOST_WORK:
        return [
            f"standard errors of {parameters} parameters from {n:,} rows were left out, as they "
            "take long: call standard_errors of the estimator"
        ]
    try:
        model.standard_errors(table.values)
        model.moment_test(table.values)
    except (ValueError, ProblemTooLargeError) as error:
        return [f"standard errors or the test of the model were left out: {error}"]
    return []


def _parameters(model: Any, table: Table, source: str, notes: Sequence[str]) -> dict[str, Any]:
    return {
        "source": source,
        "rows": len(table.values),
        "columns": table.columns,
        "n_components": len(model.weights_),
        "order": model.order,
        "weights": model.weights_,
        "means": model.means_,
        "covariances": model.covariances_,
        "log_likelihood_per_row": model.score(table.values),
        "bic": model.bic(table.values),
        "aic": model.aic(table.values),
        "converged": bool(model.converged_),
        "n_iter": int(model.n_iter_),
        "status": model.diagnostics_.status,
        "message": model.diagnostics_.message,
        "notes": list(notes),
        "diagnostics": model.diagnostics_.as_dict(),
        "machine": describe_machine(),
    }


def _labels(responsibilities: NDArray[np.float64]) -> str:
    labels, largest = responsibilities.argmax(axis=1), responsibilities.max(axis=1)
    lines = [f"{label},{p:.6g}" for label, p in zip(labels, largest, strict=True)]
    return "label,probability\n" + "\n".join(lines) + "\n"


def _report(
    model: Any,
    table: Table,
    entry: dict[str, Any],
    responsibilities: NDArray[np.float64],
    folder: Path,
    plot: bool,
) -> None:
    report = Document(f"Gaussian mixture of {entry['source']}")
    rows, columns = table.values.shape
    report.paragraph(
        f"{entry['n_components']} components with diagonal covariances, fitted to {rows:,} rows "
        f"and {columns} columns from moments of order {entry['order']}. "
        f"Status: {entry['status']}. {entry['message']}"
    )
    report.paragraph(
        f"Log-likelihood per row {number(entry['log_likelihood_per_row'], 6)}, "
        f"BIC {number(entry['bic'], 6)}, AIC {number(entry['aic'], 6)}; "
        f"{entry['n_iter']} EM steps."
    )
    test = model.diagnostics_.moment_test
    if test.get("degrees_of_freedom"):
        report.paragraph(
            f"Test against {test['moments']} moments that the parameters leave over: statistic "
            f"{number(test['statistic'])}, {test['degrees_of_freedom']} degrees of freedom, "
            f"p-value {number(test['p_value'])}. A small p-value (below 0.01, say) means that "
            "columns are correlated inside components, or that components are missing."
        )
    if entry["notes"]:
        report.heading("Notes")
        report.bullets(entry["notes"])
    counts = np.bincount(responsibilities.argmax(axis=1), minlength=responsibilities.shape[1])
    _add_tables(report, model, table, counts)
    if plot:
        _add_pictures(report, model, table, responsibilities, folder)
    report.heading("Where it ran")
    report.paragraph(f"{entry['machine']['date']}: {machine_in_words(entry['machine'])}.")
    report.write(folder)


def _add_tables(report: Document, model: Any, table: Table, counts: NDArray[np.int64]) -> None:
    errors = model.diagnostics_.standard_errors
    of_weights = errors.get("weights", np.full(len(counts), np.nan))
    report.heading("Components")
    report.table(
        ("component", "weight", "standard error", "rows assigned"),
        [
            [str(k), number(w), number(e), str(c)]
            for k, (w, e, c) in enumerate(zip(model.weights_, of_weights, counts, strict=True))
        ],
    )
    header = ["column", *(f"component {k}" for k in range(len(counts)))]
    deviations = np.sqrt(model.covariances_)
    shown = table.columns[:_MOST_COLUMNS]
    body = [
        [
            name,
            *(
                f"{number(m[j])} ± {number(s[j])}"
                for m, s in zip(model.means_, deviations, strict=True)
            ),
        ]
        for j, name in enumerate(shown)
    ]
    rest = len(table.columns) - len(shown)
    caption = "Mean ± standard deviation of every column within every component"
    more = f"; {rest} more columns are in parameters.json" if rest else ""
    report.table(header, body, f"{caption}{more}.")
    if errors:
        of_means = errors["means"].T
        report.table(
            header,
            [[name, *(number(e) for e in row)] for name, row in zip(shown, of_means, strict=False)],
            f"Standard errors of the means; those of the variances are in parameters.json{more}.",
        )


def _add_pictures(
    report: Document,
    model: Any,
    table: Table,
    responsibilities: NDArray[np.float64],
    folder: Path,
) -> None:
    report.heading("Pictures")
    labels = responsibilities.argmax(axis=1)
    picture = plot_mixture(model, table.values, names=table.columns, labels=labels)
    save_figure(picture, folder / "scatter.png")
    report.figure(
        "scatter.png",
        "The column, with the density of the mixture and of its components."
        if len(table.columns) == 1
        else "The columns, at most four, that tell the components apart best, in pairs and alone; "
        "ellipses at 1 and 2 standard deviations, rows coloured by their component.",
    )
    responsibility_histogram(folder / "responsibilities.png", responsibilities)
    report.figure(
        "responsibilities.png",
        "How sure the assignment is: the largest responsibility of every row.",
    )
    if model.diagnostics_.rank_test:
        save_figure(plot_spectrum(model), folder / "spectrum.png")
        report.figure(
            "spectrum.png",
            "Singular values of a flattening of the moments: those that noise does not reach "
            "count the components.",
        )
    if model.diagnostics_.log_likelihoods:
        save_figure(plot_convergence(model), folder / "convergence.png")
        report.figure(
            "convergence.png",
            "The log-likelihood per row over the passes of expectation maximization, and what "
            "each pass gained.",
        )
