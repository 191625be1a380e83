"""Progress bars."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    track,
)

__all__ = ["progress_bar", "tracked"]

_Item = TypeVar("_Item")


def tracked(items: Iterable[_Item], name: str, *, show: bool = True) -> Iterable[_Item]:
    """Show a bar on the standard error stream while items are gone through.

    Parameters
    ----------
    items : iterable
        Anything, of known length or not.
    name : str
        What is being done.
    show : bool, default True
        False for no bar.

    Returns
    -------
    iterable
        The items.

    Examples
    --------
    >>> list(tracked([1, 2], "count", show=False))
    [1, 2]
    """
    if not show:
        return items
    return track(items, description=name, console=Console(stderr=True), transient=True)


@contextmanager
def progress_bar(state: Any, batches: int | None, epochs: int) -> Iterator[Callable[[], None]]:
    """Show a bar on the standard error stream while the context is open.

    Parameters
    ----------
    state : object
        With `steps`, `batch`, `epoch` and the sum `loss` of an epoch.
    batches : int or None
        Batches of an epoch, where they are known.
    epochs : int
        In all.

    Yields
    ------
    callable
        Moves the bar to the state's step.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> state = SimpleNamespace(steps=0, batch=0, epoch=0, loss=0.0)
    >>> with progress_bar(state, None, 1) as advance:
    ...     advance()
    """
    columns = (
        TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = None if batches is None else batches * epochs
        task = bar.add_task("fit", total=total, completed=state.steps, epoch=1, loss="")

        def advance() -> None:
            loss = f"{float(state.loss) / max(state.batch, 1):.4g}"
            bar.update(task, completed=state.steps, epoch=state.epoch + 1, loss=loss)

        yield advance
