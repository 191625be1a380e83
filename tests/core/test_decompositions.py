"""SymmetricDecomposition: sums of powers, residuals, canonical forms."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import SymmetricDecomposition, SymmetricTensor, load, save
from tensoralg.errors import ShapeError


def random_parts(
    r: int, n: int, seed: int, *, complex_: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    weights: npt.NDArray[Any] = rng.standard_normal(r)
    points: npt.NDArray[Any] = rng.standard_normal((r, n))
    if complex_:
        weights = weights + 1j * rng.standard_normal(r)
        points = points + 1j * rng.standard_normal((r, n))
    return weights, points


parts = st.builds(
    random_parts,
    st.integers(0, 5),
    st.integers(1, 4),
    st.integers(0, 999),
    complex_=st.booleans(),
)


@given(parts, st.integers(1, 5))
def test_tensor_is_the_sum_of_outer_powers(pair: Any, m: int) -> None:
    D = SymmetricDecomposition(*pair)
    dense = np.zeros((D.dimension,) * m, dtype=D.dtype)
    for weight, point in zip(*pair, strict=True):
        term = np.asarray(weight)
        for _ in range(m):
            term = np.multiply.outer(term, point)
        dense = dense + term
    np.testing.assert_allclose(D.to_tensor(m).to_dense(), dense, rtol=1e-10, atol=1e-12)
    assert D.to_tensor(m).dtype == D.dtype


@given(parts, st.integers(1, 5))
def test_canonical_form_keeps_the_tensor(pair: Any, m: int) -> None:
    D = SymmetricDecomposition(*pair)
    C = D.canonical(m)
    assert C.order == m
    np.testing.assert_allclose(C.to_tensor().entries, D.to_tensor(m).entries, atol=1e-10)
    for point in C.points:
        leading = point[np.argmax(np.abs(point))]
        assert leading.real > 0
        assert abs(leading.imag) < 1e-12
    assert np.all(np.diff(C.points.real[:, 0]) >= -1e-7)
    np.testing.assert_allclose(
        np.sort(np.linalg.norm(C.points, axis=1)), np.sort(np.linalg.norm(D.points, axis=1))
    )


@given(parts, st.integers(1, 5), st.integers(0, 99))
def test_canonical_form_does_not_depend_on_order_or_sign(pair: Any, m: int, seed: int) -> None:
    weights, points = pair
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(weights))
    signs = rng.choice([-1.0, 1.0], size=len(weights))
    noise = 1 + 1e-13 * rng.standard_normal(points.shape)
    shuffled = SymmetricDecomposition(
        (weights * signs**m)[order], (points * signs[:, None] * noise)[order], order=m
    )
    A, B = SymmetricDecomposition(weights, points, order=m).canonical(), shuffled.canonical()
    np.testing.assert_allclose(A.weights, B.weights, rtol=1e-9)
    np.testing.assert_allclose(A.points, B.points, rtol=1e-9, atol=1e-9)
    again = A.canonical()
    np.testing.assert_allclose(again.points, A.points, rtol=1e-14, atol=1e-14)


@given(parts)
def test_without_an_order_no_tensor_changes(pair: Any) -> None:
    D = SymmetricDecomposition(*pair)
    C = D.canonical()
    assert C.order is None
    for m in (1, 2, 3, 4):
        np.testing.assert_allclose(C.to_tensor(m).entries, D.to_tensor(m).entries, atol=1e-10)


def test_canonical_ties_are_not_decided_by_rounding() -> None:
    first = SymmetricDecomposition([1.0, 2.0], [[1.0, 2.0], [1.0 + 1e-15, 1.0]]).canonical()
    second = SymmetricDecomposition([1.0, 2.0], [[1.0 + 1e-15, 2.0], [1.0, 1.0]]).canonical()
    assert first.weights.tolist() == second.weights.tolist() == [2.0, 1.0]
    tie = SymmetricDecomposition([1.0], [[-1.0, 1.0 + 1e-15]]).canonical(3)
    assert tie.points[0, 0] == 1.0
    assert tie.weights[0] == -1.0
    roots = np.exp(2j * np.pi * np.arange(3) / 3)
    forms = [SymmetricDecomposition([2.0], [[c, 0.5 * c]]).canonical(3) for c in roots]
    for form in forms:  # cube roots of unity do not change a cube
        np.testing.assert_allclose(form.points, [[1.0, 0.5]], atol=1e-14)
        np.testing.assert_allclose(form.weights, [2.0], atol=1e-14)
    zero = SymmetricDecomposition([1.0], [[0.0, 0.0]]).canonical(2)
    assert zero.points.tolist() == [[0.0, 0.0]]


def test_residual_is_the_dense_one() -> None:
    D = SymmetricDecomposition(*random_parts(3, 4, 0))
    E = SymmetricDecomposition(*random_parts(3, 4, 1))
    T = D.to_tensor(3)
    difference = T.to_dense() - E.to_tensor(3).to_dense()
    expected = np.linalg.norm(difference.ravel()) / np.linalg.norm(T.to_dense().ravel())
    np.testing.assert_allclose(E.residual(T), expected, rtol=1e-12)
    assert D.residual(T) < 1e-15
    zero = SymmetricTensor(np.zeros(20), 3, 4)
    assert D.residual(zero) == math.inf
    assert SymmetricDecomposition([], np.empty((0, 4))).residual(zero) == 0.0
    with pytest.raises(ShapeError, match="dimension 4, the tensor 2"):
        D.residual(SymmetricTensor([1.0, 2.0, 3.0], 2, 2))
    with pytest.raises(TypeError, match="ndarray"):
        D.residual(np.eye(4))  # type: ignore[arg-type]
    beyond = SymmetricDecomposition([1.0], [[1e200, 1.0, 1.0, 1.0]])
    assert beyond.residual(T) == math.inf


def test_conjugate_points_give_a_real_tensor() -> None:
    # x^3 - 3 x y^2 = Re (x + i y)^3 has no real decomposition of length 2
    D = SymmetricDecomposition([0.5, 0.5], [[1.0, 1j], [1.0, -1j]])
    T = SymmetricTensor([1.0, 0.0, -1.0, 0.0], 3, 2)
    assert D.residual(T) < 1e-15
    assert D.dtype == np.complex128


def test_dtypes() -> None:
    single = SymmetricDecomposition(np.ones(1, np.float32), np.ones((1, 2), np.float32))
    assert single.dtype == np.float32
    assert single.canonical(3).dtype == np.float32
    assert single.to_tensor(2).dtype == np.float32
    assert SymmetricDecomposition([1], [[1, 2]]).dtype == np.float64
    assert SymmetricDecomposition([1], np.ones((1, 2), np.complex64)).dtype == np.complex128
    with pytest.raises(ValueError, match="weights has dtype object"):
        SymmetricDecomposition(np.array([None]), [[1.0]])
    with pytest.raises(ValueError, match=r"points must be finite; got nan at index \(0, 1\)"):
        SymmetricDecomposition([1.0], [[1.0, np.nan]])


def test_bad_arguments() -> None:
    for weights, points in (([1.0], [1.0]), ([1.0, 2.0], [[1.0]]), ([[1.0]], [[1.0]])):
        with pytest.raises(ShapeError, match=r"points \(r, n\)"):
            SymmetricDecomposition(weights, points)
    with pytest.raises(ShapeError, match="n >= 1"):
        SymmetricDecomposition([1.0], np.empty((1, 0)))
    D = SymmetricDecomposition([1.0], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="does not know its own"):
        D.to_tensor()
    with pytest.raises(ValueError, match="order must be at least 1"):
        D.canonical(0)
    with pytest.raises(ValueError, match="order must be at least 1"):
        SymmetricDecomposition([1.0], [[1.0, 2.0]], order=0)


def test_copies_are_equal_and_read_only(tmp_path: Path) -> None:
    D = SymmetricDecomposition(*random_parts(2, 3, 0, complex_=True), order=4)
    save(tmp_path / "decomposition", D)
    for other in (
        copy.deepcopy(D),
        pickle.loads(pickle.dumps(D)),
        load(tmp_path / "decomposition"),
    ):
        np.testing.assert_array_equal(other.weights, D.weights)
        np.testing.assert_array_equal(other.points, D.points)
        assert other.order == 4
        with pytest.raises(ValueError, match="read-only"):
            other.points[0, 0] = 0
    free = SymmetricDecomposition([1.0], [[1.0, 2.0]])
    save(tmp_path / "free.npz", free)
    assert load(tmp_path / "free.npz").order is None
    assert repr(D) == "SymmetricDecomposition(rank=2, dimension=3, order=4, dtype=complex128)"
    assert repr(free) == "SymmetricDecomposition(rank=1, dimension=2, dtype=float64)"
