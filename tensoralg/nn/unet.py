"""A U-Net for images and volumes of any size, with dense or factorised convolutions."""

import copy
from collections.abc import Sequence
from math import gcd, prod
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_shapes import count_parameters
from tensoralg.core.validation import positive_integer
from tensoralg.nn.layer_shapes import default_ranks
from tensoralg.nn.tt_convolution import TTConvolution

__all__ = ["UNet"]

_KERNEL = 3
_GROUPS = 8  # of channels that are normalised together, at most
_DENSE: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_BATCH_NORM: dict[int, type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}
_POOL = {2: functional.max_pool2d, 3: functional.max_pool3d}
_MODE: dict[int, Literal["bilinear", "trilinear"]] = {2: "bilinear", 3: "trilinear"}


class UNet(nn.Module):
    """Encoder and decoder with skipped connections, for 2-D images or 3-D volumes.

    Each level has two 3-wide convolutions, each with normalization and ReLU. Going down,
    maxima over two voxels halve every axis, rounded up; going up, linear interpolation gives back
    exactly the size of the level above: odd sizes need no padding or cropping.

    Parameters
    ----------
    in_channels : int
        Channels of the input.
    out_channels : int
        Channels of the output, such as the logits of classes.
    widths : sequence of int
        Channels of every level, the finest first.
    dimension : {2, 3}, default 2
        Of the images.
    rank : int, optional
        Convolutions become `TTConvolution` layers of this rank wherever cores hold fewer numbers
        than the kernel. Dense by default.
    dropout : float, default 0
        Share of the coarsest level's channels that is dropped in training.
    normalization : {"batch", "group"}, default "batch"
        After every convolution. "group" makes training independent of the other images of a
        batch, but each image loses part of what is constant over it, such as the third coordinate
        of a slice.
    dtype : torch.dtype, optional
        Of the parameters.
    device : torch.device or str, optional
        Of the parameters.

    Raises
    ------
    ValueError
        `dimension` is neither 2 nor 3, `widths` is empty, a number of channels or the rank is not
        positive, `dropout` is not in [0, 1), or there is no such normalization.

    References
    ----------
    .. [1] O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image
       Segmentation", MICCAI 2015, arXiv:1505.04597. Normalization, interpolation and zero
       padding are ours.

    Examples
    --------
    >>> network = UNet(1, 4, (8, 16))
    >>> network(torch.zeros(2, 1, 39, 41)).shape
    torch.Size([2, 4, 39, 41])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        widths: Sequence[int],
        *,
        dimension: int = 2,
        rank: int | None = None,
        dropout: float = 0.0,
        normalization: Literal["batch", "group"] = "batch",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if dimension not in _DENSE:
            raise ValueError(f"dimension must be 2 or 3; got {dimension!r}")
        if isinstance(widths, int):
            raise TypeError(f"widths must be a sequence of integers; got {widths!r}")
        levels = tuple(positive_integer("a number in widths", w) for w in widths)
        if not levels:
            raise ValueError("widths must have a number of channels for at least one level")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1); got {dropout}")
        if normalization not in ("batch", "group"):
            raise ValueError(f"normalization must be 'batch' or 'group'; got {normalization!r}")
        super().__init__()
        self.in_channels = positive_integer("in_channels", in_channels)
        self.out_channels = positive_integer("out_channels", out_channels)
        self.widths, self.dimension, self.dropout = levels, dimension, float(dropout)
        self.normalization = normalization
        self.rank = None if rank is None else positive_integer("rank", rank)

        def block(inputs: int, outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for channels in (inputs, outputs):
                layers += [
                    _convolution(channels, outputs, dimension, self.rank, dtype, device),
                    _normalization(normalization, outputs, dimension, dtype, device),
                    nn.ReLU(),
                ]
            return nn.Sequential(*layers)

        down = zip((self.in_channels, *levels), levels, strict=False)
        self.encoder = nn.ModuleList(block(a, b) for a, b in down)
        up = zip(levels[-2::-1], levels[:0:-1], strict=True)
        self.decoder = nn.ModuleList(block(a + b, a) for a, b in up)
        self.head = _DENSE[dimension](levels[0], self.out_channels, 1, dtype=dtype, device=device)

    def forward(self, image: Tensor) -> Tensor:
        """Compute the output for every voxel.

        Parameters
        ----------
        image : Tensor, shape (B, in_channels, n_1, .., n_D) or (in_channels, n_1, .., n_D)
            Every n at least 1.

        Returns
        -------
        Tensor, shape (B, out_channels, n_1, .., n_D) or (out_channels, n_1, .., n_D)
            Such as logits.

        Raises
        ------
        ShapeError
            Another number of axes or channels, an axis without voxels, or in training a single
            voxel at the coarsest level, which has no variance to normalise by.
        """
        axes = image.ndim - self.dimension
        if axes not in (1, 2):
            raise ShapeError(
                f"image must have shape ([B,] {self.in_channels}, "
                f"{', '.join(f'n_{k + 1}' for k in range(self.dimension))}); "
                f"got {tuple(image.shape)}"
            )
        if image.shape[axes - 1] != self.in_channels or 0 in image.shape[axes:]:
            raise ShapeError(
                f"image must have {self.in_channels} channels and no empty axis; "
                f"got {tuple(image.shape)}"
            )
        if axes == 1:
            output: Tensor = self(image[None])
            return output[0]
        if not len(image):  # pooling and interpolation refuse empty batches
            nothing = image.new_zeros(0, self.out_channels, *image.shape[2:])
            return nothing + 0 * sum(p.sum() for p in self.parameters())
        smallest = prod(-(-n // 2 ** (len(self.widths) - 1)) for n in image.shape[2:])
        if self.training and self.normalization == "batch" and len(image) * smallest == 1:
            raise ShapeError(
                f"image must leave more than one voxel of the batch at the coarsest level, or "
                f"normalization must be 'group'; got {tuple(image.shape)} in training"
            )
        return self._levels(image)

    def _levels(self, x: Tensor) -> Tensor:
        """Go down and up."""
        skipped: list[Tensor] = []
        for k, block in enumerate(self.encoder):
            if k:
                skipped.append(x)
                x = _POOL[self.dimension](x, 2, ceil_mode=True)
            x = block(x)
        if self.dropout:
            shaped = x.new_ones(x.shape[0], x.shape[1], *(1,) * self.dimension)
            x = x * functional.dropout(shaped, self.dropout, self.training)
        for block in self.decoder:
            beside = skipped.pop()
            x = functional.interpolate(
                x, size=beside.shape[2:], mode=_MODE[self.dimension], align_corners=False
            )
            x = block(torch.cat([beside, x], dim=1))
        output: Tensor = self.head(x)
        return output

    def start_at(self, frequencies: Sequence[float]) -> Self:
        """Let the untrained network predict the frequencies of the classes.

        Training need not find out first that most voxels are background.

        Parameters
        ----------
        frequencies : sequence of float, length out_channels
            Counts or shares of the voxels of every class; at least one is positive. A class
            that was not seen counts as a thousandth of the rarest one that was.

        Returns
        -------
        UNet
            This one: the bias of its last layer is changed.

        Raises
        ------
        ShapeError
            Another length.
        ValueError
            Negative or not finite frequencies, or none that is positive.

        Examples
        --------
        >>> network = UNet(1, 2, (4,)).start_at([3, 1])
        >>> network.head.bias.exp().tolist()
        [0.75, 0.25]
        """
        counts = torch.as_tensor(frequencies, dtype=torch.float64).cpu()
        if counts.shape != (self.out_channels,):
            raise ShapeError(
                f"frequencies must be {self.out_channels} numbers; got shape {tuple(counts.shape)}"
            )
        if not bool((torch.isfinite(counts) & (counts >= 0)).all()) or not bool(counts.any()):
            raise ValueError(
                f"frequencies must be finite and nonnegative, one of them positive; "
                f"got {counts.tolist()}"
            )
        shares = counts / counts.sum()
        floor = shares[shares > 0].min() / 1000
        assert self.head.bias is not None
        with torch.no_grad():
            self.head.bias.copy_(shares.clamp(min=floor).log())
        return self

    def factorize(self, *, rank: int | None = None, rtol: float | None = None) -> Self:
        """Copy the network with every 3-wide convolution as a tensor train.

        Parameters
        ----------
        rank : int, optional
            Largest rank.
        rtol : float, optional
            Largest relative error of every kernel. Without `rank` and `rtol` the factorisation is
            exact, and larger than the kernels.

        Returns
        -------
        UNet
            Nothing is shared with this one.

        Raises
        ------
        ValueError
            A kernel that is not finite, or a rank or error out of range.

        Examples
        --------
        >>> network = UNet(1, 2, (4,))
        >>> x = torch.ones(1, 1, 5, 5)
        >>> bool(torch.allclose(network.factorize()(x), network(x), atol=1e-5))
        True
        """
        result = copy.deepcopy(self)
        for block in (*result.encoder, *result.decoder):
            assert isinstance(block, nn.Sequential)
            for place, layer in enumerate(block):
                if isinstance(layer, TTConvolution):
                    layer = layer.to_convolution()
                if isinstance(layer, nn.Conv2d | nn.Conv3d):
                    block[place] = TTConvolution.from_convolution(layer, rank=rank, rtol=rtol)
        return result

    def extra_repr(self) -> str:
        """Say what the network is made for."""
        return f"{self.in_channels}, {self.out_channels}, {self.widths}, dimension={self.dimension}"


def _convolution(
    inputs: int,
    outputs: int,
    dimension: int,
    rank: int | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> nn.Module:
    """Make a convolution that keeps the size; of cores where these are smaller than the kernel."""
    kernel, ones = (_KERNEL,) * dimension, (1,) * dimension
    if rank is not None:
        sizes = (inputs, prod(kernel), outputs)
        cores = count_parameters(sizes, default_ranks(sizes, rank, prod(sizes)))
        if cores < prod(sizes):
            return TTConvolution(
                inputs, outputs, kernel, rank=rank, padding=ones, dtype=dtype, device=device
            )
    return _DENSE[dimension](inputs, outputs, _KERNEL, padding=1, dtype=dtype, device=device)


def _normalization(
    kind: str,
    channels: int,
    dimension: int,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> nn.Module:
    """Make the layer after a convolution."""
    if kind == "batch":
        return _BATCH_NORM[dimension](channels, dtype=dtype, device=device)
    # a group of one channel would lose that channel on a single voxel
    groups = gcd(channels, _GROUPS) if channels > _GROUPS else 1
    return nn.GroupNorm(groups, channels, dtype=dtype, device=device)
