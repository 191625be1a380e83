"""The folder of a study: one strict-JSON line per finished cell, appended and never rewritten."""

import fcntl
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tensoralg.core.errors import TensorAlgError
from tensoralg.studies.files import strict_json, write_text
from tensoralg.studies.intervals import IntervalCounts
from tensoralg.studies.specification import (
    CellKey,
    SpecificationError,
    StudySpecification,
    load_specification,
)

__all__ = ["STATUSES", "CellResult", "CellStore", "StudyFolderError", "read_cells", "read_study"]

STATUSES = ("ok", "not converged", "failed")
_CELLS, _STUDY, _LOCK = "cells.jsonl", "study.toml", ".lock"
_MEASURES = (
    "mean_error",
    "weight_error",
    "variance_error",
    "log_likelihood_gap",
    "seconds",
)
_KEYS = tuple(field.name for field in fields(CellKey))
# left out of lines that they have nothing to say in: lines of older studies stay as they were
_SPOILED = ("outliers", "missing")
_REQUIRED = {*_KEYS, *_MEASURES, "status", "message"} - {*_SPOILED}
_INTERVALS = tuple(field.name for field in fields(IntervalCounts))
_ACCEPTED = _REQUIRED | {*_SPOILED, *_INTERVALS, "components_found"}
_WHOLE = (*(name for name in _INTERVALS if name != "moment_test_p_value"), "components_found")


class StudyFolderError(TensorAlgError):
    """The folder of a study is in use, holds another study, or is damaged."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One finished cell: one line of ``cells.jsonl``.

    Attributes
    ----------
    key : CellKey
        Which cell.
    status : str
        "ok", "not converged" or "failed".
    mean_error, weight_error, variance_error : float
        Relative Frobenius errors after matching; NaN when the fit failed.
    log_likelihood_gap : float
        Mean log-likelihood per row of the fitted mixture minus that of the known one.
    seconds : float
        Wall-clock time of the fit alone, on one thread.
    message : str
        What the method had to say.
    components_found : int or None
        Components of the fit, where the method found their number by itself.
    intervals : IntervalCounts or None
        Whether its intervals hold the known parameters, where the study asks that.
    """

    key: CellKey
    status: str
    mean_error: float = math.nan
    weight_error: float = math.nan
    variance_error: float = math.nan
    log_likelihood_gap: float = math.nan
    seconds: float = math.nan
    message: str = ""
    components_found: int | None = None
    intervals: IntervalCounts | None = None

    def to_line(self) -> str:
        r"""Write the cell as one line of strict JSON, ``\n`` included."""
        entry: dict[str, Any] = {name: getattr(self.key, name) for name in _KEYS}
        for name in _SPOILED:
            if entry[name] == 0:
                del entry[name]
        entry["status"] = self.status
        entry |= {name: getattr(self, name) for name in _MEASURES}
        entry["message"] = self.message
        if self.components_found is not None:
            entry["components_found"] = self.components_found
        if self.intervals is not None:
            entry |= asdict(self.intervals)
        return strict_json(entry) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> "CellResult":
        """Read one line.

        Parameters
        ----------
        line : str or bytes
            A line of ``cells.jsonl``.

        Returns
        -------
        CellResult
            The cell.

        Raises
        ------
        ValueError
            If the line is not a cell.
        """
        entry = json.loads(line)
        if not isinstance(entry, dict) or not _REQUIRED <= set(entry) <= _ACCEPTED:
            raise ValueError("the fields are not those of a cell")
        if entry["status"] not in STATUSES or not isinstance(entry["message"], str):
            raise ValueError("the status or the message is not one of a cell")
        key = _key_of({name: entry[name] for name in _KEYS if name in entry})
        measures = {name: _number_of(entry[name]) for name in _MEASURES}
        for name in _WHOLE:
            value = entry.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ValueError(f"{name} is {value!r}")
        intervals = None
        if any(name in entry for name in _INTERVALS):
            values = {name: entry.get(name) for name in _INTERVALS}
            p_value = _number_of(values.pop("moment_test_p_value"))
            intervals = IntervalCounts(**values, moment_test_p_value=p_value)
        return cls(
            key,
            entry["status"],
            message=entry["message"],
            components_found=entry.get("components_found"),
            intervals=intervals,
            **measures,
        )


def _key_of(values: dict[str, Any]) -> CellKey:
    for name, value in values.items():
        decimal = name in ("separation", *_SPOILED)
        wanted = int | float if decimal else str if name == "method" else int
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"{name} is {value!r}")
        if decimal:
            values[name] = float(value)
    return CellKey(**values)


def _number_of(value: Any) -> float:
    return math.nan if value is None else float(value)


