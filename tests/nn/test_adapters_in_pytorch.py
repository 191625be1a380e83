"""Adapters in PyTorch's own attention modules and encoders, and in models of other kinds."""

import copy
import math

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import PELT, adapt, fix_gates, gate_values, merge, trainable, unadapt
from tensoralg.nn.adapted_attention import AdaptedMultiheadAttention

ALL = PELT(lora=2, adapter=3, prefix=4, prompt=2)


def stirred(model, seed=2):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pelt_" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.2 if "gate" not in name else 1))
    return model


def attention(batch_first=True, **options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, batch_first=batch_first, **options).double().eval()


def encoder(layers=2, batch_first=True, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first, **options)
    nested = batch_first and not options.get("norm_first", False)
    return (
        nn.TransformerEncoder(layer, layers, nn.LayerNorm(8), enable_nested_tensor=nested)
        .double()
        .eval()
    )


def inputs(batch=3, length=5, batch_first=True):
    torch.manual_seed(1)
    x = torch.randn(batch, length, 8, dtype=torch.float64)
    padding = torch.arange(length) >= torch.tensor([length, 3, 2])[:batch, None]
    return (x if batch_first else x.transpose(0, 1)), padding


# ------------------------------------------------------------------ nn.MultiheadAttention
PAIRS = torch.rand(5, 5, generator=torch.Generator().manual_seed(3)) < 0.3
PAIRS.fill_diagonal_(False)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pairs", [None, PAIRS, 3.0 * PAIRS.double()], ids=["none", "bool", "add"])
def test_closed_gates_are_pytorchs_attention(batch_first, bias, pairs):
    base = attention(batch_first, bias=bias)
    x, padding = inputs(batch_first=batch_first)
    arguments = {"key_padding_mask": padding, "attn_mask": pairs}
    if pairs is not None and pairs.dtype != torch.bool:
        arguments["key_padding_mask"] = padding.double() * -1e9
    for average in (True, False):
        expected, weights = base(x, x, x, average_attn_weights=average, **arguments)
        model = stirred(adapt(copy.deepcopy(base), PELT(lora=2, prefix=4)))
        assert not torch.allclose(model(x, x, x, **arguments)[0], expected, atol=1e-3)
        fix_gates(model, 0.0)
        found, own = model(x, x, x, average_attn_weights=average, **arguments)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(own, weights, atol=1e-12, rtol=0)
        assert model(x, x, x, need_weights=False, **arguments)[1] is None


def test_cross_attention_of_other_widths_and_unbatched_input():
    base = attention(kdim=6, vdim=7)
    torch.manual_seed(4)
    q = torch.randn(3, 4, 8, dtype=torch.float64)
    k, v = (torch.randn(3, 6, n, dtype=torch.float64) for n in (6, 7))
    padding = torch.tensor([[0, 0, 1, 0, 1, 1]] * 3).bool()
    expected = base(q, k, v, key_padding_mask=padding)[0]
    config = PELT(lora=2, prefix=3, targets=("query", "key", "value"))
    model = adapt(copy.deepcopy(base), config)
    numbers = 2 * (8 + 8) + 9 + 2 * (6 + 8) + 7 + 2 * (7 + 8) + 8 + 2 * 3 * 8 + 9
    assert trainable(model) == numbers
    stirred(model)
    garbage = torch.where(padding[..., None], 99.0, k)
    out = model(q, k, v, key_padding_mask=padding)[0]
    torch.testing.assert_close(model(q, garbage, v, key_padding_mask=padding)[0], out)
    alone = model(q[0], k[0], v[0], key_padding_mask=padding[0])
    torch.testing.assert_close(alone[0], out[0])
    assert alone[1].shape == (4, 6)
    fix_gates(model, 0.0)
    torch.testing.assert_close(model(q, k, v, key_padding_mask=padding)[0], expected)


def test_masks_of_every_head_and_a_query_without_keys():
    base = attention()
    x, _ = inputs()
    pairs = PAIRS.expand(6, 5, 5).clone()
    pairs[1, 0] = True  # sample 0, head 1
    pairs[3] = PAIRS.mT
    model = fix_gates(stirred(adapt(copy.deepcopy(base), PELT(lora=2, prefix=4))), 0.0)
    found, expected = model(x, x, x, attn_mask=pairs)[0], base(x, x, x, attn_mask=pairs)[0]
    torch.testing.assert_close(found[1:], expected[1:])
    assert torch.isfinite(found).all()


