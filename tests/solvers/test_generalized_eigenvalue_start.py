import numpy as np
import pytest

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.solvers.generalized_eigenvalue_start import (
    generalized_eigenvalue_starts,
    mode_groups,
)
from tensoralg.solvers.polyadic_residual import relative_residual


def dense(factors):
    return khatri_rao(factors).sum(axis=1).reshape([len(f) for f in factors])


def random_factors(shape, rank, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, rank)) for n in shape]


@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((6, 5, 4), 5),
        ((5, 2, 7), 5),  # the middle mode picks the slices
        ((12, 10, 8), 6),
        ((3, 3, 3, 3, 2), 5),  # two pairs of modes are merged
        ((7, 1, 6, 3), 4),
        ((4, 3, 5), 1),
    ],
)
def test_exact_tensors_are_decomposed_exactly(shape, rank):
    tensor = dense(random_factors(shape, rank, 0))
    starts = generalized_eigenvalue_starts(tensor, rank, rng=1)
    assert [residual for residual, _ in starts] == sorted(residual for residual, _ in starts)
    residual, factors = starts[0]
    assert residual < 1e-9
    assert residual == pytest.approx(relative_residual(tensor, factors), abs=1e-13)
    assert [f.shape for f in factors] == [(n, rank) for n in shape]


def test_weights_of_six_orders_of_magnitude():
    factors = [f / np.linalg.norm(f, axis=0) for f in random_factors((9, 9, 9), 7, 0)]
    factors[0] = factors[0] * 10.0 ** -np.arange(7)
    residual, found = generalized_eigenvalue_starts(dense(factors), 7, rng=1)[0]
    assert residual < 1e-7
    norms = np.prod([np.linalg.norm(f, axis=0) for f in found], axis=0)
    np.testing.assert_allclose(np.sort(norms)[::-1][:5], 10.0 ** -np.arange(5), rtol=1e-2)


def test_complex_pairs_stand_for_real_planes():
    # slices that are rotations have no real eigenvectors
    tensor = np.zeros((2, 2, 2))
    tensor[:, :, 0] = np.eye(2)
    tensor[:, :, 1] = [[0.0, 1.0], [-1.0, 0.0]]
    starts = generalized_eigenvalue_starts(tensor, 2, rng=0)
    assert starts
    assert all(np.isfinite(f).all() and not np.iscomplexobj(f) for f in starts[0][1])
    assert starts[0][0] < 1.0


def test_no_groups_no_starts():
    assert mode_groups((4, 4, 4), 5) is None
    assert mode_groups((6, 6), 3) is None
    assert generalized_eigenvalue_starts(np.ones((4, 4, 4)), 5) == []
    assert generalized_eigenvalue_starts(np.zeros((4, 4, 4)), 2) == []


def test_groups_cover_all_modes_and_are_large_enough():
    shape, rank = (3, 4, 2, 5, 2), 6
    groups = mode_groups(shape, rank)
    assert sorted(groups[0] + groups[1] + groups[2]) == list(range(5))
    sizes = [int(np.prod([shape[k] for k in group])) for group in groups]
    assert sizes[0] >= rank
    assert sizes[1] >= rank
    assert sizes[2] >= 2
