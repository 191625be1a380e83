"""Checks at the border of everything that takes images of labels or masks."""

from typing import Any

from tensoralg.gpu.namespaces import namespace_of

__all__ = ["checked_labels", "checked_mask"]


def checked_labels(name: str, labels: Any, *, least: int = 0) -> tuple[Any, Any]:
    """Return the namespace and labels as integers, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    labels : array or nested list, any shape but ()
        Whole numbers; floating ones are accepted, as files of volumes often hold them.
    least : int, default 0
        The smallest label accepted.

    Returns
    -------
    xp : module
        The array-API namespace.
    labels : array of int
        Integers and booleans as they are, floating numbers as int64.

    Raises
    ------
    ValueError
        A single number, or values that are not whole or too small.

    Examples
    --------
    >>> import numpy as np
    >>> checked_labels("labels", np.array([0.0, 2.0]))[1].tolist()
    [0, 2]
    """
    xp = namespace_of(labels)
    labels = xp.asarray(labels)
    if labels.ndim == 0:
        raise ValueError(f"{name} must have axes of space; got a single number")
    if xp.isdtype(labels.dtype, "real floating"):
        whole = xp.isfinite(labels) & (xp.round(labels) == labels)
        if not xp.all(whole):
            wrong = float(labels[~whole][0])
            raise ValueError(f"{name} must be whole numbers; got {wrong}")
        labels = xp.astype(labels, xp.int64)
    elif not xp.isdtype(labels.dtype, ("integral", "bool")):
        raise ValueError(f"{name} must be whole numbers; got dtype {labels.dtype}")
    if xp.isdtype(labels.dtype, "signed integer") and xp.any(labels < least):
        raise ValueError(f"{name} must be at least {least}; got {int(xp.min(labels))}")
    return xp, labels


def checked_mask(name: str, mask: Any) -> tuple[Any, Any]:
    """Return the namespace and a mask as booleans, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    mask : array or nested list, any shape but ()
        Booleans, or numbers that are all 0 or 1.

    Returns
    -------
    xp : module
        The array-API namespace.
    mask : array of bool
        The mask.

    Raises
    ------
    ValueError
        Other values.

    Examples
    --------
    >>> import numpy as np
    >>> checked_mask("mask", np.array([0.0, 1.0]))[1].tolist()
    [False, True]
    """
    xp = namespace_of(mask)
    mask = xp.asarray(mask)
    if mask.ndim == 0:
        raise ValueError(f"{name} must have axes of space; got a single number")
    if not xp.isdtype(mask.dtype, "bool"):
        wrong = (mask != 0) & (mask != 1)
        if xp.any(wrong):
            seen = mask[wrong][0]
            raise ValueError(f"{name} must be of booleans, or of 0 and 1; got {seen}")
        mask = mask == 1
    return xp, mask
