"""What gates must know of a forward pass: the axis of tokens, padding, and prompts."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn.gated_parts import Gate, Prompt
from tensoralg.nn.transformer import EncoderBlock, SelfAttention

__all__ = [
    "PromptStack",
    "SampleContext",
    "drop_hooks",
    "host",
    "present_tokens",
    "refuse_causal",
]

_FORBIDDING = -1e4  # a score lowered by so much has no weight; many codes write -1e9 for -inf

_ROOT_MASKS = ("attention_mask", "mask")  # of any other model; True or 1 for a token


class PromptStack:
    """Prompts that stand before the tokens while a stack of blocks runs.

    Parameters
    ----------
    prompt : Prompt
        Its tokens and gate; a submodule of the model, not of this object.

    Attributes
    ----------
    log_gate : Tensor or None, shape (B, 1, 1, 1)
        Of the samples under way.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.log_gate: Tensor | None = None

    @property
    def count(self) -> int:
        """Prompt tokens that stand before the tokens now."""
        return 0 if self.log_gate is None else self.prompt.tokens.shape[0]

    def begin(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Put the prompts before the tokens (B, T, features) of every sample."""
        self.log_gate = self.prompt.log_gate(hidden, mask)
        tokens = self.prompt.tokens.to(hidden.dtype).expand(hidden.shape[0], -1, -1)
        return torch.cat([tokens, hidden], dim=1)

    def bias(self) -> Tensor | None:
        """Bias (B, 1, 1, P) of the prompts as keys; None where there are none."""
        return None if self.log_gate is None else self.log_gate.expand(-1, -1, -1, self.count)


class SampleContext:
    """Masks of the forward pass that is under way in one host module.

    Parameters
    ----------
    prompts : PromptStack, optional
        Of the stack that the host belongs to.

    Attributes
    ----------
    first, last : bool
        Whether the host begins or ends the stack of prompts.
    known : bool
        Whether the host is of a known kind, whose masks can be told.
    """

    def __init__(self, prompts: PromptStack | None = None) -> None:
        self.prompts = prompts
        self.first = self.last = self.known = False
        self._axis: int | None = None
        self._mask: Tensor | None = None

    def enter(self, axis: int | None, mask: Tensor | None) -> None:
        """Begin a forward pass; `mask` has the tokens' shape without features."""
        self._axis, self._mask = axis, mask

    def leave(self) -> None:
        """End it."""
        self._axis = self._mask = None

    def place(self, x: Tensor) -> tuple[int | None, Tensor | None]:
        """Say which axis of `x` is the tokens', and which of them are no padding.

        Parameters
        ----------
        x : Tensor, shape (..., features)
            Input of a layer in the host.

        Returns
        -------
        axis : int or None
            None where every row is a sample.
        mask : Tensor of bool, or None
            True where there is a token.

        Raises
        ------
        ShapeError
            The mask does not belong to these tokens.
        RuntimeError
            A part of a known host runs by itself.
        """
        axis = self._axis
        if axis is None and self.known:
            raise RuntimeError(
                "a layer with a gate runs outside its block, so padding cannot be told from "
                "tokens; call the block or the model, or use gate=False"
            )
        if axis is None:  # any model: rows of a matrix are samples of their own
            if x.ndim < 3:
                return None, None
            axis = x.ndim - 2
        if self._mask is not None and self._mask.shape != x.shape[:-1]:
            raise ShapeError(
                f"a gate sees tokens of shape {tuple(x.shape)}, but the mask has shape "
                f"{tuple(self._mask.shape)}: padding cannot be told from tokens; use gate=False"
            )
        return axis, self._mask

    def real_tokens(self, mask: Tensor | None, shape: torch.Size) -> Tensor | None:
        """Leave prompts out of a mask (B, T) of what may be attended."""
        count = 0 if self.prompts is None else self.prompts.count
        if not count:
            return mask
        assert self.prompts is not None
        if mask is None:
            device = self.prompts.prompt.tokens.device
            mask = torch.ones(shape, dtype=torch.bool, device=device)
        return functional.pad(mask[:, count:], (count, 0), value=False)


def refuse_causal(module: nn.Module, mask: Tensor | None) -> None:
    """Raise where gates would tell early tokens of later ones.

    Parameters
    ----------
    module : Module
        With or without gates.
    mask : Tensor or None, shape (..., T, S)
        True, or minus infinity (-1e4 and less), where attention is forbidden.

    Raises
    ------
    ValueError
        The mask is causal and a gate depends on the input.
    """
    if mask is None or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return
    if not any(isinstance(part, Gate) and part.constant is None for part in module.modules()):
        return
    forbidden = mask if mask.dtype == torch.bool else mask <= _FORBIDDING
    above = torch.ones_like(forbidden, dtype=torch.bool).triu(1)
    if bool((forbidden | ~above).all()):
        raise ValueError(
            "gates average over all tokens of a sample, so a causal mask would not keep later "
            "tokens from earlier ones; use PELT(gate=False) or fix_gates"
        )


def present_tokens(absent: Tensor) -> Tensor:
    """Turn a mask of padding into one of tokens.

    Parameters
    ----------
    absent : Tensor
        True, or minus infinity (-1e4 and less), for padding.

    Returns
    -------
    Tensor of bool
        True for a token.
    """
    return ~absent if absent.dtype == torch.bool else absent > _FORBIDDING


def host(module: nn.Module, context: SampleContext) -> None:
    """Have a module tell a context of its forward passes.

    Parameters
    ----------
    module : Module
        A block, a layer or an attention module, or the root of any other model.
    context : SampleContext
        Becomes ``module.pelt_context``.
    """
    module.pelt_context = context  # type: ignore[assignment]
    enter: Any = _enter_root
    for kind, function in _ENTER.items():
        if isinstance(module, kind):
            enter, context.known = function, True
    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(_leave, always_call=True)


def drop_hooks(module: nn.Module, *functions: Any, hosts: bool = False) -> None:
    """Take away hooks of given functions.

    Parameters
    ----------
    module : Module
        Where they are registered; it may have none.
    *functions : callable
        The hooks.
    hosts : bool, default False
        Those of `host` as well.
    """
    ours = (*functions, *((*_ENTER.values(), _enter_root, _leave) if hosts else ()))
    for hooks, extra in (
        (module._forward_pre_hooks, (module._forward_pre_hooks_with_kwargs,)),
        (
            module._forward_hooks,
            (module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
        ),
    ):
        for key in [key for key, function in hooks.items() if function in ours]:
            del hooks[key]
            for marks in extra:
                marks.pop(key, None)


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    """Find an argument by place or name; None where it was not given."""
    return args[place] if len(args) > place else kwargs.get(name)


def _enter_attention(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Read the mask of a `SelfAttention`; prompts stand in it as tokens."""
    context = _context(module)
    hidden, mask = _argument(args, kwargs, 0, "hidden"), _argument(args, kwargs, 1, "mask")
    context.enter(1, context.real_tokens(mask, hidden.shape[:2]))


def _enter_block(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read the mask of an `EncoderBlock`, and bring in the prompts."""
    context = _context(module)
    hidden, mask = _argument(args, kwargs, 0, "hidden"), _argument(args, kwargs, 1, "mask")
    prompts = context.prompts
    if prompts is None:
        context.enter(1, mask)
        return None
    if context.first:
        hidden = prompts.begin(hidden, mask)
    _check_begun(prompts)
    if mask is not None:
        mask = functional.pad(mask, (prompts.count, 0), value=True)
    context.enter(1, context.real_tokens(mask, hidden.shape[:2]))
    return (hidden, mask), {}


def _enter_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read the masks of a ``TransformerEncoderLayer``, and bring in the prompts."""
    context = _context(module)
    source = _argument(args, kwargs, 0, "src")
    pairs, padding = _argument(args, kwargs, 1, "src_mask"), args[2:3]
    absent = padding[0] if padding else kwargs.get("src_key_padding_mask")
    refuse_causal(module, pairs)
    present = None if absent is None else present_tokens(absent)
    batch_first = module.self_attn.batch_first  # type: ignore[union-attr]
    batched = source.ndim == 3
    swap = batched and not batch_first
    prompts, changed = context.prompts, None
    if prompts is not None:
        source = source.transpose(0, 1) if swap else source if batched else source[None]
        if context.first:
            rows = present if present is None or batched else present[None]
            source = prompts.begin(source, rows)
        _check_begun(prompts)
        count = prompts.count
        source = source.transpose(0, 1) if swap else source if batched else source[0]
        absent = None if absent is None else functional.pad(absent, (count, 0))
        named = {"src_mask": _with_prompts(pairs, count), "src_key_padding_mask": absent}
        changed = (source,), named
        length = source.shape[0] if swap or not batched else source.shape[1]
        if present is None:
            shape = (*((source.shape[1 if swap else 0],) if batched else ()), length - count)
            present = torch.ones(shape, dtype=torch.bool, device=source.device)
        present = functional.pad(present, (count, 0), value=False)
    context.enter(
        1 if batched and batch_first else 0, present.mT if present is not None and swap else present
    )
    return changed


def _enter_root(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Look for a mask among the arguments of any model."""
    names = list(inspect.signature(module.forward).parameters)
    mask = None
    for name in _ROOT_MASKS:
        if mask is None:
            place = names.index(name) if name in names else len(args)
            mask = _argument(args, kwargs, place, name)
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        seen = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ShapeError(f"gates need a mask of shape (B, T), 1 for a token; got {seen}")
    if (
        mask is not None
        and mask.dtype != torch.bool
        and not bool(((mask == 0) | (mask == 1)).all())
    ):
        raise ValueError(
            "gates need a mask of 1 for a token and 0 for padding; got other numbers, as those "
            "that are added to scores"
        )
    _context(module).enter(None, None if mask is None else mask != 0)


def _leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Forget the masks; behind the last block the prompts leave."""
    context = _context(module)
    context.leave()
    prompts = context.prompts
    if prompts is None or not context.last or isinstance(module, SelfAttention):
        return None
    count, prompts.log_gate = prompts.count, None
    if output is None or not count:  # an error is on its way
        return None
    attention = getattr(module, "self_attn", None)
    rows_first = attention is not None and (output.ndim == 2 or not attention.batch_first)
    return output[count:] if rows_first else output[:, count:]


_ENTER = {
    SelfAttention: _enter_attention,
    EncoderBlock: _enter_block,
    nn.TransformerEncoderLayer: _enter_layer,
}


def _context(module: nn.Module) -> SampleContext:
    """Return the context of a host."""
    context = module.pelt_context
    assert isinstance(context, SampleContext)
    return context


def _check_begun(prompts: PromptStack) -> None:
    """Raise where a block runs without those before it."""
    if prompts.log_gate is None:
        raise RuntimeError(
            "prompts enter at the first block of the stack: a later one cannot run alone"
        )


def _with_prompts(pairs: Tensor | None, count: int) -> Tensor | None:
    """Let tokens attend the prompts, and prompts only each other: they must not pass tokens on."""
    if pairs is None:
        return None
    forbidden = True if pairs.dtype == torch.bool else -math.inf
    wide = functional.pad(pairs, (count, 0))
    above = torch.full_like(wide[..., :1, :], forbidden)
    above[..., :count] = 0
    return torch.cat([above.expand(*wide.shape[:-2], count, wide.shape[-1]), wide], dim=-2)
