"""What a random-access reader did: its windows, their confidences, what it left out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensoralg.core.figures import CYCLE, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ReadWindow", "ReadingTrace"]


@dataclass(frozen=True)
class ReadWindow:
    """One window that was read.

    Parameters
    ----------
    start, stop : int
        The tokens ``start .. stop-1`` of the document.
    confidence : float
        C, the pooled loss of these tokens: the smaller, the better they were foreseen. NaN where
        the losses had one.
    skip : int
        Tokens left out behind the window, in the direction of reading.
    returning : bool, default False
        Whether the window was read on the way back.

    Examples
    --------
    >>> ReadWindow(0, 8, confidence=0.5, skip=16)
    ReadWindow(start=0, stop=8, confidence=0.5, skip=16, returning=False)
    """

    start: int
    stop: int
    confidence: float
    skip: int
    returning: bool = False


@dataclass
class ReadingTrace:
    """The windows of one reading, in the order in which they were read.

    Parameters
    ----------
    length : int
        Tokens of the document.
    windows : list of ReadWindow
        Grows while the reading goes on.

    Examples
    --------
    >>> trace = ReadingTrace(10, [ReadWindow(0, 4, 0.1, 4), ReadWindow(8, 10, 2.0, 0)])
    >>> trace.tokens_read, trace.share, trace.unread()
    (6, 0.6, [(4, 8)])
    >>> trace.overlap(2, 9)
    3
    """

    length: int
    windows: list[ReadWindow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[ReadWindow]:
        return iter(self.windows)

    @property
    def tokens_read(self) -> int:
        """Tokens in all windows; no token is read twice."""
        return sum(window.stop - window.start for window in self.windows)

    @property
    def share(self) -> float:
        """Tokens read over tokens of the document; 1 for an empty document."""
        return self.tokens_read / self.length if self.length else 1.0

    def unread(self) -> list[tuple[int, int]]:
        """Return the stretches ``(start, stop)`` that no window covers, from left to right."""
        gaps = []
        place = 0
        for window in sorted(self.windows, key=lambda window: window.start):
            if window.start > place:
                gaps.append((place, window.start))
            place = window.stop
        if place < self.length:
            gaps.append((place, self.length))
        return gaps

    def overlap(self, start: int, stop: int) -> int:
        """Count the tokens of a stretch that were read.

        Parameters
        ----------
        start, stop : int
            The tokens ``start .. stop-1``.

        Returns
        -------
        int
            At most ``stop - start``.
        """
        common = (min(stop, one.stop) - max(start, one.start) for one in self.windows)
        return sum(tokens for tokens in common if tokens > 0)

    def plot(self) -> "Figure":
        """Draw the pooled loss of every window at its place in the document.

        White stretches were not read. Windows whose loss was not a finite number are crosses on
        the axis.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        PlottingUnavailableError
            If matplotlib cannot be imported.
        """
        figure, (axes,) = new_figure(8.0, 3.0)
        names = {False: "windows", True: "windows on the way back"}
        for returning, name in names.items():
            passed = [one for one in self.windows if one.returning is returning]
            if not passed:
                continue
            x: list[int] = []
            y: list[float] = []
            for one in passed:  # one outline for all: thousands of bars would be slow
                height = one.confidence if math.isfinite(one.confidence) else 0.0
                x += [one.start, one.start, one.stop, one.stop]
                y += [0.0, height, height, 0.0]
            axes.fill_between(x, y, color=CYCLE[returning], alpha=0.35, label=name)
            axes.plot(x, y, color=CYCLE[returning], linewidth=0.8)
        lost = [one.start for one in self.windows if not math.isfinite(one.confidence)]
        if lost:
            zeros = [0.0] * len(lost)
            axes.plot(lost, zeros, "x", color=CYCLE[7], label="no finite loss", clip_on=False)
        axes.set_xlim(0, max(self.length, 1))
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"token ({self.share:.0%} of {self.length:,} read)")
        axes.set_ylabel("pooled loss C")
        add_legend(figure, axes)
        return figure
