"""Adapters in a sentence classifier: what the model computes, learns, and gives back."""

import copy
import itertools

import pytest
import torch
from torch import nn

from tensoralg.nn import (
    PELT,
    EncoderConfig,
    KVMemory,
    TransformerClassifier,
    TTLinear,
    adapt,
    attend,
    fix_gates,
    gate_values,
    merge,
    tensorize,
    trainable,
    unadapt,
    with_memory,
)
from tensoralg.nn.adapted_attention import AdaptedSelfAttention
from tensoralg.nn.training import fit
from tensoralg.nn.transformer import SelfAttention

SIZES = EncoderConfig(
    vocabulary=40, classes=3, hidden=12, heads=3, layers=2, feed_forward=20, positions=16
)
ALL = PELT(lora=2, adapter=5, prefix=4, prompt=3)
SUBSETS = [
    dict.fromkeys(names, 3)
    for size in range(1, 5)
    for names in itertools.combinations(("lora", "adapter", "prefix", "prompt"), size)
]


def classifier(seed=0, **changes):
    torch.manual_seed(seed)
    return TransformerClassifier(SIZES).double().eval()


def sentences(seed=1, batch=4, length=9):
    torch.manual_seed(seed)
    tokens = torch.randint(1, 40, (batch, length))
    lengths = torch.randint(2, length + 1, (batch,))
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]
    return tokens * mask, mask


