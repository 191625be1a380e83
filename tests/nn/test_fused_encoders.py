"""PyTorch's Transformer encoders call tensorized layers, wherever and however these came there."""

import copy

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import TTLinear, prepare_qat

PADDING = torch.arange(5) > torch.tensor([[2], [4]])


def encoder(places, names=("linear1", "linear2")):
    """Two fused layers, some with tensor trains put there by hand."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2)
    for place in places:
        for name in names:
            dense = getattr(model.layers[place], name)
            setattr(model.layers[place], name, TTLinear.from_linear(dense, rank=12))
    return model.eval()


def same_without_gradients(model, x, padding=None):
    """Whether the pass without gradients, which may be fused, computes what the plain one does."""
    kept = slice(None) if padding is None else ~padding
    expected = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        found = model(x, src_key_padding_mask=padding)
    return torch.allclose(found[kept], expected[kept], atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("quantized", [None, "layer", "encoder layer"])
def test_layers_put_there_by_hand_are_called(places, padding, quantized, monkeypatch):
    model, x = encoder(places), torch.randn(2, 5, 32)
    inner = model.layers[places[-1]]
    if quantized == "layer":  # the model itself never learns of it
        prepare_qat(inner.linear1, 2, sample=(torch.randn(9, 32),))
    elif quantized:
        prepare_qat(inner, 2, sample=(x,))
    calls, forward = [], TTLinear.forward
    monkeypatch.setattr(TTLinear, "forward", lambda m, t: calls.append(m) or forward(m, t))
    assert same_without_gradients(model, x, padding)
    for place in places:
        for layer in (model.layers[place].linear1, model.layers[place].linear2):
            assert sum(layer is called for called in calls) >= 2  # in both passes


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_weights_are_not_built_for_every_call(places, monkeypatch):
    model, x = encoder(places), torch.randn(2, 5, 32)
    built = []
    weight = TTLinear.weight.fget
    monkeypatch.setattr(TTLinear, "weight", property(lambda m: built.append(m) or weight(m)))
    with torch.no_grad():
        model(x)
    assert not built
    assert same_without_gradients(copy.deepcopy(model), x)


@pytest.mark.parametrize("quantized", [False, True])
def test_sequences_of_several_lengths(quantized):
    torch.manual_seed(0)
    layer, parts = TTLinear(16, 8, rank=4), [torch.randn(3, 16), torch.randn(5, 16)]
    if quantized:
        prepare_qat(layer, 4, sample=(torch.cat(parts),)).eval()
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    outputs = layer(nested)
    for output, part in zip(outputs.unbind(), parts, strict=True):
        assert torch.allclose(output, layer(part), atol=1e-6)
    sum(output.sum() for output in outputs.unbind()).backward()
    assert all(core.grad.any() for core in layer.cores)
    assert nested.grad.unbind()[1].any()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sequences_of_several_lengths_in_a_residual_block():
    torch.manual_seed(0)
    layer, parts = TTLinear(16, 16, rank=4), [torch.randn(3, 16), torch.randn(5, 16)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    padded, starts, lengths = torch.randn(2, 7, 16), torch.tensor([0, 1]), torch.tensor([3, 5])
    holes = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged)
    heads = torch.nested.nested_tensor([torch.randn(n, 2, 16) for n in (3, 5)], layout=torch.jagged)
    strided = torch.nested.nested_tensor(parts)
    for nested in (jagged, holes, heads.transpose(1, 2), strided):
        outputs = nested + layer(nested)
        for output, part in zip(outputs.unbind(), nested.unbind(), strict=True):
            assert torch.allclose(output, part + layer(part), atol=1e-6)
    for bad in (jagged.transpose(1, 2), torch.nested.nested_tensor(parts, layout=torch.jagged)):
        with pytest.raises(ShapeError, match="input must have shape"):
            TTLinear(8, 8, rank=2)(bad)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_hooks_run_once_for_all_sequences(layout):
    layer, seen = TTLinear(16, 8, rank=4), []
    layer.register_forward_pre_hook(lambda module, arguments: seen.append("before"))
    layer.register_forward_hook(lambda module, arguments, output: seen.append("after"))
    layer(torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=layout))
    assert seen == ["before", "after"]


def test_the_weight_of_a_prepared_layer_is_what_it_multiplies_with():
    # as of PyTorch's own parametrized layers; attention reads the weight of its last layer
    torch.manual_seed(0)
    layer, x = TTLinear(16, 8, rank=4), torch.randn(9, 16)
    exact = layer.weight.detach()
    prepare_qat(layer, 3, sample=(x,)).eval()
    assert not torch.allclose(layer.weight, exact, atol=1e-3)
    for name in ("input", "hidden", "output"):
        del layer.quantizers[name]
    assert torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-6)
    dense = layer.to_linear()
    assert torch.allclose(dense(x), layer(x), atol=1e-6)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    attention.out_proj = prepare_qat(TTLinear(8, 8, rank=4), 3, activation_bits=None)
    y = torch.randn(2, 3, 8)
    coarse = attention(y, y, y)[0]
    attention.out_proj = attention.out_proj.to_linear()
    assert torch.allclose(attention(y, y, y)[0], coarse, atol=1e-6)
