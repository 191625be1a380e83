"""What tensor trains of tensors and of matrices have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import array_api_compat

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_algebra import (
    bond_singular_values,
    left_orthogonalize,
    right_orthogonalize,
    round_cores,
    train_norm,
)
from tensoralg.core.tensor_train_arithmetic import (
    add_cores,
    inner_product,
    multiply_cores,
    normalized_cores,
)
from tensoralg.core.tensor_train_border import common_cores
from tensoralg.core.tensor_train_unfoldings import share_exponent, times_power_of_two, unit_scale
from tensoralg.core.validation import as_scalar, nonnegative_integer

__all__ = ["TrainOfCores"]


class TrainOfCores(ABC):
    """Cores that are multiplied along their ranks, whatever their other axes mean.

    Sums and products have exact, larger ranks; `round` makes them small again.
    """

    __slots__ = ()

    cores: tuple[Any, ...]

    # numpy scalars and arrays leave `scalar * train` to this class
    __array_ufunc__: ClassVar[None] = None
    # a subscript takes all d indices, so the old iteration protocol would give nonsense
    __iter__: ClassVar[None] = None

    @abstractmethod
    def __init__(self, cores: Sequence[Any]) -> None:
        """Check and copy the cores."""

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.cores,)

    @property
    def order(self) -> int:
        """Number d of cores."""
        return len(self.cores)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The d + 1 ranks of the bonds; the first and the last are 1."""
        return (1, *(int(core.shape[-1]) for core in self.cores))

    @property
    def dtype(self) -> Any:
        """Common dtype of the cores."""
        return self.cores[0].dtype

    @property
    def parameters(self) -> int:
        """Number of entries of all cores."""
        return sum(int(array_api_compat.size(core) or 0) for core in self.cores)

    def norm(self) -> float:
        """Frobenius norm, from orthogonal factors of the cores.

        Returns
        -------
        float
            In double precision. Terms that cancel leave rounding errors of their sizes. Infinite
            where it is beyond double precision.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> round(TensorTrain([[[[3.0], [4.0]]], [[[1.0]]]]).norm(), 12)
        5.0
        """
        return train_norm(self.cores)

    def dot(self, other: Self) -> float | complex:
        """Inner product, equal to that of the dense arrays.

        Parameters
        ----------
        other : TensorTrain or TensorTrainMatrix
            Of the same type, shape and library.

        Returns
        -------
        float or complex
            ``sum(conj(self) * other)`` in double precision (`numpy.vdot`'s convention).

        Raises
        ------
        ShapeError
            Another shape.
        TypeError
            Another type or library.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> T = TensorTrain([[[[3.0], [4.0]]], [[[1.0], [2.0]]]])
        >>> T.dot(T)
        125.0
        """
        return inner_product(*self._matched(other))

    def singular_values(self) -> tuple[Any, ...]:
        """Singular values of the d - 1 unfoldings, one descending array for each inner bond.

        Returns
        -------
        tuple of array
            What `round` cuts.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> [s.tolist() for s in TensorTrain.from_dense([[4.0, 0.0], [0.0, 3.0]]).singular_values()]
        [[4.0, 3.0]]
        """
        return tuple(bond_singular_values(self.cores))

    def round(
        self,
        *,
        rtol: float | None = None,
        ranks: int | Sequence[int] | None = None,
        max_parameters: int | None = None,
    ) -> Self:
        """Approximate by smaller ranks (TT-rounding).

        Parameters
        ----------
        rtol : float, optional
            Largest error in the Frobenius norm, relative to `norm`.
        ranks : int or sequence of int, optional
            Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.
        max_parameters : int, optional
            Largest number of entries of all cores.

        Returns
        -------
        TensorTrain or TensorTrainMatrix
            All cores but the last are left-orthogonal. Without a tolerance only what cannot be
            told from rounding errors of the dtype is dropped. Ranks stay at least 1.

        Raises
        ------
        ShapeError
            A wrong number of ranks.
        TypeError
            A tolerance that is no number, or a number of parameters that is no integer.
        ValueError
            A negative or NaN tolerance, ranks below 1, or a number of parameters that not even
            ranks 1 meet.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> T = TensorTrain([[[[3.0], [4.0]]], [[[1.0], [2.0]]]])
        >>> (T + T).ranks, (T + T).round().ranks
        ((1, 2, 1), (1, 1, 1))
        """
        cores, _ = round_cores(self.cores, rtol=rtol, ranks=ranks, max_parameters=max_parameters)
        return type(self)(cores)

    def orthogonalize(self, k: int) -> Self:
        """Move the whole norm into one core.

        Parameters
        ----------
        k : int
            Number of that core, from 0.

        Returns
        -------
        TensorTrain or TensorTrainMatrix
            The same tensor; cores before k have left unfoldings with orthonormal columns, cores
            after k right unfoldings with orthonormal rows (up to a power of two, for a norm at
            the ends of the dtype's range). Ranks become smaller where a core cannot fill them.

        Raises
        ------
        TypeError
            `k` is no integer.
        ValueError
            There is no such core.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> T = TensorTrain([[[[3.0], [4.0]]], [[[1.0], [2.0]]]]).orthogonalize(0)
        >>> abs(T.cores[1]).round(3).ravel().tolist()
        [0.447, 0.894]
        """
        center = nonnegative_integer("k", k)
        if center >= self.order:
            raise ValueError(f"k must lie in 0 .. {self.order - 1}; got {center}")
        xp = self._namespace()
        if any(0 in core.shape for core in self.cores):
            return self
        cores, exponent = normalized_cores(xp, self.cores)
        cores = right_orthogonalize(left_orthogonalize(cores, center), center)
        shares = share_exponent(xp, self.dtype, exponent, self.order, center)
        return type(self)(
            [times_power_of_two(xp, *pair) for pair in zip(cores, shares, strict=True)]
        )

    def allclose(self, other: Self, *, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Compare two trains in the Frobenius norm.

        Parameters
        ----------
        other : TensorTrain or TensorTrainMatrix
            Of the same type, shape and library.
        rtol, atol : float
            Relative and absolute tolerance.

        Returns
        -------
        bool
            Whether ``norm(self - other) <= atol + rtol * norm(other)``.

        Raises
        ------
        ShapeError
            Another shape.
        TypeError
            Another type or library.

        Examples
        --------
        >>> from tensoralg import TensorTrain
        >>> T = TensorTrain([[[[3.0], [4.0]]], [[[1.0], [2.0]]]])
        >>> T.allclose(T.orthogonalize(1))
        True
        """
        own, its = self._matched(other)
        return (
            train_norm(add_cores(own, (type(self)(its) * -1).cores)) <= atol + rtol * other.norm()
        )

    def __add__(self, other: object) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self)(add_cores(*self._matched(other)))

    def __sub__(self, other: object) -> Self:
        return self + (-other) if isinstance(other, type(self)) else NotImplemented

    def __mul__(self, other: Any) -> Self:
        if isinstance(other, type(self)):  # entry by entry, as for arrays
            return type(self)(multiply_cores(*self._matched(other)))
        scalar = as_scalar(other)
        return NotImplemented if scalar is None else self._scaled(scalar)

    def __rmul__(self, other: Any) -> Self:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Self:
        scalar = as_scalar(other)
        if scalar is None:
            return NotImplemented
        if scalar == 0:
            raise ZeroDivisionError("division of a tensor train by zero")
        return self._scaled(scalar, divide=True)

    def __neg__(self) -> Self:
        return self * -1

    def __pos__(self) -> Self:
        return self

    def _namespace(self) -> Any:
        """Array namespace of the cores."""
        return array_api_compat.array_namespace(self.cores[0])

    def _scaled(self, scalar: Any, *, divide: bool = False) -> Self:
        """Multiply the smallest core with a number, or divide the largest: nothing overflows."""
        xp = self._namespace()
        number = scalar.item() if hasattr(scalar, "item") else scalar
        exponents = [unit_scale(xp, core)[1] for core in self.cores]
        grows = (abs(number) > 1) != divide
        k = exponents.index(min(exponents) if grows else max(exponents))
        cores = list(self.cores)
        if isinstance(number, complex) and not xp.isdtype(self.dtype, "complex floating"):
            wide = xp.complex64 if self.dtype == xp.float32 else xp.complex128
            cores[k] = xp.astype(cores[k], wide)
        cores[k] = cores[k] / number if divide else cores[k] * number
        return type(self)(cores)

    def _matched(self, other: Any) -> tuple[list[Any], list[Any]]:
        """Return the cores of both in a common dtype, or raise unless they fit entry by entry."""
        if not isinstance(other, type(self)):
            raise TypeError(f"other must be a {type(self).__name__}; got {type(other).__name__}")
        own, its = ([core.shape[1:-1] for core in train.cores] for train in (self, other))
        if own != its:
            raise ShapeError(f"other must have the modes of {self!r}; got {other!r}")
        return common_cores(self.cores, other.cores)
