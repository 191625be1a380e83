"""Learned step sizes: the grid, the gradients of the paper, a scale that stays positive."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import fake_quantization, quantization_kernels
from tensoralg.nn.bit_packing import pack_codes, unpack_codes
from tensoralg.nn.fake_quantization import FakeQuantize

BITS = range(2, 9)


def quantizer(bits, scale, **arguments):
    result = FakeQuantize(bits, **arguments)
    result.initialize(torch.ones(1))
    with torch.no_grad():
        result.log_scale.fill_(math.log(scale))
    return result


def reference(x, scale, bits):
    """Formula by formula, number by number."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    values, slopes, passes = [], [], []
    for number in x.tolist():
        step = number / scale
        values.append(scale * min(max(round(step), low), high))  # ties to even, as the paper's
        if step < low:
            slopes.append(low)
        elif step > high:
            slopes.append(high)
        else:
            slopes.append(round(step) - step)
        passes.append(1.0 if low <= step <= high else 0.0)
    return values, slopes, passes


@pytest.fixture(params=["compiled", "written out"])
def path(request, monkeypatch):
    if request.param == "written out":
        monkeypatch.setattr(fake_quantization, "_has_kernel", lambda x: False)
    return request.param


@pytest.mark.parametrize("bits", BITS)
def test_values_and_gradients_follow_the_formulas(bits, path):
    generator = torch.Generator().manual_seed(bits)
    x = torch.randn(300, generator=generator, dtype=torch.float64)
    weights = torch.randn(300, generator=generator, dtype=torch.float64)
    scale = 0.7 * 2.0 ** (1 - bits)
    module = quantizer(bits, scale).double()
    with torch.no_grad():
        module.log_scale.fill_(math.log(scale))
    x.requires_grad_()
    y = module(x)
    (y * weights).sum().backward()
    values, slopes, passes = reference(x.detach(), module.scale.item(), bits)
    assert y.tolist() == pytest.approx(values, abs=1e-12)
    assert x.grad.tolist() == pytest.approx((weights * torch.tensor(passes)).tolist())
    balance = 1 / math.sqrt(300 * (2 ** (bits - 1) - 1))
    by_scale = sum(w * s for w, s in zip(weights.tolist(), slopes, strict=True)) * balance
    # the parameter is the logarithm of the scale
    assert float(module.log_scale.grad) == pytest.approx(by_scale * scale, rel=1e-9)


def test_the_compiled_loops_equal_the_written_out_ones(monkeypatch):
    for dtype in (torch.float32, torch.float64):
        module = quantizer(4, 0.3)
        x = torch.randn(40, 90, generator=torch.Generator().manual_seed(1), dtype=dtype)
        x = x.T.requires_grad_()  # not contiguous
        results = []
        for has_kernel in (True, False):
            if not has_kernel:
                monkeypatch.setattr(fake_quantization, "_has_kernel", lambda x: False)
            y = module(x)
            gradients = torch.autograd.grad(y.square().sum(), [x, module.log_scale])
            results.append((y, *gradients))
        monkeypatch.undo()
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert float(results[0][2]) == pytest.approx(float(results[1][2]), rel=1e-5)


@given(
    bits=st.sampled_from(BITS),
    scale=st.floats(1e-6, 1e6),
    values=st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_quantization_is_idempotent_and_codes_reproduce_it(bits, scale, values):
    module = quantizer(bits, scale)
    x = torch.tensor(values)
    y = module(x)
    assert torch.equal(module(y), y)
    codes = module.codes(x)
    assert codes.min() >= module.low
    assert codes.max() <= module.high
    assert torch.equal(codes.to(torch.float32) * module.scale, y)


def test_the_scale_stays_positive_when_it_is_driven_below_zero():
    module = quantizer(4, 0.01)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e4)
    for _ in range(20):
        optimizer.zero_grad()
        module.log_scale.grad = torch.ones(())  # always downwards
        optimizer.step()
    assert module.scale > 0
    x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
    y = module(x)
    assert torch.isfinite(y).all()
    y.sum().backward()
    assert torch.isfinite(module.log_scale.grad)


def test_learning_finds_a_scale_that_is_better_than_a_wrong_start(path):
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    module = quantizer(3, 3.0)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)

    def error():
        return (module(x) - x).square().mean()

    before = error().item()
    for _ in range(200):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    best = FakeQuantize(3)
    best.initialize(x)
    assert error().item() < before / 5
    assert error().item() < 1.1 * (best(x) - x).square().mean().item()


@pytest.mark.parametrize("bits", BITS)
def test_the_start_is_no_worse_than_one_that_cuts_nothing_off(bits):
    x = torch.randn(500, generator=torch.Generator().manual_seed(bits))
    module = FakeQuantize(bits)
    module.initialize(x)
    whole = quantizer(bits, float(x.abs().max()) / module.high)
    assert (module(x) - x).square().sum() <= (whole(x) - x).square().sum() * (1 + 1e-5)


