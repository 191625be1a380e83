"""Inputs that break other packages: a right answer or a clear error, never a wrong number."""

import warnings
from typing import Any

import array_api_strict
import numpy as np
import pytest
import scipy.sparse
import sparse

from tensoralg import KruskalTensor
from tensoralg.errors import ConvergenceWarning, ShapeError
from tensoralg.polyadic import decompose

METHODS = ["auto", "als", "compressed"]


def low_rank(shape: tuple[int, ...], rank: int, seed: int = 0, noise: float = 0.0) -> Any:
    rng = np.random.default_rng(seed)
    dense = KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape]).to_dense()
    size = np.linalg.norm(dense) / np.sqrt(dense.size)
    return dense + noise * size * rng.standard_normal(shape)


def true_fit(result: Any, X: Any) -> float:
    wide = np.asarray(X, dtype=np.float64)
    dense = KruskalTensor(
        result.tensor.weights.astype(np.float64),
        [f.astype(np.float64) for f in result.tensor.factors],
    ).to_dense()
    return float(1 - np.linalg.norm(wide - dense) / np.linalg.norm(wide))


@pytest.mark.parametrize("method", METHODS)
def test_exact_rank_one_asked_for_rank_two(method: str) -> None:
    X = low_rank((3, 2, 4), 1)
    result = decompose(X, 2, method=method, rng=0)
    assert result.fit == pytest.approx(1.0, abs=1e-6)
    assert np.isfinite(result.tensor.to_dense()).all()
    assert result.fit == pytest.approx(true_fit(result, X), abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_zeros_have_zero_weights_and_a_defined_fit(method: str) -> None:
    result = decompose(np.zeros((3, 4, 5)), 2, method=method)
    assert result.tensor.weights.tolist() == [0.0, 0.0]
    assert result.fit == 1.0
    assert result.status == "converged"
    for factor in result.tensor.factors:
        np.testing.assert_array_equal(np.linalg.norm(factor, axis=0), 1.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e-200, "float64"),
        (1e160, "float64"),
        (1e-300, "float64"),
        (1e300, "float64"),
        (1e-25, "float32"),
        (1e20, "float32"),
        (1e-36, "float32"),
        (1e37, "float32"),
    ],
)
def test_any_scale_has_the_usual_fit(scale: float, dtype: str, method: str) -> None:
    X = low_rank((6, 5, 4), 2, noise=0.01)
    unit = decompose(X.astype(dtype), 2, method=method, rng=0)
    moved = decompose((X * scale).astype(dtype), 2, method=method, rng=0)
    assert moved.fit == pytest.approx(unit.fit, abs=1e-6)
    assert moved.tensor.dtype == dtype
    dense = moved.tensor.to_dense().astype(np.float64) / scale
    assert 1 - np.linalg.norm(dense - X) / np.linalg.norm(X) == pytest.approx(unit.fit, abs=1e-5)


def test_nan_without_a_mask_is_named() -> None:
    X = low_rank((3, 4, 5), 2)
    X[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"X must be finite; got nan at index \(1, 2, 3\)"):
        decompose(X, 2)
    X[1, 2, 3] = -np.inf
    with pytest.raises(ValueError, match=r"got -inf at index \(1, 2, 3\)"):
        decompose(X, 2)


@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e300])
def test_masked_cells_do_not_matter(filler: float) -> None:
    X = low_rank((8, 7, 6), 2)
    mask = np.random.default_rng(3).random(X.shape) > 0.2
    hidden = np.where(mask, X, filler)
    result = decompose(hidden, 2, mask=mask, rng=0, max_iter=3000, tol=1e-12)
    assert result.fit == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(result.tensor.to_dense(), X, atol=1e-4)


