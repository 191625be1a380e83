"""Elementary symmetric polynomials: inner products of square-free monomials without forming them.

``sum_{|a|=q} z^a y^a = e_q(z_1 y_1, .., z_d y_d)`` over the square-free exponents a.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["elementary_symmetric", "without_variable"]

Array = NDArray[np.float64]


def elementary_symmetric(c: Array, order: int) -> Array:
    """Elementary symmetric polynomials of the numbers along the last axis.

    Parameters
    ----------
    c : ndarray of shape (..., d)
        The numbers.
    order : int
        Highest degree.

    Returns
    -------
    ndarray of shape (..., order + 1)
        ``e_0 .. e_order``.

    Examples
    --------
    >>> import numpy as np
    >>> elementary_symmetric(np.array([2.0, 3.0, 5.0]), 2).tolist()
    [1.0, 10.0, 31.0]
    """
    e = np.zeros((*c.shape[:-1], order + 1))
    e[..., 0] = 1.0
    for j in range(c.shape[-1]):
        e[..., 1:] += c[..., j, None] * e[..., :-1]
    return e


def without_variable(e: Array, c: Array) -> Array:
    """Take one variable out of elementary symmetric polynomials.

    Parameters
    ----------
    e : ndarray of shape (..., m + 1)
        Polynomials of all variables.
    c : ndarray of shape (...)
        The value of the variable that goes.

    Returns
    -------
    ndarray of shape (..., m + 1)
        Polynomials of the other variables.

    Examples
    --------
    >>> import numpy as np
    >>> without_variable(np.array([1.0, 10.0, 31.0]), np.array(5.0)).tolist()
    [1.0, 5.0, 6.0]
    """
    out = np.empty_like(e)
    out[..., 0] = e[..., 0]
    for q in range(1, e.shape[-1]):
        out[..., q] = e[..., q] - c * out[..., q - 1]
    return out
