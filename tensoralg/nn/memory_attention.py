"""Attention modules of models, their keys and values in a memory of constant size."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn.attendre import Attendre
from tensoralg.nn.key_value_memory import Policy
from tensoralg.nn.transformer import SelfAttention

__all__ = [
    "MemoryMultiheadAttention",
    "MemorySelfAttention",
    "MemorySettings",
    "SelfAttending",
    "attend_in_chunks",
]


@dataclass(frozen=True)
class MemorySettings:
    """How a model's attention remembers.

    Parameters
    ----------
    size, delay, policy, top_k, decay, protect, causal
        As for `Attendre`.
    chunk : int
        So many tokens are pushed at a time.

    Examples
    --------
    >>> len(MemorySettings(64, 32, "lra", 16).attendre())
    0
    """

    size: int
    delay: int
    policy: Policy
    chunk: int
    top_k: int = 1
    decay: float = 0.9
    protect: int = 0
    causal: bool = False

    def attendre(self, *, causal: bool | None = None) -> Attendre:
        """Start a stream of attention.

        Parameters
        ----------
        causal : bool, optional
            In the place of the settings' own.

        Returns
        -------
        Attendre
            With an empty memory.
        """
        return Attendre(
            self.size,
            self.delay,
            self.policy,
            top_k=self.top_k,
            decay=self.decay,
            protect=self.protect,
            causal=self.causal if causal is None else causal,
        )


class SelfAttending(Protocol):
    """Self-attention in parts, so that a stream can come between them."""

    memory: MemorySettings

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, values (B, H, T, d) of hidden states (B, T, width)."""

    def merged(self, attended: Tensor) -> Tensor:
        """Return the output (B, T, width) of attended values (B, H, T, e)."""

    def started(self) -> Attendre:
        """Return an empty memory, but for pinned slots."""


def attend_in_chunks(
    attention: Attendre, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, chunk: int
) -> Tensor:
    """Attend a whole sequence through a memory.

    Parameters
    ----------
    attention : Attendre
        An empty one.
    q, k, v : Tensor, shape (B, H, T, d)
        All queries, keys and values.
    valid : Tensor of bool, shape (B, T), or None
        False for padding.
    chunk : int
        So many tokens are pushed at a time.

    Returns
    -------
    Tensor, shape (B, H, T, e)
        The attended values in the order of the queries.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 2, 10, 4)
    >>> attend_in_chunks(Attendre(20, 10), q, k, v, None, 3).shape
    torch.Size([1, 2, 10, 4])
    """
    parts = []
    for start in range(0, q.shape[2], chunk):
        part = slice(start, start + chunk)
        mask = None if valid is None else valid[:, part]
        parts.append(attention.push(q[:, :, part], k[:, :, part], v[:, :, part], mask).out)
    if parts:
        parts.append(attention.flush().out)
    return torch.cat(parts, dim=2) if parts else v[:, :, :0]


class MemorySelfAttention(SelfAttention):
    """The self-attention of `TransformerClassifier` with a memory; made by `with_memory`.

    Parameters
    ----------
    config : EncoderConfig
        As of the base class.
    """

    memory: MemorySettings

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values.

        Parameters
        ----------
        hidden : Tensor, shape (B, T, width)
            Hidden states.

        Returns
        -------
        q, k, v : Tensor, shape (B, H, T, d)
            Their projections.
        """
        q, k, v = (
            _heads(layer(hidden), self.heads) for layer in (self.query, self.key, self.value)
        )
        return q, k, v

    def merged(self, attended: Tensor) -> Tensor:
        """Join the heads.

        Parameters
        ----------
        attended : Tensor, shape (B, H, T, d)
            Attended values.

        Returns
        -------
        Tensor, shape (B, T, width)
            The module's output.
        """
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output

    def started(self) -> Attendre:
        """Return an empty memory."""
        return self.memory.attendre()

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attended hidden states.

        Parameters
        ----------
        hidden : Tensor, shape (B, T, width)
            Hidden states of whole sequences.
        mask : Tensor of bool, shape (B, T), optional
            False for padding.

        Returns
        -------
        Tensor, shape (B, T, width)
            What the base class returns, as far as the memory reaches.
        """
        q, k, v = self.projected(hidden)
        return self.merged(attend_in_chunks(self.started(), q, k, v, mask, self.memory.chunk))


