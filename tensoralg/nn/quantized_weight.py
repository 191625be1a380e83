"""Codes of a layer's weight from the Gram matrix of its inputs, torch in and torch out."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tensoralg.solvers.gram_coordinate_descent import gram_coordinate_descent

__all__ = ["QuantizedWeight", "comq"]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A weight on a grid of a few bits.

    Parameters
    ----------
    codes : Tensor of int8, shape (out, in)
        From ``-2**(bits-1)`` to ``2**(bits-1) - 1``.
    scale : Tensor, shape (out, groups)
        The positive steps, in the weight's dtype.
    zero_point : Tensor of int32, shape (out, groups)
        The codes of the value 0; zeros on a symmetric grid.
    bits : int
        2 to 8.
    group_size : int
        Columns that share a step; the last group may be shorter.
    errors : tuple of float
        Relative error of the outputs after the start and after every sweep; never rises.
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor
    bits: int
    group_size: int
    errors: tuple[float, ...]

    def dequantize(self) -> Tensor:
        """Return the values, shape (out, in), in the dtype of `scale`."""
        group = torch.arange(self.codes.shape[1], device=self.codes.device) // self.group_size
        offsets = self.codes.to(torch.int32) - self.zero_point[:, group]
        return offsets.to(self.scale.dtype) * self.scale[:, group]


def comq(
    weight: Tensor,
    gram: Tensor,
    bits: int,
    *,
    sweeps: int = 4,
    init: Literal["gptq", "nearest"] = "gptq",
    scale: Literal["channel", "layer"] = "channel",
    group_size: int | None = None,
    order: Literal["greedy", "cyclic"] = "greedy",
    symmetric: bool = True,
) -> QuantizedWeight:
    """Quantise a weight so that the layer's outputs change least.

    Parameters
    ----------
    weight : Tensor, shape (out, in)
        As `torch.nn.Linear` holds it.
    gram : Tensor, shape (in, in)
        ``X^T X`` of the layer's inputs.
    bits : int
        2 to 8.
    sweeps : int, default 4
        Passes over all entries.
    init : {"gptq", "nearest"}, default "gptq"
        The start.
    scale : {"channel", "layer"}, default "channel"
        One step per row (and group), or one for all.
    group_size : int, optional
        Columns per step; the last group may be shorter.
    order : {"greedy", "cyclic"}, default "greedy"
        Entries by falling ``|x_i| |w_i|``, or as they stand.
    symmetric : bool, default True
        Whether the zero point is code 0.

    Returns
    -------
    QuantizedWeight
        On the weight's device, with scales in its dtype.

    Raises
    ------
    ValueError
        NaN or infinite entries, shapes that do not belong together, or another option.

    Examples
    --------
    >>> import torch
    >>> comq(torch.tensor([[1.0, -0.5]]), torch.eye(2), 2).dequantize().shape
    torch.Size([1, 2])
    """
    found = gram_coordinate_descent(
        weight.detach().cpu().double().numpy(),
        gram.detach().cpu().double().numpy(),
        bits,
        sweeps=sweeps,
        init=init,
        scale=scale,
        symmetric=symmetric,
        group_size=group_size,
        order=order,
    )
    device = weight.device
    return QuantizedWeight(
        torch.from_numpy(found.codes).to(device),
        torch.from_numpy(found.scale).to(device=device, dtype=weight.dtype),
        torch.from_numpy(found.zero_point).to(device),
        bits,
        found.group_size,
        found.errors,
    )
