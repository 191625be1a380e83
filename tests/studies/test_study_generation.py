import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.studies import CellKey
from tensoralg.studies.generation import (
    MixtureParameters,
    draw_mixture,
    draw_samples,
    method_seed,
    spoil_samples,
)
from tensoralg.studies.recovery import match_components, recovery_errors

KEY = CellKey(6, 3, 3, 400, 0.5, 1, "moments")
SUM_OF_ROWS, METHOD_SEED = 262.0086428786319, 1530769518


def rows(key):
    return draw_samples(key, draw_mixture(key))


def test_methods_and_orders_see_the_same_rows():
    for change in ({"method": "em-truth"}, {"order": 5}):
        np.testing.assert_array_equal(rows(KEY), rows(replace(KEY, **change)))


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"separation": 0.75}, {"samples": 401}, {"components": 2}]
)
def test_other_values_draw_other_rows(change):
    assert not np.array_equal(rows(KEY)[:10], rows(replace(KEY, **change))[:10])


def test_other_sample_sizes_draw_from_the_same_mixture():
    other = draw_mixture(replace(KEY, samples=9))
    np.testing.assert_array_equal(draw_mixture(KEY).means, other.means)


def spoiled(**shares):
    key = replace(KEY, **shares)
    mixture = draw_mixture(key)
    clean = draw_samples(key, mixture)
    return clean, spoil_samples(key, mixture, clean)


def test_clean_rows_are_the_very_same_array():
    clean, X = spoiled()
    assert X is clean


def test_known_rows_of_a_seed_never_change():
    # numbers of the first version: finished cells of older studies stay comparable
    assert float(rows(KEY).sum()) == pytest.approx(SUM_OF_ROWS, rel=1e-12)
    assert method_seed(KEY) == METHOD_SEED


def test_outliers_replace_as_many_rows_as_said():
    clean, X = spoiled(samples=20_000, outliers=0.0123)
    np.testing.assert_array_equal(clean, rows(replace(KEY, samples=20_000)))
    far = (clean != X).any(axis=1)
    assert far.sum() == round(0.0123 * 20_000)
    deviation = ((X[far] - clean.mean(axis=0)) / clean.std(axis=0)).std()
    assert deviation == pytest.approx(40, rel=0.05)


