"""Rational matrices without rounding: positive semidefiniteness, linear equations."""

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["is_positive_semidefinite", "negative_direction", "solve_exactly"]


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


def negative_direction(matrix: list[list[Fraction]]) -> list[Fraction] | None:
    """Find v with ``v' M v < 0`` by symmetric elimination in Fractions.

    Parameters
    ----------
    matrix : list of lists of Fraction, shape (s, s)
        Symmetric.

    Returns
    -------
    list of Fraction or None
        None exactly when the matrix is positive semidefinite.

    Examples
    --------
    >>> negative_direction([[Fraction(1), Fraction(2)], [Fraction(2), Fraction(1)]])
    [Fraction(-2, 1), Fraction(1, 1)]
    """
    size = len(matrix)
    rest = [list(row) for row in matrix]
    # rest[i][j] = t_i' M t_j for the rows t_i of `moved`, i and j not yet eliminated
    moved = [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
    for k in range(size):
        if rest[k][k] < 0:
            return moved[k]
        for j in range(k + 1, size):
            if not rest[k][j]:
                continue
            if rest[k][k] == 0:
                factor = -(rest[j][j] + 1) / (2 * rest[k][j])
                return [factor * a + b for a, b in zip(moved[k], moved[j], strict=True)]
            factor = rest[k][j] / rest[k][k]
            moved[j] = [b - factor * a for a, b in zip(moved[k], moved[j], strict=True)]
            for i in range(k + 1, size):
                rest[j][i] -= factor * rest[k][i]
    return None


def solve_exactly(
    matrix: Sequence[Sequence[Fraction]], right: Sequence[Fraction]
) -> list[Fraction] | None:
    """Solve linear equations in Fractions.

    Parameters
    ----------
    matrix : sequence of sequences of Fraction, shape (p, m)
        The coefficients, any number of equations.
    right : sequence of Fraction, length p
        The right-hand sides.

    Returns
    -------
    list of Fraction, length m, or None
        None where there is no solution or more than one.

    Examples
    --------
    >>> solve_exactly([[Fraction(2)], [Fraction(4)]], [Fraction(1), Fraction(2)])
    [Fraction(1, 2)]
    >>> solve_exactly([[Fraction(2)], [Fraction(4)]], [Fraction(1), Fraction(1)]) is None
    True
    """
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    count = len(rows[0]) - 1 if rows else 0
    for k in range(count):
        # short numbers first: they keep the others short
        candidates = [i for i in range(k, len(rows)) if rows[i][k]]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda i: _length(rows[i][k]))
        rows[k], rows[chosen] = rows[chosen], rows[k]
        pivot = rows[k]
        inverse = 1 / pivot[k]
        pivot[k:] = [value * inverse for value in pivot[k:]]
        for row in rows[:k] + rows[k + 1 :]:
            if factor := row[k]:
                row[k:] = [a - factor * b for a, b in zip(row[k:], pivot[k:], strict=True)]
    if any(row[count] for row in rows[count:]):
        return None
    return [row[count] for row in rows[:count]]


def _length(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()