def stirred(model, seed=2):
    """The model with every new part away from its start."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pelt_" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.2 if "gate" not in name else 1))
    return model


# ------------------------------------------------------------------ the start and closed gates
@pytest.mark.parametrize("methods", SUBSETS, ids=lambda m: "+".join(m))
def test_closed_gates_are_the_base_model_and_gates_lie_between(methods):
    base, batch = classifier(), sentences()
    expected = base(*batch)
    model = stirred(adapt(base, PELT(**methods)))
    assert not torch.allclose(model(*batch), expected, atol=1e-3)
    values = gate_values(model, *batch)
    assert all(((v > 0) & (v < 1)).all() and v.shape == (4,) for v in values.values())
    assert len({round(v.std().item(), 9) for v in values.values()}) == len(values)  # per sample
    fix_gates(model, 0.0)
    torch.testing.assert_close(model(*batch), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(model(batch[0]), classifier()(batch[0]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("gate", [True, False])
def test_weights_and_adapters_start_as_the_base_model(gate):
    batch = sentences()
    expected = classifier()(*batch)
    for config in (PELT(3, gate=gate), PELT(0, 4, gate=gate), PELT(3, 4, gate=gate)):
        assert torch.equal(adapt(classifier(), config)(*batch), expected)


@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_slots_start_as_near_to_the_base_model_as_their_gate_says(method):
    batch = sentences()
    expected = classifier()(*batch)
    distances = []
    for gate in (1e-2, 1e-4, 1e-9):
        torch.manual_seed(3)
        model = adapt(classifier(), PELT(**{method: 5}, initial_gate=gate))
        distances.append((model(*batch) - expected).abs().max().item())
    assert distances[1] == pytest.approx(distances[0] / 100, rel=0.1)
    assert distances[2] < 1e-8


@pytest.mark.parametrize("methods", SUBSETS, ids=lambda m: "+".join(m))
def test_open_gates_are_the_parts_without_gates(methods):
    batch = sentences()
    gated = fix_gates(stirred(adapt(classifier(), PELT(**methods))), 1.0)
    plain = adapt(classifier(), PELT(**methods, gate=False))
    weights = {k: v for k, v in gated.state_dict().items() if "gate" not in k}
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain(*batch), gated(*batch), atol=1e-12, rtol=0)


def test_all_parts_against_a_plain_forward():
    """One block with every part, written down again without hooks."""
    torch.manual_seed(4)
    sizes = EncoderConfig(20, classes=2, hidden=6, heads=2, layers=1, feed_forward=8, positions=9)
    base = TransformerClassifier(sizes).double().eval()
    model = stirred(adapt(copy.deepcopy(base), PELT(lora=2, adapter=3, prefix=2, prompt=2)))
    tokens, mask = torch.randint(0, 20, (3, 5)), torch.tensor([[1, 0, 1, 1, 0]] * 3).bool()
    part = dict(model.named_modules())
    place = "blocks.0.attention"

    def gate(name, x, rows):
        scores = torch.sigmoid(x @ part[name].weight + part[name].bias)
        return (scores * rows).sum(dim=1, keepdim=True)[..., None] / rows.sum(1)[:, None, None]

    block, rows = base.blocks[0], mask.double()
    hidden = base.embedding(tokens)
    prompts = part["pelt_prompt"]
    prompt_gate = gate("pelt_prompt.gate", hidden, rows)
    hidden = torch.cat([prompts.tokens.expand(3, -1, -1), hidden], dim=1)
    real = torch.cat([torch.zeros(3, 2), rows], dim=1)
    parts = {"query": block.attention.query, "key": block.attention.key}
    parts["value"] = block.attention.value
    projected = {}
    for name, layer in parts.items():
        projected[name] = layer(hidden)
        if name != "key":
            delta = part[f"{place}.{name}.pelt_lora"]
            change = hidden @ delta.delta.matrix().mT
            projected[name] += gate(f"{place}.{name}.pelt_lora.gate", hidden, real) * change
    q, k, v = (x.view(3, -1, 2, 3).transpose(1, 2) for x in projected.values())
    prefix = part[f"{place}.pelt_prefix"]
    own = [x.view(2, 2, 3).transpose(0, 1).expand(3, 2, 2, 3) for x in (prefix.keys, prefix.values)]
    scores = q @ torch.cat([own[0], k], dim=2).mT / 3**0.5
    prefix_gate = gate(f"{place}.pelt_prefix.gate", hidden, real)
    factors = [prefix_gate[:, 0].expand(3, 2), prompt_gate[:, 0].expand(3, 2), rows]
    weights = scores.exp() * torch.cat(factors, dim=1)[:, None, None]
    attended = weights / weights.sum(-1, keepdim=True) @ torch.cat([own[1], v], dim=2)
    attended = block.attention.output(attended.transpose(1, 2).reshape(3, 7, 6))
    hidden = block.attention_norm(hidden + attended)
    inner = block.contract(nn.functional.gelu(block.expand(hidden)))
    adapter = part["blocks.0.contract.pelt_adapter"]
    strength = gate("blocks.0.contract.pelt_adapter.gate", inner, real)
    inner = inner + strength * adapter.up(adapter.down(inner).relu())
    hidden = block.output_norm(hidden + inner)[:, 2:]
    pooled = (hidden * rows[..., None]).sum(1) / rows.sum(1)[:, None]
    torch.testing.assert_close(model(tokens, mask), base.classifier(pooled))


def test_a_multiplied_prefix_would_not_do():
    """A gate on keys and values leaves the slots their share of the softmax; a bias does not."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 1, 4, 8, dtype=torch.float64) for _ in range(3))
    keys, values = torch.randn(2, 1, 1, 10, 8, dtype=torch.float64)
    both = torch.cat([torch.zeros_like(keys), k], 2), torch.cat([torch.zeros_like(values), v], 2)
    assert (attend(q, *both) - attend(q, k, v)).abs().max() > 0.1
    bias = torch.cat([torch.full((10,), -torch.inf), torch.zeros(4)])
    joined = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    torch.testing.assert_close(attend(q, *joined, bias=bias), attend(q, k, v))


# ------------------------------------------------------------------ samples, padding, holes
def test_a_padded_batch_equals_single_rows_of_any_padding():
    tokens, mask = sentences()
    model = stirred(adapt(classifier(), ALL))
    together = model(tokens, mask)
    for row in range(4):
        length = int(mask[row].sum())
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row], alone[0], atol=1e-12, rtol=0)
    garbage = torch.where(mask, tokens, 39)
    torch.testing.assert_close(model(garbage, mask), together, atol=1e-12, rtol=0)


def test_a_hole_in_the_mask_is_ignored():
    tokens, mask = torch.tensor([[3, 7, 5]]), torch.tensor([[True, False, True]])
    for config in (PELT(prefix=4), ALL):
        model = stirred(adapt(classifier(), config))
        other = torch.tensor([[3, 30, 5]])
        torch.testing.assert_close(model(tokens, mask), model(other, mask), atol=1e-12, rtol=0)
        assert not torch.allclose(model(tokens), model(other))


