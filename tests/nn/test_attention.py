"""Attention against PyTorch's, with masks and biases of every shape, and without keys."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tensoralg.core.errors import ShapeError
from tensoralg.nn import attend
from tensoralg.nn.attention import attend_with_weights

MASKS = [None, (7,), (5, 7), (3, 5, 7), (2, 1, 1, 7), (2, 3, 5, 7), (5, 1)]
BIASES = [None, (7,), (5, 7), (2, 1, 1, 7), (2, 3, 5, 7), ()]


def drawn(seed=0, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [torch.randn(s, generator=generator, dtype=dtype, **options) for s in shapes]


def plain(q, k, v, mask, bias):
    """One query after another, written out."""
    full = (*q.shape[:3], k.shape[2])
    mask = torch.ones(full, dtype=torch.bool) if mask is None else mask.expand(full)
    bias = torch.zeros(full, dtype=q.dtype) if bias is None else bias.expand(full)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        terms = [
            (math.exp(float(q[b, h, t] @ k[b, h, s]) / math.sqrt(q.shape[3]) + bias[b, h, t, s]), s)
            for s in range(k.shape[2])
            if mask[b, h, t, s]
        ]
        for weight, s in terms:
            out[b, h, t] += weight / sum(w for w, _ in terms) * v[b, h, s]
    return out


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_it_is_the_formula(mask, bias):
    q, k, v = drawn()
    torch.manual_seed(1)
    mask = None if mask is None else torch.rand(mask) > 0.4
    bias = None if bias is None else torch.randn(bias, dtype=torch.float64)
    expected = plain(q, k, v, mask, bias)
    found = attend(q, k, v, mask=mask, bias=bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weighed, weights = attend_with_weights(q, k, v, mask=mask, bias=bias)
    torch.testing.assert_close(weighed, expected, rtol=0, atol=1e-12)
    sums = weights.sum(dim=-1)
    assert ((sums - 1).abs().minimum(sums.abs()) < 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_pytorchs_attention(dtype):
    q, k, v = drawn(dtype=dtype)
    mask = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.3
    mask[..., 0] = True
    peer = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    found = attend(q, k, v, mask=mask)
    assert found.dtype == dtype
    torch.testing.assert_close(found, peer, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_a_query_without_keys_gives_zeros_and_finite_gradients():
    q, k, v = drawn(requires_grad=True)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    forbidding = torch.zeros(5, 7, dtype=torch.float64)
    forbidding[2] = -math.inf
    for options in ({"mask": mask}, {"bias": forbidding}):
        for out in (attend(q, k, v, **options), attend_with_weights(q, k, v, **options)[0]):
            assert (out[:, :, 2] == 0).all()
            assert (out[:, :, 1] != 0).all()
            gradients = torch.autograd.grad(out.sum(), (q, k, v))
            assert all(torch.isfinite(g).all() for g in gradients)
            assert (gradients[0][:, :, 2] == 0).all()


@pytest.mark.parametrize("mask", [None, (5, 7), (2, 3, 1, 7)])
def test_gradients(mask):
    q, k, v = drawn(requires_grad=True)
    bias = torch.randn(3, 1, 7, dtype=torch.float64, requires_grad=True)
    mask = None if mask is None else torch.rand(mask) > 0.5
    for function in (attend, lambda *a, **o: attend_with_weights(*a, **o)[0]):
        assert torch.autograd.gradcheck(
            lambda q, k, v, bias, f=function: f(q, k, v, mask=mask, bias=bias), (q, k, v, bias)
        )


def test_a_key_with_the_log_of_a_gate_as_bias():
    """Two halves of a key weigh as much as the key; nothing of it is as if it were not there."""
    q, k, v = drawn()
    bias = torch.zeros(7, dtype=torch.float64)
    bias[0] = -math.inf
    without = attend(q, k[:, :, 1:], v[:, :, 1:])
    torch.testing.assert_close(attend(q, k, v, bias=bias), without)
    doubled = [torch.cat([x[:, :, :1], x], dim=2) for x in (k, v)]
    halves = torch.zeros(8, dtype=torch.float64)
    halves[:2] = math.log(0.5)
    torch.testing.assert_close(attend(q, *doubled, bias=halves), attend(q, k, v))


@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 7, 2), (5, 0, 2), (0, 0, 2), (5, 7, 0)])
def test_nothing_to_ask_or_to_attend(queries, keys, batch):
    q = torch.ones(batch, 3, queries, 4, requires_grad=True)
    k, v = torch.ones(batch, 3, keys, 4), torch.ones(batch, 3, keys, 6)
    out = attend(q, k, v)
    assert out.shape == (batch, 3, queries, 6)
    assert (out == 0).all() or keys
    assert attend_with_weights(q, k, v)[1].shape == (batch, 3, queries, keys)
    out.sum().backward()


def test_on_the_meta_device():
    q, k, v = (x.to("meta") for x in drawn())
    mask = torch.ones(5, 7, dtype=torch.bool, device="meta")
    assert attend(q, k, v, mask=mask).shape == (2, 3, 5, 6)


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"q": torch.ones(3, 5, 4)}, ShapeError, "q must have shape"),
        ({"k": torch.ones(2, 3, 7, 5)}, ShapeError, "k must have q's"),
        ({"k": torch.ones(2, 1, 7, 4)}, ShapeError, "k must have q's"),
        ({"v": torch.ones(2, 3, 6, 6)}, ShapeError, "v must have k's"),
        ({"v": torch.ones(2, 3, 7, 6, dtype=torch.float16)}, TypeError, "one floating type"),
        ({"mask": torch.ones(5, 7)}, TypeError, "mask must be boolean"),
        ({"mask": torch.ones(5, 6, dtype=torch.bool)}, ShapeError, "mask must be broadcastable"),
        ({"mask": torch.ones(9, 2, 3, 5, 7, dtype=torch.bool)}, ShapeError, "mask must be"),
        ({"bias": torch.ones(4, 1)}, ShapeError, "bias must be broadcastable"),
    ],
)
def test_what_is_refused(change, error, name):
    q, k, v = drawn(dtype=torch.float32)
    arguments = {"q": q, "k": k, "v": v, "mask": None, "bias": None} | change
    with pytest.raises(error, match=name):
        attend(**arguments)


def test_scores_beyond_the_range_of_half_precision():
    q = torch.full((1, 1, 2, 128), 30.0, dtype=torch.float16)  # q k^T is 115,200, scaled 10,182
    attended, weights = attend_with_weights(q, q, q)
    torch.testing.assert_close(attended, attend(q, q, q), rtol=1e-3, atol=0)
    assert attended.dtype == weights.dtype == torch.float16
    assert weights.flatten().tolist() == [0.5] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_give_what_the_kernel_gives(dtype):
    q, k, v = (tensor.to(dtype) for tensor in drawn())
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[1, 2:] = mask[2] = False
    found = attend_with_weights(q, k, v, mask=mask)[0]
    torch.testing.assert_close(found, attend(q, k, v, mask=mask), rtol=1e-2, atol=1e-2)
