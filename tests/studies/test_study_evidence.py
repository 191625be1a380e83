"""Spoiled rows, counted components, intervals: the tables, their numbers, and real cells."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tensoralg.mixtures import DiagonalGaussianMixture
from tensoralg.studies import (
    CellKey,
    CellResult,
    CellStore,
    StudySpecification,
    parse_specification,
    run_cell,
    run_study,
    write_report,
)
from tensoralg.studies.evidence import (
    counting_table,
    evidence_tables,
    interval_shares,
    interval_table,
    spoiled_table,
)
from tensoralg.studies.generation import MixtureParameters, draw_mixture, draw_samples
from tensoralg.studies.intervals import IntervalCounts, count_intervals
from tensoralg.studies.methods import METHODS, Problem
from tensoralg.studies.summary import grid_labels, summarize
from tensoralg.studies.terminal import print_study

STUDY = StudySpecification(
    "s", (4,), (2,), (3,), (100,), (2.0,), (0, 1, 2, 3), ("moments", "moments-auto", "em-truth"),
    outliers=(0.0, 0.05), missing=(0.0,),
)  # fmt: skip


def invented(change=lambda cell: cell):
    """Errors .1 on clean rows and .1, .2, .3, .4 on spoiled ones; one count of four is wrong."""
    for key in STUDY.cells():
        error = 0.1 * (key.seed + 1) if key.outliers and key.method != "em-truth" else 0.1
        found = {0: 3}.get(key.seed, 2) if key.method == "moments-auto" else None
        yield change(CellResult(key, "ok", error, 0.1, 0.1, 0.0, 1.0, "x", components_found=found))


def test_errors_are_compared_with_those_on_the_same_rows_unspoiled():
    table = spoiled_table(STUDY, list(invented()))
    assert [row[0] for row in table.rows] == [
        "outliers=5%, moments",
        "outliers=5%, moments-auto",
    ]
    assert table.rows[0][1:] == ["0.250", "0.100", "2.50", "4.00", "4/4"]


def test_a_seed_without_its_clean_fit_gives_no_ratio():
    def no_clean_fit(cell):
        failed = cell.key.seed == 3 and not cell.key.outliers
        return CellResult(cell.key, "failed", message="no") if failed else cell

    assert spoiled_table(STUDY, list(invented(no_clean_fit))).rows[0][3:5] == ["2.00", "3.00"]


def test_without_clean_rows_there_is_nothing_to_compare():
    values = {name: getattr(STUDY, name) for name in STUDY.__dataclass_fields__}
    study = StudySpecification(**values | {"outliers": (0.05,)})
    assert spoiled_table(study, list(invented())).rows == []


def test_components_are_counted():
    table = counting_table(STUDY, list(invented()))
    assert table.rows == [
        ["outliers=0%, moments-auto", "3/4", "75%", "+1: 1"],
        ["outliers=5%, moments-auto", "3/4", "75%", "+1: 1"],
        ["all, moments-auto", "6/8", "75%", "+1: 2"],
    ]


def test_a_failed_count_is_not_right():
    def failed(cell):
        return CellResult(cell.key, "failed", message="no") if cell.key.seed == 1 else cell

    assert counting_table(STUDY, list(invented(failed))).rows[0][1:3] == ["2/4", "50%"]


def test_shares_of_intervals_and_their_standard_error():
    pairs = [(8, 8), (6, 8), (7, 8), (7, 8)]
    cells = [
        CellResult(key, "ok", intervals=IntervalCounts(means_inside=a, means_intervals=b))
        for key, (a, b) in zip(STUDY.cells(), pairs, strict=False)
    ]
    share, error = interval_shares(cells, "means")
    assert share == pytest.approx(28 / 32)
    assert error == pytest.approx(np.std([a / b for a, b in pairs], ddof=1) / 2)
    assert all(map(math.isnan, interval_shares(cells, "weights")))
    assert math.isnan(interval_shares(cells[:1], "means")[1])


def test_intervals_and_rejections_are_in_a_table():
    def asked(cell):
        if cell.key.method != "moments":
            return replace(cell, intervals=IntervalCounts())
        p_value = 0.001 if cell.key.seed == 0 else 0.5
        return replace(cell, intervals=IntervalCounts(2, 2, 8, 6, 8, 8, p_value))

    table = interval_table(STUDY, list(invented(asked)))
    assert len(table.rows) == 2
    assert table.rows[0] == [
        "outliers=0%, moments", "4", "100.0% ± 0.0", "75.0% ± 0.0", "100.0% ± 0.0",
        "0.250", "0.250",
    ]  # fmt: skip


def test_a_study_that_asks_nothing_more_has_no_more_tables():
    values = {name: getattr(STUDY, name) for name in STUDY.__dataclass_fields__}
    study = StudySpecification(**values | {"outliers": (0.0,), "methods": ("moments",)})
    assert evidence_tables(study, [c for c in invented() if c.key in set(study.cells())]) == []
    assert grid_labels(study)[0] == "d=4, r=2, m=3, N=100, sep=2"


def test_labels_name_shares():
    common, labels = grid_labels(STUDY)
    assert common == "d=4, r=2, m=3, N=100, sep=2"
    assert list(labels.values()) == ["outliers=0%", "outliers=5%"]
    values = {name: getattr(STUDY, name) for name in STUDY.__dataclass_fields__}
    always = StudySpecification(**values | {"outliers": (0.05,)})
    assert grid_labels(always)[0].endswith("outliers=5%")


def test_success_on_clean_rows_is_measured_by_the_limit():
    def higher(cell):
        gap = 0.1 if cell.key.method == "em-truth" else 0.0 if cell.key.seed else 0.0995
        return replace(cell, log_likelihood_gap=gap)

    found = {
        (s.grid_point.outliers, s.method): s.successes for s in summarize(STUDY, invented(higher))
    }
    assert found[0.0, "moments"] == 1  # the others are at a local optimum
    assert found[0.0, "em-truth"] == 4
    assert found[0.05, "moments"] == 4  # spoiled rows cannot reach the likelihood of clean ones


def test_intervals_of_missed_components_do_not_exist():
    X = np.random.default_rng(5).normal(size=(4000, 3))
    model = DiagonalGaussianMixture().fit(X)
    truth = MixtureParameters([0.5, 0.5], [[0.0] * 3, [9.0] * 3], np.ones((2, 3)))
    fitted = MixtureParameters(model.weights_, model.means_, model.covariances_)
    counts, said = count_intervals(model, X, truth, fitted)
    assert said == ""
    assert (counts.means_intervals, counts.variances_intervals) == (3, 3)
    assert counts.means_inside <= 3
    assert counts.weights_intervals == 0  # the only weight is 1: nothing was estimated


def test_intervals_are_those_of_the_standard_errors():
    key = CellKey(5, 2, 3, 3000, 2.0, 4, "moments")
    truth = draw_mixture(key)
    X = draw_samples(key, truth)
    model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    fitted = MixtureParameters(model.weights_, model.means_, model.covariances_)
    errors = model.standard_errors(X)
    order = np.argsort(fitted.means[:, 0]), np.argsort(truth.means[:, 0])
    gaps = fitted.means[order[0]] - truth.means[order[1]]
    inside = np.abs(gaps) <= 1.959963984540054 * errors.means[order[0]]
    counts, _ = count_intervals(model, X, truth, fitted)
    assert counts.means_inside == inside.sum()
    assert counts.means_intervals == 10
    assert counts.moment_test_p_value == model.moment_test(X).p_value


def test_a_model_that_cannot_say_is_named():
    class Silent:
        def standard_errors(self, X):
            raise ValueError("too few rows")

        moment_test = standard_errors

    one = MixtureParameters([1.0], [[0.0]], [[1.0]])
    counts, said = count_intervals(Silent(), np.zeros((1, 1)), one, one)
    assert counts.means_inside is None
    assert "no standard errors: too few rows; no moment test: too few rows" in said
    assert count_intervals(None, np.zeros((1, 1)), one, one)[1] == ""


def test_cells_carry_intervals_only_where_the_study_asks():
    key = CellKey(5, 2, 3, 2000, 2.0, 4, "moments")
    assert run_cell(key).intervals is None
    asked = run_cell(key, uncertainty=True)
    assert asked.intervals.means_intervals == 10
    assert 0 <= asked.intervals.moment_test_p_value <= 1
    em = run_cell(replace(key, method="em-default"), uncertainty=True)
    assert em.status == "ok"
    assert em.intervals.means_intervals is None


def test_what_the_methods_do_with_spoiled_rows():
    key = CellKey(8, 2, 3, 3000, 1.5, 3, "moments")
    clean = run_cell(key).mean_error
    wild = replace(key, outliers=0.005)
    assert run_cell(wild).mean_error > 5 * clean
    assert run_cell(replace(wild, method="moments-robust")).mean_error < 2 * clean
    counted = run_cell(replace(wild, method="moments-robust-auto"))
    assert counted.components_found == 2
    gaps = replace(key, missing=0.25)
    assert run_cell(gaps).mean_error < 1.6 * clean
    assert run_cell(replace(gaps, method="em-imputed")).mean_error > run_cell(gaps).mean_error
    for method in ("em-default", "em-restarts", "em-bic"):
        refused = run_cell(replace(gaps, method=method))
        assert refused.status == "failed"
        assert "takes no missing cells" in refused.message
    for other in (wild, gaps):
        limit = run_cell(replace(other, method="em-truth"))
        assert limit.mean_error == run_cell(replace(key, method="em-truth")).mean_error


def test_the_criterion_counts_components():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(900, 2)) + 12.0 * rng.integers(0, 3, (900, 1))
    fit = METHODS["em-bic"].fit(Problem(X, 1, 3, 0))  # what the problem says does not matter
    assert len(fit.weights) == 3
    assert "BIC of 1 to 5 components: least at 3" in fit.message


def test_a_study_with_everything_is_run_reported_and_resumed(tmp_path, capsys):
    grid = {
        "dimension": [6], "components": [2], "order": [3], "samples": [800], "separation": [2.0],
        "outliers": [0, 0.01], "missing": [0, 0.1], "seeds": [0, 1],
        "methods": ["moments-robust", "moments-auto", "em-imputed", "em-truth"],
    }  # fmt: skip
    study = parse_specification({"name": "s", "uncertainty": True, "grid": grid})
    cells = run_study(study, tmp_path)
    before = (tmp_path / "cells.jsonl").read_bytes()
    assert len(run_study(study, tmp_path)) == len(cells) == 2 * 2 * 2 * 4
    assert (tmp_path / "cells.jsonl").read_bytes() == before
    with CellStore(tmp_path, study) as store:
        assert store.missing() == []
    print_study(study, cells)
    printed = capsys.readouterr().out
    page = write_report(tmp_path)
    markdown = page.with_suffix(".md").read_text()
    for title in ("Outliers and missing cells", "Number of components", "Intervals and moment"):
        assert title in printed
        assert f"## {title}" in markdown
    for name in ("error_outliers", "error_missing", "components_found", "intervals", "moment_test"):
        assert f"({name}.png)" in markdown
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "40 times the column's standard deviation" in markdown


def test_failures_of_spoiled_cells_name_the_shares(tmp_path):
    grid = {
        "dimension": [3], "components": [2], "order": [3], "samples": [150], "separation": [2.0],
        "missing": [0.25], "seeds": [0], "methods": ["em-default"],
    }  # fmt: skip
    study = parse_specification({"name": "s", "grid": grid})
    run_study(study, tmp_path)
    write_report(tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert "| method | d | r | m | N | sep | missing | seed | message |" in markdown
    assert "| 25% | 0 | ValueError: scikit-learn" in markdown
