"""partial_fit when the settings change between batches."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tensoralg.mixtures import DiagonalGaussianMixture


def clean_and_dirty():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((800, 4)) + 4.0 * rng.integers(0, 2, (800, 1))
    dirty = X.copy()
    dirty[::80] = 1e5 * rng.standard_normal((10, 4))
    return X, dirty


def test_robust_holds_for_the_rows_that_come_after_it_was_set():
    X, dirty = clean_and_dirty()
    model = DiagonalGaussianMixture(2, random_state=0).partial_fit(X)
    clean = model.means_.copy()
    model.set_params(robust=True).partial_fit(dirty)
    assert model.accumulator_.count == 1590
    assert model.diagnostics_.outliers == 10
    assert_allclose(model.means_, clean, atol=0.2)
    model.set_params(robust=False).partial_fit(X)
    assert model.accumulator_.count == 2390


def test_robust_after_plain_rows_leaves_out_rows_where_cells_cannot_be_hidden():
    X, _ = clean_and_dirty()
    rng = np.random.default_rng(4)
    spotted = np.where(rng.random(X.shape) < 0.05, 1e6, X)
    model = DiagonalGaussianMixture(2, random_state=0).partial_fit(X)
    model.set_params(robust=True).partial_fit(spotted)
    assert model.accumulator_.count == 800 + (spotted < 1e5).all(axis=1).sum()
    assert model.diagnostics_.outlying_cells == 0


def test_missing_cells_after_moments_without_them_are_refused_by_reason():
    X, _ = clean_and_dirty()
    model = DiagonalGaussianMixture(2, random_state=0).partial_fit(X)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="begun with missing=False"):
        model.set_params(missing=True).partial_fit(X)
    assert model.accumulator_.count == 800


def test_chunks_are_not_one_batch():
    X, _ = clean_and_dirty()
    for chunks in ([X[:400], X[400:]], iter([X])):
        with pytest.raises(TypeError, match="call it for every chunk"):
            DiagonalGaussianMixture(2).partial_fit(chunks)
