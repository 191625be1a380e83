"""Shapes and ranks: balanced modes of any size, bounds, caps, counts."""

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.tensor_train_shapes import (
    cap_ranks,
    count_parameters,
    full_rank_bounds,
    plan_shape,
)
from tensoralg.errors import ShapeError


@pytest.mark.parametrize(
    ("size", "factors", "expected"),
    [
        (30522, 3, (31, 31, 32)),  # a vocabulary that has no balanced factors
        (768, 3, (8, 8, 12)),
        (3072, 3, (12, 16, 16)),
        (512, 3, (8, 8, 8)),
        (784, 4, (4, 4, 7, 7)),
        (7919, 2, (89, 89)),  # a prime: 7921
        (1, 3, (1, 1, 1)),
        (2, 3, (1, 1, 2)),
        (5, 4, (1, 2, 2, 2)),
        (13, 1, (13,)),
        (2**61 - 1, 5, (4705, 4705, 4705, 4705, 4706)),
        (2**200, 4, (2**50,) * 4),
    ],
)
def test_known_plans(size: int, factors: int, expected: tuple[int, ...]) -> None:
    assert plan_shape(size, factors) == expected


def plain_plan(size: int, factors: int) -> tuple[int, ...]:
    """All ascending tuples one after the other, by the definition."""
    top = size + 1
    exact = [
        c
        for c in itertools.combinations_with_replacement(range(1, top), factors)
        if math.prod(c) == size and c[-1] <= 2 * c[0]
    ]
    if exact:
        return min(exact, key=lambda c: (c[-1] / c[0], sum(c)))
    close = [
        c
        for c in itertools.combinations_with_replacement(range(1, top), factors)
        if math.prod(c) >= size and c[-1] - c[0] <= 1
    ]
    return min(close, key=math.prod)


@pytest.mark.parametrize("factors", [1, 2, 3])
def test_plans_follow_the_definition(factors: int) -> None:
    for size in range(1, 40 if factors == 3 else 150):
        assert plan_shape(size, factors) == plain_plan(size, factors), size


@given(st.integers(1, 10**15), st.integers(1, 12), st.sampled_from([1, 2, 3, 8]))
def test_plans_hold_the_index_and_are_balanced(size: int, factors: int, multiple: int) -> None:
    plan = plan_shape(size, factors, multiple=multiple)
    assert len(plan) == factors
    assert list(plan) == sorted(plan)
    assert all(n % multiple == 0 for n in plan)
    assert math.prod(plan) >= size
    assert plan[-1] <= 2 * plan[0]
    if math.prod(plan) != size:  # one step less somewhere would not hold the index
        assert plan[-1] - plan[0] <= multiple
        assert math.prod(plan) // plan[-1] * (plan[-1] - multiple) < size


def test_a_large_prime_takes_no_long_search() -> None:
    assert plan_shape(2**61 - 1, 2) == (1518500250, 1518500250)
    assert plan_shape(10**18, 2) == (10**9, 10**9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 2), ValueError, "size must be at least 1; got 0"),
        ((4, 0), ValueError, "factors must be at least 1; got 0"),
        ((4.5, 2), TypeError, "size must be an integer; got 4.5"),
        ((4, 2, 0), ValueError, "multiple must be at least 1"),
    ],
)
def test_bad_sizes_are_named(arguments: tuple[Any, ...], error: Any, message: str) -> None:
    size, factors, *rest = arguments
    with pytest.raises(error, match=message):
        plan_shape(size, factors, **dict(zip(["multiple"], rest, strict=False)))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_bounds_are_the_ranks_of_a_generic_tensor(shape: list[int]) -> None:
    dense = np.random.default_rng(0).standard_normal(shape)
    found = [
        np.linalg.matrix_rank(dense.reshape(math.prod(shape[:k]), -1)) for k in range(1, len(shape))
    ]
    assert full_rank_bounds(shape) == (1, *found, 1)
    assert cap_ranks(shape, None) == full_rank_bounds(shape)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 999))
def test_capped_ranks_can_be_filled_and_are_the_largest(shape: list[int], seed: int) -> None:
    wanted = np.random.default_rng(seed).integers(1, 20, len(shape) - 1).tolist()
    ranks = cap_ranks(shape, wanted)
    assert ranks[0] == ranks[-1] == 1
    for k, n in enumerate(shape):
        assert ranks[k + 1] <= ranks[k] * n
        assert ranks[k] <= n * ranks[k + 1]
    # generic cores of the wanted ranks have unfoldings of exactly these ranks
    rng, bonds = np.random.default_rng(1), [1, *wanted, 1]
    dense: Any = np.ones((1, 1))
    for k, n in enumerate(shape):
        core = rng.standard_normal((bonds[k], n * bonds[k + 1]))
        dense = (dense @ core).reshape(-1, bonds[k + 1])
    found = [
        np.linalg.matrix_rank(dense.reshape(math.prod(shape[:k]), -1)) for k in range(1, len(shape))
    ]
    assert ranks == (1, *found, 1)
    assert cap_ranks(shape, ranks) == ranks


def test_forms_of_ranks() -> None:
    shape = (4, 3, 5)
    assert cap_ranks(shape, 2) == (1, 2, 2, 1)
    assert cap_ranks(shape, np.int64(2)) == (1, 2, 2, 1)  # type: ignore[arg-type]
    assert cap_ranks(shape, np.array([2, 3])) == (1, 2, 3, 1)  # type: ignore[arg-type]
    assert cap_ranks(shape, [1, 2, 3, 1]) == (1, 2, 3, 1)
    assert cap_ranks((7,), 5) == cap_ranks((7,), []) == cap_ranks((7,), None) == (1, 1)
    assert cap_ranks((3, 0, 4), 5) == (1, 1, 1, 1)
    assert count_parameters(shape, (1, 2, 3, 1)) == 8 + 18 + 15


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ([2, 2, 2], ShapeError, "2 numbers for the inner bonds or 4 for all; got 3"),
        ([2, 2, 2, 1], ShapeError, "begin and end with 1"),
        (0, ValueError, "ranks must be at least 1; got 0"),
        ([1, 0], ValueError, r"ranks\[1\] must be at least 1"),
        (1.5, TypeError, "ranks must be an integer"),
        (["a", 1], TypeError, r"ranks\[0\] must be an integer"),
    ],
)
def test_bad_ranks_are_named(ranks: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cap_ranks((4, 3, 5), ranks)


def test_the_documentation_states_what_is_planned() -> None:
    page = Path(__file__).parents[2] / "docs" / "tensor_trains.md"
    rows = re.findall(r"^\| (\d+)[^|]*\| ([\d ·]+) \|", page.read_text("utf-8"), re.MULTILINE)
    assert len(rows) >= 4
    for size, modes in rows:
        stated = tuple(int(n) for n in modes.split("·"))
        assert plan_shape(int(size), len(stated)) == stated
