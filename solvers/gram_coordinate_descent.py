"""Codes of a weight matrix that change its outputs least, from the Gram matrix of its inputs.

``min_Q |X (W - Q)^T|_F`` over matrices Q on a grid is one problem per row of W, and the data enter
through ``G = X^T X`` only. Coordinate descent moves every entry to the grid value that is best
with all others fixed; the steps of the grid follow in closed form.

References
----------
.. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
   algorithm for post-training quantization", arXiv:2403.07134 (2024).
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.solvers.gptq import gptq
from tensoralg.solvers.quantization_grid import QuantizationGrid, ScaleKind, minmax_grid

__all__ = ["GridCodes", "gram_coordinate_descent"]


@dataclass(frozen=True, slots=True, eq=False)
class GridCodes:
    """A matrix on a grid.

    Parameters
    ----------
    codes : array of int8, shape (out, in)
        From ``-2**(bits-1)`` to ``2**(bits-1) - 1``.
    scale : array, shape (out, groups)
        The positive steps.
    zero_point : array of int32, shape (out, groups)
        The codes of the value 0.
    bits : int
        2 to 8.
    group_size : int
        Columns per step; all of them without groups.
    errors : tuple of float
        ``|X (W - Q)^T|_F / |X W^T|_F`` after the start and after every sweep; never rises.
    """

    codes: Any
    scale: Any
    zero_point: Any
    bits: int
    group_size: int
    errors: tuple[float, ...]

    def dequantize(self) -> Any:
        """Return the values, shape (out, in)."""
        return self.grid.dequantize(self.codes)

    @property
    def grid(self) -> QuantizationGrid:
        """The values that the entries could take."""
        columns = self.codes.shape[1]
        return QuantizationGrid(self.scale, self.zero_point, self.bits, columns, self.group_size)


def gram_coordinate_descent(
    weight: Any,
    gram: Any,
    bits: int,
    *,
    sweeps: int = 4,
    init: Literal["gptq", "nearest"] = "gptq",
    scale: ScaleKind = "channel",
    symmetric: bool = True,
    group_size: int | None = None,
    order: Literal["greedy", "cyclic"] = "greedy",
) -> GridCodes:
    """Round a weight matrix so that its outputs change least.

    Parameters
    ----------
    weight : array, shape (out, in)
        Finite real numbers.
    gram : array, shape (in, in)
        ``X^T X`` of the inputs X.
    bits : int
        2 to 8.
    sweeps : int, default 4
        Passes over all entries.
    init : {"gptq", "nearest"}, default "gptq"
        The start.
    scale : {"channel", "layer"}, default "channel"
        One step per row (and group), or one for all.
    symmetric : bool, default True
        Whether the zero point is code 0.
    group_size : int, optional
        Columns per step.
    order : {"greedy", "cyclic"}, default "greedy"
        Entries by falling ``|x_i| |w_i|``, or as they stand.

    Returns
    -------
    GridCodes
        The codes.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    ValueError
        NaN or infinite entries.

    Examples
    --------
    >>> gram_coordinate_descent(np.array([[1.0, -0.4]]), np.eye(2), 3).codes.shape
    (1, 2)
    """
    from tensoralg.solvers.grid_rounding_kernels import descend_rows

    sweeps = nonnegative_integer("sweeps", sweeps)
    weight = np.array(weight, dtype=np.float64)
    gram = np.array(gram, dtype=np.float64)
    if weight.ndim != 2 or gram.shape != (weight.shape[1], weight.shape[1]):
        raise ShapeError(f"gram must have shape (in, in); got {gram.shape} for {weight.shape}")
    grid = minmax_grid(weight, bits, scale=scale, symmetric=symmetric, group_size=group_size)
    codes = gptq(weight, gram, grid) if init == "gptq" else grid.nearest(weight)
    diagonal = np.diagonal(gram)
    inverse = np.where(diagonal > 0, 1 / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    if order == "greedy":
        path = np.argsort(-np.sqrt(np.maximum(diagonal, 0)) * abs(weight), axis=1, kind="stable")
    else:
        path = np.arange(len(gram))[None]
    whole = np.sum((weight @ gram) * weight)
    errors = []
    for sweep in range(sweeps + 1):
        value = grid.dequantize(codes)
        residual = (weight - value) @ gram
        errors.append(float(np.sqrt(max(np.sum(residual * (weight - value)) / whole, 0.0))))
        if sweep == sweeps:
            break
        spread = np.ascontiguousarray(grid.spread(grid.scale))
        zero = np.ascontiguousarray(grid.spread(grid.zero_point), dtype=np.float64)
        limits = tuple(map(float, grid.limits))
        descend_rows(weight, value, residual, gram, inverse, path, spread, zero, limits, codes)
    return GridCodes(codes, grid.scale, grid.zero_point, bits, grid.group_size, tuple(errors))
