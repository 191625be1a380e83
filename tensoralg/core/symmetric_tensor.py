"""Symmetric tensors, stored as one entry for each sorted multi-index."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.entrywise import EntrywiseTensor, check_same_space
from tensoralg.core.errors import NotSymmetricError, ShapeError
from tensoralg.core.index_maps import (
    catalecticant_positions,
    dense_values,
    insertion_positions,
    listed_multiplicities,
    positions_of,
)
from tensoralg.core.indices import IndexArray, multi_indices, number_of_multi_indices
from tensoralg.core.monomials import evaluate_monomials, sum_of_powers
from tensoralg.core.reductions import average_over_orders
from tensoralg.core.validation import (
    as_values,
    computing_dtype,
    nonnegative_integer,
    positive_integer,
)

__all__ = ["SymmetricTensor"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class SymmetricTensor(EntrywiseTensor):
    """A symmetric tensor of order m and dimension n.

    Parameters
    ----------
    entries : array_like, shape (C(n+m-1, m),)
        One value for each sorted multi-index ``i1 <= .. <= im`` (from 0), lexicographically.
        Copied and made read-only; real or complex, finite. Integers become float64.
    order : int
        Number m of indices, at least 1.
    dimension : int
        Number n of values that each index takes, at least 1.

    Raises
    ------
    ShapeError
        Another number of entries than `order` and `dimension` ask for.
    ValueError
        An unsupported dtype, a NaN or infinite entry, `order` or `dimension` below 1.

    Notes
    -----
    Norms and inner products count every entry with its multiplicity, so they equal those of the
    dense array. They are accumulated in double precision.

    Examples
    --------
    >>> T = SymmetricTensor([1, 2, 3, 4], order=3, dimension=2)
    >>> float(T[1, 0, 1]), T.multiplicities.tolist()
    (3.0, [1, 3, 3, 1])
    """

    entries: npt.NDArray[Any]
    order: int
    dimension: int

    def __init__(self, entries: npt.ArrayLike, order: int, dimension: int) -> None:
        order = positive_integer("order", order)
        dimension = positive_integer("dimension", dimension)
        values = as_values("entries", entries)
        count = number_of_multi_indices(dimension, order)
        if values.shape != (count,):
            raise ShapeError(
                f"entries must have shape ({count},) for order={order}, dimension={dimension}; "
                f"got {values.shape}"
            )
        object.__setattr__(self, "entries", values)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "dimension", dimension)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.entries, self.order, self.dimension)

    def __repr__(self) -> str:
        return (
            f"SymmetricTensor(order={self.order}, dimension={self.dimension}, dtype={self.dtype})"
        )

    @classmethod
    def from_dense(
        cls, array: npt.ArrayLike, *, symmetrize: bool = False, rtol: float = 1e-10
    ) -> "SymmetricTensor":
        """Take the entries of a dense symmetric array.

        Parameters
        ----------
        array : array_like, shape (n,) * m
            Real or complex, m at least 1.
        symmetrize : bool, default False
            Average over all orders of the indices instead of asking for symmetry.
        rtol : float, default 1e-10
            Largest accepted asymmetry, relative to the largest magnitude.

        Returns
        -------
        SymmetricTensor
            Within the tolerance, the entry at the sorted index stands for all its orders.

        Raises
        ------
        ShapeError
            Sides of different lengths, or no axis.
        NotSymmetricError
            An asymmetry beyond the tolerance.
        ValueError
            A negative or NaN `rtol`.

        Examples
        --------
        >>> SymmetricTensor.from_dense([[1.0, 2.0], [2.0, 5.0]]).entries.tolist()
        [1.0, 2.0, 5.0]
        """
        values = as_values("array", array)
        if values.ndim == 0 or len(set(values.shape)) != 1 or values.size == 0:
            raise ShapeError(f"array must have shape (n,) * m with m, n >= 1; got {values.shape}")
        m, n = values.ndim, values.shape[0]
        if symmetrize:
            return cls(average_over_orders(values).astype(values.dtype), m, n)
        if not rtol >= 0:
            raise ValueError(f"rtol must be a number >= 0; got {rtol!r}")
        tolerance = rtol * float(np.abs(values).max())
        for axis in range(m - 1):  # neighbouring swaps generate all permutations
            difference = np.abs(values - values.swapaxes(axis, axis + 1)).max()
            if difference > tolerance:
                raise NotSymmetricError(
                    f"array is not symmetric in axes {axis} and {axis + 1}: entries differ by "
                    f"{difference:.3g}, the tolerance is {tolerance:.3g}; symmetrize=True averages"
                )
        return cls(values[tuple(multi_indices(n, m).T)], m, n)

    @classmethod
    def from_function(
        cls, f: Callable[..., complex], order: int, dimension: int
    ) -> "SymmetricTensor":
        """Evaluate a function at every sorted multi-index.

        Parameters
        ----------
        f : callable
            ``f(i1, .., im)`` gives one number; called once for each ``i1 <= .. <= im``.
        order, dimension : int
            Number m of indices and number n of their values.

        Returns
        -------
        SymmetricTensor
            With entry ``f(i1, .., im)`` at every order of the indices.

        Examples
        --------
        >>> SymmetricTensor.from_function(lambda i, j: 1 / (1 + i + j), 2, 2).entries.tolist()
        [1.0, 0.5, 0.3333333333333333]
        """
        order = positive_integer("order", order)
        dimension = positive_integer("dimension", dimension)
        rows = multi_indices(dimension, order).tolist()
        return cls(np.array([f(*row) for row in rows]), order, dimension)

    @classmethod
    def from_decomposition(
        cls, weights: npt.ArrayLike, points: npt.ArrayLike, order: int
    ) -> "SymmetricTensor":
        """Sum weighted symmetric powers of points.

        Parameters
        ----------
        weights : array_like, shape (r,)
            Real or complex.
        points : array_like, shape (r, n)
            One point per row, real or complex.
        order : int
            Number m of factors in each power.

        Returns
        -------
        SymmetricTensor
            ``sum_s weights[s] * points[s]^{(x) m}`` in the common dtype of both.

        Raises
        ------
        ShapeError
            The shapes do not fit.

        Examples
        --------
        >>> SymmetricTensor.from_decomposition([1, 1], [[1, 0], [1, 1]], 2).entries.tolist()
        [2.0, 1.0, 1.0]
        """
        order = positive_integer("order", order)
        w, u = as_values("weights", weights), as_values("points", points)
        if u.ndim != 2 or w.shape != u.shape[:1]:
            raise ShapeError(
                f"weights must have shape (r,) and points (r, n); got {w.shape} and {u.shape}"
            )
        n = positive_integer("dimension", u.shape[1])
        entries = sum_of_powers(w, u, multi_indices(n, order))
        return cls(entries.astype(np.result_type(w.dtype, u.dtype)), order, n)

    @property
    def indices(self) -> IndexArray:
        """Sorted multi-index of every entry, shape (C(n+m-1, m), m), read-only."""
        return multi_indices(self.dimension, self.order)

    @property
    def multiplicities(self) -> npt.NDArray[Any]:
        """How often every entry occurs in the dense array, shape (C(n+m-1, m),)."""
        return listed_multiplicities(self.dimension, self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.entries[positions_of(index, self.dimension, self.order)]

    def to_dense(self) -> npt.NDArray[Any]:
        """Return the dense array.

        Returns
        -------
        ndarray, shape (n,) * m
            A new, writable array of the same dtype.

        Raises
        ------
        ProblemTooLargeError
            More than 2**30 numbers.

        Examples
        --------
        >>> SymmetricTensor([1.0, 2.0, 5.0], 2, 2).to_dense().tolist()
        [[1.0, 2.0], [2.0, 5.0]]
        """
        return dense_values(self.entries, self.dimension, self.order)

    def contract(
        self, x: npt.ArrayLike, times: int | None = None
    ) -> "SymmetricTensor | float | complex":
        """Contract with a vector, T x^times, without forming the dense tensor.

        Parameters
        ----------
        x : array_like, shape (n,)
            Real or complex; not conjugated.
        times : int, optional
            Number of indices that are contracted, 0 to m; all of them by default.

        Returns
        -------
        float or complex
            ``sum T[i1, .., im] x[i1] .. x[im]`` where all indices are contracted.
        SymmetricTensor
            Of order m - times otherwise.

        Raises
        ------
        ShapeError
            `x` has another shape.
        ValueError
            `times` outside 0 .. m.

        Examples
        --------
        >>> T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
        >>> T.contract([1.0, 1.0]), T.contract([1.0, 1.0], 1).entries.tolist()
        (10.0, [3.0, 7.0])
        """
        vector = as_values("x", x)
        if vector.shape != (self.dimension,):
            raise ShapeError(f"x must have shape ({self.dimension},); got {vector.shape}")
        m = self.order
        steps = m if times is None else nonnegative_integer("times", times)
        if steps > m:
            raise ValueError(f"times must lie in 0 .. {m}; got {steps}")
        dtype = np.result_type(self.dtype, vector.dtype)
        values = self.entries.astype(computing_dtype(dtype))
        vector = vector.astype(computing_dtype(dtype))
        if steps == m:
            powers = evaluate_monomials(vector[None, :], self.indices)[0]
            scalar: float | complex = np.dot(values, powers * self.multiplicities).item()
            return scalar
        for k in range(m, m - steps, -1):
            values = vector @ values[insertion_positions(self.dimension, k)]
        return SymmetricTensor(values.astype(dtype), m - steps, self.dimension)

    def catalecticant(self, k: int) -> npt.NDArray[Any]:
        """Return the k-th catalecticant matrix (the flattening without repeated rows).

        Parameters
        ----------
        k : int
            Number of indices that number the rows, 0 to m.

        Returns
        -------
        ndarray, shape (C(n+k-1, k), C(n+m-k-1, m-k))
            Entry (I, J) is the tensor's entry at I and J together. Its rank is at most the
            symmetric rank of the tensor.

        Raises
        ------
        ValueError
            `k` outside 0 .. m.

        Examples
        --------
        >>> SymmetricTensor([1.0, 2.0, 3.0, 4.0], 3, 2).catalecticant(1).tolist()
        [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
        """
        k = nonnegative_integer("k", k)
        if k > self.order:
            raise ValueError(f"k must lie in 0 .. {self.order}; got {k}")
        positions = catalecticant_positions(self.dimension, self.order, k)
        return np.ascontiguousarray(self.entries[positions])

    def _vector(self) -> npt.NDArray[Any]:
        return self.entries

    def _with_vector(self, values: npt.NDArray[Any]) -> "SymmetricTensor":
        return SymmetricTensor(values, self.order, self.dimension)

    def _aligned(self, other: object) -> npt.NDArray[Any] | None:
        if not isinstance(other, SymmetricTensor):
            return None
        check_same_space(self, other)
        return other.entries
