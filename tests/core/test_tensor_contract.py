"""What every tensor type must do, whichever way it stores its entries."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import IncompleteSymmetricTensor, SymmetricTensor, load, save
from tensoralg.core.indices import multi_indices
from tensoralg.errors import ShapeError

AnyTensor = SymmetricTensor | IncompleteSymmetricTensor
Maker = Callable[[npt.ArrayLike, int, int], AnyTensor]


def complete(values: npt.ArrayLike, m: int, n: int) -> SymmetricTensor:
    return SymmetricTensor(values, m, n)


def fully_known(values: npt.ArrayLike, m: int, n: int) -> IncompleteSymmetricTensor:
    """All entries, rows and indices in reverse order: the storage must not matter."""
    rows = multi_indices(n, m)[::-1, ::-1]
    return IncompleteSymmetricTensor(rows, np.asarray(values)[::-1], m, n)


def stored(tensor: AnyTensor) -> npt.NDArray[Any]:
    return tensor.entries if isinstance(tensor, SymmetricTensor) else tensor.values


both = pytest.mark.parametrize("make", [complete, fully_known])
sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
seeds = st.integers(0, 999)


def random_values(n: int, m: int, seed: int, *, complex_: bool = False) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    count = len(multi_indices(n, m))
    values: npt.NDArray[Any] = rng.standard_normal(count)
    return values + 1j * rng.standard_normal(count) if complex_ else values


@both
@given(sizes, seeds, st.booleans())
def test_inner_product_and_norm_are_the_dense_ones(
    make: Maker, size: tuple[int, int], seed: int, complex_: bool
) -> None:
    n, m = size
    a = random_values(n, m, seed, complex_=complex_)
    b = random_values(n, m, seed + 1, complex_=complex_)
    S, T = make(a, m, n), make(b, m, n)
    dense_s, dense_t = SymmetricTensor(a, m, n).to_dense(), SymmetricTensor(b, m, n).to_dense()
    np.testing.assert_allclose(S.inner(T), np.vdot(dense_s, dense_t), rtol=1e-10, atol=1e-12)
    assert isinstance(S.inner(T), complex if complex_ else float)
    np.testing.assert_allclose(S.norm(), np.linalg.norm(dense_s.ravel()), rtol=1e-12)
    assert int(S.multiplicities.sum()) == n**m


@both
@given(sizes, seeds)
def test_arithmetic_is_the_dense_one(make: Maker, size: tuple[int, int], seed: int) -> None:
    n, m = size
    a, b = random_values(n, m, seed), random_values(n, m, seed + 1)
    S, T = make(a, m, n), make(b, m, n)
    for result, expected in (
        (S + T, a + b),
        (S - T, a - b),
        (S * 2.5, a * 2.5),
        (2.5 * S, a * 2.5),
        (S / 4, a / 4),
        (-S, -a),
        (+S, a),
        (np.float64(3) * S, 3 * a),
    ):
        assert type(result) is type(S)
        assert result.allclose(make(expected, m, n), rtol=1e-15, atol=0)
    assert not S.allclose(S + 1e-3 * T, atol=0, rtol=1e-9)


@both
def test_subscripts_take_any_order(make: Maker) -> None:
    T = make([1, 2, 3, 4, 5, 6], 2, 3)
    assert T[1, 2] == T[2, 1] == T[-1, -2] == 5
    assert T[np.array([0, 2]), 0].tolist() == [1, 3]
    with pytest.raises(IndexError, match="out of range"):
        T[0, 3]
    with pytest.raises(IndexError, match="takes 2 indices"):
        T[0, 1, 2]
    with pytest.raises(TypeError, match="not iterable"):
        iter(T)


@both
@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.complex64, np.complex64),
        (np.complex128, np.complex128),
        (np.int32, np.float64),
        (np.uint8, np.float64),
        (np.bool_, np.float64),
        (np.float16, np.float32),
        (np.dtype(">f8"), np.float64),
    ],
)
def test_dtypes(make: Maker, given_dtype: Any, kept: Any) -> None:
    T = make(np.array([1, 0, 1], dtype=given_dtype), 2, 2)
    assert T.dtype == kept
    assert stored(T).dtype.isnative
    assert (T + T).dtype == (2 * T).dtype == (T / 2).dtype == kept
    assert isinstance(T.norm(), float)
    assert make([1, 2, 3], 2, 2).dtype == np.float64


@both
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1, "a", None], dtype=object), "dtype object"),
        (np.array(["1", "2", "3"]), "dtype <U1"),
        (np.array([1, 2, 3], dtype=np.longdouble), "dtype float128|dtype longdouble|dtype float96"),
        ([1.0, np.nan, 2.0], r"finite; got nan at index"),
        ([1.0, 2.0, np.inf], r"finite; got inf at index"),
        ([1.0, complex(0, np.nan), 2.0], r"finite"),
    ],
)
def test_bad_values_are_refused_by_name(make: Maker, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(values, 2, 2)


def test_masked_values_are_refused() -> None:
    masked = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])
    with pytest.raises(ValueError, match="masked values; use an incomplete tensor"):
        SymmetricTensor(masked, 2, 2)
    with pytest.raises(ValueError, match="masked"):
        IncompleteSymmetricTensor([[0, 0], [0, 1], [1, 1]], masked, 2, 2)


@both
def test_arrays_are_copies_and_read_only(make: Maker) -> None:
    source = np.array([1.0, 2.0, 3.0])
    T = make(source, 2, 2)
    source[:] = 0
    assert T[0, 0] == 1
    for tensor in (T, copy.deepcopy(T), pickle.loads(pickle.dumps(T))):
        assert type(tensor) is type(T)
        assert tensor.allclose(T, rtol=0, atol=0)
        for array in (stored(tensor), tensor.indices):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    with pytest.raises(AttributeError):
        T.order = 3  # type: ignore[misc]


@both
def test_mismatched_tensors(make: Maker) -> None:
    T, other = make([1, 2, 3], 2, 2), make([1, 2, 3, 4], 3, 2)
    for operation in (
        lambda: T + other,
        lambda: T - other,
        lambda: T.inner(other),
        lambda: T.allclose(other),
    ):
        with pytest.raises(ShapeError, match=r"order=2.*order=3"):
            operation()
    with pytest.raises(TypeError, match="ndarray"):
        T.inner(np.ones((2, 2)))  # type: ignore[arg-type]
    for operation in (
        lambda: T + 1,  # type: ignore[operator]
        lambda: T - np.ones((2, 2)),  # type: ignore[operator]
        lambda: T * T,
        lambda: T * np.ones(3),
        lambda: T / "2",
        lambda: np.ones(3) * T,
    ):
        with pytest.raises(TypeError):
            operation()
    with pytest.raises(ZeroDivisionError):
        T / 0


@both
def test_extreme_magnitudes_do_not_overflow(make: Maker) -> None:
    assert np.isclose(make([1e200, 0, 1e200], 2, 2).norm(), 2**0.5 * 1e200)
    assert np.isclose(make([1e-200, 0, 1e-200], 2, 2).norm(), 2**0.5 * 1e-200)
    assert make([0, 0, 0], 2, 2).norm() == 0.0
    assert np.isclose(make(np.array([1e30, 0, 0], np.float32), 2, 2).norm(), 1e30)
    with pytest.raises(ValueError, match="finite"), np.errstate(over="ignore"):
        make([1e300, 0, 0], 2, 2) * 1e300


@both
def test_representation_is_short(make: Maker) -> None:
    T = make(np.zeros(10), 3, 3)
    assert repr(T) == f"{type(T).__name__}(order=3, dimension=3, dtype=float64)"


@both
@given(sizes, seeds, st.sampled_from(["float32", "float64", "complex64", "complex128"]))
def test_save_and_load(
    make: Maker, tmp_path_factory: Any, size: tuple[int, int], seed: int, dtype: str
) -> None:
    n, m = size
    T = make(random_values(n, m, seed, complex_=dtype[0] == "c").astype(dtype), m, n)
    path: Path = tmp_path_factory.mktemp("saved") / "tensor.npz"
    save(path, T)
    back = load(path)
    assert type(back) is type(T)
    assert (back.order, back.dimension, back.dtype) == (m, n, dtype)
    np.testing.assert_array_equal(stored(back), stored(T))
    np.testing.assert_array_equal(back.indices, T.indices)