def test_dropout_of_weights_and_weights_beside_a_prefix():
    model = stirred(adapt(attention(dropout=0.5), PELT(prefix=4, gate=False)))
    x, padding = inputs()
    weights = model(x, x, x, key_padding_mask=padding)[1]
    assert weights.shape == (3, 5, 5)
    assert ((weights.sum(-1) < 1) & (weights.sum(-1) > 0)).all()
    model.train()
    torch.manual_seed(0)
    many = torch.stack([model(x, x, x, need_weights=False)[0] for _ in range(400)])
    model.eval()
    mean = model(x, x, x)[0]
    assert (many.mean(0) - mean).abs().max() < 6 * (many.std(0) / 20).max()
    assert many.std(0).min() > 0


def test_merging_pytorchs_projections():
    x, padding = inputs()
    for options in ({}, {"kdim": 8, "vdim": 8}):
        base = attention(**options)
        if options:  # separate weights
            base = attention(kdim=8, vdim=6)
        v = x[..., : base.vdim]
        keys = list(base.state_dict())
        config = PELT(lora=2, targets=("query", "key", "value", "out_proj"), gate=False)
        model = stirred(adapt(base, config))
        out = model(x, x, v, key_padding_mask=padding)[0]
        assert type(model) is AdaptedMultiheadAttention
        merge(model)
        assert type(model) is nn.MultiheadAttention
        assert list(model.state_dict()) == keys
        torch.testing.assert_close(model(x, x, v, key_padding_mask=padding)[0], out)


def test_what_pytorchs_attention_does_not_take():
    with pytest.raises(ValueError, match="bias_kv or add_zero_attn"):
        adapt(attention(add_bias_kv=True), PELT(prefix=2))
    with pytest.raises(ValueError, match="bias_kv or add_zero_attn"):
        adapt(attention(add_zero_attn=True), PELT(lora=2))
    with pytest.raises(ValueError, match=r"adapter=2: no linear layer is named"):
        adapt(attention(), PELT(adapter=2))
    with pytest.raises(ValueError, match="no block of a known kind"):
        adapt(attention(), PELT(prompt=2))
    with pytest.raises(ValueError, match="its own behaviour would be lost"):
        adapt(type("Mine", (nn.MultiheadAttention,), {})(8, 2), PELT(prefix=2))
    x, _ = inputs()
    with pytest.raises(ValueError, match="is_causal is a hint"):
        adapt(attention(), PELT(prefix=2))(x, x, x, is_causal=True)


def test_gates_would_look_ahead_under_a_causal_mask():
    x, _ = inputs()
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    for model in (attention(), encoder()):
        run = (
            (lambda m, mask: m(x, x, x, attn_mask=mask)[0])
            if isinstance(model, nn.MultiheadAttention)
            else (lambda m, mask: m(x, mask=mask))
        )
        expected = run(model, causal)
        stirred(adapt(model, PELT(lora=2, prefix=3)))
        for mask in (causal, causal == -math.inf):
            with pytest.raises(ValueError, match="would not keep later"):
                run(model, mask)
        fix_gates(model, 0.0)
        torch.testing.assert_close(run(model, causal), expected)


# ------------------------------------------------------------------ encoders
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    "config", [PELT(lora=2), PELT(adapter=3), PELT(prefix=4), PELT(prompt=2), ALL]
)
def test_encoders_with_closed_and_open_gates(config, batch_first, norm_first):
    base = encoder(batch_first=batch_first, norm_first=norm_first)
    x, padding = inputs(batch_first=batch_first)
    real = ~padding if batch_first else ~padding.mT
    expected = base(x, src_key_padding_mask=padding)[real]
    model = stirred(adapt(copy.deepcopy(base), config))
    out = model(x, src_key_padding_mask=padding)
    assert out.shape == x.shape
    assert not torch.allclose(out[real], expected, atol=1e-3)
    # padding reaches nothing, samples are alone
    garbage = torch.where(real[..., None], x, 50.0)
    torch.testing.assert_close(model(garbage, src_key_padding_mask=padding)[real], out[real])
    row = x[1:2, :3] if batch_first else x[:3, 1:2]
    alone = model(row)
    kept = out[1:2, :3] if batch_first else out[:3, 1:2]
    torch.testing.assert_close(alone, kept)
    torch.testing.assert_close(model(row.squeeze(0 if batch_first else 1)), alone.reshape(3, 8))
    values = gate_values(model, x, src_key_padding_mask=padding)
    assert values
    assert all(value.shape == (3,) for value in values.values())
    fix_gates(model, 0.0)
    torch.testing.assert_close(model(x, src_key_padding_mask=padding)[real], expected)
    unadapt(model)
    assert vars(model.layers[0])["activation_relu_or_gelu"] == 1
    torch.testing.assert_close(model(x, src_key_padding_mask=padding)[real], expected)
    assert list(model.state_dict()) == list(base.state_dict())


