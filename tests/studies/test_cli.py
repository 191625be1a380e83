import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tensoralg
from tensoralg.cli import main
from tensoralg.studies import Method, read_cells
from tensoralg.studies.methods import METHODS

SPEC = """
name = "tiny"
[grid]
dimension = [3]
components = [2]
order = [3]
samples = [150]
separation = [2.0]
seeds = [0, 1]
methods = ["em-default", "em-truth"]
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    centers = np.where(rng.random(600) < 0.4, 0, 1)[:, None] * np.array([5.0, 0, 4, 0, -3])
    return centers + rng.standard_normal((600, 5))


@pytest.fixture
def table(tmp_path, rows):
    path = tmp_path / "rows.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d,e", comments="")
    return path


def one_line(capsys):
    """Return what was said on the error stream, which must be one line and no traceback."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("tensoralg: ")
    return said


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_a_study_runs_reports_and_resumes(spec, tmp_path, capsys):
    out = tmp_path / "ordner für Ümläute" / "deep"
    assert run("study", "run", spec, "--out", out) == 0
    printed = capsys.readouterr()
    assert "em-truth" in printed.out
    assert str(out / "report.html").split("/")[-1] in printed.out
    assert "4/4" in printed.err
    names = {"study.toml", "cells.jsonl", "report.md", "report.html"}
    assert names <= {path.name for path in out.iterdir()}
    assert list(out.glob("*.png"))
    before = (out / "cells.jsonl").read_bytes()
    assert run("study", "run", spec, "--out", out) == 0
    assert (out / "cells.jsonl").read_bytes() == before
    (out / "report.html").unlink()
    assert run("study", "report", out) == 0
    assert (out / "report.html").exists()


def test_another_study_into_the_same_folder_is_refused(spec, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("study", "run", spec, "--out", out) == 0
    before = (out / "cells.jsonl").read_bytes()
    capsys.readouterr()
    spec.write_text("# the same, written otherwise\n" + SPEC.replace("[0, 1]", "2"))
    assert run("study", "run", spec, "--out", out) == 0
    capsys.readouterr()
    spec.write_text(SPEC.replace("150", "151"))
    assert run("study", "run", spec, "--out", out) == 2
    assert "samples [150] is not [151]" in one_line(capsys)
    assert (out / "cells.jsonl").read_bytes() == before


def test_failed_cells_are_named_and_give_exit_code_1(spec, tmp_path, capsys, monkeypatch):
    def fit(problem):
        raise ValueError("no luck")

    monkeypatch.setitem(METHODS, "em-default", Method("em-default", "breaks", fit))
    assert run("study", "run", spec, "--out", tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "failed: em-default at d=3 r=2 m=3 N=150 sep=2 seed=1: ValueError: no luck" in said
    assert "2 of 4 cells failed" in said
    assert [cell.status for cell in read_cells(tmp_path / "out")] == ["failed", "ok"] * 2
    monkeypatch.undo()
    assert run("study", "run", spec, "--out", tmp_path / "out") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (SPEC.replace("em-truth", "magic"), "unknown method 'magic'"),
        (SPEC.replace("samples", "sample"), "unknown key 'sample'"),
        (SPEC.replace("[150]", "[]"), "samples is an empty list"),
        (SPEC.replace("[150]", "[-1]"), "samples must be at least 1"),
        ("this is = = no TOML", "not valid TOML"),
        (SPEC.replace('"tiny"', "3"), "name must be"),
    ],
)
def test_a_bad_specification_is_one_line(tmp_path, capsys, content, words):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    assert run("study", "run", path, "--out", tmp_path / "out") == 2
    said = one_line(capsys)
    assert words in said
    assert "bad.toml" in said
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_one_line(spec, table, tmp_path, capsys):
    out = tmp_path / "out"
    for arguments, words in [
        (["study", "run", spec], "--out"),
        (["study", "run", spec, "--out", out, "--workers", "0"], "--workers"),
        (["study", "run", spec, "--out", out, "--wrokers", "2"], "--wrokers"),
        (["study", "run", tmp_path / "none.toml", "--out", out], "none.toml: No such file"),
        (["study", "run", tmp_path, "--out", out], "Is a directory"),
        (["study", "run", spec, "--out", spec], "spec.toml: File exists"),
        (["study", "report", tmp_path / "none"], "holds no study"),
        (["study", "report", spec], "holds no study"),
        (["study", "walk"], "walk"),
        (["magic"], "magic"),
        (["fit", table, "--out", out], "--components"),
        (["fit", table, "--components", "0", "--out", out], "--components"),
        (["fit", table, "--components", "2.5", "--out", out], "--components"),
        (["fit", table, "--components", "many", "--out", out], "or auto; got 'many'"),
        (["fit", table, "--components", "2", "--order", "2", "--out", out], "--order"),
        (["fit", tmp_path / "none.csv", "--components", "2", "--out", out], "No such file"),
        (["fit", table, "--components", "601", "--out", out], "there are 600"),
        (["fit", table, "--components", "2", "--columns", "a,z", "--out", out], "'z' is not"),
        (["fit", table, "--components", "2", "--out", spec], "is a file"),
    ]:
        assert run(*arguments) == 2, arguments
        assert words in one_line(capsys)
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_line(spec, table, tmp_path, capsys):
    # below a file: no permissions needed, so that root cannot pass either
    out = spec / "below"
    assert run("study", "run", spec, "--out", out) == 2
    assert "Not a directory" in one_line(capsys)
    assert run("fit", table, "--components", 2, "--out", out) == 2
    assert "Not a directory" in one_line(capsys)


