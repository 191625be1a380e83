"""Expectation-maximization: the fused pass against numpy and scikit-learn, and its guarantees."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from tensoralg.errors import ShapeError
from tensoralg.solvers.expectation_maximization import (
    expectation_maximization,
    initial_parameters,
    kmeans_plus_plus,
    log_density,
    responsibilities,
)
from tensoralg.solvers.expectation_parameters import (
    bounded_weights,
    check_parameters,
    coordinates,
    from_coordinates,
)
from tensoralg.solvers.expectation_steps import Data, check_standardisation, collect
from tensoralg.solvers.vector_functions import exponential, logarithm


def mixture(rng, d, r, separation=1.0):
    means = separation * rng.standard_normal((r, d))
    return rng.dirichlet(np.full(r, 5.0)), means, rng.uniform(0.3, 1.5, (r, d))


def draw(rng, n, weights, means, covariances):
    label = rng.choice(len(weights), n, p=weights)
    noise = rng.standard_normal((n, means.shape[1]))
    return means[label] + np.sqrt(covariances[label]) * noise


def problem(seed=0, n=500, d=5, r=3, separation=1.0):
    rng = np.random.default_rng(seed)
    truth = mixture(rng, d, r, separation)
    X = draw(rng, n, *truth)
    start = (np.full(r, 1 / r), X[rng.choice(n, r, replace=False)], np.ones((r, d)))
    return X, truth, start


def source(X, sample_weight=None, cuts=()):
    pieces = np.split(X, cuts)
    weights = [None] * len(pieces) if sample_weight is None else np.split(sample_weight, cuts)
    return lambda: zip(pieces, weights, strict=True)


def statistics(X, parameters, sample_weight=None, missing=False):
    standardisation = check_standardisation(None, None, X.shape[1])
    return collect(
        Data(source(X, sample_weight), *standardisation, missing), check_parameters(*parameters)
    )


def assert_same_fit(a, b, rtol=1e-9):
    for name in ("weights", "means", "covariances", "log_likelihood", "history"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol)
    assert a.status == b.status


def reference_statistics(X, sample_weight, weights, means, covariances):
    """The sums of one pass, in plain numpy; NaN marks missing cells."""
    observed = ~np.isnan(X)
    z = (np.where(observed, X, 0.0)[:, None, :] - means) / np.sqrt(covariances)
    cells = -0.5 * (z * z + np.log(covariances) + np.log(2 * np.pi))
    joint = np.log(weights) + np.sum(np.where(observed[:, None, :], cells, 0.0), axis=2)
    top = joint.max(axis=1, keepdims=True)
    density = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
    r = np.exp(joint - density[:, None]) * sample_weight[:, None]
    seen = r.T @ observed
    masked = r[:, :, None] * observed[:, None, :]
    return (
        r.sum(axis=0),
        seen,
        np.sum(masked * z, axis=0),
        np.sum(masked * z * z, axis=0),
        float(sample_weight @ density),
    )


# ---------------------------------------------------------------- vector functions


def test_exponential_and_logarithm_to_one_unit_in_the_last_place():
    x = np.concatenate([np.linspace(-708, 709, 4001), np.linspace(-1, 1, 4001)])
    expected = np.array([math.exp(v) for v in x])
    found = np.array([exponential(v) for v in x])
    assert np.max(np.abs(found - expected) / np.spacing(expected)) <= 1.0
    y = np.concatenate([np.linspace(0.5, 40, 4001), np.geomspace(1e-300, 1e300, 4001)])
    expected = np.array([math.log(v) for v in y])
    found = np.array([logarithm(v) for v in y])
    assert np.max(np.abs(found - expected) / np.maximum(np.spacing(np.abs(expected)), 5e-324)) <= 1


def test_exponential_at_its_ends():
    assert exponential(0.0) == 1.0
    assert exponential(-708.5) == exponential(-1e6) == exponential(-np.inf) == 0.0
    assert exponential(-708.0) > 0.0
    assert logarithm(1.0) == 0.0


# ---------------------------------------------------------------- one pass


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("offset", [0.0, 100.0])  # both ways to sum, about the origin and the mean
@pytest.mark.parametrize(("n", "d", "r"), [(1, 1, 1), (127, 3, 2), (128, 4, 5), (700, 9, 4)])
def test_pass_equals_numpy_reference(n, d, r, offset, missing):
    rng = np.random.default_rng(n)
    truth = mixture(rng, d, r)
    truth[1][:] += offset
    X = draw(rng, n, *truth)
    if missing:
        X[rng.random(X.shape) < 0.3] = np.nan
    sample_weight = rng.uniform(0, 2, n)
    found = statistics(X, truth, sample_weight, missing)
    mass, seen, first, second, likelihood = reference_statistics(X, sample_weight, *truth)
    np.testing.assert_allclose(found.mass, mass, rtol=1e-11)
    np.testing.assert_allclose(found.seen, seen if missing else mass[:, None], rtol=1e-11)
    np.testing.assert_allclose(found.first, first, rtol=1e-10, atol=2e-10)
    np.testing.assert_allclose(found.second, second, rtol=1e-10)
    assert found.log_likelihood * found.total_weight == pytest.approx(likelihood, rel=1e-12)


def test_pass_when_densities_differ_by_more_than_exponentials_can():
    rng = np.random.default_rng(0)
    d = 200
    truth = (np.array([0.5, 0.5]), np.zeros((2, d)), np.array([[1e-8], [1.0]]) * np.ones((2, d)))
    X = draw(rng, 300, *truth)
    found = statistics(X, truth)
    mass, _, first, second, likelihood = reference_statistics(X, np.ones(300), *truth)
    np.testing.assert_allclose(found.mass, mass, rtol=1e-12)
    np.testing.assert_allclose(found.first, first, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.second, second, rtol=1e-10)
    assert found.log_likelihood * 300 == pytest.approx(likelihood, rel=1e-12)


def test_one_iteration_equals_scikit_learn():
    X, _, start = problem(n=2000, d=7, r=4)
    peer = GaussianMixture(
        4,
        covariance_type="diag",
        weights_init=start[0],
        means_init=start[1],
        precisions_init=1 / start[2],
        reg_covar=0.0,
        max_iter=1,
    )
    with pytest.warns(UserWarning, match="converge"):
        peer.fit(X)
    ours = expectation_maximization(source(X), *start, max_iter=1, floor=1e-12)
    np.testing.assert_allclose(ours.weights, peer.weights_, rtol=1e-10)
    np.testing.assert_allclose(ours.means, peer.means_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.covariances, peer.covariances_, rtol=1e-10)
    assert ours.log_likelihood == pytest.approx(peer.lower_bound_, abs=1e-10)


def test_densities_equal_scikit_learn():
    X, truth, _ = problem(n=300, d=6, r=3)
    peer = GaussianMixture(3, covariance_type="diag")
    peer.weights_, peer.means_, peer.covariances_ = truth
    peer.precisions_cholesky_ = 1 / np.sqrt(truth[2])
    np.testing.assert_allclose(log_density(X, *truth), peer.score_samples(X), rtol=1e-11)
    np.testing.assert_allclose(responsibilities(X, *truth), peer.predict_proba(X), atol=1e-12)


# ---------------------------------------------------------------- monotone, convergent


@given(
    seed=st.integers(0, 10_000),
    d=st.integers(1, 6),
    r=st.integers(1, 5),
    missing=st.booleans(),
    minimum_weight=st.sampled_from([0.0, 0.1]),
    acceleration=st.sampled_from(["anderson", None]),
)
def test_likelihood_never_decreases(seed, d, r, missing, minimum_weight, acceleration):
    X, _, start = problem(seed, n=150, d=d, r=r, separation=0.7)
    if missing:
        X[np.random.default_rng(seed).random(X.shape) < 0.3] = np.nan
        start = (start[0], np.nan_to_num(start[1]), start[2])
    result = expectation_maximization(
        source(X),
        *start,
        max_iter=30,
        tol=0.0,
        missing=missing,
        minimum_weight=minimum_weight,
        acceleration=acceleration,
        floor=0.05,
    )
    if not result.restarted:
        assert np.all(np.diff(result.history) >= -1e-12 * np.abs(result.history[1:]))
    assert np.all(result.weights >= minimum_weight - 1e-15)
    assert result.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(result.covariances >= 0.05)


def test_missing_cells_are_harmless_when_at_random():
    X, truth, _ = problem(n=20_000, d=6, r=3, separation=2.0)
    X[np.random.default_rng(5).random(X.shape) < 0.2] = np.nan
    result = expectation_maximization(source(X), *truth, missing=True)
    assert result.status == "converged"
    np.testing.assert_allclose(result.means, truth[1], atol=0.08)
    np.testing.assert_allclose(result.covariances, truth[2], atol=0.12)


def test_row_without_any_cell_changes_nothing_but_the_weights_denominator():
    _, truth, _ = problem()
    X = np.full((2, 5), np.nan)
    np.testing.assert_allclose(log_density(X, *truth, missing=True), 0.0, atol=1e-15)
    np.testing.assert_allclose(responsibilities(X, *truth, missing=True), [truth[0]] * 2)


@pytest.mark.parametrize("acceleration", ["anderson", None])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_slow_convergence_does_not_stop_early(seed, acceleration):
    # overlapping components: plain steps gain less than tol long before the end
    X, _, start = problem(seed, n=5000, d=4, r=4)
    options = {"max_iter": 5000, "acceleration": acceleration}
    loose = expectation_maximization(source(X), *start, tol=1e-6, **options)
    tight = expectation_maximization(source(X), *start, tol=1e-11, **options)
    assert loose.status == tight.status == "converged"
    assert tight.log_likelihood - loose.log_likelihood < 5e-6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_acceleration_finds_the_same_maximum_in_fewer_passes(seed):
    X, truth, _ = problem(seed, n=20_000, d=8, r=4, separation=0.7)
    plain = expectation_maximization(source(X), *truth, tol=1e-9, max_iter=2000, acceleration=None)
    fast = expectation_maximization(source(X), *truth, tol=1e-9, max_iter=2000)
    assert fast.n_iter < 0.7 * plain.n_iter
    np.testing.assert_allclose(fast.means, plain.means, atol=2e-3)
    assert fast.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-8)


def test_coordinates_round_trip():
    _, truth, _ = problem()
    back = from_coordinates(coordinates(check_parameters(*truth)), truth[1].shape)
    for found, expected in zip(back, truth, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


# ---------------------------------------------------------------- invariances


def test_weights_equal_repeats_and_deletion_even_of_wild_rows():
    X, _, start = problem(n=300)
    sample_weight = np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    wild = X.copy()
    wild[sample_weight == 0] = [np.nan, np.inf, -np.inf, 1e300, 0.0]
    weighted = expectation_maximization(source(wild, sample_weight), *start, max_iter=20)
    repeated = np.repeat(X, sample_weight.astype(int), axis=0)
    assert_same_fit(weighted, expectation_maximization(source(repeated), *start, max_iter=20))


def test_chunks_do_not_matter():
    X, _, start = problem(n=1000)
    w = np.random.default_rng(1).uniform(0, 2, len(X))
    whole = expectation_maximization(source(X, w), *start, max_iter=20)
    parts = expectation_maximization(source(X, w, cuts=(0, 1, 200, 700)), *start, max_iter=20)
    assert_same_fit(whole, parts)


def test_shift_and_scale_equal_standardising_first():
    X, _, start = problem(n=1000)
    shift, scale = 1e3 * np.arange(5.0), 10.0 ** np.arange(-2, 3)
    plain = expectation_maximization(source(X), *start, max_iter=15)
    moved = expectation_maximization(
        source(X * scale + shift), *start, shift=shift, scale=scale, max_iter=15
    )
    assert_same_fit(plain, moved, rtol=1e-6)
    np.testing.assert_allclose(
        log_density(X * scale + shift, *start, shift=shift, scale=scale),
        log_density(X, *start),
        rtol=1e-7,
    )


def test_large_offset_keeps_its_digits():
    x = 1e8 + np.random.default_rng(0).standard_normal((2000, 1))
    result = expectation_maximization(source(x), [1.0], [[0.0]], [[4.0]], shift=1e8)
    assert result.covariances[0, 0] == pytest.approx(np.var(x), rel=1e-12)


def test_float32_rows_are_computed_in_float64():
    X, _, start = problem(n=500)
    single = X.astype(np.float32)
    a = expectation_maximization(source(single), *start, max_iter=10)
    b = expectation_maximization(source(single.astype(float)), *start, max_iter=10)
    assert_same_fit(a, b, rtol=1e-13)
    rows = [single[:, ::-1], np.asfortranarray(single[:, ::-1])]
    np.testing.assert_array_equal(log_density(rows[0], *start), log_density(rows[1], *start))


def test_integers_lists_and_read_only_rows():
    X = np.arange(12).reshape(6, 2)
    X.flags.writeable = False
    parameters = ([1.0], [[5.0, 6.0]], [[10.0, 10.0]])
    np.testing.assert_array_equal(
        log_density(X, *parameters), log_density(X.astype(float).tolist(), *parameters)
    )


# ---------------------------------------------------------------- far rows


@pytest.mark.parametrize("size", [1e20, 1e160, 1e300])
def test_far_rows_have_finite_answers(size):
    parameters = ([0.3, 0.7], [[-1.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 2.0]])
    X = np.array([[size, size], [0.0, 0.0], [-size, 0.0]])
    table = responsibilities(X, *parameters)
    assert np.all(np.isfinite(table))
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-15)
    score = log_density(X, *parameters)
    assert np.all(np.isfinite(score))
    assert score[0] < -1e38
    assert score[1] > -10


def test_far_row_goes_to_the_nearest_component_by_scaled_distance():
    table = responsibilities([[1e160]], [0.5, 0.5], [[0.0], [0.0]], [[1.0], [9.0]])
    np.testing.assert_array_equal(table, [[0.0, 1.0]])


def test_far_row_in_the_data_is_an_outlier_or_an_error():
    X = np.append(np.random.default_rng(0).standard_normal((99, 1)), [[1e100]], axis=0)
    result = expectation_maximization(source(X), [0.5, 0.5], [[0.0], [1.0]], [[1.0], [1.0]])
    assert np.isfinite(result.history).all()
    X[-1] = 1e200
    with pytest.raises(ValueError, match="standardise"):
        expectation_maximization(source(X), [0.5, 0.5], [[0.0], [1.0]], [[1.0], [1.0]])


# ---------------------------------------------------------------- floors, collapse, restarts


def test_dead_components_are_started_anew():
    rng = np.random.default_rng(0)
    truth = (np.full(3, 1 / 3), 6.0 * np.eye(3), np.ones((3, 3)))
    X = draw(rng, 2000, *truth)
    result = expectation_maximization(source(X + np.array([50.0, 0.0, 0.0])), *truth)
    assert result.status == "converged"
    assert len(result.restarted) == 2
    at_truth = expectation_maximization(source(X), *truth)
    assert result.log_likelihood == pytest.approx(at_truth.log_likelihood, abs=1e-5)


def test_component_that_dies_again_is_removed_and_named():
    # the worst-explained row weighs next to nothing: a component started there dies again
    X = np.append(np.random.default_rng(0).standard_normal((200, 1)), [[1e3]], axis=0)
    sample_weight = np.append(np.ones(200), 1e-12)
    start = ([0.3, 0.3, 0.4], [[-1.0], [1e6], [1.0]], [[1.0], [1.0], [1.0]])
    result = expectation_maximization(source(X, sample_weight), *start, max_iter=500)
    assert result.status == "collapsed"
    assert "[1]" in result.message
    assert result.restarted == (1,)
    np.testing.assert_array_equal(result.kept, [0, 2])
    assert result.means.shape == result.floored.shape == (2, 1)
    assert result.weights.sum() == pytest.approx(1.0)
    assert np.abs(result.means).max() < 3.0


def test_floors_are_reported_by_column():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(200), np.full(200, 3.0)])
    result = expectation_maximization(
        source(X), [1.0], [[0.0, 3.0]], [[1.0, 1.0]], floor=[1e-3, 1e-5]
    )
    np.testing.assert_array_equal(result.floored, [[False, True]])
    assert result.covariances[0, 1] == 1e-5
    assert result.means[0, 1] == 3.0


def test_two_values_and_two_components_stay_finite():
    x = np.repeat([1.0, 0.4], [25, 5])[:, None]
    result = expectation_maximization(source(x), [0.5, 0.5], [[0.9], [0.5]], [[0.1], [0.1]])
    assert result.floored.all()
    np.testing.assert_allclose(sorted(result.means[:, 0]), [0.4, 1.0], atol=1e-9)


def test_float32_cancellation_case():
    x = np.array([[5001], [0]], dtype=np.float32)
    result = expectation_maximization(
        source(x), [0.5, 0.5], [[5000.0], [1.0]], [[10.0], [10.0]], floor=0.01
    )
    np.testing.assert_allclose(result.covariances, 0.01, rtol=1e-6)


def test_bounded_weights_solve_the_constrained_problem():
    found = bounded_weights(np.array([0.0, 0.01, 0.39, 0.6]), 0.1)
    np.testing.assert_allclose(found, [0.1, 0.1, 0.8 * 0.39 / 0.99, 0.8 * 0.6 / 0.99])


# ---------------------------------------------------------------- stopping, results, bad input


def test_callback_stops():
    X, _, start = problem()
    seen = []

    def callback(iteration, likelihood):
        seen.append((iteration, likelihood))
        return iteration == 3

    result = expectation_maximization(source(X), *start, tol=0.0, callback=callback)
    assert result.status == "interrupted"
    assert result.n_iter == len(seen) == 3


def test_result_is_read_only_and_says_what_happened():
    X, _, start = problem()
    result = expectation_maximization(source(X), *start, max_iter=2)
    assert result.status == "max_iter"
    assert "max_iter" in result.message
    with pytest.raises(ValueError, match="read-only"):
        result.means[0, 0] = 1.0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"weights": [0.5, 0.5]}, ShapeError, "means"),
        ({"weights": [-0.1, 0.5, 0.6]}, ValueError, "weights"),
        ({"weights": [0.0, 0.0, 0.0]}, ValueError, "weights"),
        ({"means": np.zeros(3)}, ShapeError, "means"),
        ({"means": np.full((3, 5), np.nan)}, ValueError, "means"),
        ({"covariances": np.ones((3, 4))}, ShapeError, "covariances"),
        ({"covariances": np.zeros((3, 5))}, ValueError, "covariances"),
        ({"floor": 0.0}, ValueError, "floor"),
        ({"floor": np.ones(4)}, ShapeError, "floor"),
        ({"scale": np.zeros(5)}, ValueError, "scale"),
        ({"shift": np.full(5, np.inf)}, ValueError, "shift"),
        ({"minimum_weight": 0.5}, ValueError, "minimum_weight"),
        ({"tol": -1.0}, ValueError, "tol"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"acceleration": "fast"}, ValueError, "acceleration"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    X, _, (weights, means, covariances) = problem()
    arguments = {"weights": weights, "means": means, "covariances": covariances} | change
    with pytest.raises(error, match=words):
        expectation_maximization(source(X), **arguments)


def test_bad_rows_are_named():
    X, _, start = problem()
    for value in (np.nan, np.inf):
        wild = X.copy()
        wild[17, 2] = value
        with pytest.raises(ValueError, match=r"chunk 1: X holds .* in row 7, column 2"):
            expectation_maximization(source(wild, cuts=(10,)), *start)
        with pytest.raises(ValueError, match="row 17, column 2"):
            log_density(wild, *start)
    with pytest.raises(ValueError, match="row 17, column 2"):
        responsibilities(wild, *start, missing=True)
    with pytest.raises(ShapeError, match="reshape"):
        log_density(X[:, 0], *start)
    with pytest.raises(ShapeError, match=r"expected \(n, 5\)"):
        log_density(X[:, :3], *start)
    with pytest.raises(ValueError, match="dtype"):
        log_density(X.astype(complex), *start)
    for weight, error in ((np.ones(3), ShapeError), (-np.ones(500), ValueError)):
        with pytest.raises(error, match="sample_weight"):
            expectation_maximization(source(X, weight), *start)
    with pytest.raises(ValueError, match="total weight"):
        expectation_maximization(source(X, np.zeros(500)), *start)
    with pytest.raises(ValueError, match="total weight"):
        expectation_maximization(list, *start)


# ---------------------------------------------------------------- starts


def test_seeding_sees_weights_as_repeats_in_any_order():
    X, _, _ = problem(n=400)
    rng = np.random.default_rng(3)
    count = rng.integers(0, 4, len(X))
    repeated = rng.permutation(np.repeat(X, count, axis=0))
    for draw_from in (
        lambda rows, w: kmeans_plus_plus(rows, 6, sample_weight=w, rng=1),
        lambda rows, w: np.concatenate(initial_parameters(rows, 4, sample_weight=w, rng=1)[1:]),
    ):
        np.testing.assert_allclose(draw_from(X, count), draw_from(repeated, None), rtol=1e-12)
    assert not np.array_equal(kmeans_plus_plus(X, 6, rng=1), kmeans_plus_plus(X, 6, rng=2))


def test_seeding_on_a_subsample_does_not_see_the_order_of_rows():
    X, truth, _ = problem(n=30_000, d=3, r=3, separation=6.0)
    found = initial_parameters(X, 3, rng=1)
    for a, b in zip(found, initial_parameters(X[::-1], 3, rng=1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    order = np.argmin(np.linalg.norm(found[1][:, None] - truth[1], axis=2), axis=1)
    np.testing.assert_allclose(found[1], truth[1][order], atol=0.1)


def test_initial_parameters_find_separated_clusters():
    X, truth, _ = problem(n=3000, d=4, r=3, separation=6.0)
    weights, means, covariances = initial_parameters(X * 10 + 5, 3, rng=0, shift=5.0, scale=10.0)
    order = np.argmin(np.linalg.norm(means[:, None] - truth[1], axis=2), axis=1)
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(means, truth[1][order], atol=0.15)
    np.testing.assert_allclose(weights, truth[0][order], atol=0.05)
    np.testing.assert_allclose(covariances, truth[2][order], rtol=0.2)


def test_initial_parameters_with_missing_cells_and_few_distinct_rows():
    X, _, _ = problem(n=300)
    X[::3, 1] = np.nan
    assert all(np.isfinite(a).all() for a in initial_parameters(X, 4, rng=0))
    two = np.repeat([[0.0, 0.0], [5.0, 5.0]], 60, axis=0)
    weights, means, covariances = initial_parameters(two, 4, rng=0, floor=0.01)
    np.testing.assert_array_equal(weights, [0.5, 0.5])
    np.testing.assert_array_equal(np.sort(means, axis=0), [[0.0, 0.0], [5.0, 5.0]])
    np.testing.assert_array_equal(covariances, 0.01)


def test_bad_seeding_is_named():
    with pytest.raises(ValueError, match="2 distinct rows"):
        kmeans_plus_plus([[0.0], [1.0], [1.0]], 3)
    with pytest.raises(ValueError, match="n_components"):
        initial_parameters([[0.0], [1.0]], 2.5)
    with pytest.raises(ShapeError, match="X"):
        kmeans_plus_plus([0.0, 1.0], 1)
    with pytest.raises(ValueError, match="NaN"):
        kmeans_plus_plus([[np.nan], [1.0]], 1)
    with pytest.raises(ValueError, match="inf"):
        initial_parameters([[np.inf], [1.0]], 1)
    with pytest.raises(ShapeError, match="sample_weight"):
        kmeans_plus_plus([[0.0], [1.0]], 1, sample_weight=[1.0])


def test_import_is_light():
    code = (
        "import sys, tensoralg.solvers.expectation_maximization as m; "
        "sys.exit(any(name in sys.modules for name in ('numba', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
