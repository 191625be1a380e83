"""Rounding of tensor trains: errors, ranks, maps of the bonds, budgets, scales, array libraries."""

import itertools
import math
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.tensor_train_algebra import (
    bond_singular_values,
    contract_cores,
    contract_matrix_cores,
    initial_standard_deviation,
    left_orthogonalize,
    rescale_cores,
    right_orthogonalize,
    round_cores,
    train_norm,
)
from tensoralg.core.tensor_train_shapes import cap_ranks, count_parameters, full_rank_bounds
from tensoralg.core.tensor_train_truncation import allocate_ranks


def random_cores(
    shape: Any, ranks: Any, seed: int = 0, *, dtype: str = "float64", decay: float = 1.0
) -> list[Any]:
    """Gaussian cores; with a decay the singular values of every bond fall off."""
    rng = np.random.default_rng(seed)
    bonds = (1, *ranks, 1)
    cores = []
    for k, n in enumerate(shape):
        modes = n if isinstance(n, tuple) else (n,)
        core = rng.standard_normal((bonds[k], *modes, bonds[k + 1]))
        if np.dtype(dtype).kind == "c":
            core = core + 1j * rng.standard_normal(core.shape)
        cores.append((core * decay ** np.arange(bonds[k + 1])).astype(dtype))
    return cores


def plain_dense(cores: Any) -> Any:
    """The definition, entry by entry."""
    shape = [core.shape[1] for core in cores]
    dense = np.empty(shape, dtype=cores[0].dtype)
    for index in itertools.product(*map(range, shape)):
        product = np.ones((1, 1))
        for core, i in zip(cores, index, strict=True):
            product = product @ core[:, i, :]
        dense[index] = product[0, 0]
    return dense


def mapped(cores: Any, maps: Any) -> list[Any]:
    return [
        np.einsum("ab,b...c,cd->a...d", left, core, right)
        for core, (left, right) in zip(cores, maps, strict=True)
    ]


trains = st.builds(
    lambda modes, seed, dtype, decay: random_cores(
        [n for n, _ in modes], [r for _, r in modes[1:]], seed, dtype=dtype, decay=decay
    ),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(0, 999),
    st.sampled_from(["float64", "complex128"]),
    st.sampled_from([1.0, 0.3]),
)


@given(trains)
def test_contraction_norm_and_spectra_are_the_dense_ones(cores: Any) -> None:
    dense = plain_dense(cores)
    np.testing.assert_allclose(contract_cores(cores), dense, rtol=1e-10, atol=1e-10)
    norm = np.linalg.norm(dense)
    assert train_norm(cores) == pytest.approx(norm, rel=1e-12)
    for k, values in enumerate(bond_singular_values(cores)):
        rows = math.prod(dense.shape[: k + 1])
        expected = np.linalg.svd(dense.reshape(rows, -1), compute_uv=False)
        assert len(values) <= min(cores[k].shape[-1], len(expected))
        expected[len(values) :] = 0 if len(values) < len(expected) else expected[len(values) :]
        np.testing.assert_allclose(values, expected[: len(values)], atol=1e-12 * norm)


@given(trains, st.integers(0, 4))
def test_orthogonal_cores_keep_the_tensor(cores: Any, place: int) -> None:
    k = min(place, len(cores) - 1)
    left, right = left_orthogonalize(cores, k), right_orthogonalize(cores, k)
    dense = contract_cores(cores)
    size = np.linalg.norm(dense)
    for j in range(k):
        flat = left[j].reshape(-1, left[j].shape[-1])
        np.testing.assert_allclose(flat.conj().T @ flat, np.eye(flat.shape[1]), atol=1e-12)
    for j in range(k + 1, len(cores)):
        flat = right[j].reshape(right[j].shape[0], -1)
        np.testing.assert_allclose(flat @ flat.conj().T, np.eye(flat.shape[0]), atol=1e-12)
    for turned in (left, right):
        np.testing.assert_allclose(contract_cores(turned), dense, atol=1e-12 * size)
    assert all(a is b for a, b in zip(left[k + 1 :], cores[k + 1 :], strict=True))
    assert all(a is b for a, b in zip(right[:k], cores[:k], strict=True))


