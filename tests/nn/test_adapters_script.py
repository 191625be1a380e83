"""The benchmark of adapters in small, on sentences that are made up, and the page's code."""

import importlib
import io
import re
import tarfile
from pathlib import Path

import pytest
import torch

from tensoralg.nn import PELT, EncoderConfig, TransformerClassifier

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks are not installed")
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.nn_adapters")


def made_up(script, count=40):
    """In every domain two classes, told by a token; half of the sentences are for testing."""
    torch.manual_seed(0)
    classes = torch.arange(4 * count) % 2
    lengths = torch.randint(3, 9, (4 * count,))
    tokens = torch.randint(5, 30, (4 * count, 8))
    tokens[:, 1] = 1 + classes
    tokens *= torch.arange(8) < lengths[:, None]
    domains = torch.arange(4 * count) // count
    testing = torch.arange(4 * count) % count >= count // 2
    return script.Sentences(tokens, lengths, classes, domains, testing)


def build():
    config = EncoderConfig(30, 2, hidden=16, heads=2, layers=1, feed_forward=16, positions=8)
    return TransformerClassifier(config)


def test_all_methods_learn_and_the_tables_hold_what_they_did(script, tmp_path, monkeypatch):
    chosen = [
        script.Method("head", PELT(train=("classifier",)), 1e-2),
        script.Method("parts", PELT(2, 2, 2, 2, train=("classifier",)), 1e-2),
        script.Method("all", None, 3e-3),
    ]
    table = script.run(
        2,
        first=0,
        learn=20,
        test=20,
        epochs=12,
        data=made_up(script),
        build=build,
        chosen=chosen,
        folder=tmp_path,
    )
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("it is kept already"))
    again = script.run(
        2, first=0, learn=20, test=20, epochs=12, data=made_up(script), chosen=chosen,
        build=build, folder=tmp_path,
    )  # fmt: skip
    assert again == table
    apart = [float(line.split("|")[2]) for line in table.splitlines() if "against" in line]
    assert max(apart[0], apart[2], apart[3]) < 1e-5
    assert min(apart[1], apart[4]) > 1e-3
    rows = {
        cells[0]: cells[1:]
        for line in table.splitlines()
        if line.startswith("| ") and len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 10
    }
    assert set(rows) == {"trained", "head", "parts", "all"}
    assert rows["head"][0] == "34"
    layer = 2 * (2 * 2 * 16 + 17) + (2 * 2 * 16 + 18 + 17) + (2 * 2 * 16 + 17)
    assert rows["parts"][0] == str(layer + 2 * 16 + 17 + 34)
    assert all(row[7] == "0 of 2" for name, row in rows.items() if name != "trained")
    for name in ("parts", "all"):
        assert float(rows[name][5].strip("*")) > 0.75
        assert float(rows[name][5].strip("*")) == pytest.approx(
            sum(float(x) for x in rows[name][1:5]) / 4, abs=2e-3
        )
    gates = [line for line in table.splitlines() if line.startswith("| mean gate")]
    assert len(gates) == 1  # of the one method that has gates
    assert set(gates[0].split("|")[2:-1]) == {" lora ", " adapter ", " prefix ", " prompt "}


def test_draws_are_balanced_disjoint_and_by_seed(script):
    data = made_up(script)
    learn, test = (script.drawn(data, side, 10, 3) for side in (False, True))
    for found, side in ((learn, False), (test, True)):
        assert len(found.lengths) == 40
        assert (found.testing == side).all()
        for domain in range(4):
            assert found.classes[found.domains == domain].double().mean() == 0.5
    again, other = script.drawn(data, False, 10, 3), script.drawn(data, False, 10, 4)
    assert torch.equal(learn.tokens, again.tokens)
    assert not torch.equal(learn.tokens, other.tokens)
    seen = [tokens for tokens, _, _ in script.Batches(learn, shuffle=True)]
    assert sum(len(tokens) for tokens in seen) == 40


def test_lora_alone_has_as_many_numbers_as_all_parts(script):
    config = EncoderConfig(3, 2, hidden=384, heads=12, layers=6, feed_forward=3)
    numbers = {}
    for method in script.methods():
        if method.config is not None and method.config.methods:
            model = script.adapt(TransformerClassifier(config), method.config)
            numbers[method.name] = script.trainable(model)
    together = numbers["all four parts, gated"]
    assert numbers["LoRA alone"] == pytest.approx(together, rel=0.06)
    assert numbers["all four parts, no gates"] == pytest.approx(together, rel=0.15)


def test_ratings_near_zero_are_left_out_and_reviews_stay_together(script, tmp_path, monkeypatch):
    archive, inner = tmp_path / "vaderSentiment-0.5.tar.gz", io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        for domain in script.DOMAINS:
            suffix = "_GroundTruth.txt" if domain == "tweets" else "Snippets_GroundTruth.txt"
            text = "\n".join(
                f"{review}_{line}\t{rating}\t{domain} {review}"
                for review in range(20)
                for line, rating in enumerate((-2.0, 0.1, 0.7))
            ).encode()
            member = tarfile.TarInfo(f"hutto_ICWSM_2014/{domain}{suffix}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    with tarfile.open(archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
        member.size = len(inner.getvalue())
        tar.addfile(member, io.BytesIO(inner.getvalue()))
    monkeypatch.setenv("TENSORALG_DATA", str(tmp_path))
    texts = []

    def tokenized(found):
        texts.extend(found)
        return torch.ones(len(found), 4, dtype=torch.int64), torch.full((len(found),), 4)

    monkeypatch.setattr(script, "tokenized", tokenized)
    data = script.load_sentences()
    assert len(data.lengths) == 4 * 20 * 2
    assert data.classes.tolist() == [0, 1] * 80
    sides = {}
    for text, side in zip(texts, data.testing.tolist(), strict=True):
        sides.setdefault(text, set()).add(side)
    assert all(len(side) == 1 for side in sides.values())
    assert 0.1 < data.testing.double().mean() < 0.5


def test_the_pages_code_runs_and_its_numbers_are_right(tmp_path, monkeypatch):
    page = ROOT / "docs" / "adapters.md"
    if not page.exists():
        pytest.skip("the documentation is not installed")
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, names)
        for count, total in re.findall(r"# ([\d,]+) of ([\d,]+)", block):
            assert names["trainable"](names["model"]) == int(count.replace(",", ""))
            own = [p for n, p in names["model"].named_parameters() if "pelt_" not in n]
            assert sum(p.numel() for p in own) == int(total.replace(",", ""))
    tokens = torch.tensor([[1, 2, 3]])
    for module in (names["base"], names["other"]):
        module.eval()
    assert torch.equal(names["other"](tokens), names["base"](tokens))


def test_without_its_packages_the_script_says_so(script, monkeypatch):
    monkeypatch.setattr(script, "PACKAGES", ("a_package_that_is_not_there",))
    assert "not measured, a_package_that_is_not_there missing" in script.run()