def test_only_padding_and_no_rows_stay_finite():
    model = stirred(adapt(classifier(), ALL))
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    out = model(tokens, torch.zeros(2, 5, dtype=torch.bool))
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model(tokens[:0], torch.zeros(0, 5, dtype=torch.bool)).shape == (0, 3)


def test_gates_tell_samples_apart_and_do_not_mix_them():
    tokens, mask = sentences()
    model = stirred(adapt(classifier(), ALL))
    values = gate_values(model, tokens, mask)
    changed = tokens.clone()
    changed[1:] = torch.randint(1, 40, changed[1:].shape)
    for name, value in gate_values(model, changed, mask).items():
        assert value[0] == pytest.approx(values[name][0].item(), abs=1e-14)


# ------------------------------------------------------------------ what is trained
def closed_form(config, layers=2, width=12):
    """Numbers of the parts as the documentation states them."""
    gate = config.gate * (width + 1)
    numbers = 0
    if config.lora:
        numbers += layers * 2 * (2 * config.lora * width + gate)
    if config.adapter:
        numbers += layers * (2 * config.adapter * width + config.adapter + width + gate)
    if config.prefix:
        numbers += layers * (2 * config.prefix * width + gate)
    if config.prompt:
        numbers += config.prompt * width + gate
    return numbers


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("methods", SUBSETS, ids=lambda m: "+".join(m))
def test_trainable_numbers_have_a_closed_form(methods, gate):
    config = PELT(**methods, gate=gate)
    model = adapt(classifier(), config)
    assert trainable(model) == closed_form(config)
    named = [n for n, p in model.named_parameters() if p.requires_grad and "gate" in n]
    assert bool(named) == gate


def test_the_numbers_of_bert_base():
    # the sizes that the parts depend on; a narrow feed-forward part is quicker to draw
    base = TransformerClassifier(EncoderConfig(2, 2, layers=12, feed_forward=2, positions=2))
    for config, numbers in (
        (PELT(lora=8, gate=False), 294_912),
        (PELT(adapter=48, gate=False), 894_528),
        (PELT(prefix=10, gate=False), 184_320),
    ):
        model = adapt(base, config)
        assert trainable(model) == numbers == closed_form(config, layers=12, width=768)
        unadapt(model)


def test_a_train_of_matrices_in_the_place_of_lora():
    shape = (3, 4)
    config = PELT(lora=2, gate=False, delta_in_shape=shape, delta_out_shape=shape)
    model, batch = adapt(classifier(), config), sentences()
    assert trainable(model) == 4 * (3 * 3 * 2 + 2 * 4 * 4)
    assert torch.equal(model(*batch), classifier()(*batch))
    out = stirred(model)(*batch)
    torch.testing.assert_close(merge(model)(*batch), out)
    # two cores are LoRA
    lora = stirred(adapt(classifier(), PELT(lora=2, gate=False)))
    two = PELT(lora=2, gate=False, delta_in_shape=(12, 1), delta_out_shape=(1, 12))
    same = adapt(classifier(), two)
    parts = dict(lora.named_modules())
    with torch.no_grad():
        for name, module in same.named_modules():
            if name.endswith("pelt_lora.delta"):
                module.cores[0].copy_(parts[name].down.mT.reshape(1, 12, 1, 2))
                module.cores[1].copy_(parts[name].up.mT.reshape(2, 1, 12, 1))
    torch.testing.assert_close(same(*batch), lora(*batch))
    assert trainable(same) == trainable(lora)


def learn(model, steps=25, seed=6):
    tokens, mask = sentences(seed, batch=12)
    batch = tokens, mask, tokens[:, 0] % 3
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.02)
    return fit(model, [batch], optimizer, epochs=steps).history


def test_training_changes_the_parts_only():
    model = adapt(classifier(), ALL)
    before = copy.deepcopy(model.state_dict())
    history = learn(model, steps=60)
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    for name, value in model.named_parameters():
        same = torch.equal(value, before[name])
        assert same == ("pelt_" not in name), name
    base = classifier().state_dict()
    assert all(torch.equal(base[name], before[name]) for name in base)


