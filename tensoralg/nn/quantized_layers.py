"""Layers whose weights are packed integer codes, turned into numbers when they are used."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from tensoralg.nn.input_statistics import Convolution
from tensoralg.nn.packed_weight import PackedWeight

__all__ = [
    "QuantizedConvolution",
    "QuantizedEmbedding",
    "QuantizedLayer",
    "QuantizedLinear",
]

_CONVOLVE: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


class QuantizedLayer(nn.Module):
    """Base of the layers with packed weights.

    Parameters
    ----------
    bias : Tensor or None
        Becomes a parameter that needs a gradient if the tensor does.

    Notes
    -----
    Gradients flow to inputs and biases; codes and steps are buffers.
    """

    bias: nn.Parameter | None

    def __init__(self, bias: Tensor | None = None) -> None:
        super().__init__()
        if bias is None:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)

    @property
    def weight(self) -> Tensor:
        """The weight in the shape that the dense layer's has, computed anew each time."""
        raise NotImplementedError

    @property
    def packed_weights(self) -> tuple[PackedWeight, ...]:
        """All that holds codes."""
        return tuple(m for m in self.modules() if isinstance(m, PackedWeight))

    @property
    def size_bytes(self) -> int:
        """Bytes of codes and grids; the bias is not counted."""
        return sum(packed.size_bytes for packed in self.packed_weights)


class QuantizedLinear(QuantizedLayer):
    """Linear layer with packed weights.

    Parameters
    ----------
    packed : PackedWeight, shape (out_features, in_features)
        The weight; shared, not copied: tied layers have the same one.
    bias : Tensor, shape (out_features,), optional
        The bias.

    See Also
    --------
    quantize : makes it.

    Examples
    --------
    >>> import torch
    >>> layer = QuantizedLinear(PackedWeight(2, 3, 4))
    >>> layer(torch.ones(5, 3)).shape, layer.size_bytes
    (torch.Size([5, 2]), 12)
    """

    def __init__(self, packed: PackedWeight, bias: Tensor | None = None) -> None:
        super().__init__(bias)
        self.packed = packed
        self.out_features, self.in_features = packed.shape

    @property
    def weight(self) -> Tensor:
        """The weight, shape (out_features, in_features), computed anew each time."""
        return self.packed.dequantize()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute ``x W^T + b``.

        Parameters
        ----------
        input : Tensor, shape (..., in_features)
            Any leading shape.

        Returns
        -------
        Tensor, shape (..., out_features)
            The output.
        """
        return functional.linear(input, self.weight, self.bias)

    def to_linear(self) -> nn.Linear:
        """Build the dense layer that computes the same; it shares nothing with this one."""
        sizes = self.in_features, self.out_features
        linear = nn.Linear(*sizes, bias=self.bias is not None, device="meta")
        linear.weight = nn.Parameter(self.weight)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.detach().clone())
        return linear.train(self.training)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class QuantizedConvolution(QuantizedLayer):
    """Convolution in one to three dimensions with packed weights.

    Parameters
    ----------
    packed : PackedWeight, shape (out_channels, channels of a group times kernel positions)
        The kernel.
    like : nn.Conv1d, nn.Conv2d or nn.Conv3d
        Whose sizes, stride, padding, dilation and groups it has.
    bias : Tensor, shape (out_channels,), optional
        The bias.

    See Also
    --------
    quantize : makes it.

    Examples
    --------
    >>> import torch
    >>> like = nn.Conv2d(4, 6, 3, groups=2, padding=1, bias=False)
    >>> layer = QuantizedConvolution(PackedWeight(6, 18, 4), like)
    >>> layer(torch.ones(1, 4, 5, 5)).shape
    torch.Size([1, 6, 5, 5])
    """

    def __init__(self, packed: PackedWeight, like: Convolution, bias: Tensor | None = None) -> None:
        super().__init__(bias)
        self.packed = packed
        self.in_channels, self.out_channels = like.in_channels, like.out_channels
        self.kernel_size, self.stride = tuple(like.kernel_size), tuple(like.stride)
        self.padding, self.dilation = like.padding, tuple(like.dilation)
        self.groups, self.padding_mode = like.groups, like.padding_mode
        self._border = list(like._reversed_padding_repeated_twice)

    @property
    def weight(self) -> Tensor:
        """The kernel, shape (out_channels, channels of a group, ...), computed anew each time."""
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        return self.packed.dequantize().reshape(shape)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Convolve.

        Parameters
        ----------
        input : Tensor, shape (batch, in_channels, ...) or (in_channels, ...)
            As for ``nn.Conv2d``.

        Returns
        -------
        Tensor, shape (batch, out_channels, ...) or (out_channels, ...)
            The output.
        """
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(input, self._border, mode=self.padding_mode)  # noqa: A001
            padding = 0
        return _CONVOLVE[len(self.kernel_size)](
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )


class QuantizedEmbedding(QuantizedLayer):
    """Embedding with a packed table; only the rows that are looked up are turned into numbers.

    Parameters
    ----------
    packed : PackedWeight, shape (num_embeddings, embedding_dim)
        The table; shared, not copied: tied layers have the same one.
    padding_idx : int, optional
        Kept for the record; its row is in the table as every other is.

    See Also
    --------
    quantize : makes it.

    Examples
    --------
    >>> import torch
    >>> layer = QuantizedEmbedding(PackedWeight(10, 4, 8))
    >>> layer(torch.tensor([[1, 2, 9]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, packed: PackedWeight, padding_idx: int | None = None) -> None:
        super().__init__()
        self.packed = packed
        self.num_embeddings, self.embedding_dim = packed.shape
        self.padding_idx = padding_idx

    @property
    def weight(self) -> Tensor:
        """The table, shape (num_embeddings, embedding_dim), computed anew each time."""
        return self.packed.dequantize()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Look up rows.

        Parameters
        ----------
        input : Tensor of int, any shape
            Numbers of rows.

        Returns
        -------
        Tensor, shape (..., embedding_dim)
            The rows.

        Raises
        ------
        IndexError
            A number that is no row's (on a GPU in the device's own way).
        """
        return self.packed.lookup(input)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
