"""Uniform grids for the entries of a matrix: one step and one zero per row, group or layer.

A grid has the values ``scale * (code - zero_point)`` for signed codes of a few bits. Its zero is
always one of them, so that a zero row stays exactly zero.

References
----------
.. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
   algorithm for post-training quantization", arXiv:2403.07134 (2024).
.. [2] E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh, "GPTQ: Accurate post-training
   quantization for generative pre-trained transformers", ICLR 2023, arXiv:2210.17323.
"""

import operator
from dataclasses import dataclass
from typing import Any, Literal

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import positive_integer
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of

__all__ = [
    "QuantizationGrid",
    "ScaleKind",
    "check_grid_options",
    "code_limits",
    "minmax_grid",
    "number_of_bits",
]

ScaleKind = Literal["channel", "layer"]


def code_limits(bits: int) -> tuple[int, int]:
    """Return the least and the largest signed code of 2 to 8 bits.

    Parameters
    ----------
    bits : int
        2 to 8.

    Returns
    -------
    tuple of int
        ``-2**(bits-1)`` and ``2**(bits-1) - 1``.

    Raises
    ------
    ValueError
        Another number of bits.

    Examples
    --------
    >>> code_limits(3)
    (-4, 3)
    """
    half = 1 << (number_of_bits(bits) - 1)
    return -half, half - 1


def number_of_bits(bits: Any) -> int:
    """Return a number of bits as a Python integer.

    Parameters
    ----------
    bits : int
        2 to 8; anything with ``__index__``, such as numpy's integers, but no bool.

    Returns
    -------
    int
        The number.

    Raises
    ------
    ValueError
        Another number, or no integer.

    Examples
    --------
    >>> number_of_bits(3)
    3
    """
    try:
        number = 0 if isinstance(bits, bool) else operator.index(bits)
    except TypeError:
        number = 0
    if not 2 <= number <= 8:
        raise ValueError(f"bits must be an integer from 2 to 8; got {bits!r}")
    return number


