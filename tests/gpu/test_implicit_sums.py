"""Implicit sums against monomials that are formed, in every namespace and on any threads."""

from itertools import combinations
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.errors import ShapeError
from tensoralg.gpu import register_tiles
from tensoralg.gpu.implicit_sums import implicit_sums, product_sums, sweep_sums


def elementary(c: Any, q: int) -> float:
    return float(sum(np.prod(c[list(a)]) for a in combinations(range(len(c)), q)))


def plainly(X: Any, w: Any, points: Any, order: int, factors: Any, power: int) -> tuple[Any, Any]:
    """The definition, monomial by monomial."""
    r, d = points.shape
    values, reads = np.zeros((r, order + 1)), np.zeros((r, d))
    for x, weight in zip(X, w, strict=True):
        for s, z in enumerate(points):
            values[s] += weight * np.array([elementary(x * z, q) for q in range(order + 1)])
            for j in range(d):
                rest = np.delete(x * z, j)
                reads[s, j] += (
                    weight
                    * x[j] ** power
                    * sum(factor * elementary(rest, q) for q, factor in enumerate(factors))
                )
    return values, reads


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    d=st.integers(1, 6),
    r=st.integers(1, 3),
    kind=st.sampled_from([(1, 1, 1), (2, 1, 0), (3, 3, 1), (3, 4, 2), (4, 4, 1)]),
)
def test_both_engines_agree_with_the_definition(
    seed: int, rows: int, d: int, r: int, kind: tuple[int, int, int]
) -> None:
    order, count, power = kind  # few kinds: each is compiled anew
    rng = np.random.default_rng(seed)
    X, points = rng.standard_normal((rows, d)), rng.standard_normal((r, d))
    w = rng.integers(0, 3, rows).astype(float)
    factors = rng.standard_normal(count)
    expected = plainly(X, w, points, order, factors, power)
    for compute in (sweep_sums, product_sums):
        found = compute(X, w, points, order, factors, power=power)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def many(seed: int = 0, rows: int = 3001, d: int = 90, r: int = 7) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, d)), rng.random(rows), rng.standard_normal((r, d)) / 2


def close(found: Any, expected: Any, tolerance: float = 1e-11) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def test_rows_beyond_one_part_and_one_block() -> None:
    X, w, points = many()
    factors = [1.0, 0.5, 0.25]
    whole = sweep_sums(X, w, points, 3, factors)
    close(whole, product_sums(X, w, points, 3, factors))
    cut = [sweep_sums(X[a:b], w[a:b], points, 3, factors) for a, b in ((0, 33), (33, 3001))]
    close(whole, [one + two for one, two in zip(*cut, strict=True)])


def test_any_number_of_threads_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    X, w, points = many(rows=12_000)
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert register_tiles.thread_count() == int(threads)
        found.append(implicit_sums(X, w, points, 3, [1.0, 2.0, 3.0]))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.array_equal(a, b)


def test_weights_are_repetitions_and_kinds_of_arrays_do_not_matter() -> None:
    X, _, points = many(rows=500)
    w = np.random.default_rng(1).integers(0, 4, 500)
    weighted = implicit_sums(X, w, points, 4, [1.0, 1.0, 1.0, 1.0])
    close(weighted, implicit_sums(np.repeat(X, w, axis=0), None, points, 4, [1.0] * 4), 1e-13)
    fortran = np.asfortranarray(X)
    fortran.flags.writeable = False
    close(implicit_sums(fortran, w, points, 4, [1.0] * 4), weighted, 1e-15)
    single = implicit_sums(X.astype(np.float32), w, points, 4, [1.0] * 4)
    close(single, weighted, 1e-5)
    assert single[0].dtype == np.float64


@pytest.mark.parametrize("power", [0, 1, 2])
def test_array_api_strict(power: int) -> None:
    X, w, points = many(rows=200)
    expected = implicit_sums(X, w, points, 3, [1.0, 2.0, 3.0], power=power)
    strict = [array_api_strict.asarray(a) for a in (X, w, points)]
    found = implicit_sums(*strict, 3, [1.0, 2.0, 3.0], power=power)
    assert all(isinstance(part, array_api_strict._array_object.Array) for part in found)
    close([np.asarray(part) for part in found], expected)


def test_border() -> None:
    X, w, points = many(rows=3)
    with pytest.raises(ShapeError, match=r"points \(r, d\); got \(3, 90\) and \(7, 89\)"):
        implicit_sums(X, w, points[:, 1:], 3, [1.0])
    for order, factors, power in ((0, [1.0], 1), (2, [1.0] * 4, 1), (2, [], 1), (2, [1.0], -1)):
        with pytest.raises(ValueError, match="order must be at least 1"):
            implicit_sums(X, w, points, order, factors, power=power)
    values, reads = implicit_sums(X, np.zeros(3), points, 2, [1.0])
    assert not values.any()
    assert not reads.any()
