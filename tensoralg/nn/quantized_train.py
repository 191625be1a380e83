"""A linear layer whose weight is a tensor train with packed cores."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn.core_products import merge_left, merge_right
from tensoralg.nn.grid_options import GridOptions
from tensoralg.nn.input_moments import InputMoments, moved_weight
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.parameters import full_precision
from tensoralg.nn.quantized_layers import QuantizedLayer
from tensoralg.nn.train_quantization import (
    fit_cores,
    matrix_to_core,
    nearest_cores,
    padded_gram,
)
from tensoralg.nn.tt_linear import TTLinear
from tensoralg.nn.weight_quantization import (
    FittedWeight,
    judged,
)

__all__ = ["QuantizedTTLinear", "quantized_train"]


class QuantizedTTLinear(QuantizedLayer):
    """Linear layer ``y = x W + b`` with W as a tensor train of packed cores.

    Parameters
    ----------
    packed : sequence of PackedWeight
        The cores: matrices of shape (r_k, r_{k-1} n_k) for modes of the inputs, then of shape
        (n_k r_k, r_{k-1}) for those of the outputs.
    core_shapes : sequence of tuple of int
        (r_{k-1}, n_k, r_k).
    like : TTLinear
        Whose features and modes it has.
    bias : Tensor, shape (out_features,), optional
        The bias.

    Raises
    ------
    ShapeError
        A core of another shape.

    See Also
    --------
    quantize : makes it.

    Examples
    --------
    >>> packed = [PackedWeight(2, 4, 4), PackedWeight(3, 2, 4)]
    >>> like = TTLinear(4, 3, rank=2, in_shape=1, out_shape=1, bias=False)
    >>> QuantizedTTLinear(packed, [(1, 4, 2), (2, 3, 1)], like)(torch.ones(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        packed: Sequence[PackedWeight],
        core_shapes: Sequence[tuple[int, int, int]],
        like: TTLinear,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(bias)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.in_shape, self.out_shape = like.in_shape, like.out_shape
        self.core_shapes = tuple(core_shapes)
        for k, (one, (r, n, s)) in enumerate(zip(packed, core_shapes, strict=True)):
            expected = (s, r * n) if k < len(self.in_shape) else (n * s, r)
            if one.shape != expected:
                raise ShapeError(f"packed[{k}] must have shape {expected}; got {one.shape}")
        self.cores = nn.ModuleList(packed)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All bonds of the train, the ones at both ends included."""
        return (1, *(shape[2] for shape in self.core_shapes))

    def train_cores(self) -> list[Tensor]:
        """Return the cores, shapes (r_{k-1}, n_k, r_k), computed anew each time."""
        found = []
        for k, (packed, shape) in enumerate(zip(self.cores, self.core_shapes, strict=True)):
            assert isinstance(packed, PackedWeight)
            found.append(matrix_to_core(packed.dequantize(), shape, k < len(self.in_shape)))
        return found

    def _halves(self) -> tuple[Tensor, Tensor]:
        """Merge the cores to A, (in_features, r), and B, (r, out_features), with W = A B."""
        cores, d = self.train_cores(), len(self.in_shape)
        with full_precision(cores[0].device.type):
            left, right = merge_left(cores[:d]), merge_right(cores[d:])
        return left[: self.in_features], right[:, : self.out_features]

    @property
    def weight(self) -> Tensor:
        """The weight as a matrix of shape (out_features, in_features), computed anew."""
        left, right = self._halves()
        return (left @ right).mT

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute ``x W + b``.

        Parameters
        ----------
        input : Tensor, shape (..., in_features)
            Any leading shape.

        Returns
        -------
        Tensor, shape (..., out_features)
            The output.
        """
        left, right = self._halves()
        rank, inputs, outputs = left.shape[1], self.in_features, self.out_features
        if rank * (inputs + outputs) >= inputs * outputs:
            return functional.linear(input, (left @ right).mT, self.bias)
        return functional.linear(torch.matmul(input, left), right.mT, self.bias)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"in_shape={self.in_shape}, out_shape={self.out_shape}, ranks={self.ranks}, "
            f"bias={self.bias is not None}"
        )


def quantized_train(
    layer: TTLinear,
    moments: InputMoments,
    bits: int,
    options: GridOptions,
    weight: Tensor | None = None,
) -> tuple[QuantizedTTLinear, FittedWeight]:
    """Quantize a tensor-train layer, core after core.

    Parameters
    ----------
    layer : TTLinear
        Is not changed.
    moments : InputMoments
        Of its inputs.
    bits : int
        2 to 8, of every core.
    options : GridOptions
        How.
    weight : Tensor, shape (out_features, in_features), optional
        What the quantized train is to come near to; the layer's own weight by default.

    Returns
    -------
    QuantizedTTLinear
        With a bias that makes up for the mean error, if there was one.
    FittedWeight
        Errors of the outputs: of the new layer, and of cores in canonical form rounded to the
        nearest values.

    Examples
    --------
    >>> from tensoralg.nn.input_statistics import no_sums
    >>> layer = TTLinear(6, 4, rank=2)
    >>> moments = InputMoments.of(no_sums(layer, torch.device("cpu")))
    >>> made, fitted = quantized_train(layer, moments, 8, GridOptions())
    >>> made(torch.ones(3, 6)).shape, fitted.error < 0.1
    (torch.Size([3, 4]), True)
    """
    centring = layer.bias is not None and options.correct_bias and moments.rows > 0
    used = moments.centred() if centring else moments
    cores = [core.detach().double() for core in layer.train_cores()]
    weight = (layer.weight if weight is None else weight).detach().double()
    gram = padded_gram(used.gram[0].to(weight.device), prod(layer.in_shape))
    # outputs that exist in the modes only stay what the train makes of them
    d = len(layer.in_shape)
    target = merge_left(cores[:d]) @ merge_right(cores[d:])
    moved = weight if used.is_own else moved_weight(weight[None], used)[0]
    target[: layer.in_features, : layer.out_features] = moved.mT
    coded = fit_cores(cores, gram, target, layer.in_shape, layer.out_shape, bits, options)
    packed = [PackedWeight.of(core.coded).to(layer.cores[0].dtype) for core in coded]
    made = QuantizedTTLinear(packed, [core.shape for core in coded], layer).train(layer.training)
    nearest = _whole(nearest_cores(cores, len(layer.in_shape), bits, options), layer)
    fitted = judged(weight, made.weight, nearest, moments, centring)
    if layer.bias is not None:
        bias = layer.bias.detach()
        if fitted.bias_change is not None:
            bias = (bias.double() + fitted.bias_change.to(bias.device)).to(bias.dtype)
        made.bias = nn.Parameter(bias.clone(), requires_grad=layer.bias.requires_grad)
    return made, fitted


def _whole(cores: Sequence[Tensor], layer: TTLinear) -> Tensor:
    """Return the weight (out_features, in_features) of other cores of a layer."""
    d = len(layer.in_shape)
    left, right = merge_left(cores[:d]), merge_right(cores[d:])
    return (left[: layer.in_features] @ right[:, : layer.out_features]).mT
