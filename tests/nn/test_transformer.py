"""The Transformer against PyTorch's own, padding, ranks, shapes that are refused."""

import dataclasses

import pytest
import torch
from torch import nn

from tensoralg.nn import EncoderConfig, RankScheduler, TransformerClassifier, TTLinear

DENSE = EncoderConfig(
    vocabulary=50, classes=3, hidden=16, heads=4, layers=2, feed_forward=32, positions=12,
    dropout=0.0, epsilon=1e-5,
)  # fmt: skip


def peer_block(block):
    """PyTorch's encoder layer with the same weights."""
    peer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True)
    attention = block.attention
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        peer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        peer.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    for ours, theirs in (
        (attention.output, peer.self_attn.out_proj),
        (block.attention_norm, peer.norm1),
        (block.expand, peer.linear1),
        (block.contract, peer.linear2),
        (block.output_norm, peer.norm2),
    ):
        theirs.load_state_dict(ours.state_dict())
    return peer


def test_the_blocks_equal_pytorchs():
    torch.manual_seed(0)
    model = TransformerClassifier(DENSE)
    hidden = torch.randn(3, 12, 16)
    mask = torch.arange(12) < torch.tensor([[12], [5], [1]])
    ours, theirs = hidden, hidden
    for block in model.blocks:
        ours = block(ours, mask)
        theirs = peer_block(block)(theirs, src_key_padding_mask=~mask)
    assert torch.allclose(ours[mask], theirs[mask], atol=1e-5)


@pytest.mark.parametrize("rank", [None, 4])
def test_a_padded_batch_equals_single_sentences(rank):
    torch.manual_seed(0)
    config = dataclasses.replace(
        DENSE, attention_rank=rank, feed_forward_rank=rank, embedding_rank=rank
    )
    model = TransformerClassifier(config).eval()
    lengths = [12, 7, 1]
    tokens = torch.randint(1, 50, (3, 12))
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        together = model(tokens, mask)
        for row, length in enumerate(lengths):
            alone = model(tokens[row : row + 1, :length])
            assert torch.allclose(together[row], alone[0], atol=1e-6)


def test_a_sentence_of_padding_alone_stays_finite():
    model = TransformerClassifier(DENSE)
    mask = torch.tensor([[True, True], [False, False]])
    logits = model(torch.ones(2, 2, dtype=torch.int64), mask)
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_ranks_make_the_layers_trains_and_the_model_smaller():
    config = EncoderConfig(
        vocabulary=3000, classes=2, hidden=64, heads=4, layers=2, feed_forward=256, dropout=0.0,
        attention_rank=8, feed_forward_rank=8, embedding_rank=8,
    )  # fmt: skip
    model, dense = TransformerClassifier(config), TransformerClassifier(config.dense())
    trains = [m for m in model.modules() if isinstance(m, TTLinear)]
    assert len(trains) == 2 * 6
    assert not any(isinstance(m, TTLinear) for m in dense.modules())
    count = {m: sum(p.numel() for p in m.parameters()) for m in (model, dense)}
    assert count[dense] > 5 * count[model]
    target = 8000
    RankScheduler(model, target_parameters=target).step()
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 15}, "hidden must be a multiple of heads; got hidden=15, heads=4"),
        ({"layers": 0}, "layers must be at least 1; got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
    ],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(DENSE, **arguments)


def test_wrong_inputs_are_named():
    model = TransformerClassifier(DENSE)
    with pytest.raises(ValueError, match=r"T at most 12; got \(1, 13\)"):
        model(torch.zeros(1, 13, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"mask must have tokens' shape \(1, 3\)"):
        model(torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool))
