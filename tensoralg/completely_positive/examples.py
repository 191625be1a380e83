"""Completely positive tensors with closed forms, with rational entries on request."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.index_maps import dense_values
from tensoralg.core.indices import multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import positive_integer

__all__ = ["cauchy", "hilbert", "lehmer", "minimum", "pascal"]

Tensor = SymmetricTensor | npt.NDArray[Any]


def hilbert(n: int, d: int, *, exact: bool = False) -> Tensor:
    """Return the Hilbert tensor.

    Its entries are ``1 / (i1 + .. + id - d + 1)`` for indices from 1.

    Parameters
    ----------
    n : int
        Dimension.
    d : int
        Order.
    exact : bool, default False
        Whether the entries are Fractions.

    Returns
    -------
    SymmetricTensor, or ndarray of Fraction of shape (n,) * d
        The second form when `exact` is True. Completely positive: the moments of
        ``(1, t, .., t^(n-1))`` under the uniform measure on [0, 1].

    Examples
    --------
    >>> hilbert(2, 3).entries.tolist()
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """
    return _build(lambda *i: Fraction(1, sum(i) - len(i) + 1), n, d, exact)


def cauchy(n: int, d: int, *, exact: bool = False) -> Tensor:
    """Return the Cauchy tensor.

    Its entries are ``1 / (i1 + .. + id)`` for indices from 1.

    Parameters
    ----------
    n : int
        Dimension.
    d : int
        Order.
    exact : bool, default False
        Whether the entries are Fractions.

    Returns
    -------
    SymmetricTensor, or ndarray of Fraction of shape (n,) * d
        The second form when `exact` is True. Completely positive: the moments of
        ``(1, t, .., t^(n-1))`` under the density ``t^(d-1)`` on [0, 1].

    Examples
    --------
    >>> cauchy(2, 2, exact=True).tolist()
    [[Fraction(1, 2), Fraction(1, 3)], [Fraction(1, 3), Fraction(1, 4)]]
    """
    return _build(lambda *i: Fraction(1, sum(i)), n, d, exact)


def pascal(n: int, d: int, *, exact: bool = False) -> Tensor:
    """Return the Pascal tensor.

    Its entries are the multinomial coefficients of ``i1 - 1, .., id - 1`` for indices from 1.

    Parameters
    ----------
    n : int
        Dimension.
    d : int
        Order.
    exact : bool, default False
        Whether the entries are Fractions.

    Returns
    -------
    SymmetricTensor, or ndarray of Fraction of shape (n,) * d
        The second form when `exact` is True. Completely positive: the moments of
        ``t^(i-1) / (i-1)!`` under the exponential distribution.

    Examples
    --------
    >>> pascal(3, 2).to_dense().tolist()
    [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 6.0]]
    """

    def entry(*i: int) -> Fraction:
        whole = math.factorial(sum(i) - len(i))
        return Fraction(whole, math.prod(math.factorial(k - 1) for k in i))

    return _build(entry, n, d, exact)


def lehmer(n: int, d: int, *, exact: bool = False) -> Tensor:
    """Return the Lehmer tensor.

    Its entries are ``min(i1, .., id) / max(i1, .., id)`` for indices from 1.

    Parameters
    ----------
    n : int
        Dimension.
    d : int
        Order.
    exact : bool, default False
        Whether the entries are Fractions.

    Returns
    -------
    SymmetricTensor, or ndarray of Fraction of shape (n,) * d
        The second form when `exact` is True.

    Examples
    --------
    >>> lehmer(2, 2).to_dense().tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    return _build(lambda *i: Fraction(min(i), max(i)), n, d, exact)


def minimum(n: int, d: int, *, exact: bool = False) -> Tensor:
    """Return the tensor of minima.

    Its entries are ``min(i1, .., id)`` for indices from 1.

    Parameters
    ----------
    n : int
        Dimension.
    d : int
        Order.
    exact : bool, default False
        Whether the entries are Fractions.

    Returns
    -------
    SymmetricTensor, or ndarray of Fraction of shape (n,) * d
        The second form when `exact` is True. Completely positive, the sum of the powers of the
        n vectors ``(0, .., 0, 1, .., 1)``.

    Examples
    --------
    >>> minimum(3, 2).to_dense().tolist()
    [[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]
    """
    return _build(lambda *i: Fraction(min(i)), n, d, exact)


def _build(entry: Callable[..., Fraction], n: int, d: int, exact: bool) -> Tensor:
    n, d = positive_integer("n", n), positive_integer("d", d)
    values = [entry(*row) for row in (multi_indices(n, d) + 1).tolist()]
    if not exact:
        try:
            return SymmetricTensor([float(value) for value in values], d, n)
        except OverflowError:
            raise ValueError(
                f"n={n}, d={d} gives entries beyond the range of doubles; exact=True has them"
            ) from None
    return dense_values(np.array(values, dtype=object), n, d)
