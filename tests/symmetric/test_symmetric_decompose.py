import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.core.errors import ConvergenceWarning, NotSymmetricError, RankBoundError
from tensoralg.core.indices import multi_indices, multiplicities
from tensoralg.symmetric import decompose


def form(dimension, order, terms):
    """Tensor of a polynomial that is given as {exponents: coefficient}."""
    indices = multi_indices(dimension, order)
    entries = np.zeros(len(indices))
    for k, row in enumerate(indices.tolist()):
        exponents = tuple(row.count(i) for i in range(dimension))
        entries[k] = terms.get(exponents, 0.0)
    return SymmetricTensor(entries / multiplicities(indices), order, dimension)


def random_tensor(dimension, order, rank, seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((rank, dimension)), rng.standard_normal(rank)
    return points, SymmetricTensor.from_decomposition(weights, points, order)


def angle_error(points, found):
    units = points / np.linalg.norm(points, axis=1)[:, None]
    cosines = np.abs(units @ found.conj().T)
    assert len(set(cosines.argmax(axis=1))) == len(points)
    return np.sqrt(max(2 - 2 * cosines.max(axis=1).min(), 0.0))


# rank: smallest number of terms; status: over the reals or not
KNOWN = {
    # x^3 + y^3 + (x + y)^3
    "sum of three cubes": (2, 3, {(3, 0): 2, (2, 1): 3, (1, 2): 3, (0, 3): 2}, 2, "exact"),
    # a double root of the apolar form: rank m, border rank 2 (Comas and Seiguer)
    "x^2 y": (2, 3, {(2, 1): 1}, 3, "exact"),
    "x^5 y": (2, 6, {(5, 1): 1}, 6, "exact"),
    # Re (x + iy)^3: two complex cubes, three real ones
    "x^3 - 3 x y^2": (2, 3, {(3, 0): 1, (1, 2): -3}, 2, "complex"),
    # complex rank max(a, b) + 1, real rank a + b (Boij, Carlini, Geramita)
    "x^2 y^2": (2, 4, {(2, 2): 1}, 3, "complex"),
    "x^3 + y^3 + z^3": (3, 3, {(3, 0, 0): 1, (0, 3, 0): 1, (0, 0, 3): 1}, 3, "exact"),
    "xyz": (3, 3, {(1, 1, 1): 1}, 4, "exact"),
    # a conic and a tangent line: the ternary cubics of maximal rank
    "x^2 y + y^2 z": (3, 3, {(2, 1, 0): 1, (0, 2, 1): 1}, 5, "exact"),
    "Fermat quartic": (3, 4, {(4, 0, 0): 1, (0, 4, 0): 1, (0, 0, 4): 1}, 3, "exact"),
    # (x^2 + y^2 + z^2)^2: six diagonals of the icosahedron (Reznick)
    "squared quadric": (
        3,
        4,
        {(4, 0, 0): 1, (0, 4, 0): 1, (0, 0, 4): 1, (2, 2, 0): 2, (2, 0, 2): 2, (0, 2, 2): 2},
        6,
        "exact",
    ),
    "- x^4": (3, 4, {(4, 0, 0): -1}, 1, "exact"),
    "binary form in three variables": (3, 3, {(2, 1, 0): 1}, 3, "exact"),
    "one variable": (1, 5, {(5,): -2}, 1, "exact"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_ranks_are_detected(name):
    dimension, order, terms, rank, status = KNOWN[name]
    result = decompose(form(dimension, order, terms), rng=0)
    assert (result.decomposition.rank, result.status) == (rank, status)
    assert result.residual < 1e-10


@pytest.mark.parametrize(
    ("terms", "order", "rank"),
    [({(3, 0): 1, (1, 2): -3}, 3, 3), ({(2, 2): 1}, 4, 4), ({(4, 4): 1}, 8, 8)],
)
def test_real_rank_of_binary_forms_with_complex_points(terms, order, rank):
    result = decompose(form(2, order, terms), rank, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", rank)
    assert not np.iscomplexobj(result.decomposition.points)


def test_monomial_x2yz_has_rank_six():
    result = decompose(form(3, 4, {(2, 1, 1): 1}), 6, rng=0)
    assert result.status == "exact"


def test_complex_points_are_reported_in_conjugate_pairs():
    result = decompose(form(2, 3, {(3, 0): 1, (1, 2): -3}), 2, rng=0)
    assert result.status == "complex"
    assert "complex" in result.message
    first, second = result.decomposition.points
    # (x + iy)^3 and (x - iy)^3, with positive weights
    np.testing.assert_allclose(first, second.conj(), atol=1e-9)
    np.testing.assert_allclose(abs((first[1] / first[0]).imag), 1.0)
    assert np.all(result.decomposition.weights > 0)


def test_border_rank_is_not_a_success():
    with pytest.warns(ConvergenceWarning):
        result = decompose(form(2, 3, {(2, 1): 1}), 2, rng=0)
    assert result.status == "not converged"
    assert decompose(form(3, 3, {(1, 1, 1): 1}), 3, rng=0).status == "approximate"


@pytest.mark.parametrize(
    ("dimension", "order", "rank"),
    [(3, 3, 2), (3, 5, 6), (4, 4, 6), (5, 3, 5), (6, 6, 15), (10, 3, 10), (10, 4, 12), (7, 5, 20)],
)
@pytest.mark.parametrize("refine", [True, False])
def test_random_low_rank(dimension, order, rank, refine):
    points, tensor = random_tensor(dimension, order, rank, seed=rank)
    result = decompose(tensor, rng=1, refine=refine)
    assert (result.status, result.decomposition.rank) == ("exact", rank)
    assert angle_error(points, result.decomposition.points) < 1e-6
    np.testing.assert_allclose(np.linalg.norm(result.decomposition.points, axis=1), 1.0)
    if order % 2:
        assert np.all(result.decomposition.weights > 0)


@pytest.mark.parametrize(("dimension", "order", "rank"), [(3, 4, 6), (4, 3, 5), (3, 3, 4)])
def test_generic_ranks(dimension, order, rank):
    _, tensor = random_tensor(dimension, order, rank, seed=1)
    result = decompose(tensor, rank, rng=0)
    assert result.status in ("exact", "complex")
    assert result.residual < 1e-10


@pytest.mark.parametrize(("dimension", "order", "rank"), [(5, 3, 3), (4, 4, 3), (8, 4, 5)])
def test_noisy_low_rank(dimension, order, rank):
    points, tensor = random_tensor(dimension, order, rank, seed=11)
    noise = np.random.default_rng(2).standard_normal(len(tensor.entries))
    noise *= 1e-4 * tensor.norm() / np.sqrt(tensor.multiplicities @ noise**2)
    result = decompose(SymmetricTensor(tensor.entries + noise, order, dimension), rank, rng=0)
    assert result.status == "approximate"
    # the best approximation is at least as close as the truth
    assert 1e-6 < result.residual <= 1.0001e-4
    assert angle_error(points, result.decomposition.points) < 2e-2


def test_rank_one_approximation_is_optimal():
    rng = np.random.default_rng(3)
    tensor = SymmetricTensor(rng.standard_normal(15), 4, 3)
    result = decompose(tensor, 1, rng=0)
    x = result.decomposition.points[0]
    # stationary: T x^3 = lambda x
    np.testing.assert_allclose(
        tensor.contract(x, 3).entries, result.decomposition.weights[0] * x, atol=1e-5
    )


@pytest.mark.parametrize("factor", [1e8, 1e-8, -1.0])
def test_scale(factor):
    points, tensor = random_tensor(4, 3, 3, seed=5)
    first = decompose(tensor, rng=0).decomposition
    scaled = decompose(tensor * factor, rng=0)
    assert scaled.status == "exact"
    np.testing.assert_allclose(scaled.decomposition.weights, first.weights * abs(factor), rtol=1e-8)
    assert angle_error(points, scaled.decomposition.points) < 1e-6


@settings(max_examples=15)
@given(st.permutations(range(5)), st.integers(0, 50))
def test_permuted_coordinates_permute_the_points(order_of_coordinates, seed):
    points, tensor = random_tensor(5, 3, 4, seed)
    permuted = SymmetricTensor.from_dense(
        tensor.to_dense()[np.ix_(*[list(order_of_coordinates)] * 3)]
    )
    result = decompose(permuted, 4, rng=seed)
    assert result.status == "exact"
    assert angle_error(points[:, list(order_of_coordinates)], result.decomposition.points) < 1e-4


@settings(max_examples=15)
@given(st.integers(3, 5), st.integers(2, 4), st.integers(0, 1000))
def test_exact_status_means_reproduced(order, dimension, seed):
    entries = np.random.default_rng(seed).standard_normal(len(multi_indices(dimension, order)))
    tensor = SymmetricTensor(entries, order, dimension)
    result = decompose(tensor, 2, rng=seed) if dimension > 2 else decompose(tensor, order, rng=seed)
    rebuilt = result.decomposition.to_tensor(order).to_dense()
    distance = np.linalg.norm(rebuilt - tensor.to_dense()) / np.linalg.norm(tensor.to_dense())
    np.testing.assert_allclose(result.residual, distance, rtol=1e-6, atol=1e-12)
    assert (result.residual <= 1e-9) == (result.status in ("exact", "complex"))


def test_corrupted_entry_is_no_quiet_success():
    for dimension, order, rank in [(4, 3, 3), (5, 4, 4)]:
        _, tensor = random_tensor(dimension, order, rank, seed=8)
        entries = tensor.entries.copy()
        entries[len(entries) // 2] += 1e-4 * np.abs(entries).max()
        result = decompose(SymmetricTensor(entries, order, dimension), rank, rng=0)
        assert result.status == "approximate"
        assert result.residual > 1e-7


# the last three have flattenings of full rank, two of them in their essential variables
@pytest.mark.parametrize(
    ("dimension", "order", "rank", "asked"),
    [(4, 4, 3, 5), (6, 3, 3, 5), (3, 3, 3, 4), (2, 3, 2, 3)],
)
def test_fewer_terms_than_asked_when_fewer_are_exact(dimension, order, rank, asked):
    points, tensor = random_tensor(dimension, order, rank, 0)
    result = decompose(tensor, rank=asked, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", rank)
    assert angle_error(points, result.decomposition.points) < 1e-7
    assert f"{asked} were asked for" in result.message


def test_zero_and_rank_zero():
    zero = SymmetricTensor(np.zeros(20), 3, 4)
    for rank in (None, 2):
        result = decompose(zero, rank)
        assert (result.status, result.residual, result.decomposition.rank) == ("exact", 0.0, 0)
    result = decompose(SymmetricTensor(np.ones(20), 3, 4), 0)
    assert (result.status, result.residual) == ("approximate", 1.0)


def test_dtypes():
    points, tensor = random_tensor(4, 3, 3, seed=10)
    single = SymmetricTensor(tensor.entries.astype(np.float32), 3, 4)
    result = decompose(single, rng=0)
    assert result.status == "exact"
    assert result.decomposition.points.dtype == result.decomposition.weights.dtype == np.float32
    assert angle_error(points, result.decomposition.points) < 1e-3
    dense = decompose(single.to_dense(), rng=0)
    assert dense.decomposition.dtype == np.float32
    # integers: (1, 2)^3 + (1, -1)^3
    cubes = sum(np.einsum("i,j,k->ijk", u, u, u) for u in ([1, 2], [1, -1]))
    result = decompose(cubes, rng=0)
    assert (result.status, result.decomposition.rank) == ("exact", 2)
    assert result.decomposition.dtype == np.float64


def test_bad_input():
    with pytest.raises(ValueError, match="order 2"):
        decompose(np.eye(3))
    with pytest.raises(NotSymmetricError):
        decompose(np.arange(27.0).reshape(3, 3, 3))
    with pytest.raises(ValueError, match="complex"):
        decompose(np.ones((2, 2, 2), dtype=complex))
    with pytest.raises(ValueError, match="finite"):
        decompose(np.full((2, 2, 2), np.nan))
    tensor = SymmetricTensor(np.ones(10), 3, 3)
    with pytest.raises(ValueError, match="-1"):
        decompose(tensor, -1)
    with pytest.raises(TypeError, match=r"2\.5"):
        decompose(tensor, 2.5)
    with pytest.raises(RankBoundError, match=r"rank=9 exceeds 8.*generic rank 4"):
        decompose(tensor, 9)


def test_the_same_seed_gives_the_same_result():
    tensor = form(3, 3, {(1, 1, 1): 1})
    first, second = decompose(tensor, 4, rng=3), decompose(tensor, 4, rng=3)
    np.testing.assert_array_equal(first.decomposition.points, second.decomposition.points)
