"""The number of components found from moments."""

import numpy as np
import pytest
from sklearn.base import clone

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures import (
    DiagonalGaussianMixture,
    MomentAccumulator,
    SplitMomentAccumulator,
    detect_rank,
)
from tensoralg.mixtures.rank_detection import _count, _monomials, _sizes

AUTO = DiagonalGaussianMixture("auto", random_state=0)


def mixture(r, d=9, separation=1.5, seed=0):
    rng = np.random.default_rng([r, seed])
    return (
        rng.dirichlet(np.full(r, 20.0)),
        separation * rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


def rows_of(r, n=20000, **options):
    return DiagonalGaussianMixture.from_parameters(*mixture(r, **options)).sample(
        n, random_state=r
    )[0]


def split(X, order=3, **options):
    kept = {"shift": X.mean(axis=0), "scale": X.std(axis=0)} | options
    return SplitMomentAccumulator(X.shape[1], order, **kept).update(X)


@pytest.mark.parametrize("r", [1, 2, 3, 5])
def test_a_sample_shows_its_number_of_components(r):
    X = rows_of(r)
    model = clone(AUTO).fit(X)
    assert model.n_components_ == len(model.weights_) == r
    test = model.diagnostics_.rank_test
    assert test["rank"] == max(test["ranks"]) == r < test["room"]
    assert sum(np.array(test["singular_values"])[:r] > np.array(test["thresholds"])[:r]) == r
    assert model.n_components == "auto"  # the argument stays what it was
    assert clone(model).get_params()["n_components"] == "auto"
    given = DiagonalGaussianMixture(r, random_state=0).fit(X)
    np.testing.assert_allclose(model.means_, given.means_, atol=1e-6)


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("r", [1, 2, 4, 6])
def test_exact_moments_show_their_rank(r, order):
    exact = MomentAccumulator.from_parameters(*mixture(r), order)
    assert detect_rank(exact, rng=0).ranks == [r] * 9
    model = clone(AUTO).set_params(order=order).fit_moments(exact)
    assert model.n_components_ == r


def test_components_need_not_be_gaussian():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 30000)
    X = rng.exponential(1.0, (30000, 8)) + rng.normal(0, 1.5, (3, 8))[labels]
    assert detect_rank(split(X), rng=0).rank == 3


def test_repeated_points_are_as_many_components_as_there_are_points():
    for points in ([[0.0, 0.0], [5.0, 5.0]], [[0, 1, 2, 3, 1, 0.0], [5, 2, 0, 4, 0, 1.0]]):
        X = np.repeat(points, 60, axis=0)
        with pytest.warns(UserWarning, match="collapsed"):
            model = clone(AUTO).fit(X)
        np.testing.assert_allclose(np.sort(model.means_, axis=0), np.sort(points, axis=0))
        with pytest.warns(UserWarning, match="2 effective components are fitted"):
            asked = DiagonalGaussianMixture(4, random_state=0).fit(X)
        assert asked.n_components_ == 2


def test_one_repeated_point_is_one_component():
    with pytest.warns(UserWarning, match="are constant"):
        model = clone(AUTO).fit(np.full((50, 3), 7.0))
    assert model.n_components_ == 1
    np.testing.assert_array_equal(model.means_, [[7.0] * 3])


def test_a_constant_column_shows_nothing():
    X = np.column_stack([rows_of(3), np.full(20000, 3.0)])
    with pytest.warns(UserWarning, match="constant"):
        assert clone(AUTO).fit(X).n_components_ == 3


def test_a_count_at_the_limit_of_the_splits_is_said_to_be_one():
    X = rows_of(4, d=3, separation=3.0)
    with pytest.warns(UserWarning, match="there may be more"):
        model = clone(AUTO).fit(X)
    assert model.diagnostics_.rank_test["rank"] == model.diagnostics_.rank_test["room"] < 4


