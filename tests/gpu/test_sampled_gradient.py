"""Sampled-fibre gradients: against the dense formula, unbiased, alike in every namespace."""

from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.gpu.precision import precision_policy, round_operand
from tensoralg.gpu.sampled_gradient import (
    draw_fibres,
    gather_by_slabs,
    gather_fibres,
    khatri_rao_rows,
    sampled_gradient,
)
from tensoralg.gpu.tensor_blocks import TensorBlocks


def problem(shape: tuple[int, ...], rank: int, seed: int) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape), [rng.standard_normal((n, rank)) for n in shape]


def plain_gradient(tensor: Any, factors: list[Any], mode: int, others: list[Any]) -> Any:
    """Fibre by fibre, entry by entry."""
    A = factors[mode]
    rest = [f for k, f in enumerate(factors) if k != mode]
    out = np.zeros_like(A)
    for fibre in zip(*others, strict=True):
        h = np.ones(A.shape[1])
        for f, i in zip(rest, fibre, strict=True):
            h = h * f[i]
        for i in range(len(A)):
            where = list(fibre)
            where.insert(mode, i)
            out[i] += (A[i] @ h - tensor[tuple(where)]) * h
    return out / len(others[0])


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    rank=st.integers(1, 4),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_gradient_is_that_of_the_sampled_fibres(
    shape: tuple[int, ...], rank: int, seed: int, data: Any
) -> None:
    tensor, factors = problem(shape, rank, seed)
    mode = data.draw(st.integers(0, len(shape) - 1))
    others = draw_fibres(shape, mode, 7, np.random.default_rng(seed))
    rows = khatri_rao_rows(factors, mode, others)
    found = sampled_gradient(gather_fibres(tensor, mode, others), rows, factors[mode])
    np.testing.assert_allclose(found, plain_gradient(tensor, factors, mode, others), atol=1e-10)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_all_layouts_and_namespaces_gather_the_same_fibres(mode: int) -> None:
    tensor, factors = problem((6, 5, 4), 3, 1)
    others = draw_fibres(tensor.shape, mode, 9, np.random.default_rng(2))
    where: list[Any] = list(others)
    where.insert(mode, slice(None))
    moved = np.stack(
        [tensor[tuple(w if isinstance(w, slice) else w[s] for w in where)] for s in range(9)],
        axis=1,
    )
    wide = np.zeros((6, 5, 8))
    wide[:, :, ::2] = tensor
    for layout in (tensor, np.asfortranarray(tensor), wide[:, :, ::2]):
        np.testing.assert_array_equal(gather_fibres(layout, mode, others), moved)
    strict = gather_fibres(array_api_strict.asarray(tensor), mode, others)
    np.testing.assert_array_equal(np.asarray(strict), moved)
    rows = khatri_rao_rows(factors, mode, others)
    strict_factors = [array_api_strict.asarray(f) for f in factors]
    strict_rows = khatri_rao_rows(strict_factors, mode, others)
    np.testing.assert_array_equal(np.asarray(strict_rows), rows)
    gradient = sampled_gradient(strict, strict_rows, strict_factors[mode])
    expected = sampled_gradient(moved, rows, factors[mode])
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=1e-12)


def test_one_pass_over_slabs_gathers_several_sets() -> None:
    tensor, _ = problem((7, 5, 4), 1, 9)
    rng = np.random.default_rng(0)
    wanted = [(mode, draw_fibres(tensor.shape, mode, 6, rng)) for mode in (0, 1, 2, 2)]
    passes = []

    class Narrow(TensorBlocks):
        def slabs(self, max_bytes: int = 0) -> Any:
            passes.append(max_bytes)
            return super().slabs(2 * 20 * 8)

    found = gather_by_slabs(Narrow(tensor), wanted)
    for out, (mode, others) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(out, gather_fibres(tensor, mode, others))
    assert len(passes) == 1


def test_few_fibres_are_all_taken_once_and_many_are_drawn_evenly() -> None:
    rng = np.random.default_rng(0)
    everything = draw_fibres((3, 4, 5), 1, 15, rng)
    assert sorted(zip(*(i.tolist() for i in everything), strict=True)) == [
        (i, k) for i in range(3) for k in range(5)
    ]
    i, k = draw_fibres((3, 400, 100), 1, 200, rng)
    assert len(i) == len(k) == 200
    counts = np.bincount(
        np.concatenate([draw_fibres((3, 4, 100), 2, 8, rng)[0] for _ in range(999)])
    )
    assert abs(counts / counts.sum() - 1 / 3).max() < 0.03