@given(trains, st.sampled_from([None, 1e-8, 0.05, 0.3, 0.9]), st.booleans())
def test_rounding_keeps_its_tolerance_and_its_maps(cores: Any, rtol: Any, balance: bool) -> None:
    dense = contract_cores(cores)
    new, maps = round_cores(cores, rtol=rtol, balance=balance)
    size = np.linalg.norm(dense)
    assert np.linalg.norm(contract_cores(new) - dense) <= (rtol or 0) * size + 1e-12 * size
    for core, given_, moved in zip(new, cores, mapped(cores, maps), strict=True):
        assert core.shape[-1] <= given_.shape[-1]
        np.testing.assert_allclose(moved, core, atol=1e-8 * np.abs(core).max())
    bonds = (1, *(core.shape[-1] for core in new))
    assert cap_ranks([core.shape[1] for core in new], bonds) == bonds  # nothing superfluous
    for (_, right), (left, _) in itertools.pairwise(maps):
        np.testing.assert_allclose(left @ right, np.eye(len(left)), atol=1e-6)
    if balance:
        sizes = [np.sqrt(np.mean(np.abs(core) ** 2)) for core in new]
        np.testing.assert_allclose(sizes, sizes[0], rtol=1e-10)
    else:
        for core in new[:-1]:
            flat = core.reshape(-1, core.shape[-1])
            np.testing.assert_allclose(flat.conj().T @ flat, np.eye(flat.shape[1]), atol=1e-10)


@given(trains, st.integers(1, 4))
def test_ranks_are_quasi_optimal(cores: Any, rank: int) -> None:
    dense = contract_cores(cores)
    new, _ = round_cores(cores, ranks=rank)
    assert max([core.shape[-1] for core in new]) <= rank
    tails = [float(np.sum(s[rank:] ** 2)) for s in bond_singular_values(cores)]
    error = np.linalg.norm(contract_cores(new) - dense)
    assert error <= math.sqrt(sum(tails)) + 1e-12 * np.linalg.norm(dense)


def test_superfluous_ranks_are_found_without_a_tolerance() -> None:
    for dtype in ("float32", "float64", "complex64", "complex128"):
        cores = random_cores((4, 5, 6, 3), (3, 5, 2), dtype=dtype)
        twice = [np.concatenate([c, c], axis=-1) for c in cores]
        twice = [twice[0]] + [np.concatenate([c, 0 * c], axis=0) for c in twice[1:]]
        twice[-1] = np.concatenate([cores[-1], cores[-1]], axis=0)
        new, maps = round_cores(twice)
        assert [core.shape[-1] for core in new] == [3, 5, 2, 1]
        assert {core.dtype for core in new} == {m.dtype for pair in maps for m in pair}
        assert new[0].dtype == dtype
        whole, tolerance = contract_cores(twice), 100 * np.finfo(dtype).eps
        error = np.linalg.norm(contract_cores(new) - whole)
        assert error <= tolerance * np.linalg.norm(whole)


def test_what_one_bond_leaves_of_the_tolerance_goes_to_the_next() -> None:
    # the first bond is exact at rank 1: the whole tolerance is left for the second
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((4, 2)))[0] for _ in range(2))
    matrix = u * [1.0, 0.099] @ v.T
    cores = [np.ones((1, 2, 1)) / 2**0.5, u[None], (matrix.T @ u).T[:, :, None]]
    assert [c.shape[-1] for c in round_cores(cores, rtol=0.1)[0]] == [1, 1, 1]
    assert [c.shape[-1] for c in round_cores(cores, rtol=0.098)[0]] == [1, 2, 1]


