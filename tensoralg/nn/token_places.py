"""Where the tokens of a chunk stand and which of them are padding, checked and in full shape."""

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError

__all__ = ["as_positions", "as_valid"]


def as_valid(valid: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return the mask of tokens that are no padding.

    Parameters
    ----------
    valid : Tensor of bool, shape (B, T), or None
        None: all tokens are.
    shape : tuple of int
        (B, T).
    device : device
        Where the mask has to be.

    Returns
    -------
    Tensor of bool, shape (B, T)
        True where a token is no padding.

    Raises
    ------
    ShapeError
        Another shape.
    TypeError
        Not boolean.

    Examples
    --------
    >>> as_valid(None, (1, 2), torch.device("cpu"))
    tensor([[True, True]])
    """
    if valid is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    if valid.dtype != torch.bool:
        raise TypeError(f"valid must be boolean (False: padding); got {valid.dtype}")
    if tuple(valid.shape) != shape:
        raise ShapeError(f"valid must have shape (B, T) = {shape}; got {tuple(valid.shape)}")
    return valid.to(device)


def as_positions(positions: Tensor | None, start: Tensor, length: int) -> Tensor:
    """Return every token's position.

    Parameters
    ----------
    positions : Tensor of integers, shape (T,) or (B, T), or None
        None: one behind the other from `start`.
    start : Tensor of int64, shape (B,)
        Where each row begins.
    length : int
        T.

    Returns
    -------
    Tensor of int64, shape (B, T)
        The positions.

    Raises
    ------
    ShapeError
        Another shape.
    TypeError
        No integers.
    ValueError
        A position below 0.

    Examples
    --------
    >>> as_positions(None, torch.tensor([0, 5]), 2)
    tensor([[0, 1],
            [5, 6]])
    """
    batch = len(start)
    if positions is None:
        return start[:, None] + torch.arange(length, device=start.device)
    if positions.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
        raise TypeError(f"positions must be integers; got {positions.dtype}")
    if tuple(positions.shape) not in ((length,), (batch, length)):
        raise ShapeError(
            f"positions must have shape (T,) = {(length,)} or (B, T) = {(batch, length)}; "
            f"got {tuple(positions.shape)}"
        )
    if positions.numel() and positions.device.type != "meta" and int(positions.min()) < 0:
        raise ValueError(f"positions must be at least 0; got {int(positions.min())}")
    return positions.to(device=start.device, dtype=torch.int64).expand(batch, length)
