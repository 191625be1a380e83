"""Monomials against direct products, also in another array namespace."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials, graded_indices


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 99))
def test_values_are_products(n: int, m: int, r: int, seed: int) -> None:
    points = np.random.default_rng(seed).standard_normal((r, n))
    rows = multi_indices(n, m)
    expected = points[:, rows].prod(axis=-1)
    np.testing.assert_allclose(evaluate_monomials(points, rows), expected, rtol=1e-13)
    strict = evaluate_monomials(array_api_strict.asarray(points), rows)
    assert strict.__array_namespace__() is array_api_strict
    np.testing.assert_allclose(np.asarray(strict), expected, rtol=1e-13)


def test_dtypes() -> None:
    rows = multi_indices(2, 2)
    for kind in (np.float32, np.float64, np.complex64, np.complex128):
        assert evaluate_monomials(np.ones((1, 2), dtype=kind), rows).dtype == kind
    assert evaluate_monomials([[1, 2]], rows).dtype == np.float64
    assert evaluate_monomials(np.ones((1, 2), dtype=np.float16), rows).dtype == np.float32
    assert evaluate_monomials(np.array([[True, False]]), rows).tolist() == [[1.0, 0.0, 0.0]]


def test_graded_indices() -> None:
    assert [len(rows) for rows in graded_indices(5, 3)] == [1, 5, 10, 10]
    assert [len(rows) for rows in graded_indices(5, 3, powers=True)] == [1, 5, 15, 35]
    assert [rows.shape for rows in graded_indices(2, 3)] == [(1, 0), (2, 1), (1, 2), (0, 3)]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="degree"):
        graded_indices(2, -1)
    with pytest.raises(ShapeError, match=r"\(r, n\)"):
        evaluate_monomials([1.0, 2.0], [[0]])
    with pytest.raises(IndexError, match=r"0 \.\. 1"):
        evaluate_monomials([[1.0, 2.0]], [[2]])
