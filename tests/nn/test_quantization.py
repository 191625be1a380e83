"""Quantized models: exact storage, errors that are true, ties, trains, sequential inputs."""

import copy
import io
import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tensoralg.core.errors import PersistenceError, ShapeError
from tensoralg.nn import (
    Calibrator,
    QuantizationReport,
    QuantizedConvolution,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedTTLinear,
    TTLinear,
    comq,
    load_quantized,
    prepare_qat,
    quantize,
)
from tensoralg.nn.packed_weight import PackedWeight


def correlated(rows, width, seed=0, shift=0.5):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator) / width**0.5
    return torch.randn(rows, width, generator=generator) @ mix + shift


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 5)
    )


X = correlated(200, 24)


def relative(one, two):
    return float(torch.linalg.norm((one - two).detach()) / torch.linalg.norm(two.detach()))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_reported_errors_are_those_of_the_outputs(bits, symmetric):
    layer = nn.Linear(24, 10)
    calibrator = Calibrator(layer).run([X])
    report = quantize(layer, calibrator, bits, symmetric=symmetric)
    wanted = layer(X).detach() - layer.bias.detach()
    change = report.model(X).detach() - layer(X).detach()
    (row,) = report.rows
    assert row.error == pytest.approx(float(change.norm() / wanted.norm()), rel=1e-3, abs=1e-6)
    assert row.error < row.nearest_error
    # the mean error is the bias's to make up for
    assert float(change.mean(0).norm()) < 1e-4 * float(wanted.norm())


def test_codes_are_those_of_comq_where_the_bias_is_left_alone():
    layer = nn.Linear(24, 10)
    calibrator = Calibrator(layer).run([X])
    report = quantize(layer, calibrator, 3, correct_bias=False, symmetric=True)
    expected = comq(layer.weight, calibrator.gram(""), 3)
    made = report.model
    assert torch.equal(made.packed.codes, expected.codes)
    assert torch.equal(made.weight, expected.dequantize())
    assert torch.equal(made.bias, layer.bias)
    assert report.rows[0].error == pytest.approx(expected.errors[-1], rel=1e-4)


def test_a_model_is_quantized_in_place_and_smaller():
    model = make_mlp()
    before = model(X).detach()
    report = quantize(model, Calibrator(model).run([X]), 4)
    assert report.model is model
    assert all(isinstance(model[k], QuantizedLinear) for k in (0, 2, 4))
    assert relative(model(X), before) < 0.1
    state = model.state_dict()
    held = sum(t.numel() * t.element_size() for n, t in state.items() if not n.endswith("layout"))
    assert report.bytes_after == held
    assert report.bytes_before == sum(4 * p.numel() for p in make_mlp().parameters())
    assert report.bytes_before > 4 * report.bytes_after
    # nothing is left behind on the model
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("group_size", [None, 7])
def test_state_copies_and_files_give_the_same_bit_by_bit(bits, group_size):
    model = make_mlp()
    quantize(model, Calibrator(model).run([X]), bits, group_size=group_size)
    expected = model(X)
    assert torch.equal(copy.deepcopy(model)(X), expected)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert torch.equal(load_quantized(make_mlp(7), state)(X), expected)
    # a quantized model of other bits and groups takes it, too
    other = make_mlp(8)
    quantize(other, Calibrator(other).run([X]), 5, group_size=4)
    other.load_state_dict(state)
    assert torch.equal(other(X), expected)
    assert other[0].packed.bits == bits


def test_a_state_that_does_not_belong_is_refused():
    model = make_mlp()
    quantize(model, Calibrator(model).run([X]), 4)
    state = model.state_dict()
    with pytest.raises(PersistenceError, match="does not belong"):
        load_quantized(nn.Sequential(nn.Linear(24, 9)), state)
    cut = {**state, "0.packed.packed": state["0.packed.packed"][:, :-1]}
    with pytest.raises(PersistenceError, match=r"size mismatch.*packed"):
        load_quantized(make_mlp(), cut)
    with pytest.raises(PersistenceError):
        load_quantized(make_mlp(), {"0.packed.layout": torch.tensor([1, 2])})


