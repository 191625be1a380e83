"""Gram matrices are those of the rows that layers multiply; what they cost, and what is refused."""

import copy
import gc
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import Calibrator, TTLinear, tensorize
from tensoralg.nn.bit_packing import pack_codes, pack_rows, unpack_codes, unpack_rows
from tensoralg.nn.input_statistics import input_sums


def wide_gram(x):
    rows = x.reshape(-1, x.shape[-1]).double()
    return rows.mT @ rows


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.out = nn.Linear(6, 3)

    def forward(self, ids):
        hidden = self.table(ids)
        q, k, v = self.query(hidden), self.key(hidden), self.value(hidden)
        return self.out((q @ k.mT).softmax(-1) @ v)


IDS = torch.tensor([[1, 4, 4, 0], [10, 2, 4, 0]])


def test_sums_are_those_of_all_batches_however_they_are_cut():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 7), nn.Tanh(), nn.Linear(7, 2))  # wider than a block
    x = torch.randn(50, 300)
    with Calibrator(model) as calibrator:
        model(x[:20])
        model(x[20:].reshape(5, 6, 300))
        model(x[:0])
        model[0](input=x[0])  # a vector, as a keyword
    assert calibrator.rows("0") == 51
    expected = wide_gram(torch.cat([x, x[:1]]))
    assert torch.allclose(calibrator.gram("0"), expected, rtol=1e-12, atol=1e-9)
    assert calibrator.gram("0").dtype == torch.float64
    total = torch.cat([x, x[:1]]).double().sum(0)
    assert torch.allclose(calibrator.sums("0").total[0], total, rtol=1e-12, atol=1e-9)
    model(x)  # no longer listened to
    assert calibrator.rows("0") == 51


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
        nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=4),
        nn.Conv2d(4, 5, 3, padding=2, padding_mode="reflect"),
        nn.Conv2d(4, 5, 2, padding="valid", padding_mode="circular"),
        nn.Conv1d(4, 2, 3, padding=1, stride=2),
        nn.Conv3d(4, 2, (2, 1, 3), padding=(0, 1, 1)),
    ],
)
def test_patches_of_a_convolution_are_what_its_kernel_is_multiplied_with(layer):
    torch.manual_seed(1)
    layer = layer.double()
    x = torch.randn(3, 4, *[7, 8, 5][: len(layer.kernel_size)]).double()
    sums = input_sums(layer, x, None)
    output = (layer(x) - layer.bias.reshape(-1, *(1,) * len(layer.kernel_size))).transpose(0, 1)
    weight = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    powers = torch.einsum("gon,gnm,gom->go", weight, sums.gram, weight).reshape(-1)
    assert torch.allclose(powers, output.flatten(1).square().sum(1))
    means = torch.einsum("gon,gn->go", weight, sums.total).reshape(-1)
    assert torch.allclose(means, output.flatten(1).sum(1))
    assert sums.rows == output[0].numel()
    single = input_sums(layer, x[0], None)  # without a batch
    assert torch.allclose(single.gram, input_sums(layer, x[:1], None).gram)


def test_large_batches_are_added_up_in_parts(monkeypatch):
    torch.manual_seed(2)
    x, image = torch.randn(40, 10), torch.randn(9, 2, 5, 5)
    linear, convolution = nn.Linear(10, 2), nn.Conv2d(2, 2, 3)
    whole = [input_sums(linear, x, None), input_sums(convolution, image, None)]
    monkeypatch.setattr("tensoralg.nn.input_statistics._CHUNK", 64)
    parts = [input_sums(linear, x, None), input_sums(convolution, image, None)]
    for one, two in zip(whole, parts, strict=True):
        assert one.rows == two.rows
        assert torch.allclose(one.gram, two.gram)


def test_memory_does_not_depend_on_the_number_of_rows():
    def kept(batches):
        calibrator = Calibrator(model)
        for _ in range(batches):
            model(IDS)
        calibrator.close()
        return sum(
            t.numel()
            for value in calibrator._found.values()
            for t in ([value] if isinstance(value, torch.Tensor) else [value.gram, value.total])
        )

    model = Attention()
    assert kept(1) == kept(20) == 11 + 4 * (36 + 6)


