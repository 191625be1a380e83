"""What tensors stored as a vector of distinct entries have in common: sums and scalar multiples."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError
from tensoralg.core.reductions import weighted_norm
from tensoralg.core.validation import as_scalar, computing_dtype

__all__ = ["EntrywiseTensor", "check_same_space"]


class EntrywiseTensor(ABC):
    """A symmetric tensor with one stored value for each distinct entry.

    Norms and inner products count every stored entry with its multiplicity, so they equal the
    sums over the dense array (over the known entries, where some are not). They are accumulated
    in double precision.
    """

    __slots__ = ()

    order: int
    dimension: int

    # numpy scalars and arrays leave `scalar * tensor` to this class
    __array_ufunc__: ClassVar[None] = None
    # a subscript takes `order` indices, so the old iteration protocol would give nonsense
    __iter__: ClassVar[None] = None

    @property
    @abstractmethod
    def multiplicities(self) -> npt.NDArray[Any]:
        """How often every stored entry occurs in the dense array."""

    @abstractmethod
    def _vector(self) -> npt.NDArray[Any]:
        """Return the stored values."""

    @abstractmethod
    def _with_vector(self, values: npt.NDArray[Any]) -> Self:
        """Return a tensor with other values at the same entries."""

    @abstractmethod
    def _aligned(self, other: object) -> npt.NDArray[Any] | None:
        """Return the other's values at the stored entries, or None for a foreign type."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values: float32, float64, complex64 or complex128."""
        return self._vector().dtype

    def inner(self, other: "EntrywiseTensor") -> float | complex:
        """Frobenius inner product, equal to that of the dense arrays.

        Parameters
        ----------
        other : SymmetricTensor or IncompleteSymmetricTensor
            Of the same order and dimension. An incomplete tensor sums over its known entries
            and accepts every tensor that knows these.

        Returns
        -------
        float or complex
            ``sum(conj(self) * other)`` over all orders of the indices (`numpy.vdot`'s convention).

        Raises
        ------
        ShapeError
            Another order or dimension.

        Examples
        --------
        >>> from tensoralg import SymmetricTensor
        >>> T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
        >>> T.inner(T)
        34.0
        """
        values = self._required(other)
        weighted = self._vector().astype(computing_dtype(self.dtype)) * self.multiplicities
        result: float | complex = np.vdot(weighted, values).item()
        return result

    def norm(self) -> float:
        """Frobenius norm, equal to that of the dense array (of its known entries).

        Returns
        -------
        float
            Computed without overflow or underflow of the squares.

        Examples
        --------
        >>> from tensoralg import SymmetricTensor
        >>> SymmetricTensor([0.0, 1.0, 0.0], 2, 2).norm() == 2**0.5
        True
        """
        return weighted_norm(self._vector(), self.multiplicities)

    def allclose(self, other: "EntrywiseTensor", *, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Compare entry by entry, as `numpy.allclose` does.

        Parameters
        ----------
        other : SymmetricTensor or IncompleteSymmetricTensor
            Of the same order and dimension, as in `inner`.
        rtol, atol : float
            Relative and absolute tolerance.

        Returns
        -------
        bool
            Whether ``|self - other| <= atol + rtol * |other|`` holds everywhere.

        Raises
        ------
        ShapeError
            Another order or dimension.

        Examples
        --------
        >>> from tensoralg import SymmetricTensor
        >>> T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
        >>> T.allclose(T * (1 + 1e-9))
        True
        """
        values = self._required(other)
        return bool(np.allclose(self._vector(), values, rtol=rtol, atol=atol))

    def __add__(self, other: object) -> Self:
        values = self._aligned(other)
        return NotImplemented if values is None else self._with_vector(self._vector() + values)

    def __sub__(self, other: object) -> Self:
        values = self._aligned(other)
        return NotImplemented if values is None else self._with_vector(self._vector() - values)

    def __mul__(self, other: Any) -> Self:
        scalar = as_scalar(other)
        return NotImplemented if scalar is None else self._with_vector(self._vector() * scalar)

    def __rmul__(self, other: Any) -> Self:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Self:
        scalar = as_scalar(other)
        if scalar is None:
            return NotImplemented
        if scalar == 0:
            raise ZeroDivisionError("division of a tensor by zero")
        return self._with_vector(self._vector() / scalar)

    def __neg__(self) -> Self:
        return self._with_vector(-self._vector())

    def __pos__(self) -> Self:
        return self

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(order={self.order}, dimension={self.dimension}, dtype={self.dtype})"

    def _required(self, other: object) -> npt.NDArray[Any]:
        values = self._aligned(other)
        if values is None:
            raise TypeError(
                f"a {type(self).__name__} cannot be compared with a {type(other).__name__}"
            )
        return values


def check_same_space(first: EntrywiseTensor, second: EntrywiseTensor) -> None:
    """Raise a ShapeError unless two tensors agree in order and dimension.

    Parameters
    ----------
    first, second : SymmetricTensor or IncompleteSymmetricTensor
        The tensors.

    Raises
    ------
    ShapeError
        They differ; both are named.

    Examples
    --------
    >>> from tensoralg import SymmetricTensor
    >>> check_same_space(SymmetricTensor([1], 3, 1), SymmetricTensor([2], 3, 1))
    """
    if (first.order, first.dimension) != (second.order, second.dimension):
        raise ShapeError(f"tensors differ in order or dimension: {first!r} and {second!r}")