def check_grid_options(scale: str, group_size: int | None, columns: int) -> int:
    """Check how scales are shared and return the number of columns that share one.

    Parameters
    ----------
    scale : {"channel", "layer"}
        One scale per row (and group), or one for the whole matrix.
    group_size : int or None
        Columns per scale.
    columns : int
        Of the matrix.

    Returns
    -------
    int
        The group size; `columns` without groups.

    Raises
    ------
    ValueError
        Another word, a group size below 1, or groups of a scale that is shared by the layer.

    Examples
    --------
    >>> check_grid_options("channel", None, 384)
    384
    """
    if scale not in ("channel", "layer"):
        raise ValueError(f"scale must be 'channel' or 'layer'; got {scale!r}")
    if group_size is None:
        return max(columns, 1)
    if scale == "layer":
        raise ValueError("group_size needs scale='channel': one scale for the layer has no groups")
    return min(positive_integer("group_size", group_size), max(columns, 1))


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationGrid:
    """The values that the entries of a matrix may take.

    Parameters
    ----------
    scale : array, shape (rows, groups)
        Positive steps.
    zero_point : array of int, shape (rows, groups)
        The codes of the value 0, within the codes' range.
    bits : int
        2 to 8.
    columns : int
        Of the matrix.
    group_size : int
        Columns that share a step; the last group may be shorter.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.

    Examples
    --------
    >>> import numpy as np
    >>> grid = QuantizationGrid(np.array([[0.5]]), np.array([[0]]), bits=2, columns=3, group_size=3)
    >>> grid.dequantize(grid.nearest(np.array([[0.4, -0.6, 9.0]]))).tolist()
    [[0.5, -0.5, 0.5]]
    """

    scale: Any
    zero_point: Any
    bits: int
    columns: int
    group_size: int

    def __post_init__(self) -> None:
        groups = -(-self.columns // self.group_size)
        if self.scale.ndim != 2 or self.scale.shape[1] != groups:
            raise ShapeError(
                f"scale must have shape (rows, {groups}) for {self.columns} columns in groups of "
                f"{self.group_size}; got {tuple(self.scale.shape)}"
            )
        if self.zero_point.shape != self.scale.shape:
            raise ShapeError(
                f"zero_point must have scale's shape {tuple(self.scale.shape)}; "
                f"got {tuple(self.zero_point.shape)}"
            )

    def check_shape(self, weight: Any) -> None:
        """Raise unless the grid is for matrices of a weight's shape.

        Parameters
        ----------
        weight : array
            What is to be rounded.

        Raises
        ------
        ShapeError
            It has another shape.
        """
        expected = (self.scale.shape[0], self.columns)
        if tuple(weight.shape) != expected:
            raise ShapeError(
                f"grid is for a matrix of shape {expected}; weight has {tuple(weight.shape)}"
            )

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest code."""
        return code_limits(self.bits)

    def groups(self) -> list[slice]:
        """Return the columns of every group."""
        ends = range(0, self.columns, self.group_size)
        return [slice(start, min(start + self.group_size, self.columns)) for start in ends]

    def spread(self, values: Any) -> Any:
        """Repeat the numbers of the groups for their columns.

        Parameters
        ----------
        values : array, shape (rows, groups)
            As `scale`.

        Returns
        -------
        array, shape (rows, columns)
            The number of every entry's group.
        """
        xp = namespace_of(values)
        if values.shape[1] == 1:
            return xp.broadcast_to(values, (values.shape[0], self.columns))
        group = xp.arange(self.columns, device=device_of(values)) // self.group_size
        return xp.take(values, group, axis=1)

    def nearest(self, weight: Any) -> Any:
        """Round to the grid.

        Parameters
        ----------
        weight : array, shape (rows, columns)
            Finite numbers.

        Returns
        -------
        array of int8, shape (rows, columns)
            The codes of the nearest values.
        """
        xp = namespace_of(weight)
        low, high = self.limits
        steps = xp.round(weight / self.spread(self.scale))
        codes = steps + xp.astype(self.spread(self.zero_point), weight.dtype)
        return xp.astype(xp.clip(codes, low, high), xp.int8)

    def dequantize(self, codes: Any) -> Any:
        """Return the values of codes.

        Parameters
        ----------
        codes : array of int, shape (rows, columns)
            Within the range.

        Returns
        -------
        array, shape (rows, columns)
            ``scale * (codes - zero_point)``, in the dtype of `scale`.
        """
        xp = namespace_of(codes)
        offsets = xp.astype(codes, xp.int32) - xp.astype(self.spread(self.zero_point), xp.int32)
        return xp.astype(offsets, self.scale.dtype) * self.spread(self.scale)


def minmax_grid(
    weight: Any,
    bits: int,
    *,
    scale: ScaleKind = "channel",
    symmetric: bool = True,
    group_size: int | None = None,
) -> QuantizationGrid:
    """Lay a grid over the range of the entries.

    Parameters
    ----------
    weight : array, shape (rows, columns)
        Finite real numbers.
    bits : int
        2 to 8.
    scale : {"channel", "layer"}, default "channel"
        One step per row (and group), or one for all.
    symmetric : bool, default True
        The zero point is code 0, and the steps are ``2 max|w| / (2**bits - 1)`` as in [2]_.
        Otherwise the steps are ``(max - min) / (2**bits - 1)`` as in [1]_, over the range
        stretched to hold 0.
    group_size : int, optional
        Columns per step; the last group may be shorter.

    Returns
    -------
    QuantizationGrid
        Rows of zeros have step 1.

    Raises
    ------
    ShapeError
        No matrix.
    ValueError
        Another option than these.

    Examples
    --------
    >>> import numpy as np
    >>> minmax_grid(np.array([[-1.0, 0.5, 2.0]]), 2, symmetric=False).scale.tolist()
    [[1.0]]
    """
    bits = number_of_bits(bits)
    low, high = code_limits(bits)
    xp = namespace_of(weight)
    weight = as_float_array(weight, xp, name="weight")
    if weight.ndim != 2:
        raise ShapeError(f"weight must have shape (rows, columns); got {tuple(weight.shape)}")
    rows, columns = weight.shape
    size = check_grid_options(scale, group_size, columns)
    starts = range(0, columns, size)
    blocks = [weight[:, k : min(k + size, columns)] for k in starts] if rows else []
    if not blocks:
        empty = xp.ones((rows, len(starts)), dtype=weight.dtype)
        return QuantizationGrid(empty, xp.astype(empty * 0, xp.int32), bits, columns, size)
    least = xp.stack([xp.min(block, axis=1) for block in blocks], axis=1)
    largest = xp.stack([xp.max(block, axis=1) for block in blocks], axis=1)
    if scale == "layer":
        least = xp.broadcast_to(xp.min(least), least.shape)
        largest = xp.broadcast_to(xp.max(largest), largest.shape)
    least, largest = xp.minimum(least, 0 * least), xp.maximum(largest, 0 * largest)
    if symmetric:
        steps = xp.maximum(largest, -least) / ((high - low) / 2)
    else:
        steps = largest / (high - low) - least / (high - low)
    steps = xp.where(steps > 0, steps, xp.ones_like(steps))
    zero = xp.zeros_like(steps) if symmetric else xp.clip(low - xp.round(least / steps), low, high)
    return QuantizationGrid(steps, xp.astype(zero, xp.int32), bits, columns, size)
