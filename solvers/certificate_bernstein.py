"""Certify a form nonnegative by bisecting the simplex until no Bernstein coefficient is negative.

The coefficients of a form in the barycentric coordinates of a simplex are its Bernstein
coefficients times multinomial numbers: where none is negative, neither is the form. For a form that
is positive on the simplex, pieces that are small enough have none [1]_.

References
----------
.. [1] R. Leroy, "Certificates of positivity in the simplicial Bernstein basis", preprint
   hal-00589945 (2009).
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.solvers.certificate_proofs import SubdivisionProof, exponents, half
from tensoralg.solvers.exact_certificates import Certificate
from tensoralg.solvers.rational_forms import Form, exact_form, monomials, multiplicity, pairing

__all__ = ["bernstein_certificate", "subdivision_proof"]

Array = NDArray[Any]


def bernstein_certificate(
    entries: Iterable[Any],
    dimension: int,
    order: int,
    coefficients: ArrayLike,
    *,
    max_leaves: int = 5000,
) -> Certificate | None:
    """Certify that a tensor is not completely positive from a floating form.

    The form is moved into the cone by half of what it separates, rounded to short fractions, and
    proved nonnegative by subdivision.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.
    coefficients : array_like, shape (C(n+d-1, d),)
        Coefficients p_a of the form's monomials, in the same order: nonnegative on the orthant,
        nearly, with ``sum p_a A_a < 0``.
    max_leaves : int, optional
        Give up beyond that many pieces.

    Returns
    -------
    Certificate or None
        None where the form does not separate, is negative somewhere, or needs more pieces.

    Raises
    ------
    ValueError
        A wrong number of entries or coefficients, NaN or infinity.

    Examples
    --------
    >>> certificate = bernstein_certificate([2, 3, 2], 2, 2, [1, -2, 1])
    >>> certificate.verify(), certificate.value < 0
    (True, True)
    """
    tensor = exact_form(entries, dimension, order)
    form = exact_form(np.asarray(coefficients, dtype=float), dimension, order)
    mass = sum((value * multiplicity(a) for a, value in tensor.items()), start=Fraction(0))
    value = pairing(form, tensor)
    if mass <= 0 or value >= 0:
        return None
    for share in (0.5, 0.9):
        slack = Fraction(share * float(-value / mass))
        unit = 1 << max(math.ceil(-math.log2(float(slack))) + 8, 0)
        shifted = {
            a: Fraction(round((form.get(a, Fraction(0)) + slack * multiplicity(a)) * unit), unit)
            for a in monomials(dimension, order)
        }
        shifted = {a: c for a, c in shifted.items() if c}
        if pairing(shifted, tensor) < 0:
            proof = subdivision_proof(shifted, dimension, max_leaves)
            if proof is not None:
                return Certificate("bernstein", dimension, order, tensor, shifted, proof)
    return None


def subdivision_proof(form: Form, dimension: int, max_leaves: int) -> SubdivisionProof | None:
    """Bisect edges until all coefficients on all pieces are nonnegative.

    Parameters
    ----------
    form : dict from Index to Fraction
        A form that is positive on the simplex.
    dimension : int
        Number of variables.
    max_leaves : int
        Give up beyond that many pieces.

    Returns
    -------
    SubdivisionProof or None
        None where a vertex has a negative value or there are too many pieces.

    Examples
    --------
    >>> form = {(0, 0): Fraction(1), (0, 1): Fraction(-1), (1, 1): Fraction(1)}
    >>> subdivision_proof(form, 2, 10).splits
    ((0, 1), None, None)
    """
    scale = math.lcm(*(c.denominator for c in form.values()))
    start = {exponents(a, dimension): int(c * scale) for a, c in form.items()}
    stack = [(start, np.eye(dimension))]
    splits: list[tuple[int, int] | None] = []
    while stack:
        piece, vertices = stack.pop()
        if all(c >= 0 for c in piece.values()):
            splits.append(None)
            continue
        below = any(c < 0 and max(a) == sum(a) for a, c in piece.items())  # value at a vertex
        if below or len(splits) > 2 * max_leaves:
            return None
        i, j = _edge(piece, vertices)
        splits.append((i, j))
        middle = (vertices[i] + vertices[j]) / 2
        for keep, move in ((j, i), (i, j)):
            moved = vertices.copy()
            moved[move] = middle
            stack.append((half(piece, keep, move), moved))
    return SubdivisionProof(tuple(splits))


def _edge(piece: dict[tuple[int, ...], int], vertices: Array) -> tuple[int, int]:
    """Edge with the largest squared length times the negative coefficients that it mixes."""
    negative = [(a, c) for a, c in piece.items() if c < 0]
    powers = np.array([a for a, _ in negative], dtype=float)
    # a form's coefficient over its multinomial number; only ratios count, so d! is left out
    sizes = np.array([float(c * math.prod(map(math.factorial, a))) for a, c in negative])
    weights = powers.T @ ((sizes / sizes.min())[:, None] * powers)
    lengths = np.sum((vertices[:, None] - vertices[None]) ** 2, axis=-1)
    scores = weights * lengths
    if not scores.any():  # pieces so small that their vertices are the same doubles
        scores = weights * (1.0 - np.eye(len(lengths)))
    i, j = np.unravel_index(int(np.argmax(scores)), lengths.shape)
    return int(i), int(j)