class MemoryMultiheadAttention(nn.MultiheadAttention):
    """PyTorch's multi-head attention with a memory; made by `with_memory`.

    Parameters
    ----------
    *args, **kwargs
        As of the base class.

    Notes
    -----
    Learned keys (``add_bias_kv``) and the key of zeros (``add_zero_attn``) are pinned slots. Where
    query and key are not the same tensor it is cross attention: all keys come first.
    """

    memory: MemorySettings

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values.

        Parameters
        ----------
        hidden : Tensor, shape (B, T, width)
            Hidden states.

        Returns
        -------
        q, k, v : Tensor, shape (B, H, T, d)
            Their projections.
        """
        return self._projected(hidden, hidden, hidden)

    def merged(self, attended: Tensor) -> Tensor:
        """Join the heads.

        Parameters
        ----------
        attended : Tensor, shape (B, H, T, d)
            Attended values.

        Returns
        -------
        Tensor, shape (B, T, width)
            The module's output.
        """
        output: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return output

    def started(self, *, causal: bool | None = None) -> Attendre:
        """Return an empty memory, but for pinned slots.

        Parameters
        ----------
        causal : bool, optional
            In the place of the settings' own.

        Returns
        -------
        Attendre
            The memory.
        """
        attention = self.memory.attendre(causal=causal)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (_heads(b, self.num_heads) for b in (self.bias_k, self.bias_v))
            attention.memory.pin(k, v)
        if self.add_zero_attn:
            zero = self.out_proj.weight.new_zeros(1, self.num_heads, 1, self.head_dim)
            attention.memory.pin(zero, zero)
        return attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as the base class does, as far as the memory reaches.

        Parameters
        ----------
        query, key, value : Tensor
            In the base class's layout.
        key_padding_mask : Tensor, shape (B, S), optional
            True, or minus infinity, for padding.
        need_weights, average_attn_weights : bool
            Have no effect: there are no weights of all keys.
        attn_mask : Tensor, shape (T, T), optional
            None, or the mask that forbids later keys.
        is_causal : bool
            Says that `attn_mask` is that one.

        Returns
        -------
        attended : Tensor
            In the layout of `query`.
        weights : None
            Always.

        Raises
        ------
        ValueError
            Another mask, or dropout in training.
        """
        if self.training and self.dropout > 0:
            raise ValueError(
                f"dropout of attention weights must be 0 in training; got {self.dropout}; "
                "set the module's dropout to 0"
            )
        same = query is key
        batched = query.ndim == 3
        q, k, v = (_batch_first(x, batched, self.batch_first) for x in (query, key, value))
        valid = _valid(key_padding_mask, k.shape[:2], batched)
        causal = self.memory.causal and same
        if is_causal or attn_mask is not None:
            causal = _checked_causal(attn_mask, q.shape[1], k.shape[1])
        q, k, v = self._projected(q, k, v)
        attention = self.started(causal=causal)
        if same:
            attended = attend_in_chunks(attention, q, k, v, valid, self.memory.chunk)
        else:
            for start in range(0, k.shape[2], self.memory.chunk):
                part = slice(start, start + self.memory.chunk)
                mask = None if valid is None else valid[:, part]
                attention.push(None, k[:, :, part], v[:, :, part], mask)
            attended = torch.cat([attention.push(q, None, None).out, attention.flush().out], dim=2)
        output = self.merged(attended)
        if not batched:
            return output[0], None
        return output if self.batch_first else output.transpose(0, 1), None

    def _projected(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project three inputs, heads apart."""
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            _heads(functional.linear(x, w, b), self.num_heads)
            for x, w, b in zip(inputs, weights, biases, strict=True)
        )
        return q, k, v


def _heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, T, width) to (B, H, T, d)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def _batch_first(x: Tensor, batched: bool, batch_first: bool) -> Tensor:
    """Bring an input of any layout to (B, T, width)."""
    if not batched:
        return x[None]
    return x if batch_first else x.transpose(0, 1)


def _valid(padding: Tensor | None, shape: torch.Size, batched: bool) -> Tensor | None:
    """Turn PyTorch's mask of padding into one of tokens."""
    if padding is None:
        return None
    padding = padding if batched else padding[None]
    if padding.shape != shape:
        raise ShapeError(
            f"key_padding_mask must have shape (B, S) = {tuple(shape)}; got {tuple(padding.shape)}"
        )
    if padding.dtype == torch.bool:
        return ~padding
    if not bool(((padding == 0) | (padding == -torch.inf)).all()):
        raise ValueError("key_padding_mask must hold 0 and -inf only; got other numbers")
    return padding == 0


def _checked_causal(mask: Tensor | None, queries: int, keys: int) -> bool:
    """Make sure that a mask forbids later keys and nothing else."""
    forbidden = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    right = queries == keys
    if mask is not None and right:
        if mask.dtype == torch.bool:
            own = mask
        else:
            own = mask == -torch.inf
            right = bool((own | (mask == 0)).all())
        right = right and own.shape == forbidden.shape and torch.equal(own.cpu(), forbidden)
    if not right:
        shape = None if mask is None else tuple(mask.shape)
        raise ValueError(
            "attn_mask must be None or the causal mask of equally many queries and keys: slots of "
            f"a memory come and go; got a mask of shape {shape} for {queries} queries and "
            f"{keys} keys"
        )
    return True
