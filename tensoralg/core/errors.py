"""The errors and warnings that tensoralg raises at its borders."""

__all__ = [
    "ConvergenceWarning",
    "NotSymmetricError",
    "PersistenceError",
    "ProblemTooLargeError",
    "RankBoundError",
    "ShapeError",
    "TensorAlgError",
]


class TensorAlgError(Exception):
    """Base class of every error that tensoralg defines."""


class ShapeError(TensorAlgError, ValueError):
    """An array has a shape that the operation does not accept."""


class NotSymmetricError(TensorAlgError, ValueError):
    """A dense array that should be symmetric is not, within the stated tolerance."""


class RankBoundError(TensorAlgError, ValueError):
    """More terms were asked for than the given data can determine."""


class ProblemTooLargeError(TensorAlgError):
    """The predicted size of a problem exceeds the memory or time it may take."""


class PersistenceError(TensorAlgError, ValueError):
    """A file is not one that `load` can read; the message names the path and the reason."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped before its tolerance was met; the result carries a status."""
