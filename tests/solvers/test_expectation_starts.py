"""Starts by k-means++: several from rows that are prepared once, and what they are made of."""

import numpy as np
import pytest

from tensoralg.solvers.expectation_starts import initial_parameters, several_initial_parameters


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)) + rng.choice([-3.0, 0.0, 3.0], (n, 1))


def test_the_first_of_several_is_the_one_alone_and_the_others_differ():
    X = rows()
    found = several_initial_parameters(X, 4, 3, rng=5)
    for a, b in zip(found[0], initial_parameters(X, 4, rng=5), strict=True):
        assert np.array_equal(a, b)
    assert len(found) == 3
    assert not np.array_equal(found[1][1], found[2][1])


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_starts_are_a_partition_of_the_rows(shift):
    X, scale = rows() + shift, 2.0
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    start = several_initial_parameters(X, 3, 1, sample_weight=w, rng=0, shift=shift, scale=scale)
    weights, means, variances = start[0]
    z = (X - shift) / scale
    center = np.average(z, axis=0, weights=w)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights @ means, center, atol=1e-12)
    # within and between clusters: the whole second moment
    second = np.average((z - center) ** 2, axis=0, weights=w)
    np.testing.assert_allclose(weights @ (variances + (means - center) ** 2), second, rtol=1e-10)


def test_variances_stay_at_the_floor():
    X = np.repeat([[0.0, 1.0], [5.0, 1.0]], 10, axis=0)
    for _, _, variances in several_initial_parameters(X, 2, 2, rng=0, floor=0.25):
        assert np.array_equal(variances, np.full((2, 2), 0.25))