def test_named_parameters_are_trained_as_well():
    config = PELT(lora=2, gate=False, train=("classifier", "blocks.1.*norm.bias"))
    model = adapt(classifier(), config)
    assert trainable(model) == closed_form(config) + (12 * 3 + 3) + 2 * 12
    before = copy.deepcopy(model.state_dict())
    learn(model, steps=2)
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    own = {"classifier.weight", "classifier.bias"}
    own |= {f"blocks.1.{norm}.bias" for norm in ("attention_norm", "output_norm")}
    assert {n for n in changed if "pelt_" not in n} == own
    head = adapt(classifier(), PELT(train="classifier"))
    assert trainable(head) == 39


# ------------------------------------------------------------------ taking away, merging
@pytest.mark.parametrize("methods", SUBSETS, ids=lambda m: "+".join(m))
def test_a_model_without_its_parts_is_what_it_was(methods):
    base, batch = classifier(), sentences()
    base.embedding.tokens.requires_grad_(False)
    keys, expected = list(base.state_dict()), base(*batch)
    model = unadapt(stirred(adapt(base, PELT(**methods))))
    assert list(model.state_dict()) == keys
    assert torch.equal(model(*batch), expected)
    required = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert required == {"embedding.tokens.weight"}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("pelt_context" in vars(m) for m in model.modules())
    assert type(model.blocks[0].attention) is SelfAttention
    adapt(model, ALL)  # and again


def test_without_the_prefix_lora_alone_remains():
    batch = sentences()
    model = stirred(adapt(classifier(), PELT(lora=2, prefix=4)))
    lora = adapt(classifier(), PELT(lora=2))
    lora.load_state_dict({k: v for k, v in model.state_dict().items() if "prefix" not in k})
    unadapt(model, "prefix")
    torch.testing.assert_close(model(*batch), lora(*batch))
    assert trainable(model) == trainable(lora)
    with pytest.raises(ValueError, match=r"no \['prefix'\]; it has \('lora',\)"):
        unadapt(model, "prefix")


@pytest.mark.parametrize("gone", ["lora", "adapter", "prefix", "prompt"])
def test_any_part_can_be_taken_away_alone(gone):
    batch = sentences()
    model = stirred(adapt(classifier(), ALL))
    unadapt(model, gone)
    rest = {"lora": 2, "adapter": 5, "prefix": 4, "prompt": 3} | {gone: 0}
    same = adapt(classifier(), PELT(**rest))
    same.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(*batch), same(*batch))


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_merged_weights_compute_the_same(scale):
    batch = sentences()
    for constant in (None, 0.4):
        base = classifier().float()
        config = PELT(lora=2, gate=constant is not None, lora_scale=scale)
        model = stirred(adapt(base, config))
        if constant is not None:
            fix_gates(model, constant)
        out = model(*batch)
        assert not torch.allclose(out, classifier().float()(*batch), atol=1e-3)
        assert merge(model) is base
        torch.testing.assert_close(base(*batch), out, atol=1e-5, rtol=0)
        assert list(base.state_dict()) == list(classifier().state_dict())
        with pytest.raises(ValueError, match="merged already"):
            merge(base)
        assert trainable(base) == trainable(classifier())
        adapt(base, PELT(lora=1))  # the next task


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PELT(prompt=3), "prompt=3 is no change of a weight; there is no lora"),
        (PELT(lora=2, adapter=4, gate=False), "adapter=4 is no change of a weight"),
        (PELT(lora=2, prefix=4, gate=False), "prefix=4 is no change of a weight"),
        (PELT(lora=2), r"blocks.0.attention.query.pelt_lora.gate depends on the input"),
    ],
)
def test_what_cannot_be_merged_is_named_and_left_alone(config, words):
    batch = sentences()
    model = stirred(adapt(classifier(), config))
    before, out = copy.deepcopy(model.state_dict()), model(*batch)
    with pytest.raises(ValueError, match=words):
        merge(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(*batch), out)


def test_weights_that_cannot_take_a_change():
    model = stirred(adapt(classifier(), PELT(lora=2, gate=False)))
    with torch.no_grad():
        model.blocks[0].attention.query.pelt_lora.delta.up[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"query.pelt_lora is not finite"):
        merge(model)
    shared = classifier()
    shared.blocks[1].attention.query.weight = shared.blocks[0].attention.query.weight
    adapt(shared, PELT(lora=2, gate=False))
    with pytest.raises(ValueError, match=r"the weight of 'blocks.0.attention.query' is shared"):
        merge(shared)


