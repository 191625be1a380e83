"""Sparse tensors in coordinate form, on the host."""

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import as_float_array

__all__ = ["SparseTensor", "as_sparse_tensor", "is_sparse"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class SparseTensor:
    """The nonzero entries of a tensor, in lexicographic order, each index once.

    Parameters
    ----------
    coordinates : array_like of int, shape (N, nnz)
        One index per column, in any order; entries with the same index are added.
    values : array_like, shape (nnz,)
        float32 or float64 (other real dtypes are promoted to float64), finite.
    shape : sequence of N int
        Shape of the tensor.

    Raises
    ------
    ShapeError
        Shapes that do not fit together.
    IndexError
        A coordinate outside the shape.
    ValueError
        Complex or another unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> S = SparseTensor([[0, 1, 0], [2, 0, 2]], [1.0, 5.0, 2.0], (2, 3))
    >>> S.values.tolist(), S.coordinates.tolist()
    ([3.0, 5.0], [[0, 1], [2, 0]])
    """

    coordinates: NDArray[np.int64]
    values: NDArray[Any]
    shape: tuple[int, ...]

    def __init__(self, coordinates: Any, values: Any, shape: Any) -> None:
        where = np.asarray(coordinates)
        if where.size == 0:
            where = where.astype(np.int64).reshape(len(shape), 0)
        if where.dtype.kind not in "iu":
            raise TypeError(f"coordinates must be integers; got dtype {where.dtype}")
        data = as_float_array(values, np, name="values")
        extents = tuple(int(n) for n in shape)
        if where.ndim != 2 or where.shape != (len(extents), data.size) or data.ndim != 1:
            raise ShapeError(
                "coordinates must have shape (N, nnz), values (nnz,) and shape N numbers; "
                f"got {where.shape}, {data.shape} and {len(extents)} numbers"
            )
        where = where.astype(np.int64)
        for k, n in enumerate(extents):
            wrong = (where[k] < 0) | (where[k] >= n)
            if wrong.any():
                raise IndexError(
                    f"coordinates of mode {k} must lie in 0 .. {n - 1}; got {where[k][wrong][0]}"
                )
        if not np.isfinite(data).all():
            first = int(np.argmax(~np.isfinite(data)))
            index = tuple(int(i) for i in where[:, first])
            raise ValueError(f"values must be finite; got {data[first]} at index {index}")
        where, data = _merged(where, data, extents)
        for array in (where, data):
            array.flags.writeable = False
        object.__setattr__(self, "coordinates", where)
        object.__setattr__(self, "values", data)
        object.__setattr__(self, "shape", extents)

    def __repr__(self) -> str:
        return f"SparseTensor(shape={self.shape}, nnz={self.values.size}, dtype={self.dtype})"

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    def to_dense(self) -> NDArray[Any]:
        """Write all entries out.

        Returns
        -------
        ndarray, shape `shape`
            Zeros included.
        """
        dense = np.zeros(self.shape, dtype=self.values.dtype)
        dense[tuple(self.coordinates)] = self.values
        return dense


def _merged(
    where: NDArray[np.int64], data: NDArray[Any], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort lexicographically and add entries with the same index; own copies."""
    if data.size == 0:
        return where.copy(), data.copy()
    if math.prod(shape) < 2**62:
        keys = np.ravel_multi_index(tuple(where), shape)
        if (np.diff(keys) > 0).all():
            return np.ascontiguousarray(where), data.copy()
        order = np.argsort(keys, kind="stable")
    else:
        order = np.lexsort(where[::-1])
    where, data = where[:, order], data[order]
    first = np.empty(data.size, dtype=bool)
    first[0] = True
    first[1:] = (where[:, 1:] != where[:, :-1]).any(axis=0)
    if first.all():
        return np.ascontiguousarray(where), data
    sums = np.add.reduceat(data, np.flatnonzero(first))
    return np.ascontiguousarray(where[:, first]), sums


def is_sparse(x: Any) -> bool:
    """Tell whether an argument is a sparse tensor or matrix of a kind that is read here.

    Parameters
    ----------
    x : object
        Anything.

    Returns
    -------
    bool
        True for `SparseTensor`, pydata sparse arrays, scipy sparse matrices and arrays.

    Examples
    --------
    >>> is_sparse(np.eye(2))
    False
    """
    if isinstance(x, SparseTensor) or array_api_compat.is_pydata_sparse_array(x):
        return True
    return type(x).__module__.startswith("scipy.sparse") and hasattr(x, "tocoo")


def as_sparse_tensor(x: Any, *, name: str = "X") -> SparseTensor:
    """Read a sparse tensor or matrix without densifying it.

    Parameters
    ----------
    x : SparseTensor, pydata sparse array, or scipy sparse matrix or array
        What `is_sparse` accepts. Duplicate entries are added.
    name : str, default "X"
        The argument's name, for the messages.

    Returns
    -------
    SparseTensor
        Of the same shape.

    Raises
    ------
    TypeError
        Anything else.
    ValueError
        A fill value other than 0, an unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> from scipy.sparse import coo_array
    >>> as_sparse_tensor(coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 3))).values.tolist()
    [3.0]
    """
    if isinstance(x, SparseTensor):
        return x
    if array_api_compat.is_pydata_sparse_array(x):
        fill = getattr(x, "fill_value", 0)
        if fill != 0:
            raise ValueError(f"{name} must have fill value 0; got {fill}")
        listed = x if hasattr(x, "coords") else x.asformat("coo")
        return _named(name, listed.coords, listed.data, x.shape)
    if is_sparse(x):
        listed = x.tocoo()
        where = listed.coords if hasattr(listed, "coords") else (listed.row, listed.col)
        return _named(name, np.stack([np.asarray(c) for c in where]), listed.data, x.shape)
    raise TypeError(
        f"{name} must be a pydata sparse array or a scipy sparse matrix; got {type(x).__name__}"
    )


def _named(name: str, where: Any, values: Any, shape: Any) -> SparseTensor:
    """Build one whose complaints name the user's argument."""
    try:
        return SparseTensor(where, values, shape)
    except ValueError as error:
        raise type(error)(str(error).replace("values", name, 1)) from None
