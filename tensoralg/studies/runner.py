"""Run a study: every missing cell once, each with the same numbers however it is run."""

import contextlib
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensoralg.studies.cells import CellResult, CellStore
from tensoralg.studies.cluster import connect, count_workers, map_on_cluster
from tensoralg.studies.files import strict_json
from tensoralg.studies.generation import (
    MixtureParameters,
    draw_mixture,
    draw_samples,
    method_seed,
    spoil_samples,
)
from tensoralg.studies.intervals import count_intervals
from tensoralg.studies.machine import describe_machine, one_thread
from tensoralg.studies.methods import METHODS, Fit, Problem
from tensoralg.studies.recovery import recovery_errors
from tensoralg.studies.specification import CellKey, StudySpecification
from tensoralg.studies.workers import map_in_processes

__all__ = ["run_cell", "run_study"]

Progress = Callable[[CellResult | None, int, int], None]
RunCell = Callable[[CellKey], CellResult]
_Data = tuple[MixtureParameters, NDArray[np.float64], NDArray[np.float64]]
_LONGEST_MESSAGE = 500


def run_study(
    specification: StudySpecification,
    folder: str | Path,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    callback: Progress | None = None,
) -> list[CellResult]:
    """Run what is missing of a study, and store every cell as it finishes.

    Stopping it anywhere and running it again gives the cells that one run would have given.

    Parameters
    ----------
    specification : StudySpecification
        The study.
    folder : str or Path
        Where ``study.toml``, ``cells.jsonl`` and later the report are; made when missing.
    workers : int
        Number of local processes; 1 runs the cells in this one. The results do not depend on
        it (kernels that numba has just compiled may round differently from the same ones out
        of its cache: the last digit), the seconds may where the cores are shared. More than
        one needs the usual ``if __name__ == "__main__":`` in scripts.
    scheduler : str, optional
        Address of a Dask scheduler, as ``tcp://host:8786``: the cells run on the workers of that
        cluster instead, which need this package.
    callback : callable, optional
        Called as ``callback(result, done, total)`` after every cell, and once before the first
        with ``None`` as the result.

    Returns
    -------
    list of CellResult
        Every finished cell of the study, in its order.

    Raises
    ------
    StudyFolderError
        If the folder is in use or holds another study.
    ValueError
        If `workers` is less than 1, or given together with `scheduler`.
    ClusterError
        If the cluster cannot be reached or is lost; what is finished is kept.

    Examples
    --------
    >>> import tempfile
    >>> from tensoralg.studies import StudySpecification, run_study
    >>> study = StudySpecification("s", (4,), (2,), (3,), (200,), (2.0,), (0,), ("em-truth",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [cell.status for cell in run_study(study, folder)]
    ['ok']
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers!r}")
    if scheduler is not None and workers != 1:
        raise ValueError(
            f"workers={workers} are local processes, and scheduler={scheduler!r} has workers of "
            "its own: give one of the two"
        )
    with CellStore(folder, specification) as store:
        missing = store.missing()
        cells = specification.cells()
        before = len(cells) - len(missing)
        if callback:
            callback(None, before, len(cells))
        run: RunCell = run_cell
        if specification.uncertainty:
            run = partial(run_cell, uncertainty=True)
        results = (
            _results(run, missing, workers, store.folder)
            if scheduler is None
            else _results_of_cluster(run, missing, scheduler, store.folder)
        )
        with contextlib.closing(results):
            for done, result in enumerate(results, start=before + 1):
                store.append(result)
                if callback:
                    callback(result, done, len(cells))
        return [store.finished[key] for key in cells]


def run_cell(key: CellKey, *, uncertainty: bool = False) -> CellResult:
    """Draw the known mixture of a cell, fit it and measure the errors; a failing fit is a result.

    Parameters
    ----------
    key : CellKey
        The cell.
    uncertainty : bool
        Whether the fit is also asked for its standard errors and the moment test.

    Returns
    -------
    CellResult
        With status "failed" and a message when the method raised or gave no finite parameters.

    Examples
    --------
    >>> from tensoralg.studies import CellKey, run_cell
    >>> run_cell(CellKey(4, 2, 3, 200, 2.0, 0, "em-truth")).status
    'ok'
    """
    started = time.perf_counter()
    try:
        # first: a limit on threads reaches only the libraries that are loaded already
        _warm_up(key.method, key.order)
        with one_thread(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            truth, clean, X = _draw(key)
            problem = Problem(X, key.components, key.order, method_seed(key), truth)
            if X is not clean:
                problem = replace(problem, clean=clean)
            started = time.perf_counter()
            fit = METHODS[key.method].fit(problem)
            seconds = time.perf_counter() - started
            result = _measure(key, truth, clean, fit, seconds, [str(w.message) for w in caught])
            return _with_intervals(result, truth, X, fit) if uncertainty else result
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        return CellResult(key, "failed", seconds=seconds, message=_one_line(message))


def _measure(
    key: CellKey,
    truth: MixtureParameters,
    X: NDArray[np.float64],
    fit: Fit,
    seconds: float,
    caught: list[str],
) -> CellResult:
    fitted = MixtureParameters(fit.weights, fit.means, fit.covariances)
    message = _one_line("; ".join(dict.fromkeys(text for text in (fit.message, *caught) if text)))
    if not fitted.is_finite() or not (fitted.covariances > 0).all():
        message = f"the parameters are not finite and positive; {message}"
        return CellResult(key, "failed", seconds=seconds, message=message)
    errors = recovery_errors(truth, fitted)
    return CellResult(
        key,
        "ok" if fit.converged else "not converged",
        errors.mean_error,
        errors.weight_error,
        errors.variance_error,
        fitted.score(X) - truth.score(X),
        seconds,
        message,
        len(fitted.weights) if METHODS[key.method].counts else None,
    )


def _with_intervals(
    result: CellResult, truth: MixtureParameters, X: NDArray[np.float64], fit: Fit
) -> CellResult:
    """Ask a fit how sure it is, after the clock has stopped."""
    if result.status == "failed":
        return result
    fitted = MixtureParameters(fit.weights, fit.means, fit.covariances)
    counts, said = count_intervals(fit.model, X, truth, fitted)
    message = _one_line("; ".join(text for text in (result.message, said) if text))
    return replace(result, intervals=counts, message=message)


def _results(
    run: RunCell, keys: list[CellKey], workers: int, folder: Path
) -> Generator[CellResult, None, None]:
    if keys:
        _note_the_run(folder, workers, len(keys))
    if workers == 1:
        yield from map(run, keys)
    else:
        yield from map_in_processes(run, keys, workers, _died)


def _results_of_cluster(
    run: RunCell, keys: list[CellKey], scheduler: str, folder: Path
) -> Generator[CellResult, None, None]:
    if not keys:
        return
    with contextlib.closing(connect(scheduler)) as client:
        _note_the_run(folder, count_workers(client), len(keys))
        yield from map_on_cluster(run, keys, client, _died)


def _died(key: CellKey) -> CellResult:
    return CellResult(key, "failed", message="the process died: killed, or out of memory")


# the methods of one grid point and seed follow each other
@lru_cache(maxsize=1)
def _data(key: CellKey) -> _Data:
    mixture = draw_mixture(key)
    clean = draw_samples(key, mixture)
    X = spoil_samples(key, mixture, clean)
    for rows in (clean, X):
        rows.setflags(write=False)
    return mixture, clean, X


def _draw(key: CellKey) -> _Data:
    return _data(replace(key, method=""))


@cache
def _warm_up(method: str, order: int) -> None:
    """Import and compile before the clock runs: a tiny fit, whatever comes of it."""
    key = CellKey(6, 2, order, 400, 2.0, 0, "")
    truth = draw_mixture(key)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        METHODS[method].fit(Problem(draw_samples(key, truth), 2, order, 0, truth))


def _note_the_run(folder: Path, workers: int, cells: int) -> None:
    entry = describe_machine() | {"workers": workers, "cells": cells}
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as stream:
        stream.write(strict_json(entry) + "\n")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 3] + "..."
