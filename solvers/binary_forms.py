"""Sylvester's algorithm: decompositions of binary forms of every rank.

A binary form ``sum_j C(m, j) c_j x^(m-j) y^j`` is a sum of the m-th powers of r linear forms with
the distinct points (a, b) exactly when the form with these roots is apolar to it: a kernel vector
of the Hankel matrix with r + 1 columns.
"""

from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike, NDArray

__all__ = ["binary_form_points"]

Array = NDArray[Any]


def binary_form_points(
    coefficients: ArrayLike, rank: int, *, rng: int | np.random.Generator | None = None
) -> Array:
    """Points of one candidate decomposition of a binary form.

    With 2 r > m + 1 the decompositions form a family: 2 r - m - 1 points are drawn at random,
    and contracting the form with their annihilators leaves a form with one apolar form of the
    remaining degree. Call again for other members of the family.

    Parameters
    ----------
    coefficients : array_like, shape (m+1,)
        Entries of the tensor: ``c_j`` has j indices 1.
    rank : int
        Number r of points, 1 <= r <= m.
    rng : int, Generator or None
        Source of the rotation and of the free points.

    Returns
    -------
    ndarray, shape (r, 2)
        Unit vectors, complex when the roots are; some coincide when the form has no
        decomposition of this rank.

    Raises
    ------
    ValueError
        A rank outside 1 .. m.

    References
    ----------
    .. [1] G. Comas, M. Seiguer, "On the rank of a binary form", Foundations of Computational
       Mathematics 11 (2011).
    .. [2] J. Brachat, P. Comon, B. Mourrain, E. Tsigaridas, "Symmetric tensor decomposition",
       Linear Algebra and its Applications 433 (2010), section 3.

    Examples
    --------
    >>> import numpy as np
    >>> points = binary_form_points([1.0, 0.0, 0.0, 2.0], 2, rng=0)
    >>> sorted(np.abs(points).round(9).tolist())
    [[0.0, 1.0], [1.0, 0.0]]
    """
    c = np.asarray(coefficients)
    m = len(c) - 1
    if not 1 <= rank <= m:
        raise ValueError(f"rank of a binary form of degree {m} must lie in 1 .. {m}; got {rank}")
    generator = np.random.default_rng(rng)
    angle = generator.uniform(0, 2 * np.pi)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = _rotate(c, rotation)
    angles = generator.uniform(0, np.pi, max(2 * rank - m - 1, 0))
    free = np.column_stack([np.cos(angles), np.sin(angles)])
    for a, b in free:
        turned = -b * turned[:-1] + a * turned[1:]
    rest = rank - len(free)
    hankel = turned[np.add.outer(np.arange(len(turned) - rest), np.arange(rest + 1))]
    apolar = np.linalg.svd(hankel)[2][-1].conj()
    # the rotation is generic: no root lies at infinity
    roots = polynomial.polyroots(apolar)
    found = np.column_stack([np.ones(len(roots)), roots])
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(np.concatenate([free, found]) @ rotation.T)


def _rotate(coefficients: Array, rotation: Array) -> Array:
    """Entries in the basis of the columns of a rotation."""
    m = len(coefficients) - 1
    rows = [
        polynomial.polymul(
            polynomial.polypow(rotation[:, 0], m - j), polynomial.polypow(rotation[:, 1], j)
        )
        for j in range(m + 1)
    ]
    return np.array([np.dot(_padded(row, m + 1), coefficients) for row in rows])


def _padded(row: Array, length: int) -> Array:
    return np.concatenate([row, np.zeros(length - len(row))])