def test_layers_move_and_convert():
    model = make_mlp()
    quantize(model, Calibrator(model).run([X]), 4)
    expected = model(X)
    half = copy.deepcopy(model).half()
    assert half[0].packed.packed.dtype == torch.uint8
    assert half[0].packed.scale.dtype == torch.float16
    assert relative(half(X.half()).float(), expected) < 0.02
    double = copy.deepcopy(model).double()
    assert relative(double(X.double()).float(), expected) < 1e-5
    meta = copy.deepcopy(model).to("meta")
    assert meta(X.to("meta")).shape == (200, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(X).dtype == torch.bfloat16
    assert model(X[:0]).shape == (0, 5)
    assert model(X[0]).shape == (5,)
    dense = model[0].to_linear()
    assert torch.equal(dense(X), model[0](X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_layers_keep_their_dtype(dtype):
    model = make_mlp().to(dtype)
    model.append(TTLinear(5, 4, rank=2, dtype=dtype))
    x = X.to(dtype)
    wanted = model(x).detach()
    quantize(model, Calibrator(model).run([x]), {"4": (8, 4), "*": 8})
    assert model(x).dtype == dtype
    assert model[0].packed.scale.dtype == model[0].bias.dtype == dtype
    assert relative(model(x).float(), wanted.float()) < 0.05


def test_gradients_reach_inputs_and_biases_only():
    model = make_mlp()
    model[0].bias.requires_grad_(False)
    quantize(model, Calibrator(model).run([X]), 4)
    x = X.clone().requires_grad_()
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        "2.bias",
        "4.bias",
    ]


def test_a_compiled_graph_takes_a_quantized_model():
    model = make_mlp()
    quantize(model, Calibrator(model).run([X]), 3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), model(X))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        nn.Conv2d(4, 8, 3, padding="same", groups=4, bias=False),
        nn.Conv2d(4, 5, 3, padding=2, padding_mode="reflect"),
        nn.Conv1d(4, 5, 3, padding=1),
        nn.Conv3d(4, 5, (2, 3, 1)),
    ],
)
def test_convolutions_keep_their_geometry(layer):
    torch.manual_seed(0)
    x = torch.randn(6, 4, *[9, 8, 7][: len(layer.kernel_size)]).cumsum(-1)
    calibrator = Calibrator(layer).run([x])
    report = quantize(layer, calibrator, 8)
    made = report.model
    assert isinstance(made, QuantizedConvolution)
    wanted = layer(x).detach()
    assert made(x).shape == wanted.shape
    assert made.weight.shape == layer.weight.shape
    assert relative(made(x).detach(), wanted) < 0.02
    report = quantize(layer, calibrator, 3)
    bias = (
        0 if layer.bias is None else layer.bias.detach().reshape(-1, *[1] * len(layer.kernel_size))
    )
    power = torch.linalg.norm(wanted - bias)
    error = float(torch.linalg.norm(report.model(x).detach() - wanted) / power)
    assert report.rows[0].error == pytest.approx(error, rel=1e-3)
    assert error < report.rows[0].nearest_error


def test_an_embedding_looks_rows_up_without_unpacking_the_rest(monkeypatch):
    torch.manual_seed(0)
    table = nn.Embedding(50, 12, padding_idx=0)
    ids = torch.tensor([[3, 49, 0], [3, 7, 1]])
    report = quantize(table, Calibrator(table).run([ids]), 4)
    made = report.model
    assert isinstance(made, QuantizedEmbedding)
    assert torch.equal(made(ids), made.weight[ids])
    assert not made(torch.tensor([0])).any()
    assert relative(made(ids), table(ids).detach()) == pytest.approx(report.rows[0].error, rel=1e-3)
    sizes = []
    import tensoralg.nn.packed_weight as module

    true = module.unpack_rows
    monkeypatch.setattr(module, "unpack_rows", lambda p, *a: sizes.append(len(p)) or true(p, *a))
    made(ids)
    assert sizes == [6]
    for wrong in (-1, 50):
        with pytest.raises(IndexError):
            made(torch.tensor([wrong]))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.mix(self.table(ids)).tanh())


