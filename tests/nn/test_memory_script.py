"""The benchmark of memories in small, on articles that are made up, and the page's code."""

import importlib
import io
import re
import tarfile
from pathlib import Path

import pytest
import torch
from torch import nn

from tensoralg.nn import EncoderConfig, TransformerClassifier

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks are not installed")
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.nn_memory")
    monkeypatch.setattr(module, "SIZES", (16, 24))
    monkeypatch.setattr(module, "DELAY", 8)
    monkeypatch.setattr(module, "CHUNK", 4)
    return module


def made_up(script):
    torch.manual_seed(0)
    lengths = torch.randint(40, 60, (6,)).tolist()
    begin, end = torch.tensor([script.BEGIN]), torch.tensor([script.END])
    return [torch.cat([begin, torch.randint(1, 100, (n,)), end]) for n in lengths]


def build():
    torch.manual_seed(0)
    config = EncoderConfig(110, 1, hidden=16, heads=2, layers=2, feed_forward=16, positions=64)
    return TransformerClassifier(config).eval()


def test_the_table_holds_every_way_and_what_it_did(script):
    text = script.run(first=0, seeds=2, count=3, model=build(), data={"Made up": made_up(script)})
    assert text.startswith("Made up: 6 articles of ")
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if line.startswith("| ") and len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 4
    }
    assert set(rows) == {"way", "windows alone", "fifo", "lra", "lfa", "no eviction"}
    assert rows["way"][:2] == ["16 slots", "24 slots"]
    for name in ("windows alone", "fifo", "lra", "lfa"):
        for cell in rows[name][:2]:
            mean, least, most = map(float, re.findall(r"-?\d\.\d+", cell))
            assert -1 <= least <= mean <= most <= 1
    whole, streamed = map(float, re.findall(r"\d\.\de[-+]\d\d", text))
    assert max(whole, streamed) < 1e-5


def test_cosines_to_full_attention_are_one_where_nothing_is_lost(script, monkeypatch):
    monkeypatch.setattr(script, "SIZES", (80,))
    monkeypatch.setattr(script, "DELAY", 64)
    monkeypatch.setattr(script, "LONGEST", 80)
    model = build()
    model.classifier = nn.Identity()
    with torch.no_grad():
        results, seconds = script.measure(model, made_up(script), [0, 1], 4)
    assert seconds > 0
    for (name, _), measured in results.items():
        values = torch.tensor(measured.cosines)
        assert values.shape == (2, 4)
        apart = (1 - values).max()
        # a window that holds the whole article is the article
        assert apart < 1e-5, name


def test_windows_are_read_apart_and_weighed_by_their_lengths(script):
    model = build()
    model.classifier = nn.Identity()
    rows = made_up(script)[:2]
    with torch.no_grad():
        found = script.windows_alone(model, rows, 16)
        inner = rows[1][1:-1]
        total = torch.zeros(16)
        for start in range(0, len(inner), 14):
            window = torch.tensor([101, *inner[start : start + 14], 102])
            total += model(window[None])[0] * len(window)
    torch.testing.assert_close(found[1], total, rtol=1e-4, atol=1e-4)


def test_editorials_are_joined_and_kept_on_one_side(script, tmp_path, monkeypatch):
    lines = [f"{a}_{n}\t0.5\tarticle {a} part {n}" for a in range(40) for n in range(3)]
    data, inner = "\n".join(lines).encode(), io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        member = tarfile.TarInfo("hutto_ICWSM_2014/nytEditorialSnippets_GroundTruth.txt")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    with tarfile.open(tmp_path / "vaderSentiment-0.5.tar.gz", mode="w:gz") as tar:
        member = tarfile.TarInfo("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
        member.size = len(inner.getvalue())
        tar.addfile(member, io.BytesIO(inner.getvalue()))
    monkeypatch.setenv("TENSORALG_DATA", str(tmp_path))
    sides = [script.editorial_texts(development=side) for side in (True, False)]
    assert len(sides[0]) + len(sides[1]) == 40
    assert min(map(len, sides)) > 3
    texts = set(sides[0] + sides[1])
    assert texts == {" ".join(f"article {a} part {n}" for n in range(3)) for a in range(40)}


def test_the_code_of_the_page_runs():
    page = ROOT / "docs" / "memory_attention.md"
    if not page.is_file():
        pytest.skip("docs are not installed")
    torch.manual_seed(0)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert names["logits"].shape == (1, 2)
    assert names["positions"][-1] == 999
    assert names["memory"].positions.shape == (1, 4)
    assert names["memory"].positions[0, 1:].tolist() == [9, 10, 11]
