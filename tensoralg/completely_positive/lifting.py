"""Carry a certificate from the indices on which a tensor lives to all of its indices."""

from fractions import Fraction
from itertools import combinations_with_replacement

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.solvers.certificate_proofs import FacesProof
from tensoralg.solvers.rational_forms import Form, multiplicity

__all__ = ["lift_certificate"]


def lift_certificate(
    certificate: Certificate, tensor: ExactTensor, active: tuple[int, ...]
) -> Certificate | None:
    """Turn a certificate of a principal subtensor into one of the whole tensor.

    With <p, A> = -v the form ``p + margin (sum of the active x_i)^d + M sum of the other x_j^d``
    is proved nonnegative by the proof for p on the face of the active variables, and by the size
    of M elsewhere. The entries at ``j .. j`` must be zero: then M costs nothing.

    Parameters
    ----------
    certificate : Certificate
        Of the tensor on the active indices.
    tensor : ExactTensor
        The whole tensor.
    active : tuple of int
        Increasing indices, such that every entry with another index is zero.

    Returns
    -------
    Certificate or None
        Verified; None for too many variables.
    """
    n, d = tensor.dimension, tensor.order
    if len(active) == n:
        return certificate
    margin = -certificate.value / (2 * tensor.mass)
    form: Form = {}
    for row in combinations_with_replacement(range(len(active)), d):
        value = certificate.form.get(row, Fraction(0)) + margin * multiplicity(row)
        if value:
            form[tuple(active[i] for i in row)] = value
    lowest = max([-c / multiplicity(a) for a, c in form.items()] + [Fraction(0)])
    threshold = Fraction(1, 2 * n)
    while margin * (mass := (1 - n * threshold) ** d) < lowest * (1 - mass):
        threshold /= 2
    # a power of two, larger than the proof needs
    large = Fraction(2)
    while large * threshold**d < lowest:
        large *= 2
    for j in set(range(n)) - set(active):
        form[(j,) * d] = large
    proof = FacesProof(margin, threshold, ((active, certificate.proof),))
    listed = {a: value for a, value in tensor.lookup.items() if value}
    lifted = Certificate(certificate.kind, n, d, listed, form, proof)
    return lifted if lifted.verify() else None
