"""What the smaller arguments of a decomposition may be: tolerance, seed and callback."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of

__all__ = ["checked_callback", "checked_generator", "checked_tolerance"]


def checked_tolerance(tol: Any) -> float:
    """Check a tolerance.

    Parameters
    ----------
    tol : float
        From 0, and below 1.

    Returns
    -------
    float
        The same number.

    Raises
    ------
    TypeError
        No number.
    ValueError
        Out of range, or NaN.

    Examples
    --------
    >>> checked_tolerance(np.float32(0.5))
    0.5
    """
    try:
        value = float(tol if not isinstance(tol, str | bytes) else None)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"tol must be a number; got {tol!r}") from None
    if not 0.0 <= value < 1.0:
        raise ValueError(f"tol must lie in [0, 1); got {tol}")
    return value


def checked_generator(rng: Any) -> np.random.Generator:
    """Make a generator whose children are independent.

    Parameters
    ----------
    rng : int, Generator or None
        And whatever else `numpy.random.default_rng` takes.

    Returns
    -------
    Generator
        One that can spawn others; a legacy RandomState seeds a new one.

    Raises
    ------
    TypeError
        Of another type.
    ValueError
        A negative seed.

    Examples
    --------
    >>> int(checked_generator(0).spawn(1)[0].integers(100)) < 100
    True
    """
    if isinstance(rng, np.random.RandomState):
        rng = rng.randint(2**32, size=4, dtype=np.uint64)
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"rng must be an integer of at least 0, a Generator or None; got {rng!r}"
        ) from None


def checked_callback(
    callback: Any, exponent: int
) -> Callable[[int, float, Sequence[Any]], object] | None:
    """Show a callback copies of the factors, at the scale of the given tensor.

    Parameters
    ----------
    callback : callable or None
        What the caller gave.
    exponent : int
        The solvers' model times 2 to this power is that of the given tensor.

    Returns
    -------
    callable or None
        What it does to its factors, and when it reads them, does not matter.

    Raises
    ------
    TypeError
        It cannot be called.

    Examples
    --------
    >>> shown = checked_callback(lambda k, fit, factors: factors[0].tolist(), 3)
    >>> shown(1, 0.5, [np.ones((1, 1)), np.ones((2, 1))])
    [[4.0]]
    """
    if callback is None:
        return None
    if not callable(callback):
        raise TypeError(f"callback must be callable or None; got {type(callback).__name__}")

    def show(iteration: int, fit: float, factors: Sequence[Any]) -> object:
        share, rest = divmod(exponent, len(factors))
        copies = []
        for k, factor in enumerate(factors):
            copy = namespace_of(factor).asarray(factor, copy=True)
            power = share + (k < rest)
            copies.append(copy * 2.0**power if power else copy)
        result: object = callback(iteration, fit, copies)
        return result

    return show
