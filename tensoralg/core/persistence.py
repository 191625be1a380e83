"""Save tensors and decompositions in versioned ``.npz`` files, and load them again.

A file is a zip archive of ``.npy`` arrays, as `numpy.savez` writes it: ``format`` ("tensoralg"),
``version``, ``kind`` (the type's name) and the type's own arrays. Nothing is pickled, so loading
a file from a stranger runs none of its code.
"""

import contextlib
import io
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.core.errors import PersistenceError, TensorAlgError
from tensoralg.core.incomplete_tensor import IncompleteSymmetricTensor
from tensoralg.core.kruskal_tensor import KruskalTensor
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.tensor_train import TensorTrain, TensorTrainMatrix

__all__ = ["load", "save"]

_FORMAT = "tensoralg"
_VERSION = 1
_NO_ORDER = 0  # stands for a decomposition that does not know its order

Arrays = Mapping[str, npt.NDArray[Any]]


class _Kind(NamedTuple):
    """How one type is written: its class, its arrays, and the way back from them.

    A series is an attribute that holds several arrays: they are named ``series.0``, ``series.1``.
    """

    type: type
    names: tuple[str, ...]
    restore: Callable[[Arrays], Any]
    series: str | None = None


_KINDS = {
    "SymmetricTensor": _Kind(
        SymmetricTensor,
        ("entries", "order", "dimension"),
        lambda a: SymmetricTensor(a["entries"], a["order"].item(), a["dimension"].item()),
    ),
    "IncompleteSymmetricTensor": _Kind(
        IncompleteSymmetricTensor,
        ("indices", "values", "order", "dimension"),
        lambda a: IncompleteSymmetricTensor(
            a["indices"], a["values"], a["order"].item(), a["dimension"].item()
        ),
    ),
    "KruskalTensor": _Kind(
        KruskalTensor,
        ("weights",),
        lambda a: KruskalTensor(a["weights"], [a[name] for name in _in_series(a, "factors")]),
        series="factors",
    ),
    "TensorTrain": _Kind(
        TensorTrain,
        (),
        lambda a: TensorTrain([a[name] for name in _in_series(a, "cores")]),
        series="cores",
    ),
    "TensorTrainMatrix": _Kind(
        TensorTrainMatrix,
        (),
        lambda a: TensorTrainMatrix([a[name] for name in _in_series(a, "cores")]),
        series="cores",
    ),
    "SymmetricDecomposition": _Kind(
        SymmetricDecomposition,
        ("weights", "points", "order"),
        lambda a: SymmetricDecomposition(a["weights"], a["points"], a["order"].item() or None),
    ),
}


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Save a tensor or a decomposition.

    Parameters
    ----------
    path : str or path-like
        The file to write, exactly by this name (no ending is added). An existing file is replaced
        in one step once the new one is complete: an interruption leaves the old file whole.
    value : a tensor, a tensor train or a decomposition of this library
        What to save; dtypes are kept. Arrays of other libraries than numpy that live on the host
        are saved and come back as numpy's.

    Raises
    ------
    TypeError
        A value of another type.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensoralg import SymmetricTensor, load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "tensor.npz")
    ...     save(path, SymmetricTensor([1.0, 2.0, 5.0], 2, 2))
    ...     load(path)
    SymmetricTensor(order=2, dimension=2, dtype=float64)
    """
    kind = next((name for name, known in _KINDS.items() if isinstance(value, known.type)), None)
    if kind is None:
        raise TypeError(f"cannot save a {type(value).__name__}; accepted are {', '.join(_KINDS)}")
    arrays: dict[str, Any] = {name: _as_array(getattr(value, name)) for name in _KINDS[kind].names}
    if (series := _KINDS[kind].series) is not None:
        arrays |= {f"{series}.{k}": _as_array(a) for k, a in enumerate(getattr(value, series))}
    arrays.update(format=np.array(_FORMAT), version=np.array(_VERSION), kind=np.array(kind))
    # through a symbolic link, the file it names is replaced, not the link
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), f".tensoralg-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """Load what `save` wrote.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    SymmetricTensor, KruskalTensor, TensorTrain or another type that `save` accepts
        An equal value of the saved type and dtype.

    Raises
    ------
    FileNotFoundError
        No such file (other `OSError` for one that cannot be opened).
    PersistenceError
        Not a tensoralg file, truncated, corrupted, of another version or of an unknown type.
        Also a `TensorAlgError` and a `ValueError`.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensoralg import SymmetricDecomposition, load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "decomposition.npz")
    ...     save(path, SymmetricDecomposition([1.0], [[1.0, 2.0]]))
    ...     load(path).points.tolist()
    [[1.0, 2.0]]
    """
    with open(path, "rb") as file:
        try:
            return _read(file)
        except PersistenceError as error:
            raise PersistenceError(f"cannot load {os.fspath(path)!r}: {error}") from error.__cause__
        except Exception as error:  # zip and npy readers raise a dozen types on damaged files
            raise PersistenceError(
                f"cannot load {os.fspath(path)!r}: the file is truncated or corrupted "
                f"({type(error).__name__}: {error})"
            ) from error


def _in_series(arrays: Arrays, series: str) -> list[str]:
    """Names of the arrays of a series, in order; one that is missing raises."""
    count = sum(name.startswith(f"{series}.") for name in arrays)
    names = [f"{series}.{k}" for k in range(count)]
    for name in names:
        if name not in arrays:
            raise ValueError(f"the array {name!r} is missing")
    return names


def _as_array(value: Any) -> npt.NDArray[Any]:
    return np.array(_NO_ORDER) if value is None else np.asarray(value)


def _read(file: io.BufferedReader) -> Any:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        raise PersistenceError("not a tensoralg .npz file, or a truncated one") from error
    with archive:
        if "format.npy" not in archive.namelist() or _text(archive, "format") != _FORMAT:
            raise PersistenceError("not written by tensoralg.save")
        version = _member(archive, "version").item()
        if version != _VERSION:
            raise PersistenceError(
                f"it has format version {version}; this tensoralg reads version {_VERSION}"
                + (", a newer tensoralg may read it" if version > _VERSION else "")
            )
        kind = _text(archive, "kind")
        if kind not in _KINDS:
            raise PersistenceError(
                f"it holds an unknown type {kind!r}; known are {', '.join(_KINDS)}"
            )
        names = [*_KINDS[kind].names]
        if (series := _KINDS[kind].series) is not None:
            stored = [name.removesuffix(".npy") for name in archive.namelist()]
            names += [name for name in stored if name.startswith(f"{series}.")]
        arrays = {name: _member(archive, name) for name in names}
    try:
        return _KINDS[kind].restore(arrays)
    except (TensorAlgError, ValueError, TypeError, IndexError) as error:
        raise PersistenceError(f"its arrays are no valid {kind}: {error}") from error


def _text(archive: zipfile.ZipFile, name: str) -> str:
    return str(_member(archive, name))


def _member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Read one array; reading all its bytes also compares their checksum."""
    try:
        member = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise PersistenceError(f"the array {name!r} is missing") from None
    if member.compress_type != zipfile.ZIP_STORED:  # a small file could fill the memory
        raise PersistenceError(f"the array {name!r} is compressed; tensoralg.save compresses none")
    content = archive.read(member)
    array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return array