def test_zeros_empty_tensors_and_not_a_number(path):
    module = FakeQuantize(4)
    assert torch.equal(module(torch.zeros(3)), torch.zeros(3))
    assert not module.ready  # nothing to set a scale by
    assert module(torch.zeros(0, 4)).shape == (0, 4)
    module(torch.tensor([1.0, -2.0]))
    assert module.ready
    assert torch.equal(module(torch.zeros(3)), torch.zeros(3))
    x = torch.zeros(0, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.shape == (0,)
    assert torch.isnan(module(torch.tensor([math.nan]))).all()
    extremes = module(torch.tensor([math.inf, -math.inf]))
    assert extremes.tolist() == [
        float(module.high * module.scale),
        float(module.low * module.scale),
    ]
    with pytest.raises(ValueError, match="NaN or infinite"):
        FakeQuantize(4).initialize(torch.tensor([math.nan]))


def test_eval_mode_sets_no_scale():
    module = FakeQuantize(4).eval()
    x = torch.randn(5)
    assert module(x) is x
    assert not module.ready
    with pytest.raises(ValueError, match="scale is not set"):
        module.codes(x)


def test_the_state_travels():
    module = FakeQuantize(5)
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    expected = module(x)
    other = FakeQuantize(5).eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_single(dtype):
    module = quantizer(8, 1 / 127)
    x = torch.linspace(-1, 1, 100).to(dtype).requires_grad_()
    y = module(x)
    assert y.dtype == dtype
    assert torch.allclose(y.float(), x.float(), atol=1 / 127)
    assert torch.equal(module.codes(x), module.codes(x.float()))
    y.sum().backward()
    assert x.grad.dtype == dtype


def test_it_compiles_into_one_graph_and_differentiates_twice():
    module = quantizer(4, 0.3)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.allclose(compiled(x), module(x))
    (first,) = torch.autograd.grad((module(x) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    inside = (x / module.scale >= -8) & (x / module.scale <= 7)
    assert torch.allclose(second, torch.where(inside, 6 * module(x), 0.0).detach(), atol=1e-5)


def test_unsigned_codes():
    module = FakeQuantize(2, signed=False)
    module.initialize(torch.tensor([3.0]))
    assert module.codes(torch.tensor([-5.0, 0.0, 1.0, 99.0])).tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize("bits", [1, 9, 0, 2.0, True, None])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(ValueError, match="bits must be an integer from 2 to 8"):
        FakeQuantize(bits)


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"torch\.int64"):
        quantizer(4, 1.0)(torch.arange(3))


@given(bits=st.sampled_from(BITS), data=st.data())
@settings(max_examples=60, deadline=None)
def test_packing_returns_every_code_in_the_fewest_bytes(bits, data):
    codes = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = torch.tensor(data.draw(st.lists(codes, max_size=40)), dtype=torch.int8)
    packed = pack_codes(values, bits)
    assert packed.numel() == math.ceil(len(values) * bits / 8)
    assert torch.equal(unpack_codes(packed, bits, (len(values),)), values)


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"codes of 3 bits lie in -4 \.\. 3; got -5 \.\. 0"):
        pack_codes(torch.tensor([-5, 0]), 3)
    with pytest.raises(ShapeError, match="5 codes of 4 bits take 3 bytes"):
        unpack_codes(torch.zeros(2, dtype=torch.uint8), 4, (5,))


def test_a_network_learns_through_four_bits():
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    target = torch.tanh(x @ torch.randn(8, 4))
    weight = nn.Parameter(torch.randn(8, 4) * 0.3)
    module = FakeQuantize(4)
    optimizer = torch.optim.Adam([weight, *module.parameters()], lr=0.02)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (torch.tanh(x @ module(weight)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize("n", [500, 6400])
def test_the_scales_gradient_does_not_depend_on_places_in_memory(n):
    rng = np.random.default_rng(0)
    gradient, x = rng.standard_normal((2, n)).astype(np.float32)
    grid = np.float32(0.1), np.float32(-8), np.float32(7)
    arena, totals = np.zeros(3 * n + 4096, np.float32), set()
    for order in itertools.permutations(range(3)):
        for gap in (0, 64, 576, 2048):
            starts = [place * (n + gap) for place in order]
            views = [arena[start : start + n] for start in starts]
            views[0][:], views[1][:] = gradient, x
            totals.add(quantization_kernels.round_to_grid_backward(*views[:2], *grid, views[2]))
    assert len(totals) == 1
    steps = x.astype(np.float64) / grid[0]
    clipped = steps.clip(-8, 7)
    slopes = np.where(clipped == steps, np.rint(steps) - steps, clipped)
    assert totals.pop() == pytest.approx(slopes @ gradient, rel=1e-4)
