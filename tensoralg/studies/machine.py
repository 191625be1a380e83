"""What a result was computed on: said in every report."""

import contextlib
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensoralg.gpu.namespaces import library_versions

__all__ = ["describe_machine", "machine_in_words", "one_thread"]

_NAMED = ("tensoralg", "numpy", "scipy", "scikit-learn", "numba")


def describe_machine() -> dict[str, Any]:
    """Describe the machine, the libraries and the moment.

    Returns
    -------
    dict
        ``date`` (UTC, ISO 8601), ``machine`` (processor and system), ``cores``, ``load`` (mean
        number of runnable processes in the last minute; how busy it is) and ``versions``.

    Examples
    --------
    >>> from tensoralg.studies.machine import describe_machine
    >>> sorted(describe_machine())
    ['cores', 'date', 'load', 'machine', 'versions']
    """
    versions = library_versions()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": load,
        "versions": {"python": versions["python"]} | {name: versions[name] for name in _NAMED},
    }


def machine_in_words(entry: dict[str, Any]) -> str:
    """Write what `describe_machine` found as one line.

    Parameters
    ----------
    entry : dict
        From `describe_machine`, perhaps read back from a file.

    Returns
    -------
    str
        Machine, cores, load and versions.

    Examples
    --------
    >>> from tensoralg.studies.machine import machine_in_words
    >>> machine_in_words({"machine": "A processor", "cores": 2, "versions": {"numpy": "2.4.6"}})
    'A processor, 2 cores; numpy 2.4.6'
    """
    load = entry.get("load")
    busy = f" (load {load:.1f})" if isinstance(load, int | float) else ""
    versions = ", ".join(f"{name} {number}" for name, number in entry["versions"].items())
    return f"{entry['machine']}, {entry['cores']} cores{busy}; {versions}"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS and OpenMP on one thread inside the block: seconds compare and numbers repeat.

    The limit reaches only the libraries that are loaded when the block begins.

    Examples
    --------
    >>> from tensoralg.studies.machine import one_thread
    >>> with one_thread():
    ...     pass
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"
