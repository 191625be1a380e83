"""The steps of a detection that solve a relaxation, on tensors that need them and alone."""

import numpy as np
import pytest

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import detect
from tensoralg.completely_positive import relaxation_steps as steps
from tensoralg.completely_positive.face_steps import solve_faces
from tensoralg.completely_positive.search import Search
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.core.errors import ProblemTooLargeError


def search_for(A, solver="auto"):
    return Search(read_tensor(A), np.random.default_rng(0), solver)


def circulant(*row):
    return np.array([np.roll(row, k) for k in range(len(row))])


BOUNDARY = circulant(8, 5, 1, 1, 5)  # Horn's form is zero on it
OUTSIDE = 50 * BOUNDARY - circulant(1, -1, 1, 1, -1)
LARGE = SymmetricTensor(np.random.default_rng(0).uniform(1, 1.1, 1365), 4, 12)


def test_orders_that_take_longer_than_seconds_are_left_out_and_named():
    search = search_for(LARGE)
    assert steps.orders_within_reach(search, None) == []
    assert search.evidence == [
        "order 2 was left out: 0 free moments, blocks of up to 78 rows (max_order=2 asks for it)"
    ]
    assert steps.orders_within_reach(search, 2) == [2]
    assert steps.orders_within_reach(search_for([[1]]), None) == []


def test_a_relaxation_that_is_too_large_is_evidence():
    search = search_for(LARGE)
    assert steps.solve_order(search, 4) is None
    assert search.order is None
    assert search.evidence[0].startswith("order 4 was refused: relaxation k=4")


def test_multipliers_become_a_certificate():
    search = search_for(OUTSIDE)
    found = steps.solve_order(search, 2)
    assert found.kind == "gram"
    assert found.certifies(search.tensor.lookup)
    assert search.order == 2
    assert search.shift > 1e-4


def test_subdivision_stands_in_for_sums_of_squares(monkeypatch):
    monkeypatch.setattr(steps, "gram_certificate", lambda *_: None)
    search = search_for(OUTSIDE)
    found = steps.solve_order(search, 2)
    assert found.kind == "bernstein"
    assert found.certifies(search.tensor.lookup)


def test_moments_give_atoms_on_the_boundary():
    search = search_for(BOUNDARY)
    assert steps.solve_order(search, 3) is None
    assert search.rebuilt
    assert abs(search.shift) < 1e-6
    points = search.decomposition.points
    assert (points >= 0).all()
    np.testing.assert_allclose(points.T @ points, BOUNDARY, atol=1e-8)


def test_kernels_of_known_blocks_leave_few_moments_free():
    rng = np.random.default_rng(3)
    A = SymmetricTensor.from_decomposition(np.ones(5), rng.random((5, 3)), 4)
    search = search_for(A)
    assert steps.solve_order(search, 4) is None
    assert "order 4: kernels of known blocks leave 8 of 30 moments free" in search.evidence
    assert "(flat)" in search.evidence[-1]
    assert search.rebuilt
    assert abs(search.shift) < 1e-6


def test_the_order_and_shift_of_a_relaxation_on_faces_are_kept():
    atoms = np.array([[1, 2, 0, 0], [0, 1, 1, 0], [0, 0, 2, 1], [1, 0, 0, 1], [2, 1, 0, 0]])
    A = SymmetricTensor.from_decomposition(np.ones(5), atoms, 3)
    search = search_for(A)
    assert len(search.supports) == 4
    assert solve_faces(search, 2) is None
    assert search.order == 2
    assert search.shift < 1e-8
    assert "on 4 faces: shift" in search.evidence[0]


def test_what_is_asked_for_and_does_not_fit_is_refused_by_detect():
    with pytest.raises(ProblemTooLargeError, match=r"max_order=8.*165 rows.* GiB"):
        steps.orders_within_reach(search_for(np.ones((4, 4, 4)), "clarabel"), 8)


def test_the_evidence_of_an_open_question_names_order_shift_and_residual(monkeypatch):
    monkeypatch.setattr(steps, "_certificate", lambda *_: None)
    found = detect(OUTSIDE, max_order=2)
    assert found.verdict == "undecided"
    for word in ("order 1: shift", "order 2: shift", "relative residual"):
        assert word in found.message
