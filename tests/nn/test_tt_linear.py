"""TTLinear: the same map as the matrix it stands for, at every order, on every route."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_algebra import contract_cores
from tensoralg.nn import TTLinear

torch.set_num_threads(1)


def oracle(layer, x):
    """The map by the whole tensor that the cores define, padding cut off."""
    dense = contract_cores(layer.train_cores())
    dense = dense.reshape(math.prod(layer.in_shape), math.prod(layer.out_shape))
    y = x @ dense[: layer.in_features, : layer.out_features]
    return y if layer.bias is None else y + layer.bias


def on_route(layer, route, x):
    layer._route = lambda *_: route
    try:
        return layer(x)
    finally:
        del layer._route


@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 4),
)
def test_every_route_computes_the_map_of_the_whole_tensor(m, n, d_in, d_out, rank, tokens):
    torch.manual_seed(m * n)
    layer = TTLinear(m, n, rank=rank, in_shape=d_in, out_shape=d_out, dtype=torch.float64)
    x = torch.randn(tokens, m, dtype=torch.float64)
    expected = oracle(layer, x)
    for route in ("halves", "sequential", "dense"):
        assert torch.allclose(on_route(layer, route, x), expected, atol=1e-12)
    assert torch.allclose(layer(x), expected, atol=1e-12)
    assert torch.allclose(
        layer.weight, oracle(layer, torch.eye(m).double()).T - (layer.bias[:, None]), atol=1e-12
    )
    with torch.no_grad():
        assert torch.allclose(layer.eval()(x), expected, atol=1e-12)


@pytest.mark.parametrize("route", ["halves", "sequential", "dense"])
@pytest.mark.parametrize(("order", "rank"), [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 2)])
def test_gradients_of_first_and_second_order(order, rank, route):
    torch.manual_seed(0)
    layer = TTLinear(5, 6, rank=rank, in_shape=order, out_shape=order, dtype=torch.float64)
    layer._route = lambda *_: route
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    arguments = (x, *layer.parameters())
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


@pytest.mark.parametrize("shape", [(0, 16), (16,), (2, 0, 16), (2, 3, 16)])
@pytest.mark.parametrize("training", [True, False])
def test_leading_shapes_of_every_kind(shape, training):
    layer = TTLinear(16, 32, rank=4).train(training)
    x = torch.randn(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == (*shape[:-1], 32)
    y.sum().backward()
    assert x.grad.shape == shape
    assert all(core.grad is not None for core in layer.cores)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [1, 2, 8, 32])
@pytest.mark.parametrize(("m", "n"), [(784, 512), (7, 11), (97, 300)])
def test_the_initial_output_varies_as_that_of_a_dense_layer(order, rank, m, n):
    torch.manual_seed(order + rank)
    layer = TTLinear(m, n, rank=rank, in_shape=order, out_shape=order, bias=False)
    size = float(layer.weight.detach().double().square().mean().sqrt()) * math.sqrt(3 * m)
    assert size == pytest.approx(1.0, rel=1e-4)  # exact by construction
    # a matrix of middle rank one has as many independent outputs as the input has tokens
    x = torch.randn(4000, m)
    ratio = float(layer(x).detach().std() / nn.Linear(m, n, bias=False)(x).detach().std())
    assert 0.7 < ratio < 1.4


def test_the_initial_bias_is_that_of_a_dense_layer():
    bias = TTLinear(100, 5000, rank=1).bias.detach()
    assert float(bias.abs().max()) <= 0.1
    assert float(bias.std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("m", "n"), [(16, 32), (17, 23), (1, 1), (5, 1)])
def test_factorising_without_a_limit_is_exact(m, n, bias):
    torch.manual_seed(0)
    dense = nn.Linear(m, n, bias=bias).eval()
    layer = TTLinear.from_linear(dense)
    x = torch.randn(9, m)
    assert torch.allclose(layer(x), dense(x), atol=1e-5)
    assert not layer.training
    back = layer.to_linear()
    assert torch.allclose(back.weight, dense.weight, atol=1e-5)
    assert (layer.bias is None) == (back.bias is None) == (not bias)
    if bias:
        assert torch.equal(layer.bias, dense.bias)
        with torch.no_grad():
            dense.bias.add_(1.0)
        assert not torch.equal(layer.bias, dense.bias)
        assert not torch.equal(layer.bias, dense.bias)
        assert layer.bias.data_ptr() != back.bias.data_ptr()


def test_factorising_draws_no_random_numbers():
    dense = nn.Linear(8, 8)
    state = torch.get_rng_state()
    TTLinear.from_linear(dense, rank=2).to_linear()
    assert torch.equal(state, torch.get_rng_state())


def test_a_tolerance_is_kept_and_a_rank_is_the_largest():
    torch.manual_seed(0)
    dense = nn.Linear(64, 96)
    with torch.no_grad():
        dense.weight.copy_(torch.randn(96, 10) @ torch.randn(10, 64))
    for rtol in (0.5, 0.1):
        layer = TTLinear.from_linear(dense, rtol=rtol)
        error = torch.linalg.norm(layer.weight - dense.weight) / torch.linalg.norm(dense.weight)
        assert error <= rtol
        assert max(layer.ranks) < 64
    assert max(TTLinear.from_linear(dense, rank=5).ranks) == 5
    assert TTLinear.from_linear(dense).ranks[2] == 10  # the matrix has rank 10


def correlated_inputs():
    torch.manual_seed(1)
    return torch.randn(500, 64, dtype=torch.float64) @ torch.diag(
        torch.logspace(0, -3, 64).double()
    )


@pytest.mark.parametrize("rank", [2, 4, 8, 16])
def test_with_a_gram_matrix_the_outputs_are_closer(rank):
    x = correlated_inputs()
    dense = nn.Linear(64, 96, bias=False, dtype=torch.float64)

    def error(ranks, gram):
        layer = TTLinear.from_linear(dense, rank=ranks, gram=gram)
        return float(torch.linalg.norm((layer(x) - dense(x)).detach()))

    assert error(rank, x.T @ x) < 0.97 * error(rank, None)
    # where only the middle bond is cut, no matrix of that rank is closer (Eckart and Young)
    best = float(torch.linalg.norm(torch.linalg.svdvals(dense(x).detach())[rank:]))
    assert error((8, rank, 12), x.T @ x) == pytest.approx(best, rel=1e-3)
    assert error((8, rank, 12), None) > 1.15 * best


@pytest.mark.parametrize("rtol", [0.3, 0.05, 0.001])
def test_with_a_gram_matrix_the_tolerance_is_the_outputs(rtol):
    x = correlated_inputs()
    dense = nn.Linear(64, 96, bias=False, dtype=torch.float64)
    layer = TTLinear.from_linear(dense, rtol=rtol, gram=x.T @ x)
    y = dense(x)
    assert torch.linalg.norm(layer(x) - y) <= rtol * torch.linalg.norm(y)
    plain = TTLinear.from_linear(dense, rtol=rtol)
    assert layer.compressed_parameters < plain.compressed_parameters


@pytest.mark.parametrize(
    "gram",
    [torch.zeros(6, 6), torch.diag(torch.tensor([1.0, 0, 2, 0, 3, 1])), -torch.eye(6)],
    ids=["zero", "dead columns", "negative"],
)
def test_a_gram_matrix_that_is_not_positive_definite(gram):
    torch.manual_seed(0)
    dense = nn.Linear(6, 9)
    layer = TTLinear.from_linear(dense, gram=gram)
    assert torch.allclose(layer.weight, dense.weight, atol=1e-4)
    assert torch.isfinite(TTLinear.from_linear(dense, gram=gram, rank=2).weight).all()


def test_rounding_keeps_the_tolerance_and_shrinks_the_cores():
    torch.manual_seed(0)
    layer = TTLinear(24, 24, rank=6)
    before, names = layer.weight.detach(), [id(core) for core in layer.cores]
    assert layer.round_(rtol=0.4) is layer
    error = torch.linalg.norm(layer.weight - before) / torch.linalg.norm(before)
    assert error <= 0.4
    assert sum(layer.ranks) < 6 * 4 + 2
    assert [id(core) for core in layer.cores] == names  # optimizers keep their references
    assert max(layer.round_(ranks=2).ranks) == 2
    assert layer(torch.ones(3, 24)).shape == (3, 24)


def test_bonds_scale_the_train_and_fold_away():
    torch.manual_seed(0)
    layer = TTLinear(12, 20, rank=3)
    x = torch.randn(4, 12)
    before = layer(x)
    bonds = layer.add_bonds()
    assert [len(bond) for bond in bonds] == list(layer.ranks[1:-1])
    assert torch.equal(layer(x), before)
    with torch.no_grad():
        bonds[1].mul_(2.0)
        bonds[2].zero_()[0] = 3.0
    scaled = layer(x)
    assert torch.allclose(scaled, oracle(layer, x), atol=1e-6)
    assert not torch.allclose(scaled, before)
    scaled.sum().backward()
    assert all(bond.grad is not None for bond in bonds)
    layer.absorb_bonds()
    assert layer.bonds is None
    assert torch.allclose(layer(x), scaled, atol=1e-6)


def test_ranks_in_every_form():
    assert TTLinear(16, 16, rank=3).ranks == (1, 3, 3, 3, 1)
    assert TTLinear(16, 16, rank=(2, 3, 2)).ranks == (1, 2, 3, 2, 1)
    assert TTLinear(16, 16, rank=(1, 2, 3, 2, 1)).ranks == (1, 2, 3, 2, 1)
    assert TTLinear(16, 16, rank=10**6).ranks == (1, 4, 16, 4, 1)
    layer = TTLinear(300, 300)
    assert 2 * layer.compressed_parameters <= layer.dense_parameters


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"in_features": 0}, ValueError, "in_features"),
        ({"out_features": 2.5}, TypeError, "out_features"),
        ({"in_shape": (2, 3)}, ShapeError, "in_shape must be at least 16"),
        ({"out_shape": (4, 0)}, ValueError, "out_shape"),
        ({"rank": 0}, ValueError, "rank"),
        ({"rank": (2, 2)}, ShapeError, "rank"),
        ({"dtype": torch.complex64}, ValueError, "dtype"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        TTLinear(**({"in_features": 16, "out_features": 16} | arguments))


def test_bad_inputs_are_named():
    layer = TTLinear(16, 8, rank=2)
    with pytest.raises(ShapeError, match=r"\.\.\., 16\).*got \(3, 15\)"):
        layer(torch.zeros(3, 15))
    with pytest.raises(ShapeError, match="input"):
        layer(torch.tensor(1.0))
    with pytest.raises(TypeError, match="linear"):
        TTLinear.from_linear(nn.Embedding(3, 3))
    broken = nn.Linear(4, 4)
    with torch.no_grad():
        broken.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="finite"):
        TTLinear.from_linear(broken)
    with pytest.raises(ValueError, match="meta"):
        TTLinear.from_linear(nn.Linear(4, 4, device="meta"))
    with pytest.raises(ShapeError, match="gram"):
        TTLinear.from_linear(nn.Linear(4, 4), gram=torch.eye(3))
    with pytest.raises(ValueError, match="gram must be finite"):
        TTLinear.from_linear(nn.Linear(4, 4), gram=torch.full((4, 4), math.nan))
    with pytest.raises(ValueError, match="rtol"):
        TTLinear.from_linear(nn.Linear(4, 4), rtol=-1.0)


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ([torch.zeros(1, 4, 1)], "1 cores where there are 4"),
        ([torch.zeros(1, 4, 2), *[torch.zeros(1, 4, 1)] * 3], "first rank should be 2"),
        ([torch.zeros(1, 5, 1), *[torch.zeros(1, 4, 1)] * 3], "core 0"),
        ([*[torch.zeros(1, 4, 1)] * 3, torch.zeros(1, 4, 2)], "last rank"),
    ],
)
def test_cores_that_do_not_fit_are_refused(cores, message):
    layer = TTLinear(16, 16, rank=2)
    with pytest.raises(ShapeError, match=message):
        layer.replace_cores(cores)
    assert layer.ranks == (1, 2, 2, 2, 1)
