"""Map a function over items in local processes that never outlive this one."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

__all__ = ["map_in_processes"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    on_death: Callable[[Item], Result],
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for every item, as they finish.

    The workers are fresh interpreters (spawn). They end at once when the iterator is closed or
    this process dies, however it dies. When a worker dies (killed, out of memory, crashed), the
    items that were under way are tried again one by one, each alone.

    Parameters
    ----------
    function : callable
        Called in a worker; it and the items must be picklable.
    items : iterable
        Arguments.
    workers : int
        Number of processes.
    on_death : callable
        Called here for an item whose worker died while nothing else ran; its return value is
        yielded in the place of the result.

    Yields
    ------
    object
        Results in the order in which they finish.

    Examples
    --------
    >>> from tensoralg.studies.workers import map_in_processes
    >>> list(map_in_processes(abs, [], 2, on_death=print))
    []
    """
    pending = deque(items)
    while pending:
        under_way = yield from _until_a_worker_dies(function, pending, workers)
        for item in under_way:
            alone = deque([item])
            if (yield from _until_a_worker_dies(function, alone, 1)):
                yield on_death(item)


def _until_a_worker_dies(
    function: Callable[[Item], Result], pending: deque[Item], workers: int
) -> Generator[Result, None, list[Item]]:
    """Take items from `pending`, yield results; return the items that a death left unfinished."""
    running: dict[Future[Result], Item] = {}
    with _executor(min(workers, len(pending))) as executor:
        while pending or running:
            try:
                while pending and len(running) < workers:
                    running[executor.submit(function, pending[0])] = pending[0]
                    pending.popleft()
            except BrokenProcessPool:
                return list(running.values())
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    result = future.result()
                except BrokenProcessPool:
                    return list(running.values())
                del running[future]
                yield result
    return []


@contextlib.contextmanager
def _executor(workers: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    # only this process holds the writing end: it closes when the block or the process ends
    reader, writer = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(workers, context, _start_worker, (reader,))
    try:
        yield executor
    finally:
        writer.close()
        executor.shutdown(wait=True, cancel_futures=True)
        reader.close()


def _start_worker(reader: Connection) -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_the_parent, args=(reader,), daemon=True).start()


def _leave_with_the_parent(reader: Connection) -> None:
    with contextlib.suppress(OSError):
        reader.poll(None)
    os._exit(1)
