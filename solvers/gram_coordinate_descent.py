"""Codes of a weight matrix that change its outputs least, from the Gram matrix of its inputs.

``min_Q |X (W - Q)^T|_F`` over matrices Q on a grid is one problem per row of W, and the data enter
through ``G = X^T X`` only. Coordinate descent moves every entry to the grid value that is best
with all others fixed; the steps of the grid follow in closed form.

References
----------
.. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
   algorithm for post-training quantization", arXiv:2403.07134 (2024).
.. [2] E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh, "GPTQ: Accurate post-training
   quantization for generative pre-trained transformers", ICLR 2023, arXiv:2210.17323.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from tensoralg.core.validation import nonnegative_integer
from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.solvers.gptq import ColumnFactor, factor_columns, loops_for, round_through
from tensoralg.solvers.gram_problem import GramProblem, gram_problem
from tensoralg.solvers.grid_search import GridStart, better_rows, start_on_grid, zeros_start
from tensoralg.solvers.quantization_grid import QuantizationGrid, ScaleKind, minmax_grid

__all__ = [
    "CodesStart",
    "EntryOrder",
    "GridCodes",
    "coordinate_sweeps",
    "gram_coordinate_descent",
]

CodesStart = Literal["gptq", "nearest"]
EntryOrder = Literal["greedy", "shared", "cyclic"]

_SETTLED = 1.0 - 1e-13  # of an error: what is above that fell by rounding only


@dataclass(frozen=True, slots=True, eq=False)
class GridCodes:
    """A matrix on a grid.

    Parameters
    ----------
    codes : array of int8, shape (out, in)
        From ``-2**(bits-1)`` to ``2**(bits-1) - 1``.
    scale : array, shape (out, groups)
        The positive steps, in the dtype of the weight.
    zero_point : array of int32, shape (out, groups)
        The codes of the value 0; zeros on a symmetric grid.
    bits : int
        2 to 8.
    group_size : int
        Columns per step; all of them without groups. The last group may be shorter.
    errors : tuple of float
        ``|X (W - Q)^T|_F / |X W^T|_F`` after the start and after every sweep; never rises.

    Examples
    --------
    >>> import numpy as np
    >>> found = gram_coordinate_descent(np.array([[3.0, -1.0, 0.0]]), np.eye(3), 3)
    >>> found.dequantize().tolist(), found.errors[-1]
    ([[3.0, -1.0, 0.0]], 0.0)
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
    init: CodesStart = "gptq",
    scale: ScaleKind = "channel",
    symmetric: bool = True,
    group_size: int | None = None,
    order: EntryOrder = "greedy",
    search: bool = True,
    update_scale: bool = True,
    damping: float = 0.01,
) -> GridCodes:
    """Round a weight matrix so that its outputs change least.

    Parameters
    ----------
    weight : array, shape (out, in)
        Finite real numbers.
    gram : array, shape (in, in)
        ``X^T X`` of the inputs X. Columns without data get the nearest values; negative
        eigenvalues beyond rounding are taken as 0.
    bits : int
        2 to 8.
    sweeps : int, default 4
        Passes over all entries, each followed by new steps of the grid.
    init : {"gptq", "nearest"}, default "gptq"
        The start: column by column, errors made up for by later columns [2]_, or nearest values.
    scale : {"channel", "layer"}, default "channel"
        One step per row (and group), or one for all.
    symmetric : bool, default True
        Whether the zero point is code 0. Otherwise every row (and group) has its own.
    group_size : int, optional
        Columns per step; the last group may be shorter.
    order : {"greedy", "shared", "cyclic"}, default "greedy"
        Entries of each row by falling ``|x_i| |w_i|`` [1]_, columns by the same over all rows, or
        as they stand.
    search : bool, default True
        Whether the start also tries steps below that of the range. False leaves the grid of
        `minmax_grid`.
    update_scale : bool, default True
        Whether the steps follow the codes after a sweep.
    damping : float, default 0.01
        For the start "gptq": added to the diagonal, in parts of its mean.

    Returns
    -------
    GridCodes
        On the arrays' device. A zero row stays exactly zero.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    TypeError
        Arrays of different libraries, or sweeps that are no integer.
    ValueError
        NaN or infinite entries, a Gram matrix that is not symmetric, or another option.

    Notes
    -----
    An entry's step is ``w_i + sum_{j != i} G_ij (w_j - q_j) / G_ii``, rounded to the grid ([1]_);
    the grid's is ``<XW, X C> / |X C|^2`` for its codes C. Where the start is "gptq", rounding by
    [2]_ on the final grid is also compared and, row by row, the better one kept: the error is
    never above that of [2]_ on the grid of the range, on that of the start, or on the final one.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.9], [0.0, 0.1]])
    >>> found = gram_coordinate_descent(np.array([[1.0, -0.4]]), X.T @ X, 3)
    >>> all(a >= b for a, b in zip(found.errors, found.errors[1:]))
    True
    """
    sweeps = nonnegative_integer("sweeps", sweeps)
    _check_words(init, order)
    problem = gram_problem(weight, gram)
    shared = scale == "layer"
    base = minmax_grid(
        problem.weight, bits, scale=scale, symmetric=symmetric, group_size=group_size
    )
    factor = factor_columns(problem.gram, "activation", damping) if init == "gptq" else None
    state = start_on_grid(problem, base, factor, search=search, symmetric=symmetric, shared=shared)
    state = better_rows(state, zeros_start(problem, state.grid))
    totals = [_total(state)]
    path = _entry_order(problem, order)
    for sweep in range(sweeps):
        before = state
        state = _sweep(problem, state, path, update_scale, shared)
        if factor is not None and (state is before or sweep == sweeps - 1):
            other = better_rows(state, _through(problem, factor, state.grid))
            state = other if _total(other) < _SETTLED * _total(state) else state
        totals.append(min(totals[-1], _total(state)))
        if state is before:  # nothing moved, and nothing will
            break
    totals += [totals[-1]] * (sweeps + 1 - len(totals))
    return _finished(problem, state, totals)