def test_sampled_gradients_average_to_the_whole_one() -> None:
    tensor, factors = problem((4, 6, 7), 2, 3)
    rng = np.random.default_rng(4)
    total = np.zeros_like(factors[0])
    for _ in range(4000):
        others = draw_fibres(tensor.shape, 0, 8, rng)
        rows = khatri_rao_rows(factors, 0, others)
        total += sampled_gradient(gather_fibres(tensor, 0, others), rows, factors[0])
    every = draw_fibres(tensor.shape, 0, 42, rng)
    rows = khatri_rao_rows(factors, 0, every)
    exact = sampled_gradient(gather_fibres(tensor, 0, every), rows, factors[0])
    # 32 000 fibres: about 1 % of the spread of one
    np.testing.assert_allclose(total / 4000, exact, atol=0.15)


@pytest.mark.parametrize("name", ["tf32", "bfloat16", "float16", "float8", "int8"])
def test_residual_form_rounds_the_error_and_the_rows_only(name: str) -> None:
    tensor, factors = problem((6, 5, 4), 3, 5)
    f32 = [f.astype(np.float32) for f in factors]
    others = draw_fibres(tensor.shape, 0, 9, np.random.default_rng(1))
    X = gather_fibres(tensor.astype(np.float32), 0, others)
    H = khatri_rao_rows(f32, 0, others)
    policy = precision_policy(name)
    E = f32[0] @ H.T - X
    expected = round_operand(E, policy, axis=1) @ round_operand(H, policy, axis=0) / 9
    found = sampled_gradient(X, H, f32[0], policy=policy)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    strict = [array_api_strict.asarray(a) for a in (X, H, f32[0])]
    np.testing.assert_allclose(
        np.asarray(sampled_gradient(*strict, policy=policy)), expected, rtol=1e-5, atol=1e-6
    )


def test_rounding_error_vanishes_with_the_error_in_residual_form_only() -> None:
    _, factors = problem((30, 20, 10), 3, 6)
    f32 = [f.astype(np.float32) for f in factors]
    exact = np.einsum("is,js,ks->ijk", *f32)
    others = draw_fibres(exact.shape, 0, 50, np.random.default_rng(1))
    X, H = gather_fibres(exact, 0, others), khatri_rao_rows(f32, 0, others)
    policy = precision_policy("float8")
    assert abs(sampled_gradient(X, H, f32[0], policy=policy)).max() < 1e-5
    stored = sampled_gradient(X, H, f32[0], policy=policy, residual_form=False)
    assert abs(stored).max() > 1e-3


def test_stochastic_rounding_is_unbiased_and_seeded() -> None:
    tensor, factors = problem((6, 5, 4), 3, 7)
    f32 = [f.astype(np.float32) for f in factors]
    others = draw_fibres(tensor.shape, 0, 9, np.random.default_rng(1))
    X, H = gather_fibres(tensor.astype(np.float32), 0, others), khatri_rao_rows(f32, 0, others)
    exact = sampled_gradient(X, H, f32[0])
    policy = precision_policy("float8", rounding="stochastic")
    rng = np.random.default_rng(0)
    draws = [sampled_gradient(X, H, f32[0], policy=policy, rng=rng) for _ in range(2000)]
    error = np.mean(draws, axis=0) - exact
    spread = np.std(draws, axis=0) / np.sqrt(2000)
    assert (abs(error) < 5 * spread + 1e-5).all()
    one, two = (sampled_gradient(X, H, f32[0], policy=policy, rng=3) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert abs(one - exact).max() > 1e-4


def test_float64_stays_float64() -> None:
    tensor, factors = problem((6, 5, 4), 3, 8)
    others = draw_fibres(tensor.shape, 0, 9, np.random.default_rng(1))
    X, H = gather_fibres(tensor, 0, others), khatri_rao_rows(factors, 0, others)
    found = sampled_gradient(X, H, factors[0], policy=precision_policy("float64"))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, sampled_gradient(X, H, factors[0]))
