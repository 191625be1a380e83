"""Quantizers on whole models; the exported codes compute what the prepared model computed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tensoralg.core.errors import PersistenceError
from tensoralg.nn import (
    CodedModel,
    FakeQuantize,
    RankScheduler,
    TTLinear,
    TTMEmbedding,
    export_codes,
    prepare_qat,
)
from tensoralg.nn.training import fit


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        TTMEmbedding(30, 24, rank=6, row_shape=(5, 6), column_shape=(4, 6)),
        TTLinear(24, 24, rank=8, in_shape=(4, 6), out_shape=(6, 4)),
        nn.Tanh(),
        nn.Linear(24, 3),
    )


IDS = torch.tensor([[0, 4, 29], [7, 7, 12]])


def by_hand(coded, x):
    """The linear layer alone, from integers and scales, in numpy."""
    cores = [
        coded.codes[f"cores.{k}"].codes.numpy().astype(np.float64)
        * float(coded.codes[f"cores.{k}"].scale)
        for k in range(4)
    ]
    weight = np.einsum("xar,rbs,sct,tdy->abcd", *cores).reshape(24, 24)
    return x.numpy() @ weight + coded.rest["bias"].numpy()


def test_codes_times_scales_reproduce_the_layer():
    torch.manual_seed(0)
    layer = prepare_qat(
        TTLinear(24, 24, rank=8, in_shape=(4, 6), out_shape=(6, 4)), 4, activation_bits=None
    )
    x = torch.randn(5, 24)
    coded = export_codes(layer)
    assert all(c.codes.dtype == torch.int8 for c in coded.codes.values())
    assert all(int(c.codes.abs().max()) <= 8 for c in coded.codes.values())
    assert np.allclose(layer(x).detach().numpy(), by_hand(coded, x), atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_an_exported_model_computes_the_same_bit_by_bit(tmp_path, bits):
    model = prepare_qat(make_model(), bits, sample=(IDS,)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(IDS).reshape(-1, 3), IDS.reshape(-1) % 3).backward()
        optimizer.step()
    model.eval()
    expected = model(IDS)
    export_codes(model).save(tmp_path / "model.pt")
    coded = CodedModel.load(tmp_path / "model.pt")
    again = prepare_qat(make_model(seed=5), bits).eval()
    again.load_state_dict(coded.state_dict())
    assert torch.equal(again(IDS), expected)
    # ranks, too, may be other ones
    torch.manual_seed(1)
    other = make_model()
    RankScheduler(other, target_parameters=400).step()
    other = prepare_qat(other, bits).eval()
    other.load_state_dict(coded.state_dict())
    assert torch.equal(other(IDS), expected)


def test_a_plain_model_takes_the_weights_on_the_grid():
    model = prepare_qat(make_model(), 4, activation_bits=None).eval()
    plain = make_model(seed=3).eval()
    plain.load_state_dict(export_codes(model).plain_state_dict())
    assert torch.allclose(plain(IDS), model(IDS), atol=1e-5)
    assert len(torch.unique(plain[1].cores[0])) <= 16


def test_every_part_of_a_layer_is_quantized():
    model = prepare_qat(make_model(), 4, sample=(IDS,)).eval()
    linear, embedding = model[1], model[0]
    assert set(linear.quantizers) == {f"core_{k}" for k in range(4)} | {
        "input", "left", "right", "hidden", "output",
    }  # fmt: skip
    assert set(embedding.quantizers) == {"core_0", "core_1", "left", "right", "output"}
    assert all(q.ready for q in model.modules() if isinstance(q, FakeQuantize))
    seen = {}
    for name, quantizer in linear.quantizers.items():
        quantizer.register_forward_hook(lambda m, i, out, name=name: seen.update({name: out}))
    output = model[:2](IDS)
    assert set(seen) == set(linear.quantizers)
    for name, value in seen.items():
        levels = len(torch.unique(value))
        assert levels <= (16 if name.startswith("core") else 256)
    assert torch.equal(output, seen["output"])


def test_all_parameters_and_scales_learn():
    model = prepare_qat(make_model(), 4, sample=(IDS,)).train()
    functional.cross_entropy(model(IDS).reshape(-1, 3), IDS.reshape(-1) % 3).backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_training_in_three_bits_beats_rounding_afterwards():
    torch.manual_seed(0)
    target = TTLinear(24, 24, rank=4, in_shape=(4, 6), out_shape=(6, 4)).to_linear()
    data = [(x, target(x).detach()) for x in torch.randn(12, 32, 24)]

    def error(model, batch):
        return functional.mse_loss(model(batch[0]), batch[1])

    student = TTLinear.from_linear(target, rank=6, in_shape=(4, 6), out_shape=(6, 4))
    model = prepare_qat(student, 3, activation_bits=8, sample=(data[0][0],))

    def whole():
        return sum(error(model, batch).item() for batch in data)

    before = whole()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
    fit(model, data, optimizer, epochs=20, loss=error, schedule=schedule)
    assert whole() < 0.8 * before


def test_tied_dense_weights_keep_one_quantizer():
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["table"].weight
    prepare_qat(model, 4, dense_bits=4)
    assert torch.equal(model["head"].weight, model["table"].weight)
    originals = [m.parametrizations.weight.original for m in model.values()]
    assert originals[0] is originals[1]
    scales = [p for n, p in model.named_parameters() if n.endswith("log_scale")]
    assert len(scales) == 1
    assert len({id(p) for p in model.parameters()}) == 2


def test_a_padding_row_stays_zero():
    table = nn.Embedding(9, 4, padding_idx=2)
    prepare_qat(table, 4, dense_bits=3)
    assert torch.equal(table(torch.tensor([2])), torch.zeros(1, 4))


def test_bonds_are_part_of_the_codes():
    layer = TTLinear(24, 24, rank=8, in_shape=(4, 6), out_shape=(6, 4))
    layer.add_bonds()
    with torch.no_grad():
        for bond in layer.bonds:
            bond.uniform_(0.5, 2.0)
    other = copy.deepcopy(layer)
    prepare_qat(layer, 4, activation_bits=None)
    prepare_qat(other, 4, activation_bits=None)
    other.load_state_dict(export_codes(layer).state_dict())
    x = torch.randn(3, 24)
    assert torch.equal(other(x), layer(x))


def test_the_size_counts_everything_that_is_stored():
    layer = prepare_qat(nn.Linear(10, 6), 4, dense_bits=4)
    coded = export_codes(layer)
    # 60 codes of half a byte, their scale; 6 biases, the scale's logarithm and flag
    assert coded.size_bytes == 30 + 4 + 24 + 4 + 1
    assert export_codes(layer, rest_dtype=torch.float16).size_bytes == 30 + 4 + 12 + 4 + 1


def test_a_copy_of_a_prepared_model_computes_the_same():
    model = prepare_qat(make_model(), 4, sample=(IDS,)).eval()
    assert torch.equal(copy.deepcopy(model)(IDS), model(IDS))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (make_model, {"bits": 1}, "bits must be an integer from 2 to 8; got 1"),
        (make_model, {"bits": 4, "activation_bits": 16}, "from 2 to 8; got 16"),
        (nn.ReLU, {"bits": 4}, "no layers to quantize"),
        (lambda: nn.Embedding(4, 4, sparse=True), {"bits": 4}, "sparse=True cannot be quantized"),
        (lambda: prepare_qat(make_model(), 4), {"bits": 4}, "has quantizers already"),
    ],
)
def test_what_cannot_be_prepared_is_named(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare_qat(make(), **arguments)


def test_other_models_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no quantizers; see prepare_qat"):
        export_codes(make_model())
    (tmp_path / "x.pt").write_bytes(b"nothing")
    with pytest.raises(PersistenceError, match="not a readable checkpoint"):
        CodedModel.load(tmp_path / "x.pt")


def test_scales_follow_when_ranks_change():
    # rounding spreads the sizes of the cores anew: old scales would cut most of them off
    torch.manual_seed(0)
    model, x = TTLinear(64, 64, rank=12), torch.randn(40, 64)
    with torch.no_grad():
        model.cores[0].mul_(100)
        model.cores[-1].div_(100)
    exact = model(x).detach()
    prepare_qat(model, 8, sample=(x,)).eval()
    ends = [model.quantizers[name].scale.item() for name in ("input", "output")]

    def error():
        with torch.no_grad():
            return float(torch.linalg.norm(model(x) - exact) / torch.linalg.norm(exact))

    assert error() < 0.1
    weight = RankScheduler(model, rtol=0.2).step().errors[""]
    assert 0.1 < weight < 0.2
    assert error() < weight + 0.1
    # what lies between the cores gets its scales in the next training pass
    assert not any(model.quantizers[name].ready for name in ("left", "right", "hidden"))
    model.train()(x)
    assert all(quantizer.ready for quantizer in model.quantizers.values())
    assert model.eval() is model
    assert error() < weight + 0.1
    assert [model.quantizers[name].scale.item() for name in ("input", "output")] == ends


def test_scales_stay_where_cores_do():
    model = prepare_qat(TTLinear(16, 16, rank=4), 4, sample=(torch.ones(2, 16),))
    with torch.no_grad():
        model.quantizers["core_0"].log_scale.add_(1.0)  # as learnt
    scale = model.quantizers["core_0"].scale.item()
    model.replace_cores([core.detach().clone() for core in model.cores])
    assert model.quantizers["core_0"].scale.item() == scale
    assert model.quantizers["hidden"].ready
