"""Completely positive tensors: detection with a proof either way, and examples."""

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.detection import Detection, Verdict, detect
from tensoralg.completely_positive.examples import cauchy, hilbert, lehmer, minimum, pascal

__all__ = [
    "Certificate",
    "Detection",
    "Verdict",
    "cauchy",
    "detect",
    "hilbert",
    "lehmer",
    "minimum",
    "pascal",
]
