"""Which starts are compared, and that leaving the comparison out costs no likelihood."""

import numpy as np
import pytest

from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator
from tensoralg.mixtures.pipeline import _PRECISE
from tensoralg.mixtures.starts import moment_starts


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


def test_an_optimum_that_agrees_with_the_moments_needs_no_second_one():
    X, _ = sample(30_000, 4)
    unit = (X - X.mean(axis=0)) / X.std(axis=0)
    values = MomentAccumulator(9, 3, shift=0.0).update(unit).homogenised()
    options = {"form": "affine", "floor": np.full(9, 1e-6)}
    alone, report = moment_starts(
        values, 3, 9, 4, rng=np.random.default_rng(0), rows=len(X), **options
    )
    assert report.refined == 1
    assert alone[0].explained
    # exact moments have no noise to hide behind: agreement of two splits decides
    agreed, report = moment_starts(values, 3, 9, 4, rng=np.random.default_rng(0), **options)
    assert report.refined > 1
    assert not agreed[0].explained
    assert alone[0].objective == pytest.approx(agreed[0].objective, rel=1e-6)


def test_too_few_components_never_agree_with_the_moments():
    X, _ = sample(30_000, 5)
    unit = (X - X.mean(axis=0)) / X.std(axis=0)
    values = MomentAccumulator(9, 3, shift=0.0).update(unit).homogenised()
    starts, report = moment_starts(
        values,
        3,
        9,
        3,
        form="affine",
        floor=np.full(9, 1e-6),
        rng=np.random.default_rng(0),
        rows=len(X),
    )
    assert not starts[0].explained
    assert report.refined > 1
