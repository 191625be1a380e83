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
from tensoralg.completely_positive.comparison import comparison_violation
from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.core.index_maps import (
    catalecticant_positions,
    insertion_positions,
    listed_multiplicities,
)
from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.solvers.certificate_proofs import GramBlock, GramProof
from tensoralg.solvers.rational_matrices import is_positive_semidefinite, negative_direction

__all__ = [
    "convincing",
    "first_violation",
    "hoelder_violation",
    "known_block_violation",
    "known_criterion",
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
    found = hoelder_violation(tensor) or known_block_violation(tensor)
    if found:
        return found
    found = comparison_violation(tensor)
    return found if found and convincing(found.form, tensor) else None


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
        For the block with the smallest eigenvalue, in coordinates that make its diagonal ones; of
        exact entries all blocks with an eigenvalue near zero are tried.
    """
    n, d = tensor.dimension, tensor.order
    doubtful: list[tuple[float, Row, int, npt.NDArray[np.float64]]] = []
    for degree in range(d // 2, 0, -1):
        if number_of_multi_indices(n, degree) > _LARGEST_BLOCK:
            continue
        squares = catalecticant_positions(n, 2 * degree, degree)
        for factor in itertools.combinations(range(n), d - 2 * degree):
            positions = squares
            for k, index in enumerate(factor):
                positions = insertion_positions(n, 2 * degree + k + 1)[index][positions]
            value, vector = _smallest_eigenvalue(tensor.scaled[positions])
            if value < _DOUBTFUL:
                doubtful.append((value, factor, degree, vector))
    # rounded entries: what the worst block does not show, the others do not show either
    doubtful.sort(key=lambda block: block[0])
    for _, factor, degree, vector in doubtful[:1] if tensor.noise else doubtful:
        for candidate in _rational_vectors(tensor, factor, degree, vector):
            found = _square_certificate(tensor, factor, degree, candidate)
            if found and convincing(found.form, tensor):
                return found
    return None


def known_criterion(tensor: ExactTensor) -> str:
    """Name a theorem by which the entries are exactly those of a completely positive tensor.

    Parameters
    ----------
    tensor : ExactTensor
        The tensor.

    Returns
    -------
    str
        For doubly nonnegative matrices of dimension 4 or less [1]_, and for tensors of dimension 2
        whose Hankel matrices are positive semidefinite; empty for all others.

    References
    ----------
    .. [1] J. E. Maxfield, H. Minc, "On the matrix equation X'X = A", Proceedings of the Edinburgh
       Mathematical Society 13 (1962).
    """
    n, d = tensor.dimension, tensor.order
    if min(tensor.values) < 0:
        return ""
    if d == 2 and n <= 4 and _is_semidefinite(tensor, (), 1):
        return "a doubly nonnegative matrix of dimension 4 or less is completely positive"
    if n == 2 and d <= 2 * _LARGEST_EXACT_BLOCK:
        halves = [(), (0, 1)] if d % 2 == 0 else [(0,), (1,)]
        if all(_is_semidefinite(tensor, factor, (d - len(factor)) // 2) for factor in halves):
            return (
                "a tensor of dimension 2 whose Hankel matrices are positive semidefinite is "
                "completely positive"
            )
    return ""


def _is_semidefinite(tensor: ExactTensor, factor: Row, degree: int) -> bool:
    return is_positive_semidefinite(_known_block(tensor, factor, degree))


def _known_block(tensor: ExactTensor, factor: Row, degree: int) -> list[list[Fraction]]:
    rows = list(map(tuple, multi_indices(tensor.dimension, degree).tolist()))
    return [[tensor.lookup[tuple(sorted(factor + a + b))] for b in rows] for a in rows]


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
        direction = negative_direction(_known_block(tensor, factor, degree))
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
