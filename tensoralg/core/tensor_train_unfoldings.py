"""Cores as matrices, and powers of two taken out of them against over- and underflow."""

import math
from typing import Any

__all__ = ["adjoint", "left_unfolding", "right_unfolding", "times_power_of_two", "unit_scale"]


def left_unfolding(xp: Any, core: Any) -> Any:
    """Reshape a core into the matrix whose columns are its right rank.

    Parameters
    ----------
    xp : module
        The core's namespace.
    core : array, shape (r, ..., r')
        A core.

    Returns
    -------
    array, shape (r * ..., r')
        The same entries.

    Examples
    --------
    >>> import numpy as np
    >>> left_unfolding(np, np.ones((2, 3, 4))).shape
    (6, 4)
    """
    return xp.reshape(core, (math.prod(core.shape[:-1]), core.shape[-1]))


def right_unfolding(xp: Any, core: Any) -> Any:
    """Reshape a core into the matrix whose rows are its left rank.

    Parameters
    ----------
    xp : module
        The core's namespace.
    core : array, shape (r, ..., r')
        A core.

    Returns
    -------
    array, shape (r, ... * r')
        The same entries.

    Examples
    --------
    >>> import numpy as np
    >>> right_unfolding(np, np.ones((2, 3, 4))).shape
    (2, 12)
    """
    return xp.reshape(core, (core.shape[0], math.prod(core.shape[1:])))


def adjoint(xp: Any, matrix: Any) -> Any:
    """Transpose a matrix and take complex conjugates.

    Parameters
    ----------
    xp : module
        The matrix's namespace.
    matrix : array, shape (m, n)
        Real or complex.

    Returns
    -------
    array, shape (n, m)
        The adjoint.

    Examples
    --------
    >>> import numpy as np
    >>> adjoint(np, np.array([[1j, 2.0]])).tolist()
    [[-1j], [(2-0j)]]
    """
    turned = xp.matrix_transpose(matrix)
    return xp.conj(turned) if xp.isdtype(matrix.dtype, "complex floating") else turned


def unit_scale(xp: Any, array: Any) -> tuple[Any, int]:
    """Divide an array by the power of two that brings its largest entry into [0.5, 1).

    Parameters
    ----------
    xp : module
        The array's namespace.
    array : array, any shape
        Real or complex, finite.

    Returns
    -------
    array, same shape
        Exactly the given one divided by ``2**exponent``; zero and empty arrays as they are.
    exponent : int
        0 for zero and empty arrays.

    Examples
    --------
    >>> import numpy as np
    >>> unit_scale(np, np.array([3e200, 0.0]))[1]
    666
    """
    if 0 in array.shape:
        return array, 0
    if xp.isdtype(array.dtype, "complex floating"):  # a modulus could overflow
        real, imaginary = xp.max(xp.abs(xp.real(array))), xp.max(xp.abs(xp.imag(array)))
        largest = max(float(real), float(imaginary))
    else:
        largest = float(xp.max(xp.abs(array)))
    if largest == 0.0 or not math.isfinite(largest):
        return array, 0
    exponent = math.frexp(largest)[1]
    return times_power_of_two(xp, array, -exponent), exponent


def times_power_of_two(xp: Any, array: Any, exponent: int) -> Any:
    """Multiply an array by ``2**exponent``, which need not be representable itself.

    Parameters
    ----------
    xp : module
        The array's namespace.
    array : array, any shape
        Real or complex.
    exponent : int
        Any.

    Returns
    -------
    array, same shape and dtype
        Entries beyond the dtype's range become infinite or zero.

    Examples
    --------
    >>> import numpy as np
    >>> times_power_of_two(np, np.array([2.0**-1000]), 1100).tolist() == [2.0**100]
    True
    """
    largest = math.frexp(float(xp.finfo(array.dtype).max))[1] - 2
    exponent = max(-4 * largest, min(4 * largest, exponent))  # beyond are zeros and infinities
    while exponent:
        step = max(-largest, min(largest, exponent))
        array = array * 2.0**step
        exponent -= step
    return array
