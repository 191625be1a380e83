"""The step of a detection that splits a tensor among the faces that its zeros allow."""

import numpy as np
import pytest

from tensoralg.completely_positive.face_steps import solve_faces
from tensoralg.completely_positive.search import Search
from tensoralg.completely_positive.tensor_input import read_tensor


def search_for(A):
    return Search(read_tensor(A), np.random.default_rng(0))


def closed_path(n, last):
    A = 2 * np.eye(n, dtype=int)
    A += np.roll(np.eye(n, dtype=int), 1, 0) + np.roll(np.eye(n, dtype=int), -1, 0)
    A[0, 0], A[-1, -1] = 1, last
    return A


@pytest.mark.parametrize("n", [5, 9])
def test_a_closed_path_below_its_comparison_matrix_is_refuted(n):
    search = search_for(closed_path(n, 1))
    certificate = solve_faces(search, 1)
    assert certificate.verify()
    assert certificate.certifies(search.tensor.lookup)
    assert (search.order, search.shift > 0) == (1, True)
    assert "faces" in search.evidence[-1]


@pytest.mark.parametrize(("n", "diagonal"), [(9, 1.95), (15, 1.98)])
def test_doubly_nonnegative_odd_cycles_are_refuted_at_the_lowest_order(n, diagonal):
    # positive semidefinite from 2 cos(pi / n) on, completely positive from 2 on
    shift = np.roll(np.eye(n), 1, 0)
    search = search_for(diagonal * np.eye(n) + shift + shift.T)
    assert diagonal > 2 * np.cos(np.pi / n)
    certificate = solve_faces(search, 1)
    assert certificate.verify()
    assert certificate.certifies(search.tensor.lookup)


def test_a_matrix_in_the_cone_is_not():
    search = search_for(closed_path(5, 8))
    assert solve_faces(search, 1) is None
    assert search.order == 1
    assert search.shift <= 1e-8


def test_indices_without_entries_come_back():
    A = np.zeros((7, 7), dtype=int)
    A[1:6, 1:6] = closed_path(5, 3)
    search = search_for(A)
    certificate = solve_faces(search, 1)
    assert certificate.verify()
    assert certificate.dimension == 7
    assert certificate.certifies(search.tensor.lookup)


def test_tensors_without_zeros_and_with_large_faces_are_left_alone():
    assert solve_faces(search_for(np.ones((3, 3), dtype=int)), 1) is None
    assert solve_faces(search_for(np.eye(3, dtype=int)), 1) is None
    assert solve_faces(search_for(closed_path(5, 3)), 60) is None
