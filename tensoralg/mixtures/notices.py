"""Warnings that point at the user's line, however deep the code that raises them."""

import sys
import warnings

__all__ = ["warn"]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first caller outside of the package.

    Parameters
    ----------
    message : str
        What happened and what to do about it.
    category : type of Warning, default UserWarning
        Its kind.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tensoralg."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
