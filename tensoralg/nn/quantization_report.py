"""What quantizing a model did to each of its layers, as a table and as a picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from tensoralg.core.figures import CYCLE, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["QuantizationReport", "QuantizationRow"]


@dataclass(frozen=True, slots=True)
class QuantizationRow:
    """What became of one layer.

    Parameters
    ----------
    name : str
        The layer's name in the model.
    kind : str
        Its class before.
    bits : int or None
        Bits of a code; None where the layer stays.
    error : float or None
        ``|Y - Y'|_F / |Y|_F`` of the outputs Y of the calibration data (without bias), given the
        inputs that the codes were fitted to; of the weight where there were no data. None where
        the layer stays.
    nearest_error : float or None
        The same after rounding to the nearest value of the grid over the weight's range.
    bytes_before, bytes_after : int
        Of the weight, with grids.
    seconds : float
        That its codes took.
    note : str
        Why the layer stays, or what else there is to know.

    Examples
    --------
    >>> QuantizationRow("head", "Linear", 4, 0.05, 0.09, 4096, 640, 0.01, "").nearest_error
    0.09
    """

    name: str
    kind: str
    bits: int | None
    error: float | None
    nearest_error: float | None
    bytes_before: int
    bytes_after: int
    seconds: float
    note: str


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationReport:
    """What quantizing a model did; printing it shows a table.

    Parameters
    ----------
    rows : tuple of QuantizationRow
        One for each layer that could be quantized, in the model's order.
    bytes_before, bytes_after : int
        Of the whole model, parameters and buffers, shared ones counted once.
    model : Module
        The quantized model: the given object, but for a model that is a single layer.

    See Also
    --------
    quantize : makes it.

    Examples
    --------
    >>> row = QuantizationRow("head", "Linear", 4, 0.05, 0.09, 4096, 640, 0.01, "")
    >>> print(QuantizationReport((row,), 4224, 768, nn.Identity()))
    layer  kind    bits  error  nearest         bytes  seconds  note
    head   Linear     4  0.050    0.090  4,096 -> 640    0.010
    model                                4,224 -> 768    0.010  5.5x smaller
    """

    rows: tuple[QuantizationRow, ...]
    bytes_before: int
    bytes_after: int
    model: nn.Module

    @property
    def seconds(self) -> float:
        """Seconds that all codes took."""
        return sum(row.seconds for row in self.rows)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Names of the quantized layers that never saw data."""
        return tuple(row.name for row in self.rows if row.bits and UNSEEN in row.note)

    def __str__(self) -> str:
        def number(value: float | None) -> str:
            return "" if value is None else f"{value:.3f}"

        smaller = self.bytes_before / max(1, self.bytes_after)
        lines = [("layer", "kind", "bits", "error", "nearest", "bytes", "seconds", "note")]
        lines += [
            (
                row.name or "(the model)",
                row.kind,
                str(row.bits or ""),
                number(row.error),
                number(row.nearest_error),
                f"{row.bytes_before:,} -> {row.bytes_after:,}",
                number(row.seconds),
                row.note,
            )
            for row in self.rows
        ]
        sizes = f"{self.bytes_before:,} -> {self.bytes_after:,}"
        note = f"{smaller:.3g}x smaller"
        lines.append(("model", "", "", "", "", sizes, number(self.seconds), note))
        widths = [max(len(line[k]) for line in lines) for k in range(8)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if k in (0, 1, 7) else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def plot(self) -> "Figure":
        """Draw the layers' errors beside those of nearest rounding, and their sizes.

        Returns
        -------
        matplotlib.figure.Figure
            Two panels; notebooks show it, ``savefig`` writes it.

        Raises
        ------
        PlottingUnavailableError
            matplotlib is not installed.
        """
        rows = [row for row in self.rows if row.bits is not None]
        places = list(range(len(rows)))
        figure, (left, right) = new_figure(10.0, 1.6 + 0.22 * len(rows), 2, sharey=True)
        for label, colour, values in (
            ("nearest rounding", CYCLE[1], [row.nearest_error or 0.0 for row in rows]),
            ("quantized", CYCLE[0], [row.error or 0.0 for row in rows]),
        ):
            left.plot(values, places, "o", color=colour, label=label, markersize=5)
        left.set_yticks(places, [f"{row.name or 'model'} ({row.bits} bits)" for row in rows])
        left.invert_yaxis()
        left.set_xlim(left=0.0)
        left.set_xlabel("relative error of the outputs")
        # a little above and below the places, as bars that share the axis
        for shift, colour, sizes in (
            (-0.2, CYCLE[7], [row.bytes_before for row in rows]),
            (0.2, CYCLE[0], [row.bytes_after for row in rows]),
        ):
            right.barh([place + shift for place in places], sizes, height=0.38, color=colour)
        right.set_xscale("log")
        right.set_xlabel("bytes before (grey) and after")
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x", color="0.9", linewidth=0.8)
        add_legend(figure, left)
        return figure


UNSEEN = "never saw data"
