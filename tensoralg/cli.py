"""The command line: ``tensoralg fit``, ``detect``, ``decompose``, ``study ...``, ``info``.

Exit codes: 0 done; 1 some cells or inputs failed, which are named; 2 bad arguments, files or
method names, in one line; 130 interrupted.
"""

import csv
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensoralg.core.errors import TensorAlgError
from tensoralg.studies.program import FAILED, one_line_errors, run_app, say, show, stop

if TYPE_CHECKING:
    from tensoralg.studies.cells import CellResult
    from tensoralg.studies.data_files import Table

__all__ = ["app", "main"]

_MOST_NAMED = 10

# everything heavy is imported by the command that needs it: --help answers at once
app = typer.Typer(
    name="tensoralg",
    help="Gaussian mixtures from moments, studies of them, tensor decompositions and tests.",
    pretty_exceptions_enable=False,
    add_completion=False,
)
study = typer.Typer(help="Run recovery studies with known mixtures, and report them.")
app.add_typer(study, name="study")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; ``sys.argv[1:]`` when None.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> from tensoralg.cli import main
    >>> main(["--version"])
    0.1.0.dev0
    0
    """
    return run_app(app, "tensoralg", arguments)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        import tensoralg

        show(f"{tensoralg.__version__}\n")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@study.callback(invoke_without_command=True)
def _study(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A .csv, .tsv, .txt, .npy or .parquet file.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    components: Annotated[str, typer.Option(metavar="NUMBER|auto", help="auto detects it.")],
    order: Annotated[int, typer.Option(min=3, help="Highest order of the moments.")] = 3,
    columns: Annotated[str | None, typer.Option(help="Names of columns: a,b,c.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of what is random.")] = 0,
    missing: Annotated[bool, typer.Option("--missing", help="Accept missing values.")] = False,
    plot: Annotated[
        bool | None,
        typer.Option("--plot/--no-plot", help="Draw pictures; by default if possible."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier fit.")
    ] = False,
) -> None:
    """Fit a mixture with diagonal covariances; write parameters, labels and a report."""
    with one_line_errors():
        from tensoralg.studies.data_files import read_table
        from tensoralg.studies.fitted import refuse_to_overwrite
        from tensoralg.studies.program import component_count

        count = component_count(components)
        drawing, plot_note = _drawing(plot)
        if not overwrite:
            refuse_to_overwrite(out)
        # a name with a comma in it stands in double quotes, as in the file
        split = csv.reader([columns or ""], skipinitialspace=True)
        names = [name.strip() for row in split for name in row]
        table = read_table(data, names or None)
        _check_rows(table, data, count if isinstance(count, int) else 1, missing)
        options = {"order": order, "random_state": seed, "missing": missing}
        _fit_and_write(table, data, out, count, options, drawing, plot_note)


@app.command()
def detect(
    tensor: Annotated[
        Path,
        typer.Argument(
            help="A .json file (nested lists of numbers or strings 'p/q'), a .npy file (a dense "
            "array) or a .npz file (written by tensoralg.save)."
        ),
    ],
    certificate: Annotated[
        Path | None, typer.Option(help="Where a negative answer's certificate goes, as JSON.")
    ] = None,
    decomposition: Annotated[
        Path | None,
        typer.Option(help="Where the points of a positive answer go; tensoralg.load reads them."),
    ] = None,
    max_order: Annotated[
        int | None,
        typer.Option(help="Highest order of a relaxation; by default what takes seconds."),
    ] = None,
    solver: Annotated[
        str, typer.Option(help="auto, clarabel, scs, or sdpa where sdpa-python is installed.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is random.")] = 0,
    symmetrize: Annotated[
        bool, typer.Option("--symmetrize", help="Average over all orders of the indices.")
    ] = False,
) -> None:
    """Decide whether a symmetric tensor is completely positive.

    The first line is the verdict, the second says how it was reached. Exit codes:
    0 for either answer, 1 for "undecided", 2 for bad input.
    """
    with one_line_errors():
        from tensoralg.completely_positive import Verdict
        from tensoralg.completely_positive import detect as decide
        from tensoralg.completely_positive.tensor_files import read_tensor_file
        from tensoralg.core.persistence import save

        A = read_tensor_file(tensor)
        for path in (certificate, decomposition):
            _check_target(path, tensor)
        try:
            found = decide(A, max_order=max_order, solver=solver, rng=seed, symmetrize=symmetrize)
        except (TensorAlgError, ValueError, TypeError) as error:
            stop(f"{tensor}: {_as_options(str(error))}")
        typer.echo(found.verdict.value)
        typer.echo(_as_options(found.message))
        if found.certificate and certificate:
            certificate.write_text(found.certificate.to_json() + "\n", encoding="utf-8")
            typer.echo(certificate)
        elif certificate:
            say(f"note: there is no certificate to write to {certificate}")
        if decomposition and found.decomposition and found.verdict == Verdict.COMPLETELY_POSITIVE:
            save(decomposition, found.decomposition)
            typer.echo(decomposition)
        elif decomposition:
            say(f"note: there is no decomposition to write to {decomposition}")
        if found.verdict == Verdict.UNDECIDED:
            raise typer.Exit(FAILED)


@app.command()
def decompose(
    tensor: Annotated[Path, typer.Argument(help="A .npy or .npz file.")],
    rank: Annotated[int, typer.Option(min=1, help="Number of rank-one terms.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to save the Kruskal tensor, a .npz file.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(help="A .npy file of booleans; true where observed.")
    ] = None,
    method: Annotated[str, typer.Option(help="auto, als, compressed or sgd.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="float64, float32, tf32, bfloat16, float16, float8 or int8."),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Random starts; the best is kept.")] = 1,
    max_iter: Annotated[int, typer.Option(min=1, help="Most iterations of a start.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is random.")] = 0,
    nonnegative: Annotated[
        bool, typer.Option("--nonnegative", help="Keep all factors nonnegative.")
    ] = False,
) -> None:
    """Decompose a tensor into rank-one terms; print the fit and the weights."""
    with one_line_errors():
        from tensoralg.core.persistence import save
        from tensoralg.polyadic import decompose as solve
        from tensoralg.polyadic.tensor_files import read_array_file, read_dense_or_sparse_file

        _check_target(out, tensor)
        X = read_dense_or_sparse_file(tensor)
        observed = None if mask is None else read_array_file(mask)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the message says it
            try:
                found = solve(
                    X, rank, mask=observed, method=method, precision=precision, n_starts=starts,
                    max_iter=max_iter, rng=seed, nonnegative=nonnegative,
                )  # fmt: skip
            except (ValueError, TypeError) as error:
                stop(f"{tensor}: {error}")
        typer.echo(f"fit {found.fit:.10g} ({found.status}, {found.n_iter} iterations)")
        typer.echo(found.message)
        typer.echo("weights " + " ".join(f"{weight:.6g}" for weight in found.tensor.weights))
        if out is not None:
            save(out, found.tensor)
            typer.echo(out)


def _check_target(path: Path | None, source: Path) -> None:
    """Refuse a place where nothing can or should be written before anything is computed."""
    if path and path.exists() and path.samefile(source):
        stop(f"{path}: is the file of the tensor itself, and is not overwritten")
    if path and path.is_dir():
        stop(f"{path}: is a folder; the name of a file is needed")
    if path and not path.parent.is_dir():
        stop(f"{path}: the folder {path.parent} does not exist")


def _as_options(text: str) -> str:
    """Name the options of the command line where a message names the function's arguments."""
    text = text.replace("symmetrize=True", "--symmetrize")
    return text.replace("max_order=", "--max-order ").replace("max_order", "--max-order")


