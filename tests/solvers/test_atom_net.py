import numpy as np
import pytest

from tensoralg import SymmetricTensor
from tensoralg.solvers.atom_net import refine_on_net
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition


def sparse_tensor(n, d, r, seed):
    rng = np.random.default_rng(seed)
    points = rng.exponential(size=(r, n)) * (rng.random((r, n)) < 0.5)
    return SymmetricTensor.from_decomposition(np.ones(r), points, d), points


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
def test_atoms_that_are_slightly_off_are_brought_back(distance):
    A, points = sparse_tensor(4, 3, 12, 0)
    rng = np.random.default_rng(1)
    start = points * np.exp(distance * rng.standard_normal(points.shape))
    atoms, residual = refine_on_net(A.entries, 4, 3, start, rng=2)
    assert residual <= 1e-12
    assert (atoms >= 0).all()
    rebuilt = SymmetricTensor.from_decomposition(np.ones(len(atoms)), atoms, 3)
    np.testing.assert_allclose(rebuilt.entries, A.entries, atol=1e-11 * A.norm())


def test_a_search_that_stalls_is_finished():
    A, _ = sparse_tensor(6, 3, 12, 9)
    start, stalled = multi_start_decomposition(A.entries, 6, 3, rng=0, n_starts=1)
    atoms, residual = refine_on_net(A.entries, 6, 3, start, rng=0)
    assert residual <= max(1e-9, 1e-2 * stalled) or residual <= stalled
    assert len(atoms)


def test_the_result_is_never_worse_and_outside_the_cone_never_good():
    entries = np.array([1.0, 2.0, 1.0])  # an indefinite matrix
    atoms, residual = refine_on_net(entries, 2, 2, np.ones((1, 2)), rng=0)
    start = np.linalg.norm([0, np.sqrt(2), 0]) / np.linalg.norm([1, 2 * np.sqrt(2), 1])
    assert 0.1 < residual <= start
    assert (atoms >= 0).all()
