"""The prepared script for a GPU machine runs everywhere: its logic on other array libraries."""

import importlib
import subprocess
import sys
from pathlib import Path

import array_api_strict
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not installed"
)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.gpu_polyadic")
    monkeypatch.setattr(module, "SMALL", (12, 11, 13))
    return module


def test_without_a_gpu_it_says_so_and_succeeds(script):
    if script.find_machine() is not None:
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_polyadic"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [script.NO_DEVICE]
    assert script.run() == script.NO_DEVICE


@pytest.mark.parametrize(
    "xp", [np, pytest.param(array_api_strict, marks=pytest.mark.slow)], ids=["numpy", "strict"]
)
def test_every_check_holds_on_other_array_libraries(script, xp):
    lines, is_right = script.check_lines(script.Machine(xp, "stand-in"))
    assert is_right, "\n".join(lines)
    assert sum("| right |" in line for line in lines) == 18


def test_a_wrong_device_is_noticed(script, monkeypatch):
    right = script.mttkrp

    def wrong(*operands, policy=None):
        return right(*operands, policy=policy) * (1.5 if policy else 1.0)

    monkeypatch.setattr(script, "mttkrp", wrong)
    lines, is_right = script.check_lines(script.Machine(np, "stand-in"))
    assert not is_right
    assert sum("| WRONG |" in line for line in lines) == 7


def test_a_part_that_fails_does_not_hide_the_others(script, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(script, "check_lines", lambda machine: (["checked"], True))
    monkeypatch.setattr(script, "step_lines", fail)
    text, is_right = script.report(script.Machine(np, "stand-in"), 12, 3)
    assert not is_right
    assert "failed: RuntimeError: no memory" in text
    assert "| float8 |" in text
    assert "TensorLy on numpy" in text


def test_parts_beyond_the_budget_are_left_out(script, monkeypatch):
    monkeypatch.setattr(script, "check_lines", lambda machine: (["checked"], True))
    monkeypatch.setattr(script, "BUDGET", -1.0)
    text, is_right = script.report(script.Machine(np, "stand-in"), 12, 3)
    assert is_right
    assert text.count("left out") == 3


def test_steps_are_counted(script):
    lines = script.step_lines(script.Machine(np, "stand-in"), 12, 3)
    rates = [float(line.split("|")[2]) for line in lines[2:]]
    assert len(rates) == 2
    assert min(rates) > 0
