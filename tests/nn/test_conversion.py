"""Conversion of whole models: what is replaced, what stays and why, and the counts."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from tensoralg.nn import (
    ConversionReport,
    TiedOutput,
    TTConvolution,
    TTLinear,
    TTMEmbedding,
    tensorize,
)
from tensoralg.nn.conversion_report import ConversionRow

torch.set_num_threads(1)


class Language(nn.Module):
    """A model whose output layer shares the embedding's table."""

    def __init__(self, tied=True):
        super().__init__()
        self.output = nn.Linear(32, 300)
        self.table = nn.Embedding(300, 32, padding_idx=0)
        self.inner = nn.Linear(32, 32)
        if tied:
            self.output.weight = self.table.weight

    def forward(self, ids):
        return self.output(torch.tanh(self.inner(self.table(ids))))


IDS = torch.tensor([[0, 3, 299], [3, 3, 17]])


def rows(report):
    return {row.name: row for row in report.rows}


def test_the_report_counts_what_is_there():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    before = sum(p.numel() for p in model.parameters())
    converted, report = tensorize(model, rank=4, initial="random", tokens=7)
    assert converted is model
    assert [type(m) for m in model[::2]] == [TTConvolution, TTLinear, TTLinear]
    assert report.parameters_before == before
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    found = rows(report)
    assert set(found) == {"0", "2", "4"}
    assert found["2"].parameters_before == 512 * 256
    assert found["2"].operations_before == 2 * 7 * 512 * 256
    assert found["2"].parameters_after == model[2].compressed_parameters
    assert found["2"].operations_after == model[2].explain(7).route.operations
    assert all(row.converted and row.error is None for row in report.rows)
    text = str(report)
    assert "Conv2d" in text
    assert f"{before:,}" in text
    assert model(torch.zeros(2, 16, 6, 6)).shape == (2, 10)


@pytest.mark.parametrize(
    ("converted", "parameters", "operations", "tokens", "message"),
    [
        (True, (100, 50), (300, 100), 7, "2x smaller, 3x fewer operations for 7 tokens"),
        (True, (100, 200), (90, 100), 1, "2x larger, 1.11x more operations for 1 token"),
        (True, (100, 100), (9999, 10000), 2, "of the same size, as many operations for 2 tokens"),
        (False, (100, 100), (30, 30), 1, "nothing converted"),
    ],
)
def test_the_last_line_says_what_was_gained_or_lost(
    converted, parameters, operations, tokens, message
):
    row = ConversionRow("head", "Linear", converted, *parameters, *operations, None, "")
    last = str(ConversionReport((row,), tokens, *parameters)).splitlines()[-1]
    assert last.endswith("  " + message)


def test_a_model_with_nothing_to_convert_says_so():
    _, report = tensorize(nn.Sequential(nn.ReLU()), rank=2)
    assert str(report).endswith("nothing converted")


def test_the_errors_are_those_of_the_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64).eval())
    weights = [layer.weight.detach().clone() for layer in model]
    biases = [layer.bias.detach().clone() for layer in model]
    _, report = tensorize(model, rank=8)
    for row, layer, weight, bias in zip(report.rows, model, weights, biases, strict=True):
        error = torch.linalg.norm(layer.weight - weight) / torch.linalg.norm(weight)
        assert row.error == pytest.approx(float(error.detach()), rel=1e-4)
        assert torch.equal(layer.bias, bias)
    assert [layer.training for layer in model] == [True, False]


def test_a_gram_matrix_reaches_its_layer():
    torch.manual_seed(0)
    x = torch.randn(200, 64) * torch.logspace(0, -3, 64)
    layer = nn.Linear(64, 64)
    plain, aware = (
        tensorize(nn.Sequential(layer), rank=12, grams=grams).model[0]
        for grams in ({}, {"0": x.T @ x})
    )
    errors = [float(torch.linalg.norm((m(x) - layer(x)).detach())) for m in (plain, aware)]
    assert errors[1] < 0.8 * errors[0]
    with pytest.raises(ValueError, match=r"grams.*\['1'\]"):
        tensorize(nn.Sequential(layer), rank=12, grams={"1": x.T @ x})