def coordinate_sweeps(
    weight: Any,
    gram: Any,
    grid: QuantizationGrid,
    *,
    sweeps: int = 4,
    order: EntryOrder = "greedy",
) -> Any:
    """Round to a given grid by plain sweeps from the unrounded weights, as published.

    Parameters
    ----------
    weight : array, shape (out, in)
        Finite real numbers; the first sweep rounds each entry when it comes to it.
    gram : array, shape (in, in)
        ``X^T X`` of the inputs X.
    grid : QuantizationGrid
        The values to choose from.
    sweeps : int, default 4
        Passes over all entries, at least 1.
    order : {"greedy", "shared", "cyclic"}, default "greedy"
        As in `gram_coordinate_descent`.

    Returns
    -------
    array of int8, shape (out, in)
        The codes. Columns without data get the nearest values.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    ValueError
        As in `gram_coordinate_descent`.

    Notes
    -----
    Algorithm of A. Zhang et al., arXiv:2403.07134, without the data: its products ``x_i . u`` with
    the residual ``u = X (W - Q)^T`` are entries of ``(W - Q) G``.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.solvers.quantization_grid import minmax_grid
    >>> weight = np.array([[1.0, -0.4]])
    >>> coordinate_sweeps(weight, np.eye(2), minmax_grid(weight, 2)).tolist()
    [[1, -1]]
    """
    sweeps = nonnegative_integer("sweeps", sweeps, least=1)
    _check_words("gptq", order)
    problem = gram_problem(weight, gram)
    grid.check_shape(problem.weight)
    xp = namespace_of(problem.weight)
    grid = QuantizationGrid(
        xp.astype(grid.scale, xp.float64) / problem.unit,
        grid.zero_point,
        grid.bits,
        grid.columns,
        grid.group_size,
    )
    codes = grid.nearest(problem.weight)
    value = xp.astype(problem.weight, xp.float64, copy=True)
    path = _entry_order(problem, order)
    for _ in range(sweeps):
        _descend(problem, grid, path, value, (problem.weight - value) @ problem.gram, codes)
    return codes


def _check_words(init: str, order: str) -> None:
    """Refuse another start or order."""
    if init not in ("gptq", "nearest"):
        raise ValueError(f"init must be 'gptq' or 'nearest'; got {init!r}")
    if order not in ("greedy", "shared", "cyclic"):
        raise ValueError(f"order must be 'greedy', 'shared' or 'cyclic'; got {order!r}")


def _entry_order(problem: GramProblem, order: EntryOrder) -> Any:
    """Return the order of the entries, of each row or of all, shape (rows or 1, columns)."""
    xp = namespace_of(problem.weight)
    columns = problem.gram.shape[0]
    if order == "cyclic":
        return xp.arange(columns, device=device_of(problem.weight))[None, :]
    diagonal = xp.linalg.diagonal(problem.gram)
    lengths = xp.sqrt(xp.maximum(diagonal, 0.0 * diagonal))
    if order == "greedy":
        sizes = lengths[None, :] * xp.abs(problem.weight)
    else:
        sizes = (lengths * xp.sqrt(xp.sum(problem.weight**2, axis=0)))[None, :]
    return xp.argsort(sizes, axis=1, descending=True, stable=True)


