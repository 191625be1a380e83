"""Softmax attention with a mask and an additive bias; a query without any key gives zeros."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from tensoralg.core.errors import ShapeError

__all__ = ["attend", "attend_with_weights"]


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    r"""Attend keys with queries: ``softmax(q k^T / sqrt(d) + bias) v`` over the allowed keys.

    Parameters
    ----------
    q : Tensor, shape (B, H, T, d)
        Queries of B batch rows and H heads.
    k : Tensor, shape (B, H, S, d)
        Keys.
    v : Tensor, shape (B, H, S, e)
        Values.
    mask : Tensor of bool, broadcastable to (B, H, T, S), optional
        True where a query may attend a key.
    bias : Tensor, broadcastable to (B, H, T, S), optional
        Added to the scaled scores. ``log g`` weighs a key by g, and minus infinity forbids it.

    Returns
    -------
    Tensor, shape (B, H, T, e)
        The attended values, zeros for a query that may attend no key.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    TypeError
        A mask that is not boolean, tensors of several types, or integers.

    See Also
    --------
    KVMemory : Keys and values in a table of constant size.

    Notes
    -----
    Where every query may attend a key this is
    :func:`torch.nn.functional.scaled_dot_product_attention`, which does the work (PyTorch gives
    NaN for a query without keys in some versions). Scaled dot products are from [1]_.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, arXiv:1706.03762, eq. 1.

    Examples
    --------
    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4), torch.eye(3)[None, None]
    >>> mask = torch.tensor([[True, True, False], [False, False, False]])
    >>> attend(q, k, v, mask=mask)
    tensor([[[[0.5000, 0.5000, 0.0000],
              [0.0000, 0.0000, 0.0000]]]])
    """
    _check(q, k, v, mask, bias)
    if q.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        return (q @ k.transpose(-1, -2)) @ v  # zeros of the right shape, in the graph
    allowed, bias = _allowed(q, mask, bias)
    if allowed is None:
        return functional.scaled_dot_product_attention(q, k, v)
    nothing = ~allowed.any(dim=-1, keepdim=True)
    allowed = allowed | nothing  # a softmax over no key is NaN, its gradient too
    if bias is not None:
        allowed = bias.masked_fill(~allowed, -math.inf).masked_fill(nothing, 0.0)
    if allowed.ndim < 4:  # the kernels take no mask of three dimensions
        allowed = allowed.expand(1, 1, *allowed.shape[-2:]) if allowed.ndim < 3 else allowed[None]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return attended.masked_fill(nothing, 0.0)


def attend_with_weights(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as `attend` does, and return how much of each key every query took.

    Parameters
    ----------
    q, k, v, mask, bias : Tensor
        As for `attend`.

    Returns
    -------
    attended : Tensor, shape (B, H, T, e)
        The attended values.
    weights : Tensor, shape (B, H, T, S)
        Sums to 1 over the keys, to 0 for a query that may attend none.

    Examples
    --------
    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
    >>> attend_with_weights(q, k, v)[1].sum(dim=-1)
    tensor([[[1., 1.]]])
    """
    _check(q, k, v, mask, bias)
    wide = torch.promote_types(q.dtype, torch.float32)  # products pass the range of float16
    scores = (q.to(wide) / math.sqrt(q.shape[-1])) @ k.to(wide).transpose(-1, -2)
    if k.shape[-2] == 0:
        weights = scores.to(q.dtype)
        return weights @ v, weights
    allowed, bias = _allowed(q, mask, bias)
    if bias is not None:
        scores = scores + bias
    if allowed is None:
        weights = scores.softmax(dim=-1).to(q.dtype)
        return weights @ v, weights
    nothing = ~allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -math.inf).masked_fill(nothing, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(nothing, 0.0).to(q.dtype)
    return weights @ v, weights


def _allowed(
    q: Tensor, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Merge what mask and bias forbid; the bias in the queries' type."""
    if bias is None:
        return mask, None
    bias = bias.to(q.dtype)
    finite = bias != -math.inf
    allowed = finite if mask is None else finite & mask
    return allowed, bias


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> None:
    """Raise where the arguments do not belong together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ShapeError(f"{name} must have shape (B, H, T, d); got {tuple(tensor.shape)}")
        if not tensor.is_floating_point() or tensor.dtype != q.dtype:
            raise TypeError(
                f"q, k, v must have one floating type; got {q.dtype}, {k.dtype}, {v.dtype}"
            )
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or q.shape[3] == 0:
        raise ShapeError(
            f"k must have q's B, H and d (at least 1): q has shape {tuple(q.shape)}; "
            f"got {tuple(k.shape)}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ShapeError(f"v must have k's shape {tuple(k.shape)} but for d; got {tuple(v.shape)}")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True: attend); got {mask.dtype}; see bias")
    full = torch.Size((*q.shape[:3], k.shape[2]))
    for name, extra in (("mask", mask), ("bias", bias)):
        if extra is not None and not _broadcastable(extra.shape, full):
            raise ShapeError(
                f"{name} must be broadcastable to (B, H, T, S) = {tuple(full)}; "
                f"got {tuple(extra.shape)}"
            )


def _broadcastable(shape: torch.Size, full: torch.Size) -> bool:
    """Tell whether a shape broadcasts to another without enlarging it."""
    pairs = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(own in (1, size) for own, size in pairs)
