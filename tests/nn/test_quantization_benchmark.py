"""The quantization benchmarks in small: real digits, a small encoder, the peers by themselves."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tensoralg.solvers.quantization_grid import minmax_grid

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not installed"
)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module


@pytest.fixture(scope="module")
def digits():
    """A vision transformer that learned the digits of scikit-learn for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        vision = importlib.import_module("benchmarks.quantization_vision")
    data = vision.small_digits(0)
    return vision, data, vision.trained("vision transformer", data, 0, steps=260)


def accuracy(vision, data, model):
    return float((vision.classes(model, data.test_images) == data.test_labels).double().mean())


def test_a_vision_transformer_keeps_its_accuracy_at_four_bits(digits):
    vision, data, model = digits
    before = accuracy(vision, data, model)
    assert before > 0.85
    four = vision.quantized(model, data, 4, "ours")
    assert accuracy(vision, data, four) > before - 0.01
    assert accuracy(vision, data, model) == before  # the model itself stays


def test_at_two_bits_it_answers_like_the_float_model_more_often_than_the_peers(digits):
    vision, data, model = digits
    expected = vision.classes(model, data.test_images)
    same = {}
    for method in vision.METHODS:
        rounded = vision.quantized(model, data, 2, method)
        same[method] = int((vision.classes(rounded, data.test_images) == expected).sum())
    assert same["ours"] > same["GPTQ"] > same["nearest"]


def test_the_vision_table_holds_every_network_and_method(script, monkeypatch):
    vision = script("benchmarks.quantization_vision")
    short = {name: (make, 20, rate) for name, (make, _, rate) in vision.NETWORKS.items()}
    monkeypatch.setattr(vision, "NETWORKS", short)
    monkeypatch.setattr(vision, "BITS", (4,))
    table = vision.run(seeds=1, first_seed=1, data="digits")
    for name in short:
        for method in vision.METHODS:
            assert f"| {name}, {method} | " in table
    assert "in float32, quantized in" in table


def test_codes_are_those_of_the_plain_update_with_rows(script):
    benchmark = script("benchmarks.quantization")
    for seed, bits, order in itertools.product(range(3), (2, 4), benchmark.ORDERS):
        assert benchmark.speed(80, seed, order, size=24, bits=bits).differing == 0
    peers = script("benchmarks.quantization_peers")
    draw = np.random.default_rng(0)
    rows, weight = benchmark.correlated_rows(80, 24, draw), draw.standard_normal((24, 24))
    grid = minmax_grid(weight, 2)
    gram = rows.T @ rows
    moved = grid.dequantize(peers.paper_comq(weight, rows, grid, 4))
    nearest = grid.dequantize(grid.nearest(weight))
    assert peers.output_error(weight, moved, gram) < 0.8 * peers.output_error(weight, nearest, gram)


def test_no_layer_is_worse_than_by_the_peer(script):
    benchmark = script("benchmarks.quantization")
    draw = np.random.default_rng(1)
    results = {}
    for outputs, inputs, tokens in ((20, 32, 100), (12, 48, 30)):  # the second has rank 30
        rows = benchmark.correlated_rows(tokens, inputs, draw)
        weight, gram = draw.standard_normal((outputs, inputs)), rows.T @ rows
        factor = benchmark.gptq_factor(gram)
        for kind in ("symmetric", "asymmetric"):
            for bits in benchmark.BITS:
                errors = benchmark.layer_errors(
                    weight, gram, bits, symmetric=kind == "symmetric", factor=factor
                )
                results.setdefault((kind, bits), []).append(errors)
                assert benchmark.not_above(errors.same_grid, errors.gptq)
                assert benchmark.not_above(errors.ours, errors.gptq)
                assert benchmark.not_above(errors.ours, errors.gptq_there)
                assert errors.gptq < errors.nearest
    lines = benchmark.layer_lines(results)
    assert len(lines) == 2 + 6
    assert all(line.count("2 of 2") == 3 for line in lines[2:])


def test_the_peer_is_the_published_procedure_on_a_small_case(script):
    """Two columns by hand: the second makes up for the rounding of the first."""
    peers = script("benchmarks.quantization_peers")
    weight = np.array([[1.4, 0.3]])
    gram = np.array([[2.0, 1.9], [1.9, 2.0]])
    widest = minmax_grid(np.array([[4.0, -4.0]]), 3)
    unit = type(widest)(np.ones((1, 1)), np.zeros((1, 1), np.int32), 3, 2, 2)
    assert peers.gptq_codes(weight, peers.gptq_factor(gram), unit).tolist() == [[1, 1]]
    assert unit.nearest(weight).tolist() == [[1, 0]]
    searched = peers.searched_grid(np.array([[0.1, -0.1, 0.1, -0.1, 5.0]]), 8, symmetric=True)
    assert searched.scale[0, 0] <= 5.0 / 127.5


def test_a_small_encoder_goes_through_the_script_of_minilm(script, monkeypatch):
    module = script("benchmarks.quantization_minilm")
    from tensoralg.nn import EncoderConfig, TransformerClassifier

    def small():
        torch.manual_seed(0)
        config = EncoderConfig(
            vocabulary=40, classes=1, hidden=16, heads=2, layers=2, feed_forward=32, positions=12
        )
        model = TransformerClassifier(config)
        model.classifier = torch.nn.Identity()
        return model.eval()

    def tokens(texts):
        ids = torch.zeros(len(texts), 12, dtype=torch.int64)
        lengths = torch.tensor([len(text) for text in texts])
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor([1 + ord(letter) % 39 for letter in text])
        return ids, lengths

    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("abcdefghij"), size=draw.integers(3, 12))) for _ in range(80)]
    testing = np.arange(80) % 4 == 0
    monkeypatch.setattr(module, "encoder", small)
    monkeypatch.setattr(module, "tokenized", tokens)
    monkeypatch.setattr(module, "sentences", lambda: (texts, None, testing))
    table = module.run(seeds=1)
    cosines = {}
    for line in table.splitlines():
        name, *cells = line.strip("| ").split(" | ")
        if name in module.METHODS:
            cosines[name] = [float(cell.split()[0]) for cell in cells[::2]]
    assert list(cosines) == list(module.METHODS)
    assert cosines["ours"][0] > 0.99
    assert cosines["ours"][-1] > cosines["nearest"][-1]
    assert "Ours at or above 0.97 / 0.92 / 0.70: 4 bits 1 of 1, 3 bits 1 of 1" in table
