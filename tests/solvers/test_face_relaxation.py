"""One measure for each face that the zeros of a tensor allow."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.solvers.certificate_faces import faces_certificate
from tensoralg.solvers.face_relaxation import build_face_relaxation, solve_face_shift
from tensoralg.solvers.rational_forms import monomials, multiplicity


def scaled(entries, n, d):
    listed = monomials(n, d)
    mass = sum(multiplicity(a) * Fraction(x) for a, x in zip(listed, entries, strict=True))
    return np.array([float(Fraction(x) / mass) for x in entries])


def closed_path(n, c):
    """Ones on a closed path, diagonal 1, 2, .., 2, c: triangle-free for n >= 4."""
    entries = dict.fromkeys(monomials(n, 2), 0)
    for i in range(n):
        entries[i, i] = 2
        entries[tuple(sorted((i, (i + 1) % n)))] = 1
    entries[0, 0], entries[n - 1, n - 1] = 1, c
    faces = [tuple(sorted((i, (i + 1) % n))) for i in range(n)]
    return list(entries.values()), faces


def from_atoms(rng, n, d, faces, n_atoms):
    """Integer atoms, each on one face."""
    total = np.zeros(len(monomials(n, d)), dtype=object)
    for C in faces:
        for _ in range(n_atoms):
            u = np.zeros(n, dtype=int)
            u[list(C)] = rng.integers(1, 4, len(C))
            total += [int(np.prod(u[list(a)])) for a in monomials(n, d)]
    return total.tolist()


@pytest.mark.parametrize("n", [5, 8, 11])
def test_a_triangle_free_matrix_obeys_its_comparison_matrix(n):
    for c in (3, 6, 20):
        entries, faces = closed_path(n, c)
        result = solve_face_shift(build_face_relaxation(scaled(entries, n, 2), n, 2, 1, faces))
        M = np.zeros((n, n))
        for (i, j), value in zip(monomials(n, 2), entries, strict=True):
            M[i, j] = M[j, i] = value if i == j else -value
        assert (result.t < 1e-9) == (np.linalg.eigvalsh(M)[0] > -1e-9)
        if result.t > 1e-9:
            certificate = faces_certificate(entries, n, 2, result.coefficients, faces)
            assert certificate.verify()


def test_the_boundary_case_is_found_from_both_sides():
    for c, inside in [(Fraction(7001, 1000), True), (Fraction(6999, 1000), False)]:
        entries, faces = closed_path(5, c)
        result = solve_face_shift(build_face_relaxation(scaled(entries, 5, 2), 5, 2, 1, faces))
        assert (result.t < 0) == inside
        if not inside:
            assert faces_certificate(entries, 5, 2, result.coefficients, faces).verify()


FACES = [(0, 1, 2), (2, 3), (3, 4, 5), (0, 5), (6,)]


@pytest.mark.parametrize("order", [2, 3])
def test_sums_of_powers_lie_in_the_relaxation_and_less_of_the_diagonal_does_not(order):
    n, d = 7, 3
    rng = np.random.default_rng(4)
    entries = from_atoms(rng, n, d, FACES, 3)
    inside = solve_face_shift(build_face_relaxation(scaled(entries, n, d), n, d, order, FACES))
    assert inside.t < 1e-8
    assert faces_certificate(entries, n, d, inside.coefficients, FACES) is None
    less = [
        Fraction(x) / 2 if len(set(a)) == 1 else x
        for a, x in zip(monomials(n, d), entries, strict=True)
    ]
    outside = solve_face_shift(build_face_relaxation(scaled(less, n, d), n, d, order, FACES))
    assert outside.t > 1e-4
    assert outside.coefficients @ scaled(less, n, d) == pytest.approx(-outside.t, abs=1e-7)
    certificate = faces_certificate(less, n, d, outside.coefficients, FACES)
    assert certificate.verify()
    assert certificate.kind == "faces"


def test_moments_of_the_faces_add_up_to_the_shifted_tensor():
    n, d, k = 7, 3, 2
    entries = scaled(from_atoms(np.random.default_rng(9), n, d, FACES, 2), n, d)
    relaxation = build_face_relaxation(entries, n, d, k, FACES)
    result = solve_face_shift(relaxation)
    total, uniform = np.zeros(len(entries)), np.zeros(len(entries))
    for face, moments in zip(relaxation.faces, result.moments, strict=True):
        q = len(face.positions)
        total[face.positions] += np.linalg.solve(face.lower, moments[:q])
        uniform[face.positions] += np.linalg.solve(face.lower, face.relaxation.uniform[:q])
    shifted = entries + result.t * uniform / len(relaxation.faces)
    shared = np.isin(
        np.arange(len(entries)), np.concatenate([f.positions for f in relaxation.faces])
    )
    np.testing.assert_allclose(total[shared], shifted[shared], atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_certificate_for_sums_of_powers(seed):
    rng = np.random.default_rng(seed)
    n, d = 5, int(rng.integers(2, 4))
    faces = [(0, 1, 2), (2, 3), (1, 4), (3, 4)]
    entries = from_atoms(rng, n, d, faces, 1)
    relaxation = build_face_relaxation(scaled(entries, n, d), n, d, 2, faces)
    result = solve_face_shift(relaxation)
    assert result.t < 1e-7
    assert faces_certificate(entries, n, d, result.coefficients, faces) is None
    # nor for any other form
    noise = rng.standard_normal(len(entries))
    assert faces_certificate(entries, n, d, noise, faces, max_leaves=50) is None


def test_faces_of_one_variable_alone_are_refused():
    with pytest.raises(ValueError, match="at least two variables"):
        build_face_relaxation([0.5, 0, 0.5], 2, 2, 1, [(0,), (1,)])
