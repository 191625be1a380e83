"""Preparing for quantization-aware training: all or nothing, parts of models, what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tensoralg.nn import FakeQuantize, TTLinear, TTMEmbedding, prepare_qat

IDS = torch.tensor([[0, 4, 29], [7, 7, 12]])


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        TTMEmbedding(30, 24, rank=6),
        nn.TransformerEncoderLayer(24, 2, 32, batch_first=True, dropout=0.0),
        TTLinear(24, 24, rank=8),
        nn.BatchNorm1d(3),
        nn.Linear(24, 3),
    )
    model[1].linear1 = TTLinear(24, 32, rank=4)
    model[3].eval()
    return model


def anatomy(model):
    """Everything a caller can hold on to: modules, classes, flags, parameters, their order."""
    return [
        (
            name,
            id(module),
            type(module),
            module.training,
            [(n, id(p)) for n, p in module._parameters.items()],
            [(n, id(b)) for n, b in module._buffers.items()],
            [(n, id(m)) for n, m in module._modules.items()],
            sorted(vars(module)),
            getattr(module, "activation_relu_or_gelu", None),
        )
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize(
    "sample",
    [
        (torch.randn(2, 3),),  # no ids
        (IDS + 100,),  # no rows
        (IDS[0, 0],),  # fails in the encoder, behind the embedding
        (IDS, IDS),
    ],
)
def test_a_failing_sample_leaves_the_model_as_it_was(sample):
    model = make_model()
    values = copy.deepcopy(model.state_dict())
    expected = model.eval()(IDS).detach()
    model = make_model()
    before = anatomy(model)
    with pytest.raises((TypeError, IndexError, RuntimeError, AssertionError)):
        prepare_qat(model, 4, sample=sample)
    assert anatomy(model) == before
    state = model.state_dict()
    assert list(state) == list(values)
    assert all(torch.equal(state[name], value) for name, value in values.items())
    assert torch.equal(model.eval()(IDS), expected)
    prepare_qat(model, 4, sample=(IDS,))  # and it can still be prepared
    assert all(q.ready for q in model.modules() if isinstance(q, FakeQuantize))


def test_a_failing_sample_leaves_shared_dictionaries_and_handles_of_hooks():
    model, table, seen = make_model(), {"step": 0}, []
    for module in (model, model[2]):
        module.table = table
    handle = model[4].register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(IndexError):
        prepare_qat(model, 4, sample=(IDS + 100,))
    assert model.table is table
    assert model[2].table is table
    model(IDS)
    handle.remove()
    model(IDS)
    assert seen == [1]


def test_an_activation_that_is_not_finite_leaves_the_model_as_it_was():
    model = nn.Sequential(TTLinear(8, 8, rank=2), nn.Linear(8, 8))
    before = anatomy(model)
    with pytest.raises(ValueError, match="NaN or infinite"):
        prepare_qat(model, 4, sample=(torch.full((2, 8), float("nan")),))
    assert anatomy(model) == before


def test_optimizers_made_before_a_failure_go_on():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(IndexError):
        prepare_qat(model, 4, sample=(IDS + 100,))
    weight = model[4].weight
    before = weight.detach().clone()
    model(IDS).square().sum().backward()
    optimizer.step()
    assert model[4].weight is weight
    assert not torch.equal(weight, before)


def test_weights_that_codes_could_not_reproduce_are_refused_by_name():
    model = nn.Sequential(TTLinear(8, 8, rank=2), parametrizations.weight_norm(nn.Linear(8, 8)))
    before = anatomy(model)
    with pytest.raises(ValueError, match=r"layer '1': its weight has another parametrization"):
        prepare_qat(model, 4)
    assert anatomy(model) == before


@pytest.mark.parametrize("place", [0, 1])
def test_a_weight_that_is_not_finite_is_named(place):
    model = nn.Sequential(TTLinear(8, 8, rank=2), nn.Linear(8, 8))
    with torch.no_grad():
        (model[0].cores[1] if place == 0 else model[1].weight).view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match=f"layer '{place}': .*NaN"):
        prepare_qat(model, 4)
