"""Gates, deltas and the configuration of adapters by themselves."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn import PELT
from tensoralg.nn.gated_parts import (
    Bottleneck,
    Gate,
    LowRankDelta,
    MatrixTrainDelta,
    Prefix,
    WeightDelta,
)

DOUBLE = torch.zeros((), dtype=torch.float64)


def random_gate(features=4):
    gate = Gate(features, 0.5, DOUBLE)
    with torch.no_grad():
        gate.weight.normal_()
        gate.bias.normal_()
    return gate


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6))
def test_a_gate_is_the_masked_mean_of_sigmoids(seed, batch, length):
    torch.manual_seed(seed)
    gate, x = random_gate(), 3 * torch.randn(batch, length, 4, dtype=torch.float64)
    mask = torch.rand(batch, length) < 0.6
    mask[:, 0] = True
    found = gate(x, -2, mask).exp()
    assert found.shape == (batch, 1, 1)
    for row in range(batch):
        values = [torch.sigmoid(gate.weight @ x[row, t] + gate.bias) for t in range(length)]
        kept = [value for t, value in enumerate(values) if mask[row, t]]
        torch.testing.assert_close(found[row, 0], sum(kept) / len(kept))


def test_tokens_in_any_axis_and_rows_that_are_samples():
    torch.manual_seed(0)
    gate, x = random_gate(), torch.randn(3, 5, 4, dtype=torch.float64)
    mask = torch.rand(3, 5) < 0.7
    swapped = gate(x.transpose(0, 1), 0, mask.mT)
    torch.testing.assert_close(swapped.transpose(0, 1), gate(x, 1, mask))
    each = gate(x[0], None)
    assert each.shape == (5, 1)
    torch.testing.assert_close(
        each[2, 0].exp(), torch.sigmoid(gate.weight @ x[0, 2] + gate.bias)[0]
    )


def test_gates_lie_in_the_open_interval_even_for_extreme_tokens_and_mere_padding():
    gate = random_gate()
    x = 1e3 * torch.randn(2, 3, 4, dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    value = gate(x, -2, mask)
    assert torch.isfinite(value).all()
    assert (value <= 0).all()
    value.sum().backward()
    assert torch.isfinite(gate.weight.grad).all()


def test_padding_does_not_reach_a_gate_or_its_gradient():
    torch.manual_seed(1)
    gate, x = random_gate(), torch.randn(2, 4, 4, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    garbage = x.clone()
    garbage[0, 2:] = 1e6
    assert torch.equal(gate(x, -2, mask), gate(garbage, -2, mask))
    alone = gate(x[:1, :2], -2)
    torch.testing.assert_close(gate(x, -2, mask)[:1], alone)
    garbage.requires_grad_()
    gate(garbage, -2, mask).sum().backward()
    assert not garbage.grad[0, 2:].any()


def test_an_empty_batch_and_half_precision():
    gate = Gate(4, 0.25, torch.zeros((), dtype=torch.bfloat16))
    assert gate(torch.zeros(0, 3, 4, dtype=torch.bfloat16), -2).shape == (0, 1, 1)
    value = gate(torch.ones(1, 3, 4, dtype=torch.bfloat16), -2)
    assert value.dtype == torch.float32
    assert value.exp().item() == pytest.approx(0.25, rel=1e-2)


@pytest.mark.parametrize("constant", [0.0, 0.3, 1.0])
def test_a_constant_takes_a_gates_place(constant):
    gate = random_gate()
    gate.constant = constant
    assert gate(torch.ones(2, 3, 4), -2).exp().item() == pytest.approx(constant)


def test_lora_starts_at_zero_and_equals_its_matrix():
    torch.manual_seed(2)
    delta = LowRankDelta(6, 4, 2, DOUBLE)
    assert not delta.matrix().any()
    torch.nn.init.normal_(delta.up)
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(delta(x), functional.linear(x, delta.matrix()))
    assert torch.linalg.matrix_rank(delta.matrix()) == 2


@pytest.mark.parametrize(
    ("ins", "outs"),
    [((3, 4), (2, 5)), ((2, 2, 3), (5, 1, 2)), ((12,), (10,)), ((4, 4), (3, 4))],
)
def test_a_train_of_matrices_equals_its_dense_matrix(ins, outs):
    torch.manual_seed(3)
    delta = MatrixTrainDelta(12, 10, ins, outs, 3, DOUBLE)
    assert not delta.matrix().any()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    for core in delta.cores:
        torch.nn.init.normal_(core)
    torch.testing.assert_close(delta(x), functional.linear(x, delta.matrix()))
    assert delta(x[:0]).shape == (0, 7, 10)


def test_lora_is_the_train_of_two_cores():
    torch.manual_seed(4)
    lora = LowRankDelta(12, 10, 3, DOUBLE)
    torch.nn.init.normal_(lora.up)
    train = MatrixTrainDelta(12, 10, (12, 1), (1, 10), 3, DOUBLE)
    assert [tuple(core.shape) for core in train.cores] == [(1, 12, 1, 3), (3, 1, 10, 1)]
    with torch.no_grad():
        train.cores[0].copy_(lora.down.mT.reshape(1, 12, 1, 3))
        train.cores[1].copy_(lora.up.mT.reshape(3, 1, 10, 1))
    x = torch.randn(5, 12, dtype=torch.float64)
    torch.testing.assert_close(train(x), lora(x))
    torch.testing.assert_close(train.matrix(), lora.matrix())
    numbers = [sum(p.numel() for p in module.parameters()) for module in (train, lora)]
    assert numbers[0] == numbers[1]


def test_a_train_holds_fewer_numbers_than_lora():
    shape = (4, 8, 12)
    train = MatrixTrainDelta(384, 384, shape, shape, 4, DOUBLE)
    assert sum(p.numel() for p in train.parameters()) == 1664
    lora = LowRankDelta(384, 384, 8, DOUBLE)
    assert sum(p.numel() for p in lora.parameters()) == 6144


def test_a_train_learns_in_every_core():
    torch.manual_seed(5)
    delta = MatrixTrainDelta(12, 10, (3, 4), (2, 5), 3, DOUBLE)
    target = torch.randn(10, 12, dtype=torch.float64) / 10
    optimizer = torch.optim.Adam(delta.parameters(), lr=0.02)
    before = target.square().sum().item()
    for _ in range(300):
        optimizer.zero_grad()
        loss = (delta.matrix() - target).square().sum()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.7 * before
    assert all(core.grad.abs().sum() > 0 for core in delta.cores)


def test_gradients_of_the_gated_parts_are_right():
    torch.manual_seed(6)
    config = PELT(lora=2, adapter=2)
    delta, bottleneck = WeightDelta(4, 4, config, DOUBLE), Bottleneck(4, config, DOUBLE)
    for parameter in [*delta.parameters(), *bottleneck.parameters()]:
        torch.nn.init.normal_(parameter)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: delta(x, -2, mask) + bottleneck(x, -2, mask), (x,))


def test_a_prefix_as_slots():
    prefix = Prefix(6, 4, PELT(prefix=3, initial_gate=0.2), DOUBLE)
    keys, values, bias = prefix.slots(torch.zeros(2, 5, 4, dtype=torch.float64), None, heads=2)
    assert keys.shape == values.shape == (2, 2, 3, 3)
    torch.testing.assert_close(keys[1, 1], prefix.keys[:, 3:])
    torch.testing.assert_close(bias, torch.full((2, 1, 1, 3), math.log(0.2), dtype=bias.dtype))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "nothing to train"),
        ({"lora": -1}, ValueError, "lora must be at least 0; got -1"),
        ({"adapter": 1.5}, TypeError, "adapter must be an integer; got 1.5"),
        ({"lora": 1, "gate": 0.5}, TypeError, "gate must be True or False; got 0.5"),
        ({"lora": 1, "initial_gate": 1.0}, ValueError, "initial_gate must lie in"),
        ({"lora": 1, "lora_scale": math.nan}, ValueError, "lora_scale must be finite"),
        ({"lora": 1, "delta_in_shape": (2, 2)}, ValueError, "must be given together"),
        (
            {"lora": 1, "delta_in_shape": (4,), "delta_out_shape": (2, 2)},
            ValueError,
            "as many factors",
        ),
        ({"lora": 1, "targets": (3,)}, TypeError, "targets must be names; got 3"),
    ],
)
def test_what_a_configuration_refuses(arguments, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        PELT(**arguments)


def test_one_name_may_stand_for_a_tuple_and_shapes_are_compared_with_the_layer():
    assert PELT(train="classifier").train == ("classifier",)
    assert PELT(lora=1) == PELT(1)
    with pytest.raises(ShapeError, match="delta_in_shape must be at least 12"):
        MatrixTrainDelta(12, 12, (2, 4), (3, 4), 2, DOUBLE)
