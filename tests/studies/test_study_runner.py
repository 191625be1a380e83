import functools
import json
import operator
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tensoralg.studies import (
    CellKey,
    Method,
    StudySpecification,
    read_cells,
    run_cell,
    run_study,
    write_report,
)
from tensoralg.studies.methods import METHODS, Fit
from tensoralg.studies.workers import map_in_processes

STUDY = StudySpecification(
    "s", (3,), (2,), (3,), (150,), (2.0,), (0, 1), ("em-default", "em-truth")
)


def timeless(cells):
    return {cell.key: replace(cell, seconds=0.0) for cell in cells}


def with_method(monkeypatch, fit):
    """Put a method of the test's own under the name of a real one."""
    monkeypatch.setitem(METHODS, "moments", Method("moments", "a test's own", fit))
    return replace_methods(("moments", "em-truth"))


def replace_methods(methods):
    values = {name: getattr(STUDY, name) for name in STUDY.__dataclass_fields__}
    return StudySpecification(**values | {"methods": methods})


def test_a_run_in_two_parts_equals_one_run(tmp_path):
    whole = run_study(STUDY, tmp_path / "whole")

    class Enough(Exception):  # noqa: N818
        pass

    def stop_after_two(result, done, total):
        if done == 2:
            raise Enough

    with pytest.raises(Enough):
        run_study(STUDY, tmp_path / "parts", callback=stop_after_two)
    first = (tmp_path / "parts" / "cells.jsonl").read_bytes()
    assert first.count(b"\n") == 2
    seen = []
    parts = run_study(STUDY, tmp_path / "parts", callback=lambda *event: seen.append(event))
    assert timeless(parts) == timeless(whole)
    assert (tmp_path / "parts" / "cells.jsonl").read_bytes().startswith(first)
    assert [(done, total) for _, done, total in seen] == [(2, 4), (3, 4), (4, 4)]
    assert seen[0][0] is None


def test_processes_give_the_same_numbers(tmp_path):
    study = replace_methods(("moments", "em-truth"))
    alone = timeless(run_study(study, tmp_path / "one"))
    together = timeless(run_study(study, tmp_path / "two", workers=2))
    assert len(read_cells(tmp_path / "two")) == len(together) == 4
    for key, cell in alone.items():
        if key.method == "em-truth":
            assert together[key] == cell
        # kernels out of numba's cache may round differently from those compiled a moment ago
        assert together[key].status == cell.status
        assert together[key].mean_error == pytest.approx(cell.mean_error, rel=1e-9)


def test_a_finished_study_runs_nothing(tmp_path, monkeypatch):
    run_study(STUDY, tmp_path)
    before = (tmp_path / "cells.jsonl").read_bytes()
    monkeypatch.setattr("tensoralg.studies.runner.run_cell", pytest.fail)
    assert len(run_study(STUDY, tmp_path)) == 4
    assert (tmp_path / "cells.jsonl").read_bytes() == before


def test_workers_below_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        run_study(STUDY, tmp_path, workers=0)


@pytest.mark.parametrize(
    "error", [ValueError("no\nsuch  thing"), MemoryError(), ZeroDivisionError("x"), OSError(5, "y")]
)
def test_a_failing_method_is_a_result_and_the_study_goes_on(tmp_path, monkeypatch, error):
    def fit(problem):
        raise error

    cells = run_study(with_method(monkeypatch, fit), tmp_path)
    assert [cell.status for cell in cells] == ["failed", "ok"] * 2
    assert cells[0].message.startswith(type(error).__name__)
    assert "\n" not in cells[0].message
    assert np.isnan(cells[0].mean_error)
    entry = json.loads((tmp_path / "cells.jsonl").read_text().splitlines()[0])
    assert entry["mean_error"] is None


def test_an_interruption_is_no_result(tmp_path, monkeypatch):
    def fit(problem):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(with_method(monkeypatch, fit), tmp_path)
    assert read_cells(tmp_path) == []


def fit_of(**changes):
    def fit(problem):
        truth = problem.truth
        values = {
            "weights": truth.weights,
            "means": truth.means,
            "covariances": truth.covariances,
            "converged": True,
        }
        return Fit(**values | changes)

    return fit


KEY = CellKey(3, 2, 3, 150, 2.0, 0, "moments")


def test_the_truth_itself_has_no_error(monkeypatch):
    with_method(monkeypatch, fit_of())
    cell = run_cell(KEY)
    assert (cell.status, cell.mean_error, cell.log_likelihood_gap) == ("ok", 0.0, 0.0)
    assert cell.seconds >= 0


def test_a_fit_that_did_not_converge_says_so(monkeypatch):
    with_method(monkeypatch, fit_of(converged=False, message="too few steps"))
    assert run_cell(KEY).status == "not converged"
    assert run_cell(KEY).message == "too few steps"


@pytest.mark.parametrize(
    "covariances", [np.full((2, 3), np.nan), np.zeros((2, 3)), np.full((2, 3), np.inf)]
)
def test_parameters_that_are_no_mixture_are_a_failure(monkeypatch, covariances):
    with_method(monkeypatch, fit_of(covariances=covariances))
    cell = run_cell(KEY)
    assert cell.status == "failed"
    assert "not finite and positive" in cell.message


def test_fewer_components_than_asked_are_measured(monkeypatch):
    found = fit_of(weights=np.ones(1), means=np.zeros((1, 3)), covariances=np.ones((1, 3)))
    with_method(monkeypatch, found)
    cell = run_cell(KEY)
    assert cell.status == "ok"
    assert cell.mean_error == pytest.approx(1.0)
    assert cell.log_likelihood_gap < 0


def test_warnings_become_the_message(monkeypatch):
    def fit(problem):
        warnings.warn("one\nmay not trust this", UserWarning, stacklevel=1)
        return fit_of(message="done")(problem)

    with_method(monkeypatch, fit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_cell(KEY).message == "done; one may not trust this"


def test_a_method_cannot_change_the_rows_of_the_next(monkeypatch):
    def fit(problem):
        problem.X[0] = 0

    with_method(monkeypatch, fit)
    assert "read-only" in run_cell(KEY).message


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_runs_and_repeats_itself(method):
    key = CellKey(8, 2, 3, 2000, 1.5, 3, method)
    first, second = run_cell(key), run_cell(key)
    assert first.status == "ok", first.message
    assert first.mean_error < 0.15
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_each_run_is_noted_with_its_machine(tmp_path):
    run_study(STUDY, tmp_path)
    (note,) = (tmp_path / "runs.jsonl").read_text().splitlines()
    entry = json.loads(note)
    assert entry["cells"] == 4
    assert entry["versions"]["numpy"] == np.__version__
    page = write_report(tmp_path)
    assert np.__version__ in page.read_text()


def test_a_dying_worker_costs_only_its_own_item():
    # partials of builtins: a fresh interpreter can unpickle them
    items = [functools.partial(abs, -k) for k in range(5)]
    items.insert(2, functools.partial(os._exit, 3))
    results = map_in_processes(operator.call, items, 2, on_death=lambda item: "died")
    assert sorted(map(str, results)) == ["0", "1", "2", "3", "4", "died"]
