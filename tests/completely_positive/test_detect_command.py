"""``tensoralg detect``: files in, one verdict out, errors in one line."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tensoralg import SymmetricTensor, load, save
from tensoralg.cli import main
from tensoralg.completely_positive import Certificate
from tensoralg.completely_positive.tensor_files import read_tensor_file


@pytest.fixture
def write(tmp_path):
    def write(text, name="tensor.json"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def run(*arguments):
    return main(["detect", *map(str, arguments)])


def test_a_certificate_is_written_and_verifies(write, tmp_path, capsys):
    out = tmp_path / "certificate.json"
    assert run(write([[1, 2], [2, 1]]), "--certificate", out) == 0
    assert capsys.readouterr().out.startswith("not completely positive\n")
    certificate = Certificate.from_json(out.read_text())
    assert certificate.verify()
    assert certificate.tensor == {(0, 0): 1, (0, 1): 2, (1, 1): 1}


def test_the_stand_alone_reader_says_how_it_is_called(tmp_path):
    reader = Path(__file__).parents[2] / "docs" / "verify_certificate.py"
    for arguments, said in [((), "FILE.json"), ((tmp_path / "no.json",), "No such file")]:
        command = [sys.executable, reader, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_without_a_certificate_nothing_is_written_and_a_note_says_so(write, tmp_path, capsys):
    out = tmp_path / "certificate.json"
    assert run(write([[2, 1], [1, 2]]), "--certificate", out) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("completely positive\n")
    assert "no certificate" in printed.err
    assert not out.exists()


def test_the_points_of_a_positive_answer_are_written(write, tmp_path, capsys):
    out = tmp_path / "points.npz"
    assert run(write([[2, 1], [1, 2]]), "--decomposition", out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    points = load(out)
    assert (points.points >= 0).all()
    assert np.allclose(points.to_tensor().to_dense(), [[2, 1], [1, 2]], rtol=0, atol=1e-12)
    other = tmp_path / "other.npz"
    assert run(write([[1, 2], [2, 1]]), "--decomposition", other) == 0
    assert "no decomposition" in capsys.readouterr().err
    assert not other.exists()


@pytest.mark.parametrize("option", ["--certificate", "--decomposition"])
def test_a_place_that_cannot_be_written_is_refused_first(write, tmp_path, capsys, option):
    for target, said in [(tmp_path / "no" / "x.json", "does not exist"), (tmp_path, "is a folder")]:
        assert run(write([[2, 1], [1, 2]]), option, target) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert said in printed.err


def test_dense_arrays_and_saved_tensors(tmp_path, capsys):
    np.save(tmp_path / "A.npy", np.eye(3))
    save(tmp_path / "A.npz", SymmetricTensor([1.0, 2.0, 1.0], 2, 2))
    assert run(tmp_path / "A.npy") == 0
    assert run(tmp_path / "A.npz") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "completely positive" in lines
    assert "not completely positive" in lines


def test_all_forms_of_json_agree(write):
    expected = [[[1, Fraction(1, 3)], [Fraction(1, 3), 0]], [[Fraction(1, 3), 0], [0, 2.5]]]
    dense = [[[1, "1/3"], ["1/3", 0]], [["1/3", 0], [0, 2.5]]]
    forms = [
        dense,
        {"order": 3, "dimension": 2, "entries": [1, "1/3", 0, 2.5]},
        {"order": 3, "dimension": 2, "indices": [[0, 0, 0], [1, 0, 0], [1, 1, 1]],
         "values": [1, "1/3", 2.5]},
    ]  # fmt: skip
    for form in forms:
        array = np.array(read_tensor_file(write(form)), dtype=object)
        assert array.tolist() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[1, 2], [3, 4]]", "A[0, 1] = 2 but A[1, 0] = 3"),
        ("[[1, NaN], [NaN, 1]]", "nan at index (0, 1)"),
        ("[[1, 2], [2]]", "different lengths"),
        ("[[1, 2", "not valid JSON"),
        ("3", "nested lists"),
        ('{"order": 2}', "order, dimension and entries"),
        ('{"order": 2, "dimension": 2, "entries": [1, 2]}', "list of 3 numbers"),
        ('{"order": 2, "dimension": 0, "entries": []}', "at least 1"),
        ('{"order": 2, "dimension": 2, "indices": [[0, 2]], "values": [1]}', "[0, 2]"),
        ('{"order": 2, "dimension": 2, "indices": [[0, 1], [1, 0]], "values": [1, 1]}', "twice"),
        ('[["1/0"]]', "not a fraction"),
        ('[["x"]]', "not a fraction"),
        ("[[true]]", "not a number"),
        ("[[1, 2], [null, 1]]", "null at [1][0]"),
        ('{"order": 2, "dimension": 2, "values": [1]}', "no indices with values"),
        ('{"order": 3, "dimension": 9999, "entries": [1]}', "9999**3"),
    ],
)
def test_bad_files_are_named_in_one_line(write, capsys, text, said):
    path = write(text)
    assert run(path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert str(path) in error


def test_missing_and_foreign_files(tmp_path, write, capsys):
    assert run(tmp_path / "nothing.json") == 2
    assert run(write("1", "tensor.txt")) == 2
    np.save(tmp_path / "objects.npy", np.array([None, "x"], dtype=object))
    assert run(tmp_path / "objects.npy") == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_options_reach_the_detection(write, capsys):
    path = write([[1, 1], [0, 1]])
    assert run(path) == 2
    assert run(path, "--symmetrize") == 0
    assert run(path, "--symmetrize", "--solver", "mosek") == 2
    assert run(path, "--symmetrize", "--max-order", "0") == 2
    error = capsys.readouterr().err
    assert "--symmetrize averages" in error
    assert "--max-order must be at least ceil(d/2) = 1" in error


def test_an_open_question_has_its_own_exit_code(write, monkeypatch, capsys):
    from tensoralg.completely_positive import search

    monkeypatch.setattr(search, "REBUILT", -1.0)
    assert run(write([[2, 1], [1, 2]]), "--max-order", "1") == 1
    assert capsys.readouterr().out.startswith("undecided\n")
