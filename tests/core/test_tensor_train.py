"""TensorTrain: TT-SVD, arithmetic, entries, files; array libraries, dtypes, scales, bad input."""

import copy
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorly.decomposition import tensor_train as peer_tensor_train

from tensoralg import TensorTrain, TensorTrainMatrix, load, save
from tensoralg.core.tensor_train_shapes import cap_ranks
from tensoralg.errors import PersistenceError, ShapeError


def random_train(shape: Any, ranks: Any, seed: int = 0, *, dtype: str = "float64") -> TensorTrain:
    rng = np.random.default_rng(seed)
    bonds = (1, *ranks, 1)
    cores = [rng.standard_normal((bonds[k], n, bonds[k + 1])) for k, n in enumerate(shape)]
    if np.dtype(dtype).kind == "c":
        cores = [core + 1j * rng.standard_normal(core.shape) for core in cores]
    return TensorTrain([core.astype(dtype) for core in cores])


modes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4)
dtypes = st.sampled_from(["float64", "complex128"])
trains = st.builds(
    lambda pairs, seed, dtype: random_train(
        [n for n, _ in pairs], [r for _, r in pairs[1:]], seed, dtype=dtype
    ),
    modes,
    st.integers(0, 99),
    dtypes,
)


def partner(T: TensorTrain, rank: int, seed: int) -> TensorTrain:
    return random_train(T.shape, (rank,) * (T.order - 1), seed + 1000)


@given(trains)
def test_a_dense_array_comes_back_at_its_ranks(T: TensorTrain) -> None:
    dense = T.to_dense()
    back = TensorTrain.from_dense(dense)
    np.testing.assert_allclose(back.to_dense(), dense, atol=1e-12 * np.linalg.norm(dense))
    assert back.ranks == cap_ranks(T.shape, T.ranks)  # random cores waste no rank they can fill
    assert back.round().ranks == T.round().ranks == back.ranks
    assert back.dtype == T.dtype
    for core in back.cores[:-1]:
        flat = core.reshape(-1, core.shape[-1])
        np.testing.assert_allclose(flat.conj().T @ flat, np.eye(flat.shape[1]), atol=1e-12)


arrays = st.builds(
    lambda shape, seed: np.random.default_rng(seed).standard_normal(shape),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 99),
)


@given(arrays, st.sampled_from([1e-8, 0.03, 0.2, 0.6, 1.5]))
def test_the_tolerance_is_kept(dense: Any, rtol: float) -> None:
    T = TensorTrain.from_dense(dense, rtol=rtol)
    error = np.linalg.norm(T.to_dense() - dense)
    assert error <= rtol * np.linalg.norm(dense) * (1 + 1e-12)
    if rtol >= 1:
        assert T.ranks == (1,) * (dense.ndim + 1)


@pytest.mark.parametrize("rtol", [0.1, 0.3, 0.5, 0.7])
def test_the_tolerance_is_used_up_and_not_exceeded(rtol: float) -> None:
    # white noise: the singular values of the middle bond are dense
    dense = np.random.default_rng(0).standard_normal((6, 6, 6, 6))
    whole = TensorTrain.from_dense(dense)
    for T, least in (
        (TensorTrain.from_dense(dense, rtol=rtol), 0.85),
        (whole.round(rtol=rtol), 0.9),
    ):
        error = np.linalg.norm(T.to_dense() - dense) / np.linalg.norm(dense)
        assert least * rtol <= error <= rtol * (1 + 1e-12)


def test_the_tolerance_is_spent_where_it_frees_most() -> None:
    # a matrix of slowly falling singular values: equal parts for the bonds take twice as much
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((64, 64)))[0] for _ in range(2))
    dense = (left * np.arange(1.0, 65) ** -0.7 @ right).reshape(8, 8, 8, 8)
    peer, rest, rank = [], dense, 1
    for _ in range(3):
        _, s, v = np.linalg.svd(rest.reshape(rank * 8, -1), full_matrices=False)
        tails = np.sqrt(np.cumsum(s[::-1] ** 2)[::-1])
        kept = int(np.sum(tails > 0.3 / 3**0.5 * np.linalg.norm(dense)))
        peer.append(rank * 8 * kept)
        rest, rank = s[:kept, None] * v[:kept], kept
    T = TensorTrain.from_dense(dense, rtol=0.3)
    assert np.linalg.norm(T.to_dense() - dense) <= 0.3 * np.linalg.norm(dense)
    assert T.parameters < 0.75 * (sum(peer) + rank * 8)


