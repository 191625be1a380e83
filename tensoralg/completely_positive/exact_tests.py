"""Tests of complete positivity that need no solver; each failure carries an exact inequality.

A form p that is nonnegative on the nonnegative orthant and has ``<p, A> < 0`` shows that A is not
completely positive, because ``<p, u^(x)d> = p(u)``. Two kinds are enough here: a monomial times a
square, and a weighted mean of monomials minus a monomial.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.certificates import (
    Certificate,
    means_certificate,
    negative_entry_certificate,
    zero_pattern_certificate,
)
from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.core.index_maps import (
    catalecticant_positions,
    insertion_positions,
    listed_multiplicities,
)
from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.solvers.certificate_proofs import GramBlock, GramProof

__all__ = [
    "convincing",
    "first_violation",
    "hoelder_violation",
    "is_doubly_nonnegative",
    "known_block_violation",
    "negative_direction",
]

Row = tuple[int, ...]
Form = Mapping[Row, Fraction]

_LARGEST_BLOCK = 600
_LARGEST_EXACT_BLOCK = 20
_BITS = 40
# smallest eigenvalues below this, of blocks with unit diagonal, are looked at exactly
_DOUBTFUL = 1e-10


def convincing(form: Form, tensor: ExactTensor) -> bool:
    """Whether a form is negative on a tensor by more than the rounding of its entries.

    Parameters
    ----------
    form : mapping from sorted multi-index to Fraction
        The coefficients.
    tensor : ExactTensor
        Of the same order.

    Returns
    -------
    bool
        Exact: any negative value counts for exact entries. Rounded entries may each be off by
        `tensor.noise` times the mass.
    """
    value = sum((c * tensor.lookup[row] for row, c in form.items()), Fraction(0))
    if value >= 0 or not tensor.noise:
        return value < 0
    counts = dict(
        zip(tensor.rows, listed_multiplicities(tensor.dimension, tensor.order), strict=True)
    )
    largest = max(abs(c) / int(counts[row]) for row, c in form.items())
    return -value > Fraction(tensor.noise) * tensor.mass * largest


def first_violation(tensor: ExactTensor) -> Certificate | None:
    """Run all tests of this module, the cheapest first.

    Parameters
    ----------
    tensor : ExactTensor
        The tensor.

    Returns
    -------
    Certificate or None
        None where every test is passed.
    """
    given = (tensor.values, tensor.dimension, tensor.order)
    negative = negative_entry_certificate(*given)
    if negative or not tensor.mass:
        return negative
    found = zero_pattern_certificate(*given)
    if found and convincing(found.form, tensor):
        return found
    return hoelder_violation(tensor) or known_block_violation(tensor)


def hoelder_violation(tensor: ExactTensor) -> Certificate | None:
    """Look for an entry above the weighted geometric mean of the diagonal ones.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries, not all zero.

    Returns
    -------
    Certificate or None
        For the entry that exceeds ``prod_i A_(i..i)^(a_i / d)`` by the largest factor. Zero
        diagonal entries are left to the zero pattern.
    """
    n, d = tensor.dimension, tensor.order
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(tensor.scaled)
        diagonal = logs[[tensor.rows.index((i,) * d) for i in range(n)]]
        excess = logs - diagonal[multi_indices(n, d)].mean(axis=1)
    excess[~np.isfinite(excess)] = -np.inf
    target = tensor.rows[int(excess.argmax())]
    if not excess.max() > 0.0 or len(set(target)) == 1:
        return None
    weights = {(i,) * d: Fraction(target.count(i), d) for i in set(target)}
    found = means_certificate(tensor.values, n, d, target, weights)
    return found if found and convincing(found.form, tensor) else None


def known_block_violation(tensor: ExactTensor) -> Certificate | None:
    """Look for a block of known entries, in monomials times a squarefree one, that is indefinite.

    ``M = (A_(factor + i + j))`` with ``v' M v < 0`` gives the form ``u^factor (sum_i v_i u^i)^2``.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries, not all zero.

    Returns
    -------
    Certificate or None
        For the block with the smallest eigenvalue, in coordinates that make its diagonal ones.
    """
    n, d = tensor.dimension, tensor.order
    best: tuple[float, Row, int, npt.NDArray[np.float64]] | None = None
    for degree in range(d // 2, 0, -1):
        if number_of_multi_indices(n, degree) > _LARGEST_BLOCK:
            continue
        squares = catalecticant_positions(n, 2 * degree, degree)
        for factor in itertools.combinations(range(n), d - 2 * degree):
            positions = squares
            for k, index in enumerate(factor):
                positions = insertion_positions(n, 2 * degree + k + 1)[index][positions]
            value, vector = _smallest_eigenvalue(tensor.scaled[positions])
            if best is None or value < best[0]:
                best = (value, factor, degree, vector)
    if best is None or not best[0] < _DOUBTFUL:
        return None
    _, factor, degree, vector = best
    for candidate in _rational_vectors(tensor, factor, degree, vector):
        found = _square_certificate(tensor, factor, degree, candidate)
        if found and convincing(found.form, tensor):
            return found
    return None


def is_doubly_nonnegative(tensor: ExactTensor) -> bool:
    """Whether a matrix has nonnegative entries and is positive semidefinite, exactly.

    Parameters
    ----------
    tensor : ExactTensor
        Of order 2.

    Returns
    -------
    bool
        For dimension 4 and less this is the same as being completely positive [1]_.

    References
    ----------
    .. [1] J. E. Maxfield, H. Minc, "On the matrix equation X'X = A", Proceedings of the Edinburgh
       Mathematical Society 13 (1962).
    """
    n = tensor.dimension
    if min(tensor.values) < 0:
        return False
    matrix = [[tensor.lookup[min(i, j), max(i, j)] for j in range(n)] for i in range(n)]
    return negative_direction(matrix) is None


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


def _square_certificate(
    tensor: ExactTensor, factor: Row, degree: int, vector: list[Fraction]
) -> Certificate | None:
    size = len(vector)
    gram = tuple(vector[i] * vector[j] for i in range(size) for j in range(i, size))
    block = GramBlock(factor, degree, gram)
    form = {row: c for row, c in block.expand(tensor.dimension).items() if c}
    listed = {row: value for row, value in tensor.lookup.items() if value}
    proof = GramProof(tensor.order, (block,))
    found = Certificate("gram", tensor.dimension, tensor.order, listed, form, proof)
    return found if form and found.verify() else None


def _rational_vectors(
    tensor: ExactTensor, factor: Row, degree: int, vector: npt.NDArray[np.float64]
) -> Iterator[list[Fraction]]:
    """Round an eigenvector, to few digits first; then try an exact elimination."""
    size = float(np.abs(vector).max(initial=0.0))
    if size > 0.0:
        for bits in (4, 10, 20, _BITS):
            yield [Fraction(round(float(v) / size * 2**bits), 2**bits) for v in vector]
        yield [_rounded(float(v)) for v in vector]
    if tensor.noise == 0.0 and len(vector) <= _LARGEST_EXACT_BLOCK:
        rows = list(map(tuple, multi_indices(tensor.dimension, degree).tolist()))
        matrix = [[tensor.lookup[tuple(sorted(factor + a + b))] for b in rows] for a in rows]
        direction = negative_direction(matrix)
        if direction:
            yield direction


def _smallest_eigenvalue(
    matrix: npt.NDArray[np.float64],
) -> tuple[float, npt.NDArray[np.float64]]:
    """Smallest eigenvalue after scaling to a unit diagonal, and its vector in old coordinates."""
    diagonal = np.diagonal(matrix)
    kept = np.flatnonzero(diagonal > 0.0)
    vector = np.zeros(len(matrix))
    if not len(kept):
        return 0.0, vector
    scale = 1.0 / np.sqrt(diagonal[kept])
    values, vectors = np.linalg.eigh(matrix[np.ix_(kept, kept)] * np.outer(scale, scale))
    vector[kept] = scale * vectors[:, 0] / scale.max()
    return float(values[0]), vector


def _rounded(value: float) -> Fraction:
    """Return a dyadic number near a float, with a short mantissa."""
    mantissa, exponent = math.frexp(value)
    return Fraction(round(mantissa * 2**_BITS), 2**_BITS) * Fraction(2) ** exponent
