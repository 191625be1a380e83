"""Read the tensor that a command line names."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tensoralg.core.errors import PersistenceError, TensorAlgError
from tensoralg.core.persistence import load

__all__ = ["read_array_file", "read_dense_or_sparse_file"]


def read_dense_or_sparse_file(path: str | os.PathLike[str]) -> Any:
    """Read a tensor from a .npy or .npz file.

    Parameters
    ----------
    path : str or path-like
        ``.npy``: a dense array, which is mapped and not read as a whole. ``.npz``: a symmetric
        or Kruskal tensor that `tensoralg.save` wrote, or a matrix or tensor of
        ``scipy.sparse.save_npz`` or ``sparse.save_npz``.

    Returns
    -------
    ndarray or sparse array
        What `decompose` accepts.

    Raises
    ------
    PersistenceError
        A file of another kind or with other contents; the message names it.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "tensor.npy")
    ...     np.save(path, np.eye(2))
    ...     read_dense_or_sparse_file(path).shape
    (2, 2)
    """
    kind = Path(path).suffix.lower()
    if kind == ".npy":
        return read_array_file(path)
    if kind == ".npz":
        return _read_archive(path)
    raise PersistenceError(f"{path}: must end in .npy or .npz")


def read_array_file(path: str | os.PathLike[str]) -> Any:
    """Map the array of a .npy file into memory.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    numpy.memmap or ndarray
        Read-only; an empty array or a single number is read.

    Raises
    ------
    PersistenceError
        No .npy file, or one with pickled objects.
    OSError
        The file cannot be read.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise PersistenceError(f"{path}: not a .npy file of numbers ({error})") from None


def _read_archive(path: str | os.PathLike[str]) -> Any:
    """Tell the three kinds of .npz apart by the names of their arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except zipfile.BadZipFile:
        raise PersistenceError(f"{path}: not a .npz file, or a truncated one") from None
    try:
        if {"coords.npy", "data.npy", "shape.npy"} <= names:
            with np.load(path, allow_pickle=False) as arrays:
                from tensoralg.gpu.sparse_tensor import SparseTensor

                return SparseTensor(arrays["coords"], arrays["data"], arrays["shape"])
        if "format.npy" in names and "kind.npy" not in names:
            from scipy.sparse import load_npz

            return load_npz(path)
        value = load(path)
    except (PersistenceError, OSError):
        raise
    except (TensorAlgError, ValueError, TypeError, IndexError, KeyError) as error:
        raise PersistenceError(f"{path}: not a tensor ({error})") from None
    if not hasattr(value, "to_dense"):
        raise PersistenceError(f"{path}: holds a {type(value).__name__}, not a tensor")
    return value.to_dense()