def test_a_layer_for_which_factors_cannot_pay_stays():
    model = nn.Sequential(small := nn.Linear(4, 4), large := nn.Linear(256, 256))
    _, report = tensorize(model, rank=16, initial="random")
    assert model[0] is small
    assert model[1] is not large
    assert rows(report)["0"].reason == "factors cannot pay"
    assert rows(report)["0"].parameters_after == 16
    random = nn.Sequential(nn.Linear(64, 64))
    assert tensorize(random, rtol=1e-6).model is random
    assert type(random[0]) is nn.Linear  # a random matrix has no structure


def test_patterns_and_functions_choose():
    def fresh():
        return nn.ModuleDict({"a": nn.Linear(256, 256), "b": nn.Linear(256, 256)})

    for options, converted in (
        ({"include": "a*"}, {"a"}),
        ({"exclude": ["a", "c"]}, {"b"}),
        ({"include": lambda name, layer: name == "b" and layer.in_features == 256}, {"b"}),
        ({}, {"a", "b"}),
    ):
        model, report = tensorize(fresh(), rank=4, initial="random", **options)
        assert {name for name, m in model.items() if isinstance(m, TTLinear)} == converted
        assert {row.name for row in report.rows if row.converted} == converted
        assert all(row.reason == "excluded" for row in report.rows if not row.converted)


def test_a_model_that_is_a_layer_and_a_layer_in_two_places():
    model, report = tensorize(nn.Linear(256, 256), rank=4, initial="random")
    assert isinstance(model, TTLinear)
    assert "(the model)" in str(report)
    shared = nn.Linear(256, 256)
    twice = nn.Sequential(shared, nn.ReLU(), shared)
    tensorize(twice, rank=4, initial="random")
    assert twice[0] is twice[2]
    assert isinstance(twice[0], TTLinear)


def test_a_tie_is_kept_by_identity():
    torch.manual_seed(0)
    model = Language()
    dense = model.table.weight.detach().clone()
    _, report = tensorize(model, rtol=0.9)
    assert isinstance(model.table, TTMEmbedding)
    assert isinstance(model.output, TiedOutput)
    assert model.output.embedding is model.table
    costs = model.output.explain(512).route.operations
    assert rows(report)["output"].operations_after == costs
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == len(set(names))
    assert sum(p.numel() for p in model.parameters()) == report.parameters_after
    assert torch.linalg.norm(model.table.weight - dense) <= 0.9 * torch.linalg.norm(dense)
    x = torch.randn(5, 32)
    logits = x @ model.table.weight.T + model.output.bias
    assert torch.allclose(model.output(x), logits, atol=1e-5)
    model(IDS).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(model.output.weight, model.table.weight)
            logits = x @ model.table.weight.T + model.output.bias
            assert torch.allclose(model.output(x), logits, atol=1e-5)
            model.table.cores[0].mul_(2.0)


def test_a_tie_is_undone_on_request():
    model = Language()
    tensorize(model, rank=4, initial="random", ties="untie")
    assert isinstance(model.output, TTLinear)
    assert isinstance(model.table, TTMEmbedding)
    assert not {id(p) for p in model.output.parameters()} & {
        id(p) for p in model.table.parameters()
    }


def test_where_one_end_of_a_tie_stays_both_do():
    for options in ({"exclude": "output"}, {"exclude": "table"}):
        model = Language()
        _, report = tensorize(model, rank=4, initial="random", **options)
        assert model.output.weight is model.table.weight
        assert isinstance(model.inner, TTLinear)
        assert any("shares a parameter" in row.reason for row in report.rows)
    two = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 256)])
    two[1].weight = two[0].weight
    _, report = tensorize(two, rank=4, initial="random")
    assert two[0].weight is two[1].weight
    assert all("another module" in row.reason for row in report.rows)


