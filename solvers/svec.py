"""Symmetric matrices as vectors: the upper triangle by columns, off-diagonals times sqrt 2.

The map keeps inner products: ``<X, Y> = svec(X) . svec(Y)``. Entry (i, j), i <= j, stands at
``i + j (j + 1) / 2``. Solvers differ in the order of the triangle; `lower_columns` gives the order
of those that walk the lower triangle by columns.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError

__all__ = [
    "lower_columns",
    "positive_part",
    "smat",
    "svec",
    "svec_positions",
    "svec_side",
    "svec_size",
    "triangle_indices",
]

Array = NDArray[Any]


def svec_size(side: int) -> int:
    """Length s (s + 1) / 2 of the vector of a symmetric matrix of s rows.

    Parameters
    ----------
    side : int
        Number s of rows.

    Returns
    -------
    int
        Length of the vector.

    Examples
    --------
    >>> svec_size(4)
    10
    """
    return side * (side + 1) // 2


def svec_side(size: int) -> int:
    """Count the rows of the symmetric matrix whose vector has the given length.

    Parameters
    ----------
    size : int
        Length of the vector.

    Returns
    -------
    int
        Number s of rows.

    Raises
    ------
    ShapeError
        If the length is not a triangular number.

    Examples
    --------
    >>> svec_side(10)
    4
    """
    side = (math.isqrt(8 * size + 1) - 1) // 2 if size >= 0 else -1
    if side < 0 or svec_size(side) != size:
        raise ShapeError(
            f"a vector of {size} entries holds no triangle: accepted are s (s + 1) / 2 entries"
        )
    return side


def triangle_indices(side: int) -> tuple[Array, Array]:
    """Rows and columns, row <= column, in the order of the vector.

    Parameters
    ----------
    side : int
        Number s of rows.

    Returns
    -------
    rows, columns : ndarray of int, shape (s (s + 1) / 2,)
        Indices of the upper triangle by columns.

    Examples
    --------
    >>> rows, columns = triangle_indices(3)
    >>> rows.tolist(), columns.tolist()
    ([0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2])
    """
    columns, rows = np.tril_indices(side)
    return rows, columns


def svec_positions(rows: Array, columns: Array) -> Array:
    """Positions in the vector of entries of a symmetric matrix, in either order of the indices.

    Parameters
    ----------
    rows, columns : ndarray of int, same shape
        Indices of the entries.

    Returns
    -------
    ndarray of int, same shape
        Positions.

    Examples
    --------
    >>> import numpy as np
    >>> svec_positions(np.array([0, 2]), np.array([1, 0])).tolist()
    [1, 3]
    """
    low, high = np.minimum(rows, columns), np.maximum(rows, columns)
    return np.asarray(low + high * (high + 1) // 2)


def lower_columns(side: int) -> Array:
    """Positions, in our vector, of the entries of the lower triangle taken by columns.

    ``svec(X)[lower_columns(s)]`` is the vector in the other order; assigning through the same
    index array is the way back.

    Parameters
    ----------
    side : int
        Number s of rows.

    Returns
    -------
    ndarray of int, shape (s (s + 1) / 2,)
        Positions.

    Examples
    --------
    >>> lower_columns(3).tolist()
    [0, 1, 3, 2, 4, 5]
    """
    columns, rows = np.triu_indices(side)
    return svec_positions(rows, columns)


def svec(matrix: Array) -> Array:
    """Vector of a symmetric matrix.

    Only the upper triangle is read.

    Parameters
    ----------
    matrix : ndarray, shape (..., s, s)
        Symmetric matrices.

    Returns
    -------
    ndarray, shape (..., s (s + 1) / 2)
        Upper triangles by columns, off-diagonals times sqrt 2.

    Raises
    ------
    ShapeError
        If the last two axes differ.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 2.0], [2.0, 3.0]])
    >>> float(svec(X) @ svec(X)) == float((X * X).sum())
    True
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ShapeError(f"matrix has shape {matrix.shape}: accepted is (..., s, s)")
    rows, columns = triangle_indices(matrix.shape[-1])
    return np.asarray(matrix[..., rows, columns] * _weights(rows, columns))


def smat(vector: Array) -> Array:
    """Symmetric matrix of a vector: the inverse of `svec`.

    Parameters
    ----------
    vector : ndarray, shape (..., s (s + 1) / 2)
        Vectors in the order of `svec`.

    Returns
    -------
    ndarray, shape (..., s, s)
        Exactly symmetric matrices.

    Raises
    ------
    ShapeError
        If the length is not a triangular number.

    Examples
    --------
    >>> import numpy as np
    >>> smat(np.array([1.0, 0.0, 3.0])).tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    """
    vector = np.asarray(vector, dtype=np.float64)
    side = svec_side(vector.shape[-1])
    rows, columns = triangle_indices(side)
    matrix = np.zeros((*vector.shape[:-1], side, side))
    matrix[..., rows, columns] = vector / _weights(rows, columns)
    matrix[..., columns, rows] = matrix[..., rows, columns]
    return matrix


def positive_part(matrix: Array) -> Array:
    """Nearest positive semidefinite matrix.

    Parameters
    ----------
    matrix : ndarray, shape (s, s)
        Finite; its symmetric part counts.

    Returns
    -------
    ndarray, shape (s, s)
        Negative eigenvalues replaced by 0, up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> positive_part(np.array([[0.0, 2.0], [2.0, 0.0]])).round(12).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _weights(rows: Array, columns: Array) -> Array:
    """Factor 1 on the diagonal and sqrt 2 off it."""
    return np.where(rows == columns, 1.0, math.sqrt(2.0))
