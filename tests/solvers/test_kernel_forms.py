"""Kernel forms: they vanish on the atoms, Newton's method reaches their zeros on the boundary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.indices import multi_indices
from tensoralg.solvers.kernel_forms import kernel_forms
from tensoralg.solvers.power_sums import power_sum


def problem_of(atoms, order):
    indices = multi_indices(atoms.shape[1], order)
    return power_sum(atoms[:, indices].prod(axis=2).sum(axis=0), atoms.shape[1], order)


def units(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_all_forms_vanish_on_the_atoms(n, order, r, seed):
    rng = np.random.default_rng(seed)
    atoms = rng.uniform(0.2, 1, (r, n)) * (rng.random((r, n)) < 0.6)
    atoms = atoms[atoms.any(axis=1)]
    forms = kernel_forms(problem_of(atoms, order))
    roots = units(np.sqrt(atoms))
    # an eigenvalue of 1e-11 leaves forms of up to its root
    assert abs(forms.values(roots)).max(initial=0) < 1e-4


@pytest.mark.parametrize(
    ("n", "order", "r", "count"),
    [(3, 4, 5, 1), (4, 4, 8, 2), (4, 4, 10, 0), (5, 3, 4, 5), (5, 3, 5, 0), (4, 2, 3, 1)],
)
def test_number_of_forms_of_dense_atoms(n, order, r, count):
    atoms = np.random.default_rng(r).uniform(0.1, 1, (r, n))
    assert kernel_forms(problem_of(atoms, order)).count == count


def test_slopes_are_those_of_the_values():
    rng = np.random.default_rng(0)
    forms = kernel_forms(problem_of(rng.random((8, 4)), 4))
    z, step = rng.random((6, 4)), 1e-6
    moved = z[:, None, :] + step * np.eye(4)
    back = z[:, None, :] - step * np.eye(4)
    rises = [forms.values(a) - forms.values(b) for a, b in zip(moved, back, strict=True)]
    expected = np.array(rises).transpose(0, 2, 1) / (2 * step)
    np.testing.assert_allclose(forms.jacobian(z), expected, atol=1e-8)


@pytest.mark.parametrize(("n", "order", "r"), [(3, 4, 5), (4, 4, 8), (4, 3, 3), (5, 4, 9)])
def test_points_are_projected_to_the_zeros(n, order, r):
    rng = np.random.default_rng(n)
    atoms = rng.uniform(0.1, 1, (r, n))
    forms = kernel_forms(problem_of(atoms, order))
    start = 3 * np.sqrt(atoms) * np.exp(1e-2 * rng.standard_normal(atoms.shape))
    roots, distance = forms.project(start)
    assert distance.max() < 1e-12
    np.testing.assert_allclose(np.linalg.norm(roots, axis=1), np.linalg.norm(start, axis=1))
    assert (roots >= 0).all()
    np.testing.assert_allclose(roots, start, atol=0.2)


def test_coordinates_that_must_vanish_do_so_quadratically():
    # no atom joins the indices 0 and 1: z_0 z_1 = 0
    atoms = np.array([[1.0, 0.0, 0.3], [0.0, 0.8, 0.5], [0.2, 0.0, 0.9], [0.0, 0.3, 1.0]])
    forms = kernel_forms(problem_of(atoms, 3))
    assert forms.count
    roots, distance = forms.project(np.array([[0.9, 0.1, 0.5]]), n_steps=12)
    assert distance[0] < 1e-15
    assert roots[0, 1] < 1e-15
    frozen, _ = forms.project(np.array([[0.0, 1.0, 0.7]]))
    assert frozen[0, 0] == 0


def test_tangents_leave_the_forms_unchanged():
    rng = np.random.default_rng(2)
    atoms = rng.uniform(0.1, 1, (8, 4))
    forms = kernel_forms(problem_of(atoms, 4))
    roots = np.sqrt(atoms)
    P = forms.tangents(roots)
    np.testing.assert_allclose(P @ P, P, atol=1e-12)
    np.testing.assert_allclose(np.trace(P, axis1=1, axis2=2), 2)  # a curve, and its cone
    np.testing.assert_allclose(np.einsum("sij,sj->si", P, roots), roots, atol=1e-8)
    assert abs(forms.jacobian(roots) @ P).max() < 1e-8


def test_a_tensor_with_regular_blocks_has_no_forms():
    rng = np.random.default_rng(1)
    forms = kernel_forms(problem_of(rng.random((40, 3)), 4))
    assert forms.count == 0
    assert forms.values(rng.random((3, 3))).shape == (3, 0)