@pytest.mark.parametrize("batch_first", [True, False])
def test_both_layouts_compute_the_same(batch_first):
    model = stirred(adapt(encoder(batch_first=batch_first), ALL))
    other = stirred(adapt(encoder(batch_first=not batch_first), ALL))
    x, padding = inputs(batch_first=batch_first)
    out = model(x, src_key_padding_mask=padding)
    same = other(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
    torch.testing.assert_close(out, same)
    floats = torch.zeros(padding.shape, dtype=x.dtype).masked_fill(padding, -math.inf)
    torch.testing.assert_close(model(x, src_key_padding_mask=floats), out)


def test_one_layer_alone_takes_every_part():
    model = encoder().layers[0]
    x, padding = inputs()
    expected = model(x, src_key_padding_mask=padding)
    stirred(adapt(model, ALL))
    out = model(x, None, padding)
    assert out.shape == x.shape
    fix_gates(model, 0.0)
    torch.testing.assert_close(model(x, None, padding)[~padding], expected[~padding])


def test_prompts_do_not_carry_tokens_past_a_mask():
    model = stirred(adapt(encoder(), PELT(lora=2, prompt=3, prefix=2, gate=False)))
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x, _ = inputs()
    later = x.clone()
    later[:, 3:] = torch.randn(3, 2, 8, dtype=torch.float64)
    for mask in (causal, causal == -math.inf):
        first, second = model(x, mask=mask), model(later, mask=mask)
        torch.testing.assert_close(first[:, :3], second[:, :3])
        assert not torch.allclose(first[:, 3:], second[:, 3:])
    assert not torch.allclose(model(x)[:, :3], model(later)[:, :3])


def test_the_numbers_of_an_encoder():
    model = adapt(encoder(), ALL)
    layer = 2 * (2 * 2 * 8 + 9) + (2 * 3 * 8 + 3 + 8 + 9) + (2 * 4 * 8 + 9)
    assert trainable(model) == 2 * layer + 2 * 8 + 9


def test_an_encoder_learns_in_its_parts_only():
    model = adapt(encoder(dropout=0.0).train(), ALL)
    before = copy.deepcopy(model.state_dict())
    x, padding = inputs()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(x, src_key_padding_mask=padding)[:, 0] - x[:, 0].flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) == ("pelt_" not in name), name


def test_eval_mode_without_gradients_takes_no_shortcut():
    model = stirred(adapt(encoder(), ALL))
    x, padding = inputs()
    out = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), out)


def test_decoders_take_parts_without_gates():
    torch.manual_seed(0)
    base = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True).double().eval()
    with pytest.raises(ValueError, match="decodes: gates average over all tokens"):
        adapt(base, PELT(lora=2))
    with pytest.raises(ValueError, match="prompt=2"):
        adapt(base, PELT(prompt=2, gate=False))
    x, _ = inputs()
    memory = torch.randn(3, 6, 8, dtype=torch.float64)
    expected = base(x, memory)
    model = adapt(base, PELT(lora=2, adapter=3, gate=False))
    torch.testing.assert_close(model(x, memory), expected)
    assert trainable(model) == 2 * 2 * 2 * 16 + 2 * 3 * 8 + 11
    assert not torch.allclose(stirred(model)(x, memory), expected)
    torch.testing.assert_close(unadapt(model)(x, memory), expected)
    adapt(model, PELT(prefix=2, gate=False))(x, memory).sum().backward()


def test_two_stacks_have_no_place_for_prompts():
    with pytest.raises(ValueError, match="prompts need one stack"):
        adapt(nn.ModuleList([encoder(), encoder()]), PELT(prompt=2))


# ------------------------------------------------------------------ any other model
class Reader(nn.Module):
    """Written by someone else: linear layers named as they please, a mask of ones and zeros."""

    def __init__(self):
        super().__init__()
        self.query, self.value, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, attention_mask=None):
        mixed = self.query(x) * torch.tanh(self.value(x))
        if attention_mask is None:
            return self.out(mixed.mean(dim=-2))
        rows = attention_mask.to(x.dtype)[..., None]
        return self.out((mixed * rows).sum(1) / rows.sum(1))


def test_lora_and_adapters_in_any_model():
    torch.manual_seed(0)
    base = Reader().double()
    x, mask = torch.randn(3, 5, 4, dtype=torch.float64), torch.tensor([[1, 1, 1, 0, 0]] * 3)
    expected = base(x, mask)
    model = adapt(base, PELT(lora=2, adapter=2, after=("out",)))
    torch.testing.assert_close(model(x, mask), expected)
    stirred(model)
    out = model(x, attention_mask=mask)
    garbage = torch.where(mask[..., None].bool(), x, 30.0)
    torch.testing.assert_close(model(garbage, mask), out)
    torch.testing.assert_close(model(x[:, :3]), out)
    torch.testing.assert_close(model(x[:1], mask[:1]), out[:1])
    # a matrix of rows: samples do not see each other
    plain = stirred(adapt(nn.ModuleDict({"query": nn.Linear(4, 4)}).double(), PELT(lora=2)))
    rows = torch.randn(6, 4, dtype=torch.float64)
    layer = plain["query"]
    torch.testing.assert_close(layer(rows)[:2], layer(rows[:2]))
    torch.testing.assert_close(layer(rows)[0], layer(rows[0]))
    torch.testing.assert_close(layer(input=rows), layer(rows))


