"""Mixing of fixed-point iterations, and the way out of saddles."""

import array_api_strict as strict
import numpy as np
import pytest

from tensoralg.gpu.namespaces import to_numpy
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.alternating_mixing import expanding_direction, mix


def linear_pairs(rates, count, seed=0):
    """Iterates of a symmetric linear map and their images."""
    rng = np.random.default_rng(seed)
    n = len(rates)
    basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
    matrix = (basis * rates) @ basis.T
    fixed = rng.standard_normal(n)
    x, points, images = rng.standard_normal(n), [], []
    for _ in range(count):
        image = fixed + matrix @ (x - fixed)
        points.append(x)
        images.append(image)
        x = image
    changes = [image - point for image, point in zip(images, points, strict=True)]
    return images, changes, fixed, basis


def test_a_linear_iteration_is_solved_once_there_are_enough_pairs():
    images, changes, fixed, _ = linear_pairs(np.array([0.9, 0.5, 0.1]), 4)
    # the damping of the mixing matrix is felt
    assert np.abs(mix(images, changes) - fixed).max() < 1e-3 * np.abs(images[-1] - fixed).max()


@pytest.mark.parametrize("convert", [np.asarray, strict.asarray])
def test_the_direction_that_expands_is_found_and_points_along_the_change(convert):
    images, changes, _, basis = linear_pairs(np.array([1.2, 0.7, 0.3, 0.1]), 6)
    direction = expanding_direction([convert(v) for v in images], [convert(v) for v in changes])
    direction = to_numpy(direction)
    assert abs(direction @ basis[:, 0]) == pytest.approx(1.0, abs=1e-5)
    assert direction @ changes[-1] > 0.0


def test_a_contraction_has_no_such_direction():
    images, changes, _, _ = linear_pairs(np.array([0.95, 0.7, 0.3]), 5)
    assert expanding_direction(images, changes) is None
    still = [np.ones(3)] * 3
    assert expanding_direction(still, [np.zeros(3)] * 3) is None


def test_sweeps_leave_a_saddle():
    rng = np.random.default_rng(0)
    basis = [np.linalg.qr(rng.standard_normal((8, 3)))[0] for _ in range(3)]
    tensor = np.einsum("s,is,js,ks->ijk", [3.0, 2.0, 1.0], *basis)
    # two terms next to the first term of the tensor, a trace of the second in one of them
    start = [
        np.stack([b[:, 0] + 1e-9 * b[:, 1], b[:, 0] - 1e-9 * b[:, 1]], axis=1)
        + 1e-6 * rng.standard_normal((8, 2))
        for b in basis
    ]
    solution = alternating_least_squares(tensor, start, max_iter=500)
    best = 1.0 - 1.0 / np.sqrt(14.0)
    assert solution.fit == pytest.approx(best, abs=1e-6)
