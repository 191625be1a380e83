"""Facial reduction: tensors of low rank leave few variables, and their moments stay admissible."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.indices import multi_indices
from tensoralg.solvers.facial_reduction import reduce_faces
from tensoralg.solvers.moment_matrices import localizing_map
from tensoralg.solvers.moment_relaxation import build_relaxation, solve_moments
from tensoralg.solvers.simplex_measure import uniform_moments
from tensoralg.solvers.svec import smat


def power_moments(x, degree):
    return np.r_[1, x][multi_indices(len(x) + 1, degree)].prod(axis=1)


def atoms(n, r, seed):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(r)), rng.dirichlet(np.ones(n), r)[:, :-1]


def moments_of(weights, points, degree):
    return sum(c * power_moments(x, degree) for c, x in zip(weights, points, strict=True))


@pytest.mark.parametrize(
    ("n", "d", "k", "r", "left"),
    [(2, 3, 3, 1, 0), (3, 4, 3, 2, 0), (3, 4, 4, 5, 8), (4, 4, 3, 5, 0), (4, 4, 3, 6, 0)],
)
def test_variables_left(n, d, k, r, left):
    weights, points = atoms(n, r, 1)
    relaxation = build_relaxation(moments_of(weights, points, d), n - 1, d, k)
    reduced = reduce_faces(relaxation)
    assert relaxation.n_free > reduced.n_free == left
    if left == 0:
        np.testing.assert_allclose(reduced.known, moments_of(weights, points, 2 * k), atol=1e-9)
        assert solve_moments(reduced).status == "solved"


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_measure_itself_stays_admissible(n, d, r, seed):
    weights, points = atoms(n, r, seed)
    k = (d + 1) // 2 + (n < 4)
    reduced = reduce_faces(build_relaxation(moments_of(weights, points, d), n - 1, d, k))
    w = moments_of(weights, points, 2 * k)
    y = np.linalg.lstsq(reduced.directions, w - reduced.known, rcond=1e-13)[0]
    np.testing.assert_allclose(reduced.known + reduced.directions @ y, w, atol=1e-6)
    for block in reduced.blocks:
        full = block.change @ smat(block.map @ w) @ block.change.T
        found = block.offset + smat(block.derivatives @ y)
        np.testing.assert_allclose(found, full, atol=1e-4)


def test_points_on_the_boundary():
    # both points have u_3 = 0: the block of that factor vanishes altogether
    known = 0.5 * power_moments([0.2, 0.8], 3) + 0.5 * power_moments([0.7, 0.3], 3)
    reduced = reduce_faces(build_relaxation(known, 2, 3, 3))
    assert all(2 not in block.factors for block in reduced.blocks)
    # every completion lives on the edge, where x_2 = 1 - x_1
    one_variable = moments_of([0.5, 0.5], np.array([[0.2], [0.7]]), 3)
    edge = build_relaxation(one_variable, 1, 3, 3)
    assert reduced.n_free == reduce_faces(edge).n_free == edge.n_free
    w = solve_moments(reduced).moments
    factor = localizing_map(2, 6, 0, [[(1, 0), (-1, 1), (-1, 2)]])
    assert abs(factor @ w).max() < 1e-8


def test_interior_moments_are_left_alone():
    relaxation = build_relaxation(uniform_moments(2, 3), 2, 3, 3)
    assert reduce_faces(relaxation) is relaxation


def test_moments_of_no_measure_are_left_alone():
    # singular, and no measure: 1, 0, 0 and 1 contradict each other
    relaxation = build_relaxation([1.0, 0.0, 0.0, 1.0], 1, 3, 2)
    assert reduce_faces(relaxation) is relaxation


def test_homogeneous_relaxations_are_refused():
    relaxation = build_relaxation(uniform_moments(2, 3), 2, 3, 2, homogeneous=True)
    with pytest.raises(ValueError, match="must be dehomogenised"):
        reduce_faces(relaxation)
