"""Matrices whose comparison matrix decides, without a search and without rounding.

The comparison matrix M of a nonnegative matrix A has its diagonal and minus its other entries.
Where M is positive semidefinite, A is completely positive: a positive d with ``M d >= 0`` makes
``D A D``, D = diag(d), diagonally dominant, and

    D A D = sum_{i<j} B_ij (e_i + e_j)(e_i + e_j)' + sum_i (M d)_i d_i e_i e_i',  B = D A D.

Where the graph of the nonzero entries has no triangle the converse holds [1]_: from ``v' M v < 0``,
v >= 0, the form ``sum_i v_i^2 x_i^2 - 2 sum_{i<j} v_i v_j x_i x_j`` is a square on every edge.

References
----------
.. [1] J. H. Drew, C. R. Johnson, R. Loewy, "Completely positive matrices associated with
   M-matrices", Linear and Multilinear Algebra 37 (1994).
"""

from fractions import Fraction
from itertools import combinations

from tensoralg.completely_positive.certificates import Certificate, faces_certificate
from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.solvers.rational_forms import multiplicity
from tensoralg.solvers.rational_matrices import negative_direction, solve_exactly

__all__ = ["comparison_atoms", "comparison_violation"]
ExactAtoms = list[tuple[Fraction, tuple[Fraction, ...]]]
Matrix = list[list[Fraction]]

_LARGEST = 25  # rows that are eliminated exactly
_ZERO = Fraction(0)


def comparison_atoms(tensor: ExactTensor) -> ExactAtoms | None:
    """Decompose a matrix whose comparison matrix is positive semidefinite, exactly.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries, positive diagonal.

    Returns
    -------
    list of (Fraction, tuple of Fraction), or None
        Positive weights and nonnegative atoms with one or two nonzero entries; None for any other
        tensor.
    """
    n = tensor.dimension
    if tensor.order != 2 or n > _LARGEST:
        return None
    matrix = _comparison(tensor)
    if negative_direction(matrix) is not None:
        return None
    scale = _dominance(matrix)
    if scale is None:
        return None
    unit = [tuple(1 / scale[i] if j == i else _ZERO for j in range(n)) for i in range(n)]
    atoms: ExactAtoms = []
    for i, row in enumerate(matrix):
        rest = scale[i] * sum((a * b for a, b in zip(row, scale, strict=True)), _ZERO)
        if rest:
            atoms.append((rest, unit[i]))
        for j in range(i + 1, n):
            if row[j]:
                pair = tuple(a + b for a, b in zip(unit[i], unit[j], strict=True))
                atoms.append((-row[j] * scale[i] * scale[j], pair))
    return atoms


def comparison_violation(tensor: ExactTensor) -> Certificate | None:
    """Refute a matrix without triangles whose comparison matrix is indefinite.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries, positive diagonal.

    Returns
    -------
    Certificate or None
        None exactly when the matrix is completely positive, or has a triangle of nonzero entries
        or too many rows; also for a tensor of another order.
    """
    n = tensor.dimension
    if tensor.order != 2 or n > _LARGEST:
        return None
    edges = [pair for pair in combinations(range(n), 2) if tensor.lookup[pair]]
    if _has_triangle(edges):
        return None
    matrix = _comparison(tensor)
    direction = negative_direction(matrix)
    if direction is None:
        return None
    # no entry off the diagonal is positive: magnitudes make the value smaller still
    v = [abs(value) for value in direction]
    size = max(v)
    v = [value / size for value in v]
    linked = set(edges) | {(i, i) for i in range(n)}
    signs = {row: (1 if row[0] == row[1] else -multiplicity(row)) for row in linked}
    form = [signs.get((i, j), 0) * v[i] * v[j] for i, j in tensor.rows]
    alone = [(i,) for i in range(n) if not any(i in edge for edge in edges)]
    return faces_certificate(tensor.values, n, 2, form, [*edges, *alone])


def _comparison(tensor: ExactTensor) -> Matrix:
    n = tensor.dimension
    return [
        [(1 if i == j else -1) * tensor.lookup[min(i, j), max(i, j)] for j in range(n)]
        for i in range(n)
    ]


def _dominance(matrix: Matrix) -> list[Fraction] | None:
    """Positive d with M d >= 0 for a positive semidefinite M, nowhere positive off the diagonal.

    In every connected part d is 1 at the last index, and M d is zero at all others: their block is
    positive definite, with a nonnegative inverse.
    """
    scale = [Fraction(1)] * len(matrix)
    for part in _components(matrix):
        *first, last = part
        block = [[matrix[i][j] for j in first] for i in first]
        solution = solve_exactly(block, [-matrix[i][last] for i in first])
        if solution is None or not all(value > 0 for value in solution):
            return None
        for i, value in zip(first, solution, strict=True):
            scale[i] = value
    return scale


def _components(matrix: Matrix) -> list[list[int]]:
    left, parts = set(range(len(matrix))), []
    while left:
        part, new = set[int](), {min(left)}
        while new:
            part |= new
            new = {j for i in new for j in left - part if matrix[i][j]}
        left -= part
        parts.append(sorted(part))
    return parts


def _has_triangle(edges: list[tuple[int, int]]) -> bool:
    neighbours: dict[int, set[int]] = {}
    for i, j in edges:
        neighbours.setdefault(i, set()).add(j)
        neighbours.setdefault(j, set()).add(i)
    return any(neighbours[i] & neighbours[j] for i, j in edges)
