"""Exchange of terms: what a loss costs, what is missing, and runs that no longer get stuck."""

import array_api_strict as strict
import numpy as np
import pytest

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps
from tensoralg.solvers.polyadic_exchange import exchanged_factors, removal_losses


def make(n, rank, seed, noise=0.01):
    rng = np.random.default_rng(seed)
    truth = [rng.standard_normal((n, rank)) for _ in range(3)]
    tensor = khatri_rao(truth).sum(axis=1).reshape(n, n, n)
    return tensor + noise * tensor.std() * rng.standard_normal(tensor.shape), truth


def test_losses_are_those_of_solving_without_the_term():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, 4))
    rows /= np.linalg.norm(rows, axis=0)
    unfolding = rng.standard_normal((5, 30))
    factor = np.linalg.lstsq(rows, unfolding.T, rcond=None)[0].T
    full = np.linalg.norm(unfolding - factor @ rows.T) ** 2
    losses = removal_losses(rows.T @ rows, np.linalg.norm(factor, axis=0))
    for s in range(4):
        rest = np.delete(rows, s, axis=1)
        part = np.linalg.lstsq(rest, unfolding.T, rcond=None)[0].T
        error = np.linalg.norm(unfolding - part @ rest.T) ** 2
        assert losses[s] == pytest.approx(error - full, rel=1e-8)


def test_a_term_that_the_others_replace_costs_nothing():
    assert removal_losses(np.ones((2, 2)), np.array([3.0, 2.0])).max() < 1e-12


@pytest.mark.parametrize("convert", [np.asarray, strict.asarray])
def test_a_missing_term_is_found_and_a_spare_one_given_up(convert):
    tensor, truth = make(12, 3, 0)
    start = [np.column_stack([f[:, 0], f[:, 0], f[:, 1]]) for f in truth]
    sweeps = AlternatingSweeps(convert(tensor), [convert(f) for f in start])
    sweeps.sweep()
    before = sweeps.exact_fit()
    factors = exchanged_factors(sweeps)
    assert factors is not None
    found = to_numpy(factors[0])
    cosines = np.abs(found.T @ truth[0][:, 2]) / np.linalg.norm(truth[0][:, 2])
    assert (cosines / np.linalg.norm(found, axis=0)).max() > 0.95
    sweeps.restore(factors)
    sweeps.sweep()
    assert sweeps.exact_fit() > before + 0.1


def test_nothing_is_exchanged_where_the_residual_is_noise():
    tensor, truth = make(12, 3, 1)
    sweeps = AlternatingSweeps(tensor, truth)
    sweeps.sweep()
    assert exchanged_factors(sweeps) is None
    exact, truth = make(8, 2, 1, noise=0.0)
    sweeps = AlternatingSweeps(exact, truth)
    sweeps.sweep()
    assert exchanged_factors(sweeps) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_starts_from_which_plain_sweeps_get_stuck(dtype):
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        truth = [np.linalg.qr(rng.standard_normal((40, 6)))[0] for _ in range(3)]
        tensor = khatri_rao(truth).sum(axis=1).reshape(40, 40, 40)
        noise = rng.standard_normal(tensor.shape)
        tensor += 0.01 * np.linalg.norm(tensor) / np.linalg.norm(noise) * noise
        tensor = tensor.astype(dtype)
        rng = np.random.default_rng(100 + seed)
        start = [rng.standard_normal((40, 6)) for _ in range(3)]
        plain = alternating_least_squares(tensor, start, max_iter=200, accelerate=False)
        assert plain.fit < 0.6
        solution = alternating_least_squares(tensor, start, max_iter=200)
        assert solution.fit > 0.9899
        assert solution.status == "converged"


def test_a_model_of_too_few_terms_ends_no_lower():
    for seed in range(4):
        tensor, _ = make(15, 6, seed, noise=0.1)
        rng = np.random.default_rng(seed)
        start = [rng.standard_normal((15, 3)) for _ in range(3)]
        plain = alternating_least_squares(tensor, start, accelerate=False)
        solution = alternating_least_squares(tensor, start)
        assert solution.fit > plain.fit - 1e-6
