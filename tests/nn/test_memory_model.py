"""Models with memory against themselves without; streams against whole inputs."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import (
    PELT,
    EncoderConfig,
    MemoryStream,
    TransformerClassifier,
    adapt,
    merge,
    unadapt,
    with_memory,
)
from tensoralg.nn.key_value_memory import POLICIES

CONFIG = EncoderConfig(
    vocabulary=50, classes=3, hidden=16, heads=4, layers=3, feed_forward=32, positions=80,
    dropout=0.0,
)  # fmt: skip


def classifier(**changes):
    torch.manual_seed(0)
    return TransformerClassifier(dataclasses.replace(CONFIG, **changes)).eval()


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


def batch(lengths=(60, 23, 1)):
    tokens = torch.randint(1, 50, (len(lengths), max(lengths)), generator=torch.manual_seed(1))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return tokens * mask, mask


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_a_large_memory_changes_nothing(policy, chunk):
    model = classifier()
    tokens, mask = batch()
    twin = with_memory(model, 76, 60, policy, chunk=chunk)
    assert type(twin) is TransformerClassifier
    with torch.no_grad():
        torch.testing.assert_close(twin(tokens, mask), model(tokens, mask), rtol=0, atol=1e-5)
        torch.testing.assert_close(twin(tokens), model(tokens), rtol=0, atol=1e-5)


def test_the_model_itself_stays_and_shares_its_parameters():
    model = classifier()
    tokens, mask = batch()
    before, names = model(tokens, mask), list(model.state_dict())
    twin = with_memory(model, 24, 8)
    assert not torch.allclose(twin(tokens, mask), before, atol=1e-4)
    assert torch.equal(model(tokens, mask), before)
    assert list(twin.state_dict()) == names
    assert [id(p) for p in twin.parameters()] == [id(p) for p in model.parameters()]
    twin.classifier.weight.data.zero_()
    assert (model.classifier.weight == 0).all()
    twin.extra = nn.Linear(2, 2)
    assert not hasattr(model, "extra")
    copied = copy.deepcopy(twin)
    assert torch.equal(copied(tokens, mask), twin(tokens, mask))


def test_gradients_equal_those_of_full_attention():
    model = classifier()
    tokens, mask = batch()
    twin = with_memory(model, 76, 60)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(tokens, mask).sin().sum(), parameters)
    found = torch.autograd.grad(twin(tokens, mask).sin().sum(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_padded_batch_equals_single_sentences(policy):
    twin = with_memory(classifier(), 16, 8, policy, chunk=4)
    lengths = (60, 23, 1)
    tokens, mask = batch(lengths)
    with torch.no_grad():
        together = twin(tokens, mask)
        for row, length in enumerate(lengths):
            alone = twin(tokens[row : row + 1, :length])
            torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_pytorchs_encoder(norm_first, training):
    model = encoder(norm_first=norm_first).train(training)
    x = torch.randn(3, 60, 16, generator=torch.Generator().manual_seed(2))
    _, mask = batch()
    twin = with_memory(model, 76, 60, "lfa")
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=~mask)
        found = twin(x, src_key_padding_mask=~mask)
        torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)
        causal = nn.Transformer.generate_square_subsequent_mask(60)
        for forbidden in (causal, causal == -torch.inf):
            found = twin(x, mask=forbidden)
            torch.testing.assert_close(found, model(x, mask=causal), rtol=0, atol=1e-5)
        small = with_memory(model, 24, 8, "lfa")
        assert not torch.allclose(small(x), model(x), atol=1e-3)  # no fused kernel went past it


def test_pytorchs_decoder_attends_itself_and_the_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0)
    model = nn.TransformerDecoder(layer, 2).eval()
    target, source = torch.randn(9, 3, 16), torch.randn(30, 3, 16)
    lengths = torch.tensor([30, 12, 4])
    padding = torch.arange(30) >= lengths[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    options = {"tgt_mask": causal, "tgt_is_causal": True, "memory_key_padding_mask": padding}
    with torch.no_grad():
        expected = model(target, source, **options)
        found = with_memory(model, 30, 0, chunk=8)(target, source, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"batch_first": False, "bias": False},
        {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True},
        {"batch_first": True, "kdim": 10, "vdim": 12},
    ],
)
def test_a_single_attention_module(options):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, **options)
    twin = with_memory(model, 40, 20, chunk=8)
    x = torch.randn(20, 20, 16)
    key, value = (torch.randn(20, 20, options.get(n, 16)) for n in ("kdim", "vdim"))
    arguments = (x, key, value) if "kdim" in options else (x, x, x)
    padding = torch.rand(20, 20) > 0.8
    for mask in (None, padding, torch.zeros(20, 20).masked_fill(padding, -torch.inf)):
        found, weights = twin(*arguments, key_padding_mask=mask)
        torch.testing.assert_close(found, model(*arguments, key_padding_mask=mask)[0])
        assert weights is None
    single = [a[0] if options.get("batch_first") else a[:, 0] for a in arguments]
    if "kdim" not in options:
        single = [single[0]] * 3
    found, expected = twin(*single)[0], model(*single)[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pieces", [[60], [1] * 60, [7, 0, 30, 23], [16, 16, 16, 12]])
def test_a_stream_equals_the_whole_however_it_is_cut(policy, pieces):
    twin = with_memory(classifier(), 24, 10, policy, chunk=6)
    tokens, mask = batch()
    last = []
    handle = twin.blocks[-1].register_forward_hook(lambda *a: last.append(a[-1]))
    with torch.no_grad():
        logits = twin(tokens, mask)
        handle.remove()
        stream = MemoryStream(twin)
        parts, start = [], 0
        for size in pieces:
            parts.append(
                stream.push(tokens[:, start : start + size], mask[:, start : start + size])
            )
            start += size
        parts.append(stream.flush())
        hidden = torch.cat([part.hidden for part in parts], dim=1)
        positions = torch.cat([part.positions for part in parts])
        assert positions.tolist() == list(range(60))
        torch.testing.assert_close(hidden, last[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(twin.classifier(stream.mean), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_stream_through_pytorchs_encoder(norm_first, causal):
    model = encoder(norm_first=norm_first)
    model.norm = nn.LayerNorm(16) if norm_first else None
    twin = with_memory(model, 24, 10, chunk=6, causal=causal)
    x = torch.randn(2, 50, 16)
    with torch.no_grad():
        stream = MemoryStream(twin)
        parts = [stream.push(part).hidden for part in x.split(9, dim=1)]
        parts.append(stream.flush().hidden)
        torch.testing.assert_close(torch.cat(parts, dim=1), twin(x), rtol=0, atol=1e-5)


def test_memory_does_not_grow_with_the_stream():
    twin = with_memory(classifier(), 24, 10, chunk=6)
    stream = MemoryStream(twin, beyond="wrap")
    sizes = set()
    with torch.no_grad():
        for count in range(60):
            stream.push(torch.full((2, 6), count % 50))
            if count > 20:
                sizes.add(stream.nbytes)
    assert len(sizes) == 1
    assert torch.isfinite(stream.mean).all()


def test_a_stream_can_start_again_and_be_cut_off_from_its_graph():
    twin = with_memory(classifier(), 24, 10, chunk=6)
    stream = MemoryStream(twin)
    tokens, _ = batch()
    first = torch.cat([stream.push(tokens).hidden, stream.flush().hidden], dim=1)
    stream.reset()
    stream.push(tokens[:, :30])
    stream.detach_()
    stream.push(tokens[:, 30:])
    stream.flush()
    assert stream.mean.requires_grad
    torch.testing.assert_close(stream.mean, first.mean(dim=1))
    stream.reset()
    second = torch.cat([stream.push(tokens[:1]).hidden, stream.flush().hidden], dim=1)
    torch.testing.assert_close(second, first[:1])


def test_what_is_refused():
    model = classifier()
    with pytest.raises(ValueError, match=r"delay \+ chunk = 32 \+ 16; got 40"):
        with_memory(model, 40, 32)
    with pytest.raises(ValueError, match="policy"):
        with_memory(model, 64, 32, "lru")
    with pytest.raises(ValueError, match="chunk"):
        with_memory(model, 64, 32, chunk=0)
    with pytest.raises(ValueError, match="attention that is known"):
        with_memory(nn.Linear(2, 2), 64, 32)

    class Own(nn.MultiheadAttention):
        pass

    with pytest.raises(TypeError, match="1 is a Own"):
        with_memory(nn.Sequential(nn.MultiheadAttention(4, 1), Own(4, 1)), 64, 32)
    for wrong in (model, nn.Linear(2, 2), encoder()):
        with pytest.raises(TypeError, match="model must"):
            MemoryStream(wrong)
    twin = with_memory(model, 64, 32)
    with pytest.raises(ValueError, match="beyond"):
        MemoryStream(twin, beyond="stop")
    stream = MemoryStream(twin)
    for empty in (stream.flush, lambda: stream.mean):
        with pytest.raises(ValueError, match="nothing has been pushed"):
            empty()
    with pytest.raises(ShapeError, match="tokens must have shape"):
        stream.push(torch.ones(4, dtype=torch.int64))
    stream.push(torch.ones(1, 70, dtype=torch.int64))
    with pytest.raises(ValueError, match="knows 80 positions, the stream would reach 90"):
        stream.push(torch.ones(1, 20, dtype=torch.int64))
    assert stream.push(torch.ones(1, 10, dtype=torch.int64)).hidden.ndim == 3


def test_masks_and_dropout_that_a_memory_cannot_follow():
    model = with_memory(nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), 40, 20)
    x = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="dropout of attention weights"):
        model(x, x, x)
    model.eval()
    diagonal = torch.eye(5, dtype=torch.bool)
    soft = torch.zeros(5, 5)
    soft[1, 2] = -3.0
    for mask in (diagonal, soft, torch.zeros(2 * 2, 5, 5)):
        with pytest.raises(ValueError, match="attn_mask must be None or the causal mask"):
            model(x, x, x, attn_mask=mask)
    with pytest.raises(ValueError, match="attn_mask must be None or the causal mask"):
        model(x, x[:, :3], x[:, :3], is_causal=True)
    with pytest.raises(ValueError, match=r"key_padding_mask must hold 0 and -inf"):
        model(x, x, x, key_padding_mask=torch.full((2, 5), -1.0))
    with pytest.raises(ShapeError, match="key_padding_mask must have shape"):
        model(x, x, x, key_padding_mask=torch.zeros(5, 2))


@pytest.mark.parametrize("config", [PELT(lora=2, adapter=2), PELT(lora=2, gate=False)])
def test_adapters_before_and_behind_a_memory(config):
    tokens, mask = batch()
    model = adapt(classifier(), config)
    for name, parameter in model.named_parameters():
        if "pelt" in name:
            nn.init.normal_(parameter, generator=torch.manual_seed(3))
    behind = adapt(with_memory(classifier(), 76, 60), config)
    behind.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = model(tokens, mask)
        assert not torch.allclose(expected, classifier()(tokens, mask), atol=1e-2)
        for twin in (with_memory(model, 76, 60), behind):
            torch.testing.assert_close(twin(tokens, mask), expected, rtol=0, atol=1e-5)
    for config in (PELT(prefix=2), PELT(prompt=2)):
        with pytest.raises(TypeError, match="attention modules must be plain ones"):
            with_memory(adapt(classifier(), config), 76, 60)


@pytest.mark.parametrize("policy", POLICIES)
def test_half_precision(policy):
    twin = with_memory(classifier(), 24, 8, policy)
    tokens, mask = batch()
    with torch.no_grad():
        expected = twin(tokens, mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = twin(tokens, mask)
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()
    assert (found.float() - expected).norm() < 0.2 * expected.norm()


def test_adapters_taken_out_of_a_model_with_memory_leave_the_memory():
    base = encoder()
    tokens = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(4))
    model = adapt(copy.deepcopy(base), PELT(adapter=2))
    twin = with_memory(model, 6, 2, chunk=2)
    with torch.no_grad():  # in eval mode PyTorch's fused kernels would pass the memory by
        expected = with_memory(base, 6, 2, chunk=2)(tokens)
        assert not torch.allclose(expected, base(tokens), atol=1e-2)
        torch.testing.assert_close(unadapt(twin)(tokens), expected)
        assert model.pelt_record.config.methods == ("adapter",)
        torch.testing.assert_close(unadapt(model)(tokens), base(tokens))


@pytest.mark.parametrize("first", [True, False])
def test_merging_changes_both_of_two_models_that_share_weights_once(first):
    shapes = {"delta_in_shape": (4, 4), "delta_out_shape": (4, 8)}
    config = PELT(lora=2, targets=("linear1",), gate=False, **shapes)
    model = adapt(encoder(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pelt_" in name:
                parameter.normal_()
        twin = with_memory(model, 40, 30, chunk=10)
        tokens = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(4))
        expected = model(tokens)
        merge(model if first else twin)
        for each in (model, twin):
            torch.testing.assert_close(each(tokens), expected, rtol=0, atol=1e-5)


def test_learned_keys_under_autocast():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, add_bias_kv=True, add_zero_attn=True).eval()
    x = torch.randn(10, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_memory(layer, 20, 10, chunk=5)(x, x, x)[0]
        expected = layer(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=2e-2)


def test_the_mean_of_a_long_stream_in_half_precision():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    with torch.no_grad():
        layer.norm2.weight.zero_()
        layer.norm2.bias.fill_(100.0)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).half().eval()
    stream = MemoryStream(with_memory(model, 80, 20, chunk=50))
    with torch.no_grad():
        for _ in range(3):
            stream.push(torch.zeros(1, 1000, 16, dtype=torch.float16))
        stream.flush()
    assert stream.mean.dtype == torch.float16
    assert stream.mean.unique().tolist() == [100.0]  # 300,000 is beyond float16


def test_padding_that_is_not_a_number_stays_out_of_a_stream():
    stream = MemoryStream(with_memory(encoder(), 20, 8, chunk=4))
    generator = torch.Generator().manual_seed(5)
    tokens, mask = torch.randn(2, 9, 16, generator=generator), torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    means = []
    for padding in (0.0, float("nan")):
        tokens[~mask] = padding
        stream.reset()
        stream.push(tokens, mask)
        stream.flush()
        means.append(stream.mean)
    torch.testing.assert_close(means[1], means[0])


def test_a_stream_keeps_its_batch():
    stream = MemoryStream(with_memory(encoder(), 20, 8, chunk=4))
    stream.push(torch.zeros(2, 3, 16))
    with pytest.raises(ShapeError, match="stream's B, 2; got 3"):
        stream.push(torch.zeros(3, 3, 16))
    stream.push(torch.zeros(2, 3, 16))
    assert stream.flush().positions.tolist() == list(range(6))