def test_lookups_are_counted():
    model = Attention()
    calibrator = Calibrator(model).run([IDS, {"ids": IDS[:1]}, (IDS[1:],)])
    expected = torch.bincount(IDS.reshape(-1), minlength=11) * 2
    assert torch.equal(calibrator.counts("table"), expected)
    assert torch.equal(calibrator.gram("table"), expected.double())
    assert calibrator.rows("table") == 16
    with pytest.raises(KeyError, match="embedding"):
        calibrator.sums("table")
    with pytest.raises(KeyError, match="no embedding"):
        calibrator.counts("out")
    with pytest.raises(KeyError, match="nothing"):
        calibrator.rows("nothing")


def test_layers_with_one_input_are_found_and_share_the_product(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "tensoralg.nn.calibrator.input_sums", lambda *a: calls.append(1) or input_sums(*a)
    )
    model = Attention()
    calibrator = Calibrator(model).run([IDS, IDS])
    assert calibrator.stages == (("table",), ("query", "key", "value"), ("out",))
    assert calibrator.seen == ("table", "query", "key", "value", "out")
    assert len(calls) == 2 * 2
    assert torch.equal(calibrator.gram("query"), calibrator.gram("value"))
    assert calibrator.gram("query").data_ptr() != calibrator.gram("value").data_ptr()


def test_an_input_that_changed_in_place_is_another_one():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.ModuleList([first, second])
    calibrator = Calibrator(model)
    x = torch.ones(2, 3)
    first(x)
    x.mul_(2)
    second(x)
    assert torch.equal(calibrator.gram("1"), 4 * calibrator.gram("0"))
    assert calibrator.stages == (("0",), ("1",))
    with torch.inference_mode():
        y = torch.ones(2, 3)
        first(y)
        y.mul_(3)
        second(y)
    assert torch.equal(calibrator.gram("1"), torch.full((3, 3), 8.0 + 18.0).double())


def test_layers_that_share_an_input_only_at_times_are_stages_of_their_own():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    calibrator = Calibrator(nn.ModuleList([first, second]))
    x = torch.ones(2, 3)
    first(x), second(x)
    assert calibrator.stages == (("0", "1"),)
    first(x), second(2 * x)
    assert calibrator.stages == (("0",), ("1",))
    assert torch.equal(calibrator.gram("1"), torch.full((3, 3), 10.0).double())


def test_padding_has_no_say():
    model = Attention()
    mask = IDS != 0
    masked = Calibrator(model, mask=lambda batch: batch != 0).run([IDS])
    masked.close()
    by_hand = Calibrator(model)
    with torch.no_grad():
        model.query(model.table(IDS)[mask])
    assert torch.allclose(masked.gram("query"), by_hand.gram("query"))
    assert masked.rows("query") == masked.rows("table") == int(mask.sum())
    assert masked.counts("table")[0] == 0
    # other shapes of the same tokens, and one row for a sentence
    layer = nn.Linear(6, 2)
    calibrator = Calibrator(layer)
    x = torch.randn(2, 4, 6)
    with calibrator.masked(mask):
        layer(x)
        layer(x.reshape(8, 6))
        layer(x[:, :, None].expand(2, 4, 3, 6))
    assert calibrator.rows("") == 5 * int(mask.sum())
    assert torch.allclose(calibrator.gram(""), 5 * wide_gram(x[mask]))
    with calibrator.masked(mask):
        layer(x[:, 0])
    assert calibrator.rows("") == 5 * int(mask.sum()) + 2


def test_nan_in_padding_is_no_input():
    layer = nn.Linear(2, 2)
    calibrator = Calibrator(layer)
    x, mask = torch.ones(1, 2, 2), torch.tensor([[True, False]])
    x[0, 1] = float("nan")
    with calibrator.masked(mask):
        layer(x)
    assert calibrator.rows("") == 1


def test_a_mask_that_does_not_fit_is_refused_by_name():
    model = nn.Sequential(nn.Linear(6, 6), nn.Conv1d(4, 4, 1))
    calibrator = Calibrator(model)
    with calibrator.masked(torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="'0'"):
            model[0](torch.ones(2, 4, 6))
        with pytest.raises(ValueError, match="'1'"):
            model[1](torch.ones(2, 4, 6))
    with pytest.raises(TypeError, match=r"bool.*float32"), calibrator.masked(torch.ones(2, 3)):
        pass


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite_are_refused_with_the_layers_name(value):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    calibrator = Calibrator(model)
    model(torch.ones(4, 3))
    before = calibrator.gram("2").clone()
    with torch.no_grad():
        model[0].bias[1] = value if value == value and value > 0 else float("nan")
    with pytest.raises(ValueError, match="layer '2' has NaN or infinite"):
        model(torch.ones(4, 3))
    assert torch.equal(calibrator.gram("2"), before)
    x = torch.ones(4, 3)
    x[2, 1] = value
    with pytest.raises(ValueError, match="layer '0'"):
        model(x)


