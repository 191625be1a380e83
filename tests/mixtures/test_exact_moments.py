"""Moments of known mixtures, as infinitely many rows would give."""

import numpy as np
import pytest

from tensoralg.mixtures.moments import MomentAccumulator


@pytest.mark.parametrize("powers", [False, True])
def test_exact_moments_of_one_gaussian(powers):
    mu, variance = 1.5, 0.7
    exact = MomentAccumulator.from_parameters([1], [[mu]], [[variance]], 4, shift=0, powers=powers)
    expected = [
        1,
        mu,
        mu**2 + variance,
        mu**3 + 3 * mu * variance,
        mu**4 + 6 * mu**2 * variance + 3 * variance**2,
    ]
    values = exact.homogenised()
    known = slice(None) if powers else slice(0, 3)
    np.testing.assert_allclose(values[known], np.array(expected)[known], rtol=1e-14)


def test_exact_moments_are_means_products_on_distinct_indices():
    rng = np.random.default_rng(0)
    weights, means = np.array([0.2, 0.3, 0.5]), rng.normal(size=(3, 5))
    exact = MomentAccumulator.from_parameters(weights, means, rng.uniform(size=(3, 5)), 4)
    centred = means - weights @ means
    for degree in (1, 2, 3, 4):
        tensor = exact.moments(degree)
        expected = [weights @ centred[:, i].prod(axis=1) for i in tensor.indices]
        np.testing.assert_allclose(tensor.values, expected, rtol=1e-12, atol=1e-14)
    assert (exact.count, exact.total_weight) == (0, 1.0)


def test_exact_moments_rebase_exactly():
    rng = np.random.default_rng(1)
    parameters = [0.4, 0.6], rng.normal(size=(2, 4)), rng.uniform(size=(2, 4))
    for powers in (False, True):
        plain = MomentAccumulator.from_parameters(*parameters, 5, powers=powers)
        moved = MomentAccumulator.from_parameters(*parameters, 5, shift=1, scale=3, powers=powers)
        np.testing.assert_allclose(plain.rebased(1, 3).gram, moved.gram, rtol=1e-12, atol=1e-14)


def test_exact_moments_are_the_limit_of_samples():
    rng = np.random.default_rng(2)
    weights, means = np.array([0.3, 0.7]), rng.normal(size=(2, 3))
    variances = rng.uniform(0.3, 1.5, size=(2, 3))
    labels = rng.choice(2, size=400_000, p=weights)
    X = means[labels] + np.sqrt(variances)[labels] * rng.normal(size=(len(labels), 3))
    exact = MomentAccumulator.from_parameters(weights, means, variances, 4, powers=True)
    sampled = MomentAccumulator(3, 4, shift=exact.shift, powers=True).update(X)
    np.testing.assert_allclose(exact.homogenised(), sampled.homogenised(), atol=0.1, rtol=0.03)
