import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.stats import expon, norm, poisson, uniform

from tensoralg.core.errors import ConvergenceWarning, RankBoundError, ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture, component_moments
from tensoralg.mixtures.functions import CellFunctions, checked_functions
from tensoralg.mixtures.read_out_sums import ReadOutSums, read_out
from tensoralg.solvers.feasible_least_squares import square_free_products


def order_of(found, means):
    """Which of the known components each found one is."""
    distance = ((means[:, None] - found.means[None]) ** 2).sum(axis=2)
    return linear_sum_assignment(distance)[1]


def error_of(means, truth):
    distance = ((truth[:, None] - means[None]) ** 2).sum(axis=2)
    k = linear_sum_assignment(distance)[1]
    return np.linalg.norm(means[k] - truth) / np.linalg.norm(truth)


def exponential(N=20_000, d=10, r=3, seed=0):
    rng = np.random.default_rng(seed)
    means, weights = rng.uniform(0.3, 3.0, (r, d)), rng.dirichlet([5.0] * r)
    return rng.exponential(means[rng.choice(r, N, p=weights)]), weights, means


def bernoulli_table(weights, shares):
    """All rows of zeros and ones, with their exact probabilities."""
    rows = np.array(list(itertools.product([0.0, 1.0], repeat=shares.shape[1])))
    inside = np.where(rows[None] == 1, shares[:, None], 1 - shares[:, None]).prod(axis=2)
    return rows, weights @ inside


def test_exact_probabilities_give_exact_components():
    weights, shares = np.array([0.35, 0.65]), np.array(
        [[0.1, 0.9, 0.4, 0.2, 0.7], [0.8, 0.3, 0.5, 0.6, 0.25]]
    )  # fmt: skip
    rows, probabilities = bernoulli_table(weights, shares)
    found = component_moments(
        rows, 2, {"cube": 3, "exp": np.exp}, sample_weight=1e4 * probabilities, random_state=0
    )
    k = order_of(found, shares)
    np.testing.assert_allclose(found.weights[k], weights, atol=1e-7)
    np.testing.assert_allclose(found.means[k], shares, atol=1e-7)
    np.testing.assert_allclose(found.variances[k], shares * (1 - shares), atol=1e-7)
    np.testing.assert_allclose(found.moments["cube"][k], shares, atol=1e-7)
    np.testing.assert_allclose(found.moments["exp"][k], 1 + (np.e - 1) * shares, atol=1e-7)
    assert found.status == "moments only"


def test_means_of_exponential_components_beat_gaussian_likelihood():
    ours, theirs = [], []
    for seed in (100, 101, 102):
        X, _, means = exponential(seed=seed)
        ours.append(error_of(component_moments(X, 3, blocks=0, random_state=0).means, means))
        em = DiagonalGaussianMixture(3, random_state=0).fit(X)
        theirs.append(error_of(em.means_, means))
    assert max(ours) < 0.04
    assert np.median(ours) < 0.5 * np.median(theirs)


def mixed(N=40_000, seed=0):
    """Exponential, Bernoulli, uniform, Poisson and Gaussian columns, two of each."""
    rng = np.random.default_rng(seed)
    weights = np.array([0.5, 0.3, 0.2])
    scale, share = rng.uniform(0.5, 3.0, (3, 2)), rng.uniform(0.1, 0.9, (3, 2))
    width, rate = rng.uniform(1.0, 4.0, (3, 2)), rng.uniform(0.5, 6.0, (3, 2))
    center = 2.0 * rng.standard_normal((3, 2))
    kinds = [expon(scale=scale), None, uniform(scale=width), poisson(rate), norm(center)]
    s = rng.choice(3, N, p=weights)
    X = np.hstack(
        [
            rng.exponential(scale[s]),
            (rng.random((N, 2)) < share[s]).astype(float),
            rng.uniform(0, width[s]),
            rng.poisson(rate[s]),
            rng.normal(center[s]),
        ]
    )

    def truth(of, of_share):
        return np.hstack([of_share if kind is None else of(kind) for kind in kinds])

    means = truth(lambda k: k.mean(), share)
    variances = truth(lambda k: k.var(), share * (1 - share))
    above = truth(lambda k: k.sf(0.75), share)
    return X, weights, means, variances, above


def test_components_of_mixed_kinds_are_read_out_within_their_standard_errors():
    X, weights, means, variances, above = mixed()
    found = component_moments(X, 3, {"above": lambda x: x > 0.75}, random_state=0)
    assert found.status == "moments only"
    k = order_of(found, means)
    pairs = {
        "weights": (found.weights, weights),
        "means": (found.means, means),
        "variances": (found.variances, variances),
        "above": (found.moments["above"], above),
    }
    for name, (value, truth) in pairs.items():
        z = (value[k] - truth) / found.standard_errors[name][k]
        assert np.abs(z).max() < 5, name
        if z.size > 10:
            assert 0.6 < np.sqrt(np.mean(z**2)) < 1.5, name