def test_weights_missing_cells_outliers_and_single_precision():
    X = rows_of(3)
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 3, len(X))
    wild = np.where(weights[:, None] == 0, 1e9, X)
    assert clone(AUTO).fit(wild, sample_weight=weights).n_components_ == 3
    single = clone(AUTO).fit(X.astype(np.float32))
    assert single.means_.dtype == np.float32
    assert single.n_components_ == 3
    holes = np.where(rng.random(X.shape) < 0.15, np.nan, X)
    assert clone(AUTO).set_params(missing=True).fit(holes).n_components_ == 3
    far = X.copy()
    far[::200] = 300.0 * rng.choice([-1, 1], far[::200].shape)
    assert clone(AUTO).set_params(robust=True).fit(far).n_components_ == 3


def test_scales_and_origins_of_columns_do_not_matter():
    X = rows_of(3) * 10.0 ** np.arange(-4, 5) + 1e5 * 10.0 ** np.arange(-4, 5)
    assert clone(AUTO).fit(X).n_components_ == 3


def test_chunks_partial_fits_and_sums_from_elsewhere():
    X = rows_of(3)
    chunks = np.array_split(X, 7)
    whole = clone(AUTO).fit(X)
    assert clone(AUTO).fit(chunks).diagnostics_.rank_test["ranks"] == [3] * 9
    with pytest.warns(UserWarning, match="read only once"):
        assert clone(AUTO).fit(iter(chunks)).n_components_ == 3
    model = clone(AUTO)
    for chunk in chunks:
        model.partial_fit(chunk)
    assert model.n_components_ == 3
    assert len(model.accumulator_.parts) == 32
    merged = SplitMomentAccumulator(9, 3)
    for chunk in chunks:
        merged.merge(SplitMomentAccumulator(9, 3).update(chunk))
    fitted = clone(AUTO).fit_moments(merged)
    np.testing.assert_allclose(fitted.means_, whole.means_, atol=0.1)


def test_one_sum_over_all_rows_does_not_show_its_noise():
    X = rows_of(2)
    plain = MomentAccumulator(9, 3).update(X)
    with pytest.raises(ValueError, match="SplitMomentAccumulator"):
        clone(AUTO).fit_moments(plain)
    model = DiagonalGaussianMixture(2, random_state=0).partial_fit(X)
    with pytest.raises(ValueError, match="SplitMomentAccumulator"):
        model.set_params(n_components="auto").partial_fit(X)


def test_a_warm_start_is_kept_where_the_number_is_the_same():
    X = rows_of(3)
    model = clone(AUTO).set_params(warm_start=True).fit(X)
    assert model.diagnostics_.start == "algebraic"
    assert model.fit(X).diagnostics_.start == "warm"
    with pytest.warns(UserWarning, match="3 components and 2 were detected"):
        model.fit(rows_of(2))
    assert model.n_components_ == 2


@pytest.mark.parametrize("wrong", ["Auto", "", None, 0, 2.5, True])
def test_other_numbers_of_components_are_refused(wrong):
    with pytest.raises(ValueError, match="n_components must be an integer >= 1 or 'auto'"):
        DiagonalGaussianMixture(wrong).fit(np.zeros((5, 2)))


def test_too_little_to_detect_from_is_refused():
    one = np.random.default_rng(0).normal(size=(50, 1))
    with pytest.raises(ValueError, match="1 column: at least two that vary"):
        clone(AUTO).fit(one)
    with pytest.raises(ValueError, match="n_components=auto needs at least 2"):
        clone(AUTO).fit(one.T)
    with pytest.raises(ValueError, match="order >= 3"):
        detect_rank(SplitMomentAccumulator(3, 2).update(np.eye(3)))
    with pytest.raises(ValueError, match="empty"):
        detect_rank(SplitMomentAccumulator(3, 3))
    with pytest.raises(ValueError, match="columns must be from 0 to 2"):
        detect_rank(split(np.eye(3)), columns=[0, 3])
    with pytest.raises(TypeError, match="MomentAccumulator"):
        detect_rank(np.eye(3))


