"""Sums over what a layer was given: all that quantization needs, of a size fixed by the layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError

__all__ = [
    "Convolution",
    "InputSums",
    "input_rows",
    "input_sums",
    "input_width",
    "lookup_counts",
    "no_sums",
]

_CHUNK = 1 << 22  # numbers that are turned into float64 at a time
_BLOCK = 256  # columns of a block of a symmetric product

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass
class InputSums:
    """Second and first moments of the rows that a layer multiplies with its weight.

    Parameters
    ----------
    gram : Tensor of float64, shape (groups, n, n)
        The sums of products of two inputs, for each group of a convolution; one group elsewhere.
    total : Tensor of float64, shape (groups, n)
        The sums of the inputs.
    rows : int
        How many rows were added up.

    Examples
    --------
    >>> sums = input_sums(nn.Linear(2, 1), torch.tensor([[1.0, 2.0]]), None)
    >>> sums.gram.tolist(), sums.total.tolist(), sums.rows
    ([[[1.0, 2.0], [2.0, 4.0]]], [[1.0, 2.0]], 1)
    """

    gram: Tensor
    total: Tensor
    rows: int

    def add(self, other: "InputSums") -> None:
        """Add the sums over other rows.

        Parameters
        ----------
        other : InputSums
            Of the same layer.
        """
        self.gram += other.gram
        self.total += other.total
        self.rows += other.rows

    def is_finite(self) -> bool:
        """Tell whether all inputs were finite: each one's square is on the diagonal."""
        return bool(torch.isfinite(self.gram.diagonal(dim1=-2, dim2=-1).sum()))


def input_width(layer: nn.Module) -> tuple[int, int]:
    """Tell how many groups of how many inputs a layer's weight is multiplied with.

    Parameters
    ----------
    layer : Module
        A linear layer, dense or a tensor train, or a convolution.

    Returns
    -------
    tuple of int
        Groups, and inputs of a group: for a convolution channels times kernel positions.

    Examples
    --------
    >>> input_width(nn.Conv2d(8, 4, 3, groups=2))
    (2, 36)
    """
    if isinstance(layer, Convolution):
        return layer.groups, layer.in_channels // layer.groups * prod(layer.kernel_size)
    width: int = layer.in_features  # type: ignore[assignment]
    return 1, width


def no_sums(layer: nn.Module, device: torch.device) -> InputSums:
    """Return the sums over no rows.

    Parameters
    ----------
    layer : Module
        As for `input_width`.
    device : torch.device
        Where the inputs are; without float64 there, the sums are on the CPU.

    Returns
    -------
    InputSums
        Zeros.

    Examples
    --------
    >>> no_sums(nn.Linear(2, 3), torch.device("cpu")).gram.shape
    torch.Size([1, 2, 2])
    """
    groups, width = input_width(layer)
    where = torch.device("cpu") if device.type == "mps" else device
    gram = torch.zeros(groups, width, width, dtype=torch.float64, device=where)
    return InputSums(gram, gram.new_zeros(groups, width), 0)


def input_sums(layer: nn.Module, x: Tensor, keep: Tensor | None) -> InputSums:
    """Add up one batch of inputs.

    Parameters
    ----------
    layer : Module
        A linear layer, dense or a tensor train, or a convolution.
    x : Tensor
        Its input: (..., in_features) or (batch, channels, ...).
    keep : Tensor of bool, shape ``x.shape[:-1]``, optional
        The rows that count; for linear layers only.

    Returns
    -------
    InputSums
        In float64 on the input's device (on the CPU where the device has no float64).

    Raises
    ------
    ShapeError
        An input of another width.
    """
    width, sums = input_width(layer)[1], no_sums(layer, x.device)
    for chunk in input_rows(layer, x, keep):
        wide = chunk.to(sums.gram)
        _add_products(sums.gram, wide)
        sums.total += wide.sum(dim=1)
        sums.rows += wide.shape[1]
    for start in range(0, width, _BLOCK):  # the lower blocks from the upper ones
        stop = min(start + _BLOCK, width)
        sums.gram[:, stop:, start:stop] = sums.gram[:, start:stop, stop:].mT
    return sums


def input_rows(layer: nn.Module, x: Tensor, keep: Tensor | None) -> Iterator[Tensor]:
    """Yield the rows that a layer multiplies with its weight, some at a time.

    Parameters
    ----------
    layer : Module
        A linear layer, dense or a tensor train, or a convolution.
    x : Tensor
        Its input.
    keep : Tensor of bool, optional
        As for `input_sums`.

    Yields
    ------
    Tensor, shape (groups, m, n)
        Inputs, or patches of images.

    Raises
    ------
    ShapeError
        An input of another width.

    Examples
    --------
    >>> [rows.shape for rows in input_rows(nn.Conv1d(2, 3, 2), torch.ones(4, 2, 5), None)]
    [torch.Size([1, 16, 4])]
    """
    if isinstance(layer, Convolution):
        yield from _patches(layer, x)
        return
    width = input_width(layer)[1]
    if x.ndim == 0 or x.shape[-1] != width:
        raise ShapeError(f"inputs must have shape (..., {width}); got {tuple(x.shape)}")
    rows = x.reshape(-1, width) if keep is None else x[keep]
    yield from torch.split(rows[None], max(1, _CHUNK // max(1, width)), dim=1)


def _add_products(gram: Tensor, rows: Tensor) -> None:
    """Add the products of the rows' columns to the upper blocks of a Gram matrix."""
    width = rows.shape[2]
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        gram[:, start:stop, start:] += rows[:, :, start:stop].mT @ rows[:, :, start:]


def _patches(layer: Convolution, x: Tensor) -> Iterator[Tensor]:
    """Yield, some images at a time, the patches that a convolution multiplies with its kernel."""
    d = len(layer.kernel_size)
    images = x if x.ndim == d + 2 else x[None]
    groups, width = input_width(layer)
    border = list(layer._reversed_padding_repeated_twice)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    positions = max(1, prod(images.shape[2:]))
    step = max(1, _CHUNK // max(1, groups * width * positions))
    for some in torch.split(images, step):
        patches = functional.pad(some, border, mode=mode) if any(border) else some
        for k in range(d):
            reach = (layer.kernel_size[k] - 1) * layer.dilation[k] + 1
            patches = patches.unfold(2 + k, reach, layer.stride[k])[..., :: layer.dilation[k]]
        # (images, channels, positions.., kernel..), ordered as the kernel's entries are
        sizes = (len(some), groups, layer.in_channels // groups)
        patches = patches.reshape(*sizes, *patches.shape[2:])
        order = (1, 0, *range(3, 3 + d), 2, *range(3 + d, 3 + 2 * d))
        yield patches.permute(order).reshape(groups, -1, width)


def lookup_counts(layer: nn.Embedding, ids: Tensor, keep: Tensor | None) -> Tensor:
    """Count how often each row of a table was looked up: the diagonal of its Gram matrix.

    Parameters
    ----------
    layer : nn.Embedding
        The table.
    ids : Tensor of int, any shape
        Numbers of rows.
    keep : Tensor of bool, same shape, optional
        The lookups that count.

    Returns
    -------
    Tensor of int64, shape (num_embeddings,)
        The counts.

    Examples
    --------
    >>> lookup_counts(nn.Embedding(4, 2), torch.tensor([[0, 2], [2, 1]]), None).tolist()
    [1, 1, 2, 0]
    """
    chosen = ids.reshape(-1) if keep is None else ids[keep]
    return torch.bincount(chosen.long(), minlength=layer.num_embeddings)
