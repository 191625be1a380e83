"""Inputs that once broke the decomposition, found by trying what nobody had thought of."""

import warnings
from typing import Any

import numpy as np
import pytest

from tensoralg import KruskalTensor
from tensoralg.errors import ProblemTooLargeError, ShapeError
from tensoralg.polyadic import core_consistency, decompose, mttkrp, rank_scan
from tensoralg.solvers.generalized_eigenvalue_start import mode_groups


def low_rank(shape: tuple[int, ...], rank: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape]).to_dense()


def test_sixteen_modes_have_few_enough_splits() -> None:
    """All of their 43 million splits in three groups were compared."""
    groups = mode_groups((2,) * 16, 20)
    assert groups is not None
    assert sorted(k for group in groups for k in group) == list(range(16))
    assert min(2 ** len(group) for group in groups[:2]) >= 20
    assert decompose(low_rank((2,) * 16, 2), 2, rng=0).fit == pytest.approx(1.0, abs=1e-6)


def test_one_mode_is_its_own_term_whatever_the_method() -> None:
    result = decompose([3.0, 0.0, 4.0], 2, method="compressed")
    assert result.fit == 1.0
    assert result.tensor.to_dense().tolist() == pytest.approx([3.0, 0.0, 4.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_overflow_nowhere(dtype: str, sign: int) -> None:
    X = np.full((3, 4, 2), sign * np.finfo(dtype).max, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = decompose(X, 1, rng=0)
    assert result.fit == pytest.approx(1.0, abs=1e-6)
    for part in (result.tensor.weights, *result.tensor.factors):
        assert np.isfinite(part).all()


@pytest.mark.parametrize("method", ["als", "compressed", "sgd"])
@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_a_callback_has_its_own_copies_at_the_scale_of_the_tensor(
    method: str, scale: float
) -> None:
    X = low_rank((6, 5, 4), 2) * scale
    shown = []

    def callback(iteration: int, fit: float, factors: Any) -> None:
        shown.append((fit, KruskalTensor(None, factors).fit(X)))
        for factor in factors:
            factor[:] = 0.0

    result = decompose(X, 2, method=method, callback=callback, rng=0, exact_finish=False)
    assert result.fit == pytest.approx(result.tensor.fit(X), abs=1e-10)
    assert result.fit > 0.99
    np.testing.assert_allclose(*np.transpose(shown), atol=1e-6)


@pytest.mark.parametrize("power", [1e200, 1e-200])
@pytest.mark.parametrize("method", ["als", "sgd"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_start_may_have_any_size(power: float, method: str, is_masked: bool) -> None:
    """Its products left the range of float64 and the least-squares solver failed."""
    if is_masked and method == "sgd":
        pytest.skip("missing cells need alternating least squares")
    X = low_rank((6, 5, 4), 2)
    mask = np.random.default_rng(1).random(X.shape) < 0.9 if is_masked else None
    rng = np.random.default_rng(2)
    start = KruskalTensor([power, -power], [power * rng.standard_normal((n, 2)) for n in X.shape])
    assert decompose(X, 2, init=start, method=method, mask=mask, rng=0).fit > 0.999


def test_a_start_has_the_scale_of_its_tensor() -> None:
    X = low_rank((6, 5, 4), 2) * 1e-200
    mask = np.random.default_rng(1).random(X.shape) < 0.8
    found = decompose(X, 2, mask=mask, rng=0, tol=1e-12, max_iter=2000)
    again = decompose(X, 2, mask=mask, init=found.tensor)
    assert again.n_iter <= 20
    assert again.fit == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tol": "a"}, TypeError, "tol must be a number"),
        ({"tol": None}, TypeError, "tol must be a number"),
        ({"rng": -1}, ValueError, "rng must be"),
        ({"rng": "seed"}, TypeError, "rng must be"),
        ({"callback": 3}, TypeError, "callback must be callable"),
        ({"init": "hosvd"}, ValueError, "init: unknown start"),
        ({"init": KruskalTensor(None, [np.ones((2, 2))] * 3)}, ValueError, "init: factor 0"),
    ],
)
@pytest.mark.parametrize("X", [np.ones((3, 3, 3)), np.zeros((3, 3, 3))])
def test_arguments_are_named_for_zero_tensors_too(
    options: Any, error: Any, message: str, X: Any
) -> None:
    with pytest.raises(error, match=message):
        decompose(X, 2, **options)


@pytest.mark.parametrize(
    "mask", [True, "yes", 1, np.ma.masked_array(np.ones((3, 3, 3), dtype=bool), mask=True)]
)
def test_masks_that_are_no_arrays_are_named(mask: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="mask must"):
        decompose(np.ones((3, 3, 3)), 1, mask=mask)


def test_products_take_factors_from_any_iterable() -> None:
    factors = [np.ones((n, 2)) for n in (3, 4, 5)]
    X = np.ones((3, 4, 5))
    np.testing.assert_array_equal(mttkrp(X, iter(factors), 0), mttkrp(X, factors, 0))
    with pytest.raises(TypeError, match="factors must be matrices"):
        mttkrp(X, None, 0)  # type: ignore[arg-type]


def test_core_consistency_refuses_what_has_no_core() -> None:
    """A core of rank 6 and order 12 took all memory."""
    X = np.ones((2,) * 12)
    with pytest.raises(ProblemTooLargeError, match="2176782336 entries"):
        core_consistency(X, KruskalTensor(None, [np.ones((2, 6))] * 12))
    assert np.isnan(rank_scan(X, [6], n_starts=1, rng=0).core_consistencies).all()
    with pytest.raises(ValueError, match="rank 0"):
        core_consistency(X, KruskalTensor(None, [np.ones((2, 0))] * 12))
    with pytest.raises(TypeError, match="KruskalTensor"):
        core_consistency(X, 3)  # type: ignore[arg-type]


def test_the_fit_of_masked_arrays_is_refused() -> None:
    tensor = KruskalTensor(None, [np.ones((2, 1))] * 2)
    with pytest.raises(ValueError, match="masked"):
        tensor.fit(np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)))


def test_dask_arrays_of_unknown_shape_or_other_chunks_are_refused() -> None:
    """The masks of the chunks were ignored."""
    array = pytest.importorskip("dask.array")
    X = array.from_array(np.ones((4, 3, 2)), chunks=2)
    with pytest.raises(ShapeError, match="compute_chunk_sizes"):
        decompose(X[X[:, 0, 0] > 0], 1)
    with pytest.raises(TypeError, match="MaskedArray"):
        decompose(array.ma.masked_array(X, mask=X > 2), 1)