def test_layers_that_are_tensor_trains_take_lora_but_no_merging():
    base, batch = classifier(), sentences()
    for block in base.blocks:
        block.attention.query = TTLinear.from_linear(block.attention.query, rank=4)
    expected = base(*batch)
    model = adapt(base, PELT(lora=2, gate=False))
    assert torch.equal(model(*batch), expected)
    assert trainable(model) == closed_form(PELT(lora=2, gate=False))
    assert not torch.allclose(stirred(model)(*batch), expected)
    with pytest.raises(ValueError, match="no dense matrix"):
        merge(model)
    assert torch.equal(unadapt(model)(*batch), expected)


# ------------------------------------------------------------------ refusals
def test_what_adapt_refuses():
    model = classifier()
    with pytest.raises(TypeError, match="config must be a PELT; got dict"):
        adapt(model, {"lora": 2})
    with pytest.raises(ValueError, match=r"no linear layer is named \('wq',\); there are"):
        adapt(model, PELT(lora=2, targets=("wq",)))
    with pytest.raises(ValueError, match="no parameter of the model is named 'head'"):
        adapt(model, PELT(lora=2, train=("head",)))
    plain = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="prefix=2: the model has no attention of a known kind"):
        adapt(plain, PELT(prefix=2))
    with pytest.raises(ValueError, match="prompt=2: the model has no block of a known kind"):
        adapt(plain, PELT(prompt=2))
    assert all(p.requires_grad for p in model.parameters())  # nothing has happened
    adapt(model, PELT(lora=2))
    with pytest.raises(ValueError, match="adapted already"):
        adapt(model, PELT(lora=2))
    with pytest.raises(ValueError, match="a part of the model is adapted already"):
        adapt(nn.Sequential(model), PELT(lora=2))


@pytest.mark.parametrize("function", [unadapt, merge, lambda m: fix_gates(m, 0.5), gate_values])
def test_a_model_that_is_not_adapted_is_refused(function):
    with pytest.raises(ValueError, match="the model is not adapted"):
        function(classifier())


def test_what_fix_gates_refuses():
    model = adapt(classifier(), PELT(lora=2, prefix=3))
    with pytest.raises(ValueError, match=r"value must lie in \[0, 1\]; got 1.5 for 'lora'"):
        fix_gates(model, {"lora": 1.5})
    with pytest.raises(ValueError, match="no gate is named 'prompt'"):
        fix_gates(model, {"prompt": 0.5})
    plain = adapt(classifier(), PELT(lora=2, gate=False))
    with pytest.raises(ValueError, match="gate=False"):
        fix_gates(plain, 0.5)


def test_gates_are_fixed_by_method_or_name_and_freed():
    model, batch = stirred(adapt(classifier(), PELT(lora=2, prefix=3))), sentences()
    values, numbers = gate_values(model, *batch), trainable(model)
    name = "blocks.0.attention.query.pelt_lora.gate"
    fix_gates(model, {"prefix": 0.25, name: 0.5})
    found = gate_values(model, *batch)
    assert {n for n in found if found[n].shape == (1,)} == {
        n for n in values if "prefix" in n or n == name
    }
    assert trainable(model) == numbers - 3 * 13
    fix_gates(model, None)
    assert trainable(model) == numbers
    assert all(torch.equal(gate_values(model, *batch)[n], values[n]) for n in values)


def test_fixed_gates_are_part_of_the_state():
    batch = sentences()
    model = fix_gates(stirred(adapt(classifier(), ALL)), {"prefix": 0.0, "lora": 0.5})
    other = adapt(classifier(), ALL)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(*batch), model(*batch))
    assert trainable(other) == trainable(model)
    other.load_state_dict(adapt(classifier(), ALL).state_dict())
    assert trainable(other) == closed_form(ALL)


# ------------------------------------------------------------------ life with other tools
def test_copies_are_independent():
    batch = sentences()
    model = stirred(adapt(classifier(), ALL))
    twin = copy.deepcopy(model)
    assert torch.equal(twin(*batch), model(*batch))
    out = model(*batch)
    stirred(twin, seed=9)
    assert torch.equal(model(*batch), out)
    fix_gates(twin, 0.0)
    torch.testing.assert_close(twin(*batch), classifier()(*batch))
    assert torch.equal(model(*batch), out)
    assert isinstance(twin.blocks[0].attention, AdaptedSelfAttention)