@given(arrays, st.integers(1, 4))
def test_ranks_are_quasi_optimal(dense: Any, rank: int) -> None:
    T = TensorTrain.from_dense(dense, ranks=rank)
    assert max(T.ranks) <= rank
    tails = 0.0
    for k in range(1, dense.ndim):
        values = np.linalg.svd(dense.reshape(math.prod(dense.shape[:k]), -1), compute_uv=False)
        tails += float(np.sum(values[rank:] ** 2))
    assert np.linalg.norm(T.to_dense() - dense) <= math.sqrt(tails) + 1e-12 * np.linalg.norm(dense)


def decaying(shape: tuple[int, int], decay: float, seed: int) -> Any:
    """A wide matrix of singular values 1, decay, decay**2, .."""
    rng = np.random.default_rng(seed)
    u, _ = np.linalg.qr(rng.standard_normal((shape[0], shape[0])))
    v, _ = np.linalg.qr(rng.standard_normal((shape[1], shape[0])))
    return u * decay ** np.arange(shape[0]) @ v.T


@given(
    st.integers(0, 99),
    st.sampled_from([0.1, 0.3, 0.8]),
    st.sampled_from([0.3, 1e-2, 1e-4, 3e-6, 1e-7, 1e-11]),
    st.sampled_from([np.float64, np.float32]),
)
def test_wide_unfoldings_keep_the_tolerance_at_the_smallest_rank(
    seed: int, decay: float, rtol: float, dtype: Any
) -> None:
    # at every tolerance, eigenvalues of the Gram matrix or singular values, the rank is that of
    # singular values and the error below the tolerance
    dense = decaying((12, 300), decay, seed).astype(dtype)
    T = TensorTrain.from_dense(dense, rtol=rtol)
    values = decay ** np.arange(12)
    tails = np.sqrt(np.cumsum(values[::-1] ** 2)[::-1] / np.sum(values**2))
    rank, eps = T.ranks[1], float(np.finfo(dtype).eps)
    error = np.linalg.norm(T.to_dense() - dense.astype(np.float64))
    assert error <= rtol * np.linalg.norm(dense) * (1 + 1e-9) + 2 * eps * np.linalg.norm(dense)
    if rtol > 1e-3 or dtype == np.float64:
        assert tails[rank - 1] >= rtol * 0.999 or rank == 1 or tails[rank - 1] < 2 * eps


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_wide_unfoldings_with_largest_ranks(dtype: str) -> None:
    dense = decaying((12, 300), 0.5, 0).astype(dtype)
    if dense.dtype.kind == "c":
        dense = dense * (1 + 2j) + 1j * decaying((12, 300), 0.5, 1).astype(dtype)
    left, values, right = np.linalg.svd(dense, full_matrices=False)
    for rank in (1, 5, 11, 12):
        T = TensorTrain.from_dense(dense, ranks=rank)
        best = left[:, :rank] * values[:rank] @ right[:rank]
        assert T.ranks == (1, rank, 1)
        np.testing.assert_allclose(T.to_dense(), best, atol=20 * np.finfo(dtype).eps)
    # of an exact rank below the largest one no noise is kept
    exact = (left[:, :3] * values[:3] @ right[:3]).astype(dtype)
    assert TensorTrain.from_dense(exact, ranks=8).ranks == (1, 3, 1)
    assert TensorTrain.from_dense(exact).ranks == (1, 3, 1)


def test_decomposition_against_tensorly() -> None:
    for seed in range(5):
        dense = np.random.default_rng(seed).standard_normal((4, 5, 6, 3))
        ranks = [1, 3, 4, 2, 1]
        peer = tensorly.tt_to_tensor(peer_tensor_train(dense, rank=ranks))
        ours = TensorTrain.from_dense(dense, ranks=ranks)
        assert ours.ranks == tuple(ranks)
        np.testing.assert_allclose(ours.to_dense(), peer, atol=1e-10)


