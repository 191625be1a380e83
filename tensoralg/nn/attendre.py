"""Queries that wait: they attend a memory of keys and values when later tokens have come."""

from typing import NamedTuple

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.key_value_memory import KVMemory, Policy
from tensoralg.nn.token_places import as_positions, as_valid

__all__ = ["Attended", "Attendre"]


class Attended(NamedTuple):
    """What the queries found that waited long enough.

    Parameters
    ----------
    out : Tensor, shape (B, H, T, e)
        Attended values; T may be 0.
    positions : Tensor of int64, shape (T,) or (B, T)
        Where the queries stand; of each row where positions were given so.
    """

    out: Tensor
    positions: Tensor


class _Waiting(NamedTuple):
    """Queries in the order they came."""

    q: Tensor  # (B, H, n, d)
    positions: Tensor  # (B, n)
    valid: Tensor  # (B, n)


class Attendre:
    """Attention over a stream with bounded memory, for queries that wait for later keys.

    Keys and values go into a `KVMemory` at once. A query waits until `delay` more queries have
    come and attends the memory then, so it sees keys on both sides of its own.

    Parameters
    ----------
    size : int
        Slots of the memory in each batch row.
    delay : int
        How many queries wait; 0 for none.
    policy : {"fifo", "lra", "lfa"}, default "lra"
        Which slot goes when the memory is full, see `KVMemory`.
    top_k : int, default 1
        As for `KVMemory`; with fewer slots refreshed by a query, the important ones stand out.
    decay : float, default 0.9
        As for `KVMemory`.
    protect : int, default 0
        As for `KVMemory`.
    causal : bool, default False
        A query attends no key of a later position than its own.

    Attributes
    ----------
    memory : KVMemory
        The slots; pin learned ones or attention sinks there.

    Raises
    ------
    ValueError
        ``size`` is smaller than ``delay + 1``, or an argument that `KVMemory` refuses.

    See Also
    --------
    with_memory : This attention in the place of a model's own.

    Notes
    -----
    After [1]_, of which we know the abstract: queries wait in a memory of their own and attend the
    keys and values when they are evicted from it. When `size` and `delay` reach the length of the
    stream, the result is full attention, however the stream is cut. Otherwise a chunk's keys are
    all stored before the queries attend, so a query sees up to a chunk more than `delay` keys.
    Padding is never stored nor counted as usage; its queries are emitted like the others.

    Cross attention: push the encoder's keys with ``q=None`` and the decoder's queries with
    ``k=v=None``, in any order; each side counts its own positions.

    References
    ----------
    .. [1] Z. Yang, N. Hua, "Attendre: Wait To Attend By Retrieval With Evicted Queries in
       Memory-Based Transformers for Long Context Processing", arXiv:2401.04881.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> q, k, v = torch.randn(3, 1, 2, 10, 4)
    >>> attention = Attendre(10, 4, "lra")
    >>> for start in (0, 5):
    ...     part = slice(start, start + 5)
    ...     print(attention.push(q[:, :, part], k[:, :, part], v[:, :, part]).positions)
    tensor([0])
    tensor([1, 2, 3, 4, 5])
    >>> attention.flush().positions
    tensor([6, 7, 8, 9])
    """

    def __init__(
        self,
        size: int,
        delay: int,
        policy: Policy = "lra",
        *,
        top_k: int = 1,
        decay: float = 0.9,
        protect: int = 0,
        causal: bool = False,
    ) -> None:
        self.memory = KVMemory(size, policy, top_k=top_k, decay=decay, protect=protect)
        self.delay = nonnegative_integer("delay", delay)
        self.causal = bool(causal)
        self._check_room(1)
        self.reset()

    def reset(self) -> None:
        """Forget everything but pinned slots; the next batch may be of another shape."""
        self.memory.reset()
        self._waiting: _Waiting | None = None
        self._next: Tensor | None = None  # (B,): the position behind the last query
        self._shared = True  # all rows' queries stand at the same positions

    def detach_(self) -> None:
        """Cut slots and waiting queries off from the graph that made them."""
        self.memory.detach_()
        if self._waiting is not None:
            self._waiting = self._waiting._replace(q=self._waiting.q.detach())

    @property
    def nbytes(self) -> int:
        """Bytes of the slots and of the waiting queries."""
        held = self._waiting or ()
        return self.memory.nbytes + sum(part.numel() * part.element_size() for part in held)

    def __len__(self) -> int:
        return 0 if self._waiting is None else self._waiting.positions.shape[1]

    def push(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Attended:
        """Store a chunk's keys and values, let its queries wait, emit those that waited enough.

        Parameters
        ----------
        q : Tensor, shape (B, H, T, d), or None
            Queries; None stores keys only.
        k, v : Tensor, shapes (B, H, T, d) and (B, H, T, e), or None
            Keys and values of the same tokens; None for both if queries come alone.
        valid : Tensor of bool, shape (B, T), optional
            False for padding.
        positions : Tensor of int64, shape (T,) or (B, T), optional
            Where the tokens stand; by default behind the last ones.

        Returns
        -------
        out : Tensor, shape (B, H, n, e)
            For the n queries that `delay` others followed, padding included, in their order.
        positions : Tensor of int64, shape (n,) or (B, n)
            Theirs; for each row if some were given for each row.

        Raises
        ------
        ValueError
            ``size < delay + T``: a query's own key could be gone when it attends; cut the chunk.
            Nothing is stored then.
        ShapeError, TypeError
            Shapes or types that do not belong together.
        """
        self._check_chunk(q, k, v)
        if q is not None and k is not None:
            self._check_room(q.shape[2])
        if k is not None and v is not None:
            self.memory.append(k, v, positions, valid)
        if q is None:
            assert k is not None
            assert v is not None
            return self._nothing(k, v)
        self._wait(q, valid, positions)
        return self._emit(max(0, len(self) - self.delay))

    def flush(self) -> Attended:
        """Emit the queries that still wait; the memory stays.

        Returns
        -------
        out : Tensor, shape (B, H, n, e)
            For the n waiting queries.
        positions : Tensor of int64, shape (n,) or (B, n)
            Theirs.
        """
        if self._waiting is None:
            return Attended(torch.empty(0, 0, 0, 0), torch.empty(0, dtype=torch.int64))
        return self._emit(len(self))

    def _wait(self, q: Tensor, valid: Tensor | None, positions: Tensor | None) -> None:
        """Put queries behind those that wait."""
        batch, _, length, _ = q.shape
        if self._next is None:
            self._next = torch.zeros(batch, dtype=torch.int64, device=q.device)
        places = as_positions(positions, self._next, length)
        if positions is not None and positions.ndim == 2:
            self._shared = False
        if length:
            self._next = places[:, -1] + 1
        fresh = _Waiting(q, places, as_valid(valid, (batch, length), q.device))
        if self._waiting is not None:
            old = self._waiting
            fresh = _Waiting(
                torch.cat([old.q, fresh.q], dim=2),
                torch.cat([old.positions, fresh.positions], dim=1),
                torch.cat([old.valid, fresh.valid], dim=1),
            )
        self._waiting = fresh

    def _emit(self, count: int) -> Attended:
        """Let the first `count` waiting queries attend."""
        assert self._waiting is not None
        q, places, valid = self._waiting
        rest = _Waiting(q[:, :, count:], places[:, count:], valid[:, count:])
        q, places, valid = q[:, :, :count], places[:, :count], valid[:, :count]
        if count:
            out = self.memory.read(q, positions=places if self.causal else None, valid=valid)
        else:
            values = self.memory.values
            out = q[..., :0] @ q.new_empty(0, q.shape[-1] if values is None else values.shape[-1])
        self._waiting = rest  # not before: where reading raises, the queries wait on
        return Attended(out, places[0] if self._shared and len(places) else places)

    def _nothing(self, k: Tensor, v: Tensor) -> Attended:
        """Emit no query."""
        batch = k.shape[0]
        shape = (0,) if self._shared else (batch, 0)
        none = torch.empty(shape, dtype=torch.int64, device=k.device)
        return Attended(v[:, :, :0], none)

    def _check_room(self, chunk: int) -> None:
        """Raise where waiting queries' own keys could be evicted."""
        if self.memory.size < self.delay + chunk:
            raise ValueError(
                f"size must be at least delay + chunk = {self.delay} + {chunk}; "
                f"got {self.memory.size}"
            )

    def _check_chunk(self, q: Tensor | None, k: Tensor | None, v: Tensor | None) -> None:
        """Raise where queries do not fit keys or those that wait."""
        if (k is None) != (v is None) or (q is None and k is None):
            raise ValueError("k and v go together, and q or k must be given; got None")
        if q is None:
            return
        if q.ndim != 4:
            raise ShapeError(f"q must have shape (B, H, T, d); got {tuple(q.shape)}")
        others = [k, v, None if self._waiting is None else self._waiting.q]
        if wrong := [x.dtype for x in others if x is not None and x.dtype != q.dtype]:
            raise TypeError(
                "q, k, v must have one type, that of the waiting queries; "
                f"got {q.dtype} and {wrong[0]}"
            )
        if k is not None and k.shape != q.shape:
            raise ShapeError(
                f"k must have q's shape {tuple(q.shape)}; got {tuple(k.shape)}; for cross "
                "attention push keys and queries one after the other"
            )
        if self._waiting is not None:
            old = self._waiting.q.shape
            if (q.shape[:2], q.shape[3]) != (old[:2], old[3]):
                raise ShapeError(
                    f"q must have shape (B, H, T, d) with the waiting queries' B, H and d of "
                    f"{tuple(old)}; got {tuple(q.shape)}; see reset()"
                )