class CellStore:
    """The folder of a running study, held by one process at a time.

    Opening it makes the folder, refuses one that holds another study, and repairs a torn last
    line. Use it as a context manager.

    Parameters
    ----------
    folder : str or Path
        The folder.
    specification : StudySpecification
        The study that runs there.

    Raises
    ------
    StudyFolderError
        If another process runs a study there, or it holds another study or a damaged file.
    OSError
        If the folder cannot be made or written.

    Examples
    --------
    >>> import tempfile
    >>> from tensoralg.studies import CellStore, StudySpecification
    >>> study = StudySpecification("s", (8,), (2,), (3,), (500,), (1.0,), (0,), ("em-truth",))
    >>> with tempfile.TemporaryDirectory() as folder, CellStore(folder, study) as store:
    ...     len(store.missing())
    1
    """

    def __init__(self, folder: str | Path, specification: StudySpecification) -> None:
        self.folder = Path(folder)
        self.specification = specification
        self.finished: dict[CellKey, CellResult] = {}
        self._lock = self._cells = -1

    def __enter__(self) -> "CellStore":
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            self._take_lock()
            self._settle_specification()
            self._cells = os.open(self.folder / _CELLS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _repair(self._cells, self.folder / _CELLS)
            _sync_folder(self.folder)
            self.finished = {cell.key: cell for cell in read_cells(self.folder)}
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        for name in ("_cells", "_lock"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def missing(self) -> list[CellKey]:
        """List the cells of the study that are not finished yet."""
        return [key for key in self.specification.cells() if key not in self.finished]

    def append(self, result: CellResult) -> None:
        """Store a finished cell: one write at the end of the file, on the disk on return.

        Parameters
        ----------
        result : CellResult
            The cell.

        Raises
        ------
        ValueError
            If the cell is stored already.
        OSError
            If the disk is full or the file cannot be written; nothing of the line stays.
        """
        if result.key in self.finished:
            raise ValueError(f"the cell is stored already: {result.key}")
        line = result.to_line().encode()
        size = os.fstat(self._cells).st_size
        written = os.write(self._cells, line)
        if written != len(line):
            os.ftruncate(self._cells, size)
            raise OSError(f"{self.folder / _CELLS}: only {written} of {len(line)} bytes written")
        self.finished[result.key] = result
        os.fsync(self._cells)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyFolderError(
                f"{self.folder}: another process is running a study there; wait for it to end"
            ) from None

    def _settle_specification(self) -> None:
        path = self.folder / _STUDY
        if not path.exists():
            cells = self.folder / _CELLS
            if cells.exists() and cells.stat().st_size:
                raise StudyFolderError(f"{cells} is there but {path} is not; take an empty folder")
            write_text(path, self.specification.to_toml())
            return
        differences = read_study(self.folder).differences(self.specification)
        if differences:
            raise StudyFolderError(
                f"{self.folder} holds another study: {'; '.join(differences)}; "
                "take another folder for this one"
            )


def read_study(folder: str | Path) -> StudySpecification:
    """Read which study a folder holds.

    Parameters
    ----------
    folder : str or Path
        The folder.

    Returns
    -------
    StudySpecification
        The study as it was run.

    Raises
    ------
    StudyFolderError
        If there is no valid ``study.toml``.

    Examples
    --------
    >>> import tempfile
    >>> from tensoralg.studies import CellStore, StudySpecification, read_study
    >>> study = StudySpecification("s", (8,), (2,), (3,), (500,), (1.0,), (0,), ("em-truth",))
    >>> with tempfile.TemporaryDirectory() as folder, CellStore(folder, study):
    ...     read_study(folder).name
    's'
    """
    path = Path(folder) / _STUDY
    try:
        return load_specification(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StudyFolderError(f"{folder} holds no study: there is no {_STUDY}") from None
    except SpecificationError as error:
        raise StudyFolderError(str(error)) from None


def read_cells(folder: str | Path) -> list[CellResult]:
    """Read the finished cells of a folder; a torn last line and repeats are passed over.

    Parameters
    ----------
    folder : str or Path
        The folder; reading needs no lock and may happen while the study runs.

    Returns
    -------
    list of CellResult
        In the order in which they finished.

    Raises
    ------
    StudyFolderError
        If a line other than the last one is not a cell.

    Examples
    --------
    >>> import tempfile
    >>> from tensoralg.studies import read_cells
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_cells(folder)
    []
    """
    path = Path(folder) / _CELLS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    found: dict[CellKey, CellResult] = {}
    for cell in _parse(content.split(b"\n"), path):
        found.setdefault(cell.key, cell)
    return list(found.values())


def _parse(lines: list[bytes], path: Path) -> Iterable[CellResult]:
    last = max((k for k, line in enumerate(lines) if line), default=-1)
    for number, line in enumerate(lines[: last + 1]):
        if not line:
            continue
        try:
            yield CellResult.from_line(line)
        except (ValueError, TypeError, RecursionError) as error:
            if number != last:
                raise StudyFolderError(
                    f"{path}, line {number + 1}: not a finished cell ({error}); "
                    "restore the file or take another folder"
                ) from None


def _repair(descriptor: int, path: Path) -> None:
    """Cut off a torn last line; a complete one that only lacks its line end is kept."""
    content = path.read_bytes()
    body = content.rstrip(b"\n")
    start = body.rfind(b"\n") + 1
    try:
        CellResult.from_line(body[start:])
    except (ValueError, TypeError, RecursionError):
        os.ftruncate(descriptor, start)
    else:
        if content == body:
            os.write(descriptor, b"\n")
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
