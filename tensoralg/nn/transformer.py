"""A Transformer encoder for sentences, dense or of tensor-train layers: the benchmark's model."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.nn.tt_embedding import TTMEmbedding
from tensoralg.nn.tt_linear import TTLinear

__all__ = ["EncoderConfig", "TransformerClassifier"]


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of a Transformer encoder; ranks make its layers tensor trains.

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    classes : int
        Number of classes that the head tells apart.
    hidden, heads, layers, feed_forward : int
        Width of the hidden states, attention heads, encoder blocks, width inside a block's
        feed-forward part. The defaults are the six-encoder model of [1]_.
    positions : int, default 128
        The longest sentence in tokens.
    dropout : float, default 0.1
        Probability in the embedding and behind both parts of a block.
    epsilon : float, default 1e-12
        Of the layer normalisations.
    attention_rank, feed_forward_rank, embedding_rank : int or None
        The largest rank of the tensor trains in the attention, the feed-forward parts and the
        token embedding; None (the default) is a dense layer.
    attention_shape, feed_forward_shape : tuple of int or None
        Factors of `hidden` and of `feed_forward`; None lets the layers plan them.
    row_shape, column_shape : tuple of int or None
        Factors of the (padded) `vocabulary` and of `hidden` in the embedding.

    Raises
    ------
    ValueError
        `hidden` is no multiple of `heads`, or a size is not positive.

    References
    ----------
    .. [1] Z. Yang, Z. Liu, S. Choudhary, X. Xie, C. Gao, S. Kunzmann, Z. Zhang, "CoMERA:
       Computing- and Memory-Efficient Training via Rank-Adaptive Tensor Optimization",
       NeurIPS 2024, arXiv:2405.14377.

    Examples
    --------
    >>> EncoderConfig(vocabulary=100, classes=2, hidden=8, heads=2, layers=1, feed_forward=16).heads
    2
    """

    vocabulary: int
    classes: int
    hidden: int = 768
    heads: int = 12
    layers: int = 6
    feed_forward: int = 3072
    positions: int = 128
    dropout: float = 0.1
    epsilon: float = 1e-12
    attention_rank: int | None = None
    feed_forward_rank: int | None = None
    embedding_rank: int | None = None
    attention_shape: tuple[int, ...] | None = None
    feed_forward_shape: tuple[int, ...] | None = None
    row_shape: tuple[int, ...] | None = None
    column_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sizes = "vocabulary classes hidden heads layers feed_forward positions"
        for name in sizes.split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads; got hidden={self.hidden}, heads={self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1); got {self.dropout}")

    def dense(self) -> "EncoderConfig":
        """Return the same sizes with dense layers only."""
        return replace(self, attention_rank=None, feed_forward_rank=None, embedding_rank=None)


def _linear(
    sizes: tuple[int, int], rank: int | None, shapes: tuple[Any, Any] = (None, None)
) -> nn.Module:
    """Build a dense layer, or a tensor train where there is a rank."""
    if rank is None:
        return nn.Linear(*sizes)
    in_shape, out_shape = shapes
    return TTLinear(*sizes, rank=rank, in_shape=in_shape, out_shape=out_shape)