@pytest.mark.parametrize("balance", [False, True])
def test_a_bond_that_a_later_cut_makes_superfluous_shrinks_too(balance: bool) -> None:
    # the third bond is cut to 1, so that the second, which a first sweep leaves at 3, needs 2
    cores = random_cores((2, 3, 2, 2), (2, 4, 2), 3822)
    dense = contract_cores(cores)
    new, maps = round_cores(cores, rtol=0.3, balance=balance)
    assert [core.shape[-1] for core in new] == [1, 2, 1, 1]
    assert np.linalg.norm(contract_cores(new) - dense) <= 0.3 * np.linalg.norm(dense)
    for core, moved in zip(new, mapped(cores, maps), strict=True):
        np.testing.assert_allclose(moved, core, atol=1e-10)
    for (_, right), (left, _) in itertools.pairwise(maps):
        np.testing.assert_allclose(left @ right, np.eye(len(left)), atol=1e-10)


def test_zero_tensors_and_empty_ones() -> None:
    for cores in (
        [np.zeros((1, 3, 4)), np.ones((4, 2, 5)), np.ones((5, 3, 1))],
        [np.ones((1, 3, 2)), np.zeros((2, 2, 1))],
    ):
        for options in ({}, {"balance": True}, {"rtol": 0.1}, {"ranks": 3}, {"max_parameters": 9}):
            new, maps = round_cores(cores, **options)  # type: ignore[arg-type]
            assert [core.shape[-1] for core in new] == [1] * len(cores)
            assert not contract_cores(new).any()
            for core, moved in zip(new, mapped(cores, maps), strict=True):
                assert np.isfinite(core).all()
                assert moved.shape == core.shape
        assert train_norm(cores) == 0.0
        assert all((s == 0).all() for s in bond_singular_values(cores))
    empty = [np.ones((1, 3, 2)), np.ones((2, 0, 4)), np.ones((4, 2, 1))]
    new, maps = round_cores(empty, rtol=0.1)
    assert [core.shape for core in new] == [(1, 3, 1), (1, 0, 1), (1, 2, 1)]
    assert [(a.shape, b.shape) for a, b in maps] == [
        ((1, 1), (2, 1)), ((1, 2), (4, 1)), ((1, 4), (1, 1))
    ]  # fmt: skip
    assert train_norm(empty) == 0.0
    assert [len(s) for s in bond_singular_values(empty)] == [0, 0]


@pytest.mark.parametrize("scales", [(1e200, 1e200, 1e-300), (1e-200, 1e-150, 1e200)])
def test_scales_that_over_or_underflow_on_the_way(scales: Any) -> None:
    unit = random_cores((4, 5, 3), (4, 3), 1)
    cores = [core * scale for core, scale in zip(unit, scales, strict=True)]
    scale = 1e100 if scales[0] > 1 else 1e-150
    with np.errstate(over="ignore"):  # such maps have no numbers
        new, _ = round_cores(cores, ranks=2)
    expected, _ = round_cores(unit, ranks=2)
    np.testing.assert_allclose(
        contract_cores(new), contract_cores(expected) * scale, rtol=1e-10, atol=1e-12 * scale
    )
    assert train_norm(cores) == pytest.approx(train_norm(unit) * scale, rel=1e-12)
    for values, one in zip(bond_singular_values(cores), bond_singular_values(unit), strict=True):
        np.testing.assert_allclose(values, one * scale, rtol=1e-10)


def test_maps_follow_large_and_small_scales() -> None:
    unit = random_cores((4, 5, 3), (4, 3), 1)
    for scales in ((1e100, 1e90, 1e-150), (1e-100, 1e-50, 1e20)):
        cores = [core * scale for core, scale in zip(unit, scales, strict=True)]
        for balance in (False, True):
            new, maps = round_cores(cores, ranks=2, balance=balance)
            for moved, core in zip(mapped(cores, maps), new, strict=True):
                np.testing.assert_allclose(moved, core, rtol=1e-6, atol=1e-8 * np.abs(core).max())