def test_ties_are_kept_by_identity_in_files_and_copies():
    torch.manual_seed(0)
    model = Tied()
    ids = torch.randint(0, 40, (30, 7))
    expected = model(ids).detach()
    report = quantize(model, Calibrator(model).run([ids]), 8)
    assert model.head.packed is model.table.packed
    assert relative(model(ids), expected) < 0.02
    rows = {row.name: row for row in report.rows}
    assert "has the weight of table" in rows["head"].note
    assert rows["head"].bytes_after == 0
    assert report.bytes_before == 4 * (40 * 16 + 16 * 17 + 40)
    clone = copy.deepcopy(model).half()
    assert clone.head.packed is clone.table.packed
    fresh = load_quantized(Tied(), model.state_dict())
    assert fresh.head.packed is fresh.table.packed
    assert torch.equal(fresh(ids), model(ids))


def test_both_layers_of_a_tie_have_a_say():
    torch.manual_seed(1)
    first, second = nn.Linear(16, 8), nn.Linear(16, 8)
    second.weight = first.weight
    model = nn.ModuleList([first, second])
    one, two = correlated(100, 16, 1), correlated(100, 16, 2)

    def errors(a, b):
        calibrator = Calibrator(model)
        first(a), second(b)
        clone = copy.deepcopy(model)
        report = quantize(clone, calibrator, 2)
        assert clone[0].packed is clone[1].packed
        return [row.error for row in report.rows]

    def own(x):
        layer = copy.deepcopy(first)
        return quantize(layer, Calibrator(layer).run([x]), 2).rows[0].error

    both = errors(one, two)
    assert both[0] >= own(one) * 0.95
    # fitted to one kind of inputs only, the other one's error is larger
    calibrator = Calibrator(model)
    first(one), second(one)
    clone = copy.deepcopy(model)
    quantize(clone, calibrator, 2)
    missed = relative(clone[1](two).detach() - second.bias.detach(),
                      second(two).detach() - second.bias.detach())  # fmt: skip
    assert both[1] < missed


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first

    def forward(self, x):
        return self.again(self.first(x).relu())


def test_a_layer_at_two_places_is_replaced_at_both():
    model = Shared()
    calibrator = Calibrator(model).run([torch.randn(20, 8)])
    assert calibrator.rows("first") == 40
    quantize(model, calibrator, 4)
    assert isinstance(model.first, QuantizedLinear)
    assert model.again is model.first


@pytest.mark.parametrize("modes", [1, 2, 3])
def test_a_tensor_train_keeps_its_form(modes):
    torch.manual_seed(0)
    dense = nn.Linear(24, 30)
    layer = TTLinear.from_linear(dense, rank=6, in_shape=modes, out_shape=modes)
    wanted = layer(X).detach()
    calibrator = Calibrator(layer).run([X])
    errors = []
    for bits in (8, 4, 3):
        report = quantize(layer, calibrator, bits)
        made, (row,) = report.model, report.rows
        assert isinstance(made, QuantizedTTLinear)
        assert made.ranks == layer.ranks
        assert relative(made(X).detach() - layer.bias.detach(), wanted - layer.bias.detach()) == (
            pytest.approx(row.error, rel=1e-2)
        )
        assert row.error < row.nearest_error
        assert row.bytes_after == made.size_bytes < row.bytes_before
        errors.append(row.error)
        fresh = TTLinear(24, 30, rank=2, in_shape=modes, out_shape=modes)
        fresh = load_quantized(fresh, made.state_dict())
        assert torch.equal(fresh(X), made(X))
    assert errors == sorted(errors)
    assert errors[0] < 0.02


def test_padded_modes_of_a_train_do_not_disturb():
    torch.manual_seed(0)
    layer = TTLinear(23, 29, rank=5, in_shape=(4, 6), out_shape=(6, 5))
    x = correlated(100, 23)
    report = quantize(layer, Calibrator(layer).run([x]), 8)
    assert report.rows[0].error < 0.03
    assert report.model(x).shape == (100, 29)


def test_large_inner_cores_are_fitted_without_their_full_form(monkeypatch):
    torch.manual_seed(0)
    layer = TTLinear.from_linear(nn.Linear(24, 24), rank=12, in_shape=3, out_shape=2)
    calibrator = Calibrator(layer).run([X])
    full = quantize(layer, calibrator, 4).rows[0]
    monkeypatch.setattr("tensoralg.nn.train_quantization._LARGEST_FORM", 10)
    short = quantize(layer, calibrator, 4).rows[0]
    assert short.error < short.nearest_error
    assert short.error < 2 * full.error


