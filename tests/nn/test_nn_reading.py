"""The benchmark of reading in small: made-up leads, words as tokens, counts as embeddings."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tensoralg.nn import ReadingTrace, ReadWindow

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not installed"
)
VOCABULARY = 400


@pytest.fixture
def reading(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.nn_reading")


def tokenize(text):
    """Words w0 .. w399, separated by blanks."""
    ids, spans, place = [], [], 0
    for word in text.split(" "):
        ids.append(int(word[1:]))
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return ids, spans


def encode(rows):
    """Counts of words, of length 1: windows about the same subject are alike."""
    counts = torch.stack([torch.bincount(row, minlength=VOCABULARY) for row in rows]).double()
    return torch.nn.functional.normalize(counts, dim=1)


def stand_ins(reading, count=60):
    """Leads of 40 words, half of them of four that belong to the subject."""
    rng = np.random.default_rng(0)
    found = []
    for subject in range(count):
        own = 100 + 4 * subject + rng.integers(4, size=40)
        words = np.where(rng.random(40) < 0.5, own, rng.integers(100, size=40))
        about = " ".join(f"w{100 + 4 * subject + k}" for k in range(4))
        found.append(reading.Lead(f"subject {subject}", about, " ".join(f"w{w}" for w in words)))
    return found


@pytest.fixture
def results(reading, monkeypatch):
    monkeypatch.setattr(reading, "LEADS", 30)
    monkeypatch.setattr(reading, "MESSAGES", 8)
    monkeypatch.setattr(reading, "QUESTIONS", {1: 4, 3: 2})
    monkeypatch.setattr(reading, "WINDOWS", (8, 12))
    monkeypatch.setitem(reading.TABLES, "skip", ("Questions", "questions", (1, 3), (0.2, 0.45)))
    monkeypatch.setitem(reading.TABLES, "return", ("Back", "questions", (1, 3), (0.2, 0.45)))
    return reading.measure(stand_ins(reading), tokenize, encode, range(2))


def test_skips_find_what_was_asked_for(reading, results):
    for count in (1, 3):
        for alpha in reading.QUESTION_ALPHAS:
            read, score, uniform, gain, _ = results.row(("skip", count, 8, alpha))
            assert 0.15 < read < 0.9
            assert abs(uniform - read) < 0.25
            assert gain == pytest.approx(score - uniform)
        # subjects share no words here: the losses say exactly where to stay
        assert results.row(("return", count, 8, 0.2))[3] > 0.2
        assert results.row(("return", count, 8, 0.2))[3] > results.row(("mixed", count, 8, 0.2))[3]


def test_the_tables_are_complete(reading, results):
    text = reading.table(results)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    threads = len(reading.DEPTHS) * 2 * len(reading.THREAD_ALPHAS)
    assert len(rows) == 3 + 2 * (2 * 2 * 2) + threads
    assert "nan" not in text
    assert f"of {threads}" in text


def test_uniform_windows_are_even_and_do_not_meet(reading):
    read = reading.uniformly_read(100, 5, 10, 0.5)
    assert np.flatnonzero(read).tolist() == [10 * k + 5 + j for k in range(10) for j in range(5)]
    for offset in (0.0, 0.3, 0.99):
        assert reading.uniformly_read(103, 7, 9, offset).sum() == 63
        assert reading.uniformly_read(20, 5, 4, offset).all()


def test_reads_are_counted_by_tokens(reading):
    trace = ReadingTrace(10, [ReadWindow(0, 4, 0.1, 2), ReadWindow(6, 10, 0.1, 0)])
    assert reading.marked(trace).tolist() == [True] * 4 + [False] * 2 + [True] * 4


def test_a_thread_quotes(reading):
    assert reading.thread("abcd", 1) == [0, 1, 0, 2, 1, 3, 2]
    assert reading.thread("abcd", 2) == [0, 1, 0, 2, 1, 0, 3, 2, 1]


def test_the_model_of_words_is_a_distribution_and_learns(reading):
    model = reading.NGramModel(5)
    before = model.losses([0, 1, 2, 3])
    assert before == pytest.approx([math.log(5)] * 4)
    model.learn([0, 1, 2, 3])
    model.learn([0, 1, 4])
    for context in ([], [0], [0, 1], [3]):
        total = sum(math.exp(-model.losses([*context, token])[-1]) for token in range(5))
        assert total == pytest.approx(1.0)
    after = model.losses([0, 1, 2, 3])
    assert all(a < b for a, b in zip(after, before, strict=True))
    # by hand: 1 was the only word after 0, twice; 2 of 7 words were 1, of 5 kinds
    unigram = (2 + 5 / 5) / (7 + 5)
    assert after[1] == pytest.approx(-math.log((2 + 1 * unigram) / (2 + 1)))


def test_sides_do_not_share_articles(reading, monkeypatch, tmp_path):
    import json

    folder = tmp_path / "data"
    folder.mkdir()
    entries = {
        f"Article {k}": {
            "title": f"Article {k}",
            "description": f"thing number {k}" if k % 10 else "a common thing",
            "extract": "word " * (60 if k % 7 else 10),
        }
        for k in range(200)
    }
    (folder / "summaries_en-us.json").write_text(json.dumps(entries))
    monkeypatch.setattr(reading, "package_folder", lambda name: tmp_path)
    sides = [reading.leads(development=side) for side in (True, False)]
    titles = [{lead.title for lead in side} for side in sides]
    assert not titles[0] & titles[1]
    expected = {f"Article {k}" for k in range(200) if k % 10 and k % 7}
    assert titles[0] | titles[1] == expected
    assert 0.1 < len(titles[0]) / len(expected) < 0.4
