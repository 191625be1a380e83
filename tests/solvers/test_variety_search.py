"""Thin tensors: their atoms are found on the variety that their blocks confine."""

import numpy as np
import pytest

from tensoralg.core.indices import multi_indices
from tensoralg.solvers.kernel_forms import kernel_forms
from tensoralg.solvers.power_sums import power_sum
from tensoralg.solvers.variety_search import search_on_variety, slide


def problem_of(atoms, order):
    indices = multi_indices(atoms.shape[1], order)
    return power_sum(atoms[:, indices].prod(axis=2).sum(axis=0), atoms.shape[1], order)


def sparse(r, n, seed, size=3):
    rng = np.random.default_rng(seed)
    atoms = np.zeros((r, n))
    for atom in atoms:
        support = rng.choice(n, size, replace=False)
        atom[support] = rng.uniform(0.2, 1, size)
    return atoms


def everywhere(n):
    return np.ones((1, n), dtype=bool)


@pytest.mark.parametrize(
    ("n", "order", "r", "seed"),
    [(4, 4, 8, 1), (4, 4, 9, 2), (5, 4, 10, 0), (5, 4, 14, 0), (3, 4, 5, 0), (4, 6, 12, 0)],
)
def test_dense_atoms_beyond_the_reach_of_linear_algebra(n, order, r, seed):
    atoms = np.random.default_rng(seed).uniform(0.05, 1, (r, n))
    problem = problem_of(atoms, order)
    assert kernel_forms(problem).count > 0
    found, residual = search_on_variety(problem, everywhere(n), np.random.default_rng(0))
    assert residual < 1e-13
    assert residual == problem.residual(found)
    assert (found >= 0).all()


@pytest.mark.parametrize(("n", "order", "r"), [(5, 3, 10), (6, 3, 12), (4, 4, 8), (5, 4, 20)])
@pytest.mark.parametrize("seed", [0, 1])
def test_sparse_atoms(n, order, r, seed):
    problem = problem_of(sparse(r, n, seed), order)
    diagonal = (problem.indices == problem.indices[:, :1]).all(axis=1)
    masks = (problem.values[diagonal] > 0)[None, :]
    found, residual = search_on_variety(problem, masks, np.random.default_rng(0), tol=1e-11)
    assert residual < 1e-11
    assert (found >= 0).all()


def test_diagonals_of_very_different_sizes():
    atoms = np.random.default_rng(3).uniform(0.1, 1, (8, 4)) * 10.0 ** np.array([0, -2, 1, -3])
    problem = problem_of(atoms, 4)
    found, residual = search_on_variety(problem, everywhere(4), np.random.default_rng(0))
    rebuilt = found[:, problem.indices].prod(axis=2).sum(axis=0)
    assert residual < 1e-13
    np.testing.assert_allclose(rebuilt, problem.values, rtol=1e-8)


def test_supports_are_kept():
    masks = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], dtype=bool)
    rng = np.random.default_rng(4)
    atoms = rng.uniform(0.1, 1, (8, 4)) * masks[rng.integers(2, size=8)]
    found, residual = search_on_variety(problem_of(atoms, 3), masks, rng)
    assert residual < 1e-13
    assert all(masks[:, atom > 0].all(axis=1).any() for atom in found)


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
def test_atoms_that_are_slightly_off_are_brought_back(distance):
    rng = np.random.default_rng(0)
    atoms = rng.exponential(size=(12, 4)) * (rng.random((12, 4)) < 0.5)
    problem = problem_of(atoms, 3)
    start = atoms / problem.unit * np.exp(distance * rng.standard_normal(atoms.shape))
    found, residual = search_on_variety(problem, everywhere(4), rng, start=start)
    assert residual <= 1e-13
    assert (found >= 0).all()


def test_outside_of_the_cone_the_distance_stays():
    entries = np.array([1.0, 2.0, 1.0])  # an indefinite matrix
    problem = power_sum(entries, 2, 2)
    found, residual = search_on_variety(problem, everywhere(2), np.random.default_rng(0))
    # the closest is [[1.5, 1.5], [1.5, 1.5]]
    assert residual == pytest.approx(np.sqrt(0.1), rel=1e-6)
    atoms = np.random.default_rng(1).uniform(0.1, 1, (8, 4))
    entries = problem_of(atoms, 4).values - 1e-3
    problem = power_sum(entries, 4, 4)
    found, residual = search_on_variety(problem, everywhere(4), np.random.default_rng(0))
    assert residual > 1e-5
    assert (found >= 0).all()


def test_sliding_keeps_to_the_variety_and_converges():
    rng = np.random.default_rng(5)
    atoms = rng.uniform(0.1, 1, (8, 4))
    problem = problem_of(atoms, 4)
    forms = kernel_forms(problem)
    start = np.sqrt(atoms / problem.unit) * np.exp(1e-3 * rng.standard_normal(atoms.shape))
    start, _ = forms.project(start)
    before = problem.residual(start**2)
    roots, residual = slide(problem, forms, start)
    assert residual < 1e-14 < before
    assert abs(forms.values(roots)).max() < 1e-13
    roots, residual = slide(problem, forms, start, max_iter=0)
    assert residual == before
    np.testing.assert_array_equal(roots, start)
