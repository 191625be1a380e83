"""The loops of `grid_rounding_kernels` for arrays of any library: all rows at once.

Where the arrays live on a device, so does every step; the loops run over the columns.
"""

from typing import Any

from tensoralg.gpu.namespaces import device_of, namespace_of

__all__ = ["descend", "round_block", "search_steps"]


def round_block(
    targets: Any,
    weight: Any,
    coupling: Any,
    pivots: Any,
    scale: Any,
    zero: Any,
    group: Any,
    limits: tuple[float, float],
    codes: Any,
    cost: Any,
) -> None:
    """Round the columns of a block one after the other; each error moves the targets behind it.

    Parameters
    ----------
    targets, weight : array of float64, shape (rows, size)
        The former is overwritten by the errors.
    coupling : array of float64, shape (size, size)
        Row k has the move of target l > k for an error 1 of column k.
    pivots : array of float64, shape (size,)
        What a squared distance from the target costs.
    scale, zero : array of float64, shape (rows, groups)
        Steps and zero points.
    group : array of int64, shape (size,)
        The group of every column.
    limits : tuple of float
        Least and largest code.
    codes : array of int8, shape (rows, size)
        Is written.
    cost : array of float64, shape (rows,)
        Is raised by the block's part.
    """
    xp = namespace_of(targets)
    for k in range(targets.shape[1]):
        step, shift = scale[:, int(group[k])], zero[:, int(group[k])]
        code = xp.clip(xp.round(targets[:, k] / step) + shift, *limits)
        value = step * (code - shift)
        codes[:, k] = xp.astype(code, xp.int8)
        cost += pivots[k] * (targets[:, k] - value) ** 2
        error = weight[:, k] - value
        targets[:, k] = error
        targets[:, k + 1 :] += error[:, None] * coupling[k, k + 1 :][None, :]


def descend(
    value: Any,
    residual: Any,
    gram: Any,
    inverse: Any,
    order: Any,
    scale: Any,
    zero: Any,
    group: Any,
    limits: tuple[float, float],
    codes: Any,
) -> int:
    """Move every entry to the grid value that is best with all others fixed; return the moves.

    Parameters
    ----------
    value, residual : array of float64, shape (rows, columns)
        The present values and ``(weight - value) @ gram``, updated.
    gram : array of float64, shape (columns, columns)
        Symmetric.
    inverse : array of float64, shape (columns,)
        One over the diagonal; 0 where a column has no data.
    order : array of int64, shape (rows, columns) or (1, columns)
        The entries' order, of each row or of all.
    scale, zero : array of float64, shape (rows, groups)
        Steps and zero points.
    group : array of int64, shape (columns,)
        The group of every column.
    limits : tuple of float
        Least and largest code.
    codes : array of int8, shape (rows, columns)
        Updated.

    Returns
    -------
    int
        How many values changed.
    """
    xp = namespace_of(value)
    columns = xp.arange(value.shape[1], device=device_of(value))
    moves = xp.zeros((), dtype=xp.int64, device=device_of(value))
    for k in range(value.shape[1]):
        places = order[:, k]  # one for each row, or one for all
        here = columns[None, :] == places[:, None]

        def pick(table: Any, places: Any = places) -> Any:
            index = xp.broadcast_to(places[:, None], (table.shape[0], 1))
            return xp.take_along_axis(table, index, axis=1)[:, 0]

        turn = xp.take(inverse, places)
        span = xp.take(group, places)
        step, shift = pick(scale, span), pick(zero, span)
        present = pick(value)
        code = xp.clip(xp.round((present + pick(residual) * turn) / step) + shift, *limits)
        wanted = xp.where(turn == 0.0, present, step * (code - shift))
        change = wanted - present
        moves += xp.count_nonzero(change)
        value[...] = xp.where(here, wanted[:, None], value)
        kept = xp.where((change != 0.0)[:, None], xp.astype(code, xp.int8)[:, None], codes)
        codes[...] = xp.where(here, kept, codes)
        residual -= change[:, None] * xp.take(gram, places, axis=0)
    return int(moves)


def search_steps(
    weight: Any, importance: Any, steps: Any, zeros: Any, limits: tuple[float, float]
) -> Any:
    """Cost of rounding every row to each of several grids, all errors weighted.

    Parameters
    ----------
    weight : array of float64, shape (rows, size)
        The weights.
    importance : array of float64, shape (size,)
        What a squared error of a column costs.
    steps, zeros : array of float64, shape (rows, candidates)
        The grids.
    limits : tuple of float
        Least and largest code.

    Returns
    -------
    array of float64, shape (rows, candidates)
        The weighted squares of the rounding errors.
    """
    xp = namespace_of(weight)
    low, high = limits
    costs = []
    for trial in range(steps.shape[1]):
        step, shift = steps[:, trial][:, None], zeros[:, trial][:, None]
        codes = xp.minimum(xp.maximum(xp.round(weight / step), low - shift), high - shift)
        costs.append(xp.sum(importance[None, :] * (weight - step * codes) ** 2, axis=1))
    return xp.stack(costs, axis=1)
