"""Decompositions of tensors into rank-one terms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.entrywise import EntrywiseTensor
from tensoralg.core.errors import ShapeError
from tensoralg.core.incomplete_tensor import IncompleteSymmetricTensor
from tensoralg.core.monomials import sum_of_powers
from tensoralg.core.reductions import weighted_norm
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import as_values, positive_integer

__all__ = ["SymmetricDecomposition"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class SymmetricDecomposition:
    """A sum of r weighted symmetric powers, ``sum_s weights[s] * points[s]^{(x) m}``.

    Parameters
    ----------
    weights : array_like, shape (r,)
        Real or complex, finite. Copied and made read-only.
    points : array_like, shape (r, n)
        One point per row, real or complex, finite; r may be 0, n is at least 1.
    order : int, optional
        The order m of the tensor that is decomposed, where it is known. The same weights and
        points define tensors of every order; `canonical` needs the one that has to stay.

    Raises
    ------
    ShapeError
        Shapes that do not fit together.
    ValueError
        An unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> D = SymmetricDecomposition([1.0, 2.0], [[1.0, 0.0], [1.0, 1.0]])
    >>> D.rank, D.dimension, D.to_tensor(3).entries.tolist()
    (2, 2, [3.0, 2.0, 2.0, 2.0])
    """

    weights: npt.NDArray[Any]
    points: npt.NDArray[Any]
    order: int | None

    def __init__(
        self, weights: npt.ArrayLike, points: npt.ArrayLike, order: int | None = None
    ) -> None:
        w, u = as_values("weights", weights), as_values("points", points)
        if u.ndim != 2 or w.shape != u.shape[:1] or u.shape[1] < 1:
            raise ShapeError(
                f"weights must have shape (r,) and points (r, n) with n >= 1; "
                f"got {w.shape} and {u.shape}"
            )
        object.__setattr__(self, "weights", w)
        object.__setattr__(self, "points", u)
        object.__setattr__(self, "order", None if order is None else _order(order))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.weights, self.points, self.order)

    def __repr__(self) -> str:
        order = "" if self.order is None else f", order={self.order}"
        return (
            f"SymmetricDecomposition(rank={self.rank}, dimension={self.dimension}{order}, "
            f"dtype={self.dtype})"
        )

    @property
    def rank(self) -> int:
        """Number r of terms."""
        return len(self.weights)

    @property
    def dimension(self) -> int:
        """Number n of coordinates of every point."""
        return int(self.points.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Common dtype of weights and points, that of the tensors they define."""
        return np.result_type(self.weights.dtype, self.points.dtype)

    def to_tensor(self, order: int | None = None) -> SymmetricTensor:
        """Sum the terms.

        Parameters
        ----------
        order : int, optional
            Number m of factors in each power; the decomposition's own order by default.

        Returns
        -------
        SymmetricTensor
            Of order m and dimension n, in the common dtype of weights and points.

        Raises
        ------
        ValueError
            No order is known, or one below 1.

        Examples
        --------
        >>> SymmetricDecomposition([2.0], [[1.0, 3.0]]).to_tensor(2).entries.tolist()
        [2.0, 6.0, 18.0]
        """
        order = self.order if order is None else order
        if order is None:
            raise ValueError("order must be given: this decomposition does not know its own")
        return SymmetricTensor.from_decomposition(self.weights, self.points, order)

    def residual(self, tensor: EntrywiseTensor) -> float:
        """Relative distance to a tensor in the Frobenius norm.

        Parameters
        ----------
        tensor : SymmetricTensor or IncompleteSymmetricTensor
            Of the same dimension, of any order; of an incomplete tensor the known entries count.

        Returns
        -------
        float
            ``||tensor - self|| / ||tensor||`` with multiplicities, in double precision; for a
            zero tensor 0 or infinity.

        Raises
        ------
        ShapeError
            Another dimension.

        Examples
        --------
        >>> D = SymmetricDecomposition([2.0], [[1.0, 3.0]])
        >>> D.residual(D.to_tensor(4))
        0.0
        """
        if isinstance(tensor, SymmetricTensor):
            values = tensor.entries
        elif isinstance(tensor, IncompleteSymmetricTensor):
            values = tensor.values
        else:
            raise TypeError(
                "tensor must be a SymmetricTensor or IncompleteSymmetricTensor; "
                f"got {type(tensor).__name__}"
            )
        if tensor.dimension != self.dimension:
            raise ShapeError(
                f"the decomposition has dimension {self.dimension}, the tensor {tensor.dimension}"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # terms beyond float64: infinite, NaN
            difference = values - sum_of_powers(self.weights, self.points, tensor.indices)
            distance = weighted_norm(difference, tensor.multiplicities)
        norm = tensor.norm()
        if norm == 0.0:
            return 0.0 if distance == 0.0 else float("inf")
        return distance / norm

    def canonical(self, order: int | None = None) -> "SymmetricDecomposition":
        """Sort the terms and fix the signs of their points.

        Parameters
        ----------
        order : int, optional
            The order m of the tensor that must stay the same; the decomposition's own by default.

        Returns
        -------
        SymmetricDecomposition
            Of the same tensor of order m. The leading coordinate of every point (the first of
            largest magnitude) is real and positive, its weight makes up for that, and the terms
            are sorted lexicographically by point, then by weight.

        Notes
        -----
        A sign c moves between point and weight as ``w u^m = w c^m (u / c)^m``, which depends on
        the order: for odd m the weight changes its sign too, for even m it does not. Complex
        points turn by a phase c in the same way. Lengths are left alone. Where no order is known,
        no sign can be changed without changing some tensor: then the terms are only sorted, and
        the tensors of all orders stay the same. Numbers that agree to half their digits are ties,
        so rounding does not decide.

        Examples
        --------
        >>> D = SymmetricDecomposition([1.0, 2.0], [[3.0, 0.0], [0.0, -1.0]]).canonical(3)
        >>> D.weights.tolist(), (D.points + 0.0).tolist()
        ([-2.0, 1.0], [[0.0, 1.0], [3.0, 0.0]])
        """
        m = self.order if order is None else _order(order)
        weights, points = self.weights, self.points
        if m is not None:
            phases = _leading_phases(points)
            points = points / phases[:, None]
            weights = (weights * phases**m).astype(np.result_type(weights, phases))
        keys = np.concatenate([_rounded(points), _rounded(weights[:, None])], axis=1)
        by_key = np.lexsort(keys.T[::-1])
        return SymmetricDecomposition(weights[by_key], points[by_key] + 0, order=m)


def _order(order: int) -> int:
    return positive_integer("order", order)


def _leading_phases(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sign or phase of the first coordinate of (nearly) largest magnitude; 1 for a zero point."""
    magnitudes = np.abs(points)
    largest = magnitudes.max(axis=1, initial=0.0, keepdims=True)
    leading = np.argmax(magnitudes >= (1 - _tie(points)) * largest, axis=1)
    values = np.take_along_axis(points, leading[:, None], axis=1)[:, 0]
    result: npt.NDArray[Any] = np.where(values == 0, 1, np.sign(values)).astype(points.dtype)
    return result


def _rounded(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sorting keys, shape (r, k) or (r, 2k) for complex values: multiples of the tie width."""
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
        values = values.reshape(len(values), 2 * values.shape[1])
    scale = float(np.abs(values).max(initial=0.0))
    return np.round(values.astype(np.float64) / (scale or 1.0) / _tie(values))


def _tie(values: npt.NDArray[Any]) -> float:
    """Numbers this close, relative to the largest, count as equal: half the digits."""
    return float(np.sqrt(np.finfo(values.dtype).eps))
