"""Weights beside chunks, and arrays of other libraries."""

import array_api_strict
import numpy as np
import pytest

from tensoralg.core.errors import ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = np.vstack([rng.normal(0, 1, (1800, 5)), rng.normal(3, 1, (1200, 5))])
    return X, rng.integers(0, 4, len(X)).astype(float)


def _fit(X, sample_weight=None, **options):
    return DiagonalGaussianMixture(2, random_state=0, **options).fit(X, sample_weight=sample_weight)


@pytest.mark.parametrize("kind", ["flat", "list", "apart"])
def test_weights_of_chunks_equal_weights_of_one_array(rows, kind):
    X, w = rows
    dirty = X.copy()
    dirty[w == 0] = np.nan  # weight 0 is deletion, also of rows that no fit would accept
    weights = {"flat": w, "list": w.tolist(), "apart": [w[:700], w[700:]]}[kind]
    found = _fit([dirty[:700], dirty[700:]], weights)
    whole = _fit(X, w)
    assert np.allclose(found.means_, whole.means_, rtol=0, atol=1e-12)
    assert np.allclose(found.covariances_, whole.covariances_, rtol=0, atol=1e-12)


def test_weights_of_a_generator_are_read_once(rows):
    X, w = rows
    halves = (part for part in (w[:700], w[700:]))
    with pytest.warns(UserWarning, match="read only once"):
        found = _fit([X[:700], X[700:]], halves)
    assert found.diagnostics_.status == "moments only"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda w: w[:-1], "more rows"),
        (lambda w: np.r_[w, 1.0], "have 3000 rows"),
        (lambda w: [w[:700]], "more chunks"),
        (lambda w: [w[:700], w[700:], w[:3]], "more arrays"),
        (lambda w: [w[:699], w[699:]], "699"),
        (lambda w: -w, "nonnegative"),
        (lambda w: w[:, None], "one-dimensional"),
    ],
)
def test_weights_that_do_not_match_the_chunks_are_refused(rows, weights, message):
    X, w = rows
    with pytest.raises(ValueError, match=message):
        _fit([X[:700], X[700:]], weights(w))


@pytest.mark.parametrize("robust", [False, True])
def test_an_array_of_another_library_gives_the_same_mixture(rows, robust):
    X, w = rows
    Y, v = array_api_strict.asarray(X), array_api_strict.asarray(w)
    here, there = _fit(X, w, robust=robust), _fit(Y, v, robust=robust)
    assert np.allclose(here.means_, there.means_, rtol=0, atol=1e-12)
    assert isinstance(there.means_, np.ndarray)
    assert np.array_equal(there.predict(Y), there.predict(X))
    assert there.score(Y) == there.score(X)
    assert np.allclose(there.standard_errors(Y, v).means, there.standard_errors(X, w).means)
    added = DiagonalGaussianMixture(2, random_state=0).partial_fit(Y, sample_weight=v)
    known = DiagonalGaussianMixture(2, random_state=0).partial_fit(X, sample_weight=w)
    assert np.array_equal(added.means_, known.means_)


@pytest.mark.parametrize("shape", [(12,), (2, 3, 2), (0, 3)])
def test_the_shape_of_an_array_of_another_library_is_checked(shape):
    with pytest.raises(ShapeError, match="X must have"):
        _fit(array_api_strict.zeros(shape))


def test_dirt_that_lies_close_together_may_be_a_component():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(0, 1, (4900, 4)), rng.normal(30, 1, (100, 4))])
    with pytest.warns(UserWarning, match="lie close together"):
        _fit(X, robust=True)


def test_scattered_dirt_is_no_component(recwarn):
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(-3, 1, (2500, 4)), rng.normal(3, 1, (2500, 4))])
    X[:100] += 40 * rng.standard_normal((100, 4))
    _fit(X, robust=True)
    heavy = rng.standard_t(3, (5000, 4))
    _fit(heavy, robust=True)
    assert not [w for w in recwarn if "lie close together" in str(w.message)]
