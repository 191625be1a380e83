"""The public name of the errors and warnings defined on the ground floor."""

from tensoralg.core.errors import (
    ConvergenceWarning,
    NotSymmetricError,
    PersistenceError,
    ProblemTooLargeError,
    RankBoundError,
    ShapeError,
    TensorAlgError,
)

__all__ = [
    "ConvergenceWarning",
    "NotSymmetricError",
    "PersistenceError",
    "ProblemTooLargeError",
    "RankBoundError",
    "ShapeError",
    "TensorAlgError",
]