def test_three_rows_are_one_component():
    X = np.random.default_rng(0).normal(size=(3, 4))
    assert detect_rank(split(X), rng=0).rank == 1


def test_independent_columns_show_one_component_in_most_samples():
    rng = np.random.default_rng(5)
    found = [detect_rank(split(rng.exponential(size=(2000, 6))), rng=k).rank for k in range(20)]
    assert found.count(1) >= 19


def test_groups_add_up_to_the_whole_in_any_cut():
    X = np.random.default_rng(0).normal(size=(500, 4))
    w = np.random.default_rng(1).integers(0, 4, 500).astype(float)
    whole = MomentAccumulator(4, 3, shift=0.5, scale=2.0).update(X, w)
    once = SplitMomentAccumulator(4, 3, shift=0.5, scale=2.0).update(X, w)
    cut = SplitMomentAccumulator(4, 3, shift=0.5, scale=2.0)
    for rows in (slice(0, 3), slice(3, 200), slice(200, 500)):
        cut.update(X[rows], w[rows])
    for found in (once, cut):
        np.testing.assert_allclose(found.gram, whole.gram, rtol=1e-12, atol=1e-9)
        assert (found.count, found.total_weight) == (whole.count, whole.total_weight)
    # rows are dealt by their number: the cut does not matter, nor do rows of weight zero
    for mine, theirs in zip(once.parts, cut.parts, strict=True):
        np.testing.assert_allclose(mine.gram, theirs.gram, rtol=1e-12, atol=1e-9)
    sizes = [part.count for part in once.parts]
    assert len(sizes) == 32
    assert max(sizes) < 4 * np.mean(sizes)


def test_groups_follow_shifts_scales_and_merges():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(3.0, 1.0, (200, 3)), rng.normal(-1.0, 2.0, (100, 3))
    whole = MomentAccumulator(3, 4, shift=1.0, scale=0.5).update(np.concatenate([X, Y]))
    found = SplitMomentAccumulator(3, 4).update(X).merge(SplitMomentAccumulator(3, 4).update(Y))
    moved = found.rebased(1.0, 0.5)
    np.testing.assert_allclose(moved.gram, whole.gram, rtol=1e-9, atol=1e-8)
    total = np.sum([part.gram for part in moved.parts], axis=0)
    np.testing.assert_allclose(total, moved.gram, rtol=1e-9, atol=1e-8)
    with pytest.raises(ValueError, match="n_parts is 32 here and 2"):
        found.merge(SplitMomentAccumulator(3, 4, n_parts=2).update(X))
    with pytest.raises(TypeError, match="SplitMomentAccumulator"):
        found.merge(MomentAccumulator(3, 4).update(X))


def test_an_update_that_fails_leaves_the_groups_as_they_were():
    X = np.random.default_rng(0).normal(size=(100, 3))
    moments = SplitMomentAccumulator(3, 3).update(X)
    before = moments.gram.copy()
    bad = X.copy()
    bad[70, 1] = np.nan
    with pytest.raises(ValueError, match=r"row 70, column 1"):
        moments.update(bad)
    with pytest.raises(ShapeError):
        moments.update(X[:, :2])
    np.testing.assert_array_equal(moments.gram, before)
    assert sum(part.count for part in moments.parts) == moments.count == 100


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_sizes_count_the_monomials(count, degree):
    assert _sizes(count, degree) == len(_monomials(np.arange(count), degree))


def test_a_direction_below_the_noise_is_not_counted():
    rng = np.random.default_rng(0)
    terms = 0.01 * rng.standard_normal((32, 6, 8)) / np.sqrt(32)
    for size, expected in ((1.0, 2), (0.01, 1)):
        mean = terms.sum(axis=0) + np.diag([3.0, size, 0, 0, 0, 0]) @ np.eye(6, 8)
        assert _count(mean, terms, rng)[0] == expected