def test_a_linear_layer_can_become_factors_with_codes():
    torch.manual_seed(0)
    model = make_mlp()
    wanted = model[0](X).detach() - model[0].bias.detach()
    bias = model[0].bias.detach().clone()
    calibrator = Calibrator(model).run([X])
    report = quantize(model, calibrator, {"0": (8, 6), "*": 4})
    made = model[0]
    assert isinstance(made, QuantizedTTLinear)
    assert made.ranks == (1, 6, 1)
    change = made(X).detach() - bias - wanted
    assert report.rows[0].error == pytest.approx(float(change.norm() / wanted.norm()), rel=1e-2)
    assert torch.equal(load_quantized(make_mlp(3), model.state_dict())(X), model(X))
    with pytest.raises(ValueError, match="no linear layer"):
        quantize(nn.Embedding(4, 4), Calibrator(nn.Embedding(4, 4)), (4, 2))


def test_sequential_inputs_make_up_for_the_layers_before():
    model = make_mlp()
    data = list(correlated(3000, 24, 1).split(500))
    test = correlated(500, 24, 1, shift=0.5)
    wanted = model(test).detach()
    errors = {}
    for name, batches in {"parallel": None, "sequential": data}.items():
        clone = copy.deepcopy(model)
        calibrator = Calibrator(clone).run(data)
        report = quantize(clone, calibrator, 3, data=batches)
        errors[name] = relative(clone(test).detach(), wanted)
        assert clone.training
        assert [row.name for row in report.rows] == ["0", "2", "4"]
    assert errors["sequential"] < errors["parallel"]


def test_sequential_errors_are_those_against_the_float_model():
    model = make_mlp()
    clone = copy.deepcopy(model)
    report = quantize(clone, Calibrator(clone), 3, data=[X[:120], X[120:]])
    for k, row in zip((0, 2, 4), report.rows, strict=True):
        wanted = model[: k + 1](X).detach()
        change = clone[: k + 1](X).detach() - wanted
        power = (wanted - model[k].bias.detach()).norm()
        assert row.error == pytest.approx(float(change.norm() / power), rel=1e-3)


def test_sequential_data_must_be_there_more_than_once():
    model = make_mlp()
    with pytest.raises(ValueError, match="more than once"):
        quantize(model, Calibrator(model), 4, data=iter([X]))


def test_a_failure_leaves_the_model_as_it_was():
    model = make_mlp()
    layers = list(model)
    bad = X.clone()
    bad[0, 0] = float("nan")
    calibrator = Calibrator(model).run([X])
    with pytest.raises(ValueError, match=r"'0'.*NaN"):
        quantize(model, calibrator, 4, data=[bad])
    assert all(one is two for one, two in zip(model, layers, strict=True))

    class Stopping:
        calls = 0

        def __iter__(self):
            self.calls += 1
            if self.calls > 3:
                raise KeyboardInterrupt
            return iter([X])

    with pytest.raises(KeyboardInterrupt):
        quantize(model, calibrator, 4, data=Stopping())
    assert all(one is two for one, two in zip(model, layers, strict=True))
    with torch.no_grad():
        model[2].weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"'2'.*finite"):
        quantize(model, calibrator, 4)
    assert all(one is two for one, two in zip(model, layers, strict=True))


def test_layers_without_data_are_named():
    model = nn.ModuleDict({"used": nn.Linear(24, 3), "idle": nn.Linear(24, 3)})
    calibrator = Calibrator(model)
    model["used"](X)
    with pytest.warns(UserWarning, match="never saw data.*: idle"):
        report = quantize(model, calibrator, 4)
    assert report.unseen == ("idle",)
    assert isinstance(model["idle"], QuantizedLinear)
    fresh = make_mlp()
    with pytest.raises(ValueError, match="saw no data"):
        quantize(fresh, Calibrator(fresh), 4)
    assert isinstance(fresh[0], nn.Linear)


