"""Symmetric tensors of which only some entries are known."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.entrywise import EntrywiseTensor, check_same_space
from tensoralg.core.errors import ShapeError
from tensoralg.core.index_maps import positions_of
from tensoralg.core.indices import (
    IndexArray,
    multiplicities,
    rank_multi_indices,
    square_free_indices,
    unrank_multi_indices,
)
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import as_values, check_range, integer_array, positive_integer

if TYPE_CHECKING:
    from tensoralg.core.decompositions import SymmetricDecomposition

__all__ = ["IncompleteSymmetricTensor"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class IncompleteSymmetricTensor(EntrywiseTensor):
    """The known entries of a symmetric tensor of order m and dimension n.

    Parameters
    ----------
    indices : array_like of int, shape (N, m)
        One known entry per row, its indices from 0 and in any order; each row is sorted on entry,
        the rows stay in their order.
    values : array_like, shape (N,)
        Their values, real or complex, finite. Copied and made read-only.
    order : int
        Number m of indices, at least 1.
    dimension : int
        Number n of values that each index takes, at least 1.

    Raises
    ------
    ShapeError
        Shapes that do not fit together.
    IndexError
        An index outside ``0 .. n-1``.
    ValueError
        An entry that is given twice, an unsupported dtype, a NaN or infinite value (leave unknown
        entries out).

    Notes
    -----
    Norms and inner products run over the known entries, each counted with its multiplicity.

    Examples
    --------
    >>> T = IncompleteSymmetricTensor([[2, 0, 1]], [5.0], order=3, dimension=3)
    >>> T.indices.tolist(), float(T[1, 0, 2]), T.norm() == (6 * 25) ** 0.5
    ([[0, 1, 2]], 5.0, True)
    """

    indices: IndexArray
    values: npt.NDArray[Any]
    order: int
    dimension: int

    def __init__(
        self, indices: npt.ArrayLike, values: npt.ArrayLike, order: int, dimension: int
    ) -> None:
        order = positive_integer("order", order)
        dimension = positive_integer("dimension", dimension)
        rows = integer_array("indices", indices)
        known = as_values("values", values)
        if rows.size == 0 and known.size == 0:
            rows = rows.reshape(0, order)
        if known.ndim != 1 or rows.shape != (len(known), order):
            raise ShapeError(
                f"indices must have shape (N, {order}) and values (N,); "
                f"got {rows.shape} and {known.shape}"
            )
        check_range(rows, dimension)
        rows = np.sort(rows, axis=1)  # also the copy
        _check_distinct(rows, dimension)
        rows.flags.writeable = False
        object.__setattr__(self, "indices", rows)
        object.__setattr__(self, "values", known)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "dimension", dimension)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.indices, self.values, self.order, self.dimension)

    @classmethod
    def distinct(cls, tensor: EntrywiseTensor) -> "IncompleteSymmetricTensor":
        """Keep the entries whose indices are pairwise distinct.

        Parameters
        ----------
        tensor : SymmetricTensor or IncompleteSymmetricTensor
            Of order m and dimension n.

        Returns
        -------
        IncompleteSymmetricTensor
            All C(n, m) of them in lexicographic order, or those that an incomplete tensor knows,
            in its order.

        Examples
        --------
        >>> T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
        >>> IncompleteSymmetricTensor.distinct(T).indices.tolist()
        [[0, 1]]
        """
        if isinstance(tensor, IncompleteSymmetricTensor):
            keep = np.all(np.diff(tensor.indices, axis=1) > 0, axis=1)
            rows, values = tensor.indices[keep], tensor.values[keep]
        elif isinstance(tensor, SymmetricTensor):
            rows = square_free_indices(tensor.dimension, tensor.order)
            values = tensor.entries[rank_multi_indices(rows, tensor.dimension)]
        else:
            raise TypeError(
                "tensor must be a SymmetricTensor or IncompleteSymmetricTensor; got "
                f"{type(tensor).__name__} (SymmetricTensor.from_dense takes dense arrays)"
            )
        return cls(rows, values, tensor.order, tensor.dimension)

    @property
    def multiplicities(self) -> npt.NDArray[Any]:
        """How often every known entry occurs in the dense array, shape (N,)."""
        return multiplicities(self.indices)

    def residual(self, decomposition: "SymmetricDecomposition") -> float:
        """Relative distance to a decomposition over the known entries.

        Parameters
        ----------
        decomposition : SymmetricDecomposition
            Of the same dimension.

        Returns
        -------
        float
            ``||known entries of (self - decomposition)|| / ||known entries of self||`` in the
            Frobenius norm with multiplicities; for a zero tensor 0 or infinity.

        Raises
        ------
        ShapeError
            Another dimension.

        Examples
        --------
        >>> from tensoralg import SymmetricDecomposition
        >>> T = IncompleteSymmetricTensor([[0, 1]], [6.0], order=2, dimension=2)
        >>> T.residual(SymmetricDecomposition([1.0], [[2.0, 3.0]]))
        0.0
        """
        return decomposition.residual(self)

    def lookup(self, indices: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the values of several known entries.

        Parameters
        ----------
        indices : array_like of int, shape (..., m)
            Their indices from 0, each row in any order.

        Returns
        -------
        ndarray, shape (...)
            The values.

        Raises
        ------
        KeyError
            An entry that is not known (named).
        IndexError
            An index outside ``0 .. n-1``, or rows that do not have m indices.

        Examples
        --------
        >>> T = IncompleteSymmetricTensor([[0, 1], [1, 2]], [5.0, 6.0], order=2, dimension=3)
        >>> T.lookup([[2, 1], [1, 0]]).tolist()
        [6.0, 5.0]
        """
        rows = integer_array("indices", indices)
        if rows.shape[-1] != self.order:
            raise IndexError(f"a tensor of order {self.order} takes {self.order} indices per row")
        rows = np.sort(rows, axis=-1)
        return self.values[self._places(rank_multi_indices(rows, self.dimension))]

    def __getitem__(self, index: Any) -> Any:
        ranks = positions_of(index, self.dimension, self.order)
        return self.values[self._places(ranks)]

    def _places(self, ranks: IndexArray) -> IndexArray:
        """Return the places of lexicographic positions among the known entries."""
        known = rank_multi_indices(self.indices, self.dimension)
        by_rank = np.argsort(known)
        # one more place, so that a search past the end stays an index and is seen as missing
        sorted_ranks = np.append(known[by_rank], -1)
        places = np.searchsorted(sorted_ranks[:-1], ranks)
        missing = sorted_ranks[places] != ranks
        if missing.any():
            first = unrank_multi_indices(ranks[missing].flat[0], self.dimension, self.order)
            raise KeyError(f"the entry {tuple(first.tolist())} is not known")
        return by_rank[places]

    def _vector(self) -> npt.NDArray[Any]:
        return self.values

    def _with_vector(self, values: npt.NDArray[Any]) -> "IncompleteSymmetricTensor":
        return IncompleteSymmetricTensor(self.indices, values, self.order, self.dimension)

    def _aligned(self, other: object) -> npt.NDArray[Any] | None:
        if not isinstance(other, SymmetricTensor | IncompleteSymmetricTensor):
            return None
        check_same_space(self, other)
        ranks = rank_multi_indices(self.indices, self.dimension)
        if isinstance(other, SymmetricTensor):
            return other.entries[ranks]
        return other.values[other._places(ranks)]


def _check_distinct(rows: IndexArray, dimension: int) -> None:
    ranks = rank_multi_indices(rows, dimension)
    by_rank = np.argsort(ranks, kind="stable")
    repeats = np.nonzero(np.diff(ranks[by_rank]) == 0)[0]
    if len(repeats):
        first, second = by_rank[repeats[0]], by_rank[repeats[0] + 1]
        raise ValueError(
            f"indices must name every entry once; row {second} repeats row {first}: "
            f"{rows[second].tolist()}"
        )
