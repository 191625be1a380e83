"""Points of a complete symmetric tensor from the column space of a flattening.

The flattening with rows of degree a has the column space ``span{v_a(u_s)}`` of the monomial
vectors of the points. Rows that differ by one coordinate give a matrix pencil whose eigenvalues
are ratios of coordinates. When the rank exceeds the number of monomials of degree a - 1, the forms
that vanish on the points are multiplied up (Macaulay) until there are enough rows.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.index_maps import (
    catalecticant_positions,
    insertion_positions,
    listed_multiplicities,
)
from tensoralg.core.indices import multi_indices, number_of_multi_indices, rank_multi_indices
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors

__all__ = ["change_variables", "flattening_points", "flattening_svd", "numerical_rank"]

Array = NDArray[Any]

_LARGEST_MACAULAY = 1500  # columns of the largest multiplied-up system


def flattening_svd(
    entries: Array, order: int, dimension: int, degree: int
) -> tuple[Array, Array, Array]:
    """SVD of a flattening in the Frobenius (Bombieri) inner product.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    order, dimension, degree : int
        m, n and the degree a of the rows.

    Returns
    -------
    left, singular_values, right
        As `numpy.linalg.svd`; the left factor is square. Row alpha carries the factor
        sqrt(multiplicity of alpha), which makes the singular values invariant under rotations.

    Examples
    --------
    >>> import numpy as np
    >>> flattening_svd(np.array([1.0, 0.0, 0.0, 2.0]), 3, 2, 1)[1].tolist()
    [2.0, 1.0]
    """
    position, row_scale, column_scale = _flattening_table(order, dimension, degree)
    matrix = entries[position] * row_scale[:, None] * column_scale
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    if left.shape[1] < left.shape[0]:
        left = np.linalg.qr(np.column_stack([left, np.eye(len(left))]))[0]
    return left, singular, right


@lru_cache(maxsize=32)
def _flattening_table(order: int, dimension: int, degree: int) -> tuple[Array, Array, Array]:
    rows, columns = _scales(dimension, degree), _scales(dimension, order - degree)
    return catalecticant_positions(dimension, order, degree), rows, columns


def _scales(dimension: int, degree: int) -> Array:
    """Factors that make the Euclidean product of entries the Frobenius product."""
    return np.asarray(np.sqrt(listed_multiplicities(dimension, degree)))


def numerical_rank(singular_values: Array, tol: float) -> tuple[int, float]:
    """Rank by a tolerance, or, when that is full, by the largest relative gap.

    Parameters
    ----------
    singular_values : ndarray
        Largest first.
    tol : float
        Relative size that counts as zero.

    Returns
    -------
    rank : int
        The rank.
    gap : float
        Ratio of the last kept to the first dropped value; infinite when the dropped ones are zero
        by `tol`, 1 when nothing is dropped.

    Examples
    --------
    >>> import numpy as np
    >>> numerical_rank(np.array([3.0, 1.0, 1e-14]), 1e-9)
    (2, inf)
    >>> numerical_rank(np.array([3.0, 1.0, 1e-3]), 1e-9)
    (2, 1000.0)
    """
    s = np.asarray(singular_values, dtype=np.float64)
    if not len(s) or s[0] <= 0:
        return 0, np.inf
    count = int(np.sum(s > tol * s[0]))
    if count < len(s):
        return count, np.inf
    ratios = s[:-1] / s[1:]
    if not len(ratios) or ratios.max() < 10:
        return count, 1.0
    return int(np.argmax(ratios)) + 1, float(ratios.max())


def flattening_points(
    entries: Array,
    order: int,
    dimension: int,
    rank: int,
    *,
    rng: int | np.random.Generator | None = None,
) -> Array | None:
    """Points of a rank-r decomposition by linear algebra.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    order, dimension, rank : int
        m >= 3, n and r.
    rng : int, Generator or None
        Source of the generic linear form and of the combinations of matrices.

    Returns
    -------
    ndarray of shape (r, n), or None
        The points up to scale, real or complex; None when the rank is out of reach of the
        flattenings, or the forms that vanish on the points do not determine them.

    References
    ----------
    .. [1] J. Nie, "Low rank symmetric tensor approximations", SIAM Journal on Matrix Analysis and
       Applications 38 (2017), section 3.
    .. [2] J. Brachat, P. Comon, B. Mourrain, E. Tsigaridas, "Symmetric tensor decomposition",
       Linear Algebra and its Applications 433 (2010).

    Examples
    --------
    >>> import numpy as np
    >>> points = flattening_points(np.array([1.0, 0.0, 0.0, 2.0]), 3, 2, 2, rng=0)
    >>> sorted(np.abs(points / np.linalg.norm(points, axis=1)[:, None]).round(9).tolist())
    [[0.0, 1.0], [1.0, 0.0]]
    """
    generator = np.random.default_rng(rng)
    degree = order - order // 2
    if rank > number_of_multi_indices(dimension, order // 2):
        return None
    left, _, _ = flattening_svd(entries, order, dimension, degree)
    space, vanishing = left[:, :rank], left[:, rank:]
    while True:
        if space.shape[1] == rank:
            points = _points_of_space(space, degree, dimension, generator)
            if points is not None:
                return points
        too_large = number_of_multi_indices(dimension, degree + 1) > _LARGEST_MACAULAY
        if too_large or degree > 2 * order or not vanishing.shape[1]:
            return None
        space, vanishing = _multiply_up(vanishing, degree, dimension, rank)
        degree += 1


def _multiply_up(vanishing: Array, degree: int, dimension: int, rank: int) -> tuple[Array, Array]:
    """Split the evaluations of degree + 1 into those that all multiples kill, and the multiples.

    The first space has dimension r once the multiples determine the points, and more before.
    """
    higher_scale = _scales(dimension, degree + 1)
    coefficients = vanishing * _scales(dimension, degree)[:, None]
    count = vanishing.shape[1]
    products = np.zeros((dimension * count, len(higher_scale)), dtype=vanishing.dtype)
    for i, position in enumerate(insertion_positions(dimension, degree + 1)):
        products[i * count : (i + 1) * count, position] = coefficients.T
    _, singular, right = np.linalg.svd(products / higher_scale)
    count = min(int(np.sum(singular > 1e-8 * singular[0])), len(higher_scale) - rank)
    return right[count:].conj().T, right[:count].conj().T


def _points_of_space(
    space: Array, degree: int, dimension: int, generator: np.random.Generator
) -> Array | None:
    """Find points whose monomial vectors span a space, from its shifted rows.

    None when the monomials of the lower degree do not tell the points apart.
    """
    lower_scale = _scales(dimension, degree - 1)
    if space.shape[1] > len(lower_scale):
        return None
    plain = space / _scales(dimension, degree)[:, None]
    stack = plain[insertion_positions(dimension, degree)] * lower_scale[:, None]
    form = generator.standard_normal(dimension)
    basis = np.tensordot(form / np.linalg.norm(form), stack, axes=1)
    left, singular, right = np.linalg.svd(basis, full_matrices=False)
    if singular[-1] <= 1e-9 * singular[0]:
        return None
    inverse = (right.conj().T / singular) @ left.conj().T
    _, values = joint_eigenvectors(inverse @ stack, rng=generator)
    return np.asarray(values.T)


def change_variables(entries: Array, order: int, dimension: int, matrix: Array) -> Array:
    """Entries of the tensor contracted with the columns of a matrix in every mode.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    order, dimension : int
        m and n.
    matrix : ndarray, shape (n, k)
        A point u becomes ``matrix.T @ u``.

    Returns
    -------
    ndarray, shape (C(k+m-1, m),)
        Entries of the tensor of dimension k.

    Examples
    --------
    >>> import numpy as np
    >>> change_variables(np.array([1.0, 0, 0, 2.0]), 3, 2, np.array([[1.0], [1.0]])).tolist()
    [3.0]
    """
    count = matrix.shape[1]
    # contract one mode at a time: (reduced indices so far, entries of the remaining order)
    current = entries[None, :]
    for remaining in range(order, 0, -1):
        pieces = current[:, insertion_positions(dimension, remaining)]
        contracted = np.einsum("ain,ik->akn", pieces, matrix, optimize=True)
        done = order - remaining
        # keep sorted reduced indices only: the new one is not smaller than the last
        reduced = multi_indices(count, done + 1)
        previous = rank_multi_indices(reduced[:, :-1], count)
        current = contracted[previous, reduced[:, -1]]
    return np.asarray(current[:, 0])