def test_an_observed_nan_is_named_under_a_mask() -> None:
    X = low_rank((3, 4, 5), 2)
    X[0, 0, 1] = np.nan
    mask = np.ones(X.shape, dtype=bool)
    mask[2, 2, 2] = False
    with pytest.raises(ValueError, match=r"index \(0, 0, 1\); its mask says that it is observed"):
        decompose(X, 2, mask=mask)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.zeros((3, 4, 5), dtype=bool), ValueError, "False everywhere"),
        (np.ones((3, 4), dtype=bool), ShapeError, r"\(3, 4, 5\); got \(3, 4\)"),
        (np.ones((3, 4, 5)), TypeError, "boolean"),
        (np.ones((3, 4, 5), dtype=int), TypeError, "boolean"),
    ],
)
def test_bad_masks_are_named(mask: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        decompose(np.ones((3, 4, 5)), 1, mask=mask)


@pytest.mark.parametrize(
    ("rank", "error"),
    [(2.5, TypeError), (0, ValueError), (-1, ValueError), ("2", TypeError), (None, TypeError)],
)
def test_bad_ranks_are_named(rank: Any, error: Any) -> None:
    with pytest.raises(error, match="rank must be"):
        decompose(np.ones((4, 5, 6)), rank)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "svd++"}, ValueError, "method must be one of auto, als"),
        ({"precision": "float13"}, ValueError, "float13"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"max_iter": 1.5}, TypeError, "max_iter"),
        ({"n_starts": 0}, ValueError, "n_starts"),
        ({"tol": -1.0}, ValueError, "tol"),
        ({"tol": float("nan")}, ValueError, "tol"),
        ({"init": "hosvd"}, ValueError, "init"),
        ({"init": np.ones((4, 2))}, TypeError, "init"),
        ({"init": KruskalTensor(None, [np.ones((n, 3)) for n in (4, 5, 6)])}, ValueError, "init"),
        ({"init": KruskalTensor(None, [np.ones((n, 2)) for n in (4, 5)])}, ValueError, "init"),
        ({"method": "compressed", "nonnegative": True}, ValueError, "nonnegative"),
        (
            {"method": "sgd", "mask": np.eye(4)[:, :1, None] + np.zeros((4, 5, 6)) > 0},
            ValueError,
            "mask",
        ),
    ],
)
def test_bad_options_are_named(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        decompose(low_rank((4, 5, 6), 2), 2, **options)


def test_initial_factors_of_other_shapes_or_libraries_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"factors\[0\]"):
        KruskalTensor(None, [np.ones(4), np.ones(5), np.ones(6)])
    away = [array_api_strict.ones((n, 2)) for n in (4, 5, 6)]
    with pytest.raises(TypeError, match="librar"):
        decompose(np.ones((4, 5, 6)), 2, init=KruskalTensor(None, away))


def test_an_order_one_array_is_one_term() -> None:
    result = decompose([1.0, 2.0, 2.0], 1)
    assert result.fit == pytest.approx(1.0)
    assert result.tensor.to_dense().tolist() == pytest.approx([1.0, 2.0, 2.0])


def test_a_number_and_empty_modes_are_refused() -> None:
    with pytest.raises(ShapeError, match="single number"):
        decompose(3.0, 1)
    with pytest.raises(ShapeError, match=r"empty mode; got shape \(3, 0, 2\)"):
        decompose(np.ones((3, 0, 2)), 1)


@pytest.mark.parametrize("shape", [(5, 4), (1, 6), (7, 1)])
def test_matrices_have_their_singular_values(shape: tuple[int, int]) -> None:
    X = low_rank(shape, 3, noise=0.1)
    for rank in (1, 2, 6):
        result = decompose(X, rank)
        s = np.linalg.svd(X, compute_uv=False)
        expected = 1 - np.sqrt((s[rank:] ** 2).sum() / (s**2).sum())
        assert result.fit == pytest.approx(expected, abs=1e-10)
        assert result.tensor.rank == rank


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_matrices_have_their_leading_singular_values(dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("tensoralg.polyadic.engines._LARGE_MATRIX", 100)
    monkeypatch.setattr("tensoralg.polyadic.engines._BLOCK", 300)
    for X in (low_rank((40, 30), 5, noise=0.1), low_rank((30, 40), 3), low_rank((50, 20), 1)):
        X = X.astype(dtype)
        result = decompose(X, 3)
        s = np.linalg.svd(X.astype(float), compute_uv=False)
        expected = 1 - np.sqrt((s[3:] ** 2).sum() / (s**2).sum())
        assert result.fit == pytest.approx(expected, abs=1e-6 if dtype == "float32" else 1e-10)
        assert result.fit == pytest.approx(true_fit(result, X), abs=1e-10)


def test_half_precision_is_computed_in_single() -> None:
    X = low_rank((6, 5, 4), 2).astype(np.float16)
    result = decompose(X, 2, rng=0)
    assert result.tensor.dtype == np.float32
    assert result.fit > 0.999


def test_complex_data_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="complex"):
        decompose(np.ones((3, 3, 3), dtype=complex), 1)


