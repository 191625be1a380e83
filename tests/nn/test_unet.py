"""U-Nets for images of any size, and their convolutions as tensor trains."""

import copy

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import TTConvolution, UNet, tensorize

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("dimension", "size"),
    [(2, (39, 41)), (2, (1, 2)), (2, (1, 9)), (2, (16, 8)), (3, (5, 7, 9)), (3, (1, 2, 3))],
)
def test_every_size_comes_back(dimension, size):
    torch.manual_seed(0)
    network = UNet(2, 3, (4, 6, 8), dimension=dimension)
    x = torch.randn(2, 2, *size, requires_grad=True)
    y = network(x)
    assert y.shape == (2, 3, *size)
    y.square().sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in network.parameters())
    network.eval()
    assert torch.allclose(network(x[0]), network(x)[0], atol=1e-5)


def test_a_single_voxel():
    with pytest.raises(ShapeError, match=r"normalization must be 'group'; got \(1, 1, 3, 4\)"):
        UNet(1, 2, (4, 8, 8))(torch.ones(1, 1, 3, 4))
    x = torch.ones(1, 1, 1, 1)
    assert UNet(1, 2, (4, 8, 8)).eval()(x).shape == (1, 2, 1, 1)
    y = UNet(1, 2, (4, 8, 8), normalization="group")(x)
    assert bool(torch.isfinite(y).all())


def test_an_untrained_network_can_start_at_the_frequencies():
    network = UNet(1, 3, (4,)).start_at(torch.tensor([30, 10, 0]))
    with torch.no_grad():
        network.head.weight.zero_()
    shares = network(torch.zeros(1, 1, 2, 2)).softmax(dim=1)[0, :, 0, 0]
    assert shares.tolist() == pytest.approx([0.75, 0.25, 0.00025], rel=1e-3)
    with pytest.raises(ShapeError, match="frequencies must be 3 numbers"):
        network.start_at([1, 2])
    with pytest.raises(ValueError, match="one of them positive"):
        network.start_at([0, 0, 0])


def test_rows_of_a_batch_do_not_see_each_other():
    torch.manual_seed(0)
    network = UNet(1, 2, (4, 8), normalization="group")
    x = torch.randn(3, 1, 7, 6)
    together = network(x)
    apart = torch.cat([network(row[None]) for row in x])
    assert torch.allclose(together, apart, atol=1e-5)


def test_every_output_sees_far_away_and_fine_detail():
    torch.manual_seed(0)
    network = UNet(1, 1, (4, 4, 4, 4)).double()
    x = torch.randn(1, 1, 33, 33, dtype=torch.float64, requires_grad=True)
    network(x)[0, 0, 16, 16].backward()
    seen = x.grad[0, 0] != 0
    assert seen[16, 16]
    assert seen.sum() > 500


def test_an_empty_batch_trains():
    network = UNet(1, 2, (4, 8))
    y = network(torch.zeros(0, 1, 5, 6))
    assert y.shape == (0, 2, 5, 6)
    y.sum().backward()
    assert all(bool((p.grad == 0).all()) for p in network.parameters())


@pytest.mark.parametrize("dimension", [2, 3])
def test_full_rank_is_the_dense_network(dimension):
    torch.manual_seed(0)
    dense = UNet(2, 3, (6, 8), dimension=dimension)
    trains = dense.factorize()
    assert trains.training
    kinds = [type(m) for m in trains.modules()]
    assert kinds.count(TTConvolution) == 6
    x = torch.randn(2, 2, *(7, 6, 5)[:dimension])
    before = [p.clone() for p in dense.parameters()]
    assert torch.allclose(trains(x), dense(x), atol=1e-5)
    with torch.no_grad():
        for p in trains.parameters():
            p.zero_()
    assert all(torch.equal(p, q) for p, q in zip(before, dense.parameters(), strict=True))


def test_lower_ranks_are_smaller_and_further_away():
    torch.manual_seed(0)
    dense = UNet(1, 2, (16, 16))
    x = torch.randn(1, 1, 8, 8)
    errors, sizes = [], []
    for rank in (2, 4, 8, 144):
        network = dense.factorize(rank=rank)
        errors.append((network(x) - dense(x)).norm().item())
        sizes.append(sum(p.numel() for p in network.parameters()))
    assert errors[0] > errors[2] > errors[3]
    assert errors[3] < 1e-4
    assert sizes == sorted(sizes)
    again = dense.factorize(rank=8).factorize(rank=2)  # trains are truncated as kernels are
    assert sum(p.numel() for p in again.parameters()) == sizes[0]


def test_a_rank_makes_trains_where_they_are_smaller():
    dense, small = UNet(1, 2, (16, 32)), UNet(1, 2, (16, 32), rank=4)
    full = UNet(1, 2, (16, 32), rank=400)
    assert isinstance(full.encoder[1][0], nn.Conv2d)  # cores of full rank would be larger
    assert isinstance(small.encoder[1][0], TTConvolution)
    assert small.encoder[1][0].ranks == (1, 4, 4, 1)
    count = [sum(p.numel() for p in n.parameters()) for n in (dense, small)]
    assert count[1] < count[0] / 5
    assert small(torch.zeros(1, 1, 9, 7)).shape == (1, 2, 9, 7)


def test_state_copies_and_conversion():
    torch.manual_seed(0)
    network = UNet(1, 2, (16, 16), dropout=0.5)
    x = torch.randn(2, 1, 6, 5)
    assert not torch.equal(network(x), network(x))  # dropout
    network.eval()
    other = UNet(1, 2, (16, 16)).eval()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(x), network(x))
    assert torch.equal(copy.deepcopy(network)(x), network(x))
    model, report = tensorize(other, rank=4)
    assert report.parameters_after < report.parameters_before
    assert model(x).shape == (2, 2, 6, 5)
    half = UNet(1, 2, (4,), dtype=torch.float64)
    assert half(x.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((1, 2, (4,)), {"dimension": 1}, ValueError, "dimension must be 2 or 3; got 1"),
        ((1, 2, ()), {}, ValueError, "at least one level"),
        ((1, 2, 8), {}, TypeError, "widths must be a sequence"),
        ((1, 2, (0,)), {}, ValueError, "a number in widths must be at least 1; got 0"),
        ((0, 2, (4,)), {}, ValueError, "in_channels must be at least 1"),
        ((1, 2, (4,)), {"rank": 0}, ValueError, "rank must be at least 1"),
        ((1, 2, (4,)), {"normalization": "layer"}, ValueError, "normalization must be 'batch' or"),
        ((1, 2, (4,)), {"dropout": 1}, ValueError, r"dropout must be in \[0, 1\); got 1"),
    ],
)
def test_bad_networks_are_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        UNet(*arguments, **options)


@pytest.mark.parametrize("shape", [(5, 6), (1, 2, 5, 6), (1, 1, 0, 6), (1, 1, 5, 6, 7)])
def test_bad_images_are_refused(shape):
    with pytest.raises(ShapeError, match="image must have"):
        UNet(1, 2, (4,))(torch.zeros(shape))
