"""Positive semidefiniteness of rational matrices, decided without rounding."""

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["is_positive_semidefinite"]


def is_positive_semidefinite(matrix: Sequence[Sequence[Fraction | int]]) -> bool:
    """Decide whether a symmetric rational matrix is positive semidefinite.

    The pivots of LDL' are taken without a single fraction (Bareiss [1]_): every number that
    occurs is a minor of the matrix of integers, so each division is exact and the pivots of
    LDL' are the ratios of consecutive ones. A zero pivot needs a zero row.

    Parameters
    ----------
    matrix : sequence of sequences of Fraction or int, shape (s, s)
        Symmetric; only the upper triangle is read.

    Returns
    -------
    bool
        Whether no eigenvalue is negative: exact.

    References
    ----------
    .. [1] E. H. Bareiss, "Sylvester's identity and multistep integer-preserving Gaussian
       elimination", Mathematics of Computation 22 (1968).

    Examples
    --------
    >>> is_positive_semidefinite([[1, 1], [1, 1]]), is_positive_semidefinite([[1, 2], [2, 3]])
    (True, False)
    """
    size = len(matrix)
    rows = [[matrix[i][j] for j in range(i, size)] for i in range(size)]
    scale = math.lcm(*(value.denominator for row in rows for value in row))
    # rows of the upper triangle: rows[i][j - i] stands for the entry (i, j)
    work = [[int(value * scale) for value in row] for row in rows]
    previous = 1
    for k in range(size):
        row = work[k]
        pivot = row[0]
        if pivot < 0 or (pivot == 0 and any(row)):
            return False
        if pivot == 0:
            continue
        for i in range(k + 1, size):
            factor, below = row[i - k], work[i]
            for j, value in enumerate(row[i - k :]):
                below[j] = (pivot * below[j] - factor * value) // previous
        previous = pivot
    return True