def test_what_would_lose_something_stays():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked = nn.Linear(256, 256)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.ModuleDict(
        {
            "subclass": Scaled(256, 256),
            "hooked": hooked,
            "grouped": nn.Conv2d(64, 64, 3, groups=2),
            "normed": nn.Embedding(300, 64, max_norm=1.0),
            "attention": nn.MultiheadAttention(256, 4),
        }
    )
    before = list(model.modules())
    _, report = tensorize(model, rank=4, initial="random")
    assert [id(m) for m in model.modules()] == [id(m) for m in before]
    found = rows(report)
    assert "subclass" in found["subclass"].reason
    assert "hooks" in found["hooked"].reason
    assert "group" in found["grouped"].reason
    assert "max_norm" in found["normed"].reason
    assert "subclass" in found["attention.out_proj"].reason


def test_frozen_layers_stay_frozen():
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    model[0].weight.requires_grad_(False)
    tensorize(model, rank=4)
    assert not any(core.requires_grad for core in model[0].cores)
    assert model[0].bias.requires_grad
    assert all(p.requires_grad for p in model[1].parameters())


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_of_torch_runs_with_converted_layers(training):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    x = torch.randn(2, 5, 64)
    tensorize(encoder, rank=8, initial="random")
    assert isinstance(encoder.linear1, TTLinear)
    expected = encoder(x)
    encoder.train(training)
    with torch.no_grad():  # in eval mode torch's fused path reads the weights themselves
        assert torch.allclose(encoder(x), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "rank or rtol"),
        ({"rank": 4, "initial": "zeros"}, "initial"),
        ({"rank": 4, "ties": "cut"}, "ties"),
        ({"rank": 0}, "rank"),
        ({"rank": 4, "tokens": 0}, "tokens"),
    ],
)
def test_bad_options_are_named_and_change_nothing(options, message):
    model = nn.Sequential(layer := nn.Linear(256, 256))
    with pytest.raises(ValueError, match=message):
        tensorize(model, **options)
    assert model[0] is layer


def test_without_torch_the_message_names_the_extra():
    code = (
        "import sys, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "import tensoralg\n"
        "try:\n"
        "    import tensoralg.nn\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "pip install 'tensoralg[nn]'" in result.stdout


def test_the_package_is_light_and_its_names_resolve():
    code = "import sys, tensoralg.nn; dir(tensoralg.nn); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    import tensoralg.nn

    for name in tensoralg.nn.__all__:
        assert getattr(tensoralg.nn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Linear'"):
        tensoralg.nn.Linear  # noqa: B018


def test_a_layer_of_unknown_size_stays():
    model = nn.Sequential(lazy := nn.LazyLinear(4), nn.Linear(256, 256))
    _, report = tensorize(model, rank=4)
    assert model[0] is lazy
    assert "not known" in rows(report)["0"].reason
    assert rows(report)["1"].converted


@pytest.mark.parametrize("zero", [True, False])
def test_a_padding_row_that_was_not_zero_is_reported(zero):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 16, padding_idx=3))
    if not zero:
        with torch.no_grad():
            model[0].weight[3] = 1.0
    converted, report = tensorize(model, rank=4)
    assert not converted[0](torch.tensor([3])).any()
    assert ("padding row" in str(report)) is not zero


@pytest.mark.parametrize("layer", [nn.Linear(64, 64), nn.Embedding(64, 64), nn.Conv2d(64, 64, 3)])
def test_a_weight_that_is_not_finite_is_named(layer):
    with torch.no_grad():
        layer.weight.view(-1)[3] = float("nan")
    model = nn.Sequential(nn.Linear(64, 64), nn.ModuleDict({"inner": layer}))
    before = list(model.modules())
    with pytest.raises(ValueError, match=r"layer '1\.inner': .* must be finite"):
        tensorize(model, rank=4)
    assert list(model.modules()) == before
    report = tensorize(model, rank=4, initial="random").report
    assert all(row.converted for row in report.rows)
