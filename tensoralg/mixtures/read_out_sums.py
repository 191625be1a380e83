"""Sums over rows from which the moments of any functions are read out, component by component.

Inside a component the coordinates are independent. A function l of the coordinates other than j
whose expectation is 1 in component s and 0 in the others therefore gives ``E[l g(x_j)] =
w_s E_s[g(x_j)]`` for every function g. Such functions are combinations of square-free monomials,
whose expectations are products of means; the combination with the smallest second moment is taken.
"""

from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.monomials import graded_indices
from tensoralg.gpu.moment_features import gram_of_rows
from tensoralg.mixtures.functions import CellFunctions
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.solvers.feasible_least_squares import square_free_products

__all__ = ["ReadOutSums", "read_out"]

Array = NDArray[np.float64]

_NUMBERS = 2**18  # of features and values of functions at a time
_NEVER = 1e-300  # a weight: products that no row has count as 0
_RIDGE = 1e-12  # of the mean square of a feature: keeps copies of one column apart


class ReadOutSums(MomentAccumulator):
    """Moments, beside the averages of products of monomials with functions of single cells.

    Parameters
    ----------
    dimension, order : int
        As in :class:`MomentAccumulator`.
    degree : int
        Highest degree of the monomials.
    functions : CellFunctions
        The functions, in the units of the data.
    shift, scale : ndarray of shape (d,)
        Standardisation of the monomials.
    missing : bool, default False
        Whether NaN is a missing cell: each product is then averaged over the rows that have all
        of its cells.

    Attributes
    ----------
    products, product_weights : ndarray of shape (n, n)
        Sums of the products of two monomials, and the weights of the rows that have them.
    values : ndarray of shape (k, n, d)
        Sums of the products of monomials and functions.
    value_weights : ndarray of shape (n, d)
        Weights of the rows that have them.
    """

    def __init__(
        self,
        dimension: int,
        order: int,
        degree: int,
        functions: CellFunctions,
        *,
        shift: ArrayLike,
        scale: ArrayLike,
        missing: bool = False,
    ) -> None:
        super().__init__(dimension, order, shift=shift, scale=scale, missing=missing)
        self.degree, self.functions = degree, functions
        self.products: Any = 0.0
        self.product_weights: Any = 0.0
        self.values: Any = 0.0
        self.value_weights: Any = 0.0

    def update(self, X: Any, sample_weight: Any = None) -> Self:
        """Add rows, already checked.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Rows.
        sample_weight : ndarray of shape (n,), optional
            Positive weights.

        Returns
        -------
        ReadOutSums
            Itself.
        """
        super().update(X, sample_weight)
        assert self.shift is not None
        gram, seen = gram_of_rows(
            X, sample_weight, self.shift, self.scale, 2 * self.degree, missing=self.missing
        )
        self.products = self.products + gram
        self.product_weights = self.product_weights + (gram[0, 0] if seen is None else seen)
        size = max(_NUMBERS // (len(gram) + len(self.functions) * self.dimension), 64)
        for begin in range(0, len(X), size):
            part = slice(begin, begin + size)
            self._add_values(X[part], None if sample_weight is None else sample_weight[part])
        return self

    def filled(self, X: Any) -> Array:
        """Put the origin in the place of missing cells, in double precision."""
        assert self.shift is not None
        rows = np.asarray(X, dtype=np.float64)
        return np.where(np.isnan(rows), self.shift, rows) if self.missing else rows

    def _add_values(self, X: Array, weight: Array | None) -> None:
        assert self.shift is not None
        rows = self.filled(X)
        features = self._monomials((rows - self.shift) / self.scale, weight)
        found = self.functions(rows)
        if self.missing:
            there = (~np.isnan(X)).astype(np.float64)
            found *= there
            self.value_weights = self.value_weights + self._monomials(there, weight).T @ there
        else:
            self.value_weights = self.value_weights + features[:, 0].sum()
        # a monomial with a missing cell is 0: the origin stands in its place
        self.values = self.values + np.matmul(features.T, found)

    def _monomials(self, points: Array, weight: Array | None) -> Array:
        features = np.concatenate(square_free_products(points, self.degree), axis=1)
        return features if weight is None else features * weight[:, None]

    def merge(self, other: MomentAccumulator) -> Self:
        """Add the sums of another one, of the same shift, scale and functions.

        Parameters
        ----------
        other : ReadOutSums
            It is left as it is.

        Returns
        -------
        ReadOutSums
            Itself.
        """
        assert isinstance(other, ReadOutSums)
        super().merge(other)
        self.products = self.products + other.products
        self.values = self.values + other.values
        self.product_weights = self.product_weights + other.product_weights
        self.value_weights = self.value_weights + other.value_weights
        return self

    def rebased(self, shift: ArrayLike | None = None, scale: ArrayLike | None = None) -> Self:
        """Copy the sums; another origin or unit is not possible.

        Parameters
        ----------
        shift, scale : array_like of shape (d,), optional
            The present ones.

        Returns
        -------
        ReadOutSums
            A copy.
        """
        for name, wanted in (("shift", shift), ("scale", scale)):
            if wanted is not None and not np.array_equal(wanted, getattr(self, name)):
                raise ValueError(f"sums of functions cannot change their {name}")
        return deepcopy(self)


def read_out(sums: ReadOutSums, means: Array) -> tuple[Array, Array]:
    """Read the component means of all functions.

    Parameters
    ----------
    sums : ReadOutSums
        Sums over the rows.
    means : ndarray of shape (r, d)
        Means of the components in standardised coordinates.

    Returns
    -------
    ndarray of shape (k, r, d)
        Of every function and coordinate.
    ndarray of shape (r, d)
        Second moments of the functionals, in units of the squared weights: over the number of rows
        they are about the squared error that noise leaves on the weight, relative to it.

    Notes
    -----
    With G the second moments of the monomials without coordinate j and A their expectations in the
    components, the functionals are the rows of ``(A^T G^-1 A)^-1 A^T G^-1``. The inverse of a
    submatrix of G comes from that of the whole by a Schur complement, so that leaving out each
    coordinate in turn costs little more than one inverse.
    """
    gram = sums.products / np.maximum(sums.product_weights, _NEVER)
    first = gram[0].copy()
    gram = gram + np.diag(_RIDGE * np.maximum(np.diag(gram), 1.0))
    expected = np.concatenate(square_free_products(means, sums.degree), axis=1).T
    inverse = np.linalg.inv(gram)
    values = sums.values / np.maximum(sums.value_weights, _NEVER)
    moments = np.empty((len(values), len(means), sums.dimension))
    noise = np.empty(moments.shape[1:])
    for j, member in enumerate(_members(sums.dimension, sums.degree)):
        without = np.where(member[:, None], 0.0, expected)
        weighted = inverse @ without
        if member.any():
            schur = np.linalg.solve(inverse[np.ix_(member, member)], weighted[member])
            weighted -= inverse[:, member] @ schur
            weighted[member] = 0.0
        # rows of the pseudo-inverse: means that lie too low for the degree are not told apart
        squares = np.linalg.pinv(without.T @ weighted, rcond=1e-12)
        functionals = squares @ weighted.T
        mass = functionals @ first
        tiny = 1e-12 * max(float(np.abs(mass).max()), 1e-300)
        mass = np.where(np.abs(mass) < tiny, tiny, mass)
        moments[:, :, j] = values[:, :, j] @ functionals.T / mass
        noise[:, j] = np.diag(squares) / mass**2
    return moments, noise


def _members(dimension: int, degree: int) -> NDArray[np.bool_]:
    """Which monomials a coordinate is a factor of, shape (d, n)."""
    blocks = []
    for indices in graded_indices(dimension, degree):
        block = np.zeros((dimension, len(indices)), dtype=bool)
        for column in indices.T:
            block[column, np.arange(len(indices))] = True
        blocks.append(block)
    return np.concatenate(blocks, axis=1)
