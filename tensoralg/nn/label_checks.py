"""Checks at the border of everything that takes images of labels or masks."""

from collections.abc import Iterable
from typing import Any

import array_api_compat

from tensoralg.core.validation import nonnegative_integer
from tensoralg.gpu.namespaces import namespace_of

__all__ = ["checked_label_set", "checked_labels", "checked_mask", "label_list"]


def checked_labels(name: str, labels: Any, *, least: int = 0, like: Any = None) -> tuple[Any, Any]:
    """Return the namespace and labels as integers, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    labels : array or nested list, any shape but ()
        Whole numbers; floating ones are accepted, as files of volumes often hold them.
    least : int, default 0
        The smallest label accepted.
    like : array, optional
        Gives a nested list its library.

    Returns
    -------
    xp : module
        The array-API namespace.
    labels : array of int64
        Of one type whatever came in: bytes would be compared with 300 as with 44, or with -1 as
        with 255.

    Raises
    ------
    TypeError
        Another library than that of `like`.
    ValueError
        A single number, or values that are not whole, too small or at least 2^63.

    Examples
    --------
    >>> import numpy as np
    >>> checked_labels("labels", np.array([0.0, 2.0]))[1].tolist()
    [0, 2]
    """
    xp, labels = _as_array(name, labels, like)
    if xp.isdtype(labels.dtype, "real floating"):
        whole = xp.isfinite(labels) & (xp.round(labels) == labels)
        if not xp.all(whole):
            wrong = float(labels[~whole][0])
            raise ValueError(f"{name} must be whole numbers; got {wrong}")
        size = xp.abs(xp.astype(labels, xp.float64))  # 2^63 is no half-precision number
        if xp.any(size >= 2.0**63):
            raise ValueError(f"{name} must be below 2^63; got {float(xp.max(size))}")
    elif not xp.isdtype(labels.dtype, ("integral", "bool")):
        raise ValueError(f"{name} must be whole numbers; got dtype {labels.dtype}")
    wide = xp.isdtype(labels.dtype, xp.uint64)
    labels = xp.astype(labels, xp.int64, copy=False)
    if wide and xp.any(labels < 0):
        raise ValueError(f"{name} must be below 2^63")
    if xp.any(labels < least):
        raise ValueError(f"{name} must be at least {least}; got {int(xp.min(labels))}")
    return xp, labels


def checked_mask(name: str, mask: Any, *, like: Any = None) -> tuple[Any, Any]:
    """Return the namespace and a mask as booleans, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    mask : array or nested list, any shape but ()
        Booleans, or numbers that are all 0 or 1.
    like : array, optional
        Gives a nested list its library.

    Returns
    -------
    xp : module
        The array-API namespace.
    mask : array of bool
        The mask.

    Raises
    ------
    TypeError
        Another library than that of `like`.
    ValueError
        Other values.

    Examples
    --------
    >>> import numpy as np
    >>> checked_mask("mask", np.array([0.0, 1.0]))[1].tolist()
    [False, True]
    """
    xp, mask = _as_array(name, mask, like)
    if not xp.isdtype(mask.dtype, "bool"):
        wrong = (mask != 0) & (mask != 1)
        if xp.any(wrong):
            seen = mask[wrong][0]
            raise ValueError(f"{name} must be of booleans, or of 0 and 1; got {seen}")
        mask = mask == 1
    return xp, mask


def label_list(name: str, labels: Iterable[int]) -> list[int]:
    """Return labels as integers, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    labels : iterable of int
        At least 0.

    Returns
    -------
    list of int
        In the order given.

    Raises
    ------
    TypeError
        No list, or one of something else than integers.
    ValueError
        A negative label.

    Examples
    --------
    >>> label_list("include", (3, 1))
    [3, 1]
    """
    try:
        given = [*labels]
    except TypeError:
        raise TypeError(f"{name} must be a list of labels; got {labels!r}") from None
    return [nonnegative_integer(f"a label in {name}", label) for label in given]


def checked_label_set(name: str, labels: Iterable[int]) -> frozenset[int]:
    """Return structures as a set, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    labels : iterable of int
        At least 1.

    Returns
    -------
    frozenset of int
        The labels.

    Raises
    ------
    TypeError
        No list, or one of something else than integers.
    ValueError
        A negative label, or the background.

    Examples
    --------
    >>> sorted(checked_label_set("include", [3, 1, 3]))
    [1, 3]
    """
    found = frozenset(label_list(name, labels))
    if 0 in found:
        raise ValueError(f"{name} must not have the background 0")
    return found


def _as_array(name: str, values: Any, like: Any) -> tuple[Any, Any]:
    """Return the namespace, and an array that has axes."""
    xp = namespace_of(values, like)
    if not array_api_compat.is_torch_array(values):  # asarray may detach, and warns of it
        values = xp.asarray(values)
    if values.ndim == 0:
        raise ValueError(f"{name} must have axes of space; got a single number")
    return xp, values
