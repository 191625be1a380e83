"""Text tables of numbers: which separator, which header, and where something is not a number."""

import codecs
import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import TensorAlgError

__all__ = ["DataFileError", "column_positions", "read_delimited"]

# in this order, because a decimal comma or a blank may stand inside a field
_SEPARATORS = ("\t", ";", ",", None)
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_SAMPLE_ROWS = 200
_SAMPLE_CHARACTERS = 1_000_000

Row = tuple[int, list[str]]


class DataFileError(TensorAlgError):
    """A data file cannot be read as a table of numbers; the message says where."""


@dataclass(frozen=True, slots=True)
class _Format:
    """How the file is written: separator (None: blanks), decimal sign, names, first data line."""

    separator: str | None
    decimal: str
    names: tuple[str, ...]
    lines_before: int
    encoding: str


def read_delimited(
    path: Path, columns: Sequence[str] | None = None
) -> tuple[NDArray[np.float64], list[str], list[str]]:
    r"""Read a text table; the separator and the header are found by looking.

    Parameters
    ----------
    path : Path
        The file: UTF-8, or UTF-16 with its mark.
    columns : sequence of str, optional
        Names of the columns to take; all when None.

    Returns
    -------
    values : (N, d) float array
        Rows, NaN where a value is missing. Blank lines are no rows.
    names : list of str
        Names of the columns.
    notes : list of str
        What was decided beyond the obvious.

    Raises
    ------
    DataFileError
        If a field is not a number, a line has another number of fields, or a column that was
        asked for does not exist.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tensoralg.studies.delimited import read_delimited
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.txt")
    ...     _ = path.write_text("1.5 60\n1.7 80\n")
    ...     read_delimited(path)
    (array([[ 1.5, 60. ],
           [ 1.7, 80. ]]), ['x1', 'x2'], [])
    """
    try:
        form = _look(path)
        chosen = column_positions(form.names, columns, path)
        values = None if columns else _read_fast(path, form)
        if values is None:
            values = _read_carefully(path, form, chosen)
    except UnicodeError as error:
        raise DataFileError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from None
    except csv.Error as error:
        raise DataFileError(f"{path}: not a text table ({error})") from None
    names = [form.names[k] for k in chosen]
    notes = []
    if not columns and _is_row_index(names, values):
        notes.append("the first column has no name and counts the rows; it is left out")
        values, names = values[:, 1:], names[1:]
    names = [name or f"x{k + 1}" for k, name in enumerate(names)]
    return values, names, notes


def column_positions(names: Sequence[str], wanted: Sequence[str] | None, path: Path) -> list[int]:
    """Find where the wanted columns are.

    Parameters
    ----------
    names : sequence of str
        Names of all columns.
    wanted : sequence of str or None
        Names to look for; all when None.
    path : Path
        The file, for the messages.

    Returns
    -------
    list of int
        Positions, in the order of `wanted`.

    Raises
    ------
    DataFileError
        If a name does not exist, exists twice, or is asked for twice.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tensoralg.studies.delimited import column_positions
    >>> column_positions(["a", "b", "c"], ["c", "a"], Path("data.csv"))
    [2, 0]
    """
    if wanted is None:
        return list(range(len(names)))
    found = []
    for name in wanted:
        count = list(names).count(name)
        if count != 1 or list(wanted).count(name) != 1:
            problem = "is not there" if not count else "is there or asked for twice"
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise DataFileError(f"{path}: column {name!r} {problem}; the columns are: {shown}")
        found.append(list(names).index(name))
    return found


def _encoding(path: Path) -> str:
    with open(path, "rb") as stream:
        start = stream.read(4)
    utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if utf16 else "utf-8-sig"


def _look(path: Path) -> _Format:
    """Decide on separator, decimal sign and header from the beginning of the file."""
    encoding = _encoding(path)
    with open(path, encoding=encoding, newline="") as stream:
        beginning = stream.read(_SAMPLE_CHARACTERS)
    lines = beginning.splitlines()
    if len(beginning) == _SAMPLE_CHARACTERS and len(lines) > 1:
        del lines[-1]  # cut in the middle
    comments = 0
    while comments < len(lines) and (not lines[comments].strip() or lines[comments][0] == "#"):
        comments += 1
    remark = next((s for s in reversed(lines[:comments]) if s.startswith("#")), "")
    body = "\n".join(lines[comments:][: 2 * _SAMPLE_ROWS])
    separator = _separator(body)
    rows = list(islice(_rows(io.StringIO(body, newline=""), separator), _SAMPLE_ROWS))
    if not rows:
        raise DataFileError(f"{path}: no rows of numbers")
    fields = [field for _, row in rows for field in row]
    decimal = "."
    if separator == ";" and any(map(_DECIMAL_COMMA.fullmatch, fields)):
        decimal = "." if any(map(_DECIMAL_POINT.fullmatch, fields)) else ","
    line, first = rows[0]
    if _is_header(first, [row for _, row in rows[1:]], decimal):
        return _Format(separator, decimal, tuple(first), comments + line, encoding)
    names = next(_rows(io.StringIO(remark.lstrip("# ")), separator), (0, [""]))[1]
    if len(names) != len(first) or _is_number(names[0], decimal):
        names = [f"x{k + 1}" for k in range(len(first))]
    return _Format(separator, decimal, tuple(names), comments, encoding)


