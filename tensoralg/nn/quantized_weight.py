"""Codes of a layer's weight from the Gram matrix of its inputs, torch in and torch out.

References
----------
.. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
   algorithm for post-training quantization", arXiv:2403.07134 (2024).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensoralg.solvers.gram_coordinate_descent import (
    CodesStart,
    EntryOrder,
    gram_coordinate_descent,
)
from tensoralg.solvers.quantization_grid import ScaleKind

__all__ = ["QuantizedWeight", "comq"]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A weight on a grid of a few bits: ``scale * (codes - zero_point)``.

    Parameters
    ----------
    codes : Tensor of int8, shape (out, in)
        From ``-2**(bits-1)`` to ``2**(bits-1) - 1``.
    scale : Tensor, shape (out, groups)
        The positive steps, in the weight's dtype; in float32 where that is of half precision.
    zero_point : Tensor of int32, shape (out, groups)
        The codes of the value 0; zeros on a symmetric grid.
    bits : int
        2 to 8.
    group_size : int
        Columns that share a step; the last group may be shorter.
    errors : tuple of float
        ``|X (W - Q)^T|_F / |X W^T|_F`` after the start and after every sweep; never rises.

    Examples
    --------
    >>> import torch
    >>> found = comq(torch.tensor([[3.0, -1.0, 0.0]]), torch.eye(3), 3)
    >>> found.codes, found.scale
    (tensor([[ 3, -1,  0]], dtype=torch.int8), tensor([[1.]]))
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
    init: CodesStart = "gptq",
    scale: ScaleKind = "channel",
    group_size: int | None = None,
    order: EntryOrder = "greedy",
    symmetric: bool = True,
    search: bool = True,
    update_scale: bool = True,
) -> QuantizedWeight:
    """Quantise a weight so that the layer's outputs change least.

    Parameters
    ----------
    weight : Tensor, shape (out, in)
        As `torch.nn.Linear` holds it.
    gram : Tensor, shape (in, in)
        ``X^T X`` of the layer's inputs, on the weight's device; float64 is best. Columns without
        data get the nearest values.
    bits : int
        2 to 8.
    sweeps : int, default 4
        Passes over all entries, each followed by new steps of the grid.
    init : {"gptq", "nearest"}, default "gptq"
        The start: column by column, errors made up for by later columns, or nearest values.
    scale : {"channel", "layer"}, default "channel"
        One step per row (and group), or one for all.
    group_size : int, optional
        Columns per step; the last group may be shorter.
    order : {"greedy", "shared", "cyclic"}, default "greedy"
        Entries of each row by falling ``|x_i| |w_i|``, columns by the same over all rows, or as
        they stand.
    symmetric : bool, default True
        Whether the zero point is code 0. With False every row (and group) has its own, which is
        the better choice at 2 and 3 bits.
    search : bool, default True
        Whether the start also tries steps below that of the weight's range.
    update_scale : bool, default True
        Whether the steps follow the codes after a sweep.

    Returns
    -------
    QuantizedWeight
        On the weight's device, with scales in its dtype: in float32 for half precision, whose
        steps would be too coarse, in float64 for integers. A zero row stays exactly zero.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    ValueError
        NaN or infinite entries, a Gram matrix that is not symmetric, tensors without values or on
        different devices, or another option.

    See Also
    --------
    tensoralg.solvers.gram_coordinate_descent : The method, for arrays of any library.

    Notes
    -----
    Coordinate descent of COMQ (arXiv:2403.07134) on the Gram matrix alone, from a better start
    and with steps that follow the codes.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 0.9], [0.0, 0.1]])
    >>> found = comq(torch.tensor([[1.0, -0.4]]), x.T @ x, 4)
    >>> found.dequantize().shape, found.errors[-1] < 0.05
    (torch.Size([1, 2]), True)
    """
    if weight.device != gram.device:
        raise ValueError(
            f"weight and gram must be on one device; got {weight.device} and {gram.device}"
        )
    found = gram_coordinate_descent(
        _values("weight", weight),
        _values("gram", gram),
        bits,
        sweeps=sweeps,
        init=init,
        scale=scale,
        symmetric=symmetric,
        group_size=group_size,
        order=order,
        search=search,
        update_scale=update_scale,
    )
    return QuantizedWeight(
        torch.as_tensor(found.codes, device=weight.device),
        torch.as_tensor(found.scale, device=weight.device),
        torch.as_tensor(found.zero_point, device=weight.device),
        found.bits,
        found.group_size,
        found.errors,
    )


def _values(name: str, tensor: Tensor) -> Any:
    """Return a tensor's values where they are computed with: numpy on the host, torch elsewhere."""
    if tensor.is_meta or tensor.is_complex():
        raise ValueError(
            f"{name} must have real values; got dtype {tensor.dtype} on device {tensor.device}"
        )
    values = tensor.detach()
    if values.dtype in (torch.float16, torch.bfloat16):  # numpy has no such dtype as the latter
        values = values.float()
    # these devices have no double precision, or numba is faster there
    return values.cpu().numpy() if values.device.type in ("cpu", "mps") else values
