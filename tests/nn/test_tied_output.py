"""The tied output layer: products with merged tables, one table under quantizers, its plans."""

import pytest
import torch
from torch import nn

from tensoralg.nn import FakeQuantize, TiedOutput, TTMEmbedding, prepare_qat

SHAPES = {  # rows and columns, modes of both: padded, exact, two, three and one core
    "padded": (300, 30, (7, 7, 7), (4, 2, 4)),
    "two": (30, 24, (5, 6), (4, 6)),
    "four": (54, 36, (3, 3, 2, 3), (3, 2, 2, 3)),
    "one": (9, 4, (9,), (4,)),
}


def tied(name, *, padding_idx=None, dtype=torch.float32, rank=3):
    torch.manual_seed(0)
    rows, width, row_shape, column_shape = SHAPES[name]
    table = TTMEmbedding(
        rows, width, rank=rank, row_shape=row_shape, column_shape=column_shape,
        padding_idx=padding_idx, dtype=dtype,
    )  # fmt: skip
    return TiedOutput(table, torch.randn(rows, dtype=dtype)), torch.randn(2, 5, width, dtype=dtype)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("route", ["factors", "dense"])
def test_both_routes_and_all_splits_multiply_with_the_whole_table(
    name, padding_idx, route, monkeypatch
):
    layer, x = tied(name, padding_idx=padding_idx, dtype=torch.float64)
    cores = len(layer.embedding.cores)
    if route == "factors" and cores == 1:
        pytest.skip("one core has no bond")
    expected = x @ layer.weight.T + layer.bias
    upstream = torch.randn(expected.shape, dtype=torch.float64)
    parameters = list(layer.parameters())
    slopes = torch.autograd.grad((expected * upstream).sum(), parameters)
    for split in range(1, max(cores, 2)):
        plan, _ = layer._plan(10, False)
        chosen = type(plan)(plan.routes, route, 10, 1, 1, "")
        monkeypatch.setattr(layer, "_plan", lambda *_, c=chosen, s=split: (c, s))
        found = layer(x)
        assert torch.allclose(found, expected, atol=1e-12)
        own = torch.autograd.grad((found * upstream).sum(), parameters)
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(own, slopes, strict=True))
        monkeypatch.undo()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("training", [True, False])
def test_quantized_logits_come_from_the_rows_that_are_looked_up(name, training):
    layer, x = tied(name, padding_idx=2)
    table = layer.embedding
    exact = table.weight.detach()
    prepare_qat(layer, 3, activation_bits=4, sample=(x,))
    ids = torch.arange(table.num_embeddings)
    table.train()(ids)  # sets the scale of the output
    layer.train(training)
    rows = layer.weight.detach()
    assert not torch.allclose(rows, exact, atol=1e-2)
    assert torch.allclose(layer(x), x @ rows.T + layer.bias, atol=1e-4)
    # a lookup passes its rows through the quantizer of its output, and is the same otherwise
    del table.quantizers["output"]
    for count in (1, 3, table.num_embeddings):  # whatever the plan for so many
        assert torch.allclose(table(ids[:count]), rows[:count], atol=1e-6)


def test_scales_learn_from_both_layers():
    layer, x = tied("padded")
    prepare_qat(layer, 4, sample=(x,))
    ids = torch.arange(12)
    layer.embedding(ids)
    layer(x).square().sum().backward()
    through_logits = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
    assert {"embedding.quantizers.left.log_scale", "embedding.quantizers.core_1.log_scale"} <= set(
        through_logits
    )
    layer.embedding(ids).square().sum().backward()
    for name in ("embedding.quantizers.left.log_scale", "embedding.cores.1"):
        assert not torch.equal(dict(layer.named_parameters())[name].grad, through_logits[name])
    assert all(q.ready for q in layer.modules() if isinstance(q, FakeQuantize))


def test_the_whole_table_is_not_built_where_factors_are_cheaper(monkeypatch):
    torch.manual_seed(0)
    layer = TiedOutput(TTMEmbedding(3000, 128, rank=8))
    plan = layer.explain(16)
    assert plan.chosen == "factors"
    costs = {route.name: route.operations for route in plan.routes}
    assert costs["factors"] < costs["dense"] / 2
    monkeypatch.setattr(TTMEmbedding, "weight", property(lambda m: pytest.fail("built")))
    x = torch.randn(16, 128)
    layer(x).sum().backward()
    with torch.no_grad():
        kept = layer.eval()(x)
        assert set(layer.embedding._cache._values) == {layer._plan(16, True)[1]}
        layer.embedding.cores[0].mul_(2.0)
        assert torch.allclose(layer(x), 2 * kept, rtol=1e-3, atol=1e-3)


def test_what_other_layers_can_do():
    layer, x = tied("padded", padding_idx=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == nn.functional.linear(x, layer.weight, layer.bias).dtype
    assert layer(x[:0]).shape == (0, 5, 300)
    assert torch.allclose(layer(x[0, 0]), layer(x)[0, 0], atol=1e-5)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-4)
    assert torch.allclose(torch.func.vmap(layer)(x), layer(x), atol=1e-4)
    layer, x = tied("four", dtype=torch.float64, rank=2)
    assert torch.autograd.gradcheck(lambda *_: layer(x[:1, :2]), tuple(layer.parameters()))
