"""A convolution whose kernel is a tensor train over inputs, kernel positions and outputs."""

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.tensor_train_decomposition import dense_to_cores
from tensoralg.core.tensor_train_rounding import round_cores
from tensoralg.core.validation import positive_integer
from tensoralg.nn.core_products import merge_left
from tensoralg.nn.layer_shapes import default_ranks
from tensoralg.nn.parameters import copied
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.weight_train import computing_weight

__all__ = ["TTConvolution"]

_CONVOLVE: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_DENSE: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}


class TTConvolution(TensorizedLayer):
    """Convolution in one to three dimensions with a tensor-train kernel.

    Parameters
    ----------
    in_channels, out_channels : int
        Numbers of channels.
    kernel_size : sequence of int
        One number for each dimension.
    rank : int or sequence of int, optional
        As for `TTLinear`; there are two inner bonds.
    stride, dilation : sequence of int, optional
        As for ``nn.Conv2d``; ones by default.
    padding : sequence of int or {"same", "valid"}, optional
        As for ``nn.Conv2d``; none by default.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default "zeros"
        As for ``nn.Conv2d``.
    bias : bool, default True
        Whether there is a bias.
    dtype : torch.dtype, optional
        Of the parameters.
    device : torch.device or str, optional
        Of the parameters.

    Attributes
    ----------
    cores : ParameterList
        Shapes (1, in, r), (r, positions of the kernel, s), (s, out, 1).

    Notes
    -----
    The output comes from three convolutions in a row: one position wide from the inputs to r
    channels, the kernel's size from r to s, and one position wide to the outputs. The full kernel
    is never built.

    Examples
    --------
    >>> layer = TTConvolution(64, 64, (3, 3), rank=8, dilation=(2, 2))
    >>> layer(torch.zeros(1, 64, 10, 10)).shape, layer.compressed_parameters
    (torch.Size([1, 64, 6, 6]), 1600)
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        *,
        rank: int | Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        padding: Sequence[int] | str | None = None,
        dilation: Sequence[int] | None = None,
        padding_mode: str = "zeros",
        bias: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        kernel = tuple(positive_integer("kernel_size", k) for k in kernel_size)
        if len(kernel) not in _CONVOLVE:
            raise ValueError(f"kernel_size must have one to three numbers; got {kernel}")
        ones = (1,) * len(kernel)
        # the dense layer checks its arguments, and knows what padding means
        like = _DENSE[len(kernel)](
            positive_integer("in_channels", in_channels),
            positive_integer("out_channels", out_channels),
            kernel,  # type: ignore[arg-type]
            stride=stride or ones,  # type: ignore[arg-type]
            padding=padding if padding is not None else (0,) * len(kernel),  # type: ignore[arg-type]
            dilation=dilation or ones,  # type: ignore[arg-type]
            padding_mode=padding_mode,  # type: ignore[arg-type]
            device="meta",
        )
        sizes = (in_channels, prod(kernel), out_channels)
        ranks = default_ranks(sizes, rank, prod(sizes))
        shapes = list(zip(ranks[:-1], sizes, ranks[1:], strict=True))
        super().__init__(shapes, dtype=dtype, device=device)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.dilation = like.stride, like.dilation
        self.padding, self.padding_mode = like.padding, padding_mode
        self._border = list(like._reversed_padding_repeated_twice)
        self.dense_parameters = prod(sizes)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, dtype=dtype, device=device))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The kernel as the dense convolution has it, computed anew; quantized if the cores are."""
        kernel = merge_left(self._forward_cores()).reshape(self.in_channels, -1, self.out_channels)
        shape = (self.out_channels, self.in_channels, *self.kernel_size)
        return kernel.permute(2, 0, 1).reshape(shape)

    def reset_parameters(self) -> None:
        """Draw new cores and a new bias, of the sizes that ``nn.Conv2d`` draws."""
        fan_in = self.in_channels * prod(self.kernel_size)

        def represented() -> float:
            square = torch.ones(1, 1, dtype=torch.float64, device=self.cores[0].device)
            for core in self.train_cores():
                wide = core.double()
                square = torch.einsum("ab,anc,bnd->cd", square, wide, wide)
            return sqrt(float(square) / self.dense_parameters)

        self._draw_cores(1 / sqrt(3 * fan_in), represented)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / sqrt(fan_in), 1 / sqrt(fan_in))

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
        first, middle, last = self._forward_cores()
        ones, convolve = (1,) * len(self.kernel_size), _CONVOLVE[len(self.kernel_size)]
        x = convolve(
            self._quantized("input", input), first[0].mT.reshape(-1, first.shape[1], *ones)
        )
        padding = self.padding
        if self.padding_mode != "zeros":
            x = functional.pad(x, self._border, mode=self.padding_mode)
            padding = (0,) * len(ones)
        kernel = middle.permute(2, 0, 1).reshape(middle.shape[2], -1, *self.kernel_size)
        x = convolve(x, kernel, stride=self.stride, padding=padding, dilation=self.dilation)
        x = self._quantized("hidden", x)
        x = convolve(x, last[:, :, 0].mT.reshape(self.out_channels, -1, *ones), self.bias)
        return self._quantized("output", x)

    @classmethod
    def from_convolution(
        cls,
        convolution: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        *,
        rank: int | Sequence[int] | None = None,
        rtol: float | None = None,
    ) -> Self:
        """Factorise the kernel of a dense convolution.

        Parameters
        ----------
        convolution : nn.Conv1d, nn.Conv2d or nn.Conv3d
            With one group; it is not changed, and nothing is shared with it.
        rank : int or sequence of int, optional
            Largest ranks.
        rtol : float, optional
            Largest relative error of the kernel in the Frobenius norm. Without `rank` and `rtol`
            the factorisation is exact.

        Returns
        -------
        TTConvolution
            With stride, padding, dilation, dtype, device, mode and a copy of the bias.

        Raises
        ------
        TypeError
            Another layer.
        ValueError
            More than one group, or a kernel that is not finite.

        Examples
        --------
        >>> dense = nn.Conv2d(3, 8, 3, dilation=2)
        >>> layer = TTConvolution.from_convolution(dense)
        >>> x = torch.ones(1, 3, 9, 9)
        >>> bool(torch.allclose(layer(x), dense(x), atol=1e-5))
        True
        """
        given: object = convolution
        if not isinstance(given, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            kind = type(given).__name__
            raise TypeError(f"convolution must be nn.Conv1d, nn.Conv2d or nn.Conv3d; got {kind}")
        if convolution.groups != 1:
            raise ValueError(f"convolution must have one group; got {convolution.groups}")
        weight = convolution.weight.detach()
        layer = cls(
            convolution.in_channels,
            convolution.out_channels,
            convolution.kernel_size,
            rank=1,
            stride=convolution.stride,
            padding=convolution.padding,
            dilation=convolution.dilation,
            padding_mode=convolution.padding_mode,
            bias=convolution.bias is not None,
            device="meta",  # nothing is drawn
        )
        kernel = computing_weight("the kernel", weight).flatten(2).permute(1, 2, 0)
        ranks = None if rank is None else default_ranks(layer.mode_sizes, rank, 0)
        cores = dense_to_cores(kernel, rtol=rtol, ranks=ranks)
        layer._adopt(round_cores(cores, balance=True)[0], convolution.weight)
        if convolution.bias is not None:
            layer.bias = copied(convolution.bias)
        return layer.train(convolution.training)

    def to_convolution(self) -> nn.Conv1d | nn.Conv2d | nn.Conv3d:
        """Build the dense convolution that computes the same; nothing is shared with it."""
        dense = _DENSE[len(self.kernel_size)](
            self.in_channels,
            self.out_channels,
            self.kernel_size,  # type: ignore[arg-type]
            stride=self.stride,  # type: ignore[arg-type]
            padding=self.padding,  # type: ignore[arg-type]
            dilation=self.dilation,  # type: ignore[arg-type]
            padding_mode=self.padding_mode,  # type: ignore[arg-type]
            bias=self.bias is not None,
            device="meta",
        )
        dense.weight = copied(self.weight)
        if self.bias is not None:
            dense.bias = copied(self.bias)
        return dense.train(self.training)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ranks={self.ranks}, bias={self.bias is not None}"
        )
