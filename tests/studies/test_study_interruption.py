"""Real processes, really interrupted and killed; finished cells survive and none is doubled."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tensoralg.cli import main
from tensoralg.studies import load_specification, run_study

CELLS = 60
SPEC = f"""
name = "many tiny cells"
[grid]
dimension = [2]
components = [2]
order = [3]
samples = [60]
separation = [3.0]
seeds = {CELLS}
methods = ["em-truth"]
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def start(spec, out, *options):
    command = [sys.executable, "-m", "tensoralg", "study", "run", str(spec), "--out", str(out)]
    # a process group of its own, as a shell gives it: Ctrl-C reaches every member
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=hear_interruptions,
    )  # fmt: skip


def hear_interruptions():
    # a shell's background jobs ignore SIGINT, and what they start inherits that
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_cells(process, out, count):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        path = out / "cells.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.002)
    pytest.fail("no cells within five minutes")


def check_resumed(spec, out, before):
    """Resume in this process, and compare with what was on the disk before."""
    assert len(run_study(load_specification(spec), out)) == CELLS
    after = (out / "cells.jsonl").read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    assert after.startswith(whole)
    seeds = [json.loads(line)["seed"] for line in after.splitlines()]
    assert sorted(seeds) == list(range(CELLS))


def group_is_gone(group):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "two workers"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_stopped_study_resumes(spec, tmp_path, options, how):
    out = tmp_path / "out"
    process = start(spec, out, *options)
    wait_for_cells(process, out, 5)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), errors
    assert "Traceback" not in errors
    before = (out / "cells.jsonl").read_bytes()
    assert 5 <= before.count(b"\n") < CELLS
    assert group_is_gone(process.pid), "workers outlived the study"
    check_resumed(spec, out, before)


def test_a_folder_in_use_is_refused(spec, tmp_path, capsys):
    out = tmp_path / "out"
    process = start(spec, out)
    try:
        wait_for_cells(process, out, 1)
        assert main(["study", "run", str(spec), "--out", str(out)]) == 2
        assert "another process" in capsys.readouterr().err
    finally:
        process.kill()
        process.communicate()
