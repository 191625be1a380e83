"""TensorTrainMatrix: TT-SVD of matrices, products with vectors, batches, trains and matrices."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import TensorTrain, TensorTrainMatrix, load, save
from tensoralg.core.tensor_train_shapes import plan_shape
from tensoralg.errors import ShapeError


def random_matrix(
    rows: Any, columns: Any, ranks: Any, seed: int = 0, *, dtype: str = "float64"
) -> TensorTrainMatrix:
    rng = np.random.default_rng(seed)
    bonds = (1, *ranks, 1)
    shapes = zip(bonds[:-1], rows, columns, bonds[1:], strict=True)
    cores = [rng.standard_normal(shape) for shape in shapes]
    if np.dtype(dtype).kind == "c":
        cores = [core + 1j * rng.standard_normal(core.shape) for core in cores]
    return TensorTrainMatrix([core.astype(dtype) for core in cores])


def plain_dense(A: TensorTrainMatrix) -> Any:
    """The definition, entry by entry."""
    dense = np.empty(A.shape, dtype=A.dtype)
    for i, row in enumerate(np.ndindex(*A.row_shape)):
        for j, column in enumerate(np.ndindex(*A.column_shape)):
            product = np.ones((1, 1))
            for core, a, b in zip(A.cores, row, column, strict=True):
                product = product @ core[:, a, b, :]
            dense[i, j] = product[0, 0]
    return dense


matrices = st.builds(
    lambda modes, seed, dtype: random_matrix(
        [m for m, _, _ in modes],
        [n for _, n, _ in modes],
        [r for _, _, r in modes[1:]],
        seed,
        dtype=dtype,
    ),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3
    ),
    st.integers(0, 99),
    st.sampled_from(["float64", "complex128"]),
)


@given(matrices)
def test_the_dense_matrix_comes_back(A: TensorTrainMatrix) -> None:
    dense = plain_dense(A)
    np.testing.assert_allclose(A.to_dense(), dense, atol=1e-12)
    back = TensorTrainMatrix.from_dense(dense, row_shape=A.row_shape, column_shape=A.column_shape)
    np.testing.assert_allclose(back.to_dense(), dense, atol=1e-12 * np.linalg.norm(dense))
    assert all(p <= q for p, q in zip(back.ranks, A.ranks, strict=True))
    assert (A.norm(), A.order) == (pytest.approx(np.linalg.norm(dense)), len(A.cores))
    np.testing.assert_array_equal(A.T.to_dense(), A.transpose().to_dense())
    np.testing.assert_allclose(A.T.to_dense(), dense.T, atol=1e-12)


@given(matrices, st.integers(0, 99))
def test_products_with_vectors_and_batches(A: TensorTrainMatrix, seed: int) -> None:
    dense, rng = A.to_dense(), np.random.default_rng(seed)
    x, batch = rng.standard_normal(A.shape[1]), rng.standard_normal((2, 3, A.shape[1]))
    np.testing.assert_allclose(A.matvec(x), dense @ x, atol=1e-10)
    np.testing.assert_allclose(A @ x, dense @ x, atol=1e-10)
    np.testing.assert_allclose(A.matvec(batch), batch @ dense.T, atol=1e-10)
    np.testing.assert_allclose(A @ batch[0].T, dense @ batch[0].T, atol=1e-10)
    np.testing.assert_allclose(A.T.matvec(dense @ x), dense.T @ (dense @ x), atol=1e-8)
    assert A.matvec(batch).shape == (2, 3, A.shape[0])
    assert A.matvec(batch[:, :0]).shape == (2, 0, A.shape[0])


@given(matrices, st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_products_with_matrices_and_trains(
    A: TensorTrainMatrix, columns: int, rank: int, seed: int
) -> None:
    inner = (rank,) * (A.order - 1)
    B = random_matrix(A.column_shape, (columns,) * A.order, inner, seed)
    product = A @ B
    assert isinstance(product, TensorTrainMatrix)
    np.testing.assert_allclose(product.to_dense(), A.to_dense() @ B.to_dense(), atol=1e-9)
    assert product.ranks == tuple(p * q for p, q in zip(A.ranks, B.ranks, strict=True))
    rng, bonds = np.random.default_rng(seed), (1, *inner, 1)
    modes = zip(bonds[:-1], A.column_shape, bonds[1:], strict=True)
    T = TensorTrain([rng.standard_normal(shape) for shape in modes])
    image = A @ T
    assert isinstance(image, TensorTrain)
    assert image.shape == A.row_shape
    expected = A.to_dense() @ T.to_dense().ravel()
    np.testing.assert_allclose(image.to_dense().ravel(), expected, atol=1e-9)


@given(matrices, st.sampled_from([2, -0.5, 1 - 2j]))
def test_arithmetic_is_the_dense_one(A: TensorTrainMatrix, number: Any) -> None:
    B = random_matrix(A.row_shape, A.column_shape, (2,) * (A.order - 1), 7)
    a, b = A.to_dense(), B.to_dense()
    size = np.linalg.norm(a) + np.linalg.norm(b) + np.linalg.norm(a * b)
    for result, expected in (
        (A + B, a + b),
        (A - B, a - b),
        (A * B, a * b),
        (A * number, a * number),
        (A / number, a / number),
        (-A, -a),
        (A.orthogonalize(A.order - 1), a),
        (A.round(), a),
    ):
        assert isinstance(result, TensorTrainMatrix)
        np.testing.assert_allclose(result.to_dense(), expected, atol=1e-11 * size)
    np.testing.assert_allclose(A.dot(B), np.vdot(a, b), atol=1e-11 * size**2)
    assert A.allclose(A * (1 + 1e-9))
    assert not A.allclose(A * 1.001)
    rounded = A.round(rtol=0.3)
    assert np.linalg.norm(rounded.to_dense() - a) <= 0.3 * np.linalg.norm(a) * (1 + 1e-12)


def test_known_matrices() -> None:
    eye = TensorTrainMatrix.from_dense(np.eye(24), row_shape=(2, 3, 4), column_shape=(2, 3, 4))
    assert eye.ranks == (1, 1, 1, 1)
    a, b = np.arange(6.0).reshape(2, 3) + 1, np.arange(8.0).reshape(4, 2) + 1
    kron = TensorTrainMatrix.from_dense(np.kron(a, b), row_shape=(2, 4), column_shape=(3, 2))
    assert kron.ranks == (1, 1, 1)
    assert kron.shape == (8, 6)
    # the second difference in three modes: ranks 1, 2, 2, 1 as a sum over the modes
    line = 2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)
    laplace = sum(np.kron(np.kron(np.eye(4**k), line), np.eye(4 ** (2 - k))) for k in range(3))
    A = TensorTrainMatrix.from_dense(laplace, row_shape=(4,) * 3, column_shape=(4,) * 3)
    assert A.ranks == (1, 2, 2, 1)
    assert A.parameters == 16 * (2 + 4 + 2)


def test_a_padded_embedding_of_a_prime_number_of_rows() -> None:
    table = np.random.default_rng(0).standard_normal((101, 30))
    rows, columns = plan_shape(101, 2), plan_shape(30, 2)
    assert (rows, columns) == ((10, 11), (5, 6))
    padded = np.zeros((110, 30))
    padded[:101] = table
    A = TensorTrainMatrix.from_dense(padded, row_shape=rows, column_shape=columns)
    np.testing.assert_allclose(A.to_dense()[:101], table, atol=1e-12)
    np.testing.assert_allclose(A.to_dense()[101:], 0, atol=1e-12)


def test_matrices_are_never_formed() -> None:
    d = 30  # 2**30 rows and columns would take exabytes
    ones = TensorTrainMatrix([np.full((1, 2, 2, 1), 0.5)] * d)
    identity = TensorTrainMatrix([np.eye(2)[None, :, :, None]] * d)
    T = TensorTrain([np.array([[[1.0], [2.0]]])] * d)
    assert ones.shape == (2**d, 2**d)
    assert ones.norm() == pytest.approx(1.0)
    assert (identity @ T).allclose(T, rtol=1e-12)
    assert (ones @ T)[(0,) * d] == pytest.approx(1.5**d)
    assert (ones @ ones).round().allclose(ones, rtol=1e-12)  # a projection
    assert identity.dot(ones) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_scales(scale: float) -> None:
    unit = random_matrix((2, 3, 2), (3, 2, 2), (2, 2))
    A = TensorTrainMatrix([unit.cores[0] * scale, unit.cores[1] / scale, unit.cores[2] * scale])
    x = np.random.default_rng(1).standard_normal(12)
    np.testing.assert_allclose(A @ x, unit.to_dense() @ x * scale, rtol=1e-10)
    np.testing.assert_allclose(A.to_dense(), unit.to_dense() * scale, rtol=1e-8)
    other = A * (1 / scale) * (1 / scale)
    product = A @ other.T
    np.testing.assert_allclose(product.to_dense(), unit.to_dense() @ unit.to_dense().T, atol=1e-9)


def test_empty_rows_and_columns() -> None:
    A = TensorTrainMatrix([np.ones((1, 2, 3, 2)), np.ones((2, 0, 2, 1))])
    assert A.shape == (0, 6)
    assert A.to_dense().shape == (0, 6)
    assert (A @ np.ones(6)).shape == (0,)
    np.testing.assert_array_equal(A.T @ np.ones(0), np.zeros(6))
    assert A.matvec(np.ones((4, 6))).shape == (4, 0)
    assert A.round(rtol=0.1).ranks == (1, 1, 1)
    back = TensorTrainMatrix.from_dense(np.ones((0, 6)), row_shape=(2, 0), column_shape=(3, 2))
    assert (back.shape, back.norm()) == ((0, 6), 0.0)


@pytest.mark.parametrize(
    ("make", "back"),
    [(array_api_strict.asarray, np.from_dlpack), (torch.tensor, lambda t: t.numpy())],
    ids=["strict", "torch"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_other_libraries_do_the_same(make: Any, back: Any, dtype: str) -> None:
    A = random_matrix((2, 3), (3, 2), (3,), dtype=dtype)
    F = TensorTrainMatrix([make(core.copy()) for core in A.cores])
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    for ours, expected in (
        (F + F, A + A),
        (F * F, A * A),
        (F @ F.T, A @ A.T),
        (F.round(ranks=2), A.round(ranks=2)),
    ):
        assert ours.ranks == expected.ranks
        np.testing.assert_allclose(back(ours.to_dense()), expected.to_dense(), atol=tolerance)
    rebuilt = TensorTrainMatrix.from_dense(F.to_dense(), row_shape=(2, 3), column_shape=(3, 2))
    np.testing.assert_allclose(back(rebuilt.to_dense()), A.to_dense(), atol=tolerance)
    batch = np.random.default_rng(0).standard_normal((4, 6)).astype(dtype)
    foreign = make(batch.copy())
    np.testing.assert_allclose(back(F.matvec(foreign)), A.matvec(batch), atol=tolerance)
    np.testing.assert_allclose(back(F @ foreign.T), A @ batch.T, atol=tolerance)
    assert F.matvec(foreign).dtype == foreign.dtype
    wide = make(batch.astype("complex128"))
    np.testing.assert_allclose(back(F.matvec(wide)), A.matvec(batch), atol=tolerance)
    with pytest.raises(TypeError, match="another library"):
        F.matvec(batch)
    with pytest.raises(TypeError, match="librar"):
        F @ A.T


def test_gradients_pass_through_products() -> None:
    cores = [
        torch.tensor(core.copy(), requires_grad=True)
        for core in random_matrix((2, 2), (2, 3), (2,)).cores
    ]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, *c: TensorTrainMatrix(c).matvec(v), (x, *cores))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_copies_and_files(tmp_path: Path, dtype: str) -> None:
    A = random_matrix((2, 3), (3, 2), (3,), dtype=dtype)
    save(tmp_path / "a.npz", A)
    for other in (copy.deepcopy(A), pickle.loads(pickle.dumps(A)), load(tmp_path / "a.npz")):
        assert type(other) is TensorTrainMatrix
        assert other.dtype == A.dtype
        assert all(np.array_equal(a, b) for a, b in zip(A.cores, other.cores, strict=True))
    assert repr(A) == (
        f"TensorTrainMatrix(row_shape=(2, 3), column_shape=(3, 2), ranks=(1, 3, 1), dtype={dtype})"
    )
    with pytest.raises(ValueError, match="read-only"):
        A.cores[0][0, 0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.ones(6), {"row_shape": (2, 3), "column_shape": (1, 1)}, "must be a matrix"),
        (np.ones((6, 4)), {"row_shape": (2, 3), "column_shape": (4,)}, "equally many modes"),
        (np.ones((6, 4)), {"row_shape": (), "column_shape": ()}, "at least one"),
        (np.ones((6, 4)), {"row_shape": (2, 2), "column_shape": (2, 2)}, r"multiply to.*\(6, 4\)"),
        (np.ones((6, 4)), {"row_shape": (2, -3), "column_shape": (2, 2)}, r"row_shape\[1\]"),
        (np.ones((6, 4)) * math.nan, {"row_shape": (2, 3), "column_shape": (2, 2)}, "finite"),
    ],
)
def test_bad_matrices_are_named(array: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorTrainMatrix.from_dense(array, **options)


def test_bad_operands_are_named() -> None:
    A, B = random_matrix((2, 3), (3, 2), (3,)), random_matrix((2, 3), (2, 3), (3,))
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., 6\); got \(5,\)"):
        A.matvec(np.ones(5))
    with pytest.raises(ShapeError, match="x must have shape"):
        A.matvec(3.0)
    with pytest.raises(ShapeError, match=r"must have shape \(6,\) or \(6, k\); got \(1, 6, 6\)"):
        A @ np.ones((1, 6, 6))
    with pytest.raises(ValueError, match="x must be finite"):
        A.matvec(np.full(6, np.nan))
    with pytest.raises(ShapeError, match="modes of the columns"):
        A @ A
    with pytest.raises(ShapeError, match="modes"):
        A + B
    with pytest.raises(TypeError):
        A + TensorTrain([np.ones((1, 6, 1))])  # type: ignore[operator]
    with pytest.raises(ShapeError, match=r"rows_k, columns_k.*got \(1, 2, 1\)"):
        TensorTrainMatrix([np.ones((1, 2, 1))])
