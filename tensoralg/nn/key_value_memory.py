"""Keys and values in a table of constant size: what was attended least goes first."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer, positive_integer
from tensoralg.nn.attention import attend, attend_with_weights
from tensoralg.nn.pinned_slots import PinnedSlots
from tensoralg.nn.slot_usage import EMPTY, frequent_usage, kept_slots, recent_usage, slot_mask
from tensoralg.nn.token_places import as_positions, as_valid

__all__ = ["POLICIES", "KVMemory", "Policy"]

Policy = Literal["fifo", "lra", "lfa"]
POLICIES: tuple[Policy, ...] = ("fifo", "lra", "lfa")


class _Slots(NamedTuple):
    """The table: rows of the batch are independent, slots stand in the order they came in."""

    k: Tensor  # (B, H, n, d)
    v: Tensor  # (B, H, n, e)
    positions: Tensor  # (B, n), EMPTY in an empty slot
    score: Tensor  # (B, n): time of the last query (lra) or mass (lfa)

    def take(self, indices: Tensor) -> "_Slots":
        """Keep the slots (B, m)."""
        index = indices[:, None, :, None]
        heads = self.k.shape[1]
        return _Slots(
            self.k.gather(2, index.expand(-1, heads, -1, self.k.shape[3])),
            self.v.gather(2, index.expand(-1, heads, -1, self.v.shape[3])),
            self.positions.gather(1, indices),
            self.score.gather(1, indices),
        )


class KVMemory:
    """Keys and values that queries attend, at most `size` of them in each batch row.

    Parameters
    ----------
    size : int
        Slots in a row; pinned ones come on top.
    policy : {"fifo", "lra", "lfa"}, default "fifo"
        What goes when a row is full: the oldest slot, the one least recently attended, or the one
        least frequently attended. Among equals the oldest goes.
    top_k : int, default 8
        A query attends, for ``"lra"``, the slots among its `top_k` largest weights.
    decay : float, default 1.0
        For ``"lfa"``: factor on what earlier queries took, for each query that is read.
    protect : int, default 0
        So many of the newest slots of a row never go for the sake of an older one. The chunk that
        is appended is always protected.

    Raises
    ------
    ValueError
        A size or count that is too small, an unknown policy, a decay outside (0, 1].

    See Also
    --------
    Attendre : Queries that wait until later keys are in the memory.

    Notes
    -----
    The policies are those that [1]_ names in its abstract. Our reading of "attended", where the
    abstract is silent: weights are averaged over the heads, which share their slots; "lra" keeps
    the time of the last query that had the slot among its `top_k`, a new slot counting as attended
    when it comes; "lfa" adds up the weights. Time counts queries, not calls.

    Nothing is changed in place: gradients flow into all keys and values that are still held.
    `detach_` cuts them off, for streams that do not end.

    References
    ----------
    .. [1] Z. Yang, N. Hua, "Attendre: Wait To Attend By Retrieval With Evicted Queries in
       Memory-Based Transformers for Long Context Processing", arXiv:2401.04881.

    Examples
    --------
    >>> memory = KVMemory(2)
    >>> for token in torch.eye(3).view(3, 1, 1, 1, 3):
    ...     memory.append(token, token)
    >>> memory.positions
    tensor([[1, 2]])
    >>> memory.read(torch.zeros(1, 1, 1, 3))
    tensor([[[[0.0000, 0.5000, 0.5000]]]])
    """

    def __init__(
        self,
        size: int,
        policy: Policy = "fifo",
        *,
        top_k: int = 8,
        decay: float = 1.0,
        protect: int = 0,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {POLICIES}; got {policy!r}")
        if not 0 < decay <= 1:
            raise ValueError(f"decay must lie in (0, 1]; got {decay}")
        self.size = positive_integer("size", size)
        self.policy = policy
        self.top_k = positive_integer("top_k", top_k)
        self.decay = float(decay)
        self.protect = nonnegative_integer("protect", protect)
        self._pins = PinnedSlots()
        self.reset()

    def reset(self) -> None:
        """Forget all slots but the pinned ones; the next batch may be of another shape."""
        self._slots: _Slots | None = None
        self._clock: Tensor | None = None  # (B,): queries that were read
        self._next: Tensor | None = None  # (B,): the position behind the last token

    def unpin(self) -> None:
        """Forget the pinned slots."""
        self._pins = PinnedSlots()

    def detach_(self) -> None:
        """Cut the slots off from the graph that made them; pinned ones stay in it."""
        if self._slots is not None:
            self._slots = self._slots._replace(k=self._slots.k.detach(), v=self._slots.v.detach())

    def __len__(self) -> int:
        return 0 if self._slots is None else self._slots.positions.shape[1]

    @property
    def positions(self) -> Tensor:
        """True positions of the slots, shape (B, n) with n at most `size`; -1 in an empty slot."""
        if self._slots is None:
            return torch.empty(0, 0, dtype=torch.int64)
        return self._slots.positions

    @property
    def usage(self) -> Tensor:
        """The policy's number of every slot, shape (B, n): last time (lra), mass (lfa), or 0."""
        return torch.empty(0, 0) if self._slots is None else self._slots.score

    @property
    def keys(self) -> Tensor | None:
        """Keys of the slots, shape (B, H, n, d), zeros in an empty slot; None before the first."""
        return None if self._slots is None else self._slots.k

    @property
    def values(self) -> Tensor | None:
        """Values of the slots, shape (B, H, n, e)."""
        return None if self._slots is None else self._slots.v

    @property
    def nbytes(self) -> int:
        """Bytes that the memory holds now, the pinned slots included."""
        held = [*(self._slots or ()), *self._pins.tensors]
        held += [tensor for tensor in (self._clock, self._next) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def pin(self, k: Tensor, v: Tensor, *, bias: Tensor | float = 0.0) -> None:
        """Add slots that every query may attend and that never go.

        Parameters
        ----------
        k, v : Tensor, shapes (B or 1, H, P, d) and (B or 1, H, P, e)
            For example learned ones: the tensors are kept as they are, gradients reach them.
        bias : float or Tensor, broadcastable to (B, H, 1, P), default 0
            Added to the scores: ``log g`` is a gate g, minus infinity switches a slot off.

        Raises
        ------
        ShapeError
            Shapes that do not belong together.
        """
        self._pins.add(k, v, bias)

    def append(
        self,
        k: Tensor,
        v: Tensor,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        """Store a chunk; older slots go where a row would hold more than `size`.

        Parameters
        ----------
        k, v : Tensor, shapes (B, H, T, d) and (B, H, T, e)
            Keys and values. Of a chunk longer than the memory the last ones stay.
        positions : Tensor of int64, shape (T,) or (B, T), optional
            Where the tokens stand, at least 0; by default behind the last one appended.
        valid : Tensor of bool, shape (B, T), optional
            False for padding, which is never stored.

        Raises
        ------
        ShapeError
            Shapes that differ from each other's or from the slots'.
        TypeError
            `valid` is not boolean, `positions` are no integers, or the type differs.
        """
        self._check_chunk(k, v)
        batch, length = k.shape[0], k.shape[2]
        valid = as_valid(valid, (batch, length), k.device)
        start = torch.zeros(batch, dtype=torch.int64, device=k.device)
        start = start if self._next is None else self._next
        places = as_positions(positions, start, length)  # the last that may raise
        self._next = places[:, -1] + 1 if length else start
        self._clock = torch.zeros_like(start) if self._clock is None else self._clock
        kept = valid[:, None, :, None]
        fresh = _Slots(
            torch.where(kept, k, 0),  # whatever stands in padding, not-a-number too
            torch.where(kept, v, 0),
            torch.where(valid, places, EMPTY),
            self._fresh_score(length),
        )
        if self._slots is not None:
            pairs = zip(self._slots, fresh, strict=True)
            fresh = _Slots(*(torch.cat(pair, dim=2 if pair[0].ndim == 4 else 1) for pair in pairs))
        self._slots = fresh
        self._shrink(self.size, newest=length)

    def read(
        self,
        q: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        """Attend the slots and the pinned ones, and note what was attended.

        Parameters
        ----------
        q : Tensor, shape (B, H, T, d)
            Queries.
        mask : Tensor of bool, broadcastable to (B, H, T, n), optional
            Slots that a query may attend, n as in `positions` of the memory; the pinned ones are
            always allowed.
        positions : Tensor of int64, shape (T,) or (B, T), optional
            Where the queries stand. Given, a query attends no slot of a later position (causal).
        valid : Tensor of bool, shape (B, T), optional
            Queries that count as usage; padding does not.

        Returns
        -------
        Tensor, shape (B, H, T, e)
            The attended values, zeros for a query that may attend nothing.

        Raises
        ------
        ShapeError
            Shapes that do not fit the slots.
        ValueError
            There has never been anything to attend.
        """
        if self._slots is None and not len(self._pins):
            raise ValueError("the memory has no slots yet; append or pin some first")
        if q.ndim != 4:
            raise ShapeError(f"q must have shape (B, H, T, d); got {tuple(q.shape)}")
        k, v, allowed, bias = self._table(q, mask, positions)
        if self.policy == "fifo" or self._slots is None:
            return attend(q, k, v, mask=allowed, bias=bias)
        attended, weights = attend_with_weights(q, k, v, mask=allowed, bias=bias)
        counted = as_valid(valid, (q.shape[0], q.shape[2]), q.device)
        self._note(weights.detach()[..., len(self._pins) :], counted)
        return attended

    def evict(self, room: int = 0) -> Tensor:
        """Let slots go, by the policy, until every row has room for some.

        Parameters
        ----------
        room : int, default 0
            Slots that have to be free in each row; at most `size`.

        Returns
        -------
        Tensor of int64, shape (B, m)
            Positions of the slots that went, -1 in the place of an empty one.

        Raises
        ------
        ValueError
            No memory has so much room.
        """
        if nonnegative_integer("room", room) > self.size:
            raise ValueError(f"room must be at most size = {self.size}; got {room}")
        return self._shrink(self.size - room)

    def _shrink(self, width: int, newest: int = 0) -> Tensor:
        """Keep at most `width` slots in each row; return the positions of the others."""
        if self._slots is None:
            return torch.empty(0, 0, dtype=torch.int64)
        slots, n = self._slots, self._slots.positions.shape[1]
        if n <= width:
            return slots.positions[:, :0]
        held = slots.positions != EMPTY
        age = held.flip(1).cumsum(dim=1).flip(1)  # 1 for the newest
        index = torch.arange(n, device=held.device)
        rank = held * (1 + (age <= self.protect).long() + 2 * (index >= n - newest))
        kept, dropped = kept_slots(rank, slots.score, width)
        self._slots = slots.take(kept)
        return slots.positions.gather(1, dropped)

    def _fresh_score(self, length: int) -> Tensor:
        """Make the usage of new slots (B, length): attended now, or not at all."""
        assert self._clock is not None
        if self.policy == "lra":
            return self._clock[:, None].repeat(1, length)
        return torch.zeros(len(self._clock), length, device=self._clock.device)

    def _note(self, weights: Tensor, counted: Tensor) -> None:
        """Update the usage by the weights (B, H, T, n) of the queries that count."""
        slots, clock = self._slots, self._clock
        assert slots is not None
        assert clock is not None
        with torch.no_grad():
            if self.policy == "lra":
                score = recent_usage(slots.score, clock, weights, counted, self.top_k)
            else:
                score = frequent_usage(slots.score, weights, counted, self.decay)
            self._slots = slots._replace(score=score)
            self._clock = clock + counted.sum(dim=1)

    def _table(
        self, q: Tensor, mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Give keys, values, mask and bias of all slots, the pinned ones first."""
        batch, _, length, _ = q.shape
        pinned = len(self._pins)
        if self._slots is None:
            k, v, bias = self._pins.expanded(q)
            return k, v, None, bias
        if len(self._slots.positions) != batch:
            raise ShapeError(f"q must have the slots' B, {len(self._slots.k)}; got {batch}")
        own = slot_mask(self._slots.positions, mask, positions, length)
        if not pinned:
            return self._slots.k, self._slots.v, own, None
        k, v, bias = self._pins.expanded(q)
        if v.shape[3] != self._slots.v.shape[3]:
            raise ShapeError(
                f"pinned v must have the slots' e = {self._slots.v.shape[3]}; got {v.shape[3]}"
            )
        return (
            torch.cat([k, self._slots.k], dim=2),
            torch.cat([v, self._slots.v], dim=2),
            functional.pad(own, (pinned, 0), value=True),
            functional.pad(bias, (0, own.shape[-1])),
        )

    def _check_chunk(self, *chunk: Tensor) -> None:
        """Raise where keys or values do not fit each other or the slots."""
        k, v = chunk
        if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
            raise ShapeError(
                "k and v must have shapes (B, H, T, d) and (B, H, T, e); "
                f"got {tuple(k.shape)} and {tuple(v.shape)}"
            )
        if self._slots is None:
            return
        for name, new, old in (("k", k, self._slots.k), ("v", v, self._slots.v)):
            if new.dtype != old.dtype:
                raise TypeError(f"{name} must have the slots' type {old.dtype}; got {new.dtype}")
            if (new.shape[:2], new.shape[3]) != (old.shape[:2], old.shape[3]):
                raise ShapeError(
                    f"{name} must have shape (B, H, T, d) with the slots' B, H and d of "
                    f"{tuple(old.shape)}; got {tuple(new.shape)}; see reset()"
                )