def test_ranks_of_functions_known_in_closed_form() -> None:
    i, j, k, m = np.ogrid[:5, :6, :7, :4]
    assert TensorTrain.from_dense(i + j + k + m).ranks == (1, 2, 2, 2, 1)  # a sum of modes
    assert TensorTrain.from_dense(np.sin(i + j + k + m)).ranks == (1, 2, 2, 2, 1)
    assert TensorTrain.from_dense(np.exp(0.1 * (i + j + k + m))).ranks == (1, 1, 1, 1, 1)
    assert TensorTrain.from_dense((i + j + k + m) ** 2).ranks == (1, 3, 3, 3, 1)


@given(trains, st.integers(1, 3), st.integers(0, 99), st.sampled_from([2, -0.5, 3 - 1j]))
def test_arithmetic_is_the_dense_one(T: TensorTrain, rank: int, seed: int, number: Any) -> None:
    S = partner(T, rank, seed)
    a, b = T.to_dense(), S.to_dense()
    size = np.linalg.norm(a) + np.linalg.norm(b) + np.linalg.norm(a * b)
    for result, expected in (
        (T + S, a + b),
        (T - S, a - b),
        (T * S, a * b),
        (S * T, a * b),
        (-T, -a),
        (+T, a),
        (T * number, a * number),
        (number * T, a * number),
        (T / number, a / number),
    ):
        assert isinstance(result, TensorTrain)
        np.testing.assert_allclose(result.to_dense(), expected, atol=1e-12 * size * 4)
        assert result.dtype == expected.dtype
    np.testing.assert_allclose(T.dot(S), np.vdot(a, b), atol=1e-12 * size**2)
    np.testing.assert_allclose(S.dot(T), np.vdot(b, a), atol=1e-12 * size**2)
    assert isinstance(T.dot(T), complex if T.dtype.kind == "c" else float)
    assert T.norm() == pytest.approx(np.linalg.norm(a), rel=1e-12)
    assert (T - T).norm() <= 1e-14 * T.norm()  # not the square root of the rounding error
    inner = T.order > 1
    assert (T + S).ranks[1:-1] == tuple(p + q for p, q in zip(T.ranks, S.ranks, strict=True))[1:-1]
    assert (T * S).ranks == tuple(p * q for p, q in zip(T.ranks, S.ranks, strict=True))
    assert (T + T).round().ranks == T.round().ranks or not inner


@given(trains, st.integers(0, 3))
def test_orthogonalize_moves_the_norm_to_one_core(T: TensorTrain, place: int) -> None:
    k = min(place, T.order - 1)
    S = T.orthogonalize(k)
    assert T.allclose(S, rtol=1e-12)
    assert np.linalg.norm(S.cores[k]) == pytest.approx(T.norm(), rel=1e-12)
    for core in S.cores[:k]:
        flat = core.reshape(-1, core.shape[-1])
        np.testing.assert_allclose(flat.conj().T @ flat, np.eye(flat.shape[1]), atol=1e-12)
    for core in S.cores[k + 1 :]:
        flat = core.reshape(core.shape[0], -1)
        np.testing.assert_allclose(flat @ flat.conj().T, np.eye(flat.shape[0]), atol=1e-12)


@given(trains)
def test_subscripts_give_entries(T: TensorTrain) -> None:
    dense = T.to_dense()
    for index in itertools.islice(np.ndindex(*T.shape), 30):
        np.testing.assert_allclose(T[index], dense[index], atol=1e-12)
        backwards = tuple(i - n for i, n in zip(index, T.shape, strict=True))
        assert T[backwards] == T[index]
    grids = np.ogrid[tuple(slice(n) for n in T.shape)]
    np.testing.assert_allclose(T[tuple(grids)], dense, atol=1e-12)


def test_bad_subscripts_are_named() -> None:
    T = random_train((3, 4), (2,))
    assert isinstance(T[1, 2], float)
    assert T[[0, 1], 2].shape == (2,)
    assert T[[], 0].shape == (0,)
    with pytest.raises(IndexError, match="takes 2 indices; got 1"):
        T[0]
    with pytest.raises(IndexError, match="index 4 is out of range for mode 1 of 4 values"):
        T[0, 4]
    with pytest.raises(IndexError, match="index -4 is out of range for mode 0"):
        T[-4, 0]
    with pytest.raises(TypeError, match="must be integers"):
        T[0, 1:]
    with pytest.raises(TypeError, match="must be integers"):
        T[0.0, 1]
    with pytest.raises(TypeError, match="not iterable"):
        iter(T)


