"""SymmetricTensor against dense oracles and known forms."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.errors import NotSymmetricError, ProblemTooLargeError, ShapeError

sizes = st.tuples(st.integers(1, 4), st.integers(1, 5))  # dimension, order
seeds = st.integers(0, 999)
dtypes = st.sampled_from([np.float32, np.float64, np.complex64, np.complex128])


def random_tensor(n: int, m: int, seed: int, dtype: npt.DTypeLike = np.float64) -> SymmetricTensor:
    rng = np.random.default_rng(seed)
    count = number_of_multi_indices(n, m)
    values: npt.NDArray[Any] = rng.standard_normal(count)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(count)
    return SymmetricTensor(values.astype(dtype), m, n)


def contract_dense(dense: npt.NDArray[Any], x: npt.NDArray[Any], times: int) -> npt.NDArray[Any]:
    for _ in range(times):
        dense = np.einsum("...i,i->...", dense, x)
    return dense


@given(sizes, seeds, dtypes)
def test_dense_array_is_symmetric_and_comes_back(
    size: tuple[int, int], seed: int, dtype: npt.DTypeLike
) -> None:
    n, m = size
    T = random_tensor(n, m, seed, dtype)
    dense = T.to_dense()
    assert dense.shape == (n,) * m
    assert dense.dtype == dtype
    for index in itertools.islice(itertools.product(range(n), repeat=m), 200):
        assert dense[index] == T.entries[T.indices.tolist().index(sorted(index))] == T[index]
    back = SymmetricTensor.from_dense(dense, rtol=0)
    np.testing.assert_array_equal(back.entries, T.entries)
    assert back.dtype == dtype


@given(sizes, seeds, st.randoms(use_true_random=False))
def test_index_order_does_not_matter(size: tuple[int, int], seed: int, random: Any) -> None:
    n, m = size
    T = random_tensor(n, m, seed)
    index = [random.randrange(n) for _ in range(m)]
    shuffled = random.sample(index, m)
    negative = [i - n if random.random() < 0.5 else i for i in shuffled]
    assert T[tuple(index)] == T[tuple(shuffled)] == T[tuple(negative)]


@given(sizes, seeds)
def test_permuting_coordinates_permutes_the_dense_axes(size: tuple[int, int], seed: int) -> None:
    n, m = size
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((3, n)), rng.standard_normal(3)
    order = rng.permutation(n)
    T = SymmetricTensor.from_decomposition(weights, points, m)
    P = SymmetricTensor.from_decomposition(weights, points[:, order], m)
    np.testing.assert_allclose(P.to_dense(), T.to_dense()[np.ix_(*[order] * m)], rtol=1e-12)
    assert math.isclose(P.norm(), T.norm(), rel_tol=1e-12)


@given(sizes, seeds, dtypes)
def test_contraction_is_einsum(size: tuple[int, int], seed: int, dtype: npt.DTypeLike) -> None:
    n, m = size
    T = random_tensor(n, m, seed, dtype)
    x = random_tensor(n, 1, seed + 1, dtype).entries
    tolerance = 1e-4 if np.dtype(dtype).itemsize in (4,) or dtype == np.complex64 else 1e-11
    for times in range(m + 1):
        expected = contract_dense(T.to_dense(), x, times)
        result = T.contract(x, times)
        if times == m:
            assert isinstance(result, complex if np.dtype(dtype).kind == "c" else float)
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
        else:
            assert isinstance(result, SymmetricTensor)
            assert (result.order, result.dimension, result.dtype) == (m - times, n, dtype)
            np.testing.assert_allclose(result.to_dense(), expected, rtol=tolerance, atol=tolerance)
    assert T.contract(x) == T.contract(x, m)


def test_contraction_dtype_and_errors() -> None:
    T = random_tensor(3, 3, 0, np.float32)
    step = T.contract(np.ones(3), 1)
    assert isinstance(step, SymmetricTensor)
    assert step.dtype == np.float64
    assert isinstance(T.contract([1j, 0, 0]), complex)
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        T.contract([1.0, 2.0])
    with pytest.raises(ValueError, match=r"0 \.\. 3; got 4"):
        T.contract([1.0, 2.0, 3.0], 4)
    with pytest.raises(ValueError, match="times must be at least 0"):
        T.contract([1.0, 2.0, 3.0], -1)
    for times in (1.5, 0.0):
        with pytest.raises(TypeError, match="times must be an integer"):
            T.contract([1.0, 2.0, 3.0], times)  # type: ignore[arg-type]


@given(sizes, seeds, dtypes)
def test_catalecticant_is_a_submatrix_of_the_flattening(
    size: tuple[int, int], seed: int, dtype: npt.DTypeLike
) -> None:
    n, m = size
    T = random_tensor(n, m, seed, dtype)
    dense = T.to_dense()
    for k in range(m + 1):
        matrix = T.catalecticant(k)
        assert matrix.dtype == dtype
        rows, columns = multi_indices(n, k), multi_indices(n, m - k)
        assert matrix.shape == (len(rows), len(columns))
        expected = [[dense[(*row, *column)] for column in columns] for row in rows]
        np.testing.assert_array_equal(matrix, np.array(expected))


@pytest.mark.parametrize(("n", "m", "k", "r"), [(3, 4, 2, 5), (4, 3, 1, 3), (5, 6, 3, 20)])
def test_catalecticant_rank_is_the_rank_of_the_tensor(n: int, m: int, k: int, r: int) -> None:
    rng = np.random.default_rng(7)
    T = SymmetricTensor.from_decomposition(np.ones(r), rng.standard_normal((r, n)), m)
    singular = np.linalg.svd(T.catalecticant(k), compute_uv=False)
    assert np.sum(singular > 1e-10 * singular[0]) == r


def test_catalecticant_errors() -> None:
    T = random_tensor(2, 3, 0)
    with pytest.raises(ValueError, match=r"0 \.\. 3; got 4"):
        T.catalecticant(4)
    with pytest.raises(ValueError, match="k must be at least 0"):
        T.catalecticant(-1)


def test_from_function_is_called_once_per_entry() -> None:
    calls: list[tuple[int, ...]] = []

    def hilbert(*index: int) -> float:
        calls.append(index)
        return 1 / (1 + sum(index))

    T = SymmetricTensor.from_function(hilbert, 3, 2)
    assert calls == [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
    np.testing.assert_allclose(T.entries, [1, 1 / 2, 1 / 3, 1 / 4])
    dense = np.fromfunction(lambda i, j, k: 1 / (1 + i + j + k), (2, 2, 2))
    np.testing.assert_allclose(T.to_dense(), dense)


def test_from_decomposition_is_the_outer_product() -> None:
    u = np.array([1.0, 2.0, -1.0])
    T = SymmetricTensor.from_decomposition([2.0], [u], 3)
    np.testing.assert_allclose(T.to_dense(), 2 * np.einsum("i,j,k->ijk", u, u, u))
    single = SymmetricTensor.from_decomposition(
        np.ones(1, np.float32), np.ones((1, 2), np.float32), 2
    )
    assert single.dtype == np.float32
    assert SymmetricTensor.from_decomposition([1j], [[1.0, 2.0]], 2).dtype == np.complex128
    assert SymmetricTensor.from_decomposition([], np.empty((0, 2)), 2).norm() == 0
    with pytest.raises(ShapeError, match=r"points \(r, n\)"):
        SymmetricTensor.from_decomposition([1.0, 2.0], [[1.0, 2.0]], 2)


@given(st.integers(1, 3), st.integers(1, 4), seeds, dtypes)
def test_symmetrize_averages(n: int, m: int, seed: int, dtype: npt.DTypeLike) -> None:
    rng = np.random.default_rng(seed)
    array = rng.standard_normal((n,) * m).astype(dtype)
    if np.dtype(dtype).kind == "c":
        array = array + np.asarray(1j * rng.standard_normal((n,) * m), dtype=dtype)
    permutations = list(itertools.permutations(range(m)))
    expected = sum(array.transpose(p) for p in permutations) / len(permutations)
    T = SymmetricTensor.from_dense(array, symmetrize=True)
    assert T.dtype == dtype
    np.testing.assert_allclose(T.to_dense(), expected, rtol=1e-4, atol=1e-5)


def test_asymmetry_is_refused_by_name() -> None:
    dense = random_tensor(3, 3, 1).to_dense()
    dense[0, 1, 2] += 1e-6
    with pytest.raises(NotSymmetricError, match=r"axes 0 and 1.*symmetrize=True"):
        SymmetricTensor.from_dense(dense)
    assert SymmetricTensor.from_dense(dense, rtol=1e-5).order == 3
    for rtol in (np.nan, -1.0):
        with pytest.raises(ValueError, match="rtol must be a number >= 0"):
            SymmetricTensor.from_dense(dense, rtol=rtol)
    only_last = np.zeros((2, 2, 2))
    only_last[0, 0, 1] = only_last[0, 1, 0] = 1.0
    with pytest.raises(NotSymmetricError):
        SymmetricTensor.from_dense(only_last)


def test_from_dense_shapes() -> None:
    assert SymmetricTensor.from_dense([1, 2, 3]).entries.tolist() == [1.0, 2.0, 3.0]
    for array in (np.ones((2, 3)), np.float64(1.0), np.ones((0, 0))):
        with pytest.raises(ShapeError, match=r"\(n,\) \* m"):
            SymmetricTensor.from_dense(array)


def test_subscripts() -> None:
    T = SymmetricTensor.from_function(lambda i, j: 10 * i + j, 2, 3)
    assert T[2, 0] == 2
    assert T[-1, 0] == 2
    np.testing.assert_array_equal(T[np.array([0, 2]), np.array([1, 1])], [1, 12])
    np.testing.assert_array_equal(T[np.arange(3)[:, None], np.arange(3)], T.to_dense())
    for index in ((0,), (0, 1, 2), 0):
        with pytest.raises(IndexError, match="takes 2 indices"):
            T[index]
    for index in ((0, 3), (-4, 0)):
        with pytest.raises(IndexError, match="out of range for dimension 3"):
            T[index]
    for index in ((0, 1.0), (slice(None), 0), (True, 0)):
        with pytest.raises(IndexError, match="integers"):
            T[index]


def test_entries_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"\(4,\) for order=3, dimension=2; got \(5,\)"):
        SymmetricTensor(np.ones(5), 3, 2)
    with pytest.raises(ShapeError, match=r"got \(2, 2\)"):
        SymmetricTensor(np.ones((2, 2)), 3, 2)
    for order, dimension in ((0, 2), (2, 0), (-1, 2)):
        with pytest.raises(ValueError, match="at least 1"):
            SymmetricTensor([1.0], order, dimension)
    with pytest.raises(TypeError, match="order must be an integer"):
        SymmetricTensor([1.0], 2.0, 1)  # type: ignore[arg-type]


def test_sizes_beyond_memory_are_refused() -> None:
    T = SymmetricTensor(np.ones(41), 40, 2)
    with pytest.raises(ProblemTooLargeError, match=r"2\*\*40"):
        T.to_dense()
    assert T.contract([1.0, 1.0]) == 2.0**40
    assert T.norm() == 2.0**20


def test_scalars_of_every_kind() -> None:
    T = SymmetricTensor([1.0, 2.0, 5.0], 2, 2)
    for scalar in (2, 2.0, np.float64(2), np.array(2.0), Fraction(2), np.int8(2)):
        assert (scalar * T).entries.tolist() == (T * scalar).entries.tolist() == [2.0, 4.0, 10.0]
        assert (T / scalar).entries.tolist() == [0.5, 1.0, 2.5]
    assert (T * 1j).dtype == np.complex128
    single = SymmetricTensor(np.ones(3, np.float32), 2, 2)
    assert (2.0 * single / 3).dtype == np.float32


def test_large_tensors_are_vectorised() -> None:
    T = SymmetricTensor.from_decomposition([1.0, 2.0], np.random.default_rng(0).random((2, 60)), 4)
    assert T.entries.shape == (math.comb(63, 4),)
    x = np.random.default_rng(1).random(60)
    gradient = T.contract(x, 3)
    assert isinstance(gradient, SymmetricTensor)
    np.testing.assert_allclose(gradient.entries @ x, T.contract(x), rtol=1e-12)
