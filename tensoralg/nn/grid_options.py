"""How codes are found, in one value."""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.quantized_weight import QuantizedWeight, comq
from tensoralg.solvers.gram_coordinate_descent import CodesStart, EntryOrder
from tensoralg.solvers.quantization_grid import ScaleKind, check_grid_options, minmax_grid

__all__ = ["GridOptions"]


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How codes are found; the first six are those of `comq`.

    Parameters
    ----------
    sweeps : int
        Passes over all entries.
    init : {"gptq", "nearest"}
        The start.
    scale : {"channel", "layer"}
        How many steps there are.
    group_size : int or None
        Columns per step.
    order : {"greedy", "shared", "cyclic"}
        Of the entries.
    symmetric : bool
        Whether the zero point is code 0.
    correct_bias : bool
        Whether a bias makes up for the mean error of the outputs.
    stored : torch.dtype or None
        To which steps are converted; None leaves them as they are found.

    Raises
    ------
    ValueError
        Another option than these.

    Examples
    --------
    >>> GridOptions().sweeps
    4
    """

    sweeps: int = 4
    init: CodesStart = "gptq"
    scale: ScaleKind = "channel"
    group_size: int | None = None
    order: EntryOrder = "greedy"
    symmetric: bool = True
    correct_bias: bool = True
    stored: torch.dtype | None = None

    def __post_init__(self) -> None:
        nonnegative_integer("sweeps", self.sweeps)
        check_grid_options(self.scale, self.group_size, 1)
        for name, value, accepted in (
            ("init", self.init, get_args(CodesStart)),
            ("order", self.order, get_args(EntryOrder)),
        ):
            if value not in accepted:
                raise ValueError(f"{name} must be one of {accepted}; got {value!r}")

    def codes(self, weight: Tensor, gram: Tensor, bits: int) -> QuantizedWeight:
        """Find codes under a Gram matrix.

        Parameters
        ----------
        weight : Tensor, shape (out, n)
            The weight.
        gram : Tensor, shape (n, n)
            Of the inputs.
        bits : int
            2 to 8.

        Returns
        -------
        QuantizedWeight
            The codes.
        """
        found = comq(
            weight,
            gram,
            bits,
            sweeps=self.sweeps,
            init=self.init,
            scale=self.scale,
            group_size=self.group_size,
            order=self.order,
            symmetric=self.symmetric,
        )
        if self.stored is None:
            return found
        return replace(found, scale=found.scale.to(self.stored))

    def nearest(self, weight: Tensor, bits: int) -> Tensor:
        """Round to the nearest values of the grid over the weight's range.

        Parameters
        ----------
        weight : Tensor, shape (out, n)
            The weight.
        bits : int
            2 to 8.

        Returns
        -------
        Tensor of float64, shape (out, n)
            The values.
        """
        array = weight.detach().double().cpu().numpy()
        grid = minmax_grid(
            array, bits, scale=self.scale, symmetric=self.symmetric, group_size=self.group_size
        )
        return torch.from_numpy(grid.dequantize(grid.nearest(array))).to(weight.device)
