"""Plans count what the routes do, and take the one that costs least."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tensoralg.nn import TTLinear, TTMEmbedding
from tensoralg.nn.planner import Plan, plan_linear, plan_lookup

torch.set_num_threads(1)


def counted(function, *arguments):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*arguments)
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 200])
@pytest.mark.parametrize("route", ["halves", "sequential", "dense"])
@pytest.mark.parametrize("rank", [1, 4, (3, 5, 2, 6, 2)])
def test_the_operations_of_a_linear_layer_are_those_that_torch_counts(
    rank, route, tokens, training
):
    layer = TTLinear(60, 90, rank=rank, in_shape=(3, 4, 5), out_shape=(3, 5, 6), bias=False)
    layer.train(training)
    plan = layer.explain(tokens)
    layer._route = lambda *_: route
    x = torch.zeros(tokens, 60)
    with torch.no_grad():
        layer(x)  # eval mode keeps the factors
    planned = next(r.operations for r in plan.routes if r.name == route)
    assert counted(layer, x) == planned


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("columns", [(2, 3, 5), (5, 3, 2)])
@pytest.mark.parametrize("route", ["gather", "slices"])
def test_the_operations_of_a_lookup_are_those_that_torch_counts(route, columns, tokens, training):
    layer = TTMEmbedding(60, 30, rank=4, row_shape=(3, 4, 5), column_shape=columns)
    plan, split = layer.train(training)._plan(tokens, not training)
    layer._plan = lambda *_: (Plan((), route, 0, 0, 0, ""), split)
    ids = torch.arange(tokens)
    with torch.no_grad():
        layer(ids)  # eval mode keeps the tables
    planned = next(r.operations for r in plan.routes if r.name == route)
    assert counted(layer, ids) == planned


def test_few_tokens_go_one_core_after_the_other_and_many_by_halves():
    layer = TTLinear(768, 3072, rank=32)
    assert layer.explain(1).chosen == "sequential"
    assert [layer.explain(n).chosen for n in (512, 10**6)] == ["halves"] * 2
    assert layer.eval().explain(1).chosen == "halves"  # merging costs nothing any more


def test_few_rows_gather_slices_and_many_gather_pairs():
    layer = TTMEmbedding(30522, 768, rank=32)
    assert layer.explain(1).chosen == "slices"
    assert layer.explain(4000).chosen == "gather"
    assert layer.eval().explain(1).chosen == "gather"


@pytest.mark.parametrize("training", [True, False])
def test_where_factors_cannot_pay_the_plan_is_dense_and_says_so(training):
    for layer in (TTLinear(8, 8, rank=64), TTMEmbedding(9, 4, rank=64)):
        plan = layer.train(training).explain(10)
        assert plan.parameters >= plan.dense_parameters
        assert plan.chosen == "dense"
        assert "cannot pay" in plan.reason
        assert "cannot pay" in str(plan)
    x = torch.ones(3, 8)
    layer = TTLinear.from_linear(dense := nn.Linear(8, 8))
    assert torch.allclose(layer(x), dense(x), atol=1e-6)


def test_a_kept_weight_is_dense_only_where_that_needs_no_more_memory():
    small = plan_linear((8, 8), (8, 8), (1, 2, 2, 2, 1), tokens=1, cached=True)
    assert small.chosen != "dense"
    table, _ = plan_lookup((8, 8), (8, 8), (1, 2, 1), tokens=10**6, cached=True)
    assert table.chosen != "dense"


def test_a_chosen_route_is_never_dearer_than_another_one():
    for tokens in (1, 3, 10, 30, 100, 1000, 10**5):
        plan = plan_linear((12, 8, 8), (12, 16, 16), (1, 12, 32, 32, 32, 16, 1), tokens=tokens)
        assert plan.route.cost == min(route.cost for route in plan.routes)
    costs = [
        plan_linear((12, 8, 8), (12, 16, 16), (1, 12, 32, 32, 32, 16, 1), tokens=n).route.cost
        for n in range(1, 100)
    ]
    assert all(a <= b for a, b in pairwise(costs))


def test_a_plan_prints_every_route():
    text = str(TTLinear(768, 768, rank=30).explain(512))
    for word in ("halves", "sequential", "dense", "taken", "512 tokens"):
        assert word in text
