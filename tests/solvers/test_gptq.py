"""GPTQ by one factor against its published form with the inverse of the Gram matrix."""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.gptq import factor_columns, gptq, round_through
from tensoralg.solvers.quantization_grid import minmax_grid


def example(seed, rows, columns, samples=60):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, columns)) @ rng.standard_normal((columns, columns))
    return rng.standard_normal((rows, columns)), X.T @ X


def published_form(weight, gram, grid, order, damping):
    """Codes by updates with the Cholesky factor of the inverse, column after column."""
    columns = len(gram)
    path = np.arange(columns)
    if order == "activation":
        path = np.argsort(-np.diagonal(gram), kind="stable")
    damped = gram[np.ix_(path, path)] + damping * np.mean(np.diagonal(gram)) * np.eye(columns)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    scale, zero = grid.spread(grid.scale)[:, path], grid.spread(grid.zero_point)[:, path]
    moved, codes = weight[:, path].copy(), np.zeros(weight.shape, dtype=int)
    for i in range(columns):
        code = np.clip(np.round(moved[:, i] / scale[:, i]) + zero[:, i], *grid.limits)
        codes[:, path[i]] = code
        error = (moved[:, i] - scale[:, i] * (code - zero[:, i])) / upper[i, i]
        moved[:, i:] -= error[:, None] * upper[i, i:]
    return codes


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["activation", "natural"]),
    st.sampled_from([1, 5, 64, 70]),
    st.booleans(),
)
def test_codes_of_the_published_form(seed, bits, order, columns, symmetric):
    weight, gram = example(seed, 4, columns)
    grid = minmax_grid(weight, bits, symmetric=symmetric, group_size=16)
    codes = gptq(weight, gram, grid, order=order)
    assert np.array_equal(codes, published_form(weight, gram, grid, order, 0.01))


def test_the_cost_is_the_error_of_the_outputs():
    weight, gram = example(1, 5, 70, samples=400)
    gram[3], gram[:, 3] = 0.0, 0.0
    grid = minmax_grid(weight, 3)
    codes, cost = round_through(weight, factor_columns(gram, "activation", 0.01), grid)
    error = weight - grid.dequantize(codes)
    np.testing.assert_allclose(cost, np.sum((error @ gram) * error, axis=1), rtol=1e-9)


def test_a_diagonal_gram_and_dead_columns_are_rounded_to_the_nearest():
    weight, gram = example(2, 5, 8)
    grid = minmax_grid(weight, 3)
    assert np.array_equal(gptq(weight, np.diag(np.diagonal(gram)), grid), grid.nearest(weight))
    assert np.array_equal(gptq(weight, np.zeros((8, 8)), grid), grid.nearest(weight))
    gram[2], gram[:, 2] = 0.0, 0.0
    assert np.array_equal(gptq(weight, gram, grid)[:, 2], grid.nearest(weight)[:, 2])


def test_an_indefinite_gram_is_damped_until_it_can_be_factorised():
    weight, _ = example(3, 5, 8)
    mixed = np.random.default_rng(3).standard_normal((8, 8))
    grid = minmax_grid(weight, 3)
    codes = gptq(weight, mixed @ mixed.T - 2.0 * np.eye(8), grid, damping=0.0)
    assert np.isfinite(grid.dequantize(codes)).all()


def test_arrays_of_another_library():
    weight, gram = example(4, 5, 70)
    own = gptq(weight, gram, minmax_grid(weight, 3, symmetric=False, group_size=16))
    arrays = [array_api_strict.asarray(a) for a in (weight, gram)]
    grid = minmax_grid(arrays[0], 3, symmetric=False, group_size=16)
    assert np.array_equal(np.asarray(gptq(*arrays, grid)), own)


def test_bad_input_is_named():
    weight, gram = example(5, 2, 3)
    grid = minmax_grid(weight, 3)
    with pytest.raises(ValueError, match="order"):
        gptq(weight, gram, grid, order="random")
    with pytest.raises(ValueError, match="damping"):
        gptq(weight, gram, grid, damping=-1.0)
    with pytest.raises(ShapeError, match="gram"):
        gptq(weight, np.eye(2), grid)
    with pytest.raises(ShapeError, match="grid"):
        gptq(weight, gram, minmax_grid(weight[:1], 3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["weight", "gram"])
def test_values_that_are_not_finite_are_refused(place, bad):
    weight, gram = example(6, 2, 3)
    grid = minmax_grid(weight, 3)
    {"weight": weight, "gram": gram}[place][0, 0] = bad
    with pytest.raises(ValueError, match=place):
        gptq(weight, gram, grid)
