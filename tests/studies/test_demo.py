import numpy as np

from tensoralg.studies import parse_specification
from tensoralg.studies.demo import demo_study, main, write_demo
from tensoralg.studies.real_data import REAL_DATA, compare_on_splits, real_data_rows

SMALL = """
name = "small"
[grid]
dimension = [6]
components = [2]
order = [3]
samples = [1500]
separation = [1.0]
seeds = [0]
methods = ["moments", "em-default", "em-truth"]
"""


def test_the_demo_writes_its_report_and_resumes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tensoralg.studies.demo.REAL_DATA", REAL_DATA[:1])
    out = tmp_path / "demo report"
    study = parse_specification(SMALL)
    page = write_demo(out, splits=1, study=study)
    printed = capsys.readouterr().out
    for word in ("wine, moments", "wine, em-restarts", "em-truth"):
        assert word in printed
    assert page.exists()
    for picture in ("real_wine.png", "example.png", "mean_error.png"):
        assert (out / picture).exists()
        assert picture in page.read_text()
    before = (out / "study" / "cells.jsonl").read_bytes()
    write_demo(out, splits=1, study=study)
    assert (out / "study" / "cells.jsonl").read_bytes() == before


def test_the_shipped_study_is_valid_and_small():
    assert len(demo_study().cells()) <= 40


def test_a_bad_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_all_methods_see_the_same_splits_and_repeat():
    wine = REAL_DATA[0]
    first = compare_on_splits(wine, ["em-default"], 2)
    again = compare_on_splits(wine, ["em-restarts", "em-default"], 2)[1::2]
    assert [r.held_out for r in first] == [r.held_out for r in again]
    assert all(np.isfinite(r.held_out) and r.agreement > 0.3 for r in first)


def test_a_failing_method_is_a_row():
    results = compare_on_splits(REAL_DATA[0], ["em-truth"], 1)
    assert "needs a known mixture" in results[0].message
    assert real_data_rows(results) == [["wine, em-truth", "–", "–", "–", "1/1"]]