@study.command()
def run(
    specification: Annotated[Path, typer.Argument(metavar="SPEC", help="The study, a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; resumed where it is not done.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of local processes; by default 1.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Dask cluster: tcp://host:8786."),
    ] = None,
) -> None:
    """Run what is missing of a study, and write its report."""
    with one_line_errors():
        from tensoralg.studies.runner import run_study
        from tensoralg.studies.specification import load_specification
        from tensoralg.studies.terminal import print_study, progress_bar

        if workers is not None and scheduler is not None:
            stop("--workers starts local processes and --scheduler joins a cluster: give one")
        spec = load_specification(specification)
        with progress_bar(spec.name) as callback:
            cells = run_study(
                spec, out, workers=workers or 1, scheduler=scheduler, callback=callback
            )
        print_study(spec, cells)
        _report(out)
        _name_failures(cells)


@study.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study.")],
) -> None:
    """Write the report of a study from its finished cells."""
    with one_line_errors():
        _report(folder)


@app.command()
def info() -> None:
    """Print versions, devices and solvers."""
    with one_line_errors():
        from tensoralg.gpu.namespaces import library_versions, probe_devices
        from tensoralg.studies.terminal import print_table

        versions = [(name, text or "not installed") for name, text in library_versions().items()]
        print_table(("library", "version"), versions, "Versions")
        devices = [
            (device.kind, device.name, "yes" if device.usable else "no", device.detail)
            for device in probe_devices()
        ]
        print_table(("engine", "device", "usable", "detail"), devices, "Devices")
        print_table(("solver", "for", "state"), _solvers(), "Solvers")


