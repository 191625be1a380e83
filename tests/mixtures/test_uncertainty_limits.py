"""Standard errors at the limits: of units, of memory, of what was estimated at all."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator
from tensoralg.mixtures.delete_block import accumulate_blocks


def two_clusters(n=400, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) + 4.0 * rng.integers(0, 2, (n, 1))


@pytest.mark.parametrize("unit", [1e150, 1e100, 1e-100, 1e-150])
def test_units_whose_fourth_power_is_no_number_leave_standard_errors_whole(unit):
    X = two_clusters()
    plain = DiagonalGaussianMixture(2, random_state=0).fit(X).standard_errors(X)
    scaled = DiagonalGaussianMixture(2, random_state=0).fit(X * unit).standard_errors(X * unit)
    assert_allclose(scaled.means / unit, plain.means, rtol=1e-6)
    assert_allclose(scaled.covariances / unit / unit, plain.covariances, rtol=1e-6)


@pytest.mark.parametrize("missing", [False, True])
def test_a_read_out_of_blocks_has_no_jackknife(missing):
    X = two_clusters(300, 240)
    model = DiagonalGaussianMixture(2, polish=None, missing=missing, random_state=0).fit(X)
    assert model.diagnostics_.start == "block read-out"
    for method in ("auto", "sandwich", "jackknife"):
        with pytest.raises(ValueError, match="block read-out"):
            model.standard_errors(X, method=method)


def test_the_jackknife_of_one_component_reads_two_orders_of_many_columns():
    X = two_clusters(300, 240)
    model = DiagonalGaussianMixture(polish=None).fit(X)
    errors = model.standard_errors(X, method="jackknife")
    assert_allclose(errors.means, X.std(0)[None] / np.sqrt(300), rtol=0.5)


def test_blocks_of_the_jackknife_are_bounded_by_rows_and_by_memory():
    X = two_clusters(120)
    model = DiagonalGaussianMixture(2, polish=None, random_state=0).fit(X)
    many = model.standard_errors(X, method="jackknife", blocks=10**9)
    each = model.standard_errors(X, method="jackknife", blocks=120)
    assert_allclose(many.means, each.means, rtol=1e-12)
    rows = np.zeros((60, 250))
    with pytest.raises(ProblemTooLargeError, match="blocks=60"):
        accumulate_blocks([(rows, None)], 60, rows[0], rows[0] + 1, 3, missing=False)


def test_constant_rows_leave_nothing_to_judge():
    X = np.full((20, 3), 2.5)
    with pytest.warns(UserWarning, match="constant"):
        model = DiagonalGaussianMixture().fit(X)
    with pytest.raises(ValueError, match="every column was constant"):
        model.standard_errors(X)
    with pytest.raises(ValueError, match="every column was constant"):
        model.moment_test(X)


def test_accumulators_where_rows_are_needed_are_named():
    X = two_clusters()
    parts = [MomentAccumulator(4, 3).update(part) for part in np.split(X, 20)]
    model = DiagonalGaussianMixture(2, polish=None, random_state=0).fit(X)
    for wrong in (parts, parts[0]):
        with pytest.raises(TypeError, match="MomentAccumulator"):
            model.moment_test(wrong)
    with pytest.raises(TypeError, match="MomentAccumulator"):
        model.standard_errors([*parts, X])
