"""Files that are either complete or absent, and JSON that every parser accepts."""

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["replace_when_complete", "strict_json", "write_text"]


@contextmanager
def replace_when_complete(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; it takes the place of `path` when the block succeeds.

    Parameters
    ----------
    path : Path
        Where the complete file goes.

    Yields
    ------
    Path
        A name in the same folder, with the same suffix.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tensoralg.studies.files import replace_when_complete
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replace_when_complete(pathlib.Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     pathlib.Path(folder, "a.txt").read_text()
    'whole'
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.partial{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    r"""Write a UTF-8 text file with ``\n`` line ends, complete or not at all.

    Parameters
    ----------
    path : Path
        Where the file goes; an older one is replaced.
    text : str
        Its content.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tensoralg.studies.files import write_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(pathlib.Path(folder, "a.txt"), "whole")
    ...     pathlib.Path(folder, "a.txt").read_text()
    'whole'
    """
    with replace_when_complete(path) as temporary:
        # lone surrogates stand for bytes of a file name that are not UTF-8
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """Write a value as JSON that every parser accepts: what is not finite becomes null.

    Parameters
    ----------
    value : object
        Numbers, text, arrays, sequences and mappings, nested; other objects become their text.
    indent : int, optional
        As in `json.dumps`.

    Returns
    -------
    str
        JSON text, on one line when `indent` is None.

    Examples
    --------
    >>> from tensoralg.studies.files import strict_json
    >>> strict_json({"error": float("inf"), "message": "none"})
    '{"error": null, "message": "none"}'
    """
    return json.dumps(_plain(value), allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    return str(value)
