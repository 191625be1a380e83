"""Moments that belong to other ranks or to other factors are carried along or forgotten."""

import copy
import logging

import pytest
import torch
from torch import nn

from tensoralg.nn import CoMERAPenalty, RankScheduler, TTLinear, TTMEmbedding
from tensoralg.nn.training import fit

IDS = torch.arange(30)


def make_model(rank, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(TTMEmbedding(30, 24, rank=rank), TTLinear(24, 24, rank=rank), nn.ReLU())


def step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = (model(IDS) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


KINDS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "for each AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "fused momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=1e-2, max_iter=2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
}


@pytest.mark.parametrize("ranks", [(1, 4), (4, 1), (4, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_other_ranks_are_forgotten_after_a_state_was_loaded(kind, ranks, caplog):
    had, loaded = ranks
    model, source = make_model(had), make_model(loaded, seed=1)
    optimizer = KINDS[kind](model.parameters())
    for _ in range(3):
        step(model, optimizer)
    model.load_state_dict(source.state_dict())
    # as an optimizer that has never seen another rank
    fresh_model = copy.deepcopy(source)
    fresh = KINDS[kind](fresh_model.parameters())
    with caplog.at_level(logging.WARNING, "tensoralg.nn"):
        step(model, optimizer)
    step(fresh_model, fresh)
    assert "belong to other ranks" in caplog.text
    for layer, other in zip(model[:2], fresh_model[:2], strict=True):
        for core, expected in zip(layer.cores, other.cores, strict=True):
            assert torch.allclose(core, expected, atol=1e-7)
    caplog.clear()
    step(model, optimizer)  # and from then on it remembers again
    assert not caplog.text


@pytest.mark.parametrize("kind", ["AdamW", "Adafactor", "momentum"])
def test_moments_that_are_loaded_too_are_kept(kind):
    trained = make_model(2, seed=1)
    theirs = KINDS[kind](trained.parameters())
    for _ in range(3):
        step(trained, theirs)
    model = make_model(4)
    optimizer = KINDS[kind](model.parameters())
    step(model, optimizer)
    model.load_state_dict(trained.state_dict())
    optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for _ in range(2):
        step(model, optimizer)
        step(trained, theirs)
    for own, expected in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.equal(own, expected)


def with_factors():
    torch.manual_seed(0)
    layer = TTLinear(16, 32, rank=4, dtype=torch.float64)
    penalty = CoMERAPenalty(layer, gamma=0.0, beta=0.0)
    with torch.no_grad():
        for bond in layer.bonds:
            bond.copy_(torch.linspace(0.3, 2.0, len(bond)))
    return layer, penalty


def one_gradient(layer, x):
    """Momentum that holds one gradient."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0, momentum=0.9)
    layer(x).square().sum().backward()
    optimizer.step()
    return optimizer


def assert_moments_are_gradients(layer, optimizer, x):
    optimizer.zero_grad()
    layer(x).square().sum().backward()
    for core in layer.cores:
        assert torch.allclose(optimizer.state[core]["momentum_buffer"], core.grad, rtol=1e-8)


def test_moments_follow_when_factors_are_absorbed():
    layer, penalty = with_factors()
    x = torch.randn(20, 16, dtype=torch.float64)
    before = layer.weight.detach().clone()
    optimizer = one_gradient(layer, x)
    bonds = list(layer.bonds)
    penalty.finish(optimizer)
    assert layer.bonds is None
    assert torch.allclose(layer.weight, before)
    assert not any(optimizer.state[bond]["momentum_buffer"].any() for bond in bonds)
    assert_moments_are_gradients(layer, optimizer, x)


def test_moments_follow_when_a_layer_with_factors_is_rounded():
    # superfluous ranks, so that rounding changes the gauge and the ranks but not the weight
    layer, _ = with_factors()
    with torch.no_grad():
        layer.cores[1][:, :, 2:] = layer.cores[1][:, :, :2] * 0.5
    x = torch.randn(20, 16, dtype=torch.float64)
    before, ranks = layer.weight.detach().clone(), layer.ranks
    optimizer = one_gradient(layer, x)
    report = RankScheduler(layer, optimizer=optimizer, rtol=1e-9).step()
    assert report.ranks[""] != ranks
    assert torch.allclose(layer.weight, before)
    assert all(torch.equal(bond, torch.ones_like(bond)) for bond in layer.bonds)
    for bond in layer.bonds:
        assert torch.equal(optimizer.state[bond]["momentum_buffer"], torch.zeros_like(bond))
    assert_moments_are_gradients(layer, optimizer, x)


def test_of_a_factor_that_is_zero_nothing_is_remembered():
    layer, _ = with_factors()
    with torch.no_grad():
        layer.bonds[1][2] = 0.0
    optimizer = one_gradient(layer, torch.randn(20, 16, dtype=torch.float64))
    layer.absorb_bonds(optimizer=optimizer)
    moment = optimizer.state[layer.cores[1]]["momentum_buffer"]
    assert torch.isfinite(moment).all()
    assert not moment[:, :, 2].any()


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop", "Adafactor"])
def test_training_with_penalty_scheduler_and_optimizer_goes_on(kind):
    torch.manual_seed(0)
    model = nn.Sequential(TTLinear(24, 24, rank=8), nn.ReLU(), TTLinear(24, 6, rank=6))
    penalty = CoMERAPenalty(model)
    optimizer = KINDS[kind](model.parameters())
    scheduler = RankScheduler(model, optimizer=optimizer, target_parameters=300, roundings=2)
    batches = [(torch.randn(16, 24), torch.arange(16) % 6)] * 3
    result = fit(
        model, batches, optimizer, epochs=4, penalty=penalty, rank_scheduler=scheduler
    )  # fmt: skip
    assert result.status == "finished"
    assert penalty.finish(optimizer) <= 300
    assert fit(model, batches, optimizer, epochs=1).status == "finished"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("factor", [1e-22, 1e-30])
def test_tiny_factors_leave_finite_moments_and_weights(factor, whole):
    torch.manual_seed(0)
    layer, x = TTLinear(16, 16, rank=4), torch.randn(20, 16)
    CoMERAPenalty(layer)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    layer(x).square().sum().backward()
    optimizer.step()
    with torch.no_grad():  # moments are from before
        layer.bonds[1][... if whole else 2] = factor
    layer.absorb_bonds(optimizer=optimizer)
    for core in layer.cores:
        for moment in optimizer.state.get(core, {}).values():
            assert torch.isfinite(moment).all()
    if not whole:
        assert not optimizer.state[layer.cores[1]]["exp_avg_sq"][:, :, 2].any()
        assert optimizer.state[layer.cores[1]]["exp_avg_sq"][:, :, 1].any()
    optimizer.zero_grad()
    layer(x).square().sum().backward()
    optimizer.step()
    assert torch.isfinite(layer.weight).all()
