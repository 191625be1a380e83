"""Map a function over items on a Dask cluster that runs already; distributed loads on use."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from tensoralg.core.errors import TensorAlgError

__all__ = ["ClusterError", "connect", "count_workers", "map_on_cluster"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_PATIENCE = 15  # seconds in which the scheduler must answer

# warnings and limits on threads belong to a whole process: one item at a time in each
_ALONE = threading.Lock()


class ClusterError(TensorAlgError):
    """The Dask cluster cannot be reached, was lost, or cannot run the work."""


def connect(address: str) -> Any:
    """Join a cluster.

    Parameters
    ----------
    address : str
        Of the scheduler, as ``tcp://host:8786``.

    Returns
    -------
    distributed.Client
        To be closed by the caller.

    Raises
    ------
    ClusterError
        If distributed is not installed, or no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError(
            f"no cluster: distributed cannot be imported ({error}); "
            "install it with: pip install 'tensoralg[dask]'"
        ) from None
    try:
        # not the default client: a study must not take over the Dask work of its caller
        return Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({type(error).__name__}: {error}); an "
            "address looks like tcp://host:8786"
        ) from None


def count_workers(client: Any) -> int:
    """Count the worker processes that a cluster has now."""
    return len(client.nthreads())


def map_on_cluster(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    client: Any,
    on_death: Callable[[Item], Result],
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for every item, as they finish.

    Every worker process runs one item at a time, however many threads it has. An item whose
    worker dies runs again on another one. When the iterator is closed, what has not begun is
    taken back; when this process dies, the scheduler does so.

    Parameters
    ----------
    function : callable
        Called in a worker, where it must be importable.
    items : iterable
        Arguments, picklable.
    client : distributed.Client
        From :func:`connect`.
    on_death : callable
        Called here for an item with which workers died again and again (the scheduler's
        ``allowed-failures``, 3 by default); its return value is yielded in the place of the
        result.

    Yields
    ------
    object
        Results in the order in which they finish.

    Raises
    ------
    ClusterError
        If the scheduler is lost, or the workers cannot run the function.
    """
    from distributed import KilledWorker, as_completed

    futures = {client.submit(_alone, function, item, pure=False): item for item in items}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            item = futures.pop(future)
            try:
                result = future.result()
            except KilledWorker:
                result = on_death(item)
            except Exception as error:
                raise ClusterError(
                    f"the cluster could not run a cell ({type(error).__name__}: {error}); its "
                    "scheduler must run, and its workers need the same version of tensoralg"
                ) from error
            future.release()
            yield result
    finally:
        with contextlib.suppress(Exception):
            client.cancel(list(futures), force=True)


def _alone(function: Callable[[Item], Result], item: Item) -> Result:
    with _ALONE:
        return function(item)