def test_rounding_options_and_spectra() -> None:
    T = random_train((4, 5, 6), (4, 6))
    dense = T.to_dense()
    assert T.round(ranks=2).ranks == (1, 2, 2, 1)
    assert T.round(ranks=[1, 3]).ranks == (1, 1, 3, 1)
    assert T.round(max_parameters=30).parameters <= 30
    assert T.parameters == 4 * 4 + 4 * 5 * 6 + 6 * 6
    rounded = T.round(rtol=0.4)
    assert np.linalg.norm(rounded.to_dense() - dense) <= 0.4 * np.linalg.norm(dense)
    for k, values in enumerate(T.singular_values()):
        rows = dense.reshape(math.prod(T.shape[: k + 1]), -1)
        np.testing.assert_allclose(values, np.linalg.svd(rows, compute_uv=False)[: len(values)])
    assert T.round(rtol=0).allclose(T, rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-200, 1e-100, 1e100, 1e200])
def test_extreme_scales(scale: float) -> None:
    unit = random_train((3, 4, 5), (3, 4))
    dense = unit.to_dense()
    T = TensorTrain.from_dense(dense * scale, rtol=0.3)
    expected = TensorTrain.from_dense(dense, rtol=0.3)
    assert T.ranks == expected.ranks
    np.testing.assert_allclose(T.to_dense(), expected.to_dense() * scale, rtol=1e-8)
    # large and small cores that make up for each other
    uneven = TensorTrain([unit.cores[0] * scale, unit.cores[1] / scale, unit.cores[2] * scale])
    np.testing.assert_allclose(uneven.to_dense(), dense * scale, rtol=1e-10, atol=1e-14 * scale)
    assert uneven.norm() == pytest.approx(unit.norm() * scale, rel=1e-12)
    assert (uneven * (1 / scale)).dot(unit) == pytest.approx(unit.norm() ** 2)
    assert (uneven / scale).dot(unit) == pytest.approx(unit.norm() ** 2)
    assert uneven.round(ranks=2).norm() == pytest.approx(unit.round(ranks=2).norm() * scale)
    assert uneven.orthogonalize(1).allclose(uneven, rtol=1e-12, atol=0)
    np.testing.assert_allclose(uneven[1, 2, 3], dense[1, 2, 3] * scale)
    product = (uneven / scale) * unit
    np.testing.assert_allclose(product.to_dense(), dense**2, atol=1e-12)


def test_the_ends_of_the_range() -> None:
    large = TensorTrain.from_dense(np.full((4, 4, 4), 1.7e308))
    np.testing.assert_allclose(large.to_dense(), 1.7e308)
    assert large.norm() == math.inf  # 8 * 1.7e308
    assert (large / 16).norm() == pytest.approx(1.7e308 / 2)
    small = TensorTrain.from_dense(np.full((4, 4, 4), 5e-324))
    np.testing.assert_array_equal(small.to_dense(), 5e-324)
    beyond = TensorTrain([np.full((1, 2, 1), 1e200)] * 2)  # entries of 1e400
    assert beyond.norm() == math.inf
    assert (beyond * 1e-200 * 1e-200).round().norm() == pytest.approx(2.0)
    assert (beyond.round() * 1e-200 * 1e-200).norm() == pytest.approx(2.0)
    assert (beyond.orthogonalize(0) * 1e-200 * 1e-200).norm() == pytest.approx(2.0)
    uneven = TensorTrain([np.full((1, 2, 1), 1e300), np.full((1, 2, 1), 1e-300)])
    for scaled in (uneven * 1e200, uneven / 1e-200, 1e200 * uneven):
        np.testing.assert_allclose(scaled.to_dense(), 1e200)
    for scaled in (uneven / 1e200, uneven * 1e-200):
        np.testing.assert_allclose(scaled.to_dense(), 1e-200)
    under = TensorTrain([np.full((1, 2, 1), 1e-200)] * 2)
    assert (under.round() * 1e200 * 1e200).norm() == pytest.approx(2.0)


