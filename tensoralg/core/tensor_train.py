"""Tensor trains: tensors and matrices as products of small cores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_products import as_data
from tensoralg.core.tensor_train_algebra import contract_cores, contract_matrix_cores
from tensoralg.core.tensor_train_arithmetic import (
    matrix_times_cores,
    matrix_times_vectors,
    normalized_cores,
)
from tensoralg.core.tensor_train_base import TrainOfCores
from tensoralg.core.tensor_train_border import (
    checked_cores,
    common_cores,
    dense_operand,
    entry_positions,
)
from tensoralg.core.tensor_train_decomposition import dense_to_cores, dense_to_matrix_cores
from tensoralg.core.tensor_train_unfoldings import times_power_of_two
from tensoralg.core.validation import nonnegative_integer

__all__ = ["TensorTrain", "TensorTrainMatrix"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class TensorTrain(TrainOfCores):
    """A tensor whose entries are products of matrices, one for the value of each index.

    ``T[i_1, .., i_d] = cores[0][:, i_1, :] @ .. @ cores[d-1][:, i_d, :]``: integers or arrays of
    integers, one for each mode, give entries. With the operators ``+ - * /`` trains of one shape
    are added and multiplied entry by entry.

    Parameters
    ----------
    cores : sequence of array_like, shapes (r_{k-1}, n_k, r_k)
        Real or complex, finite, of one array library, at least one. The first and the last rank
        are 1, no rank is 0; a mode may be empty. Copied; numpy arrays become read-only.

    Raises
    ------
    ShapeError
        Cores that do not fit together.
    TypeError
        Arrays of different libraries.
    ValueError
        An unsupported dtype, a NaN or infinite value.

    References
    ----------
    .. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011).

    Examples
    --------
    >>> T = TensorTrain([[[[1.0], [2.0]]], [[[3.0], [4.0]]]])
    >>> T.shape, T.ranks, T.to_dense().tolist()
    ((2, 2), (1, 1, 1), [[3.0, 4.0], [6.0, 8.0]])
    >>> T[1, [0, 1]].tolist()
    [6.0, 8.0]
    """

    cores: tuple[Any, ...]

    def __init__(self, cores: Sequence[Any]) -> None:
        object.__setattr__(self, "cores", checked_cores(cores, 3, "(r_{k-1}, n_k, r_k)"))

    def __repr__(self) -> str:
        return f"TensorTrain(shape={self.shape}, ranks={self.ranks}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> Any:
        xp = self._namespace()
        positions, form = entry_positions(index, self.shape)
        cores, exponent = normalized_cores(xp, self.cores)
        device = array_api_compat.device(cores[0])
        product = xp.ones((len(positions[0]), 1, 1), dtype=self.dtype, device=device)
        for core, values in zip(cores, positions, strict=True):
            chosen = xp.take(core, xp.asarray(values, device=device), axis=1)
            product = product @ xp.permute_dims(chosen, (1, 0, 2))
        entries = xp.reshape(times_power_of_two(xp, product, exponent), form)
        return entries if form else entries[()]  # a number of numpy's, not an array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(int(core.shape[1]) for core in self.cores)

    @classmethod
    def from_dense(
        cls, array: Any, *, rtol: float | None = None, ranks: int | Sequence[int] | None = None
    ) -> "TensorTrain":
        """Decompose a dense array (TT-SVD [1]_).

        Parameters
        ----------
        array : array_like, shape (n_1, .., n_d)
            Real or complex, finite, with at least one axis.
        rtol : float, optional
            Largest error in the Frobenius norm, relative to the array; it is spent where it frees
            most entries.
        ranks : int or sequence of int, optional
            Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.

        Returns
        -------
        TensorTrain
            In the array's library and dtype (integers become float64); all cores but the last are
            left-orthogonal. Without a tolerance only what cannot be told from rounding errors of
            the dtype is dropped. With ranks the error is at most ``sqrt(d - 1)`` times the best.

        Raises
        ------
        ShapeError
            A number instead of an array, or a wrong number of ranks.
        ValueError
            An unsupported dtype, a NaN or infinite value, a negative tolerance, ranks below 1.

        References
        ----------
        .. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011),
           algorithm 1.

        Examples
        --------
        >>> import numpy as np
        >>> i, j, k = np.ogrid[:4, :5, :6]
        >>> TensorTrain.from_dense(i + j + k).ranks
        (1, 2, 2, 1)
        """
        data = dense_operand("array", array)
        if data.ndim == 0:
            raise ShapeError("array must have at least one axis; got a single number")
        return cls(dense_to_cores(data, rtol=rtol, ranks=ranks))

    def to_dense(self) -> Any:
        """Multiply the cores.

        Returns
        -------
        array, shape `shape`
            In the cores' dtype and library. Entries beyond the dtype's range are infinite.

        Examples
        --------
        >>> TensorTrain([[[[2.0], [3.0]]]]).to_dense().tolist()
        [2.0, 3.0]
        """
        xp = self._namespace()
        cores, exponent = normalized_cores(xp, self.cores)
        return times_power_of_two(xp, contract_cores(cores), exponent)


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class TensorTrainMatrix(TrainOfCores):
    """A matrix whose rows and columns are split into modes, as a train with both in every core.

    ``A[(i_1 .. i_d), (j_1 .. j_d)] = cores[0][:, i_1, j_1, :] @ .. @ cores[d-1][:, i_d, j_d, :]``,
    the first mode varying slowest. ``A @ x`` multiplies with a vector, with the columns of a
    matrix, with a `TensorTrain` or another `TensorTrainMatrix`; ``+ - * /`` work entry by entry.

    Parameters
    ----------
    cores : sequence of array_like, shapes (r_{k-1}, rows_k, columns_k, r_k)
        Real or complex, finite, of one array library, at least one. The first and the last rank
        are 1, no rank is 0; a mode may be empty. Copied; numpy arrays become read-only.

    Raises
    ------
    ShapeError
        Cores that do not fit together.
    TypeError
        Arrays of different libraries.
    ValueError
        An unsupported dtype, a NaN or infinite value.

    References
    ----------
    .. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011),
       section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> A = TensorTrainMatrix([np.eye(2)[None, :, :, None], np.ones((1, 1, 2, 1))])
    >>> A.shape, (A @ [1.0, 2.0, 3.0, 4.0]).tolist()
    ((2, 4), [3.0, 7.0])
    """

    cores: tuple[Any, ...]

    def __init__(self, cores: Sequence[Any]) -> None:
        form = "(r_{k-1}, rows_k, columns_k, r_k)"
        object.__setattr__(self, "cores", checked_cores(cores, 4, form))

    def __repr__(self) -> str:
        return (
            f"TensorTrainMatrix(row_shape={self.row_shape}, column_shape={self.column_shape}, "
            f"ranks={self.ranks}, dtype={self.dtype})"
        )

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Numbers of values of the modes of the rows."""
        return tuple(int(core.shape[1]) for core in self.cores)

    @property
    def column_shape(self) -> tuple[int, ...]:
        """Numbers of values of the modes of the columns."""
        return tuple(int(core.shape[2]) for core in self.cores)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns of the matrix."""
        return math.prod(self.row_shape), math.prod(self.column_shape)

    @property
    def T(self) -> "TensorTrainMatrix":  # noqa: N802 - as of every array
        """The transposed matrix."""
        return self.transpose()

    @classmethod
    def from_dense(
        cls,
        array: Any,
        *,
        row_shape: Sequence[int],
        column_shape: Sequence[int],
        rtol: float | None = None,
        ranks: int | Sequence[int] | None = None,
    ) -> "TensorTrainMatrix":
        """Decompose a dense matrix (TT-SVD with the modes of rows and columns paired).

        Parameters
        ----------
        array : array_like, shape (prod(row_shape), prod(column_shape))
            Real or complex, finite.
        row_shape, column_shape : sequence of int
            The modes into which rows and columns are split, the slowest first; equally many.
            `tensoralg.core.tensor_train_shapes.plan_shape` finds balanced ones.
        rtol : float, optional
            Largest error in the Frobenius norm, relative to the matrix.
        ranks : int or sequence of int, optional
            Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.

        Returns
        -------
        TensorTrainMatrix
            In the array's library and dtype, as from `TensorTrain.from_dense`.

        Raises
        ------
        ShapeError
            Modes that do not multiply to the matrix's shape, or a wrong number of ranks.
        ValueError
            An unsupported dtype, a NaN or infinite value, a negative tolerance, ranks below 1.

        Examples
        --------
        >>> import numpy as np
        >>> A = np.kron([[1.0, 2.0], [3.0, 4.0]], np.eye(3))
        >>> TensorTrainMatrix.from_dense(A, row_shape=(2, 3), column_shape=(2, 3)).ranks
        (1, 1, 1)
        """
        data = dense_operand("array", array)
        if data.ndim != 2:
            raise ShapeError(f"array must be a matrix; got shape {tuple(data.shape)}")
        rows, columns = _modes("row_shape", row_shape), _modes("column_shape", column_shape)
        if len(rows) != len(columns) or not rows:
            raise ShapeError(
                "row_shape and column_shape must have equally many modes, at least one; "
                f"got {rows} and {columns}"
            )
        if (math.prod(rows), math.prod(columns)) != tuple(data.shape):
            raise ShapeError(
                f"row_shape {rows} and column_shape {columns} must multiply to the shape of "
                f"array, {tuple(data.shape)}"
            )
        return cls(dense_to_matrix_cores(data, rows, columns, rtol=rtol, ranks=ranks))

    def to_dense(self) -> Any:
        """Multiply the cores.

        Returns
        -------
        array, shape `shape`
            Two-dimensional, in the cores' dtype and library. Entries beyond the dtype's range are
            infinite.

        Examples
        --------
        >>> TensorTrainMatrix([[[[[2.0], [3.0]]]]]).to_dense().tolist()
        [[2.0, 3.0]]
        """
        xp = self._namespace()
        cores, exponent = normalized_cores(xp, self.cores)
        return times_power_of_two(xp, contract_matrix_cores(cores), exponent)

    def transpose(self) -> "TensorTrainMatrix":
        """Exchange rows and columns.

        Returns
        -------
        TensorTrainMatrix
            Complex entries are not conjugated.

        Examples
        --------
        >>> TensorTrainMatrix([[[[[2.0], [3.0]]]]]).transpose().to_dense().tolist()
        [[2.0], [3.0]]
        """
        xp = self._namespace()
        return TensorTrainMatrix([xp.permute_dims(core, (0, 2, 1, 3)) for core in self.cores])

    def matvec(self, x: Any) -> Any:
        """Multiply with a vector, or with each vector of a batch.

        Parameters
        ----------
        x : array_like, shape (..., columns)
            Vectors along the last axis, finite, of the cores' library.

        Returns
        -------
        array, shape (..., rows)
            ``A x`` for every vector; the matrix is never formed.

        Raises
        ------
        ShapeError
            Another length of the last axis.
        TypeError
            An array of another library.
        ValueError
            An unsupported dtype, a NaN or infinite value.

        Examples
        --------
        >>> TensorTrainMatrix([[[[[2.0], [3.0]]]]]).matvec([[1.0, 1.0], [0.0, 2.0]]).tolist()
        [[5.0], [6.0]]
        """
        xp = self._namespace()
        vectors = as_data(xp, "x", x, allow_complex=True)
        if vectors.ndim == 0 or vectors.shape[-1] != self.shape[1]:
            raise ShapeError(
                f"x must have shape (..., {self.shape[1]}); got {tuple(vectors.shape)}"
            )
        common = xp.result_type(vectors, self.cores[0])
        batch = tuple(vectors.shape[:-1])
        flat = xp.reshape(vectors, (math.prod(batch), self.shape[1]))
        flat = xp.astype(flat, common, copy=False)
        cores, exponent = normalized_cores(xp, self.cores)
        product = matrix_times_vectors([xp.astype(c, common, copy=False) for c in cores], flat)
        return xp.reshape(times_power_of_two(xp, product, exponent), (*batch, self.shape[0]))

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, TrainOfCores):
            modes = tuple(int(core.shape[1]) for core in other.cores)
            if modes != self.column_shape:
                raise ShapeError(f"{other!r} does not have the modes of the columns of {self!r}")
            return type(other)(matrix_times_cores(*common_cores(self.cores, other.cores)))
        xp = self._namespace()
        x = as_data(xp, "the second factor", other, allow_complex=True)
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise ShapeError(
                f"the second factor must have shape ({self.shape[1]},) or ({self.shape[1]}, k); "
                f"got {tuple(x.shape)}"
            )
        return self.matvec(x) if x.ndim == 1 else self.matvec(x.T).T


def _modes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as Python integers of at least 0."""
    return tuple(nonnegative_integer(f"{name}[{k}]", n) for k, n in enumerate(shape))
