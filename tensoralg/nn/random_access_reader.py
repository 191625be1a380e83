"""Read a long document in windows and leave out what follows a window that was foreseen well."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias, get_args

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
Losses: TypeAlias = Callable[[int, int], "TokenLosses | tuple[TokenLosses, Tensor, Tensor]"]

_ROUNDING = 1e-6  # a loss this far below zero is a rounding error


class SlotMemory(Protocol):
    """What the reader needs of a memory; `tensoralg.nn.KVMemory` has it."""

    def append(self, k: Tensor, v: Tensor, positions: Tensor | None = None) -> Any:
        """Store keys and values (B, H, T, d) with their places in the document."""

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
    memory : KVMemory, optional
        Emptied when a reading begins. `losses` then returns ``(losses, keys, values)``, and the
        keys and values (B, H, T, d) are stored with the tokens' places in the document, which have
        gaps, and go down on the way back.

    Raises
    ------
    ValueError
        ``window < 1``, ``rate < 1``, ``alpha < 0`` or not finite, ``max_skip < 0``, another `pool`.
    TypeError
        Sizes that are not integers, or a memory that cannot store.

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
        memory: SlotMemory | None = None,
    ) -> None:
        self.window = positive_integer("window", window)
        self.rate = positive_integer("rate", rate)
        self.max_skip = nonnegative_integer("max_skip", max_skip)
        self.alpha = float(alpha)
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number of at least 0; got {alpha}")
        if pool not in get_args(Pool):
            raise ValueError(f"pool must be one of {', '.join(get_args(Pool))}; got {pool!r}")
        self.pool = pool
        self.return_pass = bool(return_pass)
        for name in ("append", "reset"):
            if memory is not None and not callable(getattr(memory, name, None)):
                raise TypeError(f"memory must have a method {name!r}; got {type(memory).__name__}")
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

    def read(self, length: int, losses: Losses) -> Reading:
        """Begin to read a document.

        Parameters
        ----------
        length : int
            Tokens of the document, n.
        losses : callable
            ``losses(start, stop)`` returns one loss for each of the tokens ``start .. stop-1``,
            not negative, as a tensor or an array; with a `memory` also keys and values. Called
            once for each window, in the order of reading.

        Returns
        -------
        Reading
            Iterator over ``(start, stop)`` with a `trace`. Starts increase (on the way back they
            decrease), and no token is read twice.

        Raises
        ------
        ValueError
            A negative length; while reading: negative losses.
        ShapeError
            While reading: not one loss, key and value for every token.
        TypeError
            `losses` cannot be called, or did not return what a `memory` needs.

        Examples
        --------
        >>> reader = RandomAccessReader(window=4, rate=4, alpha=1.0, max_skip=8)
        >>> list(reader.read(9, lambda start, stop: [5.0] * (stop - start)))
        [(0, 4), (4, 8), (8, 9)]
        """
        length = nonnegative_integer("length", length)
        if not callable(losses):
            raise TypeError(f"losses must be callable; got {type(losses).__name__}")
        trace = ReadingTrace(length)
        return Reading(self._windows(trace, losses), trace)

    def _windows(self, trace: ReadingTrace, losses: Losses) -> Iterator[tuple[int, int]]:
        """Read forwards, then, where asked for, backwards."""
        if self.memory is not None:
            self.memory.reset()
        start = 0
        while start < trace.length:
            stop = min(start + self.window, trace.length)
            confidence = self._confidence(losses, start, stop)
            skip = self.skip_length(confidence, trace.length - stop)
            trace.windows.append(ReadWindow(start, stop, confidence, skip))
            yield start, stop
            start = stop + skip
        if self.return_pass:
            yield from self._way_back(trace, losses)

    def _way_back(self, trace: ReadingTrace, losses: Losses) -> Iterator[tuple[int, int]]:
        """Go through the gaps from right to left, each from the window on its right."""
        forward = list(trace.windows)
        for before, after in reversed(list(pairwise(forward))):
            first, stop = before.stop, after.start
            stop -= self.skip_length(after.confidence, stop - first)
            while stop > first:
                start = max(stop - self.window, first)
                confidence = self._confidence(losses, start, stop)
                skip = self.skip_length(confidence, start - first)
                trace.windows.append(ReadWindow(start, stop, confidence, skip, returning=True))
                yield start, stop
                stop = start - skip

    def _confidence(self, losses: Losses, start: int, stop: int) -> float:
        """Take a window's losses, pool them, and store its keys and values."""
        found = losses(start, stop)
        if self.memory is None:
            return self._pooled(found, start, stop)
        if not isinstance(found, tuple) or len(found) != 3:
            raise TypeError(
                "losses must return (losses, keys, values) for a reader with a memory; "
                f"got {type(found).__name__}"
            )
        values, k, v = found
        confidence = self._pooled(values, start, stop)
        for name, stored in (("keys", k), ("values", v)):
            if stored.ndim != 4 or stored.shape[2] != stop - start:
                raise ShapeError(
                    f"{name} must have shape (B, H, {stop - start}, d) for the tokens "
                    f"{start} .. {stop - 1}; got {tuple(stored.shape)}"
                )
        self.memory.append(k, v, positions=torch.arange(start, stop, device=k.device))
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


def _as_losses(found: Tensor | npt.ArrayLike | Sequence[float]) -> npt.NDArray[np.float64]:
    """Convert what a model returned, from any device, to float64."""
    if isinstance(found, Tensor):
        return found.detach().to("cpu", torch.float64).numpy()
    try:
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"losses must return numbers; got {type(found).__name__}") from None
