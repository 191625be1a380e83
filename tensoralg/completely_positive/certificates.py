"""Exact certificates that a tensor is not completely positive.

Each function proves one way of leaving the cone, or returns None; `Certificate.verify` checks a
proof again from its own numbers, with integers and Fractions only.
"""

from tensoralg.solvers.certificate_bernstein import bernstein_certificate
from tensoralg.solvers.certificate_faces import faces_certificate
from tensoralg.solvers.certificate_gram import gram_certificate
from tensoralg.solvers.certificate_means import (
    hoelder_certificate,
    means_certificate,
    negative_entry_certificate,
    zero_pattern_certificate,
)
from tensoralg.solvers.exact_certificates import Certificate

__all__ = [
    "Certificate",
    "bernstein_certificate",
    "faces_certificate",
    "gram_certificate",
    "hoelder_certificate",
    "means_certificate",
    "negative_entry_certificate",
    "zero_pattern_certificate",
]
