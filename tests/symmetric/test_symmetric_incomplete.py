import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import IncompleteSymmetricTensor, SymmetricTensor
from tensoralg.core.errors import ProblemTooLargeError, RankBoundError
from tensoralg.symmetric import decompose


def distinct_tensor(dimension, order, rank, seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((rank, dimension)), rng.dirichlet(np.full(rank, 5.0))
    tensor = SymmetricTensor.from_decomposition(weights, points, order)
    return points, IncompleteSymmetricTensor.distinct(tensor)


def with_values(tensor, values):
    return IncompleteSymmetricTensor(tensor.indices, values, tensor.order, tensor.dimension)


def angle_error(points, found):
    units = points / np.linalg.norm(points, axis=1)[:, None]
    cosines = np.abs(units @ found.T)
    assert len(set(cosines.argmax(axis=1))) == len(points)
    return np.sqrt(max(2 - 2 * cosines.max(axis=1).min(), 0.0))


@pytest.mark.parametrize(
    ("dimension", "order", "rank"), [(8, 4, 3), (15, 3, 6), (15, 4, 8), (12, 5, 10), (10, 6, 4)]
)
@pytest.mark.parametrize("given_rank", [True, False])
def test_distinct_entries_at_the_bound(dimension, order, rank, given_rank):
    points, tensor = distinct_tensor(dimension, order, rank, seed=1)
    result = decompose(tensor, rank if given_rank else None, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", rank)
    assert angle_error(points, result.decomposition.points) < 1e-7
    # the whole tensor is recovered, not only the known entries
    assert "generating polynomials" in result.message


@pytest.mark.parametrize(("dimension", "order", "rank"), [(8, 4, 3), (15, 3, 6)])
def test_noise_and_corruption(dimension, order, rank):
    points, tensor = distinct_tensor(dimension, order, rank, seed=2)
    rng = np.random.default_rng(3)
    noisy = tensor.values * (1 + 1e-4 * rng.standard_normal(len(tensor.values)))
    result = decompose(with_values(tensor, noisy), rank, rng=0)
    assert result.status == "approximate"
    assert result.residual < 1e-4
    assert angle_error(points, result.decomposition.points) < 1e-2
    corrupted = tensor.values.copy()
    corrupted[5] += 0.01 * np.abs(corrupted).max()
    result = decompose(with_values(tensor, corrupted), rank, rng=0)
    assert result.status != "exact"
    assert result.residual > 1e-6


def test_above_the_bound_falls_back_to_least_squares():
    points, tensor = distinct_tensor(8, 4, 4, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [decompose(tensor, 4, rng=seed) for seed in range(2)]
    assert all("exceeds the bound 3" in result.message for result in results)
    best = min(results, key=lambda result: result.residual)
    assert best.status == "exact"
    assert angle_error(points, best.decomposition.points) < 1e-6


@pytest.mark.parametrize(("dimension", "order", "rank"), [(8, 4, 2), (15, 3, 4)])
def test_superfluous_terms_are_left_out(dimension, order, rank):
    points, tensor = distinct_tensor(dimension, order, rank, seed=10)
    result = decompose(tensor, rank + 1, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", rank)
    assert f"{rank + 1} were asked for" in result.message
    assert angle_error(points, result.decomposition.points) < 1e-7


def test_counting_bound_names_every_bound():
    _, tensor = distinct_tensor(8, 4, 2, seed=0)
    with pytest.raises(RankBoundError, match=r"rank=9.*3 for the homogeneous.*8 by counting 70"):
        decompose(tensor, 9)
    with pytest.raises(ValueError, match="no known entry"):
        decompose(IncompleteSymmetricTensor(np.zeros((0, 3), int), np.zeros(0), 3, 3), 1)


def test_general_pattern_of_known_entries():
    rng = np.random.default_rng(5)
    points = rng.standard_normal((3, 5))
    complete = SymmetricTensor.from_decomposition(np.ones(3), points, 4)
    known = rng.random(len(complete.entries)) < 0.7
    tensor = IncompleteSymmetricTensor(complete.indices[known], complete.entries[known], 4, 5)
    for rank in (3, None):
        result = decompose(tensor, rank, rng=0)
        assert (result.status, result.decomposition.rank) == ("exact", 3)
        assert result.decomposition.residual(complete) < 1e-9


def test_everything_known_is_the_complete_problem():
    points = np.random.default_rng(6).standard_normal((3, 4))
    complete = SymmetricTensor.from_decomposition(np.ones(3), points, 3)
    shuffled = np.random.default_rng(7).permutation(len(complete.entries))
    tensor = IncompleteSymmetricTensor(complete.indices[shuffled], complete.entries[shuffled], 3, 4)
    result = decompose(tensor, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", 3)


@settings(max_examples=10)
@given(st.permutations(range(8)), st.sampled_from([1e-8, 1.0, 1e8]), st.integers(0, 30))
def test_permutation_and_scale(order_of_coordinates, factor, seed):
    points, tensor = distinct_tensor(8, 4, 2, seed)
    new = np.argsort(order_of_coordinates)  # coordinate i moves to new[i]
    moved = IncompleteSymmetricTensor(new[tensor.indices], tensor.values * factor, 4, 8)
    result = decompose(moved, 2, rng=seed)
    assert result.status == "exact"
    assert angle_error(points[:, list(order_of_coordinates)], result.decomposition.points) < 1e-5


def test_float32_zero_and_unrevealed_rank():
    points, tensor = distinct_tensor(15, 3, 4, seed=8)
    result = decompose(with_values(tensor, tensor.values.astype(np.float32)), 4, rng=0)
    assert result.status == "exact"
    assert result.decomposition.points.dtype == np.float32
    assert angle_error(points, result.decomposition.points) < 1e-3
    assert decompose(with_values(tensor, np.zeros(len(tensor.values))), 3).decomposition.rank == 0
    noise = np.random.default_rng(9).standard_normal(20)
    _, small = distinct_tensor(6, 3, 1, seed=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RankBoundError, match="reveals the rank"):
            decompose(with_values(small, noise), rng=0)


def test_dimensions_beyond_memory_are_refused():
    few = IncompleteSymmetricTensor([[0, 1, 2], [1, 2, 7999]], [1.0, 2.0], 3, 8000)
    with pytest.raises(ProblemTooLargeError, match="n=8000 and order m=3"):
        decompose(few, 1, rng=0)