def _separator(body: str) -> str | None:
    """Choose the separator that splits most lines into the same number of fields."""
    best: str | None = ","
    best_share = 0.0
    for separator in _SEPARATORS:
        rows = islice(_rows(io.StringIO(body, newline=""), separator), _SAMPLE_ROWS)
        counts = Counter(len(row) for _, row in rows)
        if not counts:
            continue
        width, share = counts.most_common(1)[0]
        if width > 1 and share / counts.total() > best_share:
            best, best_share = separator, share / counts.total()
    return best


def _rows(stream: io.TextIOBase, separator: str | None) -> Iterator[Row]:
    """Give line number and fields of every row that is not blank."""
    if separator is None:
        split: Iterator[Row] = ((k, line.split()) for k, line in enumerate(stream, start=1))
    else:
        reader = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        split = ((reader.line_num, [field.strip() for field in row]) for row in reader)
    return ((line, row) for line, row in split if any(row))


def _is_header(first: list[str], others: list[list[str]], decimal: str) -> bool:
    texts = [k for k, field in enumerate(first) if not _is_number(field, decimal)]
    if len(texts) == len(first) or not texts:
        # missing values alone are no names
        return bool(texts) and any(_is_text(field, decimal) for field in first)
    for k in texts:
        below = [row[k] for row in others if k < len(row) and row[k].lower() not in _MISSING]
        if _is_text(first[k], decimal) and below and all(_is_number(f, decimal) for f in below):
            return True
    return False


def _is_number(field: str, decimal: str) -> bool:
    try:
        return not np.isnan(_number(field, decimal))
    except ValueError:
        return False


def _is_text(field: str, decimal: str) -> bool:
    try:
        _number(field, decimal)
    except ValueError:
        return True
    return False


def _number(field: str, decimal: str) -> float:
    if field.lower() in _MISSING:
        return np.nan
    if "_" in field or not field.isascii():
        raise ValueError("not a number")
    if decimal == ",":
        if "." in field:
            raise ValueError("a decimal point among decimal commas")
        field = field.replace(",", ".")
    return float(field)


def _read_fast(path: Path, form: _Format) -> NDArray[np.float64] | None:
    """Read with numpy's C parser; None when anything is out of the ordinary."""
    if form.decimal != "." or form.encoding == "utf-16":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header alone: no data
            values = np.loadtxt(
                path,
                delimiter=form.separator,
                comments=None,
                quotechar='"',
                skiprows=form.lines_before,
                encoding=form.encoding,
                ndmin=2,
            )
    except ValueError:
        return None
    return values if values.shape[1] == len(form.names) and len(values) else None


def _read_carefully(path: Path, form: _Format, chosen: list[int]) -> NDArray[np.float64]:
    values: list[list[float]] = []
    with open(path, encoding=form.encoding, newline="") as stream:
        for _ in range(form.lines_before):
            stream.readline()
        for line, row in _rows(stream, form.separator):
            line += form.lines_before
            if len(row) != len(form.names):
                raise DataFileError(
                    f"{path}, line {line}: {len(row)} fields where {len(form.names)} are expected"
                )
            values.append([_field(row[k], form, k, line, path) for k in chosen])
    return np.array(values, dtype=np.float64).reshape(len(values), len(chosen))


def _field(field: str, form: _Format, k: int, line: int, path: Path) -> float:
    try:
        return _number(field, form.decimal)
    except ValueError:
        name = form.names[k] or f"x{k + 1}"
        raise DataFileError(
            f"{path}, line {line}, column {name!r}: {field!r} is not a number; "
            "choose numeric columns with --columns"
        ) from None


def _is_row_index(names: list[str], values: NDArray[np.float64]) -> bool:
    if len(names) < 2 or names[0] not in ("", "Unnamed: 0") or not len(values):
        return False
    return values[0, 0] in (0, 1) and bool(np.all(np.diff(values[:, 0]) == 1))
