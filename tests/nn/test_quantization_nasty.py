"""Calibration and quantization given what users do give: odd data, names, dtypes and loops."""

import numpy as np
import pytest
import torch
from torch import nn

from tensoralg.nn import Calibrator, allocate_bits, comq, quantize
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.sequential_inputs import MatchedInputs


def steps_missed(layer, wanted):
    """Largest error of a weight in steps of its grid."""
    return float(((layer.weight - wanted).abs() / layer.packed.scale).max())


@pytest.mark.parametrize("batches", [1, 1000])
def test_one_row_again_and_again_says_nothing_beyond_the_mean(batches):
    torch.manual_seed(0)
    layer = nn.Linear(32, 4)
    wanted, x = layer.weight.detach().clone(), torch.randn(1, 32)
    calibrator = Calibrator(layer)
    for _ in range(batches):
        calibrator.run([x])
    made = quantize(layer, calibrator, 4).model
    assert steps_missed(made, wanted) < 1.0  # codes fitted to rounding errors miss by many
    torch.testing.assert_close(made(x), layer(x))


def test_an_input_that_hardly_varies_does_not_follow_rounding_errors():
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 8), torch.randn(3000, 16)
    x[:, 3] = 1000.3
    wanted = layer.weight.detach().clone()
    made = quantize(layer, Calibrator(layer).run([x]), 3).model
    assert steps_missed(made, wanted) < 3.0
    column = (made.weight - wanted).abs()[:, 3] / made.packed.scale[:, 0]
    assert float(column.median()) <= 0.51


def test_sums_of_inference_mode_and_of_others_are_added_up():
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    ids = torch.tensor([0, 1, 1])
    with Calibrator(model) as calibrator:
        for mode in (True, False, True):
            with torch.inference_mode(mode):
                model(ids)
    assert calibrator.rows("1") == 9
    assert calibrator.counts("0").tolist() == [3, 6, 0, 0]


def test_memory_shared_with_numpy_may_change_between_calls():
    values = np.ones((4, 3), dtype=np.float32)
    x, query, key = torch.from_numpy(values), nn.Linear(3, 2), nn.Linear(3, 2)
    model = nn.ModuleList([query, key])
    with Calibrator(model) as calibrator:
        for factor in (1.0, 2.0):
            values[:] = factor
            query(x), key(x)
    for name in ("0", "1"):
        assert calibrator.gram(name)[0, 0] == 4 + 16


def test_masks_of_one_tensor_are_told_apart():
    layer, x = nn.Linear(3, 2), torch.ones(2, 4, 3)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    model = nn.ModuleList([layer, nn.Linear(3, 2)])
    with Calibrator(model) as calibrator, calibrator.masked(mask):
        layer(x)
        mask[0] = True
        model[1](x)
    assert [calibrator.rows(name) for name in ("0", "1")] == [0, 4]


def test_names_may_come_from_an_iterator():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3), nn.Linear(3, 2))
    calibrator = Calibrator(model, include=(name for name in ("2", "0")))
    assert calibrator.names == ("0", "2")
    calibrator.run([torch.randn(9, 3)])
    report = quantize(model, calibrator, 4, include=(name for name in ("2", "0")))
    assert [row.bits for row in report.rows] == [4, None, 4]


def test_lookups_of_nothing_are_no_data():
    model = nn.Sequential(nn.Embedding(4, 3))
    calibrator = Calibrator(model).run([torch.zeros(0, dtype=torch.int64)])
    assert (calibrator.seen, calibrator.unseen) == ((), ("0",))
    with pytest.raises(ValueError, match="saw no data"):
        quantize(model, calibrator, 4)