class AttentionProbabilities(nn.Module):
    """Softmax of masked scores; a module of its own, so that distillation can listen to it."""

    def forward(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Return probabilities (B, heads, T, T) over the keys that `mask` (B, T) has as True."""
        if mask is not None:
            least = torch.finfo(scores.dtype).min  # not -inf: a sentence of padding stays finite
            scores = scores.masked_fill(~mask[:, None, None, :], least)
        return scores.softmax(dim=-1)


class SelfAttention(nn.Module):
    """Multi-head self-attention with layers of its own for queries, keys, values and output."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        shapes = _mirrored(config.attention_shape, config.attention_shape)
        sizes = (config.hidden, config.hidden)
        self.heads = config.heads
        self.query = _linear(sizes, config.attention_rank, shapes)
        self.key = _linear(sizes, config.attention_rank, shapes)
        self.value = _linear(sizes, config.attention_rank, shapes)
        self.output = _linear(sizes, config.attention_rank, shapes)
        self.probabilities = AttentionProbabilities()

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attended hidden states (B, T, hidden)."""
        batch, length, width = hidden.shape
        size = width // self.heads
        query, key, value = (
            layer(hidden).view(batch, length, self.heads, size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(size)
        attended = self.probabilities(scores, mask) @ value
        merged: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return merged


def _mirrored(inputs: Any, outputs: Any) -> tuple[Any, Any]:
    """Reverse the outputs' factors: the large ones lie at the ends of the train."""
    return inputs, tuple(reversed(outputs)) if outputs is not None else None


class EncoderBlock(nn.Module):
    """Attention and feed-forward part, each with a residual and a layer normalisation behind."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        up = _mirrored(config.attention_shape, config.feed_forward_shape)
        down = _mirrored(config.feed_forward_shape, config.attention_shape)
        rank = config.feed_forward_rank
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.expand = _linear((config.hidden, config.feed_forward), rank, up)
        self.contract = _linear((config.feed_forward, config.hidden), rank, down)
        self.output_norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the next hidden states (B, T, hidden)."""
        return self.finish(hidden, self.attention(hidden, mask))

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the next hidden states, given those before and what their queries attended."""
        hidden = self.attention_norm(hidden + self.dropout(attended))
        inner = self.contract(functional.gelu(self.expand(hidden)))
        states: Tensor = self.output_norm(hidden + self.dropout(inner))
        return states


class SentenceEmbedding(nn.Module):
    """Token and position embeddings, summed and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tokens: nn.Module
        if config.embedding_rank is None:
            self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        else:
            self.tokens = TTMEmbedding(
                config.vocabulary,
                config.hidden,
                rank=config.embedding_rank,
                row_shape=config.row_shape,
                column_shape=config.column_shape,
            )
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """Return hidden states (B, T, hidden) of token ids (B, T), at places (T,) from 0 on."""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        states: Tensor = self.dropout(self.norm(self.tokens(tokens) + self.positions(places)))
        return states


class TransformerClassifier(nn.Module):
    """Transformer encoder with a linear head on the mean of a sentence's hidden states.

    Parameters
    ----------
    config : EncoderConfig
        The sizes; ranks in it make the layers tensor trains.

    Examples
    --------
    >>> import torch
    >>> config = EncoderConfig(50, classes=3, hidden=8, heads=2, layers=2, feed_forward=16)
    >>> model = TransformerClassifier(config)
    >>> model(torch.tensor([[4, 7, 1], [3, 2, 0]])).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = SentenceEmbedding(config)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.classifier = nn.Linear(config.hidden, config.classes)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the classes' scores.

        Parameters
        ----------
        tokens : Tensor of int64, shape (B, T)
            Token ids; T may not pass ``config.positions``.
        mask : Tensor of bool, shape (B, T), optional
            True where there is a token, False where there is padding.

        Returns
        -------
        Tensor, shape (B, classes)
            Logits.

        Raises
        ------
        ValueError
            `tokens` is not two-dimensional or too long, or `mask` has another shape.
        """
        if tokens.ndim != 2 or tokens.shape[1] > self.config.positions:
            raise ValueError(
                f"tokens must have shape (B, T) with T at most {self.config.positions}; "
                f"got {tuple(tokens.shape)}"
            )
        if mask is not None and mask.shape != tokens.shape:
            raise ValueError(
                f"mask must have tokens' shape {tuple(tokens.shape)}; got {tuple(mask.shape)}"
            )
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, mask)
        if mask is None:
            pooled = hidden.mean(dim=1)
        else:
            weights = mask.to(hidden.dtype)[..., None]
            pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)
        logits: Tensor = self.classifier(pooled)
        return logits
