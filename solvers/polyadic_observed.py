"""Least squares over few observed cells: one small system for every row of a factor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ObservedCells", "is_worth_listing"]

FloatArray = NDArray[np.float64]

# entries of the systems of some rows, and of a tensor whose cells may be listed in any case
_SYSTEMS = 2**22
_SMALL = 2**20
# pull of the old row, of the mean eigenvalue of its system: it decides what cells leave open
_PULL = 1e-10
_INNER_PASSES = 30
_INNER_TOL = 1e-3


def is_worth_listing(tensor: Any, mask: Any, rank: int) -> bool:
    """Tell whether rows should be solved for from listed cells rather than from a filled tensor.

    Listing costs r^2 products per cell and 4 N + 8 bytes of memory; filling costs r products for
    every cell, observed or not, and the more sweeps the more cells are missing.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N)
        Only host arrays are listed.
    mask : bool array of the tensor's shape
        True: observed.
    rank : int
        Number of terms.

    Returns
    -------
    bool
        An estimate of which is faster, within the memory that the tensor itself takes.

    Examples
    --------
    >>> is_worth_listing(np.zeros((9, 9, 9)), np.ones((9, 9, 9), dtype=bool), 20)
    False
    """
    if not isinstance(tensor, np.ndarray):
        return False
    share = np.count_nonzero(mask) / tensor.size
    bytes_per_cell = 4 * tensor.ndim + 8
    if tensor.size > _SMALL and share * bytes_per_cell > tensor.itemsize:
        return False
    return bool(share**2 * tensor.ndim * rank**2 < 4.0 * (8.0 + 0.2 * rank))


class ObservedCells:
    """The observed cells of a tensor, and factors that fit them.

    Parameters
    ----------
    tensor : numpy.ndarray, shape (n_1, .., n_N)
        float32 or float64; what it holds elsewhere is not read.
    mask : bool array of the tensor's shape
        True: observed.

    References
    ----------
    Tomasi and Bro, PARAFAC and missing values, Chemometrics and Intelligent Laboratory Systems
    75, 2005.

    Examples
    --------
    >>> holed = np.array([[1.0, np.nan], [2.0, 2.0]])
    >>> cells = ObservedCells(holed, ~np.isnan(holed))
    >>> ones = [np.ones((2, 1)), np.ones((2, 1))]
    >>> cells.solve(0, ones, ones[0]).round(6).tolist()
    [[1.0], [2.0]]
    >>> cells.squared_error(ones)
    2.0
    """

    def __init__(self, tensor: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        from tensoralg.solvers import polyadic_row_loops  # numba is slow to load

        self._loops: Any = polyadic_row_loops
        self._shape = tensor.shape
        where = np.flatnonzero(mask)
        self._values = tensor[np.asarray(mask)].astype(np.float64)
        coordinates = np.empty((tensor.ndim, len(where)), dtype=np.int32)
        # rows of all factors lie below each other
        self._offsets = np.concatenate([[0], np.cumsum(tensor.shape)])
        for mode in reversed(range(tensor.ndim)):
            where, coordinates[mode] = np.divmod(where, tensor.shape[mode])
            coordinates[mode] += self._offsets[mode]
        self._rows = coordinates

    def scale(self, factors: Sequence[FloatArray]) -> float:
        """Find the multiple of a model that fits the cells best.

        Parameters
        ----------
        factors : sequence of N arrays of float64, shapes (n_k, r)
            Of the model.

        Returns
        -------
        float
            Next to nothing for a model at random.
        """
        inner, norm = self._loops.model_products(self._rows, self._values, np.concatenate(factors))
        return float(inner / norm) if norm > 0.0 else 0.0

    def squared_error(self, factors: Sequence[FloatArray]) -> float:
        """Sum of the squared differences between the cells and a model.

        Parameters
        ----------
        factors : sequence of N arrays of float64, shapes (n_k, r)
            Of the model.

        Returns
        -------
        float
            In float64.
        """
        return float(self._loops.squared_error(self._rows, self._values, np.concatenate(factors)))

    def solve(
        self,
        mode: int,
        factors: Sequence[FloatArray],
        old: FloatArray,
        *,
        pull: float = 0.0,
        nonnegative: bool = False,
    ) -> FloatArray:
        """Fit one factor to the cells, given the others.

        Parameters
        ----------
        mode : int
            0 <= mode < N.
        factors : sequence of N arrays of float64, shapes (n_k, r)
            That of the mode is not read.
        old : array of float64, shape (n_mode, r)
            Decides where the cells of a row do not.
        pull : float, default 0
            How much staying near `old` counts beside the cells of a row; a little always does.
        nonnegative : bool, default False
            By coordinate descent from `old`.

        Returns
        -------
        array of float64, shape (n_mode, r)
            Rows without cells are those of `old`.
        """
        n, rank = old.shape
        stacked = np.concatenate(factors)
        result = np.empty_like(old)
        step = max(1, _SYSTEMS // rank**2)
        for start in range(0, n, step):
            stop = min(start + step, n)
            systems = np.zeros((stop - start, rank, rank))
            right = np.zeros((stop - start, rank))
            first = self._offsets[mode] + start
            self._loops.add_cells(self._rows, self._values, stacked, mode, first, systems, right)
            _add_pull(systems, right, old[start:stop], max(pull, _PULL))
            if nonnegative:
                result[start:stop] = old[start:stop]
                self._loops.descend(systems, right, result[start:stop], _INNER_PASSES, _INNER_TOL)
            else:
                result[start:stop] = np.linalg.solve(systems, right[:, :, None])[:, :, 0]
        return result


def _add_pull(systems: FloatArray, right: FloatArray, old: FloatArray, share: float) -> None:
    """Add a small multiple of the squared distance from the old rows."""
    rank = systems.shape[1]
    traces = np.einsum("iss->i", systems) / rank
    usual = float(traces.mean())
    pull = share * np.maximum(traces, usual if usual > 0.0 else 1.0)
    diagonal = np.arange(rank)
    systems[:, diagonal, diagonal] += pull[:, None]
    right += pull[:, None] * old
