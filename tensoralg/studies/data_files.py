"""Read a table of numbers from CSV, NPY or Parquet; whatever does not fit is named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.studies.delimited import DataFileError, column_positions, read_delimited

__all__ = ["DataFileError", "Table", "read_table"]

_TEXT = (".csv", ".tsv", ".txt", ".dat")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Numbers with names.

    Attributes
    ----------
    values : (N, d) float array
        Rows; NaN where a value is missing.
    columns : tuple of str
        Names of the columns.
    notes : tuple of str
        What the reader decided by itself.
    """

    values: NDArray[Any]
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def first_missing(self) -> tuple[int, str] | None:
        """Find the first row, counted from 1, and the column in which a value is missing."""
        return self._first(np.isnan(self.values))

    def first_infinite(self) -> tuple[int, str] | None:
        """Find the first row, counted from 1, and the column in which a value is infinite."""
        return self._first(np.isinf(self.values))

    def _first(self, wanted: NDArray[np.bool_]) -> tuple[int, str] | None:
        if not wanted.any():
            return None
        row, column = np.argwhere(wanted)[0]
        return int(row) + 1, self.columns[column]


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> Table:
    r"""Read a file of numbers.

    Text files may be separated by commas, semicolons, tabs or blanks, with or without a header
    line; empty fields and NA, NaN, null are missing values. Columns without a name are called
    x1, x2, and so on.

    Parameters
    ----------
    path : str or Path
        A file ending in .csv, .tsv, .txt, .dat, .npy or .parquet.
    columns : sequence of str, optional
        Names of the columns to take, in this order; all when None.

    Returns
    -------
    Table
        The numbers; float32 stays float32, everything else becomes float64.

    Raises
    ------
    DataFileError
        If the file cannot be read as numbers; the message names the line and the column.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tensoralg.studies.data_files import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.csv")
    ...     _ = path.write_text("height;weight\n1.5;60\n1.7;\n")
    ...     table = read_table(path)
    >>> table.columns, table.values.shape, table.first_missing()
    (('height', 'weight'), (2, 2), (2, 'weight'))
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_fifo():  # the reader looks at the beginning first, and begins anew
        raise DataFileError(f"{path}: a pipe, which can be read once only; give a file")
    if suffix in _TEXT:
        values, names, notes = read_delimited(path, columns)
        table = Table(values, tuple(names), tuple(notes))
    elif suffix == ".npy":
        table = _select(_read_npy(path), columns, path)
    elif suffix in (".parquet", ".pq"):
        table = _read_parquet(path, columns)
    else:
        raise DataFileError(
            f"{path}: unknown kind of file {suffix or 'without a suffix'!r}; "
            f"accepted: {', '.join(_TEXT)}, .npy, .parquet"
        )
    if not table.values.size:
        raise DataFileError(f"{path}: no rows of numbers")
    return table


def _read_npy(path: Path) -> Table:
    with open(path, "rb") as stream:
        try:
            values = np.lib.format.read_array(stream, allow_pickle=False)
        except (ValueError, EOFError, MemoryError) as error:
            raise DataFileError(f"{path}: not a readable .npy array ({error})") from None
    if values.ndim != 2:
        hint = "; reshape one column with X.reshape(-1, 1)" if values.ndim == 1 else ""
        raise DataFileError(f"{path}: the array must be 2-D, got shape {values.shape}{hint}")
    if values.dtype.kind not in "fiub":
        raise DataFileError(f"{path}: dtype {values.dtype} is not accepted; give real numbers")
    if values.dtype != np.float32:
        values = values.astype(np.float64)
    return Table(values, tuple(f"x{k + 1}" for k in range(values.shape[1])))


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataFileError(
            f"{path}: reading Parquet needs pyarrow ({error}); "
            "install it with: pip install 'tensoralg[parquet]'"
        ) from None
    with open(path, "rb") as stream:
        try:
            table = pyarrow.parquet.read_table(stream)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataFileError(f"{path}: not a readable Parquet file ({reason})") from None
    names = [str(name) for name in table.column_names]
    arrays = []
    chosen = column_positions(names, columns, path)
    for k in chosen:
        kind, types = table.schema.field(k).type, pyarrow.types
        if types.is_boolean(kind) or types.is_decimal(kind):
            kind = pyarrow.float64()
        if not (types.is_integer(kind) or types.is_floating(kind)):
            raise DataFileError(
                f"{path}: column {names[k]!r} is of type {kind}, not numbers; "
                "choose numeric columns with --columns"
            )
        values = table.column(k).cast(kind).to_numpy()
        arrays.append(values if values.dtype == np.float32 else values.astype(np.float64))
    if not arrays:
        raise DataFileError(f"{path}: no columns")
    return Table(np.stack(arrays, axis=1), tuple(names[k] for k in chosen))


def _select(table: Table, columns: Sequence[str] | None, path: Path) -> Table:
    chosen = column_positions(table.columns, columns, path)
    return Table(table.values[:, chosen], tuple(table.columns[k] for k in chosen), table.notes)
