"""Grids of a few values per row, group or layer."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.quantization_grid import QuantizationGrid, code_limits, minmax_grid


@given(
    st.integers(0, 10**6),
    st.integers(2, 8),
    st.booleans(),
    st.sampled_from(["channel", "layer", 1, 3, 100]),
    st.sampled_from([-3.0, 0.0, 3.0]),
)
def test_the_range_is_covered_and_zero_is_a_value(seed, bits, symmetric, kind, shift):
    weight = np.random.default_rng(seed).standard_normal((4, 7)) + shift
    sharing = {"scale": kind} if isinstance(kind, str) else {"group_size": kind}
    grid = minmax_grid(weight, bits, symmetric=symmetric, **sharing)
    low, high = code_limits(bits)
    codes = grid.nearest(weight)
    assert ((codes >= low) & (codes <= high)).all()
    assert ((grid.zero_point >= low) & (grid.zero_point <= high)).all()
    # half a step; the zero point's own rounding may cost as much again
    assert (abs(grid.dequantize(codes) - weight) <= grid.spread(grid.scale) * (1 + 1e-9)).all()
    assert not grid.dequantize(grid.nearest(0 * weight)).any()


def test_nearest_is_the_nearest():
    weight = np.random.default_rng(0).standard_normal((3, 9))
    grid = minmax_grid(weight, 3, symmetric=False, group_size=4)
    values = np.stack([grid.dequantize(np.full((3, 9), code)) for code in range(-4, 4)])
    best = np.argmin(abs(values - weight), axis=0) - 4
    assert np.array_equal(grid.nearest(weight), best)


def test_known_steps():
    weight = np.array([[-1.0, 0.5, 2.0]])
    assert minmax_grid(weight, 3).scale.tolist() == [[4.0 / 7.0]]
    grid = minmax_grid(weight, 2, symmetric=False)
    assert (grid.scale.tolist(), grid.zero_point.tolist()) == ([[1.0]], [[-1]])
    positive = minmax_grid(abs(weight) + 1.0, 2, symmetric=False)
    assert (positive.scale.tolist(), positive.zero_point.tolist()) == ([[1.0]], [[-2]])


def test_the_last_group_may_be_short_and_rows_of_zeros_have_step_one():
    weight = np.zeros((2, 7))
    weight[0] = 1.0
    grid = minmax_grid(weight, 4, group_size=3)
    assert grid.scale.shape == (2, 3)
    assert [(g.start, g.stop) for g in grid.groups()] == [(0, 3), (3, 6), (6, 7)]
    assert grid.scale[1].tolist() == [1.0, 1.0, 1.0]


def test_arrays_of_another_library():
    weight = np.random.default_rng(1).standard_normal((3, 7))
    own = minmax_grid(weight, 3, group_size=3, symmetric=False)
    other = minmax_grid(array_api_strict.asarray(weight), 3, group_size=3, symmetric=False)
    codes = other.nearest(array_api_strict.asarray(weight))
    assert np.array_equal(np.asarray(codes), own.nearest(weight))
    assert np.array_equal(np.asarray(other.dequantize(codes)), own.dequantize(own.nearest(weight)))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="bits"):
        code_limits(True)
    with pytest.raises(ShapeError, match="weight"):
        minmax_grid(np.ones(3), 4)
    with pytest.raises(ShapeError, match="scale"):
        QuantizationGrid(np.ones((2, 2)), np.zeros((2, 2)), 4, columns=3, group_size=3)
    with pytest.raises(ShapeError, match="zero_point"):
        QuantizationGrid(np.ones((2, 1)), np.zeros((1, 1)), 4, columns=3, group_size=3)


def test_numbers_of_bits_of_any_integer_type():
    assert code_limits(np.int8(8)) == (-128, 127)
    assert type(minmax_grid(np.ones((1, 2)), np.int64(3)).bits) is int
    for bad in (True, 4.0, "4", 1, 9, None):
        with pytest.raises(ValueError, match="bits must be an integer from 2 to 8"):
            code_limits(bad)
