"""robust=True: dirt in rows, in cells, in clusters, near and far, whatever holds the rows."""

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator
from tensoralg.mixtures.cell_limits import column_limits

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def truth(d: int = 8, r: int = 3, seed: int = 0) -> DiagonalGaussianMixture:
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        rng.dirichlet(np.full(r, 8.0)), rng.standard_normal((r, d)), rng.uniform(0.3, 1.5, (r, d))
    )


TRUTH = truth()
X = TRUTH.sample(6000, random_state=0)[0]


def fitted(data: Any, n_components: Any = 3, **options: Any) -> DiagonalGaussianMixture:
    weight = options.pop("sample_weight", None)
    options.setdefault("random_state", 0)
    return DiagonalGaussianMixture(n_components, **options).fit(data, sample_weight=weight)


def error(model: DiagonalGaussianMixture, known: DiagonalGaussianMixture = TRUTH) -> float:
    distance = np.linalg.norm(model.means_[:, None] - known.means_[None], axis=2)
    assert sorted(distance.argmin(axis=1)) == list(range(len(known.means_)))
    return float(np.linalg.norm(distance.min(axis=1)) / np.linalg.norm(known.means_))


def dirty(kind: str, share: float, unit: float = 40.0, data: Array = X, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    result = data.copy()
    n, d = data.shape
    if kind == "cells":
        wild = rng.random((n, d)) < share
        result[wild] = unit * rng.standard_normal(int(wild.sum()))
        return result
    rows = rng.random(n) < share
    noise = rng.standard_normal((int(rows.sum()), d))
    wild_rows = {"rows": unit * noise, "added": data[rows] + unit * noise, "cluster": unit + noise}
    result[rows] = wild_rows[kind]
    return result


CLEAN = {polish: error(fitted(X, polish=polish)) for polish in ("em", None)}


@pytest.mark.parametrize("polish", ["em", None])
@pytest.mark.parametrize(
    ("kind", "share", "unit"),
    [
        ("rows", 0.005, 40.0),
        ("rows", 0.05, 40.0),
        ("rows", 0.05, 1e150),
        ("rows", 0.05, 10.0),
        ("added", 0.05, 40.0),
        ("cluster", 0.05, 40.0),
        ("cells", 0.005, 40.0),
        ("cells", 0.05, 40.0),
        ("cells", 0.05, 1e150),
    ],
)
def test_dirt_costs_little(kind: str, share: float, unit: float, polish: str | None) -> None:
    model = fitted(dirty(kind, share, unit), robust=True, polish=polish)
    assert error(model) < 1.5 * CLEAN[polish]
    note = model.diagnostics_
    assert note.outliers > 0
    assert (note.outlying_cells > 0) == (kind == "cells" and share > 0.01)
    assert note.missing == 0


def test_clean_rows_are_kept() -> None:
    model = fitted(X, robust=True)
    assert model.diagnostics_.outliers < 30  # beyond four standard deviations in 48,000 cells
    assert model.diagnostics_.outlying_cells == 0
    assert error(model) < 1.05 * CLEAN["em"]


@pytest.mark.parametrize("share", [0.12, 0.4])
@pytest.mark.parametrize("distance", [12.0, 1000.0])
def test_a_component_far_away_is_no_dirt(share: float, distance: float) -> None:
    rng = np.random.default_rng(2)
    far = rng.random(5000) < share
    data = rng.standard_normal((5000, 4)) + distance * far[:, None] * np.array([1.0, 0.0, 1.0, 0.0])
    model = fitted(data, 2, robust=True)
    assert model.diagnostics_.outliers < 50
    np.testing.assert_allclose(model.weights_[1], far.mean(), atol=0.01)
    np.testing.assert_allclose(model.means_[1], distance * np.array([1, 0, 1, 0]), atol=0.3)


def test_many_rows_left_out_are_told() -> None:
    rng = np.random.default_rng(3)
    data = rng.standard_normal((2000, 4))
    for j in range(4):  # groups of 9 percent, each far away in two columns of its own
        data[180 * j : 180 * (j + 1), j] += 200.0
        data[180 * j : 180 * (j + 1), (j + 1) % 4] -= 200.0
    with pytest.warns(UserWarning, match=r"leaves out \d+ of 2000 rows.*robust=False"):
        DiagonalGaussianMixture(1, robust=True).fit(data)


@pytest.mark.parametrize(
    ("column", "far"),
    [
        (np.r_[np.zeros(970), np.ones(30)], [40.0, -40.0]),
        (np.r_[np.zeros(700), np.full(300, 5.0)], [200.0, -200.0]),
        (np.r_[np.full(995, 3.0), np.linspace(2.9, 3.1, 5)], [9.0, -3.0]),
    ],
)
def test_a_column_whose_median_deviation_is_zero(column: Array, far: list[float]) -> None:
    limits = column_limits(column[:, None], None, 8.0)
    assert limits.count_far(column[:, None]).sum() == 0
    with_dirt = np.append(column, far)[:, None]
    limits = column_limits(with_dirt, None, 8.0)
    np.testing.assert_array_equal(np.flatnonzero(limits.count_far(with_dirt)), [1000, 1001])


def test_a_constant_column_and_a_flat_one() -> None:
    data = dirty("rows", 0.01)
    data = np.column_stack([data, np.full(6000, 7.0), np.arange(6000) % 20 == 0])
    model = fitted(data, robust=True)
    assert model.diagnostics_.constant_columns == [8]
    assert error(fitted(data[:, :8], robust=True)) < 1.5 * CLEAN["em"]
    np.testing.assert_allclose(model.weights_ @ model.means_[:, 9], 0.05, atol=0.01)


@pytest.mark.parametrize("kind", ["rows", "cells"])
@pytest.mark.parametrize("missing", [False, True])
def test_dask_chunks_and_arrays_agree(kind: str, missing: bool) -> None:
    data = dirty(kind, 0.04)
    if missing:
        data[np.random.default_rng(4).random(data.shape) < 0.15] = np.nan
    options = {"robust": True, "missing": missing}
    one = fitted(data, **options)
    with dask.config.set(scheduler="synchronous"):
        others = [
            fitted(da.from_array(data, chunks=(1700, 8)), **options),
            fitted(np.array_split(data, 5), **options),
        ]
    # sums over missing cells are about the mean of the first chunk
    atol = 5e-3 if missing or kind == "cells" else 1e-7
    for model in others:
        np.testing.assert_allclose(model.means_, one.means_, atol=atol)
        np.testing.assert_allclose(model.covariances_, one.covariances_, atol=atol)
        assert model.diagnostics_.outliers == one.diagnostics_.outliers > 0
        assert model.diagnostics_.outlying_cells == one.diagnostics_.outlying_cells
        assert model.diagnostics_.missing == one.diagnostics_.missing <= np.isnan(data).sum()


@pytest.mark.parametrize("kind", ["rows", "cells"])
@pytest.mark.parametrize("missing", [False, True])
def test_weights_are_repetitions(kind: str, missing: bool) -> None:
    rng = np.random.default_rng(5)
    data = dirty(kind, 0.04)
    if missing:
        data[rng.random(data.shape) < 0.15] = np.nan
    weight = rng.integers(0, 4, 6000).astype(np.float64)
    wild = data.copy()
    wild[weight == 0] = np.inf
    repeated = np.repeat(data, weight.astype(int), axis=0)
    options = {"robust": True, "missing": missing}
    one, two = fitted(wild, sample_weight=weight, **options), fitted(repeated, **options)
    np.testing.assert_allclose(one.weights_, two.weights_, rtol=1e-10)
    np.testing.assert_allclose(one.means_, two.means_, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(one.covariances_, two.covariances_, rtol=1e-10)
    errors = one.standard_errors(wild, weight), two.standard_errors(repeated)
    np.testing.assert_allclose(errors[0].means, errors[1].means, rtol=1e-8)
    assert errors[0].rows == errors[1].rows


@pytest.mark.parametrize("kind", ["rows", "cells"])
def test_standard_errors_and_the_moment_test_read_what_the_fit_read(kind: str) -> None:
    data = dirty(kind, 0.03)
    clean, model = fitted(X), fitted(data, robust=True)
    wanted, found = clean.standard_errors(X), model.standard_errors(data)
    np.testing.assert_allclose(found.means, wanted.means, rtol=0.15)
    assert found.rows == 6000 - model.diagnostics_.outliers
    assert model.moment_test(data).p_value > 1e-4
    part = model.standard_errors(data[:3000])  # the limits are those of the fit
    np.testing.assert_allclose(part.means, np.sqrt(2) * found.means, rtol=0.2)


def test_the_number_of_components_is_detected_in_dirty_rows() -> None:
    for kind in ("rows", "cells", "cluster"):
        assert fitted(dirty(kind, 0.02), "auto", robust=True).n_components_ == 3


def test_a_warm_start_is_the_first_fit() -> None:
    data = dirty("cells", 0.03)
    model = DiagonalGaussianMixture(3, robust=True, warm_start=True, random_state=0).fit(data)
    first = model.means_
    model.fit(data)
    assert model.diagnostics_.start == "warm"
    np.testing.assert_allclose(model.means_, first, atol=1e-2)


def test_a_warm_start_of_another_width_is_dropped() -> None:
    model = DiagonalGaussianMixture(3, robust=True, warm_start=True, random_state=0).fit(X)
    for data in (X[:, :6], [X[:, :5]]):
        model.fit(data)
        assert model.diagnostics_.start == "algebraic"
        assert model.means_.shape == (3, np.shape(data)[-1])


@pytest.mark.parametrize("r", [1, 2])
def test_one_column(r: int) -> None:
    rng = np.random.default_rng(6)
    data = np.r_[rng.normal(-3, 1, 3000), rng.normal(3, 1, 3000)][:, None]
    model = fitted(dirty("cells", 0.02, 100.0, data), r, robust=True)
    wanted = fitted(data, r)
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), np.sort(wanted.means_[:, 0]), atol=0.1)
    np.testing.assert_allclose(np.sort(model.covariances_), np.sort(wanted.covariances_), rtol=0.2)