def test_missing_cells_are_as_many_as_said_and_nothing_else_changes():
    clean, X = spoiled(samples=20_000, missing=0.25)
    gaps = np.isnan(X)
    assert gaps.mean() == pytest.approx(0.25, abs=0.01)
    assert np.abs(gaps.mean(axis=0) - 0.25).max() < 0.02
    np.testing.assert_array_equal(X[~gaps], clean[~gaps])
    # completely at random: neither the cell nor its neighbours matter
    assert abs(np.corrcoef(gaps[:, 0], clean[:, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(gaps[:, 0], gaps[:, 1])[0, 1]) < 0.03


def test_larger_shares_spoil_more_of_the_same():
    few, many = spoiled(outliers=0.02)[1], spoiled(outliers=0.05)[1]
    clean = spoiled()[0]
    wild = (few != clean).any(axis=1)
    assert ((many != clean).any(axis=1) >= wild).all()
    gaps = np.isnan(spoiled(missing=0.1)[1])
    assert (np.isnan(spoiled(missing=0.3)[1]) >= gaps).all()
    both = spoiled(outliers=0.02, missing=0.1)[1]
    np.testing.assert_array_equal(np.isnan(both), gaps)
    np.testing.assert_array_equal(both[~gaps], few[~gaps])


def test_another_process_draws_the_same():
    code = (
        "from tensoralg.studies import CellKey\n"
        "from tensoralg.studies.generation import *\n"
        f"key = {KEY!r}\n"
        "print(repr(float(draw_samples(key, draw_mixture(key)).sum())), method_seed(key))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [repr(float(rows(KEY).sum())), str(method_seed(KEY))]


def test_the_distribution_is_the_documented_one():
    key = CellKey(200, 150, 3, 1, 2.0, 0, "moments")
    mixture = draw_mixture(key)
    assert mixture.means.std() == pytest.approx(2.0, rel=0.02)
    assert abs(mixture.means.mean()) < 0.05
    assert mixture.covariances.min() >= 0.3
    assert mixture.covariances.max() <= 1.5
    assert mixture.covariances.mean() == pytest.approx(0.9, rel=0.01)
    assert mixture.weights.sum() == pytest.approx(1.0)
    # a Dirichlet(5) weight has variance (1/r)(1 - 1/r)/(5r + 1)
    r = 150
    assert mixture.weights.var() == pytest.approx((1 / r) * (1 - 1 / r) / (5 * r + 1), rel=0.3)


def test_rows_follow_the_mixture():
    key = CellKey(4, 3, 3, 200_000, 1.5, 3, "moments")
    mixture, X = draw_mixture(key), rows(key)
    mean = mixture.weights @ mixture.means
    second = mixture.weights @ (mixture.means**2 + mixture.covariances)
    np.testing.assert_allclose(X.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose((X**2).mean(axis=0), second, rtol=0.03)


def test_the_referee_scores_like_the_formula():
    mixture, X = draw_mixture(KEY), rows(KEY)
    squares = (X[:, None] - mixture.means) ** 2 / mixture.covariances
    logs = np.log(mixture.weights) - 0.5 * (squares + np.log(2 * np.pi * mixture.covariances)).sum(
        axis=2
    )
    assert mixture.score(X) == pytest.approx(np.logaddexp.reduce(logs, axis=1).mean(), rel=1e-12)
    np.testing.assert_array_equal(mixture.predict(X), logs.argmax(axis=1))


def test_parameters_are_copied_and_read_only():
    weights = np.ones(1)
    mixture = MixtureParameters(weights, [[0.0]], [[1.0]])
    weights[0] = 5
    assert mixture.weights[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        mixture.means[0] = 1


@given(st.integers(0, 1000), st.integers(1, 6))
def test_errors_vanish_exactly_up_to_the_order_of_components(seed, r):
    mixture = draw_mixture(CellKey(5, r, 3, 1, 1.0, seed, "moments"))
    order = np.random.default_rng(seed).permutation(r)
    shuffled = MixtureParameters(
        mixture.weights[order], mixture.means[order], mixture.covariances[order]
    )
    errors = recovery_errors(mixture, shuffled)
    assert errors.mean_error == errors.weight_error == errors.variance_error == 0
    assert order[match_components(mixture, shuffled)[1]].tolist() == list(range(r))


def test_a_missed_component_counts_with_its_norm():
    truth = MixtureParameters([0.5, 0.5], [[3.0, 0.0], [0.0, 4.0]], np.ones((2, 2)))
    fitted = MixtureParameters([1.0], [[3.0, 0.0]], np.ones((1, 2)))
    errors = recovery_errors(truth, fitted)
    assert errors.mean_error == pytest.approx(4 / 5)
    assert errors.weight_error == pytest.approx(np.hypot(0.5, 0.5) / np.hypot(0.5, 0.5))
    assert errors.variance_error == pytest.approx(np.sqrt(2 / 4))


def test_an_invented_component_counts_with_its_norm():
    truth = MixtureParameters([1.0], [[3.0, 4.0]], np.ones((1, 2)))
    fitted = MixtureParameters([0.5, 0.5], [[0.0, 5.0], [3.0, 4.0]], np.ones((2, 2)))
    assert recovery_errors(truth, fitted).mean_error == pytest.approx(1.0)


def test_errors_relative_to_nothing_are_not_numbers():
    truth = MixtureParameters([1.0], [[0.0]], [[1.0]])
    errors = recovery_errors(truth, MixtureParameters([1.0], [[0.5]], [[1.0]]))
    assert np.isnan(errors.mean_error)
    assert errors.weight_error == 0
