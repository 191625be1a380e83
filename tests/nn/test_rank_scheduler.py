"""Ranks that shrink under one budget; moments that follow; both stages of CoMERA."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tensoralg.core.tensor_train_algebra import contract_cores
from tensoralg.nn import CoMERAPenalty, RankScheduler, TTLinear, TTMEmbedding
from tensoralg.nn.training import fit


def linear(rank=8, seed=0, **arguments):
    torch.manual_seed(seed)
    return TTLinear(24, 24, rank=rank, in_shape=(4, 6), out_shape=(6, 4), **arguments)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        TTLinear(24, 24, rank=8, in_shape=(4, 6), out_shape=(6, 4)),
        nn.ReLU(),
        TTLinear(24, 6, rank=6, in_shape=(4, 6), out_shape=(6,)),
    )


def low_rank_layer(true_rank, rank, noise=0.0):
    """A layer of large ranks whose weight has small ones, up to noise."""
    layer, small = linear(rank), linear(true_rank, seed=1)
    dense = small.to_linear()
    with torch.no_grad():
        dense.weight.add_(noise * torch.randn(dense.weight.shape))
    found = TTLinear.from_linear(dense, rank=rank, in_shape=(4, 6), out_shape=(6, 4))
    layer.replace_cores([core.detach() for core in found.cores])
    return layer, small


def trained(model, steps=4, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randn(16, 24, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return optimizer


def test_a_tolerance_finds_the_true_ranks_and_keeps_the_weight():
    layer, small = low_rank_layer(true_rank=3, rank=8, noise=1e-6)
    before = layer.weight.detach().clone()
    report = RankScheduler(layer, rtol=1e-3).step()
    assert layer.ranks == small.ranks == report.ranks[""]
    assert torch.linalg.norm(layer.weight - before) <= 1e-3 * torch.linalg.norm(before)
    assert report.parameters == sum(core.numel() for core in layer.cores)


@pytest.mark.parametrize("target", [150, 300, 500, 10**6])
def test_the_budget_is_kept_by_the_whole_model(target):
    model = network()
    before = sum(c.numel() for layer in (model[0], model[2]) for c in layer.cores)
    report = RankScheduler(model, target_parameters=target).step()
    after = sum(c.numel() for layer in (model[0], model[2]) for c in layer.cores)
    assert after == report.parameters <= min(target, before)
    assert model(torch.randn(2, 24)).shape == (2, 6)
    if target >= before:
        assert after == before
        assert set(report.errors.values()) == {0.0}


def test_the_budget_goes_where_the_singular_values_are():
    torch.manual_seed(0)
    rich, _ = low_rank_layer(true_rank=8, rank=8)
    poor, _ = low_rank_layer(true_rank=1, rank=8, noise=1e-5)
    model = nn.ModuleDict({"rich": rich, "poor": poor})
    limit = rich.compressed_parameters + sum(poor.mode_sizes) + 5
    report = RankScheduler(model, target_parameters=limit).step()
    assert report.ranks["poor"] == (1, 1, 1, 1, 1)
    assert report.ranks["rich"] == rich.ranks
    assert report.errors["rich"] < 1e-6


def test_a_layers_size_does_not_decide():
    """The same weight in other units keeps the same ranks."""
    found = []
    for factor in (1.0, 1e4):
        model = nn.ModuleList([linear(8, seed=1), linear(8, seed=2)])
        with torch.no_grad():
            model[0].cores[0].mul_(factor)
        RankScheduler(model, target_parameters=500).step()
        found.append([layer.ranks for layer in model])
    assert found[0] == found[1]


def test_the_reported_error_is_the_weights():
    layer = linear(8)
    before = layer.weight.detach().double()
    report = RankScheduler(layer, target_parameters=150).step()
    error = torch.linalg.norm(layer.weight.double() - before) / torch.linalg.norm(before)
    assert report.errors[""] == pytest.approx(error.item(), rel=1e-4)


def test_the_moments_follow_the_same_maps():
    """Rounding that drops nothing must leave the next step of momentum as it would have been."""
    layer, _ = low_rank_layer(true_rank=3, rank=8)
    model = layer.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    x = torch.randn(16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model(x).square().mean().backward()
    optimizer.step()  # lr 0: only the moments are set
    change = first_order_change(model, optimizer)
    report = RankScheduler(model, optimizer=optimizer, rtol=1e-6).step()
    assert max(report.ranks[""]) == 3
    for core in model.cores:
        assert optimizer.state[core]["momentum_buffer"].shape == core.shape
    assert float(change) > 0
    fresh = [g.clone() for g in gradients(model, x)]
    # the moments were gradients at the old cores: now they are those at the new ones
    for core, gradient in zip(model.cores, fresh, strict=True):
        moment = optimizer.state[core]["momentum_buffer"]
        assert torch.allclose(moment, gradient, rtol=1e-6, atol=1e-9)


def gradients(model, x):
    return torch.autograd.grad(model(x).square().mean(), list(model.cores))


def first_order_change(model, optimizer):
    return sum(optimizer.state[c]["momentum_buffer"].square().sum() for c in model.cores)


def test_training_goes_on_after_rounding_with_moments_of_the_new_shapes():
    model = network()
    optimizer = trained(model, amsgrad=True)
    steps = [optimizer.state[c]["step"].clone() for c in model[0].cores]
    RankScheduler(model, optimizer=optimizer, target_parameters=300).step()
    for layer in (model[0], model[2]):
        for core in layer.cores:
            for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
                assert optimizer.state[core][name].shape == core.shape
                assert torch.isfinite(optimizer.state[core][name]).all()
            assert (optimizer.state[core]["exp_avg_sq"] >= 0).all()
    assert [optimizer.state[c]["step"] for c in model[0].cores] == steps
    before = model[0].weight.detach().clone()
    model(torch.randn(4, 24)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].weight)


def test_every_and_roundings_shrink_the_budget_step_by_step():
    model = network()
    scheduler = RankScheduler(model, target_parameters=250, every=2, roundings=3)
    start = scheduler.parameters
    sizes = []
    for call in range(1, 9):
        report = scheduler.step()
        assert (report is None) == (call % 2 == 1)
        if report:
            sizes.append(report.parameters)
    assert sizes[0] <= round(start ** (2 / 3) * 250 ** (1 / 3))
    assert sizes[0] > sizes[1] > sizes[2] == sizes[3]
    assert sizes[2] <= 250 < sizes[1]


def test_its_state_and_the_ranks_resume(tmp_path):
    def run(path, epochs, seed):
        model = network(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = RankScheduler(
            model, optimizer=optimizer, target_parameters=250, roundings=4
        )  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        data = [
            (torch.randn(8, 24, generator=generator), torch.arange(8) % 6) for _ in range(3)
        ]  # fmt: skip
        result = fit(
            model, data, optimizer, epochs=epochs, rank_scheduler=scheduler, checkpoint=path
        )  # fmt: skip
        return model, result

    whole, expected = run(None, 4, 0)
    run(tmp_path / "state.pt", 2, 0)
    again, found = run(tmp_path / "state.pt", 4, 9)  # ranks and values come from the file
    assert again[0].ranks == whole[0].ranks
    assert found.history == expected.history
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_embeddings_are_rounded_too():
    torch.manual_seed(0)
    layer = TTMEmbedding(30, 12, rank=6, row_shape=(5, 6), column_shape=(3, 4))
    before = layer(torch.arange(30)).detach()
    report = RankScheduler(layer, rtol=0.3).step()
    after = layer(torch.arange(30))
    assert torch.linalg.norm(after - before) <= 0.3 * torch.linalg.norm(before) * 1.001
    assert report.parameters == sum(core.numel() for core in layer.cores)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "target_parameters, rtol or both"),
        ({"target_parameters": 5}, "target_parameters must be at least 20, the number at ranks 1"),
        ({"rtol": -1.0}, "rtol must be at least 0"),
        ({"rtol": 0.1, "every": 0}, "every must be at least 1"),
        ({"rtol": 0.1, "roundings": 0}, "roundings must be at least 1"),
    ],
)
def test_wrong_arguments_of_the_scheduler(arguments, message):
    with pytest.raises(ValueError, match=message):
        RankScheduler(linear(), **arguments)


@pytest.mark.parametrize("make", [lambda m: RankScheduler(m, rtol=0.1), CoMERAPenalty])
def test_a_model_without_trains_is_refused(make):
    with pytest.raises(ValueError, match="no tensor-train layers"):
        make(nn.Linear(3, 3))


def plain_size(layer, threshold=None):
    """S or its surrogate, core by core."""
    counts = [1.0]
    for k, bond in enumerate(layer.bonds):
        if threshold is None:
            counts.append(float(bond.abs().sum()))
            continue
        cores = [c.reshape(c.shape[0], -1, c.shape[-1]) for c in layer.cores]
        terms = [
            abs(float(bond[j]))
            * float(torch.linalg.norm(cores[k][:, :, j]))
            * float(torch.linalg.norm(cores[k + 1][j]))
            for j in range(len(bond))
        ]
        counts.append(float(sum(t > threshold * max(terms) for t in terms)))
    counts.append(1.0)
    return sum(n * a * b for n, a, b in zip(layer.mode_sizes, counts[:-1], counts[1:], strict=True))


def test_the_early_stage_is_the_sum_of_its_three_parts():
    model = network()
    start_size = sum(layer.compressed_parameters for layer in (model[0], model[2]))
    squares = sum(c.square().sum().item() for layer in (model[0], model[2]) for c in layer.cores)
    penalty = CoMERAPenalty(model, gamma=0.3, beta=0.07)
    loss = torch.tensor(2.0)
    assert penalty(loss).item() == pytest.approx(2.0 + 0.3 + 0.07, rel=1e-5)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            for bond in layer.bonds:
                bond.copy_(torch.randn(bond.shape))
            for core in layer.cores:
                core.mul_(1.3)
    surrogate = sum(plain_size(layer) for layer in (model[0], model[2])) / start_size
    now = sum(c.square().sum().item() for layer in (model[0], model[2]) for c in layer.cores)
    expected = 2.0 + 0.3 * surrogate + 0.07 * now / squares
    assert penalty(loss).item() == pytest.approx(expected, rel=1e-5)
    assert penalty.stage == "early"


@pytest.mark.parametrize(("loss", "leading"), [(0.9, "loss"), (0.15, "size")])
def test_the_late_stage_minimises_what_is_farther_from_the_goal(loss, leading):
    layer = linear()
    penalty = CoMERAPenalty(layer, beta=0.0, rho=0.25, weights=(1.0, 2.0))
    with torch.no_grad():
        for bond in layer.bonds:
            bond[1:] = 0.0
    penalty.aim(loss=0.1, size=0.01)
    assert penalty.stage == "late"
    start = layer.compressed_parameters
    size = plain_size(layer, 0.02) / start
    assert penalty.size() == pytest.approx(size)
    surrogate = plain_size(layer) / start
    excess = (loss - 0.1, 2.0 * (size - 0.01))
    assert (excess[0] >= excess[1]) == (leading == "loss")
    value = torch.tensor(loss, requires_grad=True)
    total = penalty(value)
    first = loss if leading == "loss" else surrogate
    assert total.item() == pytest.approx(first + 0.25 * (loss + surrogate), rel=1e-5)
    total.backward()
    assert value.grad.item() == pytest.approx(1.25 if leading == "loss" else 0.25)
    assert layer.bonds[1].grad[0].item() > 0  # both goals pull in both cases


def test_pruning_shrinks_cores_bonds_and_moments_and_keeps_what_counts():
    model = network()
    penalty = CoMERAPenalty(model, threshold=0.01)
    optimizer = trained(model)
    layer = model[0]
    with torch.no_grad():
        layer.bonds[1].copy_(torch.linspace(0.5, 1.5, 8))
        layer.bonds[1][[2, 5]] = torch.tensor([1e-4, -1e-5])
    before = layer.weight.detach().clone()
    kept = [0, 1, 3, 4, 6, 7]
    core = layer.cores[1]
    old_core, old_moment = core.detach().clone(), optimizer.state[core]["exp_avg"].clone()
    bond = layer.bonds[1]
    old_bond, old_bond_moment = bond.detach().clone(), optimizer.state[bond]["exp_avg_sq"].clone()
    others = [c.detach().clone() for c in (layer.cores[0], layer.cores[3])]
    left = penalty.prune(optimizer)
    assert layer.ranks == (1, 4, 6, 4, 1)
    assert left == sum(c.numel() for each in (model[0], model[2]) for c in each.cores)
    assert torch.equal(layer.cores[1], old_core[:, :, kept])
    assert torch.allclose(optimizer.state[layer.cores[1]]["exp_avg"], old_moment[:, :, kept])
    assert torch.equal(layer.bonds[1], old_bond[kept])
    assert torch.equal(optimizer.state[layer.bonds[1]]["exp_avg_sq"], old_bond_moment[kept])
    assert torch.equal(layer.cores[0], others[0])
    assert torch.equal(layer.cores[3], others[1])
    assert torch.linalg.norm(layer.weight - before) < 1e-3 * torch.linalg.norm(before)
    model(torch.randn(4, 24)).square().mean().backward()
    optimizer.step()


def test_pruning_does_not_depend_on_the_gauge():
    """D smaller and the core larger by the same factor is the same layer."""
    ranks = []
    for factor in (1.0, 1e3):
        layer = linear()
        penalty = CoMERAPenalty(layer, threshold=0.05)
        with torch.no_grad():
            layer.bonds[1].copy_(torch.tensor([1, 1, 1, 0.5, 0.02, 0.01, 1, 1]) / factor)
            layer.cores[1].mul_(factor)
        penalty.prune()
        ranks.append(layer.ranks)
    assert ranks[0] == ranks[1] == (1, 4, 6, 4, 1)


def test_a_bond_of_zeros_keeps_one_index():
    layer = linear()
    penalty = CoMERAPenalty(layer)
    with torch.no_grad():
        layer.bonds[1].zero_()
    penalty.prune()
    assert layer.ranks[2] == 1
    assert torch.equal(layer.weight, torch.zeros(24, 24))


def test_the_penalty_prunes_a_network_while_it_learns():
    """The teacher has small ranks; the student's large ones go without harm to the loss."""
    torch.manual_seed(0)
    teacher, student = linear(2, seed=3), linear(8, seed=4)
    penalty = CoMERAPenalty(student, gamma=0.02, beta=0.002)
    bonds = penalty.bond_parameters()
    cores = list(student.cores)
    optimizer = torch.optim.Adam([{"params": cores, "lr": 5e-3}, {"params": bonds, "lr": 2e-2}])
    start = penalty.parameters
    for step in range(600):
        x = torch.randn(64, 24)
        optimizer.zero_grad()
        difference = student(x) - student.bias - (teacher(x) - teacher.bias).detach()
        penalty(difference.square().mean()).backward()
        optimizer.step()
        if step % 50 == 49:
            penalty.prune(optimizer)
    assert penalty.parameters < 0.6 * start
    weight = teacher.weight.detach()
    before = student.weight.detach().clone()
    assert torch.linalg.norm(before - weight) < 0.35 * torch.linalg.norm(weight)
    assert penalty.finish(optimizer) == sum(core.numel() for core in student.cores)
    assert student.bonds is None
    assert torch.allclose(student.weight, before, atol=1e-5)


