"""Integer codes of a few bits in bytes, without gaps."""

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError

__all__ = ["pack_codes", "unpack_codes"]


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Store signed integers of 2 to 8 bits one behind the other.

    Parameters
    ----------
    codes : Tensor of integers, any shape
        Each from ``-2**(bits-1)`` to ``2**(bits-1) - 1``.
    bits : int
        2 to 8.

    Returns
    -------
    Tensor of uint8, shape (ceil(codes.numel() * bits / 8),)
        Lowest bits first; the last byte is filled with zeros.

    Raises
    ------
    ValueError
        A code that `bits` bits do not hold, or another number of bits.

    Examples
    --------
    >>> import torch
    >>> pack_codes(torch.tensor([-8, 7, 1]), 4)
    tensor([120,   1], dtype=torch.uint8)
    """
    check_bits(bits)
    low, high = code_range(bits)
    flat = codes.detach().reshape(-1).to(torch.int64)
    if flat.numel() and (int(flat.min()) < low or int(flat.max()) > high):
        raise ValueError(
            f"codes of {bits} bits lie in {low} .. {high}; "
            f"got {int(flat.min())} .. {int(flat.max())}"
        )
    places = torch.arange(bits, device=flat.device)
    stream = ((flat[:, None] >> places) & 1).reshape(-1)
    padded = stream.new_zeros(-(-stream.numel() // 8) * 8)
    padded[: stream.numel()] = stream
    powers = 1 << torch.arange(8, device=flat.device)
    return (padded.reshape(-1, 8) * powers).sum(dim=1).to(torch.uint8)


def unpack_codes(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """Read what `pack_codes` stored.

    Parameters
    ----------
    packed : Tensor of uint8, shape (n,)
        The bytes.
    bits : int
        2 to 8.
    shape : tuple of int
        The codes' shape.

    Returns
    -------
    Tensor of int8, shape `shape`
        The codes.

    Raises
    ------
    ShapeError
        The number of bytes does not belong to `shape` and `bits`.

    Examples
    --------
    >>> import torch
    >>> unpack_codes(torch.tensor([120, 1], dtype=torch.uint8), 4, (3,))
    tensor([-8,  7,  1], dtype=torch.int8)
    """
    check_bits(bits)
    count = 1
    for size in shape:
        count *= size
    if packed.ndim != 1 or packed.numel() != -(-count * bits // 8):
        raise ShapeError(
            f"{count} codes of {bits} bits take {-(-count * bits // 8)} bytes; "
            f"packed has shape {tuple(packed.shape)}"
        )
    places = torch.arange(8, device=packed.device)
    stream = ((packed.to(torch.int64)[:, None] >> places) & 1).reshape(-1)[: count * bits]
    powers = 1 << torch.arange(bits, device=packed.device)
    powers[-1] = -powers[-1]  # two's complement
    return (stream.reshape(count, bits) * powers).sum(dim=1).to(torch.int8).reshape(shape)


def code_range(bits: int, *, signed: bool = True) -> tuple[int, int]:
    """Return the least and the largest code of `bits` bits."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def check_bits(bits: int) -> None:
    """Raise unless `bits` is an integer from 2 to 8."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 8:
        raise ValueError(f"bits must be an integer from 2 to 8; got {bits!r}")
