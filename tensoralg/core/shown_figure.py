"""A figure that notebooks display; this module needs matplotlib, and `figures` loads it late."""

from io import BytesIO

from matplotlib.figure import Figure

__all__ = ["ShownFigure"]


class ShownFigure(Figure):
    """A figure of its own, which a notebook shows although pyplot does not know of it."""

    def _repr_png_(self) -> bytes:
        """Draw the picture that a notebook shows for the last value of a cell."""
        stream = BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()
