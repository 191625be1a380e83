"""The grid of every row and a first rounding to it, by the error of the outputs.

A grid over the whole range of a row wastes codes on its few largest weights. Steps between a
small part of that and the whole are judged by the rounding errors of the single weights, each
counted by what it costs; the best of them, and steps nearby, by the error of the outputs itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.solvers.gptq import ColumnFactor, loops_for, round_through
from tensoralg.solvers.gram_problem import GramProblem
from tensoralg.solvers.quantization_grid import QuantizationGrid

__all__ = ["GridStart", "start_on_grid"]

_SHARES = 12
# the least step in parts of that of the range, for 2 to 8 bits
_LEAST_SHARE = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85)
_NEARBY = (0.9, 1.1, 0.95, 1.05)


@dataclass(frozen=True, slots=True, eq=False)
class GridStart:
    """Codes on a grid and what they cost.

    Parameters
    ----------
    grid : QuantizationGrid
        The values.
    codes : array of int8, shape (rows, columns)
        The codes.
    errors : array of float64, shape (rows,)
        Squared errors of the outputs.
    """

    grid: QuantizationGrid
    codes: Any
    errors: Any


def start_on_grid(
    problem: GramProblem,
    base: QuantizationGrid,
    factor: ColumnFactor | None,
    *,
    search: bool,
    symmetric: bool,
    shared: bool,
) -> GridStart:
    """Round to the best of several grids.

    Parameters
    ----------
    problem : GramProblem
        The weights and the Gram matrix.
    base : QuantizationGrid
        Over the range of the weights.
    factor : ColumnFactor or None
        Rounds column by column through it; None rounds to the nearest values.
    search : bool
        Whether other grids than `base` are tried.
    symmetric : bool
        Whether the zero points stay.
    shared : bool
        Whether all rows have one grid.

    Returns
    -------
    GridStart
        Each row's best, or the best for all rows together.
    """
    best = _round_to(problem, base, factor)
    if factor is not None:
        best = better_rows(best, _round_to(problem, base, None))
    if search and 0 not in problem.weight.shape:
        best = _searched(problem, base, factor, best, symmetric, shared)
    # those of the factor are subject to its damping
    errors = problem.errors(best.grid.dequantize(best.codes))
    return GridStart(best.grid, best.codes, errors)


def _searched(
    problem: GramProblem,
    base: QuantizationGrid,
    factor: ColumnFactor | None,
    best: GridStart,
    symmetric: bool,
    shared: bool,
) -> GridStart:
    """Return the best of several grids, for each row or for all."""
    keep = _better_whole if shared else better_rows
    for grid in _candidates(problem, base, factor, symmetric, shared):
        best = keep(best, _round_to(problem, grid, factor))
    for share in _NEARBY:
        best = keep(best, _round_to(problem, scaled(best.grid, share), factor))
    exact = _exact_grid(problem, best.grid, symmetric, shared)
    return best if exact is None else keep(best, _round_to(problem, exact, None))


def scaled(grid: QuantizationGrid, share: float) -> QuantizationGrid:
    """Return the grid with all steps multiplied by a number."""
    return QuantizationGrid(
        grid.scale * share, grid.zero_point, grid.bits, grid.columns, grid.group_size
    )


def better_rows(first: GridStart, second: GridStart) -> GridStart:
    """Return each row of the one with the smaller error; of the first where they are equal."""
    xp = namespace_of(first.codes)
    better = (second.errors < first.errors)[:, None]
    a, b = first.grid, second.grid
    scale = xp.where(better, b.scale, a.scale)
    zero = xp.where(better, b.zero_point, a.zero_point)
    return GridStart(
        QuantizationGrid(scale, zero, a.bits, a.columns, a.group_size),
        xp.where(better, second.codes, first.codes),
        xp.where(better[:, 0], second.errors, first.errors),
    )


def _better_whole(first: GridStart, second: GridStart) -> GridStart:
    """Return the one with the smaller error over all rows."""
    xp = namespace_of(first.codes)
    return second if float(xp.sum(second.errors)) < float(xp.sum(first.errors)) else first


def _round_to(
    problem: GramProblem, grid: QuantizationGrid, factor: ColumnFactor | None
) -> GridStart:
    """Round to a grid, through a factor or to the nearest values."""
    if factor is not None:
        codes, errors = round_through(problem.weight, factor, grid)
        return GridStart(grid, codes, errors)
    codes = grid.nearest(problem.weight)
    return GridStart(grid, codes, problem.errors(grid.dequantize(codes)))


def _candidates(
    problem: GramProblem,
    base: QuantizationGrid,
    factor: ColumnFactor | None,
    symmetric: bool,
    shared: bool,
) -> Iterator[QuantizationGrid]:
    """Yield the grids with the least weighted rounding errors, for two kinds of weights."""
    xp = namespace_of(problem.weight)
    yield _least_cost(problem, base, xp.linalg.diagonal(problem.gram), symmetric, shared)
    if factor is not None:
        pivots = xp.take(factor.pivots, xp.argsort(factor.path))
        yield _least_cost(problem, base, pivots, symmetric, shared)


def _least_cost(
    problem: GramProblem, base: QuantizationGrid, importance: Any, symmetric: bool, shared: bool
) -> QuantizationGrid:
    """Return the grid with the least weighted rounding errors, of every row and group."""
    xp = namespace_of(problem.weight)
    low, high = base.limits
    least = _LEAST_SHARE[base.bits - 2]
    shares = [least ** (k / (_SHARES - 1)) for k in range(_SHARES)]
    scales, zeros = [], []
    for number, columns in enumerate(base.groups()):
        scale, zero = base.scale[:, number], base.zero_point[:, number]
        tried = [zero] if symmetric else [xp.clip(zero + k, low, high) for k in (0, -1, 1)]
        if not symmetric and base.bits == 2:
            tried = [0 * zero + k for k in range(low, high + 1)]
        steps = xp.stack([scale * share for share in shares for _ in tried], axis=1)
        shifts = xp.stack([shift for _ in shares for shift in tried], axis=1)
        costs = loops_for(xp).search_steps(
            xp.astype(problem.weight[:, columns], xp.float64, copy=True),
            xp.astype(importance[columns], xp.float64, copy=True),
            steps,
            xp.astype(shifts, xp.float64),
            (float(low), float(high)),
        )
        if shared:
            costs = xp.broadcast_to(xp.sum(costs, axis=0)[None, :], costs.shape)
        place = xp.argmin(costs, axis=1)[:, None]
        scales.append(xp.take_along_axis(steps, place, axis=1))
        zeros.append(xp.take_along_axis(shifts, place, axis=1))
    return QuantizationGrid(
        xp.concat(scales, axis=1),
        xp.concat(zeros, axis=1),
        base.bits,
        base.columns,
        base.group_size,
    )


def _exact_grid(
    problem: GramProblem, base: QuantizationGrid, symmetric: bool, shared: bool
) -> QuantizationGrid | None:
    """Return the grid on which rows (or all) already lie; None where none lies on any."""
    xp = namespace_of(problem.weight)
    low, high = base.limits
    scales, zeros, some = [], [], False
    for number, columns in enumerate(base.groups()):
        weight = problem.weight[:, columns]
        scale, zero = base.scale[:, number], base.zero_point[:, number]
        size = xp.max(xp.abs(weight), axis=1)
        if shared:
            size = xp.broadcast_to(xp.max(size), size.shape)
        found = size <= 0.0
        # the largest entry is a whole number of steps
        for count in range(1, (high - low if not symmetric else -low) + 1):
            steps = xp.where(size > 0.0, size / count, xp.ones_like(size))
            fits, shift = _lies_on(problem, weight, steps, (low, high), symmetric, shared)
            fits = fits & ~found
            scale, zero = xp.where(fits, steps, scale), xp.where(fits, shift, zero)
            found, some = found | fits, some or bool(xp.any(fits))
            if bool(xp.all(found)):
                break
        scales.append(scale)
        zeros.append(zero)
    if not some:
        return None
    scale, zero = xp.stack(scales, axis=1), xp.stack(zeros, axis=1)
    return QuantizationGrid(scale, zero, base.bits, base.columns, base.group_size)


def _lies_on(
    problem: GramProblem,
    weight: Any,
    steps: Any,
    limits: tuple[int, int],
    symmetric: bool,
    shared: bool,
) -> tuple[Any, Any]:
    """Tell which rows lie on the multiples of their steps, and with which zero points."""
    xp = namespace_of(weight)
    low, high = limits
    # a few columns tell that most rows do not
    for part in (weight[:, : min(8, weight.shape[1])], weight):
        counts = xp.round(part / steps[:, None])
        near = xp.abs(part - steps[:, None] * counts) <= problem.exact * xp.abs(part)
        first, last = xp.min(counts, axis=1), xp.max(counts, axis=1)
        if shared:
            first = xp.broadcast_to(xp.min(first), first.shape)
            last = xp.broadcast_to(xp.max(last), last.shape)
        first, last = xp.minimum(first, 0.0 * first), xp.maximum(last, 0.0 * last)
        zero = xp.zeros_like(first) if symmetric else xp.clip(low - first, low, high)
        fits = xp.all(near, axis=1) & (first + zero >= low) & (last + zero <= high)
        if shared:
            fits = xp.broadcast_to(xp.all(fits), fits.shape)
        if not bool(xp.any(fits)):
            break
    return fits, xp.astype(zero, xp.int32)


def zeros_start(problem: GramProblem, grid: QuantizationGrid) -> GridStart:
    """Return the rows of zeros on a grid."""
    xp = namespace_of(problem.weight)
    zero = xp.astype(grid.spread(grid.zero_point), xp.int8)
    codes = zero + xp.zeros(problem.weight.shape, dtype=xp.int8, device=device_of(problem.weight))
    return GridStart(grid, codes, problem.whole)
