"""Cores as matrices, and powers of two taken out of them against over- and underflow."""

import math
from typing import Any

__all__ = [
    "adjoint",
    "as_float",
    "left_unfolding",
    "right_unfolding",
    "share_exponent",
    "times_power_of_two",
    "unit_scale",
]


def as_float(value: Any) -> float:
    """Return an array without axes as a Python number.

    Parameters
    ----------
    value : array, shape ()
        Real; where it carries a graph of gradients, that ends here.

    Returns
    -------
    float
        The value.

    Examples
    --------
    >>> import numpy as np
    >>> as_float(np.float32(0.5))
    0.5
    """
    return float(value.detach() if hasattr(value, "detach") else value)


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
        largest = max(as_float(real), as_float(imaginary))
    else:
        largest = as_float(xp.max(xp.abs(array)))
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
    largest = _largest_exponent(xp, array.dtype)
    exponent = max(-4 * largest, min(4 * largest, exponent))  # beyond are zeros and infinities
    while exponent:
        step = max(-largest, min(largest, exponent))
        array = array * 2.0**step
        exponent -= step
    return array


def share_exponent(xp: Any, dtype: Any, exponent: int, cores: int, k: int) -> list[int]:
    """Decide which cores of a train take up a power of two.

    Parameters
    ----------
    xp : module
        The cores' namespace.
    dtype : dtype
        Of the cores.
    exponent : int
        The power of two.
    cores : int
        Their number.
    k : int
        The core that takes up all of it, where the dtype has room for that.

    Returns
    -------
    list of int, length `cores`
        Exponents that sum up to the given one; near the ends of the dtype's range and beyond they
        are spread over all cores, so that nothing is lost.

    Examples
    --------
    >>> import numpy as np
    >>> share_exponent(np, np.float64, 700, 2, 1), share_exponent(np, np.float64, 1501, 2, 1)
    ([0, 700], [750, 751])
    """
    shares = [0] * cores
    if abs(exponent) > _largest_exponent(xp, dtype) * 7 // 8:
        shares = [exponent // cores] * cores
    shares[k] += exponent - sum(shares)
    return shares


def _largest_exponent(xp: Any, dtype: Any) -> int:
    """Return an exponent of two that numbers of the dtype and their reciprocals can have."""
    return math.frexp(float(xp.finfo(dtype).max))[1] - 2