def _descend(
    problem: GramProblem, grid: QuantizationGrid, path: Any, value: Any, residual: Any, codes: Any
) -> int:
    """Pass over all entries once; `value`, `residual` and `codes` are updated."""
    xp = namespace_of(value)
    group = xp.arange(grid.columns, device=device_of(value)) // grid.group_size
    scale, zero = xp.astype(grid.scale, xp.float64), xp.astype(grid.zero_point, xp.float64)
    limits = (float(grid.limits[0]), float(grid.limits[1]))
    inner = (problem.gram, problem.inverse, path, scale, zero, group, limits, codes)
    return int(loops_for(xp).descend(value, residual, *inner))


def _sweep(
    problem: GramProblem, state: GridStart, path: Any, update_scale: bool, shared: bool
) -> GridStart:
    """Pass over all entries and fit the steps; the same object where nothing improves."""
    xp = namespace_of(state.codes)
    grid = state.grid
    codes = xp.astype(state.codes, xp.int8, copy=True)
    value = grid.dequantize(codes)
    residual = problem.outputs - value @ problem.gram
    moves = _descend(problem, grid, path, value, residual, codes)
    if moves == 0 and not update_scale:
        return state
    moved = GridStart(grid, codes, _squares(problem, value, residual))
    best = better_rows(state, moved)
    if update_scale:
        steps = _fitted_steps(problem, moved, residual, shared)
        fitted = GridStart(steps, codes, _squares(problem, steps.dequantize(codes), residual))
        if not shared:
            # rows that lie on their grid up to rounding keep it
            rough = best.errors > problem.exact**2 * problem.whole
            errors = xp.where(rough, fitted.errors, xp.full_like(fitted.errors, math.inf))
            best = better_rows(best, GridStart(steps, codes, errors))
        elif _total(fitted) < _total(best) and _total(best) > problem.exact**2 * _whole(problem):
            best = fitted
    return best if _total(best) < _SETTLED * _total(state) else state


def _squares(problem: GramProblem, value: Any, residual: Any) -> Any:
    """Return the squared output errors, given ``(weight - value) @ gram``."""
    xp = namespace_of(value)
    squares = xp.sum(residual * (problem.weight - value), axis=1)
    return xp.maximum(squares, xp.zeros_like(squares))


def _fitted_steps(
    problem: GramProblem, state: GridStart, residual: Any, shared: bool
) -> QuantizationGrid:
    """Return the best steps for the codes, group after group; `residual` is updated."""
    xp = namespace_of(state.codes)
    grid = state.grid
    offsets = xp.astype(state.codes, xp.float64) - xp.astype(
        grid.spread(grid.zero_point), xp.float64
    )
    scales = []
    for number, columns in enumerate(grid.groups()):
        own = offsets[:, columns]
        product = own @ problem.gram[columns, :]
        slope = xp.sum(residual[:, columns] * own, axis=1)
        curvature = xp.sum(product[:, columns] * own, axis=1)
        if shared:
            slope = xp.broadcast_to(xp.sum(slope), slope.shape)
            curvature = xp.broadcast_to(xp.sum(curvature), curvature.shape)
        old = grid.scale[:, number]
        flat = curvature <= 0.0
        change = xp.where(flat, 0.0 * slope, slope / xp.where(flat, 1.0 + 0.0 * slope, curvature))
        change = xp.where(old + change > 0.0, change, xp.zeros_like(change))
        residual -= change[:, None] * product
        scales.append(old + change)
    scale = xp.stack(scales, axis=1) if scales else grid.scale
    return QuantizationGrid(scale, grid.zero_point, grid.bits, grid.columns, grid.group_size)


def _through(problem: GramProblem, factor: ColumnFactor, grid: QuantizationGrid) -> GridStart:
    """Round through the factor, with errors that are not subject to its damping."""
    codes, _ = round_through(problem.weight, factor, grid)
    return GridStart(grid, codes, problem.errors(grid.dequantize(codes)))


def _total(state: GridStart) -> float:
    """Squared error over all rows."""
    xp = namespace_of(state.errors)
    return float(xp.sum(state.errors))


def _whole(problem: GramProblem) -> float:
    """Squared outputs over all rows."""
    xp = namespace_of(problem.weight)
    return float(xp.sum(problem.whole))


def _finished(problem: GramProblem, state: GridStart, totals: list[float]) -> GridCodes:
    """Round what has no data, undo the division by the unit and measure the errors."""
    xp = namespace_of(state.codes)
    grid = state.grid
    dead = xp.broadcast_to((problem.inverse == 0.0)[None, :], state.codes.shape)
    codes = xp.where(dead, grid.nearest(problem.weight), state.codes)
    whole = _whole(problem)
    errors = tuple(math.sqrt(total / whole) if whole > 0.0 else 0.0 for total in totals)
    return GridCodes(
        codes,
        xp.astype(grid.scale * problem.unit, problem.dtype),
        grid.zero_point,
        grid.bits,
        grid.group_size,
        errors,
    )
