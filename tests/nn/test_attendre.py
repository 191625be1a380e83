"""Queries that wait: exactness, order, delay, padding, eviction, cross attention, gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.nn import Attendre, attend
from tensoralg.nn.key_value_memory import POLICIES


def drawn(length, seed=0, batch=2, heads=3, d=4):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(3, batch, heads, length, d, generator=generator, dtype=torch.float64))


def streamed(attention, q, k, v, sizes, valid=None):
    """Push chunks of the given sizes and flush; outputs, positions and what each push emitted."""
    outs, places, start = [], [], 0
    for size in sizes:
        part = slice(start, start + size)
        mask = None if valid is None else valid[:, part]
        out, positions = attention.push(q[:, :, part], k[:, :, part], v[:, :, part], mask)
        outs.append(out)
        places.append(positions)
        start += size
    out, positions = attention.flush()
    return torch.cat([*outs, out], dim=2), torch.cat([*places, positions], dim=-1), places


def equal_chunks(length, chunk):
    return [min(chunk, length - start) for start in range(0, length, chunk)]


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    policy=st.sampled_from(POLICIES),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_chunking_is_full_attention(sizes, policy, causal, seed):
    length = sum(sizes)
    q, k, v = drawn(length, seed)
    attention = Attendre(2 * length + 7, length, policy, causal=causal)
    out, positions, _ = streamed(attention, q, k, v, sizes)
    mask = torch.ones(length, length, dtype=torch.bool).tril() if causal else None
    torch.testing.assert_close(out, attend(q, k, v, mask=mask), rtol=0, atol=1e-12)
    assert positions.tolist() == list(range(length))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("delay", [0, 1, 5])
def test_causal_attention_needs_no_delay(policy, delay):
    q, k, v = drawn(20)
    attention = Attendre(20, delay, policy, causal=True)
    out, _, _ = streamed(attention, q, k, v, equal_chunks(20, 3))
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    torch.testing.assert_close(out, attend(q, k, v, mask=mask), rtol=0, atol=1e-12)


@pytest.mark.parametrize("delay", [0, 1, 4])
@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_a_query_waits_for_exactly_so_many_others(delay, chunk):
    q, k, v = drawn(14)
    attention = Attendre(8, delay, "lra")
    _, positions, emitted = streamed(attention, q, k, v, equal_chunks(14, chunk))
    assert positions.tolist() == list(range(14))
    last = 0
    for number, places in enumerate(emitted):
        last = min(14, (number + 1) * chunk)
        seen = torch.cat(emitted[: number + 1]).tolist()
        assert seen == list(range(max(0, last - delay)))
        assert places.dtype == torch.int64
    assert len(attention) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_it_equals_a_loop_over_tokens_and_queries(policy):
    """The plain form: one row, one list of slots, one query at a time."""
    q, k, v = drawn(30, batch=1)
    size, delay, chunk, top_k, decay = 9, 4, 3, 2, 0.7
    attention = Attendre(size, delay, policy, top_k=top_k, decay=decay)
    out, _, _ = streamed(attention, q, k, v, equal_chunks(30, chunk))
    slots, waiting, clock, expected = [], [], 0, []

    def answer(t):
        nonlocal clock
        places = [slot["place"] for slot in slots]
        scores = (q[0, :, t, None] * k[0][:, places]).sum(-1) / 2
        weights = scores.softmax(-1)
        expected.append((weights[..., None] * v[0][:, places]).sum(1))
        clock += 1
        shares = weights.mean(0).tolist()
        best = sorted(range(len(slots)), key=lambda i: -shares[i])[:top_k]
        for i, slot in enumerate(slots):
            slot["mass"] = decay * slot["mass"] + shares[i]
            slot["last"] = clock if i in best else slot["last"]

    for start in range(0, 30, chunk):
        fresh = range(start, start + chunk)
        key = {"fifo": "place", "lra": "last", "lfa": "mass"}[policy]
        while len(slots) + chunk > size:
            slots.remove(min(slots, key=lambda slot: (slot[key], slot["place"])))
        slots += [{"place": t, "last": clock, "mass": 0.0} for t in fresh]
        waiting += fresh
        while len(waiting) > delay:
            answer(waiting.pop(0))
    for t in waiting:
        answer(t)
    torch.testing.assert_close(out[0], torch.stack(expected, dim=1), rtol=0, atol=1e-12)
    assert attention.memory.positions[0].tolist() == [slot["place"] for slot in slots]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_padded_batch_equals_single_rows(policy):
    lengths = [30, 13, 1]
    q, k, v = drawn(30, batch=3)
    valid = torch.arange(30) < torch.tensor(lengths)[:, None]
    k = k.masked_fill(~valid[:, None, :, None], float("nan"))
    out, positions, _ = streamed(Attendre(12, 6, policy), q, k, v, equal_chunks(30, 5), valid=valid)
    assert positions.tolist() == list(range(30))  # padding is emitted, too
    assert torch.isfinite(out).all()
    for row, length in enumerate(lengths):
        one = [x[row : row + 1, :, :length] for x in (q, k, v)]
        alone, _, _ = streamed(Attendre(12, 6, policy), *one, equal_chunks(length, 5))
        torch.testing.assert_close(out[row, :, :length], alone[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_querys_own_key_is_still_there_first_in_first_out(policy):
    """With values that tell positions apart, a query that looks for its own key finds it."""
    length = 40
    keys = torch.nn.functional.normalize(drawn(length, d=16)[0], dim=-1)
    values = torch.arange(float(length), dtype=torch.float64).expand(2, 3, -1)[..., None]
    attention = Attendre(9, 6, policy, protect=9 if policy != "fifo" else 0)
    out, _, _ = streamed(attention, 1e3 * keys, keys, values.expand(-1, -1, -1, 16), [3] * 13 + [1])
    torch.testing.assert_close(out[..., 0], values[..., 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_equal_full_attention(policy):
    q, k, v = (x.requires_grad_() for x in drawn(12))
    out, _, _ = streamed(Attendre(24, 12, policy), q, k, v, equal_chunks(12, 5))
    found = torch.autograd.grad(out.sin().sum(), (q, k, v))
    expected = torch.autograd.grad(attend(q, k, v).sin().sum(), (q, k, v))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_do_not_grow(policy):
    q, k, v = drawn(400)
    attention = Attendre(24, 8, policy)
    sizes = set()
    for start in range(0, 400, 8):
        attention.push(*(x[:, :, start : start + 8] for x in (q, k, v)))
        if start >= 32:
            sizes.add(attention.nbytes)
    assert len(sizes) == 1


def test_cross_attention_of_a_decoder():
    q, k, v = drawn(20)
    short = q[:, :, :7]
    attention = Attendre(20, 3)
    for start in range(0, 20, 6):
        out, positions = attention.push(None, *(x[:, :, start : start + 6] for x in (k, v)))
        assert out.shape == (2, 3, 0, 4)
        assert positions.shape == (0,)
    outs = [attention.push(part, None, None) for part in short.split(2, dim=2)]
    outs.append(attention.flush())
    assert [p.tolist() for _, p in outs] == [[], [0], [1, 2], [3], [4, 5, 6]]
    torch.testing.assert_close(torch.cat([o for o, _ in outs], dim=2), attend(short, k, v))


def test_a_waiting_query_sees_keys_that_come_later():
    q, k, v = drawn(6)
    attention = Attendre(6, 3)
    assert attention.push(q[:, :, :2], None, None).out.shape == (2, 3, 0, 4)
    attention.push(None, k, v)
    torch.testing.assert_close(attention.flush().out, attend(q[:, :, :2], k, v))


def test_positions_of_each_row():
    q, k, v = drawn(4)
    places = torch.tensor([[3, 4, 9, 10], [0, 1, 2, 7]])
    attention = Attendre(8, 2, causal=True)
    out, positions = attention.push(q, k, v, positions=places)
    assert positions.tolist() == [[3, 4], [0, 1]]
    rest, later = attention.push(q, k, v)
    assert later.tolist() == [[9, 10, 11, 12], [2, 7, 8, 9]]
    assert attention.memory.positions[1].tolist() == [0, 1, 2, 7, 8, 9, 10, 11]
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    torch.testing.assert_close(out, attend(q, k, v, mask=mask)[:, :, :2])
    assert rest.shape == (2, 3, 4, 4)


def test_skipped_windows_keep_their_positions():
    q, k, v = drawn(6)
    attention = Attendre(12, 3, causal=True)
    places = torch.tensor([100, 101, 102])
    attention.push(*(x[:, :, :3] for x in (q, k, v)), positions=torch.arange(3))
    _, positions = attention.push(*(x[:, :, 3:] for x in (q, k, v)), positions=places)
    assert positions.tolist() == [0, 1, 2]
    assert attention.flush().positions.tolist() == [100, 101, 102]


def test_reset_forgets_and_flush_keeps_the_memory():
    q, k, v = drawn(5)
    attention = Attendre(10, 5)
    attention.push(q, k, v)
    first = attention.flush().out
    assert attention.flush().out.shape == (2, 3, 0, 4)
    attention.push(q, None, None)
    torch.testing.assert_close(attention.flush().out, first)
    attention.reset()
    assert attention.flush().out.numel() == 0
    attention.push(*(x[:1] for x in (q, k, v)))
    torch.testing.assert_close(attention.flush().out, first[:1])


def test_detached_streams_hold_no_graph():
    q, k, v = (x.requires_grad_() for x in drawn(8))
    attention = Attendre(16, 4)
    attention.push(*(x[:, :, :4] for x in (q, k, v)))
    attention.detach_()
    out = attention.push(*(x[:, :, 4:] for x in (q, k, v))).out
    gradient = torch.autograd.grad(out.sum(), v)[0]
    assert (gradient[:, :, :4] == 0).all()
    assert (gradient[:, :, 4:] != 0).any()


def test_a_chunk_that_is_too_long_is_refused_before_anything_is_stored():
    q, k, v = drawn(7)
    attention = Attendre(10, 4)
    with pytest.raises(ValueError, match=r"size must be at least delay \+ chunk = 4 \+ 7; got 10"):
        attention.push(q, k, v)
    assert len(attention.memory) == len(attention) == 0
    with pytest.raises(ValueError, match=r"delay \+ chunk = 10 \+ 1"):
        Attendre(10, 10)
    with pytest.raises(ValueError, match="delay"):
        Attendre(10, -1)
    with pytest.raises(ValueError, match="policy"):
        Attendre(10, 1, "lru")


def test_inputs_that_are_refused():
    q, k, v = drawn(3)
    attention = Attendre(10, 4)
    for arguments in ((None, None, None), (q, k, None), (q, None, v)):
        with pytest.raises(ValueError, match="k and v go together"):
            attention.push(*arguments)
    with pytest.raises(ShapeError, match="q must have shape"):
        attention.push(q[0], k, v)
    with pytest.raises(ShapeError, match="one after the other"):
        attention.push(q, k[:, :, :2], v[:, :, :2])
    attention.push(q, k, v)
    with pytest.raises(ShapeError, match="waiting queries"):
        attention.push(q[:1], None, None)


def test_queries_of_another_type_are_refused_before_anything_is_stored():
    q, k, v = drawn(4)
    attention = Attendre(8, 2)
    with pytest.raises(TypeError, match="one type"):
        attention.push(q.float(), k, v)
    assert len(attention) == len(attention.memory) == 0
    attention.push(q, k, v)
    with pytest.raises(TypeError, match="one type"):
        attention.push(q.float(), None, None)
    assert len(attention) == 2


def test_queries_that_find_no_memory_wait_on():
    q, k, v = drawn(4)
    attention = Attendre(8, 2)
    with pytest.raises(ValueError, match="no slots yet"):
        attention.push(q, None, None)
    attention.push(None, k, v)
    out, positions = attention.flush()
    assert positions.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(out, attend(q, k, v))
