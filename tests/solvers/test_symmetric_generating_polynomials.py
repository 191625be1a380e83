import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.core.indices import multi_indices, multiplicities
from tensoralg.solvers.binary_forms import binary_form_points
from tensoralg.solvers.coordinate_splits import feasible_splits, largest_rank
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors
from tensoralg.solvers.symmetric_extension import extension_points
from tensoralg.solvers.symmetric_flattening import change_variables, flattening_points
from tensoralg.solvers.symmetric_generating_polynomials import (
    homogeneous_components,
)
from tensoralg.solvers.symmetric_least_squares import (
    EntryFit,
    levenberg_marquardt,
    terms_from_points,
)


def entries_of(weights, points, order):
    return weights @ points[:, multi_indices(points.shape[1], order)].prod(axis=2)


def fit_of(entries, order, dimension):
    indices = multi_indices(dimension, order)
    return EntryFit(indices, entries, np.sqrt(multiplicities(indices)), dimension)


def parameter_error(points, weights, found, found_weights, order):
    """Largest error of unit points and relative weights after matching and removing phases."""
    lengths = np.linalg.norm(points, axis=1)
    units, sizes = points / lengths[:, None], weights * lengths**order
    match = np.abs(units @ found.conj().T).argmax(axis=1)
    assert len(set(match)) == len(points)
    phases = np.sum(units * found[match].conj(), axis=1)
    error = np.abs(units - phases[:, None] * found[match]).max()
    return max(error, np.abs(found_weights[match] * phases**-order - sizes).max() / sizes.max())


@pytest.mark.parametrize(
    ("dimension", "order", "bound"),
    [(6, 4, 1), (8, 4, 3), (15, 3, 6), (15, 4, 8), (8, 5, 3), (12, 5, 10), (10, 6, 4), (20, 5, 36)],
)
def test_bound_is_that_of_the_papers(dimension, order, bound):
    assert largest_rank(dimension, order, "homogeneous") == bound
    assert feasible_splits(dimension, order, bound, "homogeneous")
    assert not feasible_splits(dimension, order, bound + 1, "homogeneous")