def test_the_number_of_components_is_detected():
    found = component_moments(mixed()[0], "auto", blocks=0, random_state=0)
    assert len(found.weights) == 3
    assert found.diagnostics.rank_test["rank"] == 3


@settings(max_examples=15, deadline=None)
@given(
    d=st.integers(2, 6), r=st.integers(1, 3), degree=st.integers(1, 2), seed=st.integers(0, 2**30)
)
def test_leaving_out_each_column_by_a_schur_complement_is_leaving_it_out(d, r, degree, seed):
    rng = np.random.default_rng(seed)
    r = min(r, d - 1)
    X = rng.standard_normal((400, d)) + rng.standard_normal((r, d))[rng.integers(0, r, 400)]
    means = rng.standard_normal((r, d))
    functions = CellFunctions(checked_functions({"x": 1, "square": 2}))
    sums = ReadOutSums(d, 3, degree, functions, shift=np.zeros(d), scale=np.ones(d)).update(X)
    found, noise = read_out(sums, means)
    for j in range(d):
        others = np.delete(np.arange(d), j)
        features = np.hstack(square_free_products(X[:, others], degree))
        expected = np.hstack(square_free_products(means[:, others], degree)).T
        inverse = np.linalg.inv(features.T @ features / len(X))
        squares = np.linalg.inv(expected.T @ inverse @ expected)
        functional = features @ (inverse @ expected @ squares)
        mass = functional.mean(axis=0)
        if np.abs(mass).min() < 1e-3 or np.linalg.cond(squares) > 1e6:
            continue
        for k, g in enumerate((X[:, j], X[:, j] ** 2)):
            np.testing.assert_allclose(found[k, :, j], functional.T @ g / len(X) / mass, rtol=1e-5)
        np.testing.assert_allclose(noise[:, j], np.diag(squares) / mass**2, rtol=1e-5)


def test_one_component_is_the_average():
    X, _, _ = exponential(2000)
    found = component_moments(X, 1, {"log": np.log})
    np.testing.assert_allclose(found.means[0], X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.variances[0], X.var(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.moments["log"][0], np.log(X).mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(
        found.standard_errors["means"][0], X.std(axis=0) / np.sqrt(2000), rtol=0.6
    )
    assert found.status == "closed form"


def same(one, two, rtol=1e-6):
    for name in ("weights", "means", "variances"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=rtol, atol=1e-8)
    for name in one.moments:
        np.testing.assert_allclose(one.moments[name], two.moments[name], rtol=rtol, atol=1e-8)


def test_weights_count_rows():
    X, _, _ = exponential(6000)
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    wild = np.where(weights[:, None] == 0, np.nan, X)  # of no weight: never looked at
    options = {"functions": [3], "blocks": 0, "random_state": 0}
    weighted = component_moments(wild, 3, sample_weight=weights, **options)
    same(weighted, component_moments(np.repeat(X, weights, axis=0), 3, **options))


def test_chunks_and_dask_arrays_give_the_same():
    dask_array = pytest.importorskip("dask.array")
    X, _, _ = exponential(6000)
    options = {"functions": {"above": above_one}, "random_state": 0}
    whole = component_moments(X, 3, **options)
    lazy = dask_array.from_array(X, chunks=(1500, 10))
    for parts in (np.array_split(X, 4), lazy):
        found = component_moments(parts, 3, **options)
        same(whole, found)
        ratio = found.standard_errors["means"] / whole.standard_errors["means"]
        assert 0.5 < np.median(ratio) < 2


def above_one(x):
    return x > 1


def test_columns_of_any_origin_and_unit_and_a_constant_one():
    X, _, _ = exponential(8000)
    scale, shift = 10.0 ** np.arange(-4, 6), 1e6 * np.arange(10.0)
    plain = component_moments(X, 3, blocks=0, random_state=0)
    with pytest.warns(UserWarning, match=r"columns \[10\] are constant"):
        moved = component_moments(
            np.column_stack([X * scale + shift * scale, np.full(len(X), 7.0)]), 3,
            [2], blocks=0, random_state=0,
        )  # fmt: skip
    np.testing.assert_allclose(moved.means[:, :10] / scale - shift, plain.means, rtol=1e-4)
    np.testing.assert_allclose(moved.variances[:, :10] / scale**2, plain.variances, rtol=1e-3)
    np.testing.assert_allclose(moved.means[:, 10], 7.0)
    np.testing.assert_allclose(moved.moments["x^2"][:, 10], 49.0)


def test_missing_cells_are_averaged_over():
    X, weights, means, variances, above = mixed()
    gaps = np.where(np.random.default_rng(5).random(X.shape) < 0.15, np.nan, X)
    options = {"functions": {"above": lambda x: x > 0.75}, "missing": True, "random_state": 0}
    found = component_moments(gaps, 3, **options)
    assert found.status == "moments only"
    k = order_of(found, means)
    known = {"weights": weights, "means": means, "variances": variances}
    for name, truth in known.items():
        z = (getattr(found, name)[k] - truth) / found.standard_errors[name][k]
        assert np.abs(z).max() < 5, name
    z = (found.moments["above"][k] - above) / found.standard_errors["above"][k]
    assert 0.6 < np.sqrt(np.mean(z**2)) < 1.5
    same(found, component_moments(np.array_split(gaps, 5), 3, **options), rtol=1e-5)


def test_no_missing_cells_change_nothing():
    X, _, _ = exponential(6000)
    options = {"functions": [3], "blocks": 0, "random_state": 0}
    same(component_moments(X, 3, **options), component_moments(X, 3, missing=True, **options))


def test_dependence_inside_components_is_a_misfit():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((20_000, 3)), 2, axis=1) + rng.standard_normal((20_000, 6))
    with pytest.warns(ConvergenceWarning, match="standard errors"):
        found = component_moments(X, 2, blocks=0, random_state=0)
    assert found.status == "misfit"


def test_components_that_hardly_differ_are_undetermined():
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(300, 4))
    with pytest.warns(ConvergenceWarning, match="leave 2 components open"):
        found = component_moments(X, 2, blocks=0, random_state=0)
    assert found.status == "undetermined"