def test_zero_tensors_and_empty_modes() -> None:
    zero = TensorTrain.from_dense(np.zeros((3, 4, 2)))
    assert zero.ranks == (1, 1, 1, 1)
    assert zero.norm() == 0.0
    assert (zero + zero).round().ranks == (1, 1, 1, 1)
    T = random_train((3, 4, 2), (2, 2))
    assert (T + zero).round().allclose(T)
    assert (T * 0).round().ranks == (1, 1, 1, 1)
    assert T.dot(zero) == 0.0
    empty = TensorTrain.from_dense(np.zeros((3, 0, 2)))
    assert (empty.shape, empty.ranks) == ((3, 0, 2), (1, 1, 1, 1))
    assert empty.to_dense().shape == (3, 0, 2)
    wide = TensorTrain([np.ones((1, 3, 2)), np.ones((2, 0, 2)), np.ones((2, 2, 1))])
    for result in (wide + empty, wide * wide, wide.round(rtol=0.1), wide.orthogonalize(1), -wide):
        assert result.to_dense().shape == (3, 0, 2)
    assert wide.norm() == wide.dot(wide) == 0.0
    assert wide.allclose(empty)


def test_one_mode_and_modes_of_one_value() -> None:
    T = TensorTrain.from_dense([1.0, 2.0, 3.0])
    assert (T.shape, T.ranks, T.singular_values()) == ((3,), (1, 1), ())
    assert (T + T).to_dense().tolist() == [2.0, 4.0, 6.0]
    assert (T * T).to_dense().tolist() == [1.0, 4.0, 9.0]
    assert T.round(rtol=0.9).to_dense().tolist() == [1.0, 2.0, 3.0]
    assert T[2] == 3.0
    one = TensorTrain.from_dense(np.full((1,) * 12, 3.0))
    assert one.ranks == (1,) * 13
    assert one[(0,) * 12] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (np.float32, np.float32),
        (np.complex64, np.complex64),
        (np.int32, np.float64),
        (np.bool_, np.float64),
        (np.float16, np.float32),
        (np.dtype(">f8"), np.float64),
    ],
)
def test_dtypes(given_dtype: Any, kept: Any) -> None:
    array = np.array([[1, 0, 1], [2, 0, 1]]).astype(given_dtype)
    T = TensorTrain.from_dense(array)
    assert T.dtype == TensorTrain([array[None, :, :1]]).dtype == kept
    assert (T + T).dtype == (T * 2).dtype == (T / 2.0).dtype == (T * T).dtype == kept
    assert (np.float64(2) * T).dtype == kept
    assert T.round(rtol=0.1).dtype == T.orthogonalize(0).dtype == kept
    assert isinstance(T.norm(), float)
    np.testing.assert_allclose(T.to_dense(), array.astype(kept), atol=1e-6)


def test_mixed_dtypes_take_the_wider_one() -> None:
    single = random_train((3, 4), (2,), dtype="float32")
    double = random_train((3, 4), (2,), 1)
    assert (single + double).dtype == (double * single).dtype == np.float64
    mixed = TensorTrain([single.cores[0], double.cores[1]])
    assert [core.dtype for core in mixed.cores] == [np.float64, np.float64]
    assert (single * 1j).dtype == np.complex64
    cores = [torch.tensor(core.copy()) for core in mixed.cores]
    assert TensorTrain([cores[0].float(), cores[1]]).cores[0].dtype == torch.float64


def test_float32_keeps_half_its_digits_of_a_large_train() -> None:
    T = random_train((8,) * 6, (8, 16, 16, 16, 8), dtype="float32")
    exact = TensorTrain([core.astype(np.float64) for core in T.cores])
    assert T.norm() == pytest.approx(exact.norm(), rel=1e-12)
    error = T.round().to_dense() - exact.to_dense()
    assert np.linalg.norm(error) <= 1e-5 * exact.norm()
    assert TensorTrain.from_dense(T.to_dense()).ranks == T.ranks


