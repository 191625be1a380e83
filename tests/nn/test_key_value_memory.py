"""Slot tables written by hand for every policy; dense attention over what is held as the oracle."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.nn import KVMemory, attend
from tensoralg.nn.key_value_memory import POLICIES


def token(number, width=4):
    """A key that a query of the same number takes nearly alone, and a value that tells it."""
    vector = torch.zeros(1, 1, 1, width, dtype=torch.float64)
    vector[..., number] = 1.0
    return vector


def ask(memory, number, width=4):
    return memory.read(60 * token(number, width))


def fill(memory, numbers, width=4):
    for number in numbers:
        memory.append(token(number, width), token(number, width))


def held(memory):
    return [sorted(row[row >= 0].tolist()) for row in memory.positions]


def chunks(length, seed=0, batch=2, heads=3, d=4, e=5):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, length, d), (batch, heads, length, d), (batch, heads, length, e))
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_oldest_goes_where_nothing_was_read(policy):
    memory = KVMemory(2, policy)
    fill(memory, [0, 1, 2])
    assert memory.positions.tolist() == [[1, 2]]
    fill(memory, [3])
    assert memory.positions.tolist() == [[2, 3]]


def test_first_in_first_out_does_not_care_for_reading():
    memory = KVMemory(3, "fifo")
    fill(memory, [0, 1, 2])
    for _ in range(3):
        ask(memory, 0)
    fill(memory, [3])
    assert memory.positions.tolist() == [[1, 2, 3]]


def test_least_recently_attended_by_hand():
    memory = KVMemory(3, "lra", top_k=1)
    fill(memory, [0, 1, 2])  # all at time 0
    assert memory.usage.tolist() == [[0, 0, 0]]
    ask(memory, 1)
    ask(memory, 0)
    assert memory.usage.tolist() == [[2, 1, 0]]
    fill(memory, [3])  # 2 goes, 3 comes at time 2
    assert memory.positions.tolist() == [[0, 1, 3]]
    assert memory.usage.tolist() == [[2, 1, 2]]
    ask(memory, 1)
    assert memory.usage.tolist() == [[2, 3, 2]]
    assert memory.evict(1).tolist() == [[0]]  # as recent as 3, but older
    assert memory.positions.tolist() == [[1, 3]]


def test_time_counts_queries_however_many_are_read_at_once():
    single, together = KVMemory(4, "lra", top_k=1), KVMemory(4, "lra", top_k=1)
    queries = [2, 0, 2, 1]
    for memory in (single, together):
        fill(memory, range(4))
    for number in queries:
        ask(single, number)
    together.read(60 * torch.cat([token(number) for number in queries], dim=2))
    assert together.usage.tolist() == single.usage.tolist() == [[2, 4, 3, 0]]


def test_the_top_k_of_a_query_are_refreshed():
    memory = KVMemory(4, "lra", top_k=2)
    fill(memory, range(4))
    memory.read(9 * token(1) + 5 * token(3))
    assert memory.usage.tolist() == [[0, 1, 0, 1]]


def test_a_slot_without_weight_is_not_attended():
    memory = KVMemory(3, "lra", top_k=8)
    fill(memory, range(3))
    memory.read(token(0), mask=torch.tensor([True, False, True]))
    assert memory.usage.tolist() == [[1, 0, 1]]


def test_least_frequently_attended_by_hand():
    memory = KVMemory(3, "lfa")
    fill(memory, [0, 1, 2])
    for number in (0, 0, 2, 1, 1):
        ask(memory, number)
    torch.testing.assert_close(memory.usage, torch.tensor([[2.0, 2.0, 1.0]]))
    fill(memory, [3])  # 2 goes; 3 stays though nothing has been taken of it
    assert memory.positions.tolist() == [[0, 1, 3]]
    ask(memory, 3)
    fill(memory, [2])
    assert memory.positions.tolist() == [[0, 1, 4]]  # 3 had 1, less than the others


def test_decay_forgets_what_was_attended_long_ago():
    memory = KVMemory(2, "lfa", decay=0.5)
    fill(memory, [0, 1])
    for number in (0, 0, 1):
        ask(memory, number)
    torch.testing.assert_close(memory.usage, torch.tensor([[0.75, 1.0]]))
    together = KVMemory(2, "lfa", decay=0.5)
    fill(together, [0, 1])
    together.read(60 * torch.cat([token(0), token(0), token(1)], dim=2))
    torch.testing.assert_close(together.usage, memory.usage)
    assert memory.evict(1).tolist() == [[0]]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_newest_chunk_is_protected(policy):
    memory = KVMemory(4, policy, top_k=1)
    fill(memory, [0, 1])
    for _ in range(5):
        ask(memory, 0)
        ask(memory, 1)
    fresh = torch.cat([token(2), token(3), token(2)], dim=2)
    memory.append(fresh, fresh)
    assert held(memory)[0][1:] == [2, 3, 4]
    memory.evict()  # there is room for all
    assert len(memory) == 4


def test_protection_of_more_than_the_newest_chunk():
    memory = KVMemory(3, "lfa", protect=2)
    fill(memory, [0, 1])
    for number in (0, 1):
        ask(memory, number)
    fill(memory, [2, 3])
    assert held(memory) == [[1, 2, 3]]  # without protection 2, of which nothing was taken, went
    plain = KVMemory(3, "lfa")
    fill(plain, [0, 1])
    for number in (0, 1):
        ask(plain, number)
    fill(plain, [2, 3])
    assert held(plain) == [[0, 1, 3]]


@pytest.mark.parametrize("policy", POLICIES)
def test_of_a_chunk_longer_than_the_memory_the_end_stays(policy):
    memory = KVMemory(3, policy)
    _, k, v = chunks(10)
    memory.append(k[:, :, :2], v[:, :, :2])
    memory.append(k[:, :, 2:], v[:, :, 2:])
    assert memory.positions.tolist() == [[7, 8, 9]] * 2
    assert torch.equal(memory.keys, k[:, :, 7:])


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_tokens_four_slots_chunks_of_three(policy):
    """Reading equals dense attention over the slots that are held, with their true positions."""
    q, k, v = chunks(10)
    memory = KVMemory(4, policy, top_k=2)
    for start in range(0, 10, 3):
        part = slice(start, start + 3)
        memory.append(k[:, :, part], v[:, :, part])
        places = memory.positions
        assert places.shape[1] <= 4
        rows = torch.arange(2)[:, None]
        keys, values = k[rows, :, places].transpose(1, 2), v[rows, :, places].transpose(1, 2)
        assert torch.equal(memory.keys, keys)
        expected = attend(q[:, :, part], keys, values)
        torch.testing.assert_close(memory.read(q[:, :, part]), expected, rtol=0, atol=1e-12)
    assert places.tolist() == [sorted(row) for row in places.tolist()]


def test_positions_are_kept_and_a_causal_mask_is_built_from_them():
    q, k, v = chunks(6)
    memory = KVMemory(4)
    memory.append(k[:, :, :3], v[:, :, :3], torch.tensor([10, 20, 30]))
    memory.append(k[:, :, 3:4], v[:, :, 3:4], torch.tensor([[5], [40]]))
    assert memory.positions.tolist() == [[10, 20, 30, 5], [10, 20, 30, 40]]
    places = torch.tensor([4, 7, 20, 100])
    found = memory.read(q[:, :, :4], positions=places)
    mask = memory.positions[:, None, None, :] <= places[None, None, :, None]
    torch.testing.assert_close(found, attend(q[:, :, :4], k[:, :, :4], v[:, :, :4], mask=mask))
    assert (found[:, :, 0] == 0).all()
    memory.append(k[:, :, 4:5], v[:, :, 4:5])
    assert memory.positions[:, -1].tolist() == [6, 41]


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_are_independent_and_padding_is_neither_stored_nor_counted(policy):
    lengths = [11, 4, 7, 0]
    q, k, v = chunks(12, batch=4)
    valid = torch.arange(12) < torch.tensor(lengths)[:, None]
    k[~valid[:, None].expand(-1, 3, -1)] = math.nan  # whatever stands in padding
    options = {"top_k": 2, "decay": 0.8}
    memory = KVMemory(5, policy, **options)
    alone = [KVMemory(5, policy, **options) for _ in lengths]
    for start in range(0, 12, 3):
        part = slice(start, start + 3)
        memory.append(k[:, :, part], v[:, :, part], valid=valid[:, part])
        found = memory.read(q[:, :, part], valid=valid[:, part])
        for row, (length, single) in enumerate(zip(lengths, alone, strict=True)):
            end = slice(start, max(start, min(start + 3, length)))
            one = slice(row, row + 1)
            single.append(k[one, :, end], v[one, :, end])
            own = single.read(q[one, :, end])
            count = own.shape[2]
            torch.testing.assert_close(found[one, :, :count], own, rtol=0, atol=1e-12)
    for row, single in enumerate(alone):
        kept = memory.positions[row] >= 0
        assert memory.positions[row][kept].tolist() == single.positions[0].tolist()
        torch.testing.assert_close(memory.usage[row][kept], single.usage[0])


@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(POLICIES),
    size=st.integers(1, 6),
    protect=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=8),
)
def test_slots_hold_what_was_stored_at_their_positions(seed, policy, size, protect, steps):
    q, k, v = chunks(40, seed=seed)
    valid = torch.rand(2, 40, generator=torch.Generator().manual_seed(seed)) > 0.3
    memory = KVMemory(size, policy, top_k=1, protect=protect)
    start = 0
    memory.append(k[:, :, :0], v[:, :, :0])
    for length, reads in steps:
        part = slice(start, start + length)
        memory.append(k[:, :, part], v[:, :, part], valid=valid[:, part])
        start += length
        if reads:
            assert torch.isfinite(memory.read(q[:, :, part], valid=valid[:, part])).all()
        assert memory.positions.shape[1] <= size
        for row, places in enumerate(memory.positions):
            kept = places[places >= 0].tolist()
            assert len(set(kept)) == len(kept) == min(size, int(valid[row, :start].sum()))
            assert valid[row, kept].all()
            newest = torch.arange(start)[valid[row, :start]][-size:].tolist()
            guarded = newest[-max(protect, 1) :] if length and valid[row, start - 1] else []
            assert set(guarded) <= set(kept)
            slots = places >= 0
            assert torch.equal(memory.keys[row, :, slots], k[row, :, kept])
            assert torch.equal(memory.values[row, :, slots], v[row, :, kept])


def test_bytes_do_not_grow():
    sizes = set()
    _, k, v = chunks(300)
    for policy in POLICIES:
        memory = KVMemory(16, policy)
        for start in range(0, 300, 10):
            memory.append(k[:, :, start : start + 10], v[:, :, start : start + 10])
            memory.read(k[:, :, start : start + 10])
            if start >= 20:
                sizes.add((policy, memory.nbytes))
    assert len(sizes) == len(POLICIES)
    held_numbers = 2 * 16 * (3 * 4 + 3 * 5)
    assert dict(sizes)["lra"] == 8 * (held_numbers + 2 * 16 * 2 + 2 * 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_pinned_slots_stay_and_come_on_top(policy):
    q, k, v = chunks(9)
    sink_k, sink_v = k[:1, :, :2] + 1, v[:1, :, :2] - 1
    bias = torch.tensor([0.3, -0.7], dtype=torch.float64)
    memory = KVMemory(3, policy, top_k=1)
    memory.pin(sink_k[:, :, :1], sink_v[:, :, :1], bias=0.3)
    memory.pin(sink_k[:, :, 1:], sink_v[:, :, 1:], bias=torch.tensor([[[-0.7]]] * 3))
    alone = attend(q, sink_k.expand(2, -1, -1, -1), sink_v.expand(2, -1, -1, -1), bias=bias)
    torch.testing.assert_close(memory.read(q), alone)
    for start in range(0, 9, 3):
        memory.append(k[:, :, start : start + 3], v[:, :, start : start + 3])
    keys = torch.cat([sink_k.expand(2, -1, -1, -1), k[:, :, 6:]], dim=2)
    values = torch.cat([sink_v.expand(2, -1, -1, -1), v[:, :, 6:]], dim=2)
    every = torch.cat([bias, torch.zeros(3, dtype=torch.float64)])
    torch.testing.assert_close(memory.read(q), attend(q, keys, values, bias=every))
    nowhere = memory.read(q, mask=torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(nowhere, alone)
    memory.reset()
    torch.testing.assert_close(memory.read(q), alone)
    memory.unpin()
    with pytest.raises(ValueError, match="no slots yet"):
        memory.read(q)


def test_a_pinned_gate_of_each_row():
    q, k, v = chunks(4)
    gates = torch.tensor([0.2, 0.9], dtype=torch.float64)
    memory = KVMemory(4)
    memory.pin(k[:1, :, :1], v[:1, :, :1], bias=gates.log()[:, None, None, None])
    memory.append(k, v)
    found = memory.read(q)
    keys = torch.cat([k[:1, :, :1].expand(2, -1, -1, -1), k], dim=2)
    values = torch.cat([v[:1, :, :1].expand(2, -1, -1, -1), v], dim=2)
    bias = torch.zeros(2, 1, 1, 5, dtype=torch.float64)
    bias[:, 0, 0, 0] = gates.log()
    torch.testing.assert_close(found, attend(q, keys, values, bias=bias))


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_flow_into_what_is_held(policy):
    q, k, v = (x.requires_grad_() for x in chunks(8))
    learned = torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    memory = KVMemory(8, policy)
    memory.pin(learned, torch.ones(1, 3, 1, 5, dtype=torch.float64))
    for start in (0, 4):
        memory.append(k[:, :, start : start + 4], v[:, :, start : start + 4])
    out = memory.read(q)
    found = torch.autograd.grad(out.sin().sum(), (q, k, v, learned), retain_graph=True)
    keys = torch.cat([learned.expand(2, -1, -1, -1), k], dim=2)
    values = torch.cat([torch.ones(2, 3, 1, 5, dtype=torch.float64), v], dim=2)
    expected = torch.autograd.grad(attend(q, keys, values).sin().sum(), (q, k, v, learned))
    torch.testing.assert_close(found, expected)
    memory.detach_()
    assert not memory.keys.requires_grad
    assert torch.autograd.grad(memory.read(q.detach()).sum(), learned)[0].abs().sum() > 0


def test_evict_makes_room_and_says_what_went():
    memory = KVMemory(4)
    assert memory.evict(2).numel() == 0
    fill(memory, range(3))
    assert memory.evict(1).tolist() == [[]]
    assert memory.evict(3).tolist() == [[0, 1]]
    assert memory.evict(4).tolist() == [[2]]
    fill(memory, [3])
    assert memory.positions.tolist() == [[3]]
    with pytest.raises(ValueError, match="room must be at most size = 4"):
        memory.evict(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "size"),
        ((4, "lru"), "policy must be one of"),
        ((4, "lra", {"top_k": 0}), "top_k"),
        ((4, "lfa", {"decay": 0.0}), "decay must lie in"),
        ((4, "lfa", {"decay": 1.5}), "decay must lie in"),
        ((4, "lfa", {"protect": -1}), "protect"),
    ],
)
def test_settings_that_are_refused(arguments, message):
    *plain, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(ValueError, match=message):
        KVMemory(*plain, **options)


def test_inputs_that_are_refused():
    q, k, v = chunks(4)
    memory = KVMemory(4, "lra")
    with pytest.raises(ValueError, match="append or pin"):
        memory.read(q)
    for bad in ((k[0], v[0]), (k, v[:, :, :3])):
        with pytest.raises(ShapeError, match="k and v must have shapes"):
            memory.append(*bad)
        with pytest.raises(ShapeError, match="k and v must have shapes"):
            memory.pin(*bad)
    with pytest.raises(ShapeError, match="bias must be broadcastable"):
        memory.pin(k, v, bias=torch.zeros(3))
    memory.append(k, v)
    before = memory.positions
    for bad, error, message in (
        ((k[:1], v[:1]), ShapeError, "k must have shape"),
        ((k, v[..., :2]), ShapeError, "v must have shape"),
        ((k.float(), v.float()), TypeError, "slots' type"),
        ((k, v, torch.arange(3)), ShapeError, "positions must have shape"),
        ((k, v, torch.arange(4.0)), TypeError, "positions must be integers"),
        ((k, v, torch.arange(4) - 1), ValueError, "positions must be at least 0"),
        ((k, v, None, torch.ones(2, 4)), TypeError, "valid must be boolean"),
        ((k, v, None, torch.ones(2, 3, dtype=torch.bool)), ShapeError, "valid must have shape"),
    ):
        with pytest.raises(error, match=message):
            memory.append(*bad)
    assert memory.positions is before
    with pytest.raises(ShapeError, match="q must have the slots' B"):
        memory.read(q[:1])
    with pytest.raises(ShapeError, match="q must have shape"):
        memory.read(q[0])
    with pytest.raises(TypeError, match="mask must be boolean"):
        memory.read(q, mask=torch.ones(4))
    with pytest.raises(ShapeError, match="mask must be broadcastable"):
        memory.read(q, mask=torch.ones(4, 5, dtype=torch.bool))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pinned", [1, 3])
def test_a_memory_with_pinned_slots_only_left_can_be_read(policy, pinned):
    k, v = chunks(4)[1:]
    memory = KVMemory(4, policy)
    pins = chunks(pinned, seed=5)[1:]
    memory.pin(*pins)
    memory.append(k, v)
    memory.evict(4)
    q = chunks(3, seed=2)[0]
    torch.testing.assert_close(memory.read(q), attend(q, *pins))
    assert memory.usage.shape == (2, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chunk_that_is_refused_leaves_nothing_behind(policy):
    memory, (q, k, v) = KVMemory(4, policy), chunks(3)
    with pytest.raises(ValueError, match="positions must be at least 0"):
        memory.append(k[:1], v[:1], positions=torch.tensor([0, -1, 2]))
    assert memory.nbytes == 0
    memory.append(k, v)  # a batch of another size
    torch.testing.assert_close(memory.read(q), attend(q, k, v))
    assert memory.positions.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("policy", POLICIES)
def test_pinned_slots_take_the_type_of_the_queries(policy):
    q, k, v = (tensor.bfloat16() for tensor in chunks(4))
    learned = [tensor.float().requires_grad_() for tensor in chunks(2, seed=3)[1:]]
    for slots in (0, 4):
        memory = KVMemory(4, policy)
        memory.pin(*learned, bias=-0.5)
        if slots:
            memory.append(k, v)
        out = memory.read(q)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
        assert learned[0].grad.dtype == torch.float32


def test_pinned_slots_of_other_heads_or_widths_are_refused():
    q, k, v = chunks(4)
    for shape, name in (((1, 2, 1, 4, 5), "H = 2"), ((1, 3, 1, 6, 5), "d = 6")):
        memory = KVMemory(4)
        memory.pin(torch.zeros(shape[:4]), torch.zeros(*shape[:3], shape[4]))
        memory.append(k, v)
        with pytest.raises(ShapeError, match=name):
            memory.read(q)
    memory = KVMemory(4)
    memory.pin(torch.zeros(1, 3, 1, 4), torch.zeros(1, 3, 1, 4))
    memory.append(k, v)
    with pytest.raises(ShapeError, match="slots' e = 5; got 4"):
        memory.read(q)
    memory.pin(torch.zeros(1, 3, 1, 4), torch.zeros(1, 3, 1, 5))
    with pytest.raises(ShapeError, match="all have e = 4"):
        memory.read(q)
