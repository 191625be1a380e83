"""Read a symmetric tensor from a file, without rounding integers and fractions."""

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tensoralg.core.errors import PersistenceError
from tensoralg.core.index_maps import dense_values
from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.core.persistence import load

__all__ = ["read_tensor_file"]

_KEYS = ("order", "dimension")
_LARGEST = 2**24  # numbers of a dense array


def read_tensor_file(path: str | os.PathLike[str]) -> Any:
    """Read a tensor from a .json, .npy or .npz file.

    Parameters
    ----------
    path : str or path-like
        JSON holds either nested lists, the dense array, or an object with "order", "dimension" and
        "entries", one for each sorted multi-index; or, in place of "entries", "indices" (from 0)
        and "values", all other entries being 0. Numbers may be integers, decimals, which count as
        rounded, or strings "p/q", which are exact. ``.npy`` holds a dense array, ``.npz`` what
        `tensoralg.save` wrote.

    Returns
    -------
    ndarray, SymmetricTensor or nested lists
        What `detect` accepts; strings have become Fractions.

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
    ...     path = os.path.join(folder, "tensor.json")
    ...     with open(path, "w") as file:
    ...         _ = file.write('[[1, "1/2"], ["1/2", 1]]')
    ...     read_tensor_file(path)
    [[1, Fraction(1, 2)], [Fraction(1, 2), 1]]
    """
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        return load(path)
    if kind == ".npy":
        with open(path, "rb") as file:
            try:
                return np.load(file, allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise PersistenceError(f"{path}: not a .npy file of numbers ({error})") from None
    if kind != ".json":
        raise PersistenceError(f"{path}: must end in .json, .npy or .npz")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise PersistenceError(f"{path}: not valid JSON ({error})") from None
    if isinstance(data, list):
        return _numbers(path, data)
    if isinstance(data, dict) and all(key in data for key in _KEYS):
        return _listed(path, data)
    raise PersistenceError(
        f"{path}: must hold nested lists, or an object with order, dimension and entries "
        "(or indices and values)"
    )


def _listed(path: Any, data: dict[str, Any]) -> Any:
    order, dimension = data["order"], data["dimension"]
    if any(type(v) is not int or v < 1 for v in (order, dimension)):
        raise PersistenceError(f"{path}: order and dimension must be integers of at least 1")
    count = number_of_multi_indices(dimension, order)
    if dimension**order > _LARGEST or order > 64:
        raise PersistenceError(f"{path}: {dimension}**{order} entries are more than {_LARGEST}")
    if "entries" in data:
        values = _numbers(path, data["entries"])
        if not isinstance(values, list) or len(values) != count:
            raise PersistenceError(
                f"{path}: entries must be a list of {count} numbers for order {order}, "
                f"dimension {dimension}"
            )
    elif "indices" in data and "values" in data:
        values = _scattered(path, data, order, dimension)
    else:
        raise PersistenceError(f"{path}: there are no entries, and no indices with values")
    flat = np.empty(count, dtype=object)
    flat[:] = values
    return dense_values(flat, dimension, order)


def _scattered(path: Any, data: dict[str, Any], order: int, dimension: int) -> list[Any]:
    indices, values = data["indices"], _numbers(path, data["values"])
    if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
        raise PersistenceError(f"{path}: indices and values must be lists of the same length")
    places = {tuple(row): k for k, row in enumerate(multi_indices(dimension, order).tolist())}
    result: list[Any] = [0] * len(places)
    seen = set()
    for index, value in zip(indices, values, strict=True):
        place = places.get(tuple(sorted(index))) if _is_index(index) else None
        if place is None:
            raise PersistenceError(
                f"{path}: {index!r} is not a multi-index of {order} integers in "
                f"0 .. {dimension - 1}"
            )
        if place in seen:
            raise PersistenceError(f"{path}: the entry at {sorted(index)} is given twice")
        seen.add(place)
        result[place] = value
    return result


def _is_index(index: Any) -> bool:
    return isinstance(index, list) and all(type(i) is int for i in index)


def _numbers(path: Any, value: Any, place: str = "") -> Any:
    if isinstance(value, list):
        return [_numbers(path, item, f"{place}[{k}]") for k, item in enumerate(value)]
    if isinstance(value, str):
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise PersistenceError(f"{path}: {value!r}{_at(place)} is not a fraction p/q") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise PersistenceError(f"{path}: {json.dumps(value)[:40]}{_at(place)} is not a number")


def _at(place: str) -> str:
    return f" at {place}" if place else ""
