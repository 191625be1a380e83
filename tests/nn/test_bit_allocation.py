"""Budgets are kept and spent well."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tensoralg.nn import BitAllocation, Calibrator, QuantizedTTLinear, allocate_bits, quantize
from tensoralg.nn.bit_allocation import Candidate, spend_bytes


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 48), nn.LayerNorm(48),
                          nn.Linear(48, 8))  # fmt: skip
    with torch.no_grad():  # rows of very different sizes: hard to round
        model[2].weight.mul_(torch.logspace(0, -2, 64)[torch.randperm(64)])
    return model


X = torch.randn(300, 48, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def calibrated():
    model = make_model()
    return model, Calibrator(model).run([X])


def smallest(calibrated):
    model, calibrator = calibrated
    return quantize(copy.deepcopy(model), calibrator, 2).bytes_after


@pytest.mark.parametrize("extra", [0, 500, 10**6])
def test_the_model_takes_what_was_foretold(calibrated, extra):
    model, calibrator = calibrated
    budget = smallest(calibrated) + extra
    allocation = allocate_bits(model, calibrator, budget, sweeps=4)
    assert isinstance(model[0], nn.Linear)  # nothing has changed
    clone = copy.deepcopy(model)
    report = quantize(clone, calibrator, allocation)
    assert report.bytes_after == allocation.size_bytes <= budget
    loss = sum(row.error**2 for row in report.rows)
    assert allocation.loss == pytest.approx(loss, rel=1e-6)
    assert set(allocation) == {"0", "2", "4"}
    if extra == 10**6:
        assert set(allocation.values()) == {8}
    if extra == 0:
        assert set(allocation.values()) == {2}


def test_it_is_no_worse_than_the_same_bits_everywhere(calibrated):
    model, calibrator = calibrated
    for bits in (3, 4):
        report = quantize(copy.deepcopy(model), calibrator, bits, sweeps=1)
        allocation = allocate_bits(model, calibrator, report.bytes_after)
        uniform = sum(row.error**2 for row in report.rows)
        assert allocation.loss <= uniform * (1 + 1e-9)


def test_importance_moves_bytes(calibrated):
    model, calibrator = calibrated
    budget = smallest(calibrated) + 800
    plain = allocate_bits(model, calibrator, budget)
    moved = allocate_bits(model, calibrator, budget, importance={"0": 1e-3})
    assert moved["0"] < plain["0"] or (moved["0"] == plain["0"] == 2)
    assert moved["2"] >= plain["2"]
    with pytest.raises(ValueError, match="importance"):
        allocate_bits(model, calibrator, budget, importance={"nothing": 1.0})


def test_a_budget_that_is_too_small_says_by_how_much(calibrated):
    model, calibrator = calibrated
    with pytest.raises(ValueError, match="size_bytes is 25 bytes too small"):
        allocate_bits(model, calibrator, smallest(calibrated) - 25)


def test_factors_are_chosen_where_they_pay():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
    with torch.no_grad():  # one of the weights has a low rank
        model[0].weight.copy_(torch.randn(64, 3) @ torch.randn(3, 64) / 8)
    x = torch.randn(400, 64)
    calibrator = Calibrator(model, forward=lambda m, batch: [layer(batch) for layer in m]).run([x])
    budget = 4000
    joint = allocate_bits(model, calibrator, budget, ranks=(3, 200))
    matrices = allocate_bits(model, calibrator, budget)
    assert joint.loss < 0.5 * matrices.loss
    assert joint.chosen["0"].rank == 3
    assert joint.chosen["1"].rank is None
    report = quantize(model, calibrator, joint)
    assert isinstance(model[0], QuantizedTTLinear)
    assert report.bytes_after == joint.size_bytes <= budget


def test_a_tied_weight_is_counted_once():
    torch.manual_seed(0)
    table, head = nn.Embedding(30, 16), nn.Linear(16, 30)
    head.weight = table.weight
    model = nn.Sequential(table, head)
    calibrator = Calibrator(model).run([torch.randint(0, 30, (40, 3))])
    allocation = allocate_bits(model, calibrator, 2000)
    assert list(allocation) == ["0"]
    assert quantize(model, calibrator, allocation).bytes_after == allocation.size_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choices": ()}, "choices"),
        ({"choices": (4, 9)}, "bits"),
        ({"ranks": (0,)}, "rank"),
        ({"size_bytes": 0}, "size_bytes"),
    ],
)
def test_wrong_options_are_refused_by_name(calibrated, options, message):
    model, calibrator = calibrated
    with pytest.raises(ValueError, match=message):
        allocate_bits(model, calibrator, **{"size_bytes": 10**6, **options})
    with pytest.raises(ValueError, match="saw no data"):
        allocate_bits(model, Calibrator(model), 10**6)


def test_it_prints_a_table():
    one, two = Candidate(4, None, 640, 0.01), Candidate(3, 8, 320, 0.04)
    allocation = BitAllocation({"a": one, "b": two}, {"a": (one,), "b": (two,)}, 1000)
    assert dict(allocation) == {"a": 4, "b": (3, 8)}
    lines = str(allocation).splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["0.100", "0.200"]
    assert lines[2].split()[:3] == ["b", "3", "8"]
    assert "1,000" in lines[-1]


ways = st.lists(
    st.builds(
        Candidate, st.integers(2, 8), st.none(), st.integers(1, 40), st.floats(0, 1, width=16)
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(ways, min_size=1, max_size=4), st.integers(0, 60))
def test_bytes_are_spent_nearly_as_well_as_possible(found, extra):
    candidates = {str(k): tuple(one) for k, one in enumerate(found)}
    least = sum(min(one.size_bytes for one in way) for way in candidates.values())
    chosen = spend_bytes(candidates, least + extra)
    assert sum(one.size_bytes for one in chosen.values()) <= least + extra
    assert all(chosen[name] in candidates[name] for name in candidates)
    loss = sum(one.loss for one in chosen.values())
    best = min(
        sum(one.loss for one in combination)
        for combination in itertools.product(*candidates.values())
        if sum(one.size_bytes for one in combination) <= least + extra
    )
    # the hull's steps are best but for the one that does not fit any more
    largest = max(max(o.loss for o in way) - min(o.loss for o in way) for way in found)
    assert best <= loss + 1e-12
    assert loss <= best + largest + 1e-12