def _solvers() -> list[tuple[str, str, str]]:
    """List what solves what; conic solvers are looked up by metadata, not by importing cvxpy."""
    from importlib.metadata import PackageNotFoundError, version

    rows = [
        ("generating polynomials", "incomplete symmetric tensors", "built in"),
        ("feasible least squares", "refinement of moments", "built in"),
        ("expectation maximization", "polish of mixtures", "built in"),
    ]
    for name, distribution in (("Clarabel", "clarabel"), ("SCS", "scs"), ("SDPA", "sdpa-python")):
        try:
            state = version(distribution)
        except PackageNotFoundError:
            state = "not installed"
        rows.append((name, "conic programs", state))
    return rows


def _drawing(plot: bool | None) -> tuple[bool, str]:
    from tensoralg.studies.figures import PlottingUnavailableError, require_matplotlib

    if plot is False:
        return False, ""
    try:
        require_matplotlib()
    except PlottingUnavailableError as error:
        if plot:
            raise
        return False, str(error)
    return True, ""


def _check_rows(table: "Table", data: Path, count: int, missing: bool) -> None:
    rows = len(table.values)
    if count > rows:
        stop(f"{data}: {count} components need at least as many rows; there are {rows}")
    place = table.first_infinite()
    if place:
        stop(f"{data}: row {place[0]}, column {place[1]!r} is infinite; only numbers are accepted")
    place = None if missing else table.first_missing()
    if place:
        stop(
            f"{data}: row {place[0]}, column {place[1]!r} is missing; "
            "--missing accepts missing values"
        )


def _fit_and_write(
    table: "Table",
    data: Path,
    out: Path,
    count: int | str,
    options: dict[str, Any],
    drawing: bool,
    plot_note: str,
) -> None:
    from tensoralg.mixtures import DiagonalGaussianMixture
    from tensoralg.studies.fitted import write_fit

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = DiagonalGaussianMixture(count, **options).fit(table.values)
        except (TensorAlgError, ValueError, MemoryError) as error:
            stop(f"{data}: the fit failed: {error}", FAILED)
    said = [*table.notes, plot_note, *(str(warning.message) for warning in caught)]
    notes = list(dict.fromkeys(note for note in said if note))
    for note in notes:
        say(f"note: {note}")
    page = write_fit(model, table, out, source=data.name, plot=drawing, notes=notes)
    show(f"{len(model.weights_)} components; {page}\n")


def _report(folder: Path) -> None:
    from tensoralg.studies.figures import PlottingUnavailableError, require_matplotlib
    from tensoralg.studies.report import write_report

    page = write_report(folder)
    try:
        require_matplotlib()
    except PlottingUnavailableError as error:
        say(f"note: {error}")
    show(f"{page}\n")


def _name_failures(cells: "list[CellResult]") -> None:
    failures = [cell for cell in cells if cell.status == "failed"]
    for cell in failures[:_MOST_NAMED]:
        key = cell.key
        where = f"d={key.dimension} r={key.components} m={key.order} N={key.samples}"
        where += f" sep={key.separation:g}"
        for name in ("outliers", "missing"):
            where += f" {name}={getattr(key, name):g}" if getattr(key, name) else ""
        say(f"failed: {key.method} at {where} seed={key.seed}: {cell.message}")
    if failures:
        say(f"{len(failures)} of {len(cells)} cells failed")
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    sys.exit(main())
