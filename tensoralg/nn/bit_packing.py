"""Integer codes of a few bits in bytes, without gaps."""

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.quantization_grid import number_of_bits

__all__ = ["pack_codes", "pack_rows", "unpack_codes", "unpack_rows"]


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
    bits = number_of_bits(bits)
    low, high = code_range(bits)
    flat = codes.detach().reshape(-1).to(torch.int64)
    if flat.numel() and (int(flat.min()) < low or int(flat.max()) > high):
        raise ValueError(
            f"codes of {bits} bits lie in {low} .. {high}; "
            f"got {int(flat.min())} .. {int(flat.max())}"
        )
    count = flat.numel()
    groups = torch.nn.functional.pad(flat & ((1 << bits) - 1), (0, -count % 8)).reshape(-1, 8)
    places = torch.arange(8, device=flat.device)
    # eight codes fill `bits` bytes; the sum of disjoint bits cannot carry
    words = (groups << (places * bits)).sum(dim=1)
    octets = (words[:, None] >> (places[:bits] * 8)) & 255
    return octets.to(torch.uint8).reshape(-1)[: -(-count * bits // 8)]


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
    bits = number_of_bits(bits)
    count = 1
    for size in shape:
        count *= size
    if packed.ndim != 1 or packed.numel() != -(-count * bits // 8):
        raise ShapeError(
            f"{count} codes of {bits} bits take {-(-count * bits // 8)} bytes; "
            f"packed has shape {tuple(packed.shape)}"
        )
    return _split_bytes(packed.reshape(1, -1), bits)[0, :count].reshape(shape)


def unpack_rows(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Read rows of codes that were packed one by one, each from a byte of its own on.

    Parameters
    ----------
    packed : Tensor of uint8, shape (rows, ceil(columns * bits / 8))
        The rows' bytes, each as `pack_codes` stores it.
    bits : int
        2 to 8.
    columns : int
        Codes of a row.

    Returns
    -------
    Tensor of int8, shape (rows, columns)
        The codes.

    Examples
    --------
    >>> unpack_rows(torch.tensor([[120, 1]], dtype=torch.uint8), 4, 3)
    tensor([[-8,  7,  1]], dtype=torch.int8)
    """
    return _split_bytes(packed, bits)[:, :columns]


def pack_rows(codes: Tensor, bits: int) -> Tensor:
    """Store every row of a matrix of codes from a byte of its own on.

    Parameters
    ----------
    codes : Tensor of integers, shape (rows, columns)
        As for `pack_codes`.
    bits : int
        2 to 8.

    Returns
    -------
    Tensor of uint8, shape (rows, ceil(columns * bits / 8))
        The bytes.

    Examples
    --------
    >>> pack_rows(torch.tensor([[-8, 7, 1], [0, 1, 2]]), 4).tolist()
    [[120, 1], [16, 2]]
    """
    rows, columns = codes.shape
    width = -(-columns * bits // 8)
    padded = torch.nn.functional.pad(codes.detach().to(torch.int64), (0, -columns % 8))
    whole = pack_codes(padded, bits).reshape(rows, padded.shape[1] // 8 * bits)
    return whole[:, :width].contiguous()


def _split_bytes(packed: Tensor, bits: int) -> Tensor:
    """Split the bytes of every row into codes, some more than were stored."""
    if bits == 8:
        return packed.view(torch.int8)
    if bits in (2, 4):  # codes do not cross bytes: shifted up, then down with the sign
        signed = packed.view(torch.int8)
        ups = [8 - bits - place for place in range(0, 8, bits)]
        parts = [(signed << up) >> (8 - bits) for up in ups]
        return torch.stack(parts, dim=-1).flatten(1)
    kind = torch.int32 if bits == 3 else torch.int64
    octets = torch.nn.functional.pad(packed, (0, -packed.shape[1] % bits)).to(kind)
    octets = octets.reshape(octets.shape[0], octets.shape[1] // bits, bits)
    word = octets[..., 0].clone()
    for place in range(1, bits):
        word |= octets[..., place] << (8 * place)
    width = 32 if kind == torch.int32 else 64
    # to the top of the word, then down with the sign
    parts = [
        ((word << (width - (place + 1) * bits)) >> (width - bits)).to(torch.int8)
        for place in range(8)
    ]
    return torch.stack(parts, dim=-1).flatten(1)


def code_range(bits: int, *, signed: bool = True) -> tuple[int, int]:
    """Return the least and the largest code of `bits` bits."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