def test_a_layer_without_data_is_rounded_by_its_own_error():
    torch.manual_seed(0)
    layer = nn.Linear(24, 3)
    model = nn.ModuleList([layer, nn.Linear(2, 2)])
    calibrator = Calibrator(model)
    model[1](torch.ones(1, 2))
    with pytest.warns(UserWarning, match="never saw"):
        report = quantize(model, calibrator, 3)
    made = model[0]
    assert relative(made.weight, layer.weight.detach()) == pytest.approx(report.rows[0].error, 1e-3)
    assert report.rows[0].error <= report.rows[0].nearest_error
    assert torch.equal(made.bias, layer.bias)
    values = made.packed.scale * (torch.arange(-4, 4)[None] - made.packed.zero_point)
    nearest = (layer.weight[:, :, None] - values[:, None]).abs().argmin(2) - 4
    assert torch.equal(made.packed.codes.long(), nearest)


def test_what_cannot_be_replaced_stays_with_its_reason():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "own": Own(4, 4),
            "hooked": nn.Linear(4, 4),
            "limited": nn.Embedding(4, 4, max_norm=1.0),
            "excluded": nn.Linear(4, 4),
            "kept": nn.Linear(4, 4),
            "attention": nn.MultiheadAttention(4, 2),
            "plain": nn.Linear(4, 4),
        }
    )
    model["loose"] = nn.Linear(4, 4)
    model.register_parameter("mine", model["loose"].weight)
    model["hooked"].register_forward_hook(lambda *a: None)
    prepared = prepare_qat(nn.Linear(4, 4), 4)
    model["prepared"] = prepared
    calibrator = Calibrator(model)
    for name in ("hooked", "excluded", "kept", "plain", "loose"):
        model[name](torch.randn(6, 4))
    bits = {"kept": None, "*": 4}
    report = quantize(model, calibrator, bits, exclude="ex*")
    notes = {row.name: row.note for row in report.rows}
    assert "subclass" in notes["own"]
    assert "hooks" in notes["hooked"]
    assert "max_norm" in notes["limited"]
    assert notes["excluded"] == "excluded"
    assert notes["kept"] == "no bits chosen"
    assert "past the layers" in notes["attention"]
    assert "shares a parameter" in notes["loose"]
    assert "subclass" in notes["prepared"]
    assert {row.name for row in report.rows if row.bits} == {"plain"}
    assert isinstance(model["plain"], QuantizedLinear)
    listened = Calibrator(model, include="kept")
    model["kept"](torch.randn(6, 4))
    report = quantize(model, listened, 4)
    assert {row.name for row in report.rows if row.bits} == {"kept"}
    assert "does not listen" in {row.name: row.note for row in report.rows}["excluded"]