def test_layers_that_never_saw_data_are_named():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    calibrator = Calibrator(model)
    model["used"](torch.ones(1, 2))
    assert calibrator.unseen == ("idle",)
    assert calibrator.rows("idle") == 0
    assert not calibrator.gram("idle").any()
    calibrator.reset()
    assert calibrator.unseen == ("used", "idle")


def test_names_can_be_chosen():
    model = Attention()
    calibrator = Calibrator(model, include=("q*", "k*", "o*"), exclude="out")
    assert calibrator.names == ("query", "key")
    with pytest.raises(ValueError, match=r"include='nothing\*'"):
        Calibrator(model, include="nothing*")
    with pytest.raises(ValueError, match="no linear layer"):
        Calibrator(nn.ReLU())


def test_run_leaves_modes_and_gradients_alone():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    model[2].eval()
    x = torch.ones(8, 3)
    calibrator = Calibrator(model).run([x], progress=True)
    assert model.training
    assert not model[2].training
    assert torch.allclose(calibrator.gram("2"), wide_gram(model[0](x).detach()))
    # and gradients flow while somebody listens
    model(x).sum().backward()
    assert model[0].weight.grad is not None
    twice = Calibrator(model, forward=lambda m, batch: (m(batch["x"]), m(batch["x"])))
    assert twice.run([{"x": x}]).rows("0") == 16


def test_half_precision_and_autocast_are_added_up_in_float64():
    torch.manual_seed(3)
    layer = nn.Linear(5, 2).to(torch.bfloat16)
    x = torch.randn(7, 5, dtype=torch.bfloat16)
    calibrator = Calibrator(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    assert torch.equal(calibrator.gram(""), wide_gram(x))


def test_copies_are_not_listened_to_and_a_forgotten_calibrator_leaves_no_hooks():
    model = nn.Sequential(nn.Linear(2, 2))
    calibrator = Calibrator(model)
    clone = copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))(torch.ones(1, 2))
    clone(torch.ones(1, 2))
    assert calibrator.rows("0") == 0
    del calibrator
    gc.collect()
    assert not model[0]._forward_hooks
    with Calibrator(model) as calibrator:
        assert calibrator.listen() is calibrator  # again: no second hook
        assert len(model[0]._forward_hooks) == 1
    assert not model[0]._forward_hooks


def test_a_tensor_train_is_a_linear_layer_and_grams_suit_tensorize():
    torch.manual_seed(4)
    model = nn.Sequential(TTLinear(24, 16, rank=3), nn.Linear(16, 16))
    x = torch.randn(30, 24)
    calibrator = Calibrator(model).run([x])
    assert torch.allclose(calibrator.gram("0"), wide_gram(x))
    assert list(calibrator.grams) == ["1"]
    calibrator.close()
    tensorize(model, rank=4, include="1", grams=calibrator.grams)


def test_a_fused_encoder_layer_is_heard():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    calibrator = Calibrator(model).run([torch.randn(2, 3, 8)])
    assert set(calibrator.seen) == {"linear1", "linear2"}


def test_an_input_of_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"\(\.\.\., 3\)"):
        input_sums(nn.Linear(3, 2), torch.ones(2, 4), None)


@given(st.integers(2, 8), st.integers(0, 5), st.integers(0, 20), st.integers(0, 1000))
def test_packed_codes_come_back(bits, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    codes = torch.randint(low, high + 1, (rows, columns), generator=generator)
    packed = pack_rows(codes, bits)
    assert packed.shape == (rows, -(-columns * bits // 8))
    assert torch.equal(unpack_rows(packed, bits, columns), codes.to(torch.int8))
    flat = pack_codes(codes, bits)
    assert torch.equal(unpack_codes(flat, bits, codes.shape), codes.to(torch.int8))
    # the layout: one stream of bits, the lowest first
    stream = [int(code) >> place & 1 for code in codes.reshape(-1) for place in range(bits)]
    stream += [0] * (-len(stream) % 8)
    octets = [
        sum(b << k for k, b in enumerate(stream[i : i + 8])) for i in range(0, len(stream), 8)
    ]
    assert flat.tolist() == octets


def test_a_number_that_is_no_row_is_not_counted():
    model = nn.Embedding(4, 2)
    calibrator = Calibrator(model)
    with pytest.raises(IndexError):
        model(torch.tensor([4]))
    assert calibrator.rows("") == 0
