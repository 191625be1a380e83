"""The prepared scripts for a GPU and for long runs work everywhere, on small sizes."""

import importlib
import io
import sys
import tarfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not installed"
)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module


def test_without_a_gpu_the_script_says_so_and_succeeds(script, monkeypatch, capsys):
    module = script("benchmarks.gpu_nn")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_nn"])
    module.main()
    assert capsys.readouterr().out.splitlines() == [module.NO_DEVICE]


def test_its_parts_run_on_the_host(script):
    table = script("benchmarks.gpu_nn").run("cpu", small=True)
    assert "a test of the script" in table
    assert table.count("not measured") == 5
    assert "tensor trains, AdamW" in table


def test_projected_gradients_learn(script):
    module = script("benchmarks.gpu_nn")
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 16)
    x, y = torch.randn(64, 32), torch.randn(64, 16)
    optimizer = module.ProjectedAdam(list(layer.parameters()), rank=4, rate=1e-2)
    losses = []
    for _ in range(60):
        layer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert optimizer.moments[layer.weight][0].shape == (4, 32)


def test_augmented_digits_stay_digits(script):
    module = script("benchmarks.nn_mnist")
    torch.manual_seed(0)
    images = torch.zeros(20, 28, 28)
    images[:, 9:19, 12:16] = 1.0
    moved = module.moved(images.view(20, 784)).view(20, 28, 28)
    assert moved.min() >= 0
    assert moved.max() <= 1
    mass = moved.sum(dim=(1, 2))
    assert ((mass > 0.6 * 40) & (mass < 1.5 * 40)).all()
    place = torch.arange(28.0)
    centres = (moved.sum(dim=2) @ place) / mass
    assert (centres - 13.5).abs().max() < 3.5
    assert centres.std() > 0.3


def archive(texts):
    """The rated sentences as their publisher packs them: a tar file inside a tar file."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        for name, lines in texts.items():
            data = "\n".join(lines).encode()
            member = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return inner.getvalue()


def test_sentences_of_one_review_stay_together(script, tmp_path, monkeypatch):
    texts = {}
    data = script("benchmarks.nn_data")
    for domain in data.DOMAINS:
        suffix = "_GroundTruth.txt" if domain == "tweets" else "Snippets_GroundTruth.txt"
        texts[domain + suffix] = [
            f"{review}_{line}\t0.1\t{domain} {review} {line}"
            for review in range(30)
            for line in range(3)
        ]
    path = tmp_path / "vaderSentiment-0.5.tar.gz"
    packed = archive(texts)
    with tarfile.open(path, mode="w:gz") as tar:
        member = tarfile.TarInfo("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
        member.size = len(packed)
        tar.addfile(member, io.BytesIO(packed))
    monkeypatch.setenv("TENSORALG_DATA", str(tmp_path))
    found, labels, testing = data.sentences()
    assert len(found) == 4 * 90
    assert labels.tolist() == [k for k in range(4) for _ in range(90)]
    assert 0 < testing.mean() < 0.3
    sides = {}
    for text, side in zip(found, testing, strict=True):
        domain, review, _ = text.split()
        sides.setdefault((domain, review), set()).add(bool(side))
    assert all(len(side) == 1 for side in sides.values())


def test_a_student_in_small_is_built_from_its_teacher(script):
    """Names and shapes of the long run, and its loss from the first layer to the last."""
    module = script("benchmarks.nn_sentences")
    from tensoralg.nn import EncoderConfig, TransformerClassifier, export_codes, prepare_qat

    torch.manual_seed(0)
    config = EncoderConfig(
        vocabulary=30, classes=4, hidden=384, heads=12, layers=1, feed_forward=1536, positions=8
    )
    teacher = TransformerClassifier(config)
    student = module.Student(attention=4, feed_forward=4, embedding=4).build(teacher)
    assert torch.equal(student.classifier.weight, teacher.classifier.weight)
    tokens = torch.randint(1, 30, (2, 6))
    batch = (tokens, tokens != 0, torch.tensor([0, 3]))
    prepare_qat(student, 4, sample=batch[:2])
    loss = module.StudentLoss(teacher, 2, 1)
    values = []
    for _ in range(4):
        value = loss(student, batch)
        value.backward()
        values.append(value.item())
    assert values[0] == values[1] < values[2]  # one layer, one layer, all with the classes
    assert loss.state_dict() == {"steps": 4}
    assert export_codes(student).size_bytes < 2e5
