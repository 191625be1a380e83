"""Rounding one column after the other, every error made up for by the columns still to come.

References
----------
.. [1] E. Frantar, S. Ashkboos, T. Hoefler, D. Alistarh, "GPTQ: Accurate post-training
   quantization for generative pre-trained transformers", ICLR 2023, arXiv:2210.17323.
.. [2] J. Chen, Y. Shabanzadeh, E. Crncevic, T. Hoefler, D. Alistarh, "The geometry of LLM
   quantization: GPTQ as Babai's nearest plane algorithm", arXiv:2507.18553 (2025).
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from tensoralg.solvers.quantization_grid import QuantizationGrid

__all__ = ["GPTQOrder", "coupling_of", "gptq", "round_through"]

GPTQOrder = Literal["activation", "natural"]

_BLOCK = 64
_TRIES = 40  # of a larger damping, each ten times the last


def gptq(
    weight: npt.NDArray[np.float64],
    gram: npt.NDArray[np.float64],
    grid: QuantizationGrid,
    *,
    order: GPTQOrder = "activation",
    damping: float = 0.01,
) -> npt.NDArray[np.int8]:
    """Round a matrix to a grid so that its products with the data change little.

    Parameters
    ----------
    weight : ndarray of float64, shape (rows, columns)
        One problem per row.
    gram : ndarray of float64, shape (columns, columns)
        ``X^T X`` of the data.
    grid : QuantizationGrid
        The values to choose from.
    order : {"activation", "natural"}, default "activation"
        Columns by falling diagonal of the Gram matrix, or as they stand.
    damping : float, default 0.01
        Added to the diagonal, in parts of its mean; as much more as a factorisation needs.

    Returns
    -------
    ndarray of int8, shape (rows, columns)
        The codes. Columns without data get the nearest value.

    Raises
    ------
    ValueError
        Another order, or a damping below 0.

    Notes
    -----
    [1]_ updates the inverse of the Gram matrix; rounding by the factor ``H = U U^T`` of the
    damped matrix, U upper triangular in the chosen order, gives the same codes with one
    factorisation: the target of column i is ``w_i + sum_{j<i} (w_j - q_j) U_ji / U_ii`` [2]_.

    Examples
    --------
    >>> from tensoralg.solvers.quantization_grid import minmax_grid
    >>> weight, gram = np.array([[1.0, 0.4]]), np.array([[2.0, 1.9], [1.9, 2.0]])
    >>> grid = QuantizationGrid(np.ones((1, 1)), np.zeros((1, 1)), bits=3, columns=2, group_size=2)
    >>> gptq(np.array([[1.4, 0.3]]), gram, grid).tolist()
    [[1, 1]]
    """
    if order not in ("activation", "natural"):
        raise ValueError(f"order must be 'activation' or 'natural'; got {order!r}")
    if not damping >= 0.0:
        raise ValueError(f"damping must be at least 0; got {damping!r}")
    diagonal = np.diagonal(gram)
    path = np.argsort(-diagonal, kind="stable") if order == "activation" else None
    path = np.arange(len(gram)) if path is None else path
    coupling = coupling_of(gram, path, damping)
    return round_through(weight, coupling, path, grid)


def coupling_of(
    gram: npt.NDArray[np.float64], path: npt.NDArray[np.intp], damping: float
) -> npt.NDArray[np.float64]:
    """Return how errors move the targets of later columns.

    Parameters
    ----------
    gram : ndarray, shape (columns, columns)
        Symmetric.
    path : ndarray of int, shape (columns,)
        The order of the columns.
    damping : float
        Added to the diagonal, in parts of its mean.

    Returns
    -------
    ndarray, shape (columns, columns)
        Row j, column i > j: the move of column ``path[i]`` for an error 1 of ``path[j]``.

    Raises
    ------
    ValueError
        No damping makes the matrix positive definite: it is not finite.
    """
    ordered = gram[np.ix_(path, path)]
    mean = float(np.trace(ordered)) / max(len(ordered), 1)
    if not mean > 0.0:
        return np.eye(len(ordered))
    # a column without data moves nothing and is not moved
    dead = np.diagonal(ordered) <= 0.0
    ordered[dead], ordered[:, dead] = 0.0, 0.0
    ordered[dead, dead] = mean
    places = np.arange(len(ordered))
    extra = damping * mean
    for _ in range(_TRIES):
        ordered[places, places] += extra
        try:
            # the factor of the reversed matrix, reversed: upper triangular
            upper = np.linalg.cholesky(ordered[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            extra = max(9.0 * extra, 1e-10 * mean)
            continue
        return np.asarray(upper / np.diagonal(upper))
    raise ValueError("gram must be finite; no damping made it positive definite")


def round_through(
    weight: npt.NDArray[np.float64],
    coupling: npt.NDArray[np.float64],
    path: npt.NDArray[np.intp],
    grid: QuantizationGrid,
) -> npt.NDArray[np.int8]:
    """Round the columns in an order, each target moved by the errors before it.

    Parameters
    ----------
    weight : ndarray of float64, shape (rows, columns)
        One problem per row.
    coupling : ndarray of float64, shape (columns, columns)
        From `coupling_of`.
    path : ndarray of int, shape (columns,)
        The order.
    grid : QuantizationGrid
        The values to choose from.

    Returns
    -------
    ndarray of int8, shape (rows, columns)
        The codes, in the columns' own order.
    """
    from tensoralg.solvers.grid_rounding_kernels import round_block

    rows, columns = weight.shape
    limits = tuple(map(float, grid.limits))
    scale, zero = grid.spread(grid.scale)[:, path], grid.spread(grid.zero_point)[:, path]
    errors, codes = np.empty((rows, columns)), np.empty((rows, columns), dtype=np.int8)
    for start in range(0, columns, _BLOCK):
        block = slice(start, min(start + _BLOCK, columns))
        own = np.ascontiguousarray(weight[:, path[block]])
        targets = own + errors[:, :start] @ coupling[:start, block]
        part = np.empty(own.shape, dtype=np.int8)
        round_block(
            targets,
            own,
            np.ascontiguousarray(coupling[block, block]),
            np.ascontiguousarray(scale[:, block]),
            np.ascontiguousarray(zero[:, block], dtype=np.float64),
            limits,
            part,
        )
        errors[:, block], codes[:, path[block]] = targets, part
    return codes