def test_heavy_tails_of_the_components_are_no_misfit():
    rng = np.random.default_rng(0)
    means = 3.0 * rng.standard_normal((3, 8))
    s = rng.choice(3, 20_000, p=[0.5, 0.3, 0.2])
    X = means[s] + rng.laplace(size=(20_000, 8)) ** 3 / 10
    assert component_moments(X, 3, blocks=0, random_state=0).status == "moments only"


def test_large_numbers_do_not_overflow():
    X, _, _ = exponential(3000)
    plain = component_moments(X, 3, [2], random_state=0)
    found = component_moments(1e150 * X, 3, [2], random_state=0)
    np.testing.assert_allclose(found.moments["x^2"] / 1e300, plain.moments["x^2"], rtol=1e-6)
    errors, large = plain.standard_errors["x^2"], found.standard_errors["x^2"]
    np.testing.assert_allclose(large / 1e300, errors, rtol=1e-4)


def test_standard_errors_are_left_out_where_not_asked_for():
    found = component_moments(exponential(3000)[0], 3, [4], blocks=0, random_state=0)
    assert found.standard_errors.keys() == {"weights", "means", "variances", "x^4"}
    assert all(np.isnan(value).all() for value in found.standard_errors.values())


X3 = exponential(500, d=6)[0]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"functions": {"half": lambda x: x[: len(x) // 2]}}, ShapeError, "of the shape"),
        ({"functions": {"sum": lambda x: x.sum(axis=1)}}, ShapeError, "of the shape"),
        ({"functions": {"log": lambda x: np.log(x - 1)}}, ValueError, r"\['log'\] gives nan for"),
        ({"functions": {"text": lambda x: x.astype(str)}}, ShapeError, "real numbers"),
        ({"functions": {"rows": lambda x: x - x.mean(axis=0)}}, ValueError, "with other rows"),
        ({"functions": {"share": lambda x: x / x.sum(axis=1, keepdims=True)}}, ValueError,
         "with other columns"),
        ({"functions": {"means": np.log}}, ValueError, "'means' is taken"),
        ({"functions": [2, 2]}, ValueError, r"'x\^2' is taken"),
        ({"functions": [0.5]}, ValueError, "got 0.5 without a name"),
        ({"functions": [np.log]}, ValueError, "without a name"),
        ({"functions": {"power": -1}}, ValueError, r"functions\['power'\]"),
        ({"functions": 3}, ValueError, "must be a mapping"),
        ({"blocks": 1}, ValueError, "blocks must be 0 or"),
        ({"n_components": 0}, ValueError, "n_components"),
        ({"order": 2}, ValueError, "order"),
        ({"n_components": 40}, RankBoundError, "do not determine n_components=40"),
        ({"X": X3[:, :1]}, RankBoundError, "of 1 columns do not determine n_components=2"),
        ({"X": np.column_stack([X3, np.full(500, np.nan)]), "missing": True}, ValueError,
         "column 6 of X holds nothing"),
        ({"X": np.where(X3 > 3, np.nan, X3)}, ValueError, "NaN at row"),
        ({"X": iter([X3])}, ValueError, "read only once"),
        ({"X": np.repeat(X3[:1], 20, axis=0) + np.eye(20, 6), "n_components": 8}, ValueError,
         "7 distinct rows"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(arguments, kind, message):
    given = {"X": X3, "n_components": 2, "random_state": 0, "blocks": 0} | arguments
    with pytest.raises(kind, match=message):
        component_moments(**given)
