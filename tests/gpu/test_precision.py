"""Rounding to low-precision formats: against ml_dtypes, on a host namespace and on another."""

import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.gpu.precision import (
    PRECISIONS,
    largest_magnitude,
    precision_policy,
    round_operand,
)

# name, the library's type, the power of two that brings the magnitude 1 to the top of it
FORMATS = [
    ("bfloat16", ml_dtypes.bfloat16, 1.0),
    ("float16", np.float16, 2.0**15),
    ("float8", ml_dtypes.float8_e4m3fn, 2.0**8),
]
LOW = [name for name in PRECISIONS if name not in ("float64", "float32")]


def spread_values():
    """Values of many magnitudes, ties, powers of two and zeros, of magnitude 1 at most."""
    rng = np.random.default_rng(7)
    wide = rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-9, 0, 4000)
    ties = 0.5 + np.arange(1024) / 2048
    powers = 2.0 ** -np.arange(0, 40)
    return np.concatenate([wide, ties, -ties, powers, [0.0, 1.0]]).astype(np.float32)


@pytest.mark.parametrize(("name", "dtype", "scale"), FORMATS)
@pytest.mark.parametrize("library", [np, strict])
def test_rounding_to_nearest_equals_the_conversion_of_the_format(name, dtype, scale, library):
    x = spread_values()
    expected = (x * np.float32(scale)).astype(dtype).astype(np.float32) / np.float32(scale)
    rounded = round_operand(library.asarray(x), precision_policy(name))
    assert type(rounded) is type(library.asarray(x))
    np.testing.assert_array_equal(np.asarray(rounded), expected)


@pytest.mark.parametrize("library", [np, strict])
def test_tf32_keeps_ten_bits_and_breaks_ties_to_even(library):
    one = 2.0**-10
    x = np.array([1 + one / 2, 1 + one * 1.5, 1 + one * 0.51, -1 - one / 2], dtype=np.float32)
    rounded = np.asarray(round_operand(library.asarray(x), precision_policy("tf32")))
    np.testing.assert_array_equal(rounded, [1.0, 1 + 2 * one, 1 + one, -1.0])


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("library", [np, strict])
def test_stochastic_rounding_goes_to_a_neighbour_and_keeps_the_mean(name, library):
    value = 0.7031
    x = np.full(40000, value, dtype=np.float32)
    x[0] = 1.0
    policy = precision_policy(name, rounding="stochastic")
    rounded = np.asarray(round_operand(library.asarray(x), policy, rng=3))[1:]
    low, high = rounded.min(), rounded.max()
    assert low < value < high
    assert set(np.unique(rounded)) == {low, high}
    nearest = round_operand(x, precision_policy(name))[1]
    assert nearest in (low, high)
    deviation = (high - low) / 2 / np.sqrt(rounded.size)
    assert abs(rounded.mean(dtype=np.float64) - value) < 5 * deviation


@pytest.mark.parametrize("name", LOW)
def test_rounded_values_stay_when_rounded_again(name):
    x = spread_values().reshape(-1, 2)
    policy = precision_policy(name)
    once = round_operand(x, policy)
    np.testing.assert_allclose(round_operand(once, policy), once, rtol=3e-7)


@pytest.mark.parametrize("name", LOW)
def test_seeds_reproduce_and_layouts_agree(name):
    x = np.random.default_rng(1).standard_normal((30, 40)).astype(np.float32)
    policy = precision_policy(name, rounding="stochastic")
    first = round_operand(x, policy, rng=5)
    np.testing.assert_array_equal(first, round_operand(x, policy, rng=5))
    assert not np.array_equal(first, round_operand(x, policy, rng=6))
    nearest = precision_policy(name)
    for layout in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(round_operand(layout, nearest), round_operand(x, nearest))


def test_int8_has_one_scale_along_the_axis():
    x = np.array([[1.0, 100.0], [0.004, -0.3]], dtype=np.float32)
    rows = round_operand(x, precision_policy("int8"))
    np.testing.assert_allclose(rows[0], [100 / 127, 100.0], rtol=1e-6)
    np.testing.assert_allclose(rows[1], [2 * 0.3 / 127, -0.3], rtol=1e-6)
    columns = round_operand(x, precision_policy("int8"), axis=0)
    np.testing.assert_allclose(columns[:, 0], [1.0, 1 / 127], rtol=1e-6)
    assert not round_operand(np.zeros((2, 3)), precision_policy("int8")).any()


@given(st.floats(1e-30, 1e30), st.sampled_from(["float16", "float8", "int8"]))
def test_scaled_formats_do_not_depend_on_the_unit(unit, name):
    x = np.linspace(-1, 1, 33)
    policy = precision_policy(name)
    error = np.abs(round_operand(x * unit, policy) / unit - x).max()
    assert error <= {"float16": 2.0**-11, "float8": 2.0**-4, "int8": 1 / 253}[name]


def test_float64_and_float32_are_conversions():
    x = np.array([1 / 3, -2.0])
    assert round_operand(x, precision_policy("float64")) is x
    single = round_operand(x, precision_policy("float32"))
    np.testing.assert_array_equal(single, x.astype(np.float32))
    assert round_operand(np.empty((0, 3)), precision_policy("int8")).shape == (0, 3)


def test_a_block_can_be_scaled_like_the_whole():
    x = np.array([1e-6, 3.0], dtype=np.float32)
    policy = precision_policy("float8")
    whole = round_operand(x, policy)
    assert round_operand(x[:1], policy, largest=3.0)[0] == whole[0] == 0.0
    assert round_operand(x[:1], policy)[0] != 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [name for name in PRECISIONS if name != "float64"])
def test_values_that_are_not_finite_are_refused(name, bad):
    with pytest.raises(ValueError, match="NaN or infinity"):
        round_operand(np.array([1.0, bad]), precision_policy(name))


@pytest.mark.parametrize("name", ["float32", "tf32", "bfloat16", "float16", "float8", "int8"])
def test_overflow_is_an_error(name):
    with pytest.raises(ValueError, match="beyond the largest value"):
        round_operand(np.array([1.0, 1e39]), precision_policy(name))
    if name in ("tf32", "bfloat16"):
        with pytest.raises(ValueError, match="beyond the largest value"):
            round_operand(np.array([np.finfo(np.float32).max]), precision_policy(name))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="float4"):
        precision_policy("float4")
    with pytest.raises(ValueError, match="upwards"):
        precision_policy("int8", rounding="upwards")
    assert largest_magnitude(strict.asarray([1.0, -4.0])) == 4.0