def test_bits_by_patterns():
    model = make_mlp()
    report = quantize(model, Calibrator(model).run([X]), {"4": 8, "[02]": 3})
    assert [row.bits for row in report.rows] == [3, 3, 8]
    assert model[4].packed.bits == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "bits"),
        ({"bits": 9}, "bits"),
        ({"bits": 4.0}, "bits"),
        ({"bits": True}, "bits"),
        ({"bits": {"0": 12}}, "bits"),
        ({"bits": (4, 0)}, "rank"),
        ({"bits": (4, 2, 1)}, "pair"),
        ({"sweeps": -1}, "sweeps"),
        ({"init": "random"}, "init"),
        ({"order": "none"}, "order"),
        ({"scale": "row"}, "scale"),
        ({"group_size": 0}, "group_size"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    model = make_mlp()
    calibrator = Calibrator(model).run([X])
    with pytest.raises((ValueError, TypeError), match=message):
        quantize(model, calibrator, **{"bits": 4, **options})
    assert isinstance(model[0], nn.Linear)


def test_a_calibrator_of_another_model_is_refused():
    calibrator = Calibrator(nn.Sequential(nn.Linear(3, 4))).run([torch.ones(2, 3)])
    with pytest.raises(ShapeError, match=r"'0'"):
        quantize(nn.Sequential(nn.Linear(4, 4)), calibrator, 4)


def test_dead_inputs_and_rank_deficient_data():
    torch.manual_seed(0)
    layer = nn.Linear(12, 5, bias=False)
    with torch.no_grad():
        layer.weight[2] = 0.0
        layer.weight[3] = 0.25
    x = torch.randn(4, 12)  # fewer rows than inputs
    x[:, 5] = 0.0
    report = quantize(layer, Calibrator(layer).run([x]), 3)
    weight = report.model.weight
    assert torch.isfinite(weight).all()
    assert not weight[2].any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zeros = quantize(layer, Calibrator(layer).run([torch.zeros(3, 12)]), 4)
    assert zeros.rows[0].error == 0.0
    assert relative(zeros.model.weight, layer.weight.detach()) < 0.1


def test_weights_on_the_grid_stay():
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(24, 6)
    codes = torch.randint(-8, 8, (6, 24), generator=generator)
    codes[:, 0], codes[:, 1] = -8, 7  # the whole range
    with torch.no_grad():
        layer.weight.copy_(codes * 0.125)
    report = quantize(layer, Calibrator(layer).run([X]), 4)
    assert torch.allclose(report.model.weight, layer.weight, rtol=0, atol=1e-6)
    assert report.rows[0].error < 1e-6


@settings(max_examples=20)
@given(
    st.integers(2, 8),
    st.integers(1, 6),
    st.integers(1, 13),
    st.sampled_from([None, 1, 3, 5]),
    st.booleans(),
    st.integers(0, 99),
)
def test_packing_loses_nothing(bits, rows, columns, group_size, symmetric, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) + 0.3
    gram = torch.eye(columns)
    found = comq(weight, gram, bits, group_size=group_size, symmetric=symmetric)
    packed = PackedWeight.of(found)
    assert torch.equal(packed.codes, found.codes)
    assert torch.equal(packed.dequantize(), found.dequantize())
    ids = torch.randint(0, rows, (4, 2), generator=generator)
    assert torch.equal(packed.lookup(ids), found.dequantize()[ids])
    again = PackedWeight(rows, columns, 2)
    again.load_state_dict(packed.state_dict())
    assert torch.equal(again.dequantize(), found.dequantize())
    assert again.size_bytes == packed.size_bytes


def test_one_scale_for_a_layer_is_stored_once():
    layer = nn.Linear(24, 16)
    report = quantize(layer, Calibrator(layer).run([X]), 4, scale="layer")
    assert report.model.packed.scale.shape == (1, 1)
    assert report.model.packed.size_bytes <= 16 * 12 + 4 + 1


def test_fused_encoders_see_the_codes():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval()
    x = torch.randn(3, 5, 8)
    quantize(model, Calibrator(model).run([x]), 2)
    with torch.no_grad():
        assert torch.allclose(model.eval()(x), model.train()(x), atol=1e-5)


def test_the_report_prints_and_draws():
    model = make_mlp()
    report = quantize(model, Calibrator(model).run([X]), {"0": 4, "2": 3}, progress=True)
    assert isinstance(report, QuantizationReport)
    text = str(report).splitlines()
    assert len(text) == 5
    assert text[0].split()[:3] == ["layer", "kind", "bits"]
    assert "no bits chosen" in text[3]
    assert f"{report.bytes_before:,} -> {report.bytes_after:,}" in text[-1]
    assert report.seconds == sum(row.seconds for row in report.rows) > 0
    pytest.importorskip("matplotlib")
    figure = report.plot()
    left = figure.axes[0]
    drawn = {line.get_label(): line.get_xdata() for line in left.lines}
    rows = [row for row in report.rows if row.bits]
    assert np.allclose(drawn["quantized"], [row.error for row in rows])
    assert np.allclose(drawn["nearest rounding"], [row.nearest_error for row in rows])


def test_rows_of_a_layer_are_problems_of_their_own():
    torch.manual_seed(0)
    layer = nn.Linear(24, 9)
    calibrator = Calibrator(layer).run([X])
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    turned = nn.Linear(24, 9)
    with torch.no_grad():
        turned.weight.copy_(layer.weight[order])
        turned.bias.copy_(layer.bias[order])
    one = quantize(layer, calibrator, 3).model
    two = quantize(turned, calibrator, 3).model
    assert torch.equal(one.packed.codes[order], two.packed.codes)
    assert torch.allclose(one.bias[order], two.bias)


def test_every_combination_of_options_runs():
    layer = nn.Linear(24, 4)
    calibrator = Calibrator(layer).run([X])
    for init, order, scale in itertools.product(
        ("gptq", "nearest"), ("greedy", "cyclic"), ("channel", "layer")
    ):
        row = quantize(layer, calibrator, 4, init=init, order=order, scale=scale).rows[0]
        assert row.error < row.nearest_error
