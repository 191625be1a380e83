"""Attention modules that also see learned slots, and prompts weighed by a gate."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn.attention import attend, attend_with_weights
from tensoralg.nn.gated_parts import Prefix, WeightDelta
from tensoralg.nn.sample_context import SampleContext, present_tokens, refuse_causal
from tensoralg.nn.transformer import SelfAttention

__all__ = ["AdaptedMultiheadAttention", "AdaptedSelfAttention"]


def _with_slots(
    bias: Tensor | None, slots: Tensor | None, keys: int, like: Tensor, *, at_keys: bool
) -> Tensor | None:
    """Put a bias (B, 1, 1, P) at the first keys, or before all keys."""
    if slots is None:
        return bias
    slots = slots.to(like.dtype)
    if at_keys:
        wide = functional.pad(slots, (0, keys - slots.shape[-1]))
        return wide if bias is None else bias + wide
    if bias is None:
        return functional.pad(slots, (0, keys))
    pairs = zip(slots.shape[:-1], bias.shape[:-1], strict=True)
    shape = [other if size == 1 else size for size, other in pairs]
    return torch.cat([slots.expand(*shape, -1), bias.expand(*shape, -1)], dim=-1)


class AdaptedSelfAttention(SelfAttention):
    """A `SelfAttention` with a prefix or gated prompts.

    An existing module becomes one when its class is changed: its weights keep their names.

    Parameters
    ----------
    config : EncoderConfig
        As of the base class.
    """

    pelt_context: SampleContext

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attended hidden states (B, T, hidden)."""
        batch, length, width = hidden.shape
        query, key, value = (
            layer(hidden).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        context = self.pelt_context
        gated = context.prompts.bias() if context.prompts is not None else None
        bias = _with_slots(None, gated, length, query, at_keys=True)
        allowed = None if mask is None else mask[:, None, None, :]
        prefix = self._modules.get("pelt_prefix")
        if isinstance(prefix, Prefix):
            present = context.place(hidden)[1]
            keys, values, slots = prefix.slots(hidden, present, heads=self.heads)
            key = torch.cat([keys.to(key.dtype), key], dim=2)
            value = torch.cat([values.to(value.dtype), value], dim=2)
            bias = _with_slots(bias, slots, length, query, at_keys=False)
            if allowed is not None:
                allowed = functional.pad(allowed, (keys.shape[2], 0), value=True)
        attended = attend(query, key, value, mask=allowed, bias=bias)
        merged: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return merged


class AdaptedMultiheadAttention(nn.MultiheadAttention):
    """An ``nn.MultiheadAttention`` with changed projections, a prefix or gated prompts.

    An existing module becomes one when its class is changed: its weights keep their names.

    Parameters
    ----------
    embed_dim, num_heads : int
        As of the base class, like the further arguments.
    """

    pelt_context: SampleContext

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
        """Attend as the base class does; weights are those of the keys, without the prefix.

        Parameters
        ----------
        query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights
            As of the base class.
        is_causal : bool
            A hint that `attn_mask` is causal.

        Returns
        -------
        attended : Tensor
            In the layout of `query`. A query that may attend no key gives the output's bias,
            where the base class gives NaN.
        weights : Tensor or None
            Of the keys; with a prefix they sum to less than 1.

        Raises
        ------
        ValueError
            `is_causal` without `attn_mask`, or a causal mask where gates depend on the input.
        ShapeError, TypeError
            A mask that the base class refuses: of another shape, or of integers.
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint only: give attn_mask too")
        refuse_causal(self, attn_mask)
        same, batched = query is key, query.ndim == 3
        query, key, value = (self._batch_first(x) for x in (query, key, value))
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        try:
            attended, weights = self._attended(
                (query, key, value), key_padding_mask, attn_mask, same, need_weights
            )
        finally:
            self.pelt_context.leave()
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            return attended[0], None if weights is None else weights[0]
        return attended if self.batch_first else attended.transpose(0, 1), weights

    def _batch_first(self, x: Tensor) -> Tensor:
        """Bring an input into the layout (B, T, features)."""
        if x.ndim == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _attended(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        absent: Tensor | None,
        pairs: Tensor | None,
        same: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend in the layout (B, T, features); `same` for self-attention."""
        hidden, context = inputs[0], self.pelt_context
        self._check_masks(absent, pairs, inputs[0].shape[:2], inputs[1].shape[1])
        present = None if absent is None else present_tokens(absent)
        tokens = context.real_tokens(present, inputs[1].shape[:2]) if same else present
        q, k, v = self._projected(inputs, tokens, same)
        context.enter(1, tokens if same else None)
        mask, bias = self._masks(absent, pairs, q, k.shape[2])
        gated = context.prompts.bias() if same and context.prompts is not None else None
        bias = _with_slots(bias, gated, k.shape[2], q, at_keys=True)
        prefix, length = self._modules.get("pelt_prefix"), k.shape[2]
        if isinstance(prefix, Prefix):
            keys, values, slots = prefix.slots(
                hidden, tokens if same else None, heads=self.num_heads
            )
            k, v = torch.cat([keys.to(k.dtype), k], dim=2), torch.cat([values.to(v.dtype), v], 2)
            bias = _with_slots(bias, slots, length, q, at_keys=False)
            mask = mask if mask is None else functional.pad(mask, (keys.shape[2], 0), value=True)
        attended, weights = self._weighed(q, k, v, mask, bias, need_weights)
        output = self.out_proj(attended.transpose(1, 2).flatten(2))
        return output, None if weights is None else weights[..., k.shape[2] - length :]

    def _projected(
        self, inputs: tuple[Tensor, Tensor, Tensor], tokens: Tensor | None, same: bool
    ) -> list[Tensor]:
        """Compute queries, keys and values (B, heads, T, d)."""
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        found = []
        for name, x, weight, bias in zip(
            ("query", "key", "value"), inputs, weights, biases, strict=True
        ):
            projected = functional.linear(x, weight, bias)
            delta = self._modules.get(f"pelt_{name}")
            if isinstance(delta, WeightDelta):
                mask = tokens if same or name != "query" else None
                projected = projected + delta(x, 1, mask)
            shape = (*projected.shape[:2], self.num_heads, self.head_dim)
            found.append(projected.view(shape).transpose(1, 2))
        return found

    def _check_masks(
        self, absent: Tensor | None, pairs: Tensor | None, queries: torch.Size, keys: int
    ) -> None:
        """Raise for masks that the base class refuses: they must not be broadcast or added."""
        batch, length = queries
        stacked = (batch * self.num_heads, length, keys)
        for name, mask, shapes in (
            ("key_padding_mask", absent, [(batch, keys)]),
            ("attn_mask", pairs, [(length, keys), stacked]),
        ):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise TypeError(f"{name} must be boolean or floating; got {mask.dtype}")
            if tuple(mask.shape) not in shapes:
                accepted = " or ".join(map(str, shapes))
                raise ShapeError(f"{name} must have shape {accepted}; got {tuple(mask.shape)}")

    def _masks(
        self, absent: Tensor | None, pairs: Tensor | None, q: Tensor, keys: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Merge both masks of the base class into what is allowed and a bias."""
        mask: Tensor | None = None
        bias: Tensor | None = None
        if pairs is not None and pairs.ndim == 3:
            pairs = pairs.view(q.shape[0], self.num_heads, q.shape[2], keys)
        absent = absent if absent is None else absent[:, None, None, :]
        for given in (absent, pairs):
            if given is None:
                continue
            if given.dtype == torch.bool:
                mask = ~given if mask is None else mask & ~given
            else:
                bias = given if bias is None else bias + given
        return mask, bias if bias is None else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)

    def _weighed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with the base class's dropout of weights."""
        drops = self.training and self.dropout > 0
        if not drops and not need_weights:
            return attend(q, k, v, mask=mask, bias=bias), None
        attended, weights = attend_with_weights(q, k, v, mask=mask, bias=bias)
        if drops:
            weights = functional.dropout(weights, self.dropout)
            attended = weights @ v
        return attended, weights if need_weights else None
