"""Affine generating polynomials: weights and means of product mixtures from their moments."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tensoralg.core.indices import multi_indices, number_of_multi_indices
from tensoralg.errors import RankBoundError, ShapeError
from tensoralg.solvers.coordinate_splits import Form, feasible_splits, largest_rank
from tensoralg.solvers.generating_polynomials import (
    AffineComponents,
    affine_components,
    flattening,
)

Array = NDArray[Any]


def mixture(d: int, r: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(r, 5.0)), rng.standard_normal((r, d))


def moments(weights: Array, points: Array, order: int, *, hide: bool = True) -> Array:
    """Homogenised moments of weighted points; what a mixture blurs (powers) is hidden."""
    index = multi_indices(points.shape[1] + 1, order)
    one = np.column_stack([np.ones(len(points)), points])
    values = weights @ one[:, index].prod(axis=2)
    repeated = ((index[:, 1:] == index[:, :-1]) & (index[:, 1:] > 0)).any(axis=1)
    return np.where(repeated & hide, np.nan, values)


def assert_found(found: AffineComponents, weights: Array, points: Array, tolerance: float) -> None:
    distance = ((found.means[:, None] - points[None]) ** 2).sum(axis=2)
    at = linear_sum_assignment(distance.T)[1]
    np.testing.assert_allclose(found.weights[at], weights, atol=tolerance)
    np.testing.assert_allclose(found.means[at], points, atol=tolerance)


@given(d=st.integers(3, 9), order=st.integers(3, 5), seed=st.integers(0, 1000), data=st.data())
def test_every_feasible_split_recovers_exact_moments(
    d: int, order: int, seed: int, data: st.DataObject
) -> None:
    r = data.draw(st.integers(1, min(4, largest_rank(d, order, "affine"))), label="r")
    degree, size = data.draw(st.sampled_from(feasible_splits(d, order, r, "affine")), label="split")
    block = np.random.default_rng(seed).permutation(d)[:size]
    weights, points = mixture(d, r, seed)
    values = moments(weights, points, order)
    found = affine_components(values, order, d, r, block.tolist(), degree, rng=seed)
    # the error grows with the condition, which random mixtures do not bound
    tolerance = (
        1e-9 * max(found.condition, found.singular_values[0] / found.singular_values[r - 1]) ** 2
    )
    assert_found(found, weights, points, max(tolerance, 1e-8))
    assert found.n_complex == 0


@pytest.mark.parametrize("form", ["affine", "power"])
@pytest.mark.parametrize(("d", "order"), [(8, 4), (15, 3), (12, 5)])
def test_at_the_bound(d: int, order: int, form: Form) -> None:
    r = largest_rank(d, order, form)
    degree, size = feasible_splits(d, order, r, form)[0]
    weights, points = mixture(d, r, 1)
    values = moments(weights, points, order, hide=form == "affine")
    block = list(range(d - size, d))
    found = affine_components(values, order, d, r, block, degree, powers=form == "power", rng=0)
    assert_found(found, weights, points, 1e-5)
    assert len(found.singular_values) >= r
    assert found.singular_values[r - 1] > 1e-9


def test_centred_data_are_no_obstacle() -> None:
    weights, points = mixture(9, 3, 2)
    points -= weights @ points
    found = affine_components(moments(weights, points, 3), 3, 9, 3, [0, 1, 2, 3], 1, rng=0)
    assert_found(found, weights, points, 1e-8)


def test_noise_changes_the_answer_little() -> None:
    weights, points = mixture(10, 3, 3)
    values = moments(weights, points, 3)
    noise = 1e-7 * np.random.default_rng(0).standard_normal(values.shape)
    found = affine_components(values + noise, 3, 10, 3, [0, 1, 2, 3, 4], 1, rng=0)
    assert_found(found, weights, points, 1e-4)


def test_complex_pairs_give_real_answers_and_are_counted() -> None:
    rng = np.random.default_rng(4)
    counts = []
    for _ in range(20):
        values = rng.standard_normal(number_of_multi_indices(8, 3))
        values[0] = 1.0
        found = affine_components(values, 3, 7, 3, [0, 1, 2], 1, rng=0, n_draws=1)
        assert found.means.dtype == found.weights.dtype == np.float64
        assert np.isfinite(found.means).all()
        counts.append(found.n_complex)
    assert max(counts) == 2  # conjugate pairs
    assert all(n % 2 == 0 for n in counts)


def test_singular_values_drop_after_the_rank() -> None:
    weights, points = mixture(10, 3, 5)
    found = affine_components(moments(weights, points, 3), 3, 10, 3, [0, 1, 2, 3, 4], 1, rng=0)
    assert found.singular_values[3] < 1e-12 * found.singular_values[0]
    assert found.singular_values[2] > 1e-3 * found.singular_values[0]


def test_the_same_seed_gives_the_same_bits() -> None:
    weights, points = mixture(8, 3, 6)
    values = moments(weights, points, 3)
    first, second = (affine_components(values, 3, 8, 3, [0, 1, 2], 1, rng=9) for _ in range(2))
    np.testing.assert_array_equal(first.means, second.means)
    np.testing.assert_array_equal(first.weights, second.weights)


def test_one_component_is_its_first_moments() -> None:
    point = np.array([[0.5, -2.0, 3.0]])
    found = affine_components(moments(np.ones(1), point, 3), 3, 3, 1, [1], 1, rng=0)
    assert_found(found, np.ones(1), point, 1e-12)


@pytest.mark.parametrize("powers", [False, True])
def test_flattening_is_the_matrix_of_products(powers: bool) -> None:
    d, order, degree, block = 5, 4, 2, [1, 3]
    weights, points = mixture(d, 2, 7)
    got = flattening(
        moments(weights, points, order, hide=False), order, d, block, degree, powers=powers
    )
    one = np.column_stack([np.ones(2), points])

    def features(columns: list[int]) -> Array:
        labels = [0, *(c + 1 for c in columns)]
        parts = []
        for i in multi_indices(len(labels), 2):
            if powers or i[0] != i[1] or i[0] == 0:
                parts.append(one[:, labels[i[0]]] * one[:, labels[i[1]]])
        return np.array(parts)

    left, right = features(block), features([0, 2, 4])
    expected = (left * weights) @ right.T
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.sort(got, axis=None), np.sort(expected, axis=None), atol=1e-12)
    np.testing.assert_allclose(
        np.linalg.svd(got, compute_uv=False), np.linalg.svd(expected, compute_uv=False), atol=1e-12
    )


@pytest.mark.parametrize("rank", [0, 4, 100])
def test_a_rank_that_the_split_does_not_hold(rank: int) -> None:
    values = moments(*mixture(6, 2, 0), 3)
    with pytest.raises(RankBoundError, match=f"rank={rank}: .* at most 3 components"):
        affine_components(values, 3, 6, rank, [0, 1], 1)


@pytest.mark.parametrize("block", [[0, 0], [6], [-1], [0, 1, 2, 3, 4, 5]])
def test_a_block_that_is_none(block: list[int]) -> None:
    values = moments(*mixture(6, 2, 0), 3)
    for call in (
        lambda: affine_components(values, 3, 6, 1, block, 1),
        lambda: flattening(values, 3, 6, block, 1),
    ):
        with pytest.raises(ShapeError, match="block must name distinct coordinates"):
            call()


@pytest.mark.parametrize("length", [0, 83, 85])
def test_values_of_another_length(length: int) -> None:
    with pytest.raises(ShapeError, match=r"shape \(84,\) for order 3 in 6 coordinates"):
        affine_components(np.ones(length), 3, 6, 1, [0], 1)


def test_a_moment_that_is_not_known_is_named() -> None:
    weights, points = mixture(5, 2, 0)
    values = moments(weights, points, 3)
    values[(multi_indices(6, 3) == [1, 3, 4]).all(axis=1)] = np.nan
    with pytest.raises(ValueError, match=r"\[0, 2, 3\].* not known"):
        affine_components(values, 3, 5, 2, [0, 1], 1, rng=0)
