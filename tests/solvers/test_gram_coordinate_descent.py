"""Codes from Gram matrices: the published update with the data, GPTQ, and the nasty inputs."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.gptq import gptq
from tensoralg.solvers.gram_coordinate_descent import coordinate_sweeps, gram_coordinate_descent
from tensoralg.solvers.quantization_grid import QuantizationGrid, minmax_grid

BITS = st.sampled_from([2, 3, 4, 8])
OPTIONS = (
    {},
    {"symmetric": False},
    {"scale": "layer"},
    {"scale": "layer", "symmetric": False},
    {"group_size": 5},
    {"group_size": 5, "symmetric": False},
    {"init": "nearest", "order": "cyclic"},
    {"order": "shared", "symmetric": False},
    {"search": False, "update_scale": False},
)


def example(seed, rows=6, columns=12, samples=40):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, columns)) @ rng.standard_normal((columns, columns))
    return rng.standard_normal((rows, columns)), X


def output_error(X, weight, value):
    return np.linalg.norm(X @ (weight - value).T) / np.linalg.norm(X @ weight.T)


def published_update(weight, X, grid, sweeps, order):
    """Codes of the published algorithm with the data X: one entry after the other."""
    rows, columns = weight.shape
    low, high = grid.limits
    scale, zero = grid.spread(grid.scale), grid.spread(grid.zero_point)
    codes, value = np.zeros((rows, columns), dtype=int), weight.copy()
    for row in range(rows):
        lengths = np.linalg.norm(X, axis=0)
        path = np.arange(columns)
        if order == "greedy":
            path = np.argsort(-lengths * abs(weight[row]), kind="stable")
        for _ in range(sweeps):
            for i in path:
                others = weight[row] - value[row]
                others[i] = 0.0
                target = weight[row, i] + (X @ others) @ X[:, i] / (X[:, i] @ X[:, i])
                values = scale[row, i] * (np.arange(low, high + 1) - zero[row, i])
                codes[row, i] = low + np.argmin(abs(values - target))
                value[row, i] = values[codes[row, i] - low]
    return codes


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    BITS,
    st.integers(1, 3),
    st.sampled_from(["greedy", "cyclic"]),
    st.booleans(),
    st.sampled_from([None, 5]),
)
def test_codes_of_the_published_update(seed, bits, sweeps, order, symmetric, group_size):
    weight, X = example(seed)
    # the largest weight lies half way between two values of the symmetric grid: no ties here
    grid = minmax_grid(weight * 0.93, bits, symmetric=symmetric, group_size=group_size)
    codes = coordinate_sweeps(weight, X.T @ X, grid, sweeps=sweeps, order=order)
    assert np.array_equal(codes, published_update(weight, X, grid, sweeps, order))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS))
def test_never_worse_than_gptq_on_three_grids(seed, bits, options):
    weight, X = example(seed)
    gram = X.T @ X
    found = gram_coordinate_descent(weight, gram, bits, **options)
    error = output_error(X, weight, found.dequantize())
    if options.get("init") == "nearest":
        base = minmax_grid(weight, bits)
        assert error <= output_error(X, weight, base.dequantize(base.nearest(weight))) + 1e-12
        return
    names = ("scale", "symmetric", "group_size")
    base = minmax_grid(weight, bits, **{k: v for k, v in options.items() if k in names})
    for grid in (base, found.grid):
        rounded = grid.dequantize(gptq(weight, gram, grid))
        assert error <= output_error(X, weight, rounded) * (1 + 1e-9) + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS), st.integers(0, 6))
def test_errors_are_those_of_the_outputs_and_never_rise(seed, bits, options, sweeps):
    weight, X = example(seed)
    found = gram_coordinate_descent(weight, X.T @ X, bits, sweeps=sweeps, **options)
    assert len(found.errors) == sweeps + 1
    assert all(a >= b for a, b in zip(found.errors, found.errors[1:], strict=False))
    assert found.errors[-1] == pytest.approx(output_error(X, weight, found.dequantize()), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS[:6]))
def test_codes_lie_in_the_range_and_zero_on_the_grid(seed, bits, options):
    weight, X = example(seed)
    found = gram_coordinate_descent(weight, X.T @ X, bits, **options)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    groups = 3 if "group_size" in options else 1
    assert found.codes.dtype == np.int8
    assert found.scale.shape == found.zero_point.shape == (6, groups)
    assert found.codes.min() >= low
    assert found.codes.max() <= high
    assert (found.scale > 0).all()
    assert ((found.zero_point >= low) & (found.zero_point <= high)).all()
    if options.get("symmetric", True):
        assert not found.zero_point.any()
    if options.get("scale") == "layer":
        assert np.unique(found.scale).size == np.unique(found.zero_point).size == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS[:8]), st.booleans())
def test_weights_on_a_grid_stay_as_they_are(seed, bits, options, single):
    weight, X = example(seed)
    dtype = np.float32 if single else np.float64
    once = gram_coordinate_descent(weight.astype(dtype), X.T @ X, bits, **options).dequantize()
    twice = gram_coordinate_descent(once, X.T @ X, bits, **options).dequantize()
    assert once.dtype == twice.dtype == dtype
    np.testing.assert_allclose(twice, once, rtol=4 * np.finfo(dtype).eps)


def test_every_ladder_of_whole_steps_is_found():
    rng = np.random.default_rng(0)
    for largest in (1, 2, 3, 5, 7):
        weight = 0.3 * rng.integers(-largest, largest + 1, (20, 9))
        found = gram_coordinate_descent(weight, np.eye(9), 4)
        np.testing.assert_allclose(found.dequantize(), weight, rtol=1e-14, atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS))
def test_rows_may_be_permuted(seed, bits, options):
    weight, X = example(seed)
    path = np.random.default_rng(seed + 1).permutation(len(weight))
    whole = gram_coordinate_descent(weight, X.T @ X, bits, **options)
    turned = gram_coordinate_descent(weight[path], X.T @ X, bits, **options)
    assert np.array_equal(turned.codes, whole.codes[path])
    np.testing.assert_allclose(turned.scale, whole.scale[path], rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), BITS, st.sampled_from(OPTIONS), st.sampled_from([-200, -30, 30, 200]))
def test_sizes_of_weight_and_gram_do_not_matter(seed, bits, options, power):
    weight, X = example(seed)
    whole = gram_coordinate_descent(weight, X.T @ X, bits, **options)
    sized = gram_coordinate_descent(
        weight * 2.0**power, X.T @ X * 2.0 ** (2 * power), bits, **options
    )
    assert np.array_equal(sized.codes, whole.codes)
    assert np.array_equal(sized.scale, whole.scale * 2.0**power)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bits", [2, 4])
def test_zero_and_constant_rows_and_dead_columns(bits, options):
    weight, X = example(7)
    weight[1], weight[2], weight[3] = 0.0, 0.25, -0.5
    X[:, [4, 11]] = 0.0
    found = gram_coordinate_descent(weight, X.T @ X, bits, **options)
    value = found.dequantize()
    assert np.isfinite(value).all()
    assert np.isfinite(found.scale).all()
    assert not value[1].any()
    dead = found.grid.nearest(weight)[:, [4, 11]]
    assert np.array_equal(found.codes[:, [4, 11]], dead)
    if options.get("scale") != "layer" and options.get("search", True):
        np.testing.assert_allclose(value[2:4], weight[2:4], rtol=1e-14)


@pytest.mark.parametrize("options", OPTIONS)
def test_without_data_the_nearest_values(options):
    weight, _ = example(8)
    found = gram_coordinate_descent(weight, np.zeros((12, 12)), 3, **options)
    assert np.array_equal(found.codes, found.grid.nearest(weight))
    assert found.errors[-1] == 0.0


@pytest.mark.parametrize("options", OPTIONS)
def test_gram_matrices_that_are_not_positive_definite(options):
    weight, X = example(9, samples=5)
    found = gram_coordinate_descent(weight, X.T @ X, 3, **options)
    assert found.errors[-1] == pytest.approx(output_error(X, weight, found.dequantize()), abs=1e-7)
    rng = np.random.default_rng(9)
    mixed = rng.standard_normal((12, 12))
    found = gram_coordinate_descent(weight, mixed + mixed.T, 3, **options)
    assert np.isfinite(found.dequantize()).all()
    assert 0.0 <= found.errors[-1] < 1.0
    assert abs(found.dequantize()).max() < 10 * abs(weight).max()


def test_rows_whose_outputs_are_zero():
    weight = np.array([[1.0, -1.0], [1.0, 0.3]])
    found = gram_coordinate_descent(weight, np.ones((2, 2)), 2)
    value = found.dequantize()
    assert abs(value[0].sum()) < 1e-12
    assert 0.0 <= found.errors[-1] <= 1.0


@settings(max_examples=9, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 8]), st.sampled_from(OPTIONS))
def test_arrays_of_another_library_give_the_same_codes(seed, bits, options):
    weight, X = example(seed)
    own = gram_coordinate_descent(weight, X.T @ X, bits, **options)
    arrays = [array_api_strict.asarray(a) for a in (weight, X.T @ X)]
    other = gram_coordinate_descent(*arrays, bits, **options)
    assert isinstance(other.codes, type(arrays[0]))
    assert np.array_equal(np.asarray(other.codes), own.codes)
    np.testing.assert_allclose(np.asarray(other.dequantize()), own.dequantize(), rtol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4), (3, 1), (1, 1), (2, 130)])
@pytest.mark.parametrize("options", OPTIONS)
def test_thin_and_empty_weights(shape, options):
    weight, X = example(10, *shape)
    found = gram_coordinate_descent(weight, X.T @ X, 3, **options)
    assert found.dequantize().shape == shape
    assert np.isfinite(found.dequantize()).all()


def test_sweeps_and_search_pay():
    weight, X = example(11, 40, 60, 300)
    gram = X.T @ X
    plain = gram_coordinate_descent(weight, gram, 2, search=False, sweeps=0).errors[-1]
    swept = gram_coordinate_descent(weight, gram, 2, search=False).errors[-1]
    searched = gram_coordinate_descent(weight, gram, 2).errors[-1]
    free = gram_coordinate_descent(weight, gram, 2, symmetric=False).errors[-1]
    assert free < searched < swept < 0.95 * plain


def test_the_weight_is_not_written_to():
    weight, X = example(12)
    gram = X.T @ X
    kept = weight.copy(), gram.copy()
    grid = minmax_grid(weight, 2)
    gram_coordinate_descent(weight, gram, 2)
    coordinate_sweeps(weight, gram, grid)
    gptq(weight, gram, grid)
    assert np.array_equal(weight, kept[0])
    assert np.array_equal(gram, kept[1])


@pytest.mark.parametrize("place", ["weight", "gram"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(place, bad):
    arrays = {"weight": np.ones((2, 3)), "gram": np.eye(3)}
    arrays[place][1, 1] = bad
    with pytest.raises(ValueError, match=f"{place} must be finite"):
        gram_coordinate_descent(**arrays, bits=4)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"bits": 1}, ValueError, "bits"),
        ({"bits": 9}, ValueError, "bits"),
        ({"bits": 2.5}, ValueError, "bits"),
        ({"sweeps": -1}, ValueError, "sweeps"),
        ({"sweeps": 1.5}, TypeError, "sweeps"),
        ({"init": "random"}, ValueError, "init"),
        ({"order": "random"}, ValueError, "order"),
        ({"scale": "row"}, ValueError, "scale"),
        ({"group_size": 0}, ValueError, "group_size"),
        ({"group_size": 2, "scale": "layer"}, ValueError, "group_size"),
        ({"damping": -1.0}, ValueError, "damping"),
        ({"weight": np.ones(3)}, ShapeError, "weight"),
        ({"gram": np.eye(2)}, ShapeError, "gram"),
        ({"gram": np.triu(np.ones((3, 3)))}, ValueError, "symmetric"),
        ({"weight": np.ones((2, 3), dtype=complex)}, ValueError, "complex"),
    ],
)
def test_bad_input_is_named(options, kind, words):
    arguments = {"weight": np.ones((2, 3)), "gram": np.eye(3), "bits": 4} | options
    with pytest.raises(kind, match=words):
        gram_coordinate_descent(**arguments)


def test_a_given_grid_keeps_its_unit():
    weight, X = example(13)
    grid = minmax_grid(weight * 100, 3, symmetric=False)
    small = QuantizationGrid(
        grid.scale / 100, grid.zero_point, grid.bits, grid.columns, grid.group_size
    )
    assert np.array_equal(
        coordinate_sweeps(weight * 100, X.T @ X, grid), coordinate_sweeps(weight, X.T @ X, small)
    )


def test_a_grid_of_another_shape_is_refused():
    weight = np.random.default_rng(0).standard_normal((5, 6))
    for grid in (minmax_grid(weight[:1], 4), minmax_grid(weight[:, :5], 4)):
        with pytest.raises(ShapeError, match="grid is for"):
            coordinate_sweeps(weight, np.eye(6), grid)


def test_what_fell_by_rounding_only_does_not_put_the_end_off():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 24)) @ (rng.standard_normal((24, 24)) / 24**0.5)
    X -= X.mean(axis=0)
    for seed in (121, 151):  # without a tolerance the order of the rows told in these
        rng = np.random.default_rng(seed)
        weight = rng.uniform(-0.2, 0.2, (9, 24)).astype(np.float32)
        order = rng.permutation(9)
        one = gram_coordinate_descent(weight, X.T @ X, 3, symmetric=False)
        two = gram_coordinate_descent(weight[order], X.T @ X, 3, symmetric=False)
        np.testing.assert_allclose(one.scale[order], two.scale, rtol=1e-6)
        np.testing.assert_allclose(one.errors, two.errors, rtol=1e-9)
