"""SparseTensor: one form for all sparse inputs, duplicates added, nothing densified."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sparse
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.sparse_tensor import SparseTensor, as_sparse_tensor, is_sparse


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 30), st.integers(0, 99))
def test_duplicates_are_added_and_entries_sorted(shape: list[int], nnz: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    where = np.array([rng.integers(0, n, nnz) for n in shape]).reshape(len(shape), nnz)
    values = rng.integers(-3, 4, nnz).astype(np.float64)
    S = SparseTensor(where, values, shape)
    dense = np.zeros(shape)
    np.add.at(dense, tuple(where), values)
    np.testing.assert_array_equal(S.to_dense(), dense)
    keys = np.ravel_multi_index(tuple(S.coordinates), shape)
    assert (np.diff(keys) > 0).all()


def test_shapes_beyond_64_bits_are_sorted_too() -> None:
    shape = (2**40, 2**40)
    S = SparseTensor([[2**39, 1, 2**39], [5, 2**39, 5]], [1.0, 2.0, 3.0], shape)
    assert S.values.tolist() == [2.0, 4.0]
    assert S.shape == shape


def test_all_kinds_of_sparse_input_are_read_alike() -> None:
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((6, 7)) * (rng.random((6, 7)) < 0.3)
    inputs = [
        scipy.sparse.coo_array(dense),
        scipy.sparse.csr_array(dense),
        scipy.sparse.csc_matrix(dense),
        scipy.sparse.dok_array(dense),
        sparse.COO.from_numpy(dense),
        sparse.GCXS.from_numpy(dense),
        sparse.DOK.from_numpy(dense),
        SparseTensor(np.nonzero(dense), dense[np.nonzero(dense)], dense.shape),
    ]
    for given_ in inputs:
        assert is_sparse(given_)
        np.testing.assert_array_equal(as_sparse_tensor(given_).to_dense(), dense)
    assert not is_sparse(dense)
    assert not is_sparse([1.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(dtype: str) -> None:
    S = as_sparse_tensor(sparse.COO.from_numpy(np.eye(3, dtype=dtype)))
    assert S.dtype == S.to_dense().dtype == dtype


def test_a_large_sparse_tensor_stays_sparse() -> None:
    where = np.array([[0, 11], [0, 29_009], [5, 29_009]])
    S = as_sparse_tensor(sparse.COO(where, np.ones(2), shape=(12, 29_010, 29_010)))
    assert S.values.size == 2


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        (([[0, 5]], [1.0, 2.0], (5,)), IndexError, "0 .. 4; got 5"),
        (([[0, -1]], [1.0, 2.0], (5,)), IndexError, "got -1"),
        (([[0.5]], [1.0], (5,)), TypeError, "integers"),
        (([[0, 1]], [1.0], (5,)), ShapeError, "nnz"),
        (([[0, 1]], [1.0, 2.0], (5, 5)), ShapeError, "nnz"),
        (([[0, 1]], [1.0, np.nan], (5,)), ValueError, r"got nan at index \(1,\)"),
        (([[0]], [1j], (5,)), ValueError, "complex"),
    ],
)
def test_bad_parts_are_named(parts: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SparseTensor(*parts)


def test_other_inputs_and_fill_values_are_refused() -> None:
    with pytest.raises(TypeError, match="X must be a pydata sparse array"):
        as_sparse_tensor(np.eye(3))
    with pytest.raises(ValueError, match="fill value 0; got 1"):
        as_sparse_tensor(sparse.COO.from_numpy(np.ones((2, 2)), fill_value=1.0), name="X")
    with pytest.raises(ValueError, match="X must be finite"):
        as_sparse_tensor(scipy.sparse.coo_array(([np.inf], ([0], [0])), shape=(1, 1)))
