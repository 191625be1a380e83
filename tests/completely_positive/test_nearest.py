"""Nearest completely positive tensors: known distances, optimality conditions, honest bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import closest, hilbert, nearest
from tensoralg.core.index_maps import listed_multiplicities
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.errors import NotSymmetricError, ProblemTooLargeError


def circulant(*row):
    return np.array([np.roll(row, k) for k in range(len(row))], dtype=float)


def check(A, result):
    """The result is what it says: atoms, distance, and an order of the two bounds."""
    tensor = A if isinstance(A, SymmetricTensor) else SymmetricTensor.from_dense(np.array(A, float))
    assert (result.decomposition.points >= 0).all()
    rebuilt = result.decomposition.to_tensor()
    size = np.linalg.norm(tensor.to_dense())
    np.testing.assert_allclose(rebuilt.entries, result.tensor.entries, atol=1e-12 * size)
    distance = np.linalg.norm((tensor - result.tensor).to_dense())
    assert result.value == pytest.approx(distance, abs=1e-12 * size)
    assert 0 <= result.lower_bound <= result.value
    if result.status == "optimal":
        assert result.gap <= 1.01e-6 * size
    return result


@pytest.mark.parametrize("factor", [0.01, 1.0, 5.0, 1e8])
def test_the_distance_along_horns_form_is_known(factor):
    horn, boundary = circulant(1, -1, 1, 1, -1), circulant(8, 5, 1, 1, 5)
    # <Horn, boundary> = 0: the boundary matrix is nearest, at the distance factor |Horn|
    A = boundary - factor * horn
    result = check(A, closest(A))
    assert result.status == "optimal"
    assert result.value == pytest.approx(5 * factor, rel=1e-6)
    size = max(factor, 1.0)
    np.testing.assert_allclose(result.tensor.to_dense(), boundary, atol=2e-3 * size)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 4), st.integers(0, 10**6))
def test_small_matrices_against_alternating_projections(n, seed):
    # up to dimension 4 the cone is that of doubly nonnegative matrices
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n))
    A = A + A.T
    X, shift = A.copy(), np.zeros_like(A)  # Dykstra: the shift belongs to the semidefinite part
    clip = np.zeros_like(A)
    for _ in range(3000):
        values, vectors = np.linalg.eigh(X + shift)
        Y = (vectors * np.maximum(values, 0)) @ vectors.T
        shift = X + shift - Y
        new = np.maximum(Y + clip, 0)
        clip = Y + clip - new
        X = new
    result = check(A, closest(A))
    assert result.status == "optimal"
    assert result.value == pytest.approx(np.linalg.norm(A - X), abs=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 10**6))
def test_bounds_hold_for_every_completely_positive_tensor(n, d, seed):
    rng = np.random.default_rng(seed)
    count = len(multi_indices(n, d))
    A = SymmetricTensor(rng.normal(size=count), d, n)
    result = check(A, closest(A, max_order=(d + 1) // 2 + 1))
    for scale in (0.1, 1.0):
        atoms = scale * rng.random((3, n)) * (rng.random((3, n)) < 0.7)
        X = SymmetricTensor.from_decomposition(np.ones(3), atoms, d)
        assert np.linalg.norm((A - X).to_dense()) >= result.lower_bound
    # first-order conditions: the form of X - A is nonnegative, and zero at the atoms
    weights = listed_multiplicities(n, d) * (result.tensor - A).entries
    points = np.concatenate([rng.dirichlet(np.ones(n), 200), np.eye(n)])
    assert (evaluate_monomials(points, multi_indices(n, d)) @ weights).min() > -1e-5
    assert abs(weights @ result.tensor.entries) < 1e-5


@pytest.mark.parametrize("A", [[[2, 1], [1, 2]], hilbert(3, 3), [[0, 0], [0, 0]], [3.0, 0.0, 2.0]])
def test_what_is_completely_positive_is_its_own_nearest(A):
    result = check(A, closest(A))
    assert result.status == "optimal"
    assert result.value <= 1e-8
    assert result.lower_bound == 0.0


@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2), (4,), (1, 1, 1)])
def test_below_zero_there_is_only_zero(shape):
    A = -np.ones(shape)
    result = check(A, closest(A))
    assert result.status == "optimal"
    assert result.decomposition.rank == 0
    assert result.value == pytest.approx(np.sqrt(A.size))


def test_vectors_are_clipped():
    result = check([1.0, -2.0, 3.0], closest([1.0, -2.0, 3.0]))
    assert result.tensor.entries == pytest.approx([1.0, 0.0, 3.0])
    assert result.lower_bound == pytest.approx(2.0)


def test_without_a_relaxation_there_is_no_word_of_optimality(monkeypatch):
    def refused(*_, **__):
        raise ProblemTooLargeError("about 7 GiB")

    monkeypatch.setattr(nearest, "relaxed", refused)
    A = circulant(8, 5, 1, 1, 5) - circulant(1, -1, 1, 1, -1)
    result = check(A, closest(A))
    assert result.status == "feasible"
    assert result.lower_bound == 0.0
    assert "7 GiB" in result.message
    assert result.value == pytest.approx(5.0, rel=1e-6)


def test_bad_input():
    with pytest.raises(NotSymmetricError):
        closest([[1.0, 2.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"ceil\(d/2\) = 2"):
        closest(hilbert(2, 3), max_order=1)
    with pytest.raises(ValueError, match="finite"):
        closest([[np.nan]])
    assert closest([[1.0, 2.0], [0.0, 1.0]], symmetrize=True).value == pytest.approx(0, abs=1e-9)
