"""What an optimizer remembers of cores follows when they are replaced."""

import pytest
import torch
from torch import nn

from tensoralg.core.tensor_train_rounding import round_cores
from tensoralg.nn import TTLinear, TTMEmbedding

torch.set_num_threads(1)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_moments_follow_a_change_of_the_cores(optimizer):
    # an orthonormal change of gauge: training then goes on as if nothing had happened
    torch.manual_seed(0)
    layer, x = TTLinear(16, 32, rank=4, dtype=torch.float64), torch.randn(20, 16).double()
    options = {"momentum": 0.9} if optimizer is not torch.optim.AdamW else {}
    first = optimizer(layer.parameters(), lr=1e-3, **options)
    for _ in range(3):
        first.zero_grad()
        layer(x).square().sum().backward()
        first.step()
    sizes = [1, *layer.ranks[1:-1], 1]
    gauges = [torch.linalg.qr(torch.randn(r, r, dtype=torch.float64))[0] for r in sizes]
    gauges[0] = gauges[-1] = torch.eye(1, dtype=torch.float64)
    maps = [(gauges[k].T, gauges[k + 1]) for k in range(len(layer.cores))]
    weight = layer.weight.detach()
    cores = [
        torch.einsum("ab,bnc,cd->and", left, core, right)
        for core, (left, right) in zip(layer.train_cores(), maps, strict=True)
    ]
    name = {"AdamW": "exp_avg", "SGD": "momentum_buffer", "RMSprop": "momentum_buffer"}
    key = name[optimizer.__name__]
    moments = [first.state[core][key].clone() for core in layer.cores]
    layer.replace_cores(cores, optimizer=first, maps=maps)
    assert torch.allclose(layer.weight, weight, atol=1e-12)
    for core, moment, (left, right) in zip(layer.cores, moments, maps, strict=True):
        expected = torch.einsum("ab,bnc,cd->and", left, moment, right)
        assert torch.allclose(first.state[core][key], expected, atol=1e-12)
        assert core.grad is None
    if optimizer is torch.optim.AdamW:
        assert all((first.state[core]["exp_avg_sq"] >= 0).all() for core in layer.cores)
    layer(x).square().sum().backward()
    first.step()


def test_moments_of_a_scaled_gauge_are_those_of_the_new_gradient():
    # momentum holds one gradient: after a change of gauge it is the new core's gradient
    torch.manual_seed(0)
    layer, x = TTLinear(16, 32, rank=4, dtype=torch.float64), torch.randn(20, 16).double()
    momentum = torch.optim.SGD(layer.parameters(), lr=0.0, momentum=0.9)
    layer(x).square().sum().backward()
    momentum.step()
    gauge = torch.randn(layer.ranks[1], layer.ranks[1], dtype=torch.float64)
    eyes = [torch.eye(r, dtype=torch.float64) for r in layer.ranks]
    maps = [(eyes[k], eyes[k + 1]) for k in range(len(layer.cores))]
    maps[0], maps[1] = (eyes[0], gauge), (torch.linalg.inv(gauge), eyes[2])
    cores = [
        torch.einsum("ab,bnc,cd->and", left, core, right)
        for core, (left, right) in zip(layer.train_cores(), maps, strict=True)
    ]
    layer.replace_cores(cores, optimizer=momentum, maps=maps)
    layer(x).square().sum().backward()
    for core in layer.cores:
        assert torch.allclose(momentum.state[core]["momentum_buffer"], core.grad, rtol=1e-8)


def test_moments_without_maps_start_anew_where_shapes_change():
    layer = TTLinear(16, 32, rank=4)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    layer.replace_cores([c.clone() for c in TTLinear(16, 32, rank=2).cores], optimizer=optimizer)
    assert not any(core in optimizer.state for core in layer.cores)
    assert layer.bias in optimizer.state
    layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert all(optimizer.state[c]["exp_avg"].shape == c.shape for c in layer.cores)


def test_ranks_may_change_while_the_last_loss_is_alive():
    network = nn.Sequential(TTMEmbedding(50, 16, rank=4), TTLinear(16, 7, rank=4))
    ids = torch.tensor([[0, 3, 49], [3, 3, 17]])
    optimizer = torch.optim.AdamW(network.parameters())
    for turn in range(3):
        loss = network(ids).square().sum()  # that of the turn before lives until here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for layer in network.children():
            layer.round_(ranks=3 - turn, optimizer=optimizer)
    assert max(network[1].ranks) == 1


def test_moments_of_a_rounding_are_gradients_at_the_rounded_cores():
    # momentum that holds one gradient, taken where rounding changes nothing
    torch.manual_seed(0)
    layer, x = TTLinear(16, 32, rank=2, dtype=torch.float64), torch.randn(20, 16).double()
    cores = [torch.cat([c, c], 2) if k < 3 else c for k, c in enumerate(layer.train_cores())]
    cores = [torch.cat([c, c], 0) / 2 if k else c for k, c in enumerate(cores)]
    layer.replace_cores(cores)
    assert layer.ranks == (1, 4, 4, 4, 1)  # the weight needs two of each
    momentum = torch.optim.SGD(layer.parameters(), lr=0.0, momentum=0.9)
    layer(x).square().sum().backward()
    momentum.step()
    new, maps = round_cores([c.detach() for c in layer.train_cores()], rtol=1e-9, balance=True)
    layer.replace_cores(new, optimizer=momentum, maps=maps)
    assert layer.ranks == (1, 2, 2, 2, 1)
    layer(x).square().sum().backward()
    for core in layer.cores:
        buffer = momentum.state[core]["momentum_buffer"]
        assert torch.allclose(buffer, core.grad, rtol=1e-7, atol=1e-9)
