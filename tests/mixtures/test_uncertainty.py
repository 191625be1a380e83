"""Standard errors and the test of leftover moments."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator
from tensoralg.mixtures.delete_block import accumulate_blocks, merged, without_each
from tensoralg.mixtures.estimating_equations import LikelihoodEquations, MomentEquations
from tensoralg.mixtures.fitting import Mixture
from tensoralg.mixtures.uncertainty import check_size, leftover_moments

NAMES = ("weights", "means", "covariances")


def mixture(r=3, d=6, seed=7000, separation=1.6):
    rng = np.random.default_rng(seed)
    return DiagonalGaussianMixture.from_parameters(
        np.linspace(1, 2, r) / np.linspace(1, 2, r).sum(),
        separation * rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


def sample(n=8000, seed=7001, **shape):
    return mixture(**shape).sample(n, random_state=seed)[0]


def small():
    """A mixture in standardised units, its rows, and one parameter vector."""
    truth = mixture(2, 4)
    X = truth.sample(400, random_state=7002)[0]
    vector = np.concatenate([truth.weights_, truth.means_.ravel(), truth.covariances_.ravel()])
    return X, vector


def from_vector(vector, r=2, d=4):
    means, variances = vector[r : r + r * d], vector[r + r * d :]
    return Mixture(vector[:r], means.reshape(r, d), variances.reshape(r, d))


@pytest.mark.parametrize("missing", [False, True])
def test_scores_and_information_are_the_derivatives_of_the_likelihood(missing):
    X, vector = small()
    if missing:
        X[np.random.default_rng(0).random(X.shape) < 0.3] = np.nan
        X = X[~np.isnan(X).all(axis=1)]
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    fixed = np.zeros((2, 4), dtype=bool)
    fixed[1, 2] = True

    def equations(v):
        return LikelihoodEquations(from_vector(v), fixed, missing=missing)

    def likelihood(v):
        part = from_vector(v)
        model = DiagonalGaussianMixture.from_parameters(part.weights, part.means, part.variances)
        model.missing = missing
        return w @ model.score_samples(X)

    at = equations(vector)
    score = w @ at.scores(X, w)
    step, directions = 1e-5, at.expansion.T
    slopes = [
        (likelihood(vector + step * u) - likelihood(vector - step * u)) / (2 * step)
        for u in directions
    ]
    assert_allclose(score, slopes, rtol=1e-5, atol=1e-4)
    curvature = [
        w @ (equations(vector - step * u).scores(X, w) - equations(vector + step * u).scores(X, w))
        for u in directions
    ]
    assert_allclose(at.bread(), np.transpose(curvature) / (2 * step), rtol=1e-5, atol=1e-3)
    # the variance that was fixed does not move
    assert not at.expansion[2 + 8 + 6].any()


@pytest.mark.parametrize("order", [3, 4])
def test_moment_equations_answer_a_change_of_the_mixture_by_that_change(order):
    _, vector = small()
    change = np.random.default_rng(0).standard_normal(vector.size)
    change[:2] -= change[:2].mean()

    def at(v):
        return MomentEquations(from_vector(v), np.zeros((2, 4), bool), order=order, noise=0.0)

    equations, step = at(vector), 1e-6
    # expected scores, at the estimate, of rows of a mixture nearby
    expected = []
    for v in (vector + step * change, vector - step * change):
        part = from_vector(v)
        products = equations._products(part.means, part.means**2 + part.variances)
        expected.append(part.weights @ products)
    equations.scores(np.zeros((1, 4)), np.ones(1))
    answer = np.linalg.solve(equations.bread(), (expected[0] - expected[1]) / (2 * step))
    assert_allclose(equations.expansion @ answer, change, rtol=1e-5, atol=1e-6)


def test_moment_scores_are_jacobian_times_monomials():
    X, vector = small()
    equations = MomentEquations(from_vector(vector), np.zeros((2, 4), bool), order=3, noise=0.0)
    w, mu = vector[:2], vector[2:10].reshape(2, 4)
    index = [(), (0,), (1,), (2,), (3,)]
    index += [(i, j) for i in range(4) for j in range(i + 1, 4)]
    index += [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]

    def monomials(z):
        return np.array([np.prod(z[list(i)]) for i in index])

    factor = np.array([9.0] + [1.0] * (len(index) - 1))
    z, step = X[0], 1e-6
    raw = equations._products(z[None], z[None] ** 2)[0]
    assert_allclose(raw[:2], [factor * monomials(m) @ monomials(z) for m in mu])
    up, down = mu[1].copy(), mu[1].copy()
    up[2] += step
    down[2] -= step
    slope = w[1] * (monomials(up) - monomials(down)) / (2 * step)
    assert_allclose(raw[2 + 4 + 2], slope @ monomials(z), rtol=1e-6)


def test_one_component_has_the_textbook_errors():
    X = np.random.default_rng(7000).normal(3.0, [1.0, 20.0], (5000, 2))
    found = DiagonalGaussianMixture().fit(X).standard_errors(X)
    assert_allclose(found.means[0], X.std(axis=0) / np.sqrt(len(X)), rtol=1e-10)
    fourth = ((X - X.mean(axis=0)) ** 2).var(axis=0)
    assert_allclose(found.covariances[0], np.sqrt(fourth / len(X)), rtol=1e-10)
    assert found.weights.tolist() == [0.0]
    again = DiagonalGaussianMixture().fit(X).standard_errors(X, method="jackknife", blocks=100)
    assert_allclose(again.means, found.means, rtol=0.3)
    assert_allclose(again.covariances, found.covariances, rtol=0.3)


@pytest.mark.parametrize(("order", "r", "d"), [(3, 3, 8), (4, 3, 6)])
def test_jackknife_and_sandwich_agree_for_moments(order, r, d):
    X = sample(20_000, r=r, d=d)
    model = DiagonalGaussianMixture(r, order=order, polish=None, random_state=0).fit(X)
    formula = model.standard_errors(X)
    repeated = model.standard_errors(X, method="jackknife", blocks=100)
    assert (formula.method, repeated.method) == ("sandwich", "jackknife")
    ratio = np.concatenate(
        [(getattr(repeated, name) / getattr(formula, name)).ravel() for name in NAMES]
    )
    # an error estimated from a hundred blocks is good to 7%
    assert 0.7 < ratio.min() <= ratio.max() < 1.4
    assert 0.93 < np.median(ratio) < 1.07


@pytest.mark.slow
def test_errors_are_those_of_repeated_samples():
    truth, found, errors = mixture(), [], []
    for seed in range(7100, 7150):
        X = truth.sample(2000, random_state=seed)[0]
        model = DiagonalGaussianMixture(3, random_state=0).fit(X)
        order = [np.linalg.norm(model.means_ - mean, axis=1).argmin() for mean in truth.means_]
        errors.append([getattr(model.standard_errors(X), name)[order] for name in NAMES])
        found.append([getattr(model, f"{name}_")[order] for name in NAMES])
    spread = np.concatenate([np.std([f[k] for f in found], axis=0).ravel() for k in range(3)])
    claimed = np.concatenate([np.mean([e[k] for e in errors], axis=0).ravel() for k in range(3)])
    # a spread seen in fifty samples is good to 10%
    assert 0.93 < np.median(claimed / spread) < 1.07
    assert np.all(np.abs(np.log(claimed / spread)) < 0.4)


def test_sandwich_holds_where_the_components_are_no_gaussians():
    # one component: the mean and variance of uniform cells, whose fourth moment is no Gaussian's
    X = np.random.default_rng(7000).uniform(-1, 1, (4000, 3))
    found = DiagonalGaussianMixture().fit(X).standard_errors(X)
    assert_allclose(found.covariances, np.sqrt((1 / 5 - 1 / 9) / 4000), rtol=0.05)


def test_accumulators_of_blocks_will_do():
    X = sample(20_000)
    blocks = [MomentAccumulator(6, 3).update(part) for part in np.array_split(X, 40)]
    model = DiagonalGaussianMixture(3, random_state=0).fit_moments(merged(blocks))
    found = model.standard_errors(blocks)
    by_rows = model.standard_errors(X, method="jackknife", blocks=40)
    for name in NAMES:
        assert_allclose(getattr(found, name), getattr(by_rows, name), rtol=1e-5)
    with pytest.raises(ValueError, match=r"at least 10 accumulators.*got 3"):
        model.standard_errors(blocks[:3])
    with pytest.raises(ValueError, match="accumulator 0 has dimension 5"):
        model.standard_errors([MomentAccumulator(5, 3).update(X[:9, :5]) for _ in range(10)])
    with pytest.raises(ValueError, match="needs rows"):
        model.standard_errors(blocks, method="sandwich")


def test_leaving_out_is_merging_the_others():
    X = sample(100)
    parts = accumulate_blocks([(X, None)], 5, np.zeros(6), np.ones(6), 3, missing=False)
    assert [part.count for part in parts] == [20] * 5
    for k, rest in enumerate(without_each(parts)):
        others = np.delete(X, np.arange(20 * k, 20 * k + 20), axis=0)
        expected = MomentAccumulator(6, 3, shift=0).update(others)
        assert rest.count == 80
        assert_allclose(rest.gram, expected.gram, rtol=1e-12)


def test_weights_count_as_rows_and_chunks_as_one_array():
    X = sample(3000)
    w = np.random.default_rng(0).integers(0, 4, len(X))
    model = DiagonalGaussianMixture(3, random_state=0).fit(X, sample_weight=w)
    weighted, repeated = model.standard_errors(X, w), model.standard_errors(np.repeat(X, w, axis=0))
    assert weighted.rows == repeated.rows == w.sum()
    chunked = model.standard_errors(np.array_split(np.repeat(X, w, axis=0), 7))
    for name in NAMES:
        assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-9)
        assert_allclose(getattr(chunked, name), getattr(repeated, name), rtol=1e-9)
    tests = [
        model.moment_test(X, w),
        model.moment_test(np.repeat(X, w, axis=0)),
        model.moment_test(np.array_split(np.repeat(X, w, axis=0), 7)),
    ]
    assert_allclose([t.statistic for t in tests], tests[0].statistic, rtol=1e-8)


def test_dask_arrays_give_the_same_errors():
    array = pytest.importorskip("dask.array")
    X = sample(3000)
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    rows = array.from_array(X, chunks=(700, 6))
    assert_allclose(model.standard_errors(rows).joint, model.standard_errors(X).joint, atol=1e-12)
    assert_allclose(model.moment_test(rows).statistic, model.moment_test(X).statistic, rtol=1e-8)
    with pytest.raises(ShapeError, match="5 columns; the mixture has 6"):
        model.standard_errors(rows[:, :5])


def test_errors_follow_the_units_of_the_columns():
    X = sample(5000)
    unit, origin = 10.0 ** np.arange(-3, 3), 1e4
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    moved = DiagonalGaussianMixture.from_parameters(
        model.weights_, origin + unit * model.means_, unit**2 * model.covariances_
    )
    plain, scaled = model.standard_errors(X), moved.standard_errors(origin + unit * X)
    assert_allclose(scaled.weights, plain.weights, rtol=1e-5)
    assert_allclose(scaled.means, unit * plain.means, rtol=1e-5)
    assert_allclose(scaled.covariances, unit**2 * plain.covariances, rtol=1e-5)
    assert_allclose(np.sqrt(np.diag(scaled.joint))[:3], scaled.weights)
    # the weights sum to one, whatever the sample
    assert_allclose(plain.joint[:3, :3].sum(axis=0), 0.0, atol=1e-12)


def test_constant_columns_and_floored_variances_have_no_errors():
    X = np.column_stack([sample(3000), np.full(3000, 3.0)])
    with pytest.warns(UserWarning, match="constant"):
        model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    found = model.standard_errors(X)
    assert np.isnan(found.means[:, 6]).all()
    assert np.isnan(found.covariances[:, 6]).all()
    assert np.isfinite(found.means[:, :6]).all()
    without = DiagonalGaussianMixture.from_parameters(
        model.weights_, model.means_[:, :6], model.covariances_[:, :6]
    ).standard_errors(X[:, :6])
    assert_allclose(found.means[:, :6], without.means, rtol=1e-6)
    variances = model.covariances_[:, :6].copy()
    variances[0, 0] = 1e-9
    floored = DiagonalGaussianMixture.from_parameters(
        model.weights_, model.means_[:, :6], variances
    )
    rows = floored.sample(3000, random_state=0)[0]
    found = floored.standard_errors(rows)
    assert np.isnan(found.covariances[0, 0])
    assert np.isfinite(found.covariances).sum() == 17
    assert np.isfinite(found.means).all()


def test_missing_cells():
    X = sample(20_000)
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    polished = DiagonalGaussianMixture(3, missing=True, random_state=0).fit(X)
    complete = mixture().standard_errors(sample(20_000))
    order = [np.linalg.norm(polished.means_ - m, axis=1).argmin() for m in mixture().means_]
    loss = polished.standard_errors(X).means[order] / complete.means
    assert 1.05 < np.median(loss) < 1.35  # sqrt(1 / 0.8) = 1.12 and what the labels lose
    assert polished.moment_test(X).p_value > 1e-3
    raw = DiagonalGaussianMixture(3, missing=True, polish=None, random_state=0).fit(X)
    found = raw.standard_errors(X)
    assert found.method == "jackknife"
    distance = np.abs(raw.means_[:, None] - mixture().means_[None])
    nearest = distance.sum(axis=2).argmin(axis=1)
    assert np.all(distance[np.arange(3), nearest] < 5 * found.means)
    for call in (raw.moment_test, lambda rows: raw.standard_errors(rows, method="sandwich")):
        with pytest.raises(ValueError, match="missing cells"):
            call(X)


def test_results_are_kept_in_the_diagnostics_and_only_there():
    X = sample(3000)
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    assert model.diagnostics_.standard_errors == {}
    found, test = model.standard_errors(X), model.moment_test(X)
    assert model.diagnostics_.standard_errors["means"] is found.means
    assert model.diagnostics_.moment_test["p_value"] == test.p_value
    assert model.diagnostics_.as_dict()["moment_test"]["moments"] == 35


def test_bad_arguments_are_named():
    X = sample(3000)
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="method must be one of"):
        model.standard_errors(X, method="bootstrap")
    with pytest.raises(ValueError, match="maximised the likelihood"):
        model.standard_errors(X, method="jackknife")
    with pytest.raises(ValueError, match="5 features"):
        model.standard_errors(X[:, :5])
    with pytest.raises(ShapeError, match="5 columns; the mixture has 6"):
        model.standard_errors([X[:, :5]])
    with pytest.raises(ValueError, match="NaN at row 2, column 1"):
        model.standard_errors(np.where(np.arange(18).reshape(3, 6) == 13, np.nan, 1.0))
    with pytest.raises(ValueError, match="sample_weight"):
        model.standard_errors([X], np.ones(2999))
    raw = DiagonalGaussianMixture(3, polish=None, random_state=0).fit(X)
    for blocks in (9, 2.5, True):
        with pytest.raises(ValueError, match="blocks must be an integer >= 10"):
            raw.standard_errors(X, method="jackknife", blocks=blocks)
    with pytest.raises(ValueError, match="at least 10 rows; got 4"):
        raw.standard_errors(X[:4], method="jackknife")
    with pytest.raises(ProblemTooLargeError, match="40010 x 40010"):
        check_size(10, 2000)


def test_too_few_rows_have_a_singular_information_or_honest_errors():
    X = sample(3000)
    model = DiagonalGaussianMixture(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="no rows"):
        model.standard_errors(iter([X[:0]]))
    few = np.repeat(X[:1], 3, axis=0)
    raw = DiagonalGaussianMixture.from_parameters([0.5, 0.5], np.zeros((2, 2)), np.ones((2, 2)))
    raw.diagnostics_.status, raw.diagnostics_.start = "moments only", "algebraic"
    with pytest.raises(ValueError, match="do not determine the parameters"):
        raw.standard_errors(few[:, :2])


@pytest.mark.slow
@pytest.mark.parametrize("polish", ["em", None])
def test_leftover_moments_have_the_right_size(polish):
    truth = mixture()
    p_values = []
    for seed in range(7200, 7240):
        X = truth.sample(2500, random_state=seed)[0]
        model = DiagonalGaussianMixture(3, polish=polish, random_state=0).fit(X)
        p_values.append(model.moment_test(X).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    assert np.mean(np.array(p_values) < 0.05) <= 0.15


@pytest.mark.parametrize("polish", ["em", None])
def test_leftover_moments_count_parameters(polish):
    X = sample(20_000)
    found = DiagonalGaussianMixture(3, polish=polish, random_state=0).fit(X).moment_test(X)
    # without a polish the moments have settled the means already: 15 + 20 + 6 + 1 - 3 * 7
    assert (found.moments, found.degrees_of_freedom) == (35, 35 if polish else 21)


@pytest.mark.filterwarnings("ignore::tensoralg.core.errors.ConvergenceWarning")
@pytest.mark.parametrize("polish", ["em", None])
def test_correlated_coordinates_are_noticed(polish):
    truth = mixture()
    X, labels = truth.sample(20_000, random_state=7300)
    noise = np.random.default_rng(7301).standard_normal((20_000, 1))
    deviation = np.sqrt(truth.covariances_[labels])
    X[:, :2] += 0.6 * deviation[:, :2] * noise  # correlation 0.26 between two columns
    model = DiagonalGaussianMixture(3, polish=polish, random_state=0).fit(X)
    assert model.moment_test(X).p_value < 1e-4


def test_a_missing_component_is_noticed():
    X = sample(20_000)
    model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    assert model.moment_test(X).p_value < 1e-6


def test_nothing_left_over_has_no_p_value():
    X = sample(3000, r=2, d=3)
    one = DiagonalGaussianMixture().fit(X[:, :1])
    found = one.moment_test(X[:, :1])
    assert (found.degrees_of_freedom, found.moments) == (0, 0)
    assert np.isnan(found.p_value)
    raw = DiagonalGaussianMixture(2, polish=None, random_state=0).fit(X)
    # 3 + 3 + 1 moments and the mass for 2 * 4 weights and means
    assert raw.moment_test(X).degrees_of_freedom == 0


def test_moments_are_chosen_by_the_number_of_rows():
    counts = [[len(i) for i in leftover_moments(30, 3, n)] for n in (100, 5000, 10**6)]
    assert counts == [[2], [100], [435]]
    assert [len(i) for i in leftover_moments(60, 3, 10**6)] == [500]
    assert [len(i) for i in leftover_moments(5, 4, 10**6)] == [10, 10, 5]
    assert leftover_moments(1, 3, 100) == []
