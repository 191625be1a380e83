"""Certificates for tensors with zeros: a form that is positive on the faces that zeros allow.

Where A_a = 0 the monomial x^a costs nothing, so its coefficient may be as large as it takes. A form
then only has to be positive where all these monomials vanish: on the faces of the simplex whose
variables contain no support of a zero entry. There are many of them, but each is small.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from tensoralg.solvers.certificate_bernstein import subdivision_proof
from tensoralg.solvers.certificate_proofs import FacesProof, face_form
from tensoralg.solvers.exact_certificates import Certificate
from tensoralg.solvers.rational_forms import Form, exact_form, monomials, multiplicity, pairing

__all__ = ["faces_certificate"]


def faces_certificate(
    entries: Iterable[Any],
    dimension: int,
    order: int,
    coefficients: Iterable[Any],
    faces: Sequence[Sequence[int]],
    *,
    max_leaves: int = 2000,
) -> Certificate | None:
    """Certify that a tensor with zeros is not completely positive.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.
    coefficients : iterable of int, Fraction or float, length C(n+d-1, d)
        Coefficients p_a of a form with ``sum p_a A_a < 0`` that is nonnegative, nearly, on every
        face; those of monomials that fit no face do not matter. Floats count bit for bit.
    faces : sequence of sequences of int
        The maximal sets of variables, from 0, that contain no support of a zero entry.
    max_leaves : int, optional
        Pieces that the proof on one face may take.

    Returns
    -------
    Certificate or None
        None where the form does not separate, is negative on a face, or where an entry that fits
        no face is not zero.

    Raises
    ------
    ValueError
        A wrong number of entries or coefficients, NaN or infinity.

    Examples
    --------
    The form (x_1 - x_2)^2 + (x_2 - x_3)^2 on the edges of a path, beside x_1 x_3.

    >>> entries = [1, 1, 0, 1.5, 1, 1]
    >>> certificate = faces_certificate(entries, 3, 2, [1, -2, 0, 1, -2, 1], [(0, 1), (1, 2)])
    >>> certificate.verify(), round(float(certificate.value), 3)
    (True, -0.25)
    """
    tensor = exact_form(entries, dimension, order)
    form = exact_form(coefficients, dimension, order)
    sets = [set(face) for face in faces]
    allowed = [a for a in monomials(dimension, order) if any(set(a) <= face for face in sets)]
    inside = {a: form[a] for a in allowed if a in form}
    mass = sum((value * multiplicity(a) for a, value in tensor.items()), start=Fraction(0))
    value = pairing(inside, tensor)
    if mass <= 0 or value >= 0 or set(tensor) - set(allowed):
        return None
    slack = Fraction(0.5 * float(-value / mass))
    unit = 1 << max(math.ceil(-math.log2(float(slack))) + 8, 0)
    shifted = {
        a: Fraction(round((inside.get(a, Fraction(0)) + slack * multiplicity(a)) * unit), unit)
        for a in allowed
    }
    margin = Fraction(round(slack / 2 * unit), unit)
    proofs = []
    for face in faces:
        variables = tuple(sorted(face))
        rest = face_form(shifted, variables, margin, order)
        proof = subdivision_proof(rest, len(variables), max_leaves)
        if proof is None:
            return None
        proofs.append((variables, proof))
    threshold = _raise_forbidden(shifted, dimension, order, margin)
    proof_of_all = FacesProof(margin, threshold, tuple(proofs))
    found = Certificate("faces", dimension, order, tensor, shifted, proof_of_all)
    return found if found.verify() else None


def _raise_forbidden(form: Form, dimension: int, order: int, margin: Fraction) -> Fraction:
    """Give the monomials that fit no face their large coefficients; return the threshold."""
    lowest = max([-c / multiplicity(a) for a, c in form.items()] + [margin])
    # a power of two with margin (1 - n t)^d >= lowest (1 - (1 - n t)^d), however small the margin
    threshold = Fraction(1, 2 << (dimension - 1).bit_length())
    while margin * (mass := (1 - dimension * threshold) ** order) < lowest * (1 - mass):
        threshold /= 2
    strong = Fraction(math.ceil(lowest / threshold**order))
    for index in monomials(dimension, order):
        if index not in form:
            form[index] = strong
    return threshold
