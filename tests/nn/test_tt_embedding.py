"""TTMEmbedding: the rows of the table it stands for, on every route, and none of its padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_algebra import contract_matrix_cores
from tensoralg.nn import TTMEmbedding
from tensoralg.nn.lookup import gather_groups, row_digits
from tensoralg.nn.planner import Plan

torch.set_num_threads(1)


def oracle(layer):
    """The table from the whole tensor that the cores define, padding cut off."""
    table = contract_matrix_cores([core.detach() for core in layer.cores])
    table = table[: layer.num_embeddings, : layer.embedding_dim].clone()
    if layer.padding_idx is not None:
        table[layer.padding_idx] = 0.0
    return table


@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_route_gives_the_rows_of_the_whole_tensor(count, width, order, rank, padded):
    torch.manual_seed(count * width)
    layer = TTMEmbedding(
        count,
        width,
        rank=rank,
        row_shape=order,
        padding_idx=count // 2 if padded else None,
        dtype=torch.float64,
    )
    table = oracle(layer)
    assert torch.allclose(layer.weight, table, atol=1e-12)
    ids = torch.randint(count, (3, 7))
    everything = torch.arange(count)
    for split in range(1, order + 1):
        for route in ("gather", "slices", "dense"):
            layer._plan = lambda *_, r=route, s=split: (Plan((), r, 0, 0, 0, ""), s)
            assert torch.allclose(layer(ids), table[ids], atol=1e-12)
            assert torch.allclose(layer(everything), table, atol=1e-12)
    del layer._plan
    assert torch.allclose(layer(ids), table[ids], atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(layer.eval()(ids), table[ids], atol=1e-12)
        assert torch.allclose(layer(ids[0, 0]), table[ids[0, 0]], atol=1e-12)


@pytest.mark.parametrize("route", ["gather", "slices", "dense"])
@pytest.mark.parametrize(("order", "rank"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)])
def test_gradients_of_first_and_second_order(order, rank, route):
    torch.manual_seed(0)
    layer = TTMEmbedding(7, 5, rank=rank, row_shape=order, padding_idx=3, dtype=torch.float64)
    split = max(1, order - 1)
    layer._plan = lambda *_: (Plan((), route, 0, 0, 0, ""), split)
    ids = torch.tensor([[0, 3, 5], [6, 6, 1]])
    names = [name for name, _ in layer.named_parameters()]

    def function(*values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (ids,))

    assert torch.autograd.gradcheck(function, tuple(layer.parameters()))
    assert torch.autograd.gradgradcheck(function, tuple(layer.parameters()))


def test_the_default_shape_of_a_large_vocabulary():
    layer = TTMEmbedding(30522, 768, rank=32)
    assert layer.row_shape == (31, 31, 32)
    assert math.prod(layer.column_shape) == 768
    # one hundred times less state than the dense table with as many moments
    assert 100 * layer.compressed_parameters < layer.dense_parameters


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", [-1, 30522, 31 * 31 * 32 - 1, 31 * 31 * 32, 10**9])
def test_numbers_that_are_no_rows_are_index_errors(wrong, training):
    layer = TTMEmbedding(30522, 6, rank=2, row_shape=(31, 31, 32)).train(training)
    with pytest.raises(IndexError, match=rf"0 \.\. 30521; got {wrong}"):
        layer(torch.tensor([[3, wrong]]))
    assert layer(torch.tensor([30521])).shape == (1, 6)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [1, 2, 8])
def test_the_initial_table_has_mean_square_one(order, rank):
    torch.manual_seed(0)
    layer = TTMEmbedding(1296, 64, rank=rank, row_shape=order)
    size = float(layer.weight.detach().double().square().mean().sqrt())
    assert size == pytest.approx(1.0, rel=1e-4)
    padded = TTMEmbedding(700, 60, rank=rank, row_shape=order).weight.detach()
    assert 0.7 < float(padded.square().mean().sqrt()) < 1.4


@pytest.mark.parametrize("padding_idx", [2, -3])
def test_the_padding_row_is_zero_and_gets_no_gradient(padding_idx):
    torch.manual_seed(0)
    layer = TTMEmbedding(5, 4, rank=3, padding_idx=padding_idx)
    ids = torch.tensor([2, 0, 2])

    def check(layer):
        assert torch.equal(layer(ids)[::2], torch.zeros(2, 4))
        assert not torch.equal(layer(ids)[1], torch.zeros(4))
        layer.zero_grad()
        layer(torch.tensor([2, 2])).sum().backward()
        assert all(not core.grad.any() for core in layer.cores)
        with torch.no_grad():
            assert torch.equal(layer.eval()(ids)[0], torch.zeros(4))

    check(layer)
    layer.reset_parameters()
    check(layer.train())
    layer.load_state_dict(TTMEmbedding(5, 4, rank=2).state_dict())
    check(layer.train())
    assert torch.equal(layer.to_embedding().weight[2], torch.zeros(4))
    assert layer.to_embedding().padding_idx == 2


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_shapes_of_every_kind(shape, dtype):
    layer = TTMEmbedding(11, 6, rank=2)
    y = layer(torch.zeros(shape, dtype=dtype))
    assert y.shape == (*shape, 6)
    y.sum().backward()
    with torch.no_grad():
        assert layer.eval()(torch.zeros(shape, dtype=dtype)).shape == (*shape, 6)


def test_factorising_keeps_the_rows_or_the_tolerance():
    torch.manual_seed(0)
    dense = nn.Embedding(37, 10, padding_idx=4).eval()
    layer = TTMEmbedding.from_embedding(dense)
    ids = torch.arange(37)
    assert torch.allclose(layer(ids), dense(ids), atol=1e-5)
    assert layer.padding_idx == 4
    assert not layer.training
    close = TTMEmbedding.from_embedding(dense, rtol=0.3)
    error = torch.linalg.norm(close.weight - dense.weight) / torch.linalg.norm(dense.weight)
    assert error <= 0.3
    assert close.compressed_parameters < layer.compressed_parameters
    back = layer.to_embedding()
    assert torch.allclose(back.weight, dense.weight, atol=1e-5)
    assert max(TTMEmbedding.from_embedding(dense, rank=3).ranks) == 3


def test_rounding_keeps_the_matrix_form():
    torch.manual_seed(0)
    layer = TTMEmbedding(60, 24, rank=5)
    before = layer.weight.detach()
    layer.round_(rtol=0.5)
    assert torch.linalg.norm(layer.weight - before) <= 0.6 * torch.linalg.norm(before)
    assert all(core.ndim == 4 for core in layer.cores)
    assert layer.ranks < (1, 5, 1)
    assert torch.allclose(layer(torch.arange(60)), layer.weight, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_embeddings": 0}, ValueError, "num_embeddings"),
        ({"row_shape": (2, 3)}, ShapeError, "row_shape must be at least 10"),
        ({"row_shape": (2, 5), "column_shape": (4,)}, ShapeError, "column_shape must have 2"),
        ({"row_shape": 2, "column_shape": 3}, ShapeError, "column_shape must have 2"),
        ({"padding_idx": 10}, ValueError, "padding_idx"),
        ({"padding_idx": -11}, ValueError, "padding_idx"),
        ({"rank": 0}, ValueError, "rank"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        TTMEmbedding(**({"num_embeddings": 10, "embedding_dim": 4} | arguments))


def test_what_cannot_be_followed_is_refused():
    layer = TTMEmbedding(10, 4, rank=2)
    with pytest.raises(TypeError, match="int64 or int32"):
        layer(torch.zeros(3))
    with pytest.raises(TypeError, match="embedding"):
        TTMEmbedding.from_embedding(nn.Linear(3, 3))
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        with pytest.raises(ValueError, match=next(iter(options))):
            TTMEmbedding.from_embedding(nn.Embedding(5, 4, **options))


@pytest.mark.parametrize("training", [True, False])
def test_rows_by_groups_are_the_same(training):
    torch.manual_seed(0)
    layer = TTMEmbedding(480, 12, rank=3, row_shape=(6, 10, 8), padding_idx=5, dtype=torch.float64)
    layer.train(training)._plan = lambda *_: (Plan((), "gather", 0, 0, 0, ""), 2)
    table = oracle(layer)
    even, uneven = torch.arange(480), torch.arange(480)[::8]
    most = torch.cat([torch.arange(300), torch.arange(299)])
    digits = [t.unique() for t in (even, uneven)]
    found = [
        gather_groups(
            *layer._tables(2), layer.row_shape, layer.column_shape, 2, row_digits(d, (6, 10, 8))
        )
        for d in digits
    ]
    assert found[0] is not None
    assert found[1] is None  # groups that would be filled up to many times their sizes
    with torch.set_grad_enabled(training):
        for ids in (even, uneven, most, most[torch.randperm(599)], even[:3]):
            assert torch.allclose(layer(ids), table[ids], atol=1e-12)
    gradients = []
    for grouped in (True, False):
        layer.zero_grad()
        compute = layer._compute_rows
        if not grouped:
            layer._compute_rows = lambda *a, f=compute: f(*a[:-1], False)
        (layer(most) * torch.arange(12)).square().sum().backward()
        gradients.append([core.grad.clone() for core in layer.cores])
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-9)
        assert a.any()