@pytest.mark.parametrize("nested", [True, False])
def test_padded_batches_of_an_encoder(nested):
    torch.manual_seed(0)
    part = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(part, 2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad():
        wanted = encoder(x, src_key_padding_mask=padding)[1:]
    calibrator = Calibrator(
        encoder,
        forward=lambda model, batch: model(batch[0], src_key_padding_mask=batch[1]),
        mask=lambda batch: ~batch[1],
    )
    calibrator.run([(x, padding)])
    assert calibrator.rows("layers.0.linear1") == 13
    calibrator.close()
    assert encoder.use_nested_tensor == nested
    quantize(encoder, calibrator, 8, data=[(x, padding)])
    with torch.no_grad():
        found = encoder(x, src_key_padding_mask=padding)[1:]
    assert float((found - wanted).norm() / wanted.norm()) < 0.01


class Loop(nn.Module):
    """Calls its layer as often as it is told."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x, times):
        for _ in range(times):
            x = torch.tanh(self.step(x))
        return x


def test_sequential_inputs_of_a_layer_that_is_called_now_once_now_often():
    model, data = Loop(), [(torch.randn(5, 4), times) for times in (1, 3, 2)]
    calibrator = Calibrator(model).run(data)
    calibrator.close()  # as `quantize` does: it would hear the passes, too
    moments = MatchedInputs(model, calibrator, data).moments("step")
    assert moments.rows == calibrator.rows("step") == 30
    torch.testing.assert_close(moments.wanted[0], calibrator.gram("step"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_errors_in_half_precision_are_those_of_what_is_stored(dtype, size):
    torch.manual_seed(0)
    layer = nn.Linear(64, 32, bias=False)
    layer.weight.data *= 8.0 * size
    layer, x = layer.to(dtype), torch.randn(200, 64).to(dtype)
    report = quantize(layer, Calibrator(layer).run([x]), 8)
    wanted = x.double() @ layer.weight.double().mT
    found = x.double() @ report.model.weight.double().mT
    error = float((found - wanted).norm() / wanted.norm())
    assert report.rows[0].error == pytest.approx(error, rel=1e-3)


def test_steps_are_not_rounded_to_the_dtype_of_a_weight_too_coarse_for_them():
    torch.manual_seed(0)
    weight = (torch.randn(8, 16) * 1e-5).half()
    found = comq(weight, torch.eye(16), 8)
    error = (found.dequantize().double() - weight.double()).norm() / weight.double().norm()
    assert float(error) == pytest.approx(found.errors[-1], rel=1e-3)
    whole = comq(torch.tensor([[30, -10, 4]]), torch.eye(3), 4)
    assert float((whole.dequantize() - torch.tensor([[30, -10, 4]])).abs().max()) < 2.5


def test_numbers_of_bits_of_numpy():
    assert type(comq(torch.randn(2, 3), torch.eye(3), np.int64(4)).bits) is int
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    calibrator = Calibrator(model).run([torch.randn(30, 16)])
    found = allocate_bits(model, calibrator, 700, choices=np.array([2, 4]))
    report = quantize(model, calibrator, {"0": np.int8(4), "1": (np.int64(3), np.int64(2))})
    assert {type(one.bits) for ways in found.candidates.values() for one in ways} == {int}
    assert [row.bits for row in report.rows] == [4, 3]
    with pytest.raises(ValueError, match=r"bits must be an integer from 2 to 8; got 4\.0"):
        PackedWeight(2, 2, 4.0)


def test_a_quantization_of_nothing_is_refused():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))
    calibrator = Calibrator(model).run([torch.randn(9, 3)])
    for options, words in (
        ({"bits": {"head": 4}}, "head"),
        ({"bits": 4, "include": "head"}, "'0': excluded"),
        ({"bits": {"0": 4}, "exclude": "0"}, "'1': no bits chosen"),
    ):
        with pytest.raises(ValueError, match=words):
            quantize(model, calibrator, **options)
    assert [row.bits for row in quantize(model, calibrator, None).rows] == [None, None]
    quantize(model, calibrator, 4)
    with pytest.raises(ValueError, match="none any more"):
        quantize(model, calibrator, 4)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_importance_must_be_numbers_that_can_be_weighed(value):
    model = nn.Sequential(nn.Linear(8, 8))
    calibrator = Calibrator(model).run([torch.randn(9, 8)])
    with pytest.raises(ValueError, match="importance"):
        allocate_bits(model, calibrator, 10_000, importance={"0": value})
