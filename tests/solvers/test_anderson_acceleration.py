"""Anderson acceleration on maps whose fixed points are known."""

import numpy as np

from tensoralg.solvers.anderson_acceleration import AndersonAcceleration


def iterate(matrix, start, steps, **options):
    acceleration = AndersonAcceleration(**options)
    ones = np.ones(len(start))
    x, extrapolations = start, 0
    for _ in range(steps):
        image = matrix @ x
        acceleration.remember(x, image)
        target = acceleration.extrapolate(ones, ones)
        x = image if target is None else target
        extrapolations += target is not None
    return x, acceleration, extrapolations


def test_slow_linear_map_is_solved_in_as_many_steps_as_it_has_eigenvalues():
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    matrix = rotation @ np.diag([0.99, 0.9, 0.5, 0.1]) @ rotation.T
    x, acceleration, _ = iterate(matrix, np.ones(4), 7, longest_step=np.inf)
    assert np.linalg.norm(x) < 1e-3
    assert abs(acceleration.curvature - 0.01) < 1e-3


def test_steps_are_kept_short():
    acceleration = AndersonAcceleration(longest_step=0.5)
    unit = np.array([1.0, 10.0])
    for x in (np.zeros(2), np.array([1.0, 1.0])):
        acceleration.remember(x, 0.99 * x + 1.0)
    target = acceleration.extrapolate(np.ones(2), unit)
    assert np.max(np.abs(target - (0.99 * np.ones(2) + 1.0)) / unit) <= 0.5 + 1e-12


def test_saddle_is_left_faster_than_by_plain_steps():
    matrix = np.diag([1.05, 0.5])
    x, acceleration, _ = iterate(matrix, np.array([1e-3, 1.0]), 20)
    assert acceleration.curvature < 0
    assert abs(x[0]) > 10 * 1e-3 * 1.05**20


def test_pause_after_failures_doubles_and_ends():
    acceleration = AndersonAcceleration()
    ones = np.ones(1)

    def passes_until_ready():
        x = 1.0
        for count in range(100):
            acceleration.remember(np.array([x]), np.array([0.9 * x]))
            if acceleration.extrapolate(ones, ones) is not None:
                return count
            x *= 0.9
        return None

    first = passes_until_ready()
    acceleration.reject()
    second = passes_until_ready()
    acceleration.reject()
    third = passes_until_ready()
    assert first == 1
    assert second < third
    acceleration.accept()
    acceleration.reject()
    assert passes_until_ready() == second


def test_standing_still_is_harmless():
    acceleration = AndersonAcceleration()
    for _ in range(3):
        acceleration.remember(np.ones(2), np.ones(2))
    target = acceleration.extrapolate(np.ones(2), np.ones(2))
    assert target is None or np.allclose(target, 1.0)