def test_an_error_in_a_block_leaves_nothing_behind():
    batch = sentences()
    model = stirred(adapt(classifier(), ALL))
    out = model(*batch)
    model.blocks[1].expand, good = nn.Linear(3, 4), model.blocks[1].expand
    with pytest.raises(RuntimeError):
        model(*batch)
    model.blocks[1].expand = good
    assert torch.equal(model(*batch), out)
    assert torch.equal(stirred(adapt(classifier(), ALL))(*batch), out)


def test_a_later_block_cannot_run_alone_with_prompts():
    model = adapt(classifier(), PELT(prompt=2))
    with pytest.raises(RuntimeError, match="prompts enter at the first block"):
        model.blocks[1](torch.zeros(1, 3, 12, dtype=torch.float64))


def test_other_types_and_modes():
    tokens, mask = sentences()
    half = stirred(adapt(classifier().bfloat16(), ALL))
    assert half(tokens, mask).dtype == torch.bfloat16
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    model = stirred(adapt(classifier().float(), ALL))
    exact = model(tokens, mask)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(tokens, mask).float(), exact, atol=0.1, rtol=0.1)
    model.train()
    assert all(m.training for m in model.modules())


def test_a_part_of_a_block_alone_knows_no_padding():
    model, hidden = adapt(classifier(), PELT(lora=2)), torch.zeros(1, 3, 12, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="runs outside its block"):
        model.blocks[0].attention.query(hidden)
    fix_gates(model, 0.5)
    model.blocks[0].attention.query(hidden)


def test_memories_take_weights_and_adapters_and_refuse_slots():
    batch = sentences()
    model = stirred(adapt(classifier(), PELT(lora=2, adapter=3)))
    remembering = with_memory(model, 32, 16, chunk=4)
    torch.testing.assert_close(remembering(*batch), model(*batch))
    torch.testing.assert_close(model(*batch), remembering(*batch))
    small = adapt(with_memory(classifier(), 6, 2, "lra", chunk=4), PELT(lora=2))
    same = with_memory(adapt(classifier(), PELT(lora=2)), 6, 2, "lra", chunk=4)
    torch.testing.assert_close(stirred(small)(*batch), stirred(same)(*batch))
    with pytest.raises(TypeError, match="AdaptedSelfAttention"):
        with_memory(adapt(classifier(), PELT(prefix=2)), 32, 16)
    with pytest.raises(ValueError, match="MemorySelfAttention: its own behaviour"):
        adapt(with_memory(classifier(), 32, 16), PELT(prefix=2))


def test_training_mode_is_taken_over_part_by_part():
    model = classifier().train()
    model.blocks[0].eval()
    adapt(model, ALL)
    assert not any(m.training for m in model.blocks[0].modules())
    assert model.blocks[1].contract.pelt_adapter.down.training


def test_layers_with_adapters_are_not_tensorized():
    model = adapt(classifier(), PELT(lora=2, adapter=2))
    report = tensorize(model, rank=1).report
    reasons = {row.name: row.reason for row in report.rows if row.name.endswith("query")}
    assert set(reasons.values()) == {"its hooks would be lost"}


@pytest.mark.slow
def test_compiled():
    batch = sentences()
    model = stirred(adapt(classifier(), ALL))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch), model(*batch))


def test_a_prefix_is_the_pinned_slots_of_a_memory():
    """One call of `attend` carries both; gradients reach the learned slots and their gate."""
    hidden = torch.randn(3, 6, 12, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    model = stirred(adapt(classifier(), PELT(prefix=4)))
    attention = model.blocks[0].attention
    q, k, v = (
        layer(hidden).view(3, 6, 3, 4).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    )
    memory = KVMemory(6, "lra")
    keys, values, bias = attention.pelt_prefix.slots(hidden, mask, heads=3)
    memory.pin(keys, values, bias=bias)
    memory.append(k, v, valid=mask)
    read = attention.output(memory.read(q).transpose(1, 2).flatten(2))
    torch.testing.assert_close(read, attention(hidden, mask))
    read[mask].sum().backward()
    part = attention.pelt_prefix
    assert all(p.grad.abs().sum() > 0 for p in (part.keys, part.values, part.gate.weight))
