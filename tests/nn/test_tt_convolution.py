"""TTConvolution: three small convolutions that compute the one they stand for."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from tensoralg.nn import TTConvolution

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("dense", "shape"),
    [
        (nn.Conv1d(3, 5, 4, stride=2, padding=3, dilation=2), (2, 3, 19)),
        (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 9, 11)),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), bias=False), (4, 9, 11)),
        (nn.Conv2d(4, 6, 3, padding="same", dilation=2), (2, 4, 9, 11)),
        (nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular"), (2, 4, 9, 11)),
        (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), (2, 4, 9, 11)),
        (nn.Conv3d(2, 3, 2, padding=1), (0, 2, 5, 6, 7)),
        (nn.Conv2d(4, 6, 1), (2, 4, 3, 3)),
    ],
)
def test_every_attribute_of_a_convolution_is_kept(dense, shape):
    torch.manual_seed(0)
    layer = TTConvolution.from_convolution(dense.eval())
    x = torch.randn(shape)
    assert torch.allclose(layer(x), dense(x), atol=1e-5)
    assert torch.allclose(layer.weight, dense.weight, atol=1e-5)
    assert (layer.bias is None) == (dense.bias is None)
    back = layer.to_convolution()
    assert type(back) is type(dense)
    assert torch.allclose(back(x), dense(x), atol=1e-5)
    assert not layer.training
    assert "dilation" in repr(layer)


@pytest.mark.parametrize("rank", [1, 2, (3, 2)])
def test_gradients_of_first_and_second_order(rank):
    torch.manual_seed(0)
    layer = TTConvolution(3, 4, (2, 2), rank=rank, dilation=(2, 1), dtype=torch.float64)
    x = torch.randn(1, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    arguments = (x, *layer.parameters())
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


class LargestTensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def test_no_temporary_has_the_size_of_the_kernel():
    layer = TTConvolution(128, 128, (3, 3), rank=4, padding=(1, 1))
    x = torch.randn(1, 128, 4, 4)
    with LargestTensor() as watch:
        layer(x)
    assert watch.largest <= x.numel()
    with LargestTensor() as watch:  # the watch does see the kernel
        layer.weight.sum()
    assert watch.largest >= layer.dense_parameters


@pytest.mark.parametrize("rank", [1, 2, 8])
@pytest.mark.parametrize("kernel", [(3,), (3, 5), (2, 2, 2)])
def test_the_initial_kernel_has_the_size_of_a_dense_one(kernel, rank):
    torch.manual_seed(0)
    layer = TTConvolution(12, 20, kernel, rank=rank)
    size = float(layer.weight.detach().double().square().mean().sqrt())
    assert size * math.sqrt(3 * 12 * math.prod(kernel)) == pytest.approx(1.0, rel=1e-4)


def test_limits_and_rounding():
    torch.manual_seed(0)
    dense = nn.Conv2d(8, 8, 3)
    layer = TTConvolution.from_convolution(dense, rtol=0.3)
    norm = torch.linalg.vector_norm(dense.weight)
    assert torch.linalg.vector_norm(layer.weight - dense.weight) <= 0.3 * norm
    assert max(TTConvolution.from_convolution(dense, rank=2).ranks) == 2
    assert max(layer.round_(ranks=3).ranks) == 3
    assert layer(torch.zeros(1, 8, 5, 5)).shape == (1, 8, 3, 3)


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(ValueError, match="one group; got 2"):
        TTConvolution.from_convolution(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(TypeError, match="convolution"):
        TTConvolution.from_convolution(nn.ConvTranspose2d(4, 4, 3))
    with pytest.raises(ValueError, match="kernel_size"):
        TTConvolution(4, 4, (2, 2, 2, 2))
    with pytest.raises(ValueError, match="in_channels"):
        TTConvolution(0, 4, (3,))
    with pytest.raises(ValueError, match="padding_mode"):
        TTConvolution(4, 4, (3,), padding_mode="mirror")
