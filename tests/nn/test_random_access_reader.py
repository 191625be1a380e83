"""Windows, skips, the way back, bad losses, traces."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.nn import KVMemory, RandomAccessReader, ReadingTrace, ReadWindow, attend
from tensoralg.nn.attendre import Attendre


def constant(value):
    return lambda start, stop: [value] * (stop - start)


def looked_up(values):
    return lambda start, stop: torch.as_tensor(values[start:stop])


def slow_windows(length, losses, window, rate, alpha, max_skip):
    """The rule of the docstring, word by word."""
    found, start = [], 0
    while start < length:
        stop = min(start + window, length)
        found.append((start, stop))
        confidence = float(np.mean(losses[start:stop]))
        bounds = [(length - stop) // rate, max_skip // rate]
        if math.isnan(confidence) or alpha == 0:
            bounds = [0]
        elif confidence > 0:
            bounds.append(math.floor(min(alpha / confidence, 1e9)))
        start = stop + rate * min(bounds)
    return found


READERS = st.builds(
    RandomAccessReader,
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.integers(0, 40),
    return_pass=st.booleans(),
)
LOSSES = st.lists(
    st.sampled_from([0.0, 1e-300, 0.1, 0.5, 2.0, 30.0, math.nan, math.inf]), max_size=90
)


@settings(deadline=None, max_examples=300)
@given(READERS, LOSSES)
def test_invariants(reader, losses):
    values = np.array(losses, dtype=float)
    called = []

    def take(start, stop):
        called.append((start, stop))
        return values[start:stop]

    reading = reader.read(len(values), take)
    windows = list(reading)
    trace = reading.trace
    assert windows == called == [(one.start, one.stop) for one in trace]
    forward = [one for one in trace if not one.returning]
    back = [one for one in trace if one.returning]
    assert list(trace) == forward + back
    assert all(a.start < b.start for a, b in pairwise(forward))
    assert all(a.start > b.start for a, b in pairwise(back))
    read = np.zeros(len(values), dtype=int)
    for start, stop in windows:
        assert 0 <= start < stop <= len(values)
        assert stop - start <= reader.window
        read[start:stop] += 1
    assert read.max(initial=0) <= 1  # disjoint
    assert trace.tokens_read == read.sum()
    assert sum(b - a for a, b in trace.unread()) == (read == 0).sum()
    for one in trace:
        assert one.skip % reader.rate == 0
        assert 0 <= one.skip <= reader.max_skip
        if not math.isfinite(one.confidence) or reader.alpha == 0:
            assert one.skip == 0
    for before, after in pairwise(forward):
        assert after.start == before.stop + before.skip
        assert before.stop - before.start == reader.window  # only the last one is clipped
    if forward:
        assert forward[-1].stop + forward[-1].skip == len(values)
    plain = slow_windows(
        len(values), values, reader.window, reader.rate, reader.alpha, reader.max_skip
    )
    if not np.isinf(values).any():
        assert [(one.start, one.stop) for one in forward] == plain
    if not reader.return_pass:
        assert not back


@pytest.mark.parametrize("return_pass", [False, True])
def test_alpha_zero_reads_in_sequence(return_pass):
    reader = RandomAccessReader(4, 2, 0.0, 100, return_pass=return_pass)
    assert list(reader.read(10, constant(0.0))) == [(0, 4), (4, 8), (8, 10)]


def test_no_loss_at_all_gives_the_longest_skip():
    reader = RandomAccessReader(4, 3, 1e-9, 7)
    assert list(reader.read(24, constant(0.0))) == [(0, 4), (10, 14), (20, 24)]


def test_a_tiny_loss_does_not_overflow():
    reader = RandomAccessReader(4, 1, 1e308, 5)
    assert list(reader.read(20, constant(5e-324))) == [(0, 4), (9, 13), (18, 20)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_allows_no_skip(bad):
    values = np.zeros(30)
    values[5] = bad
    reading = RandomAccessReader(4, 4, 1.0, 8).read(30, looked_up(values))
    assert list(reading) == [(0, 4), (12, 16), (24, 28), (28, 30)]  # never saw it
    values[13] = bad  # one token of a window is enough
    reading = RandomAccessReader(4, 4, 1.0, 8).read(30, looked_up(values))
    assert list(reading) == [(0, 4), (12, 16), (16, 20), (28, 30)]
    assert reading.trace.windows[1].skip == 0


def test_max_skip_bounds_and_the_end_bounds():
    assert RandomAccessReader(2, 5, 100.0, 12).skip_length(0.1, left=1000) == 10
    assert RandomAccessReader(2, 5, 100.0, 12).skip_length(0.1, left=9) == 5
    assert RandomAccessReader(2, 5, 100.0, 4).skip_length(0.1, left=9) == 0  # below the rate


def test_a_skip_may_end_the_document():
    reading = RandomAccessReader(4, 4, 1.0, 8).read(8, constant(0.01))
    assert list(reading) == [(0, 4)]
    assert reading.trace.unread() == [(4, 8)]


@pytest.mark.parametrize(
    ("length", "windows"), [(0, []), (1, [(0, 1)]), (4, [(0, 4)]), (5, [(0, 4), (4, 5)])]
)
def test_tiny_documents(length, windows):
    reader = RandomAccessReader(4, 4, 1.0, 8, return_pass=True)
    reading = reader.read(length, constant(0.1))
    assert list(reading) == windows
    assert reading.trace.share == 1.0


def test_the_pool():
    values = np.array([0.0, 0.0, 0.0, 4.0] + [0.0] * 16)
    by_mean = RandomAccessReader(4, 4, 2.0, 8).read(20, looked_up(values))
    by_max = RandomAccessReader(4, 4, 2.0, 8, pool="max").read(20, looked_up(values))
    assert list(by_mean)[:2] == [(0, 4), (12, 16)]
    assert list(by_max)[:2] == [(0, 4), (4, 8)]


def test_the_way_back_reads_the_beginning_of_a_hard_passage():
    """A skip led into the middle of the tokens 8 .. 23; what is easy stays out."""
    values = np.full(60, 0.1)
    values[8:24] = 5.0
    reader = RandomAccessReader(4, 4, 0.5, 12, return_pass=True)
    reading = reader.read(60, looked_up(values))
    forward = [(0, 4), (16, 20), (20, 24), (24, 28), (40, 44), (56, 60)]
    assert list(reading) == [*forward, (12, 16), (8, 12), (4, 8)]
    assert [one.returning for one in reading.trace] == [False] * 6 + [True] * 3
    assert reading.trace.overlap(8, 24) == 16
    assert reading.trace.windows[-1].skip == 0  # nothing is left on its side


@pytest.mark.parametrize("kind", ["list", "numpy", "torch", "gradient", "half", "integers"])
def test_what_losses_may_return(kind):
    def losses(start, stop):
        values = [1.0] * (stop - start)
        if kind == "list":
            return values
        if kind == "numpy":
            return np.array(values, dtype=np.float32)
        if kind == "integers":
            return np.ones(stop - start, dtype=int)
        found = torch.tensor(values, dtype=torch.float16 if kind == "half" else None)
        return found.requires_grad_(kind == "gradient")

    assert list(RandomAccessReader(4, 4, 1.0, 8).read(12, losses)) == [(0, 4), (8, 12)]


@pytest.mark.parametrize("returned", [[1.0] * 3, [1.0] * 5, 1.0, [], [[1.0] * 4], torch.ones(4, 1)])
def test_losses_of_the_wrong_length(returned):
    reading = RandomAccessReader(4, 4, 1.0, 8).read(12, lambda start, stop: returned)
    with pytest.raises(ShapeError, match=r"losses\(0, 4\) must return 4 losses"):
        next(reading)


@pytest.mark.parametrize(
    "returned",
    [None, "four", ["a"] * 4, object(), [1j] * 4, np.ones(4) * 1j, torch.ones(4) * 1j, [[1.0], []]],
)
def test_losses_that_are_no_numbers(returned):
    reading = RandomAccessReader(4, 4, 1.0, 8).read(12, lambda start, stop: returned)
    with pytest.raises((TypeError, ShapeError, ValueError), match="losses"):
        next(reading)


def test_negative_losses_are_an_error_and_rounding_is_not():
    reader = RandomAccessReader(4, 4, 1.0, 8)
    with pytest.raises(ValueError, match=r"must not be negative; losses\(0, 4\) has -0.5"):
        list(reader.read(12, constant(-0.5)))
    assert list(reader.read(16, constant(-1e-9))) == [(0, 4), (12, 16)]


def test_an_error_of_the_model_comes_through():
    def losses(start, stop):
        if start:
            raise RuntimeError("out of memory")
        return [1.0] * 4

    reading = RandomAccessReader(4, 4, 1.0, 8).read(30, losses)
    assert next(reading) == (0, 4)
    with pytest.raises(RuntimeError, match="out of memory"):
        next(reading)
    assert len(reading.trace) == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 1, 1.0, 8), "window"),
        ((-3, 1, 1.0, 8), "window"),
        ((4, 0, 1.0, 8), "rate"),
        ((4, 1, -0.1, 8), "alpha"),
        ((4, 1, math.nan, 8), "alpha"),
        ((4, 1, math.inf, 8), "alpha"),
        ((4, 1, 1.0, -1), "max_skip"),
    ],
)
def test_settings_out_of_range(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        RandomAccessReader(*arguments)


def test_other_bad_arguments():
    with pytest.raises(TypeError, match="max_skip"):
        RandomAccessReader(4, 1, 1.0)  # mandatory
    with pytest.raises(TypeError, match="window must be an integer"):
        RandomAccessReader(4.5, 1, 1.0, 8)
    with pytest.raises(TypeError, match="alpha must be a number; got 'a lot'"):
        RandomAccessReader(4, 1, "a lot", 8)
    with pytest.raises(ValueError, match="pool must be one of mean, max; got 'sum'"):
        RandomAccessReader(4, 1, 1.0, 8, pool="sum")
    with pytest.raises(TypeError, match="memory must be a KVMemory or an Attendre; got 3"):
        RandomAccessReader(4, 1, 1.0, 8, memory=3)
    reader = RandomAccessReader(4, 1, 1.0, 8)
    with pytest.raises(ValueError, match="length must be at least 0"):
        reader.read(-1, constant(1.0))
    with pytest.raises(TypeError, match="losses must be callable"):
        reader.read(10, [1.0])
    with pytest.raises(TypeError, match="attended must be callable"):
        reader.read(10, constant(1.0), attended=[])
    with pytest.raises(ValueError, match="attended needs an Attendre"):
        reader.read(10, constant(1.0), attended=print)


def test_two_readings_of_one_reader_do_not_meet():
    reader = RandomAccessReader(4, 4, 1.0, 8)
    easy, hard = reader.read(30, constant(0.1)), reader.read(30, constant(9.0))
    taken = [(next(easy), next(hard)) for _ in range(3)]
    assert taken == [((0, 4), (0, 4)), ((12, 16), (4, 8)), ((24, 28), (8, 12))]
    assert easy.trace.tokens_read == hard.trace.tokens_read == 12
    assert len(list(hard)) == 5


def test_a_trace_is_drawn():
    pytest.importorskip("matplotlib")
    values = np.full(200, 0.1)
    values[50:80] = 5.0
    values[198] = math.nan
    reader = RandomAccessReader(6, 4, 0.5, 20, return_pass=True)
    reading = reader.read(200, looked_up(values))
    list(reading)
    assert any(one.returning for one in reading.trace)
    figure = reading.trace.plot()
    (axes,) = figure.axes
    forward, back = (line.get_xydata() for line in axes.lines[:2])
    # two corners below and two above for every window
    assert len(forward) == 4 * sum(not one.returning for one in reading.trace)
    assert len(back) == 4 * sum(one.returning for one in reading.trace)
    first = reading.trace.windows[0]
    corners = [(0, 0), (0, first.confidence), (6, first.confidence), (6, 0)]
    np.testing.assert_allclose(forward[:4], corners)
    assert axes.get_xlim() == (0, 200)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_an_empty_trace_is_drawn():
    pytest.importorskip("matplotlib")
    assert ReadingTrace(0).plot()._repr_png_()
    assert ReadingTrace(10, [ReadWindow(0, 4, math.nan, 0)]).plot()._repr_png_()


class Slots:
    """Records what a reader stores."""

    def __init__(self):
        self.resets, self.stored = 0, []

    def append(self, k, v, positions=None):
        self.stored.append((k, v, positions.tolist()))

    def reset(self):
        self.resets += 1
        self.stored = []


def keyed(start, stop):
    places = torch.arange(start, stop, dtype=torch.float32).view(1, 1, -1, 1)
    return [0.1] * (stop - start), places, 2 * places


def test_a_memory_gets_keys_and_values_with_true_positions():
    slots = Slots()
    reader = RandomAccessReader(2, 2, 0.2, 4, memory=slots)
    for _ in range(2):
        windows = list(reader.read(14, keyed))
        assert windows == [(0, 2), (6, 8), (12, 14)]
        for (start, stop), (k, v, positions) in zip(windows, slots.stored, strict=True):
            assert positions == list(range(start, stop)) == k.flatten().tolist()
            assert torch.equal(v, 2 * k)
    assert slots.resets == 2


def test_a_memory_needs_keys_and_values():
    reader = RandomAccessReader(2, 2, 0.2, 4, memory=Slots())
    with pytest.raises(TypeError, match=r"must return \(losses, keys, values\)"):
        list(reader.read(14, constant(0.1)))
    with pytest.raises(ShapeError, match=r"keys must have shape \(B, H, 2, d\)"):
        list(reader.read(14, lambda start, stop: ([0.1] * 2, torch.ones(1, 1, 3, 1), None)))
    with pytest.raises(TypeError, match="values must be a tensor; got NoneType"):
        list(reader.read(14, lambda start, stop: ([0.1] * 2, torch.ones(1, 1, 2, 1), None)))


def token_vectors(length, size=4, heads=2):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(3, 1, heads, length, size, generator=generator, dtype=torch.float64)


def cut(tensors, places):
    return [tensor[:, :, places] for tensor in tensors]


@pytest.mark.parametrize("return_pass", [False, True])
def test_a_question_after_the_reading_attends_what_was_read(return_pass):
    """With room for all, the memory is full attention over the windows, gaps left out."""
    q, k, v = token_vectors(90)
    losses = torch.full((90,), 0.3)
    losses[40:60] = 4.0
    memory = KVMemory(90, "lra")
    reader = RandomAccessReader(6, 3, 1.0, 15, return_pass=return_pass, memory=memory)
    reading = reader.read(90, lambda a, b: (losses[a:b], *cut((k, v), slice(a, b))))
    list(reading)
    read = torch.cat([torch.arange(one.start, one.stop) for one in reading.trace])
    assert memory.positions.tolist() == [read.tolist()]
    assert return_pass == any(one.returning for one in reading.trace)
    asked = q[:, :, :1]
    torch.testing.assert_close(memory.read(asked), attend(asked, *cut((k, v), read)))


def test_a_small_memory_keeps_the_newest_windows_and_its_size():
    _, k, v = token_vectors(400)
    memory = KVMemory(16)
    reader = RandomAccessReader(8, 8, 1.0, 24, memory=memory)
    reading = reader.read(400, lambda a, b: ([0.5] * (b - a), *cut((k, v), slice(a, b))))
    sizes = set()
    for place, (start, stop) in enumerate(reading):
        if place:
            before = reading.trace.windows[-2]
            assert memory.positions[0].tolist() == [
                *range(before.stop - (16 - stop + start), before.stop),
                *range(start, stop),
            ]
            sizes.add(memory.nbytes)
    assert len(sizes) == 1
    assert place > 10


@pytest.mark.parametrize("return_pass", [False, True])
def test_waiting_queries_attend_later_windows(return_pass):
    """With room and delay for all, the outputs are full attention both ways over the windows."""
    tensors = token_vectors(60)
    losses = torch.full((60,), 0.3)
    losses[20:40] = 4.0
    memory = Attendre(66, 60, "lra")
    reader = RandomAccessReader(6, 3, 1.0, 15, return_pass=return_pass, memory=memory)
    given = []
    for _ in range(2):
        given.clear()
        reading = reader.read(
            60,
            lambda a, b: (losses[a:b], *cut(tensors, slice(a, b))),
            attended=lambda out, positions: given.append((out, positions)),
        )
        list(reading)
        read = torch.cat([torch.arange(one.start, one.stop) for one in reading.trace])
        assert len(read) < 60
        assert torch.equal(torch.cat([positions for _, positions in given]), read)
        out = torch.cat([out for out, _ in given], dim=2)
        torch.testing.assert_close(out, attend(*cut(tensors, read)))


def test_queries_that_wait_a_little_come_in_order():
    tensors = token_vectors(100)
    memory = Attendre(20, 10, "lfa")
    reader = RandomAccessReader(8, 4, 1.0, 12, memory=memory)
    given = []
    reading = reader.read(
        100,
        lambda a, b: ([0.4] * (b - a), *cut(tensors, slice(a, b))),
        attended=lambda out, positions: given.append((out, positions.tolist())),
    )
    windows = list(reading)
    read = [place for window in windows for place in range(*window)]
    assert [place for _, places in given for place in places] == read
    assert len(given) == len(windows) + 1  # the last call is the flush
    assert len(given[-1][1]) == 10
    assert all(out.isfinite().all() for out, _ in given)


def test_a_memory_with_waiting_queries_needs_them():
    reader = RandomAccessReader(2, 2, 0.2, 4, memory=Attendre(20, 4))
    with pytest.raises(TypeError, match=r"must return \(losses, queries, keys, values\)"):
        list(reader.read(14, keyed))
    q, k, v = token_vectors(14)
    tight = RandomAccessReader(6, 2, 0.2, 4, memory=Attendre(8, 4))
    with pytest.raises(ValueError, match="size must be at least delay"):
        list(tight.read(14, lambda a, b: ([0.2] * (b - a), *cut((q, k, v), slice(a, b)))))


def test_an_empty_document_empties_the_memory():
    memory = KVMemory(4)
    memory.append(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3))
    assert list(RandomAccessReader(2, 2, 0.2, 4, memory=memory).read(0, keyed)) == []
    assert len(memory) == 0
