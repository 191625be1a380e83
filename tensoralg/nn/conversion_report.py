"""What converting a model did to each of its layers."""

from dataclasses import dataclass

__all__ = ["ConversionReport", "ConversionRow"]


@dataclass(frozen=True, slots=True)
class ConversionRow:
    """What became of one layer.

    Parameters
    ----------
    name : str
        The layer's name in the model.
    kind : str
        Its class before.
    converted : bool
        Whether it was replaced.
    parameters_before, parameters_after : int
        Numbers in its weight; the bias is not counted.
    operations_before, operations_after : int
        Floating-point operations of a forward pass over the report's tokens; for a convolution
        over as many positions of its output.
    error : float or None
        Relative error of the weight in the Frobenius norm; None where the cores are new or the
        layer stays.
    reason : str
        Why the layer stays, or what it became.

    Examples
    --------
    >>> row = ConversionRow("head", "Linear", False, 20, 20, 40, 40, None, "excluded")
    >>> row.parameters_before
    20
    """

    name: str
    kind: str
    converted: bool
    parameters_before: int
    parameters_after: int
    operations_before: int
    operations_after: int
    error: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What converting a model did; printing it shows a table.

    Parameters
    ----------
    rows : tuple of ConversionRow
        One for each linear layer, embedding and convolution, in the model's order.
    tokens : int
        Number of tokens for which operations are counted.
    parameters_before, parameters_after : int
        Parameters of the whole model, shared ones counted once.

    Examples
    --------
    >>> row = ConversionRow("head", "Linear", False, 20, 20, 40, 40, None, "excluded")
    >>> print(ConversionReport((row,), 1, 24, 24))
    layer  kind    parameters  operations  error  note
    head   Linear    20 -> 20    40 -> 40         excluded
    model            24 -> 24    40 -> 40         nothing converted
    """

    rows: tuple[ConversionRow, ...]
    tokens: int
    parameters_before: int
    parameters_after: int

    @property
    def operations_before(self) -> int:
        """Operations of all listed layers before."""
        return sum(row.operations_before for row in self.rows)

    @property
    def operations_after(self) -> int:
        """Operations of all listed layers after."""
        return sum(row.operations_after for row in self.rows)

    def __str__(self) -> str:
        lines = [("layer", "kind", "parameters", "operations", "error", "note")]
        lines += [
            (
                row.name or "(the model)",
                row.kind,
                f"{row.parameters_before:,} -> {row.parameters_after:,}",
                f"{row.operations_before:,} -> {row.operations_after:,}",
                "" if row.error is None else f"{row.error:.3f}",
                row.reason,
            )
            for row in self.rows
        ]
        lines.append(
            (
                "model",
                "",
                f"{self.parameters_before:,} -> {self.parameters_after:,}",
                f"{self.operations_before:,} -> {self.operations_after:,}",
                "",
                self._summary(),
            )
        )
        widths = [max(len(line[k]) for line in lines) for k in range(5)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  "
            f"{e:>{widths[4]}}  {f}".rstrip()
            for a, b, c, d, e, f in lines
        )

    def _summary(self) -> str:
        """Say in words what the whole model has gained or lost."""
        if not any(row.converted for row in self.rows):
            return "nothing converted"
        size = _times(self.parameters_before, self.parameters_after, "smaller", "larger")
        operations = _times(self.operations_before, self.operations_after, "fewer", "more")
        plural = "" if self.tokens == 1 else "s"
        return (
            f"{size or 'of the same size'}, {operations or 'as many'} operations "
            f"for {self.tokens:,} token{plural}"
        )


def _times(before: int, after: int, less: str, more: str) -> str:
    """Compare two counts; empty where three digits show no difference."""
    ratio = before / max(1, after)
    if f"{ratio:.3g}" == "1":
        return ""
    return f"{ratio:.3g}x {less}" if ratio > 1 else f"{after / max(1, before):.3g}x {more}"
