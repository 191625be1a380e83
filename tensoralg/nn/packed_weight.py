"""A matrix of integer codes of a few bits with its grid, as buffers of a module."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn.bit_packing import pack_rows, unpack_rows
from tensoralg.solvers.quantization_grid import number_of_bits

__all__ = ["Coded", "PackedWeight"]


class Coded(Protocol):
    """Codes with their grid, such as a `QuantizedWeight`."""

    @property
    def codes(self) -> Tensor:
        """Signed codes, shape (rows, columns)."""

    @property
    def scale(self) -> Tensor:
        """Steps, shape (rows, groups)."""

    @property
    def zero_point(self) -> Tensor:
        """Codes of the value 0, shape (rows, groups)."""

    @property
    def bits(self) -> int:
        """Bits of a code."""

    @property
    def group_size(self) -> int:
        """Columns that share a step."""


class PackedWeight(nn.Module):
    """A matrix on a grid, its codes packed to `bits` bits each; rows begin on whole bytes.

    Parameters
    ----------
    rows, columns : int
        Shape of the matrix.
    bits : int
        2 to 8.
    groups : int, default 1
        Steps of a row.
    group_size : int, optional
        Columns that share a step; all by default.
    shared_scale : bool, default False
        Whether all rows have the same steps, which are then stored once.
    asymmetric : bool, default False
        Whether zero points are stored.
    dtype : torch.dtype, optional
        Of the scale, and so of the values.
    device : torch.device, optional
        Of the buffers.

    Attributes
    ----------
    packed : Tensor of uint8, shape (rows, ceil(columns * bits / 8))
        The codes.
    scale : Tensor, shape (rows or 1, groups)
        The steps.
    zero_point : Tensor of int8, same shape, or None
        The codes of the value 0; None where all are 0.
    layout : Tensor of int64, shape (4,)
        Rows, columns, bits, group size: what `load_state_dict` needs to take over other ones.

    Notes
    -----
    The module converts and moves as every module does: ``.half()`` changes the scale's dtype,
    codes stay integers.

    Examples
    --------
    >>> from tensoralg.nn import comq
    >>> found = comq(torch.tensor([[3.0, -1.0], [0.5, 0.0]]), torch.eye(2), 4)
    >>> packed = PackedWeight.of(found)
    >>> torch.equal(packed.dequantize(), found.dequantize()), packed.packed.shape
    (True, torch.Size([2, 1]))
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None
    layout: Tensor

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        *,
        groups: int = 1,
        group_size: int | None = None,
        shared_scale: bool = False,
        asymmetric: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.bits = bits = number_of_bits(bits)
        self.rows, self.columns = rows, columns
        self.group_size = columns if group_size is None else group_size
        width = -(-columns * bits // 8)
        steps = (1 if shared_scale else rows, groups)
        self.register_buffer("packed", torch.zeros(rows, width, dtype=torch.uint8, device=device))
        self.register_buffer("scale", torch.ones(steps, dtype=dtype, device=device))
        zero = torch.zeros(steps, dtype=torch.int8, device=device) if asymmetric else None
        self.register_buffer("zero_point", zero)
        layout = torch.tensor([rows, columns, bits, self.group_size], device=device)
        self.register_buffer("layout", layout)

    @classmethod
    def of(cls, found: Coded) -> "PackedWeight":
        """Pack codes.

        Parameters
        ----------
        found : QuantizedWeight
            The codes with their grid.

        Returns
        -------
        PackedWeight
            On the device of the codes.
        """
        rows, columns = found.codes.shape
        scale, zero = found.scale.detach(), found.zero_point
        shared = rows > 1 and bool((scale == scale[:1]).all() & (zero == zero[:1]).all())
        if shared:
            scale, zero = scale[:1], zero[:1]
        made = cls(
            rows,
            columns,
            found.bits,
            groups=scale.shape[1],
            group_size=found.group_size,
            shared_scale=shared,
            asymmetric=bool(zero.any()),
            dtype=scale.dtype,
            device=scale.device,
        )
        made.packed.copy_(pack_rows(found.codes, found.bits))
        made.scale.copy_(scale)
        if made.zero_point is not None:
            made.zero_point.copy_(zero)
        return made

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def codes(self) -> Tensor:
        """The codes, int8, shape (rows, columns)."""
        return unpack_rows(self.packed, self.bits, self.columns)

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, steps and zero points."""
        parts = [self.packed, self.scale, self.zero_point]
        return sum(t.numel() * t.element_size() for t in parts if t is not None)

    def dequantize(self) -> Tensor:
        """Return the values, shape (rows, columns), in the dtype of the scale."""
        return self._values(self.codes, self.scale, self.zero_point)

    def lookup(self, ids: Tensor) -> Tensor:
        """Return some rows, without unpacking the others.

        Parameters
        ----------
        ids : Tensor of int, any shape
            Their numbers.

        Returns
        -------
        Tensor, shape (..., columns)
            The values.
        """
        flat = ids.reshape(-1)
        codes = unpack_rows(self.packed.index_select(0, flat), self.bits, self.columns)
        scale, zero = self.scale, self.zero_point
        if scale.shape[0] == self.rows:
            scale = scale.index_select(0, flat)
            zero = None if zero is None else zero.index_select(0, flat)
        return self._values(codes, scale, zero).reshape(*ids.shape, self.columns)

    def _values(self, codes: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        """Multiply offsets from the zero point with the steps of their groups."""
        if scale.shape[1] == 1:
            values = codes.to(scale.dtype)
            return (values if zero is None else values - zero.to(scale.dtype)) * scale
        columns, size = self.columns, self.group_size
        padded = nn.functional.pad(codes, (0, scale.shape[1] * size - columns))
        values = padded.reshape(len(codes), scale.shape[1], size).to(scale.dtype)
        if zero is not None:
            values = values - zero.to(scale.dtype)[:, :, None]
        whole: Tensor = (values * scale[:, :, None]).flatten(1)
        return whole[:, :columns]

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Take over the stored bits, groups and zero points before the values are copied."""
        layout, scale = state_dict.get(f"{prefix}layout"), state_dict.get(f"{prefix}scale")
        zero = state_dict.get(f"{prefix}zero_point")
        if layout is not None and scale is not None:
            rows, columns, bits, size = (int(value) for value in layout)
            if (rows, columns) != self.shape:
                raise ShapeError(
                    f"{prefix}layout is that of a matrix {rows} x {columns}; "
                    f"this one is {self.rows} x {self.columns}"
                )
            self.bits, self.group_size = number_of_bits(bits), size
            # what does not fit these shapes is then refused as every other buffer is
            steps = (1 if scale.shape[0] == 1 else rows, -(-columns // max(size, 1)))
            self.packed = self.packed.new_zeros(rows, -(-columns * bits // 8))
            self.scale = self.scale.new_ones(steps)
            self.zero_point = None if zero is None else self.packed.new_zeros(steps).char()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        kind = "" if self.zero_point is None else ", asymmetric"
        groups = "" if self.scale.shape[1] == 1 else f", group_size={self.group_size}"
        return f"{self.rows}, {self.columns}, bits={self.bits}{groups}{kind}"