def test_hidden_underflow_inside_a_core() -> None:
    # large entries that meet zeros only: what remains is small, not zero
    cores = [np.array([[[1.0, 1e-200]]]), np.array([[[0.0]], [[1e-100]]])]
    new, _ = round_cores(cores)
    np.testing.assert_allclose(contract_cores(new), [[1e-300]])
    assert train_norm(cores) == pytest.approx(1e-300)
    assert bond_singular_values(cores)[0][0] == pytest.approx(1e-300)


def test_a_tensor_beyond_the_range_keeps_its_scale_in_all_cores() -> None:
    unit = random_cores((3, 4, 3), (2, 2), 5)
    for scale in (1e150, 1e-150):
        cores = [core * scale for core in unit]
        assert train_norm(cores) == (math.inf if scale > 1 else 0.0)
        new, maps = round_cores(cores)
        back = contract_cores([core / scale for core in new])
        np.testing.assert_allclose(back, contract_cores(unit), atol=1e-12)
        for moved, core in zip(mapped(cores, maps), new, strict=True):
            np.testing.assert_allclose(moved, core, atol=1e-8 * np.abs(core).max())


def test_budget_holds_and_is_well_spent() -> None:
    shape, ranks = (4, 5, 5, 4), (4, 8, 4)
    for seed in range(5):
        cores = random_cores(shape, ranks, seed, decay=0.7)
        dense = contract_cores(cores)
        spectra = [np.asarray(s) ** 2 for s in bond_singular_values(cores)]
        for budget in (18, 25, 40, 70, 120, 1000):
            new, _ = round_cores(cores, max_parameters=budget)
            assert sum(core.size for core in new) <= budget
            best = min(
                sum(s[r:].sum() for s, r in zip(spectra, tried, strict=True))
                for tried in itertools.product(*(range(1, r + 1) for r in ranks))
                if cap_ranks(shape, tried) == (1, *tried, 1)
                and count_parameters(shape, (1, *tried, 1)) <= budget
            )
            error = np.linalg.norm(contract_cores(new) - dense)
            assert error <= 1.25 * math.sqrt(best) + 1e-12 * np.linalg.norm(dense)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 60),
    st.integers(0, 99),
)
def test_ranks_of_many_trains_share_one_budget(trains_: Any, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [[n for n, _ in train] for train in trains_]
    spectra = []
    for train, size in zip(trains_, sizes, strict=True):
        counts = [
            min(r, bound)
            for (_, r), bound in zip(train[1:], full_rank_bounds(size)[1:-1], strict=True)
        ]
        spectra.append([np.sort(rng.random(count))[::-1].tolist() for count in counts])
    least = sum(map(sum, sizes))
    ranks = allocate_ranks(spectra, sizes, least + extra)
    total = sum(count_parameters(s, r) for s, r in zip(sizes, ranks, strict=True))
    assert total <= least + extra
    for size, rank, spectrum in zip(sizes, ranks, spectra, strict=True):
        assert cap_ranks(size, rank) == rank
        assert all(1 <= r <= len(s) for r, s in zip(rank[1:-1], spectrum, strict=True))
    with pytest.raises(ValueError, match=f"at least {least}"):
        allocate_ranks(spectra, sizes, least - 1)


def test_a_train_that_matters_more_gets_more_of_the_budget() -> None:
    spectrum = [1.0, 0.5, 0.25, 0.125]
    large, small = [[s * 10 for s in spectrum]], [spectrum]
    ranks = allocate_ranks([large, small], [[4, 4], [4, 4]], 40)
    assert ranks == [(1, 4, 1), (1, 1, 1)]
    assert allocate_ranks([small, small], [[4, 4], [4, 4]], 32) == [(1, 2, 1), (1, 2, 1)]


def from_strict(array: Any) -> Any:
    return np.from_dlpack(array)


@pytest.mark.parametrize(
    ("make", "back"),
    [
        (array_api_strict.asarray, from_strict),
        (torch.tensor, lambda t: t.numpy()),
    ],
    ids=["strict", "torch"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_other_libraries_do_the_same(make: Any, back: Any, dtype: str) -> None:
    shape = ((2, 3), (3, 2), (2, 2))
    cores = random_cores(shape, (4, 3), 2, dtype=dtype)
    foreign = [make(core) for core in cores]
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    for options in ({"rtol": 0.2}, {"ranks": 2, "balance": True}, {"max_parameters": 40}):
        new, maps = round_cores(foreign, **options)  # type: ignore[arg-type]
        expected, _ = round_cores(cores, **options)  # type: ignore[arg-type]
        assert all(type(core) is type(foreign[0]) for core in new)
        assert new[0].dtype == foreign[0].dtype
        np.testing.assert_allclose(
            back(contract_matrix_cores(new)), contract_matrix_cores(expected), atol=tolerance * 100
        )
        pairs = [tuple(back(m) for m in pair) for pair in maps]
        for moved, core in zip(mapped(cores, pairs), new, strict=True):
            np.testing.assert_allclose(moved, back(core), atol=tolerance * 100)
    assert train_norm(foreign) == pytest.approx(train_norm(cores))


def test_half_precision_is_rounded_in_single() -> None:
    cores = [torch.tensor(c, dtype=torch.bfloat16) for c in random_cores((4, 5, 4), (3, 3))]
    new, maps = round_cores(cores, ranks=2)
    assert {c.dtype for c in new} == {m.dtype for p in maps for m in p} == {torch.bfloat16}
    wide = round_cores([c.double() for c in cores], ranks=2)[0]
    error = contract_cores([c.double() for c in new]) - contract_cores(wide)
    assert float(error.norm()) < 0.02 * train_norm(wide)


def test_gradients_pass_through_contraction_and_orthogonalization() -> None:
    cores = [torch.tensor(c, requires_grad=True) for c in random_cores((2, 3, 2), (2, 2))]
    assert torch.autograd.gradcheck(lambda *c: contract_cores(c), cores)
    assert torch.autograd.gradcheck(lambda *c: contract_cores(left_orthogonalize(c, 2)), cores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtol": -0.1}, "rtol must be at least 0; got -0.1"),
        ({"rtol": math.nan}, "rtol must be at least 0; got nan"),
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"ranks": [2, 2]}, "ranks must be one number"),
        ({"max_parameters": 8}, "max_parameters must be at least 9, the number at ranks 1; got 8"),
    ],
)
def test_bad_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        round_cores(random_cores((4, 5), (3,)), **options)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rank", [1, 2, 8])
def test_initial_size_of_random_cores(order: int, rank: int) -> None:
    shape, wanted = (8,) * order, 0.02
    ranks = (1, *(rank,) * (order - 1), 1)
    deviation = initial_standard_deviation(ranks, wanted)
    squares = []
    for seed in range(200):
        cores = [core * deviation for core in random_cores(shape, ranks[1:-1], seed)]
        squares.append(train_norm(cores) ** 2 / math.prod(shape))
        exact = rescale_cores(cores, wanted)
        assert train_norm(exact) == pytest.approx(wanted * math.prod(shape) ** 0.5, rel=1e-12)
    # the expectation; one draw of a product of many cores scatters widely
    assert math.sqrt(np.mean(squares)) / wanted == pytest.approx(1.0, abs=0.25)
    assert initial_standard_deviation(ranks, 0.0) == 0.0


def test_rescaling_leaves_nothing_to_scale_alone() -> None:
    zero = [np.zeros((1, 3, 1)), np.ones((1, 2, 1))]
    assert not contract_cores(rescale_cores(zero, 1.0)).any()
    assert contract_cores(rescale_cores([np.ones((1, 0, 1))], 1.0)).shape == (0,)
