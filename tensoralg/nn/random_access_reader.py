"""Read a long document in windows and leave out what follows a window that was foreseen well."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer, positive_integer
from tensoralg.nn.reading_trace import ReadingTrace, ReadWindow

__all__ = ["RandomAccessReader", "Reading"]

Pool = Literal["mean", "max"]
TokenLosses: TypeAlias = "Tensor | npt.ArrayLike"
# with a memory: also keys and values, or queries, keys and values
Losses: TypeAlias = Callable[[int, int], "TokenLosses | tuple[Any, ...]"]
Attended: TypeAlias = Callable[[Tensor, Tensor], object]

_ROUNDING = 1e-6  # a loss this far below zero is a rounding error


@runtime_checkable
class SlotMemory(Protocol):
    """What a reader needs of a memory; `KVMemory` has it."""

    def append(self, k: Tensor, v: Tensor, positions: Tensor | None = None) -> Any:
        """Store keys and values (B, H, T, d) with their places in the document."""

    def reset(self) -> Any:
        """Forget all."""


@runtime_checkable
class QueryMemory(Protocol):
    """What a reader needs of a memory in which queries wait; `Attendre` has it."""

    def push(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        valid: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Any:
        """Store keys and values; return the values of queries that waited, and their places."""

    def flush(self) -> Any:
        """Return the same for the queries that still wait."""

    def reset(self) -> Any:
        """Forget all."""


class Reading(Iterator[tuple[int, int]]):
    """An ongoing reading: yields ``(start, stop)`` and keeps a trace.

    Made by `RandomAccessReader.read`. The losses of a window are taken before it is yielded, once.

    Parameters
    ----------
    windows : iterator of (int, int)
        The windows; fills `trace`.
    trace : ReadingTrace
        What was read up to now.

    Examples
    --------
    >>> from tensoralg.nn import RandomAccessReader
    >>> reading = RandomAccessReader(4, 4, 0.5, 8).read(20, lambda start, stop: [0.1] * 4)
    >>> next(reading), reading.trace.share
    ((0, 4), 0.2)
    """

    def __init__(self, windows: Iterator[tuple[int, int]], trace: ReadingTrace) -> None:
        self._windows = windows
        self.trace = trace

    def __next__(self) -> tuple[int, int]:
        return next(self._windows)


class RandomAccessReader:
    """Read windows of a document; a well foreseen window is followed by a long skip.

    A window of ``L = window`` tokens at S is read, its token losses are pooled to C, and the next
    window starts at ``S + L + D`` with

        D = K min(floor((n - S - L) / K), floor(alpha / C), floor(max_skip / K)),  K = rate,

    where n is the length of the document. Low loss: long skip.

    Parameters
    ----------
    window : int
        Tokens of a window, L. The last one is clipped to the document.
    rate : int
        Skips are multiples of `rate` tokens, K.
    alpha : float
        How readily tokens are skipped, in units of the loss; 0 reads everything in sequence.
    max_skip : int
        The longest skip in tokens; below `rate` nothing is skipped. There is no default: without
        a bound one window with a small loss ends the reading.
    pool : {"mean", "max"}, default "mean"
        How C comes from the token losses.
    return_pass : bool, default False
        At the end of the document, go back over what was left out. The rule is the same to the
        left: the skip before a window is set by its C. So the beginning of a passage into whose
        middle a skip led is read after all, and what lies before a well foreseen window stays out.
    memory : KVMemory or Attendre, optional
        Emptied when a reading begins. `losses` then returns ``(losses, keys, values)``, for an
        `Attendre` ``(losses, queries, keys, values)``, each of shape (B, H, T, d); they are stored
        with the tokens' places in the document, which have gaps, and go down on the way back.

    Raises
    ------
    ValueError
        ``window < 1``, ``rate < 1``, ``alpha < 0`` or not finite, ``max_skip < 0``, another `pool`.
    TypeError
        Sizes that are no integers, an `alpha` that is no number, or another `memory`.

    Notes
    -----
    The idea, to leave out tokens while reading with a goal, is that of [1]_. The rule above, the
    bound `max_skip` and the way back are our reading of it. A loss that is NaN or infinite allows
    no skip; C = 0 allows the longest.

    References
    ----------
    .. [1] "Equipping Transformer with Random-Access Reading for Long-Context Understanding",
       arXiv:2405.13216.

    Examples
    --------
    >>> import numpy as np
    >>> surprise = np.where(np.arange(40) // 10 == 2, 3.0, 0.5)  # tokens 20 .. 29 are hard
    >>> reader = RandomAccessReader(window=4, rate=4, alpha=1.0, max_skip=8)
    >>> reading = reader.read(40, lambda start, stop: surprise[start:stop])
    >>> list(reading)
    [(0, 4), (12, 16), (24, 28), (28, 32), (32, 36)]
    >>> reading.trace.share
    0.5
    """

    def __init__(
        self,
        window: int,
        rate: int,
        alpha: float,
        max_skip: int,
        *,
        pool: Pool = "mean",
        return_pass: bool = False,
        memory: SlotMemory | QueryMemory | None = None,
    ) -> None:
        self.window = positive_integer("window", window)
        self.rate = positive_integer("rate", rate)
        self.max_skip = nonnegative_integer("max_skip", max_skip)
        try:
            self.alpha = float(alpha)
        except (TypeError, ValueError):
            raise TypeError(f"alpha must be a number; got {alpha!r}") from None
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number of at least 0; got {alpha}")
        if pool not in get_args(Pool):
            raise ValueError(f"pool must be one of {', '.join(get_args(Pool))}; got {pool!r}")
        self.pool = pool
        self.return_pass = bool(return_pass)
        if memory is not None and not isinstance(memory, SlotMemory | QueryMemory):
            raise TypeError(f"memory must be a KVMemory or an Attendre; got {memory!r}")
        self.memory = memory

    def __repr__(self) -> str:
        return (
            f"RandomAccessReader(window={self.window}, rate={self.rate}, alpha={self.alpha:g}, "
            f"max_skip={self.max_skip})"
        )

    def skip_length(self, confidence: float, left: int) -> int:
        """Compute the skip D behind a window.

        Parameters
        ----------
        confidence : float
            C, the window's pooled loss.
        left : int
            Tokens that lie ahead.

        Returns
        -------
        int
            A multiple of `rate`, at most `left` and `max_skip`.

        Examples
        --------
        >>> reader = RandomAccessReader(window=8, rate=4, alpha=1.0, max_skip=12)
        >>> [reader.skip_length(c, left=100) for c in (0.0, 0.4, 2.0, float("nan"))]
        [12, 8, 0, 0]
        """
        most = min(left, self.max_skip) // self.rate
        if self.alpha == 0 or not math.isfinite(confidence):
            return 0
        # compared before rounding: alpha / C may pass every integer
        if confidence <= 0 or self.alpha / confidence >= most:
            return self.rate * most
        return self.rate * math.floor(self.alpha / confidence)

    def read(self, length: int, losses: Losses, *, attended: Attended | None = None) -> Reading:
        """Begin to read a document.

        Parameters
        ----------
        length : int
            Tokens of the document, n.
        losses : callable
            ``losses(start, stop)`` returns one loss for each of the tokens ``start .. stop-1``,
            not negative, as a tensor or an array; with a `memory` also keys and values. Called
            once for each window, in the order of reading.
        attended : callable, optional
            ``attended(out, positions)`` takes what an `Attendre` gives out: after a window for the
            queries that have waited, at the end for the others.

        Returns
        -------
        Reading
            Iterator over ``(start, stop)`` with a `trace`. Starts increase (on the way back they
            decrease), and no token is read twice.

        Raises
        ------
        ValueError
            A negative length, or `attended` without an `Attendre`; while reading: negative losses.
        ShapeError
            While reading: not one loss, key and value for every token.
        TypeError
            `losses` or `attended` cannot be called, or `losses` did not return what a `memory`
            needs.

        Examples
        --------
        >>> reader = RandomAccessReader(window=4, rate=4, alpha=1.0, max_skip=8)
        >>> list(reader.read(9, lambda start, stop: [5.0] * (stop - start)))
        [(0, 4), (4, 8), (8, 9)]
        """
        length = nonnegative_integer("length", length)
        for name, given in (("losses", losses), ("attended", attended)):
            if not callable(given) and not (name == "attended" and given is None):
                raise TypeError(f"{name} must be callable; got {type(given).__name__}")
        if attended is not None and not isinstance(self.memory, QueryMemory):
            raise ValueError(f"attended needs an Attendre as memory; got {self.memory!r}")
        trace = ReadingTrace(length)
        return Reading(self._windows(trace, losses, attended), trace)

    def _windows(
        self, trace: ReadingTrace, losses: Losses, attended: Attended | None
    ) -> Iterator[tuple[int, int]]:
        """Read forwards, then, where asked for, backwards."""
        if self.memory is not None:
            self.memory.reset()
        start = 0
        while start < trace.length:
            stop = min(start + self.window, trace.length)
            confidence = self._confidence(losses, attended, start, stop)
            skip = self.skip_length(confidence, trace.length - stop)
            trace.windows.append(ReadWindow(start, stop, confidence, skip))
            yield start, stop
            start = stop + skip
        if self.return_pass:
            yield from self._way_back(trace, losses, attended)
        if isinstance(self.memory, QueryMemory) and trace.windows and attended is not None:
            attended(*self.memory.flush())

    def _way_back(
        self, trace: ReadingTrace, losses: Losses, attended: Attended | None
    ) -> Iterator[tuple[int, int]]:
        """Go through the gaps from right to left, each from the window on its right."""
        forward = list(trace.windows)
        for before, after in reversed(list(pairwise(forward))):
            first, stop = before.stop, after.start
            stop -= self.skip_length(after.confidence, stop - first)
            while stop > first:
                start = max(stop - self.window, first)
                confidence = self._confidence(losses, attended, start, stop)
                skip = self.skip_length(confidence, start - first)
                trace.windows.append(ReadWindow(start, stop, confidence, skip, returning=True))
                yield start, stop
                stop = start - skip

    def _confidence(
        self, losses: Losses, attended: Attended | None, start: int, stop: int
    ) -> float:
        """Take a window's losses, pool them, and store its keys and values."""
        found = losses(start, stop)
        if self.memory is None:
            return self._pooled(found, start, stop)
        names = ["keys", "values"]
        if isinstance(self.memory, QueryMemory):
            names.insert(0, "queries")
        if not isinstance(found, tuple) or len(found) != 1 + len(names):
            raise TypeError(
                f"losses must return (losses, {', '.join(names)}) for a reader with a "
                f"{type(self.memory).__name__}; got {type(found).__name__}"
            )
        confidence = self._pooled(found[0], start, stop)
        for name, stored in zip(names, found[1:], strict=True):
            if not isinstance(stored, Tensor):
                raise TypeError(f"{name} must be a tensor; got {type(stored).__name__}")
            if stored.ndim != 4 or stored.shape[2] != stop - start:
                raise ShapeError(
                    f"{name} must have shape (B, H, {stop - start}, d) for the tokens "
                    f"{start} .. {stop - 1}; got {tuple(stored.shape)}"
                )
        *waiting, k, v = found[1:]
        places = torch.arange(start, stop, device=k.device)
        if isinstance(self.memory, QueryMemory):
            emitted = self.memory.push(waiting[0], k, v, positions=places)
            if attended is not None:
                attended(*emitted)
        else:
            self.memory.append(k, v, positions=places)
        return confidence

    def _pooled(self, found: Any, start: int, stop: int) -> float:
        """Check a window's losses and pool them to C; NaN where one of them is."""
        values = _as_losses(found)
        if values.shape != (stop - start,):
            raise ShapeError(
                f"losses({start}, {stop}) must return {stop - start} losses, one for each token; "
                f"got shape {values.shape}"
            )
        lowest = float(values.min())  # NaN compares as False
        if lowest < -_ROUNDING:
            raise ValueError(f"losses must not be negative; losses({start}, {stop}) has {lowest}")
        return float(values.max() if self.pool == "max" else values.mean())


def _as_losses(found: Any) -> npt.NDArray[np.float64]:
    """Convert what a model returned, from any device, to float64."""
    if isinstance(found, Tensor):
        kept = found.detach().cpu()
        found = (kept.double() if kept.is_floating_point() else kept).numpy()
    try:
        values = np.asarray(found)
    except (TypeError, ValueError, RuntimeError):  # ragged lists among others
        values = np.asarray(None)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"losses must return real numbers; got {type(found).__name__}")
    return values.astype(np.float64)