def test_the_penalty_takes_its_state_along():
    layer = linear()
    penalty = CoMERAPenalty(layer, gamma=0.5)
    penalty.aim(0.3, 0.1)
    stored = copy.deepcopy(penalty.state_dict())
    other = CoMERAPenalty(linear(4), gamma=0.5)
    assert other.stage == "early"
    other.load_state_dict(stored)
    assert other.stage == "late"
    assert other.state_dict() == stored


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"gamma": -1.0}, "gamma"),
        ({"beta": float("nan")}, "beta"),
        ({"weights": (1.0, -2.0)}, r"weights\[1\]"),
    ],
)
def test_wrong_arguments_of_the_penalty(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must be a finite number"):
        CoMERAPenalty(linear(), **arguments)


def test_a_wrong_goal_is_refused():
    with pytest.raises(ValueError, match=r"size lie in 0 \.\. 1"):
        CoMERAPenalty(linear()).aim(0.1, 2.0)


def test_rounding_is_that_of_the_core():
    """The same train by numpy and by torch."""
    layer = linear(8)
    train = contract_cores([np.asarray(c.detach().double()) for c in layer.train_cores()])
    matrix = train.reshape(24, 24)
    assert np.allclose(matrix.T, layer.weight.detach().numpy(), atol=1e-6)
    RankScheduler(layer, rtol=0.5).step()
    error = np.linalg.norm(matrix.T - layer.weight.detach().numpy())
    assert error <= 0.5 * np.linalg.norm(matrix)