@pytest.mark.parametrize(
    ("make", "back"),
    [(array_api_strict.asarray, np.from_dlpack), (torch.tensor, lambda t: t.numpy())],
    ids=["strict", "torch"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_other_libraries_do_the_same(make: Any, back: Any, dtype: str) -> None:
    T, S = random_train((3, 4, 2), (3, 2), dtype=dtype), random_train((3, 4, 2), (2, 2), 1)
    S = TensorTrain([core.astype(dtype) for core in S.cores])
    A, B = (TensorTrain([make(core.copy()) for core in X.cores]) for X in (T, S))
    assert type(A.cores[0]) is type(make(np.ones(1)))
    tolerance = 1e-4 if dtype in ("float32", "complex64") else 1e-12
    for ours, expected in (
        (A + B, T + S),
        (A - B, T - S),
        (A * B, T * S),
        (A * 2.5, T * 2.5),
        (A / 2.5, T / 2.5),
        (A * (1 + 2j), T * (1 + 2j)),
        (A.round(ranks=2), T.round(ranks=2)),
        (A.orthogonalize(1), T.orthogonalize(1)),
        (TensorTrain.from_dense(A.to_dense()), TensorTrain.from_dense(T.to_dense())),
    ):
        assert ours.ranks == expected.ranks
        assert str(ours.dtype).endswith(str(expected.dtype))
        np.testing.assert_allclose(back(ours.to_dense()), expected.to_dense(), atol=50 * tolerance)
    assert A.norm() == pytest.approx(T.norm())
    assert A.dot(B) == pytest.approx(T.dot(S), rel=1e-5)
    assert A.allclose(A.orthogonalize(0), rtol=1e-5)
    np.testing.assert_allclose(back(A[[0, 1], [3, 2], 1]), T[[0, 1], [3, 2], 1], atol=tolerance)
    np.testing.assert_allclose(complex(A[0, 1, -1]), complex(T[0, 1, -1]), atol=tolerance)
    with pytest.raises(TypeError, match="librar"):
        A + T
    with pytest.raises(TypeError, match="librar"):
        A.dot(T)
    with pytest.raises(TypeError, match="librar"):
        TensorTrain([A.cores[0], T.cores[1], A.cores[2]])
    with pytest.raises(ValueError, match=r"cores\[0\] must be finite"):
        TensorTrain([A.cores[0] * math.nan, *A.cores[1:]])


def test_torch_gradients_reach_the_given_cores() -> None:
    cores = [
        torch.tensor(core.copy(), requires_grad=True)
        for core in random_train((2, 3, 2), (2, 2)).cores
    ]
    (TensorTrain(cores) * 2.0).to_dense().sum().backward()
    assert all(core.grad is not None and bool(core.grad.any()) for core in cores)
    with pytest.raises(ValueError, match=r"cores\[0\] has dtype torch.bfloat16; accepted are"):
        TensorTrain([core.detach().bfloat16() for core in cores])


def test_values_are_copied_and_read_only(tmp_path: Path) -> None:
    source = [np.ones((1, 3, 2)), np.ones((2, 4, 1))]
    T = TensorTrain(source)
    source[0][0, 0, 0] = 99.0
    assert T.cores[0][0, 0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        T.cores[1][0, 0, 0] = 1.0
    with pytest.raises(AttributeError):
        T.cores = ()  # type: ignore[misc]
    save(tmp_path / "t.npz", T)
    for other in (copy.deepcopy(T), pickle.loads(pickle.dumps(T)), load(tmp_path / "t.npz")):
        assert type(other) is TensorTrain
        assert all(np.array_equal(a, b) for a, b in zip(T.cores, other.cores, strict=True))
    assert repr(T) == "TensorTrain(shape=(3, 4), ranks=(1, 2, 1), dtype=float64)"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_many_cores_keep_their_order_in_a_file(tmp_path: Path, dtype: str) -> None:
    T = random_train(range(1, 13), (2,) * 11, dtype=dtype)
    save(tmp_path / "t.npz", T)
    back = load(tmp_path / "t.npz")
    assert (back.shape, back.dtype) == (T.shape, T.dtype)
    assert all(np.array_equal(a, b) for a, b in zip(T.cores, back.cores, strict=True))
    arrays = dict(np.load(tmp_path / "t.npz"))
    np.savez(tmp_path / "torn.npz", **{k: v for k, v in arrays.items() if k != "cores.3"})
    with pytest.raises(PersistenceError, match=r"cores\.11|cores\.3"):
        load(tmp_path / "torn.npz")
    np.savez(tmp_path / "wrong.npz", **{**arrays, "cores.3": np.ones((5, 4, 2))})
    with pytest.raises(PersistenceError, match=r"no valid TensorTrain: cores\[3\]"):
        load(tmp_path / "wrong.npz")


@pytest.mark.parametrize(
    ("cores", "error", "message"),
    [
        ([], ShapeError, "at least one core"),
        ([np.ones((1, 3))], ShapeError, r"cores\[0\] must have shape \(r_\{k-1\}, n_k, r_k\)"),
        ([np.ones((2, 3, 1))], ShapeError, r"cores\[0\].*first rank 1.*got \(2, 3, 1\)"),
        ([np.ones((1, 3, 2))], ShapeError, r"cores\[0\] must have 1 as its last rank; got 2"),
        ([np.ones((1, 3, 2)), np.ones((3, 3, 1))], ShapeError, r"cores\[1\].*first rank 2"),
        ([np.ones((1, 3, 0)), np.ones((0, 3, 1))], ShapeError, r"cores\[0\].*at least 1"),
        ([np.full((1, 3, 1), np.nan)], ValueError, r"cores\[0\] must be finite; got nan"),
        ([np.full((1, 3, 1), "a")], ValueError, r"cores\[0\] has dtype <U1"),
        ([np.ones((1, 3, 1), np.longdouble)], ValueError, r"cores\[0\] has dtype"),
    ],
)
def test_bad_cores_are_named(cores: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        TensorTrain(cores)


@pytest.mark.parametrize(
    ("array", "options", "error", "message"),
    [
        (3.0, {}, ShapeError, "at least one axis"),
        ([1.0, np.nan], {}, ValueError, "array must be finite"),
        ([[1.0, np.inf]], {}, ValueError, "array must be finite"),
        ([["a"]], {}, ValueError, "array has dtype"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), {}, ValueError, "masked"),
        (np.eye(3), {"rtol": -1}, ValueError, "rtol must be at least 0; got -1"),
        (np.eye(3), {"rtol": math.nan}, ValueError, "rtol must be at least 0; got nan"),
        (np.eye(3), {"ranks": 0}, ValueError, "ranks must be at least 1"),
        (np.eye(3), {"ranks": [1, 2]}, ShapeError, "1 numbers for the inner bonds or 3"),
    ],
)
def test_bad_arrays_and_options_are_named(
    array: Any, options: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        TensorTrain.from_dense(array, **options)


def test_bad_operands_are_named() -> None:
    T, other = random_train((3, 4), (2,)), random_train((3, 5), (2,))
    for operation in (
        lambda: T + other,
        lambda: T - other,
        lambda: T * other,
        lambda: T.dot(other),
        lambda: T.allclose(other),
    ):
        with pytest.raises(ShapeError, match=r"shape=\(3, 4\).*shape=\(3, 5\)"):
            operation()
    for operation in (  # type: ignore[assignment]
        lambda: T + 1,  # type: ignore[operator]
        lambda: T - np.ones((3, 4)),  # type: ignore[operator]
        lambda: np.ones((3, 4)) * T,
        lambda: T / T,
        lambda: T * "2",
        lambda: T.dot(np.ones((3, 4))),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            operation()
    with pytest.raises(ZeroDivisionError):
        T / 0
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            T * number
    with pytest.raises(ValueError, match=r"k must lie in 0 \.\. 1; got 2"):
        T.orthogonalize(2)
    with pytest.raises(ValueError, match="k must be at least 0; got -1"):
        T.orthogonalize(-1)
    with pytest.raises(TypeError, match="k must be an integer"):
        T.orthogonalize(0.5)  # type: ignore[arg-type]


def test_a_tensor_larger_than_the_memory_is_refused():
    train = TensorTrain([np.ones((1, 4, 1))] * 40)
    with pytest.raises(MemoryError, match="GiB"):
        train.to_dense()
    matrix = TensorTrainMatrix([np.ones((1, 4, 4, 1))] * 20)
    with pytest.raises(MemoryError, match="GiB"):
        matrix.to_dense()
