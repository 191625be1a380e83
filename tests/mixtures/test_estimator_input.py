"""What DiagonalGaussianMixture accepts, and how it refuses the rest."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.errors import RankBoundError, ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TRUTH = DiagonalGaussianMixture.from_parameters(
    [0.4, 0.6], [[2.0, 1.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 2.0, 0.0]], np.ones((2, 5))
)
X = TRUTH.sample(1000, random_state=0)[0]


def fitted(data: Any, n_components: Any = 2, **options: Any) -> DiagonalGaussianMixture:
    weight = options.pop("sample_weight", None)
    options.setdefault("random_state", 0)
    return DiagonalGaussianMixture(n_components, **options).fit(data, sample_weight=weight)


def assert_sound(model: DiagonalGaussianMixture, data: Array | None = None) -> None:
    """Whatever came in: finite parameters, positive variances, probabilities that sum to one."""
    assert np.isfinite(model.means_).all()
    assert np.isfinite(model.covariances_).all()
    assert (model.covariances_ > 0).all()
    assert (model.weights_ > 0).all()
    assert model.weights_.sum() == pytest.approx(1.0, abs=1e-6)
    assert model.n_components_ == len(model.weights_) <= model.n_components
    if data is not None:
        probability = model.predict_proba(data)
        np.testing.assert_allclose(probability.sum(axis=1), 1.0)
        score = model.score(data)
        assert np.isfinite(score)
        if np.isfinite(model.lower_bound_):
            assert score >= model.lower_bound_ - 1e-6 * abs(score)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n_components", 0, "integer >= 1"),
        ("n_components", 2.5, "integer >= 1"),
        ("n_components", True, "integer >= 1"),
        ("n_components", None, "integer >= 1"),
        ("n_components", "two", "integer >= 1"),
        ("n_components", 1001, "1001 rows"),
        ("order", 2, "integer >= 3"),
        ("order", 3.0, "integer >= 3"),
        ("form", "fine", "affine, homogeneous, power"),
        ("form", [], "affine, homogeneous, power"),
        ("polish", "EM", "'em' or None"),
        ("polish", False, "'em' or None"),
        ("max_iter", 0, "integer >= 1"),
        ("tol", -1.0, "finite number >= 0"),
        ("tol", np.nan, "finite number >= 0"),
        ("reg_covar", np.inf, "finite number >= 0"),
        ("reg_covar", "small", "finite number >= 0"),
        ("robust", 1, "True or False"),
        ("missing", None, "True or False"),
        ("warm_start", "yes", "True or False"),
        ("random_state", "x", "seed"),
        ("random_state", -1, "Seed"),
    ],
)
def test_wrong_settings(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        DiagonalGaussianMixture(2).set_params(**{name: value}).fit(X)
    assert name in str(caught.value) or name == "random_state"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, ValueError),
        ("abc", ValueError),
        ({"a": [1.0, 2.0]}, TypeError),
        (3.0, ValueError),
        (np.array(3.0), ValueError),
        (X[:, 0], ValueError),
        (X[None], ValueError),
        (np.empty((0, 3)), ValueError),
        (np.empty((10, 0)), ValueError),
        (X + 0j, ValueError),
        (np.full((9, 2), "a"), ValueError),
        (np.full((9, 2), np.datetime64("2020-01-01")), ValueError),
        (scipy.sparse.csr_array(X), TypeError),
        (np.ma.masked_less(X, 0.0), ValueError),
        ([], ValueError),
        ([X[:0]], ValueError),
        (iter([]), ValueError),
        ([X, X[:, :3]], ShapeError),
        (iter([X[0], X[1]]), ValueError),
        ([X, np.full((2, 5), np.nan)], ValueError),
    ],
)
def test_wrong_data(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        fitted(data)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_cell_is_named(bad: float) -> None:
    data = X.copy()
    data[17, 3] = bad
    for given in (data, iter([data])):
        with pytest.raises(ValueError, match="row 17, column 3"):
            fitted(given)
    with pytest.raises(ValueError, match="row 17, column 3"):
        fitted(X).predict(data)
    if np.isinf(bad):
        with pytest.raises(ValueError, match="row 17, column 3"):
            fitted(data, missing=True)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.full(1000, -1.0), "nonnegative.*row 0"),
        (np.zeros(1000), "non-zero|positive sum"),
        (np.ones(999), "999|inconsistent|shape"),
        (np.full(1000, np.nan), "NaN"),
        (np.ones((1000, 2)), "1D|1-D|shape"),
        (np.r_[np.ones(1), np.zeros(999)], "n_samples = 1"),
    ],
)
def test_wrong_weights(weight: Array, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(X, sample_weight=weight)


def test_medians_do_not_go_with_rows_that_are_read_once() -> None:
    with pytest.raises(ValueError, match=r"robust=True reads X twice.*read only once"):
        fitted(iter([X]), robust=True)


def test_a_failing_iterable_shows_its_own_error() -> None:
    def chunks() -> Iterator[Array]:
        yield X[:300]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        fitted(chunks())


def test_an_iterable_that_is_empty_the_second_time() -> None:
    class Once:
        def __init__(self) -> None:
            self.parts = [X]

        def __iter__(self) -> Iterator[Array]:
            parts, self.parts = self.parts, []
            return iter(parts)

    with pytest.raises(ValueError, match="none later"):
        fitted(Once())


def containers(tmp_path: Path) -> dict[str, Any]:
    mapped = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=X.shape)
    mapped[:] = X
    fixed = X.copy()
    fixed.flags.writeable = False
    return {
        "memmap": mapped,
        "read-only": fixed,
        "Fortran": np.asfortranarray(X),
        "strided": np.repeat(np.repeat(X, 2, 0), 2, 1)[::2, ::2],
        "lists": X.tolist(),
        "tuples": tuple(map(tuple, X.tolist())),
        "object": X.astype(object),
        "long double": X.astype(np.longdouble),
        "chunks": [X[:1], X[1:400], X[:0], X[400:]],
        "tuple of chunks": (X[:300], X[300:]),
        "unmasked": np.ma.MaskedArray(X),
    }


@pytest.mark.parametrize(
    "name",
    [
        "memmap",
        "read-only",
        "Fortran",
        "strided",
        "lists",
        "tuples",
        "object",
        "long double",
        "chunks",
        "tuple of chunks",
        "unmasked",
    ],
)
def test_containers_hold_the_same_rows(name: str, tmp_path: Path) -> None:
    plain, model = fitted(X), fitted(containers(tmp_path)[name])
    np.testing.assert_allclose(model.means_, plain.means_, atol=1e-7)
    np.testing.assert_allclose(model.covariances_, plain.covariances_, rtol=1e-6)


def test_rows_are_not_changed() -> None:
    data, weight = X.copy(), np.ones(1000)
    fitted(data, sample_weight=weight, robust=True)
    np.testing.assert_array_equal(data, X)
    np.testing.assert_array_equal(weight, 1.0)


def test_an_object_that_iterates_anew_is_polished_and_a_generator_is_not() -> None:
    class Chunks:
        def __iter__(self) -> Iterator[Array]:
            return iter(np.array_split(X, 3))

    assert fitted(Chunks()).diagnostics_.status == "converged"
    with pytest.warns(UserWarning, match="can be read only once"):
        model = DiagonalGaussianMixture(2, random_state=0).fit(iter(np.array_split(X, 3)))
    assert model.diagnostics_.status == "moments only"
    np.testing.assert_allclose(model.means_, fitted(X).means_, atol=0.3)
    assert_sound(fitted(iter([X[:300], X[300:]]), 1), X)


def test_rows_read_once_cannot_start_from_clusters() -> None:
    with pytest.raises(RankBoundError, match=r"n_components=3 .*d=2"):
        fitted(iter([X[:, :2]]), 3)
    with pytest.raises(RankBoundError, match="variances 5"):
        fitted(iter([X]), 6)


def test_chunks_of_two_precisions() -> None:
    model = fitted([X[:300].astype(np.float32), X[300:]])
    assert model.means_.dtype == np.float32
    np.testing.assert_allclose(model.means_, fitted(X).means_, atol=1e-4)


@pytest.mark.parametrize("missing", [False, True])
def test_a_first_chunk_unlike_the_others(missing: bool) -> None:
    for first in (np.repeat(X[:1], 50, axis=0), X[:1] + 1e6, np.full((3, 5), np.nan)):
        if not missing and np.isnan(first).any():
            continue
        assert_sound(fitted([first, X], missing=missing))


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcde"))
    model = fitted(frame)
    assert list(model.feature_names_in_) == list("abcde")
    np.testing.assert_allclose(model.means_, fitted(X).means_, atol=1e-9)


def wild_data() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "two rows": X[:2],
        "ten rows": X[:10],
        "the same columns twice": np.repeat(X[:300], 2, axis=1),
        "correlated columns": np.column_stack([X[:300], 2 * X[:300, 0] + 1, -X[:300, 1]]),
        "mixed units": X[:300] * np.array([1e150, 1e-150, 1.0, 1e-140, 1e140]),
        "integers": rng.integers(0, 10, (300, 4)),
        "bytes": rng.integers(-100, 100, (300, 4)).astype(np.int8),
        "zeros and ones": rng.integers(0, 2, (300, 6)),
        "booleans": rng.integers(0, 2, (300, 4)).astype(bool),
        "a tiny cluster": np.concatenate([X, X[:5] + 20]),
        "heavy tails": rng.standard_cauchy((400, 3)),
        "half constant": np.column_stack([X[:300], np.r_[np.zeros(299), 1.0]]),
        "two precise clusters": np.repeat([[0.0, 1.0], [1e-8, 1.0 + 1e-8]], 50, axis=0),
        "one column": X[:200, :1],
        "half precision": X[:200].astype(np.float16),
    }


@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("name", list(wild_data()))
def test_wild_data_end_in_a_sound_mixture(name: str, n_components: int) -> None:
    data = wild_data()[name]
    if len(data) < n_components:
        with pytest.raises(ValueError, match="n_samples"):
            fitted(data, n_components)
    else:
        assert_sound(fitted(data, n_components), data)


@pytest.mark.parametrize("n_components", [1, 2])
@pytest.mark.parametrize(
    ("unit", "dtype"),
    [
        (1e-200, np.float64),
        (1e200, np.float64),
        (1e308, np.float64),
        (1e-310, np.float64),
        (1e25, np.float32),
        (1e-25, np.float32),
    ],
)
def test_a_spread_whose_square_is_no_number_is_named(
    unit: float, dtype: Any, n_components: int
) -> None:
    data = X.clip(-1, 1)
    data[:, 2] *= unit
    with pytest.raises(ValueError, match="column 2 of X spreads over"):
        fitted(data.astype(dtype), n_components)
    with pytest.raises(ValueError, match="column 2 of X spreads over"):
        fitted([data[:500].astype(dtype), data[500:].astype(dtype)], n_components)


@pytest.mark.parametrize(
    "weight",
    [
        np.full(1000, 1e-300),
        np.full(1000, 5e-324),
        np.full(1000, 1.7e308),
        10.0 ** np.random.default_rng(0).uniform(-300, 300, 1000),
    ],
)
def test_the_unit_of_weights_is_free(weight: Array) -> None:
    model = fitted(X, sample_weight=weight)
    assert_sound(model)
    if (weight == weight[0]).all():
        np.testing.assert_allclose(model.means_, fitted(X).means_, atol=1e-9)


def test_columns_that_are_never_seen_together() -> None:
    data = X.copy()
    data[:500, 0], data[500:, 1] = np.nan, np.nan
    with pytest.warns(UserWarning, match=r"no row holds all of the columns \[0, 1\]"):
        assert_sound(DiagonalGaussianMixture(2, missing=True, random_state=0).fit(data), None)
    with pytest.raises(RankBoundError, match=r"no row holds all of the columns \[0, 1\]"):
        fitted(data, missing=True, polish=None)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_hardly_anything_is_observed(share: float) -> None:
    data = X.copy()
    data[np.random.default_rng(1).random(X.shape) < share] = np.nan
    assert_sound(fitted(data, missing=True))
    assert_sound(fitted(data, 1, missing=True))


def test_every_row_the_same() -> None:
    data = np.full((50, 3), 7.0)
    for given in (data, [data], iter([data])):
        with pytest.warns(UserWarning, match="1 effective component"):
            model = DiagonalGaussianMixture(3, random_state=0).fit(given)
        np.testing.assert_array_equal(model.means_, [[7.0, 7.0, 7.0]])
        assert_sound(model, data)


def test_scoring_checks_its_rows() -> None:
    model = fitted(X)
    for wrong in (X[:, :3], X[0], X[None], np.empty((0, 5))):
        for call in (model.predict, model.predict_proba, model.score_samples, model.bic):
            with pytest.raises(ValueError, match=r"features|2D|dim|sample"):
                call(wrong)


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "words"),
    [
        ([1.0], [[0.0, 1.0]], [[1.0]], "covariances must have the shape"),
        ([1.0], [0.0], [1.0], "means must have shape"),
        ([], np.empty((0, 2)), np.empty((0, 2)), "means must have shape"),
        ([1.0], [[np.nan]], [[1.0]], "means must be finite"),
        ([1.0], [[0.0]], [[np.inf]], "covariances must be finite"),
        ([1.0], [[0.0]], [[0.0]], "covariances must be positive"),
        ([np.nan], [[0.0]], [[1.0]], "weights must be finite"),
    ],
)
def test_wrong_parameters(weights: Any, means: Any, covariances: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DiagonalGaussianMixture.from_parameters(weights, means, covariances)


def test_given_parameters_are_copied() -> None:
    means = np.zeros((1, 2))
    model = DiagonalGaussianMixture.from_parameters([1.0], means, np.ones((1, 2)))
    means[:] = 9.0
    np.testing.assert_array_equal(model.means_, 0.0)


def test_wrong_accumulators() -> None:
    model = DiagonalGaussianMixture(2)
    with pytest.raises(TypeError, match="must be a MomentAccumulator"):
        model.fit_moments(X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        model.fit_moments(MomentAccumulator(5, 3))
    with pytest.raises(ValueError, match="order=4 needs more"):
        DiagonalGaussianMixture(2, order=4).fit_moments(MomentAccumulator(5, 3).update(X))
    with pytest.raises(ValueError, match="powers=True"):
        DiagonalGaussianMixture(2, form="power").fit_moments(MomentAccumulator(5, 3).update(X))


def test_warnings_point_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DiagonalGaussianMixture(2, max_iter=1).fit(X[:, :2])
        DiagonalGaussianMixture(2, polish=None).fit(np.insert(X, 0, 1.0, axis=1))
    assert len(caught) >= 3
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize("unit", [1e-5, 1e4])
def test_missing_cells_in_any_unit(unit: float) -> None:
    X = TRUTH.sample(4000, random_state=8)[0]
    X[np.random.default_rng(8).random(X.shape) < 0.1] = np.nan
    stream = [np.zeros((3, 5)), unit * X]  # a first chunk that shows no unit
    plain, scaled = (
        DiagonalGaussianMixture(2, random_state=0).fit_moments(
            MomentAccumulator(5, 3, missing=True).update(factor * X)
        )
        for factor in (1.0, unit)
    )
    assert scaled.diagnostics_.status == "moments only"
    np.testing.assert_allclose(scaled.means_, unit * plain.means_, rtol=1e-6)
    np.testing.assert_allclose(scaled.covariances_, unit**2 * plain.covariances_, rtol=1e-6)
    assert scaled.diagnostics_.mean_error == pytest.approx(plain.diagnostics_.mean_error)
    streamed = DiagonalGaussianMixture(2, missing=True, random_state=0).fit(stream)
    np.testing.assert_allclose(streamed.means_, unit * plain.means_, atol=0.15 * unit)


@pytest.mark.parametrize("missing", [False, True])
def test_robust_medians_count_the_weights(missing: bool) -> None:
    rng = np.random.default_rng(9)
    data = np.concatenate([rng.normal(0, 1, (100, 3)), rng.normal(200, 1, (60, 3))])
    if missing:
        data[::7, 0] = np.nan
    weight = np.repeat([1.0, 20.0], [100, 60])
    weighted = fitted(data, 1, robust=True, missing=missing, sample_weight=weight)
    repeated = fitted(np.repeat(data, weight.astype(int), axis=0), 1, robust=True, missing=missing)
    assert weighted.means_.min() > 190  # the heavy rows are the majority
    np.testing.assert_allclose(weighted.means_, repeated.means_)
