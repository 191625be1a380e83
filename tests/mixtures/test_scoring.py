"""Scores and labels: with weights, and of Dask arrays where their chunks are."""

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

from tensoralg.errors import ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture
from tensoralg.mixtures.dask_rows import DaskRows

Array = NDArray[Any]
MODEL = DiagonalGaussianMixture.from_parameters(
    [0.4, 0.6], [[2.0, 1.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 2.0, 0.0]], np.ones((2, 5))
)
X = MODEL.sample(3000, random_state=0)[0]
WEIGHTS = np.random.default_rng(1).integers(0, 4, 3000).astype(np.float64)


@pytest.fixture(autouse=True)
def _here(monkeypatch: Any) -> Iterator[None]:
    def moved(self: Any) -> Any:
        raise AssertionError("rows were read into this process")

    monkeypatch.setattr(DaskRows, "__call__", moved)
    monkeypatch.setattr(da.Array, "__array__", moved)
    with dask.config.set(scheduler="synchronous"):
        yield


def blocks(data: Array = X, columns: int = -1) -> Any:
    return da.from_array(data, chunks=((700, 50, 1250, 1000), columns)[: data.ndim])


def unknown(data: Array = X) -> Any:
    parts = np.split(data, np.cumsum((700, 50, 1250)))
    return da.concatenate(
        [da.from_delayed(dask.delayed(p), (np.nan, *p.shape[1:]), p.dtype) for p in parts]
    )


@pytest.mark.parametrize("method", ["score_samples", "predict_proba", "predict"])
@pytest.mark.parametrize(
    "given", [blocks(), blocks(columns=2), unknown(), blocks(X.astype(object))]
)
def test_rows_of_a_dask_array_stay_where_they_are(method: str, given: Any) -> None:
    found, wanted = getattr(MODEL, method)(given), getattr(MODEL, method)(X)
    assert found.dtype == wanted.dtype
    assert found.ndim == wanted.ndim
    assert found.numblocks[0] == 4
    np.testing.assert_allclose(found.compute(), wanted, rtol=1e-12)


@pytest.mark.parametrize("given", [blocks(), unknown()])
def test_scores_of_a_dask_array(given: Any) -> None:
    for name in ("score", "bic", "aic"):
        assert getattr(MODEL, name)(given) == pytest.approx(getattr(MODEL, name)(X), rel=1e-12)


@pytest.mark.parametrize("missing", [False, True])
def test_weights_are_repetitions(missing: bool) -> None:
    data = X.copy()
    if missing:
        data[::7, 1], data[5] = np.nan, np.nan
    repeated = np.repeat(data, WEIGHTS.astype(int), axis=0)
    data[WEIGHTS == 0] = np.inf
    model = DiagonalGaussianMixture.from_parameters(
        MODEL.weights_, MODEL.means_, MODEL.covariances_
    ).set_params(missing=missing)
    for name in ("score", "bic", "aic"):
        call = getattr(model, name)
        wanted = call(repeated)
        assert call(data, sample_weight=WEIGHTS) == pytest.approx(wanted, rel=1e-12)
        assert call(blocks(data), sample_weight=blocks(WEIGHTS)) == pytest.approx(wanted, rel=1e-12)


def test_labels_after_a_fit() -> None:
    model = DiagonalGaussianMixture(2, random_state=0)
    labels = model.fit_predict(blocks())
    np.testing.assert_array_equal(labels.compute(), model.predict(X))


def test_what_is_refused() -> None:
    for call in (MODEL.score, MODEL.predict, MODEL.score_samples, MODEL.predict_proba):
        with pytest.raises(ShapeError, match="4 features; the mixture has 5"):
            call(blocks(X[:, :4]))
    bad = X.copy()
    bad[717, 3] = np.nan
    with pytest.raises(ValueError, match=r"chunk 1 of X.*row 17, column 3"):
        MODEL.score(blocks(bad))
    with pytest.raises(ValueError, match=r"chunk 1 of X.*row 17, column 3"):
        MODEL.predict(blocks(bad)).compute()
    with pytest.raises(ValueError, match="positive weight"):
        MODEL.score(blocks(), sample_weight=np.zeros(3000))
    for weight in (np.zeros(3000), -np.ones(3000), np.ones(7)):
        with pytest.raises(ValueError, match=r"non-zero|nonnegative|7|inconsistent"):
            MODEL.score(X, sample_weight=weight)


@pytest.mark.parametrize("automatic", [False, True])
def test_batches_of_a_dask_array_are_summed_where_they_are(automatic: bool) -> None:
    r: Any = "auto" if automatic else 2
    model = DiagonalGaussianMixture(r, random_state=0)
    for part in (blocks()[:1500], blocks()[1500:], blocks()[:0]):
        model.partial_fit(part)
    assert model.accumulator_.count == 3000
    assert model.n_components_ == 2
    plain = DiagonalGaussianMixture(2, random_state=0).partial_fit(X)
    np.testing.assert_allclose(model.weights_, plain.weights_, atol=1e-8)
    np.testing.assert_allclose(model.means_, plain.means_, atol=1e-7)
    with pytest.raises(ShapeError, match="4 features, but 5 were seen before"):
        model.partial_fit(blocks(X[:, :4]))
    assert model.accumulator_.count == 3000


@pytest.mark.parametrize("missing", [False, True])
def test_weighted_batches(missing: bool) -> None:
    data = X.copy()
    if missing:
        data[::7, 1], data[5] = np.nan, np.nan
    repeated = np.repeat(data, WEIGHTS.astype(int), axis=0)
    data[WEIGHTS == 0] = np.inf
    options: Any = {"missing": missing, "random_state": 0}
    wanted = DiagonalGaussianMixture(2, **options).partial_fit(repeated)
    one = DiagonalGaussianMixture(2, **options).partial_fit(data, sample_weight=WEIGHTS)
    np.testing.assert_allclose(one.means_, wanted.means_, rtol=1e-9, atol=1e-10)
    two = DiagonalGaussianMixture(2, **options)
    two.partial_fit(blocks(data), sample_weight=blocks(WEIGHTS))
    # with missing cells moments are about the mean of the first chunk
    np.testing.assert_allclose(two.means_, wanted.means_, atol=1e-2 if missing else 1e-8)
    assert two.accumulator_.count == one.accumulator_.count


@pytest.mark.parametrize("unknown_sizes", [False, True])
def test_the_number_of_components_of_a_dask_array(unknown_sizes: bool) -> None:
    model = DiagonalGaussianMixture("auto", random_state=0)
    model.fit(unknown() if unknown_sizes else blocks())
    assert model.n_components_ == 2
    assert model.diagnostics_.rank_test["rank"] == 2
    wanted = DiagonalGaussianMixture(2, random_state=0).fit(X)
    np.testing.assert_allclose(model.means_, wanted.means_, atol=1e-7)
    one_chunk = DiagonalGaussianMixture("auto", random_state=0).fit(da.from_array(X, chunks=-1))
    in_memory = DiagonalGaussianMixture("auto", random_state=0).fit(X)
    np.testing.assert_allclose(
        one_chunk.diagnostics_.rank_test["thresholds"],
        in_memory.diagnostics_.rank_test["thresholds"],
        rtol=1e-6,
    )