def test_many_columns() -> None:
    known = truth(d=300, r=4, seed=7)
    data = known.sample(1500, random_state=7)[0]
    clean = error(fitted(data, 4), known)
    for kind in ("rows", "cells"):
        model = fitted(dirty(kind, 0.01, data=data), 4, robust=True)
        assert model.diagnostics_.start == "block read-out"
        assert error(model, known) < 1.2 * clean


def test_a_later_batch_is_held_to_the_limits_of_the_first() -> None:
    data = dirty("rows", 0.02)
    model = DiagonalGaussianMixture(3, robust=True, random_state=0)
    for part in np.array_split(data, 4):
        model.partial_fit(part)
    assert error(model) < 1.3 * CLEAN[None]
    assert model.accumulator_.count + model.diagnostics_.outliers == 6000
    with pytest.raises(ValueError, match=r"first rows: got 19, at least 20"):
        DiagonalGaussianMixture(3, robust=True).partial_fit(data[:19])


def test_moments_cannot_be_cleaned_afterwards() -> None:
    moments = MomentAccumulator(8, 3).update(X)
    with pytest.warns(UserWarning, match="no effect on moments"):
        DiagonalGaussianMixture(3, robust=True, random_state=0).fit_moments(moments)


def test_rows_that_fit_nowhere_are_an_error() -> None:
    with pytest.raises(ValueError, match="no rows"):
        fitted([X[:0]], robust=True)


def test_the_rows_stay_as_they_are_and_the_seed_decides_the_rest() -> None:
    data = dirty("cells", 0.05)
    before = data.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (fitted(data, robust=True) for _ in range(2))
    np.testing.assert_array_equal(data, before)
    np.testing.assert_array_equal(one.means_, two.means_)
