"""Which starts are compared, and that leaving the comparison out costs no likelihood."""

import numpy as np
import pytest

from tensoralg.mixtures import DiagonalGaussianMixture
from tensoralg.mixtures.pipeline import _PRECISE


def sample(n, seed, separation=0.8):
    rng = np.random.default_rng(seed)
    means = separation * rng.standard_normal((4, 9))
    variances = rng.uniform(0.3, 1.5, (4, 9))
    labels = rng.choice(4, n)
    X = means[labels] + np.sqrt(variances[labels]) * rng.standard_normal((n, 9))
    truth = DiagonalGaussianMixture.from_parameters(np.full(4, 0.25), means, variances)
    return X, truth.set_params(n_components=4, warm_start=True, tol=1e-9, max_iter=1000)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_single_trusted_start_is_polished_at_once(seed):
    X, truth = sample(30_000, seed)
    model = DiagonalGaussianMixture(4, random_state=seed).fit(X)
    diagnostics = model.diagnostics_
    assert diagnostics.mean_error < _PRECISE
    assert diagnostics.start == "algebraic"
    assert diagnostics.start_log_likelihoods == {}
    assert model.score(X) >= truth.fit(X).score(X) - 1e-6


def test_a_start_that_few_rows_leave_open_has_rivals():
    X, truth = sample(300, 3)
    model = DiagonalGaussianMixture(4, random_state=0).fit(X)
    assert model.diagnostics_.mean_error > _PRECISE
    assert set(model.diagnostics_.start_log_likelihoods) == {"algebraic", "k-means++"}
    assert model.score(X) >= truth.fit(X).score(X) - 1e-3
