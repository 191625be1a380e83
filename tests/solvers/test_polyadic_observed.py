"""Factors from listed cells against dense weighted least squares."""

import numpy as np
import pytest

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.solvers import polyadic_observed
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.polyadic_observed import ObservedCells, is_worth_listing
from tensoralg.solvers.polyadic_residual import relative_residual


def make(shape, rank, share, *, seed=0, noise=0.0, draw="standard_normal"):
    rng = np.random.default_rng(seed)
    truth = [getattr(rng, draw)((n, rank)) for n in shape]
    tensor = khatri_rao(truth).sum(axis=1).reshape(shape)
    tensor = tensor + noise * tensor.std() * rng.standard_normal(shape)
    mask = rng.random(shape) < share
    start = [getattr(rng, draw)((n, rank)) for n in shape]
    return np.where(mask, tensor, np.nan), mask, start, tensor


@pytest.mark.parametrize("shape", [(12, 13), (9, 10, 11), (6, 5, 4, 7)])
@pytest.mark.parametrize("systems", [1, 30, 2**22])
def test_rows_are_those_of_dense_least_squares(monkeypatch, shape, systems):
    monkeypatch.setattr(polyadic_observed, "_SYSTEMS", systems)
    holed, mask, start, _ = make(shape, 2, 0.6, noise=0.3)
    cells = ObservedCells(holed, mask)
    for mode in range(len(shape)):
        found = cells.solve(mode, start, start[mode])
        rows = khatri_rao([f for k, f in enumerate(start) if k != mode])
        unfolding = np.moveaxis(holed, mode, 0).reshape(shape[mode], -1)
        for i, row in enumerate(unfolding):
            seen = ~np.isnan(row)
            expected = np.linalg.lstsq(rows[seen], row[seen], rcond=None)[0]
            np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-6)


def test_rows_that_cells_leave_open_stay_near_the_old_ones():
    _, mask, start, tensor = make((6, 7, 8), 3, 0.7)
    mask[2] = False
    mask[4] = False
    mask[4, 1, 1] = True
    found = ObservedCells(tensor, mask).solve(0, start, start[0])
    np.testing.assert_allclose(found[2], start[0][2])
    direction = start[1][1] * start[2][1]
    move = found[4] - start[0][4]
    # the shortest move that fits the one cell there is
    across = move - direction * (move @ direction) / (direction @ direction)
    np.testing.assert_allclose(across, 0.0, atol=1e-6)
    assert found[4] @ direction == pytest.approx(tensor[4, 1, 1], rel=1e-6)


def test_errors_and_scale_are_over_the_cells():
    holed, mask, start, tensor = make((5, 6, 7), 2, 0.5)
    cells = ObservedCells(holed, mask)
    model = khatri_rao(start).sum(axis=1).reshape(tensor.shape)
    error = ((tensor - model)[mask] ** 2).sum()
    assert cells.squared_error(start) == pytest.approx(error, rel=1e-12)
    best = (tensor[mask] @ model[mask]) / (model[mask] @ model[mask])
    assert cells.scale(start) == pytest.approx(best, rel=1e-12)
    assert cells.scale([0.0 * f for f in start]) == 0.0


def test_nonnegative_rows_are_those_of_active_sets():
    optimize = pytest.importorskip("scipy.optimize")
    holed, mask, start, _ = make((9, 8, 7), 3, 0.6, noise=0.5, draw="random")
    cells = ObservedCells(holed, mask)
    found = start[0]
    for _ in range(20):
        found = cells.solve(0, start, found, nonnegative=True)
    rows = khatri_rao(start[1:])
    for i, row in enumerate(holed.reshape(9, -1)):
        seen = ~np.isnan(row)
        expected = optimize.nnls(rows[seen], row[seen])[0]
        np.testing.assert_allclose(found[i], expected, atol=1e-4)


@pytest.mark.parametrize("share", [0.06, 0.1])
def test_few_cells_recover_the_tensor(share):
    holed, mask, start, tensor = make((60, 60, 60), 3, share)
    assert is_worth_listing(holed, mask, 3)
    solution = alternating_least_squares(holed.astype(np.float32), start, mask=mask)
    assert solution.status == "converged"
    assert solution.n_iter < 100
    assert relative_residual(tensor, solution.factors) < 1e-4
    true = relative_residual(holed.astype(np.float32), solution.factors, mask=mask)
    assert solution.fit == pytest.approx(1 - true, abs=1e-12)


def test_few_cells_with_nonnegative_factors():
    holed, mask, start, tensor = make((40, 40, 40), 2, 0.1, draw="random")
    solution = alternating_least_squares(
        holed, start, mask=mask, nonnegative=True, tol=1e-10, max_iter=1000
    )
    assert all(factor.min() >= 0.0 for factor in solution.factors)
    assert relative_residual(tensor, solution.factors) < 1e-2


def test_listing_is_for_few_cells_low_ranks_and_the_host():
    strict = pytest.importorskip("array_api_strict")
    mask = np.zeros((120, 120, 120), dtype=bool)
    tensor = np.zeros(mask.shape, dtype=np.float32)
    mask[:12] = True
    assert is_worth_listing(tensor, mask, 10)
    assert not is_worth_listing(tensor, mask, 100)
    assert not is_worth_listing(tensor, np.ones_like(mask), 10)
    assert not is_worth_listing(strict.asarray(tensor), mask, 10)