@pytest.mark.parametrize(
    ("dimension", "order", "rank"), [(8, 4, 3), (15, 3, 6), (15, 4, 8), (12, 5, 10)]
)
@pytest.mark.parametrize("seed", range(3))
def test_exact_moments_at_the_bound(dimension, order, rank, seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((rank, dimension)), rng.dirichlet(np.full(rank, 5.0))
    entries = entries_of(weights, points, order)
    indices = multi_indices(dimension, order)
    entries[(np.diff(indices, axis=1) == 0).any(axis=1)] = np.nan
    found, found_weights = homogeneous_components(entries, None, order, dimension, rank, rng=seed)
    assert not np.iscomplexobj(found)
    assert parameter_error(points, weights, found, found_weights, order) < 1e-8


def test_every_split_and_degree_with_room_works():
    rng = np.random.default_rng(3)
    points, weights = rng.standard_normal((2, 9)), np.array([0.4, 0.6])
    entries = entries_of(weights, points, 5)
    for degree, k in feasible_splits(9, 5, 2, "homogeneous"):
        split = (8, list(range(k)))
        found = homogeneous_components(entries, None, 5, 9, 2, degree=degree, split=split, rng=0)
        assert parameter_error(points, weights, *found, 5) < 1e-8


def test_complex_conjugate_points_are_found():
    rng = np.random.default_rng(4)
    half = rng.standard_normal((1, 8)) + 1j * rng.standard_normal((1, 8))
    points = np.concatenate([half, half.conj()])
    entries = entries_of(np.ones(2), points, 4)
    assert np.abs(entries.imag).max() < 1e-12
    found, weights = homogeneous_components(entries.real, None, 4, 8, 2, rng=0)
    assert np.iscomplexobj(found)
    assert parameter_error(points, np.ones(2), found, weights, 4) < 1e-8


def test_homogeneous_border():
    with pytest.raises(RankBoundError, match=r"rank=7.*d=15.*m=3.*at most 6"):
        homogeneous_components(np.zeros(680), None, 3, 15, 7)
    with pytest.raises(ShapeError, match="680"):
        homogeneous_components(np.zeros(5), None, 3, 15, 2)
    with pytest.raises(ShapeError, match="distinct coordinates"):
        homogeneous_components(np.zeros(680), None, 3, 15, 2, split=(0, [0, 1]))
    known = np.ones(56, dtype=bool)
    known[10:20] = False
    with pytest.raises(ValueError, match="not known"):
        homogeneous_components(np.ones(56), known, 3, 6, 2, rng=0)


@pytest.mark.parametrize(
    ("dimension", "order", "rank"),
    [(3, 3, 3), (3, 4, 4), (4, 4, 6), (5, 4, 10), (10, 3, 10), (10, 4, 30), (6, 5, 20), (5, 6, 30)],
)
def test_flattening_points_within_reach(dimension, order, rank):
    rng = np.random.default_rng(rank)
    points, weights = rng.standard_normal((rank, dimension)), rng.standard_normal(rank)
    found = flattening_points(entries_of(weights, points, order), order, dimension, rank, rng=0)
    fit = fit_of(entries_of(weights, points, order), order, dimension)
    assert terms_from_points(fit, found).residual < 1e-9


def test_flattening_points_beyond_reach():
    entries = np.random.default_rng(0).standard_normal(10)
    assert flattening_points(entries, 3, 3, 4, rng=0) is None


@pytest.mark.parametrize(("dimension", "order", "rank"), [(3, 3, 4), (3, 4, 6), (4, 3, 5)])
def test_commuting_conditions_beyond_the_flattenings(dimension, order, rank):
    rng = np.random.default_rng(7)
    entries = entries_of(np.ones(rank), rng.standard_normal((rank, dimension)), order)
    fit = fit_of(entries, order, dimension)
    residuals = [
        terms_from_points(fit, extension_points(entries, order, dimension, rank, rng=s)).residual
        for s in range(12)
    ]
    assert min(residuals) < 1e-9


@given(st.integers(3, 7), st.data())
def test_sylvester_fits_generic_forms_of_every_rank_from_the_generic_one(order, data):
    rank = data.draw(st.integers((order + 2) // 2, order))
    seed = data.draw(st.integers(0, 100))
    entries = np.random.default_rng(seed).standard_normal(order + 1)
    points = binary_form_points(entries, rank, rng=seed)
    assert points.shape == (rank, 2)
    terms = terms_from_points(fit_of(entries, order, 2), points)
    # close roots give large weights, which amplify rounding
    assert terms.residual < 1e-12 * max(np.abs(terms.weights).max(), 1.0) ** 2 + 1e-10


def test_sylvester_full_rank_is_real():
    for seed in range(10):
        points = binary_form_points([1.0, 0.0, -1.0, 0.0], 3, rng=seed)
        assert not np.iscomplexobj(points) or np.abs(points.imag).max() < 1e-12
    with pytest.raises(ValueError, match=r"1 \.\. 3"):
        binary_form_points([1.0, 0.0, 0.0, 1.0], 4)


def test_joint_eigenvectors_keep_the_pairing():
    rng = np.random.default_rng(1)
    basis, values = rng.standard_normal((4, 4)), rng.standard_normal((3, 4))
    stack = basis @ (values[:, :, None] * np.linalg.inv(basis))
    _, found = joint_eigenvectors(stack, rng=0)
    np.testing.assert_allclose(
        found[:, np.argsort(found[0])], values[:, np.argsort(values[0])], atol=1e-9
    )


def test_change_variables_moves_points():
    rng = np.random.default_rng(2)
    points, matrix = rng.standard_normal((3, 4)), rng.standard_normal((4, 2))
    np.testing.assert_allclose(
        change_variables(entries_of(np.ones(3), points, 5), 5, 4, matrix),
        entries_of(np.ones(3), points @ matrix, 5),
        rtol=1e-10,
    )


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_levenberg_marquardt_never_gets_worse_and_converges(ridge):
    rng = np.random.default_rng(5)
    points = rng.standard_normal((3, 5))
    fit = fit_of(entries_of(np.ones(3), points, 4), 4, 5)
    start = terms_from_points(fit, points + 0.05 * rng.standard_normal((3, 5)))
    found = levenberg_marquardt(fit, start, ridge=ridge)
    assert found.residual < start.residual
    assert ridge or found.residual < 1e-14
    np.testing.assert_allclose(np.linalg.norm(found.points, axis=1), 1.0)


def test_levenberg_marquardt_step_is_that_of_the_true_jacobian():
    from tensoralg.solvers import symmetric_least_squares as module

    rng = np.random.default_rng(6)
    points = rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3))
    weights = rng.standard_normal(2) + 1j
    indices = multi_indices(3, 4)
    jacobian, monomials = module._jacobian(points, weights, indices)
    direction = rng.standard_normal(8) + 1j * rng.standard_normal(8)
    step = 1e-6
    moved = (weights + step * direction[:2]) @ (
        (points + step * direction[2:].reshape(3, 2).T)[:, indices].prod(axis=2)
    )
    np.testing.assert_allclose(
        (moved - weights @ monomials) / step, jacobian @ direction, rtol=1e-4, atol=1e-3
    )