def test_no_tolerance_with_a_callback_works() -> None:
    seen = []

    def callback(iteration: int, fit: float, factors: Any) -> None:
        seen.append((iteration, fit, [f.shape for f in factors]))

    X = low_rank((6, 5, 4), 2, noise=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = decompose(X, 2, method="als", tol=0, max_iter=7, callback=callback, rng=0)
    assert [s[0] for s in seen] == list(range(1, 8))
    assert seen[-1][2] == [(6, 2), (5, 2), (4, 2)]
    assert result.n_iter == 7
    assert len(result.history) == 7
    assert result.status == "max_iter"


@pytest.mark.parametrize("method", METHODS)
def test_a_truthy_callback_stops(method: str) -> None:
    X = low_rank((12, 11, 10), 3, noise=0.1)
    result = decompose(X, 3, method=method, callback=lambda *_: True, rng=0, n_starts=3)
    assert result.status == "stopped"
    assert result.fit == pytest.approx(true_fit(result, X), abs=1e-10)


def test_one_iteration_warns_and_says_so() -> None:
    X = low_rank((9, 8, 7), 5, noise=0.5)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        result = decompose(X, 5, method="als", max_iter=1, rng=0)
    assert result.status == "max_iter"
    assert result.n_iter == 1


@pytest.mark.parametrize("method", METHODS)
def test_the_fit_of_single_precision_data_is_the_true_one(method: str) -> None:
    X = low_rank((20, 18, 16), 3).astype(np.float32)
    result = decompose(X, 3, method=method, rng=0, max_iter=2000)
    assert result.fit == pytest.approx(true_fit(result, X), abs=1e-10)
    assert 0 < 1 - result.fit < 1e-5


def test_a_nested_list_is_an_array() -> None:
    X = low_rank((3, 4, 2), 1)
    assert decompose(X.tolist(), 1, rng=0).fit == pytest.approx(decompose(X, 1, rng=0).fit)


def test_a_huge_sparse_tensor_is_never_densified() -> None:
    rng = np.random.default_rng(0)
    shape = (12, 29_010, 29_010)
    where = np.stack([rng.integers(0, n, 3000) for n in shape])
    X = sparse.COO(where, rng.random(3000), shape=shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = decompose(X, 2, max_iter=20, rng=0)
    assert result.tensor.shape == shape
    assert 0 < result.fit < 1


def test_sparse_and_dense_forms_agree() -> None:
    rng = np.random.default_rng(2)
    X = low_rank((6, 5, 4), 2) * (rng.random((6, 5, 4)) < 0.5)
    start = KruskalTensor(None, [rng.standard_normal((n, 2)) for n in X.shape])
    options: dict[str, Any] = {"init": start, "tol": 0, "max_iter": 30}
    dense, coo = decompose(X, 2, **options), decompose(sparse.COO.from_numpy(X), 2, **options)
    np.testing.assert_allclose(coo.tensor.to_dense(), dense.tensor.to_dense(), atol=1e-6)
    assert coo.fit == pytest.approx(dense.fit, abs=1e-7)
    matrix = scipy.sparse.csr_array(X[0])
    assert decompose(matrix, 4, rng=0).fit == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "shape", [(1, 5, 4), (5, 1, 4), (5, 4, 1), (1, 1, 4), (1, 1, 1), (2, 1, 3, 1)]
)
def test_modes_of_size_one(shape: tuple[int, ...], method: str) -> None:
    X = low_rank(shape, 2)
    result = decompose(X, 2, method=method, rng=0)
    assert result.fit == pytest.approx(1.0, abs=1e-5)
    assert result.tensor.shape == shape


@pytest.mark.parametrize("method", METHODS)
def test_rank_above_every_dimension(method: str) -> None:
    X = np.random.default_rng(5).standard_normal((3, 3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = decompose(X, 9, method=method, rng=0, max_iter=2000)
    assert result.tensor.rank == 9
    assert result.fit > 0.999
    assert result.fit == pytest.approx(true_fit(result, X), abs=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_memory_order_and_integers_do_not_matter(method: str) -> None:
    X = np.random.default_rng(6).integers(-5, 6, (6, 5, 4))
    plain = decompose(X.astype(np.float64), 2, method=method, rng=0)
    for other in (X, np.asfortranarray(X), X.astype(np.int8), np.flip(np.flip(X, 0), 0)):
        result = decompose(other, 2, method=method, rng=0)
        assert result.fit == pytest.approx(plain.fit, abs=1e-7)
        assert result.tensor.dtype == np.float64


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_makes_the_result_reproducible(method: str) -> None:
    X = low_rank((8, 7, 6), 3, noise=0.2)
    one, two = (decompose(X, 3, method=method, rng=11, n_starts=2) for _ in range(2))
    for a, b in zip(one.tensor.factors, two.tensor.factors, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.starts.tolist() == two.starts.tolist()


def test_the_data_are_left_alone() -> None:
    X = low_rank((6, 5, 4), 2)
    X.flags.writeable = False
    before = X.copy()
    decompose(X, 2, rng=0)
    np.testing.assert_array_equal(X, before)


def test_masked_arrays_are_refused() -> None:
    X = np.ma.masked_array(np.ones((3, 3, 3)), mask=np.zeros((3, 3, 3), dtype=bool))
    with pytest.raises(ValueError, match="mask"):
        decompose(X, 1)
