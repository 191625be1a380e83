"""Completely positive tensors and copositive forms: proofs either way, optimization, examples."""

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.copositive import (
    Copositivity,
    CopositivityVerdict,
    copositivity,
)
from tensoralg.completely_positive.detection import Detection, Verdict, detect
from tensoralg.completely_positive.examples import cauchy, hilbert, lehmer, minimum, pascal
from tensoralg.completely_positive.modelling import relaxation_constraints
from tensoralg.completely_positive.nearest import closest
from tensoralg.completely_positive.optimization import ConeResult, minimize

__all__ = [
    "Certificate",
    "ConeResult",
    "Copositivity",
    "CopositivityVerdict",
    "Detection",
    "Verdict",
    "cauchy",
    "closest",
    "copositivity",
    "detect",
    "hilbert",
    "lehmer",
    "minimize",
    "minimum",
    "pascal",
    "relaxation_constraints",
]
