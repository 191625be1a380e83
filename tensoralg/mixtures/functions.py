"""Functions of single cells that a user hands over: names, powers, and what they return."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures.validation import is_count

__all__ = ["CellFunctions", "checked_functions", "probe"]

Array = NDArray[np.float64]
CellFunction = Callable[[Array], Any]

_PROBED = 16  # rows
_RESERVED = ("weights", "means", "variances")


@dataclass(frozen=True, slots=True, eq=False)
class CellFunctions:
    """Functions of single cells, in the units of the data.

    Attributes
    ----------
    named : dict of callable
        Each takes an array (n, d) and returns one of the same shape.
    """

    named: dict[str, CellFunction]

    def __len__(self) -> int:
        """Count the functions."""
        return len(self.named)

    def __call__(self, rows: Array) -> Array:
        """Evaluate all functions, shape (k, n, d)."""
        return np.stack([_evaluated(name, g, rows) for name, g in self.named.items()])


def checked_functions(functions: Any) -> dict[str, CellFunction]:
    """Name the functions that a user asks for.

    Parameters
    ----------
    functions : None, mapping of str to function or int, or iterable of int
        Integers p stand for powers ``x**p``, which are named "x^p" where no name is given.

    Returns
    -------
    dict of callable
        By name.

    Raises
    ------
    ValueError
        Anything else; the message names it.

    Examples
    --------
    >>> list(checked_functions([1, 3])), list(checked_functions({"large": lambda x: x > 3}))
    (['x^1', 'x^3'], ['large'])
    """
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        pairs = list(functions.items())
    elif isinstance(functions, Iterable) and not isinstance(functions, str):
        pairs = [(f"x^{p}" if is_count(p) else None, p) for p in functions]
    else:
        pairs = [(None, functions)]
    found: dict[str, CellFunction] = {}
    for name, function in pairs:
        if not isinstance(name, str):
            raise ValueError(
                "functions must be a mapping from names to functions of an array, or positive "
                f"integers, which stand for powers; got {function!r} without a name"
            )
        if name in _RESERVED or name in found:
            raise ValueError(
                f"functions: the name {name!r} is taken; {', '.join(_RESERVED)} always are"
            )
        if is_count(function):
            found[name] = partial(_power, int(function))
        elif callable(function):
            found[name] = function
        else:
            raise ValueError(
                f"functions[{name!r}] must be a function of an array or a power >= 1; got "
                f"{function!r}"
            )
    return found


def _power(exponent: int, x: Array) -> Array:
    return x**exponent


def _evaluated(name: str, function: CellFunction, rows: Array) -> Array:
    """Evaluate one function; what it returns must be finite and of the right shape."""
    with np.errstate(all="ignore"):
        values = np.asarray(function(rows.copy()))
    if values.shape != rows.shape or values.dtype.kind not in "fiub":
        raise ShapeError(
            f"functions[{name!r}] must return real numbers of the shape {rows.shape} of the array "
            f"that it is given; got {values.dtype} of shape {values.shape}"
        )
    values = values.astype(np.float64)
    wrong = ~np.isfinite(values)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"functions[{name!r}] gives {values[i, j]} for {rows[i, j]:g} in column {j}; it must "
            "be finite on all cells"
        )
    return values


def probe(functions: CellFunctions, rows: Array) -> None:
    """Try functions on a few rows: a value may depend on its own cell only.

    Parameters
    ----------
    functions : CellFunctions
        The functions.
    rows : ndarray of shape (n, d)
        Rows of data.

    Raises
    ------
    ValueError
        A value changes with other cells of its row, or with other rows.

    Examples
    --------
    >>> probe(CellFunctions({"centred": lambda x: x - x.mean(axis=0)}), np.eye(3))
    Traceback (most recent call last):
    ...
    ValueError: functions['centred'] must work cell by cell, but a value changes with other rows
    """
    few = np.asarray(rows[:_PROBED], dtype=np.float64)
    turned = few[::-1]
    even = np.arange(few.shape[1]) % 2 == 0
    for name, function in functions.named.items():
        whole = _evaluated(name, function, few)
        half = _evaluated(name, function, few[: (len(few) + 1) // 2])
        if not _same(whole[: len(half)], half):
            raise ValueError(
                f"functions[{name!r}] must work cell by cell, but a value changes with other rows"
            )
        for kept in (even, ~even):
            mixed = _evaluated(name, function, np.where(kept, few, turned))
            if not _same(mixed[:, kept], whole[:, kept]):
                raise ValueError(
                    f"functions[{name!r}] must work cell by cell, but a value changes with other "
                    "columns"
                )


def _same(left: Array, right: Array) -> bool:
    """Compare up to rounding: arrays of other lengths are computed by other instructions."""
    return np.allclose(left, right, rtol=1e-9, atol=1e-12 * float(np.abs(left).max(initial=0.0)))
