"""Models with memory read inputs of any length, a piece at a time, in constant space."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn.memory_attention import SelfAttending
from tensoralg.nn.token_places import as_valid
from tensoralg.nn.transformer import EncoderBlock, TransformerClassifier

__all__ = ["MemoryStream", "Streamed"]


class Streamed(NamedTuple):
    """Hidden states that are finished.

    Parameters
    ----------
    hidden : Tensor, shape (B, T, width)
        Of the last layer; T may be 0.
    positions : Tensor of int64, shape (T,)
        Which tokens they belong to, counted from the start of the stream.
    """

    hidden: Tensor
    positions: Tensor


class _Tokens(NamedTuple):
    """Some tokens on their way through the layers."""

    hidden: Tensor  # (B, T, width)
    valid: Tensor  # (B, T)

    def cut(self, start: int, stop: int | None = None) -> "_Tokens":
        """Return the tokens from a place to another."""
        return _Tokens(self.hidden[:, start:stop], self.valid[:, start:stop])

    def then(self, other: "_Tokens") -> "_Tokens":
        """Put others behind them."""
        return _Tokens(*(torch.cat(pair, dim=1) for pair in zip(self, other, strict=True)))


class _Layer:
    """One layer: tokens gather to a chunk, their queries wait, what attended goes on."""

    def __init__(self, attention: SelfAttending, enter: Any, finish: Any) -> None:
        self.attention, self.enter, self.finish = attention, enter, finish
        self.attendre = attention.started()
        self.arriving: _Tokens | None = None
        self.waiting: _Tokens | None = None

    def push(self, tokens: _Tokens) -> _Tokens:
        """Take tokens; return those that are finished."""
        self.arriving = tokens if self.arriving is None else self.arriving.then(tokens)
        chunk = self.attention.memory.chunk
        done = tokens.cut(0, 0)
        while self.arriving.valid.shape[1] >= chunk:
            piece, self.arriving = self.arriving.cut(0, chunk), self.arriving.cut(chunk)
            done = done.then(self._step(piece))
        return done

    def flush(self) -> _Tokens:
        """Return all tokens that are still here."""
        assert self.arriving is not None
        rest = self._step(self.arriving)
        self.arriving = self.arriving.cut(0, 0)
        return rest.then(self._emit(self.attendre.flush().out))

    def _step(self, piece: _Tokens) -> _Tokens:
        """Push a chunk into the memory."""
        self.waiting = piece if self.waiting is None else self.waiting.then(piece)
        q, k, v = self.attention.projected(self.enter(piece.hidden))
        return self._emit(self.attendre.push(q, k, v, piece.valid).out)

    def _emit(self, attended: Tensor) -> _Tokens:
        """Finish the tokens whose queries attended, the first ones that wait."""
        assert self.waiting is not None
        count = attended.shape[2]
        done, self.waiting = self.waiting.cut(0, count), self.waiting.cut(count)
        hidden = self.finish(done.hidden, self.attention.merged(attended))
        return _Tokens(hidden, done.valid)

    def tensors(self) -> list[Tensor]:
        """Return all that is held beside the memory."""
        return [part for tokens in (self.arriving, self.waiting) for part in tokens or ()]

    def detach_(self) -> None:
        """Cut what is held off from the graph that made it."""
        self.attendre.detach_()
        for name in ("arriving", "waiting"):
            tokens = getattr(self, name)
            if tokens is not None:
                setattr(self, name, tokens._replace(hidden=tokens.hidden.detach()))


class MemoryStream:
    """Feed an input of any length to a model with memory, a piece at a time.

    Parameters
    ----------
    model : TransformerClassifier or nn.TransformerEncoder
        From `with_memory`. The tokens are ids for the first, vectors for the second.
    beyond : {"raise", "wrap"}, default "raise"
        What happens behind the last position that a `TransformerClassifier` has learned: an error,
        or counting starts again from 0.

    Raises
    ------
    TypeError
        A model of another class, or without memory.
    ValueError
        `beyond` is neither.

    See Also
    --------
    with_memory : Gives a model a memory.

    Notes
    -----
    The hidden states are those that the model with memory has for the whole input, however it is
    cut. Each layer's queries wait for `delay` tokens, so a token is finished after about
    ``delay + chunk`` times the number of layers. Memory does not grow with the length as long as
    no gradients are recorded; otherwise call `detach_` from time to time.

    Examples
    --------
    >>> from tensoralg.nn import EncoderConfig, TransformerClassifier, with_memory
    >>> config = EncoderConfig(50, classes=3, hidden=8, heads=2, layers=2, feed_forward=16)
    >>> model = with_memory(TransformerClassifier(config).eval(), 24, 8, chunk=8)
    >>> stream = MemoryStream(model)
    >>> for piece in torch.randint(50, (1, 60)).split(20, dim=1):
    ...     print(len(stream.push(piece).positions))
    0
    24
    16
    >>> stream.flush().hidden.shape
    torch.Size([1, 20, 8])
    >>> model.classifier(stream.mean).shape
    torch.Size([1, 3])
    """

    def __init__(self, model: nn.Module, *, beyond: Literal["raise", "wrap"] = "raise") -> None:
        if beyond not in ("raise", "wrap"):
            raise ValueError(f"beyond must be 'raise' or 'wrap'; got {beyond!r}")
        if not isinstance(model, TransformerClassifier | nn.TransformerEncoder):
            raise TypeError(
                "model must be a TransformerClassifier or an nn.TransformerEncoder; "
                f"got {type(model).__name__}"
            )
        self.model, self.beyond = model, beyond
        self._parts: list[tuple[SelfAttending, Any, Any]] = list(map(_parts, _layers(model)))
        self.reset()

    def reset(self) -> None:
        """Start a new stream; the next batch may be of another size."""
        self._chain = [_Layer(*parts) for parts in self._parts]
        self._pushed = 0
        self._emitted = 0
        self._type = torch.float32
        self._sum: Tensor | None = None
        self._count: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all memories and of the tokens that wait."""
        held = [tensor for layer in self._chain for tensor in layer.tensors()]
        own = sum(tensor.numel() * tensor.element_size() for tensor in held)
        return own + sum(layer.attendre.nbytes for layer in self._chain)

    @property
    def mean(self) -> Tensor:
        """Mean of the finished hidden states without padding, shape (B, width)."""
        if self._sum is None or self._count is None:
            raise ValueError("nothing has been pushed yet")
        return (self._sum / self._count.clamp_min(1)).to(self._type)

    def detach_(self) -> None:
        """Cut all that is held off from the graph that made it."""
        for layer in self._chain:
            layer.detach_()
        self._sum = None if self._sum is None else self._sum.detach()

    def push(self, tokens: Tensor, mask: Tensor | None = None) -> Streamed:
        """Read on.

        Parameters
        ----------
        tokens : Tensor, shape (B, T) of int64 or (B, T, width)
            The next tokens, ids or vectors, any number of them.
        mask : Tensor of bool, shape (B, T), optional
            False for padding.

        Returns
        -------
        hidden : Tensor, shape (B, n, width)
            Of the tokens that are finished now.
        positions : Tensor of int64, shape (n,)
            Theirs, counted from the start.

        Raises
        ------
        ShapeError
            Tokens of another shape.
        ValueError
            More tokens than there are positions; nothing is read then.
        """
        axes = 2 if isinstance(self.model, TransformerClassifier) else 3
        if tokens.ndim != axes:
            kind = "(B, T)" if axes == 2 else "(B, T, width)"
            raise ShapeError(f"tokens must have shape {kind}; got {tuple(tokens.shape)}")
        batch, length = tokens.shape[:2]
        begun = self._chain[0].arriving
        if begun is not None and len(begun.valid) != batch:
            raise ShapeError(
                f"tokens must have the stream's B, {len(begun.valid)}; got {batch}; see reset()"
            )
        valid = as_valid(mask, (batch, length), tokens.device)
        moving = _Tokens(self._embedded(tokens), valid)
        self._pushed += length
        return self._through(moving, 0)

    def flush(self) -> Streamed:
        """Finish all tokens; the memories stay, `reset` empties them.

        Returns
        -------
        hidden : Tensor, shape (B, n, width)
            Of the tokens that were not finished.
        positions : Tensor of int64, shape (n,)
            Theirs.
        """
        if self._chain[0].arriving is None:
            raise ValueError("nothing has been pushed yet")
        found = [self._through(layer.flush(), place + 1) for place, layer in enumerate(self._chain)]
        hidden, positions = zip(*found, strict=True)
        return Streamed(torch.cat(hidden, dim=1), torch.cat(positions))

    def _through(self, tokens: _Tokens, first: int) -> Streamed:
        """Push tokens through the layers from a certain one on."""
        for layer in self._chain[first:]:
            tokens = layer.push(tokens)
        hidden, valid = tokens
        if isinstance(self.model, nn.TransformerEncoder) and self.model.norm is not None:
            hidden = self.model.norm(hidden)
        # half precision would stop counting, and padding may be not-a-number
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.where(valid[..., None], hidden, 0).sum(dim=1, dtype=wide)
        count, self._type = valid.sum(dim=1, keepdim=True), hidden.dtype
        self._sum = total if self._sum is None else self._sum + total
        self._count = count if self._count is None else self._count + count
        start, self._emitted = self._emitted, self._emitted + hidden.shape[1]
        return Streamed(hidden, torch.arange(start, self._emitted, device=hidden.device))

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Embed token ids; vectors stay as they are."""
        if not isinstance(self.model, TransformerClassifier):
            return tokens
        known = self.model.config.positions
        stop = self._pushed + tokens.shape[1]
        if stop > known and self.beyond == "raise":
            raise ValueError(
                f"the model knows {known} positions, the stream would reach {stop}; "
                "beyond='wrap' counts from 0 again"
            )
        places = torch.arange(self._pushed, stop, device=tokens.device) % known
        return cast(Tensor, self.model.embedding(tokens, places))


def _layers(model: TransformerClassifier | nn.TransformerEncoder) -> list[nn.Module]:
    """Return the layers of a model, whose attention must have a memory."""
    layers = list(model.blocks if isinstance(model, TransformerClassifier) else model.layers)
    for layer in layers:
        attention = getattr(layer, "attention", getattr(layer, "self_attn", None))
        if not hasattr(attention, "memory"):
            raise TypeError(f"model must come from with_memory; {type(layer).__name__} has none")
    return layers


def _parts(layer: nn.Module) -> tuple[SelfAttending, Callable[[Tensor], Tensor], Any]:
    """Take a layer apart: its attention, what comes before it and what comes after."""
    if isinstance(layer, EncoderBlock):
        return cast(SelfAttending, layer.attention), lambda hidden: hidden, layer.finish
    if not isinstance(layer, nn.TransformerEncoderLayer):
        raise TypeError(f"layers must be nn.TransformerEncoderLayer; got {type(layer).__name__}")
    attention = cast(SelfAttending, layer.self_attn)
    if layer.norm_first:

        def finish(hidden: Tensor, attended: Tensor) -> Tensor:
            hidden = hidden + layer.dropout1(attended)
            return hidden + layer._ff_block(layer.norm2(hidden))

        return attention, layer.norm1, finish

    def finish_last(hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = layer.norm1(hidden + layer.dropout1(attended))
        return cast(Tensor, layer.norm2(hidden + layer._ff_block(hidden)))

    return attention, lambda hidden: hidden, finish_last
