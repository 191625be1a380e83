"""What tensor trains of tensors and of matrices have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import array_api_compat

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_products import as_matching_arrays
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
from tensoralg.core.tensor_train_unfoldings import times_power_of_two, unit_scale
from tensoralg.core.validation import as_scalar, nonnegative_integer

__all__ = ["TrainOfCores", "checked_cores", "common_cores"]


class TrainOfCores(ABC):
    """Cores that are multiplied along their ranks, whatever their other axes mean.

    Sums and products have exact, larger ranks; `round` makes them small again.
    """

    __slots__ = ()

    cores: tuple[Any, ...]

    # numpy scalars and arrays leave `scalar * train` to this class
    __array_ufunc__: ClassVar[None] = None

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
            All cores but the last are left-orthogonal. Without any limit only what is not above
            the rounding error of the dtype is dropped. Ranks stay at least 1.

        Raises
        ------
        ShapeError
            A wrong number of ranks.
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
            after k right unfoldings with orthonormal rows. Ranks become smaller where a core
            cannot fill them.

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
        cores[center] = times_power_of_two(xp, cores[center], exponent)
        return type(self)(cores)

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


def common_cores(first: Sequence[Any], second: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Bring the cores of two trains to one dtype.

    Parameters
    ----------
    first, second : sequence of array
        The cores.

    Returns
    -------
    tuple of two lists of array
        Those whose dtype fits are not copied.

    Raises
    ------
    TypeError
        They are of different libraries.

    Examples
    --------
    >>> import numpy as np
    >>> one = [np.ones((1, 2, 1), np.float32)]
    >>> common_cores(one, [np.ones((1, 2, 1))])[0][0].dtype
    dtype('float64')
    """
    xp, other = (array_api_compat.array_namespace(cores[0]) for cores in (first, second))
    if xp is not other:
        raise TypeError(
            "the trains hold arrays of different libraries; convert one of the two first"
        )
    common = xp.result_type(first[0], second[0])
    a, b = ([xp.astype(core, common, copy=False) for core in cores] for cores in (first, second))
    return a, b


def checked_cores(cores: Sequence[Any], axes: int, form: str) -> tuple[Any, ...]:
    """Copy cores into arrays of the one library they share, and check that they fit together.

    Parameters
    ----------
    cores : sequence of array_like
        At least one.
    axes : int
        Number of axes of every core.
    form : str
        What their shapes mean, for the messages.

    Returns
    -------
    tuple of array
        In their common dtype; numpy arrays are read-only.

    Raises
    ------
    ShapeError
        No core, one of another number of axes, ranks that differ or are 0, or ends that are not 1.
    TypeError
        Arrays of different libraries.
    ValueError
        An unsupported dtype, a NaN or infinite value.

    Examples
    --------
    >>> checked_cores([[[[1.0], [2.0]]]], 3, "(r, n, r')")[0].shape
    (1, 2, 1)
    """
    given = list(cores)
    if not given:
        raise ShapeError("cores must hold at least one core; got none")
    names = [f"cores[{k}]" for k in range(len(given))]
    _, arrays = as_matching_arrays(names, given, allow_complex=True)
    rank = 1
    for name, core in zip(names, arrays, strict=True):
        if core.ndim != axes:
            raise ShapeError(f"{name} must have shape {form}; got {tuple(core.shape)}")
        if core.shape[0] != rank or core.shape[-1] < 1:
            raise ShapeError(
                f"{name} must have shape {form} with the first rank {rank} and the last at least "
                f"1; got {tuple(core.shape)}"
            )
        rank = int(core.shape[-1])
    if rank != 1:
        raise ShapeError(f"{names[-1]} must have 1 as its last rank; got {rank}")
    return tuple(arrays)
