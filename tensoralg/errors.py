"""The public name of the errors and warnings defined on the ground floor."""

from tensoralg.core.errors import (
    ConvergenceWarning,
    NotSymmetricError,
    ProblemTooLargeError,
    RankBoundError,
    ShapeError,
    TensorAlgError,
)

__all__ = [
    "ConvergenceWarning",
    "NotSymmetricError",
    "ProblemTooLargeError",
    "RankBoundError",
    "ShapeError",
    "TensorAlgError",
]
