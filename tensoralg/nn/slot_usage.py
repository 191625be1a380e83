"""Which slots of a memory may be attended, which were, which ones stay when it is full."""

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.nn.token_places import as_positions

__all__ = ["EMPTY", "frequent_usage", "kept_slots", "recent_usage", "slot_mask"]

EMPTY = -1  # the position of a slot that holds nothing


def kept_slots(rank: Tensor, score: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Choose the slots that stay: of the highest rank, then of the highest score, then the newest.

    Parameters
    ----------
    rank : Tensor of int64, shape (B, n)
        0 for an empty slot, larger ones for slots that go later.
    score : Tensor, shape (B, n)
        The policy's; slots stand in the order in which they came.
    width : int
        How many slots stay in each row.

    Returns
    -------
    kept, dropped : Tensor of int64, shapes (B, width) and (B, n - width)
        Indices; those of the kept ones increase.

    Examples
    --------
    >>> rank = torch.tensor([[1, 1, 0, 1]])
    >>> kept, dropped = kept_slots(rank, torch.tensor([[2.0, 2.0, 9.0, 3.0]]), 2)
    >>> kept.tolist(), dropped.tolist()
    ([[1, 3]], [[2, 0]])
    """
    order = score.argsort(dim=1, stable=True)
    order = order.gather(1, rank.gather(1, order).argsort(dim=1, stable=True))
    out = rank.shape[1] - width
    return order[:, out:].sort(dim=1).values, order[:, :out]


def recent_usage(
    last: Tensor, clock: Tensor, weights: Tensor, counted: Tensor, top_k: int
) -> Tensor:
    """Note for each slot the time of the last query that had it among its `top_k`.

    Parameters
    ----------
    last : Tensor of int64, shape (B, n)
        The times so far.
    clock : Tensor of int64, shape (B,)
        Queries that were counted before.
    weights : Tensor, shape (B, H, T, n)
        How much the queries took of each slot; the heads' mean decides.
    counted : Tensor of bool, shape (B, T)
        Queries that count.
    top_k : int
        Slots that a query refreshes; one without weight never is.

    Returns
    -------
    Tensor of int64, shape (B, n)
        The times afterwards.

    Examples
    --------
    >>> weights = torch.tensor([[[[0.1, 0.6, 0.3], [0.7, 0.0, 0.3]]]])
    >>> last, clock = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([5])
    >>> recent_usage(last, clock, weights, torch.tensor([[True, True]]), 1)
    tensor([[7, 6, 0]])
    """
    shares = weights.mean(dim=1, dtype=torch.promote_types(weights.dtype, torch.float32))
    chosen = shares.topk(min(top_k, shares.shape[-1]), dim=-1)
    time = clock[:, None] + counted.cumsum(dim=1)
    hits = time[..., None] * (counted[..., None] & (chosen.values > 0))
    seen = torch.zeros_like(shares, dtype=torch.int64).scatter(-1, chosen.indices, hits)
    return torch.maximum(last, seen.amax(dim=1)) if seen.shape[1] else last


def frequent_usage(mass: Tensor, weights: Tensor, counted: Tensor, decay: float) -> Tensor:
    """Add to each slot what the queries took of it, in the mean of the heads.

    Parameters
    ----------
    mass : Tensor, shape (B, n)
        What was taken so far.
    weights : Tensor, shape (B, H, T, n)
        How much the queries took of each slot.
    counted : Tensor of bool, shape (B, T)
        Queries that count.
    decay : float
        Factor on all that was taken before a query.

    Returns
    -------
    Tensor, shape (B, n)
        The sums afterwards.

    Examples
    --------
    >>> weights = torch.tensor([[[[0.5, 0.5], [1.0, 0.0]]]])
    >>> frequent_usage(torch.tensor([[0.0, 4.0]]), weights, torch.tensor([[True, True]]), 0.5)
    tensor([[1.2500, 1.2500]])
    """
    counts = counted.cumsum(dim=1)
    total = counts[:, -1:] if counts.shape[1] else counts.new_zeros(len(counts), 1)
    later = (decay ** (total - counts).to(mass.dtype)) * counted
    taken = torch.einsum("bt,btn->bn", later, weights.mean(dim=1, dtype=mass.dtype))
    return mass * decay ** total.to(mass.dtype) + taken


def slot_mask(slots: Tensor, mask: Tensor | None, positions: Tensor | None, length: int) -> Tensor:
    """Say which slots each query may attend.

    Parameters
    ----------
    slots : Tensor of int64, shape (B, n)
        The slots' positions; `EMPTY` in an empty slot, which no query may attend.
    mask : Tensor of bool, broadcastable to (B, H, T, n), or None
        What is allowed at most.
    positions : Tensor of int64, shape (T,) or (B, T), or None
        The queries' positions, if later slots are forbidden.
    length : int
        T.

    Returns
    -------
    Tensor of bool, shape (B, H or 1, T, n)
        True: attend.

    Raises
    ------
    ShapeError
        A mask or positions of another shape.
    TypeError
        A mask that is not boolean.

    Examples
    --------
    >>> slot_mask(torch.tensor([[4, -1, 6]]), None, torch.tensor([5]), 1)
    tensor([[[[ True, False, False]]]])
    """
    batch, n = slots.shape
    places = slots[:, None, None, :]
    allowed = (places != EMPTY).expand(-1, -1, length, -1)
    if positions is not None:
        start = slots.new_zeros(batch)
        allowed = allowed & (places <= as_positions(positions, start, length)[:, None, :, None])
    if mask is None:
        return allowed
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True: attend); got {mask.dtype}")
    try:
        merged = allowed & mask
    except RuntimeError:
        merged = allowed.new_empty(0)
    if merged.ndim != 4 or (merged.shape[0], *merged.shape[2:]) != (batch, length, n):
        raise ShapeError(
            f"mask must be broadcastable to (B, H, T, n) with B = {batch}, T = {length} and the "
            f"memory's n = {n}; got {tuple(mask.shape)}"
        )
    return merged