def test_masks_that_gates_cannot_read_are_refused():
    model = adapt(Reader(), PELT(lora=2))
    x = torch.zeros(3, 5, 4)
    with pytest.raises(ShapeError, match=r"gates need a mask of shape \(B, T\)"):
        model(x, torch.ones(3, 1, 1, 5))
    with pytest.raises(ShapeError, match="padding cannot be told"):
        model(x, torch.ones(3, 4))
    added = torch.tensor([[0.0, 0.0, 0.0, -1e9, -1e9]]).expand(3, 5)
    with pytest.raises(ValueError, match="1 for a token and 0 for padding"):
        model(x, added)


def test_a_layer_used_twice_is_adapted_once():
    shared = nn.Linear(4, 4)
    base = nn.ModuleDict({"query": shared, "value": shared})
    model = adapt(base, PELT(lora=2, gate=False))
    assert trainable(model) == 2 * 8
    stirred(model)
    x = torch.ones(1, 4)
    out = model["value"](x)
    torch.testing.assert_close(merge(model)["query"](x), out)


def test_layers_of_unknown_size_are_refused():
    with pytest.raises(ValueError, match="does not know its size"):
        adapt(nn.ModuleDict({"query": nn.LazyLinear(3)}), PELT(lora=2))


def test_a_layer_of_a_model_on_another_device():
    model = adapt(encoder().to("meta"), ALL)
    out = model(torch.empty(3, 5, 8, dtype=torch.float64, device="meta"))
    assert out.is_meta
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("gate", [True, False])
def test_an_adapter_behind_the_output_of_an_attention(gate):
    config = PELT(adapter=3, after=("out_proj",), gate=gate)
    base, (x, padding) = attention(), inputs()
    model = adapt(copy.deepcopy(base), config)
    expected = base(x, x, x, key_padding_mask=padding)[0]
    torch.testing.assert_close(model(x, x, x, key_padding_mask=padding)[0], expected)
    stirred(model)
    found = model(x, x, x, key_padding_mask=padding)[0]
    weight = (
        gate_values(model, x, x, x, key_padding_mask=padding)["out_proj.pelt_adapter.gate"][
            :, None, None
        ]
        if gate
        else 1.0
    )
    part = model.out_proj.pelt_adapter
    added = weight * part.up(part.down(expected).relu())
    torch.testing.assert_close(found, expected + added)
    stack = stirred(adapt(encoder(), config))
    with torch.no_grad():
        assert not torch.allclose(stack(x), encoder()(x), atol=1e-3)
    with pytest.raises(ValueError, match="bias_kv"):
        adapt(attention(add_bias_kv=True), config)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_masks_of_integers_are_refused_as_pytorch_does(dtype):
    model, (x, padding) = adapt(attention(), PELT(lora=2, prefix=4)), inputs()
    with pytest.raises(TypeError, match="key_padding_mask must be boolean or floating"):
        model(x, x, x, key_padding_mask=padding.to(dtype))
    with pytest.raises(TypeError, match="attn_mask must be boolean or floating"):
        model(x, x, x, attn_mask=torch.zeros(5, 5, dtype=dtype))


def test_masks_are_not_broadcast():
    model, (x, padding) = adapt(attention(), PELT(lora=2, prefix=4)), inputs()
    for wrong in (padding[:1], padding[:, :1], padding[0]):
        with pytest.raises(ShapeError, match=r"key_padding_mask must have shape \(3, 5\)"):
            model(x, x, x, key_padding_mask=wrong)
    for shape in ((1, 5), (5, 1), (3, 5, 5), (3, 2, 5, 5)):
        with pytest.raises(ShapeError, match=r"attn_mask must have shape \(5, 5\) or \(6, 5, 5\)"):
            model(x, x, x, attn_mask=torch.zeros(shape, dtype=torch.float64))


def test_large_negative_numbers_forbid_like_infinity():
    model, (x, padding) = stirred(adapt(encoder(), PELT(lora=2, adapter=2, prefix=4))), inputs()
    expected = model(x, src_key_padding_mask=padding)
    for least in (-math.inf, -1e9, -1e4):
        mask = torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, least)
        found = model(x, src_key_padding_mask=mask)
        kept = ~padding
        torch.testing.assert_close(found[kept], expected[kept])
        causal = torch.full((5, 5), least, dtype=torch.float64).triu(1)
        with pytest.raises(ValueError, match="causal"):
            model(x, mask=causal)