@pytest.mark.parametrize("command", ["fit", "study"])
def test_an_interruption_is_130(command, spec, table, tmp_path, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensoralg.studies.runner.run_study", interrupt)
    monkeypatch.setattr("tensoralg.studies.data_files.read_table", interrupt)
    arguments = {"fit": ["fit", table, "--components", 2], "study": ["study", "run", spec]}
    assert run(*arguments[command], "--out", tmp_path / "out") == 130
    assert "interrupted" in capsys.readouterr().err


def test_fit_writes_parameters_labels_and_a_report(table, rows, tmp_path, capsys):
    out = tmp_path / "fitted"
    assert run("fit", table, "--components", 2, "--out", out) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {
        "parameters.json", "labels.csv", "report.md", "report.html", "scatter.png",
        "responsibilities.png", "convergence.png",
    }  # fmt: skip
    entry = json.loads((out / "parameters.json").read_text(), parse_constant=pytest.fail)
    assert entry["columns"] == ["a", "b", "c", "d", "e"]
    assert sorted(entry["weights"]) == pytest.approx([0.4, 0.6], abs=0.06)
    heavy = np.argmax(entry["weights"])
    np.testing.assert_allclose(entry["means"][heavy], [5, 0, 4, 0, -3], atol=0.3)
    np.testing.assert_allclose(entry["covariances"], np.ones((2, 5)), atol=0.3)
    assert entry["rows"] == 600
    assert isinstance(entry["status"], str)
    labels = np.genfromtxt(out / "labels.csv", delimiter=",", names=True)
    assert len(labels) == 600
    agreement = np.mean((labels["label"] == heavy) == (rows[:, 0] > 2.5))
    assert agreement > 0.95
    assert labels["probability"].min() >= 0.5
    report = (out / "report.md").read_text()
    assert "2 components" in report
    assert "scatter.png" in report
    errors = entry["diagnostics"]["standard_errors"]
    share = min(entry["weights"])
    # the components lie so far apart that every row's is known
    expected = np.sqrt(share * (1 - share) / 600)
    np.testing.assert_allclose(errors["weights"], expected, rtol=0.05)
    shares = np.array(entry["weights"])[:, None]
    expected = np.sqrt(np.array(entry["covariances"]) / 600 / shares)
    np.testing.assert_allclose(errors["means"], expected, rtol=0.2)
    assert entry["diagnostics"]["moment_test"]["p_value"] > 1e-3
    assert "Standard errors of the means" in report
    assert "Test against 10 moments" in report


def test_fit_does_not_replace_an_earlier_fit_unasked(table, tmp_path, capsys):
    out = tmp_path / "fitted"
    assert run("fit", table, "--components", 2, "--out", out) == 0
    before = (out / "parameters.json").read_bytes()
    capsys.readouterr()
    assert run("fit", table, "--components", 1, "--out", out) == 2
    assert "--overwrite" in one_line(capsys)
    assert (out / "parameters.json").read_bytes() == before
    assert run("fit", table, "--components", 1, "--out", out, "--overwrite", "--no-plot") == 0
    assert json.loads((out / "parameters.json").read_text())["n_components"] == 1
    assert not list(out.glob("*.png")), "pictures of the earlier fit"


def test_a_write_that_fails_leaves_nothing_half_written(table, tmp_path, capsys, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensoralg.studies.document.Document.write", full)
    out = tmp_path / "fitted"
    assert run("fit", table, "--components", 2, "--out", out) == 2
    assert "No space left" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_fit_reads_npy_and_one_column(tmp_path, rows):
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    assert run("fit", tmp_path / "rows.npy", "--components", 2, "--out", tmp_path / "a") == 0
    (tmp_path / "one.txt").write_text("height\n" + "\n".join(map(repr, rows[:, 0].tolist())))
    assert run("fit", tmp_path / "one.txt", "--components", 2, "--out", tmp_path / "b") == 0
    entry = json.loads((tmp_path / "b" / "parameters.json").read_text())
    assert sorted(np.ravel(entry["means"])) == pytest.approx([0, 5], abs=0.4)
    assert (tmp_path / "b" / "scatter.png").exists()


def test_fit_names_where_a_value_is_missing(tmp_path, rows, capsys):
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    lines[6] = ",".join([*lines[6].split(",")[:2], "", *lines[6].split(",")[3:]])
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,b,c,d,e", *lines]))
    out = tmp_path / "out"
    assert run("fit", path, "--components", 2, "--out", out) == 2
    said = one_line(capsys)
    assert "row 7, column 'c'" in said
    assert "--missing" in said
    assert run("fit", path, "--components", 2, "--out", out, "--missing") == 0


@pytest.mark.parametrize("option", [[], ["--missing"]])
def test_fit_names_where_a_value_is_infinite(option, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "1,2\n3,5\n" * 20 + "1,inf\n")
    assert run("fit", path, "--components", 2, "--out", tmp_path / "out", *option) == 2
    assert "row 41, column 'b' is infinite" in one_line(capsys)


def test_a_seed_beyond_32_bits_is_a_bad_argument(table, tmp_path, capsys):
    seed = 2**32
    assert run("fit", table, "--components", 2, "--out", tmp_path / "out", "--seed", seed) == 2
    assert "--seed" in one_line(capsys)


def test_columns_with_commas_in_their_names(tmp_path, rows):
    path = tmp_path / "rows.csv"
    np.savetxt(path, rows, delimiter=",", header='a,"b, in m",c,d,e', comments="")
    arguments = ("--components", 2, "--no-plot", "--columns", '"b, in m",d')
    assert run("fit", path, "--out", tmp_path / "out", *arguments) == 0
    entry = json.loads((tmp_path / "out" / "parameters.json").read_text())
    assert entry["columns"] == ["b, in m", "d"]


def test_a_pipe_is_refused_by_name(tmp_path, capsys):
    os.mkfifo(tmp_path / "rows.csv")
    assert run("fit", tmp_path / "rows.csv", "--components", 2, "--out", tmp_path / "out") == 2
    assert "rows.csv: a pipe" in one_line(capsys)


@pytest.mark.filterwarnings("error")
def test_names_that_the_font_lacks(tmp_path, rows, capsys):
    path = tmp_path / "rows.csv"
    np.savetxt(path, rows[:, :2], delimiter=",", header="長さ,b", comments="", encoding="utf-8")
    assert run("fit", path, "--components", 1, "--out", tmp_path / "out", "--plot") == 0
    assert "Glyph" not in capsys.readouterr().err


def test_fit_names_a_column_that_is_no_number(tmp_path, capsys):
    path = tmp_path / "kinds.csv"
    path.write_text("a,kind\n1,one\n2,two\n3,one\n")
    assert run("fit", path, "--components", 1, "--out", tmp_path / "out") == 2
    assert "line 2, column 'kind': 'one' is not a number" in one_line(capsys)


def test_a_fit_that_is_refused_is_exit_code_1(table, tmp_path, capsys, monkeypatch):
    def refuse(self, X):
        raise ValueError("these rows\ncannot be fitted")

    monkeypatch.setattr("tensoralg.mixtures.DiagonalGaussianMixture.fit", refuse)
    assert run("fit", table, "--components", 2, "--out", tmp_path / "out") == 1
    assert "rows.csv: the fit failed: these rows cannot be fitted" in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_plots_without_matplotlib(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = tmp_path / "out"
    assert run("fit", table, "--components", 2, "--out", out, "--plot") == 2
    assert "tensoralg[plot]" in one_line(capsys)
    assert run("fit", table, "--components", 2, "--out", out) == 0
    assert "tensoralg[plot]" in capsys.readouterr().err
    assert "tensoralg[plot]" in json.loads((out / "parameters.json").read_text())["notes"][0]


def test_info_names_versions_devices_and_solvers(capsys):
    assert run("info") == 0
    printed = capsys.readouterr().out
    for word in ("numpy", np.__version__, "cpu", "generating polynomials", "Clarabel"):
        assert word in printed


def test_help_and_version(capsys):
    for arguments in ([], ["--help"], ["study"], ["study", "run", "--help"]):
        assert main(arguments) == 0
        assert "Usage" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tensoralg.__version__


def test_help_loads_nothing_heavy_and_the_module_is_the_same_program():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['tensoralg', '--version']\n"
        "try:\n"
        "    runpy.run_module('tensoralg', run_name='__main__')\n"
        "except SystemExit as ending:\n"
        "    assert not ending.code\n"
        "heavy = {'sklearn', 'scipy', 'numba', 'matplotlib', 'cvxpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == tensoralg.__version__


def shell(script, folder):
    """Run a shell script in a folder; ``tensoralg`` in it is the program."""
    program = f'set -o pipefail\ntensoralg() {{ "{sys.executable}" -m tensoralg "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", program + script], cwd=folder, capture_output=True, text=True
    )


def test_a_reader_that_has_gone_ends_no_work(spec, tmp_path):
    done = shell("tensoralg study run spec.toml --out out | true", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").exists()
    assert "Traceback" not in done.stderr
    for command in ("tensoralg info | head -c 1", "tensoralg --version >&-"):
        done = shell(command, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("command", ["--version", "info"])
def test_a_full_disk_is_one_line(command, tmp_path):
    done = shell(f"tensoralg {command} > /dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "tensoralg: No space left on device\n"


def test_output_that_knows_ascii_only(tmp_path):
    done = shell("PYTHONIOENCODING=ascii tensoralg info", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "numpy" in done.stdout


def test_the_number_of_components_is_detected(table, tmp_path):
    out = tmp_path / "out"
    assert run("fit", table, "--components", "auto", "--out", out) == 0
    assert "spectrum.png" in (out / "report.md").read_text()
    assert (out / "spectrum.png").exists()
    entry = json.loads((out / "parameters.json").read_text())
    assert entry["n_components"] == entry["diagnostics"]["rank_test"]["rank"] == 2
