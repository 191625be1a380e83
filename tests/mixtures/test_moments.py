import copy
import pickle
from itertools import product

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.core.indices import multi_indices, square_free_indices
from tensoralg.mixtures.moments import MomentAccumulator


def data(rows, dimension, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dimension)) * rng.uniform(0.5, 2, dimension) + rng.normal(
        size=dimension
    )


def direct_moments(Z, order, weights=None):
    """Means of products by their definition, over the homogenised multi-indices."""
    extended = np.column_stack([np.ones(len(Z)), Z])
    indices = multi_indices(Z.shape[1] + 1, order)
    return np.array([np.average(extended[:, i].prod(axis=1), weights=weights) for i in indices])


def has_power_above_two(dimension, order):
    return np.array(
        [
            (np.bincount(i, minlength=dimension + 1)[1:] > 2).any()
            for i in multi_indices(dimension + 1, order)
        ]
    )


def assert_same_moments(a, b, tolerance=1e-13):
    """Equal up to rounding, relative to the size of each moment's terms."""
    first, second = a.homogenised(), b.homogenised()
    np.testing.assert_array_equal(np.isnan(first), np.isnan(second))
    known = ~np.isnan(first)
    largest = max(np.abs(first[known]).max(), 1.0)
    np.testing.assert_allclose(first[known], second[known], rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(
    ("dimension", "order", "powers"),
    [*product((1, 2, 3, 5), (1, 2, 3, 4, 5), (False, True)), (4, 6, False), (3, 7, True)],
)
def test_every_moment_against_its_definition(dimension, order, powers):
    X = data(300, dimension)
    weights = np.random.default_rng(1).uniform(size=300)
    scale = np.linspace(0.5, 2, dimension)
    accumulator = MomentAccumulator(dimension, order, scale=scale, powers=powers)
    accumulator.update(X[:130], weights[:130]).update(X[130:], weights[130:])
    np.testing.assert_allclose(
        accumulator.shift, np.average(X[:130], axis=0, weights=weights[:130]), rtol=1e-13
    )
    expected = direct_moments((X - accumulator.shift) / scale, order, weights)
    values = accumulator.homogenised()
    unknown = has_power_above_two(dimension, order) & (not powers)
    np.testing.assert_array_equal(np.isnan(values), unknown)
    np.testing.assert_allclose(values[~unknown], expected[~unknown], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_distinct_index_moments_of_each_degree(order):
    X = data(200, 5)
    accumulator = MomentAccumulator(5, order).update(X)
    Z = X - X.mean(axis=0)
    for degree in range(1, order + 1):
        tensor = accumulator.moments(degree)
        np.testing.assert_array_equal(tensor.indices, square_free_indices(5, degree))
        expected = [Z[:, i].prod(axis=1).mean() for i in tensor.indices]
        np.testing.assert_allclose(tensor.values, expected, rtol=1e-11, atol=1e-13)
        assert (tensor.order, tensor.dimension) == (degree, 5)


@pytest.mark.parametrize("order", [3, 4])
def test_chunk_sizes_and_order_do_not_matter(order):
    X = data(6000, 6)
    whole = MomentAccumulator(6, order, shift=0.3).update(X)
    tenths = np.array_split(X, 10)
    forward, backward, uneven = (MomentAccumulator(6, order, shift=0.3) for _ in range(3))
    for chunk in tenths:
        forward.update(chunk)
    for chunk in tenths[::-1]:
        backward.update(chunk)
    for chunk in np.split(X, [1, 3, 700, 5000, 5999]):
        uneven.update(chunk)
    for other in (forward, backward, uneven):
        assert other.count == 6000
        assert other.total_weight == 6000
        assert_same_moments(whole, other)


def test_long_chunk_crosses_every_inner_boundary():
    X = data(40_001, 3)
    accumulator = MomentAccumulator(3, 3).update(X)
    known = ~has_power_above_two(3, 3)
    expected = direct_moments(X - accumulator.shift, 3)
    np.testing.assert_allclose(accumulator.homogenised()[known], expected[known], atol=1e-12)


@given(
    cuts=st.tuples(st.integers(1, 40), st.integers(41, 79)),
    order=st.integers(3, 5),
    powers=st.booleans(),
)
def test_merge_is_associative_and_equals_one_pass(cuts, order, powers):
    X = data(80, 3)

    def part(rows):
        return MomentAccumulator(3, order, powers=powers).update(rows)

    A, B, C = np.split(X, cuts)
    left = part(A).merge(part(B)).merge(part(C))
    right = part(A).merge(part(B).merge(part(C)))
    assert_same_moments(left, right, 1e-12)
    assert_same_moments(left, part(A).update(B).update(C), 1e-12)
    assert left.count == right.count == 80


@given(st.permutations(range(4)), st.integers(3, 4))
def test_permuting_columns_permutes_moments(permutation, order):
    X = data(60, 4)
    original = MomentAccumulator(4, order).update(X).moments(3)
    permuted = MomentAccumulator(4, order).update(X[:, permutation]).moments(3)
    for index, value in zip(permuted.indices, permuted.values, strict=True):
        np.testing.assert_allclose(
            value, original[tuple(permutation[i] for i in index)], rtol=1e-10, atol=1e-13
        )


@given(
    factor=st.lists(st.floats(0.25, 4), min_size=3, max_size=3),
    offset=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_scaling_and_shifting_columns_with_their_units_changes_nothing(factor, offset):
    X = data(60, 3)
    factor, offset = np.array(factor), np.array(offset)
    plain = MomentAccumulator(3, 4).update(X)
    moved = MomentAccumulator(3, 4, scale=factor).update(X * factor + offset)
    assert_same_moments(plain, moved, 1e-12)


@pytest.mark.parametrize(("order", "powers"), [*product((1, 2, 3, 4, 5), (False, True))])
def test_rebasing_equals_starting_there(order, powers):
    X = data(200, 4)
    rng = np.random.default_rng(3)
    shift, scale = rng.normal(size=4), rng.uniform(0.5, 2, 4)
    there = MomentAccumulator(4, order, shift=shift, scale=scale, powers=powers).update(X)
    accumulator = MomentAccumulator(4, order, powers=powers).update(X)
    rebased = accumulator.rebased(shift, scale)
    np.testing.assert_allclose(rebased.gram, there.gram, rtol=1e-11, atol=1e-9)
    back = rebased.rebased(accumulator.shift, accumulator.scale)
    np.testing.assert_allclose(back.gram, accumulator.gram, rtol=1e-11, atol=1e-9)
    assert (accumulator.count, rebased.count) == (200, 200)


def test_rebasing_in_integers_is_exact():
    X = np.random.default_rng(0).integers(-5, 6, size=(50, 4)).astype(float)
    start = MomentAccumulator(4, 4, shift=0).update(X)
    moved = MomentAccumulator(4, 4, shift=[1, -2, 3, 0], scale=0.5).update(X)
    np.testing.assert_array_equal(start.rebased([1, -2, 3, 0], 0.5).gram, moved.gram)


def test_merging_other_shift_and_scale():
    X = data(100, 3)
    mine = MomentAccumulator(3, 4, shift=1.0, scale=2.0).update(X[:40])
    other = MomentAccumulator(3, 4).update(X[40:])
    before = other.gram.copy()
    mine.merge(other)
    assert_same_moments(mine, MomentAccumulator(3, 4, shift=1.0, scale=2.0).update(X), 1e-12)
    np.testing.assert_array_equal(other.gram, before)


def test_merging_empty_ones_and_itself():
    X = data(50, 3)
    full = MomentAccumulator(3, 3).update(X)
    assert MomentAccumulator(3, 3).merge(MomentAccumulator(3, 3)).shift is None
    adopted = MomentAccumulator(3, 3).merge(full)
    np.testing.assert_array_equal(adopted.shift, full.shift)
    assert_same_moments(adopted, full)
    assert_same_moments(copy.deepcopy(full).merge(MomentAccumulator(3, 3, shift=9.0)), full)
    twice = copy.deepcopy(full)
    twice.merge(twice)
    assert twice.count == 100
    assert_same_moments(twice, full)


def test_large_offset_keeps_central_moments():
    noise = np.random.default_rng(0).normal(size=(20_000, 3))
    X = 1e8 + noise
    exact = X - 1e8  # what the rounded data hold
    accumulator = MomentAccumulator(3, 4).update(X[:3000]).update(X[3000:])
    values = accumulator.rebased(np.full(3, 1e8)).homogenised()
    known = ~has_power_above_two(3, 4)
    np.testing.assert_allclose(values[known], direct_moments(exact, 4)[known], atol=1e-9)


def test_weight_three_equals_three_copies():
    X = data(90, 4)
    counts = np.random.default_rng(5).integers(1, 4, size=90)
    weighted = MomentAccumulator(4, 4, shift=0.5).update(X, counts)
    copied = MomentAccumulator(4, 4, shift=0.5).update(np.repeat(X, counts, axis=0))
    assert_same_moments(weighted, copied)
    assert weighted.total_weight == copied.total_weight == counts.sum()


@pytest.mark.parametrize("wild", [1e300, np.inf, np.nan])
def test_weight_zero_equals_deletion_of_wild_rows(wild):
    X = data(60, 3)
    weights = np.ones(60)
    weights[[0, 7, 59]] = 0
    spoiled = X.copy()
    spoiled[[0, 7, 59]] = wild
    kept = MomentAccumulator(3, 3).update(X[weights > 0])
    dropped = MomentAccumulator(3, 3).update(spoiled, weights)
    assert dropped.count == 57
    np.testing.assert_allclose(dropped.shift, kept.shift, rtol=1e-14)
    assert_same_moments(kept, dropped)


def test_chunk_of_zero_weights_changes_nothing():
    accumulator = MomentAccumulator(2, 3).update(np.full((3, 2), np.inf), np.zeros(3))
    assert (accumulator.count, accumulator.shift) == (0, None)
    with pytest.raises(ValueError, match="no rows"):
        accumulator.homogenised()
    accumulator.update([[1.0, 2.0], [3.0, 4.0]])
    before = accumulator.gram.copy()
    accumulator.update(np.ones((3, 2)), np.zeros(3))
    np.testing.assert_array_equal(accumulator.gram, before)


def test_missing_values_average_over_the_rows_that_have_them():
    X = data(400, 4)
    X[np.random.default_rng(2).random(X.shape) < 0.3] = np.nan
    weights = np.random.default_rng(3).uniform(0.5, 2, 400)
    accumulator = MomentAccumulator(4, 4, missing=True)
    accumulator.update(X[:150], weights[:150]).update(X[150:], weights[150:])
    first = np.ma.masked_invalid(X[:150])
    np.testing.assert_allclose(
        accumulator.shift, np.ma.average(first, axis=0, weights=weights[:150]), rtol=1e-12
    )
    Z = np.column_stack([np.ones(400), X - accumulator.shift])
    values = accumulator.homogenised()
    for k, index in enumerate(multi_indices(5, 4)):
        if np.isnan(values[k]):
            assert max(np.bincount(index)[1:]) > 2
            continue
        terms = Z[:, index].prod(axis=1)
        present = ~np.isnan(terms)
        expected = np.average(terms[present], weights=weights[present])
        np.testing.assert_allclose(values[k], expected, rtol=1e-11, atol=1e-13)


def test_missing_without_gaps_equals_complete():
    X = data(100, 3)
    assert_same_moments(
        MomentAccumulator(3, 3, missing=True).update(X), MomentAccumulator(3, 3).update(X)
    )


def test_missing_pairs_never_observed_are_left_out():
    X = np.array([[1.0, np.nan, 2.0], [3.0, np.nan, 1.0], [np.nan, 4.0, 0.5]])
    accumulator = MomentAccumulator(3, 3, shift=0, missing=True).update(X)
    pairs = accumulator.moments(2)
    assert pairs.indices.tolist() == [[0, 2], [1, 2]]
    np.testing.assert_allclose(pairs.values, [2.5, 2.0])
    assert np.isnan(accumulator.homogenised()).any()
    assert accumulator.mask_gram[0, 1:].tolist()[:3] == [2.0, 1.0, 3.0]


def test_missing_columns_and_merging():
    X = np.array([[np.nan, 1.0], [np.nan, 3.0]])
    accumulator = MomentAccumulator(2, 3, missing=True).update(X)
    assert accumulator.shift.tolist() == [0.0, 2.0]
    same = MomentAccumulator(2, 3, shift=[0.0, 2.0], missing=True).update([[5.0, 2.0]])
    merged = copy.deepcopy(accumulator).merge(same)
    assert_same_moments(merged, copy.deepcopy(accumulator).update([[5.0, 2.0]]))
    other = MomentAccumulator(2, 3, shift=1.0, missing=True).update([[5.0, 2.0]])
    before = accumulator.gram.copy()
    with pytest.raises(ValueError, match="same shift from"):
        accumulator.merge(other)
    np.testing.assert_array_equal(accumulator.gram, before)
    assert accumulator.count == 2


def test_missing_accumulators_change_their_unit_exactly():
    X = np.random.default_rng(3).integers(-4, 5, (40, 3)).astype(float)
    X[::3, 1] = X[1::4, 2] = np.nan
    scale = np.array([2.0, 0.5, 8.0])
    accumulator = MomentAccumulator(3, 3, shift=1.0, missing=True).update(X)
    scaled = MomentAccumulator(3, 3, shift=1.0, scale=scale, missing=True).update(X)
    assert_same_moments(accumulator.rebased(scale=scale), scaled)
    merged = MomentAccumulator(3, 3, shift=1.0, scale=scale, missing=True).merge(accumulator)
    assert_same_moments(merged, scaled)


@pytest.mark.parametrize("missing", [False, True])
def test_other_array_namespace_gives_the_same(missing):
    X = data(120, 4)
    weights = np.random.default_rng(1).uniform(size=120)
    weights[::7] = 0
    if missing:
        X[np.random.default_rng(2).random(X.shape) < 0.2] = np.nan
    xp = array_api_strict
    theirs = MomentAccumulator(4, 5, missing=missing)
    theirs.update(xp.asarray(X[:50]), xp.asarray(weights[:50]))
    theirs.update(xp.asarray(X[50:]), xp.asarray(weights[50:]))
    ours = MomentAccumulator(4, 5, missing=missing)
    ours.update(X[:50], weights[:50]).update(X[50:], weights[50:])
    assert type(theirs.gram) is type(xp.asarray(X))
    assert theirs.count == ours.count
    assert_same_moments(ours, theirs)
    if not missing:
        assert_same_moments(ours.rebased(1, 2), theirs.rebased(1, 2), 1e-12)
        assert type(theirs.rebased(1, 2).gram) is type(xp.asarray(X))


def test_mixed_namespaces_are_refused():
    X = data(20, 2)
    accumulator = MomentAccumulator(2, 3).update(X)
    with pytest.raises(TypeError, match="array_api_strict"):
        accumulator.update(array_api_strict.asarray(X))
    with pytest.raises(TypeError, match="array_api_strict"):
        MomentAccumulator(2, 3).update(X, array_api_strict.asarray(np.ones(20)))
    with pytest.raises(TypeError, match="array_api_strict"):
        accumulator.merge(MomentAccumulator(2, 3).update(array_api_strict.asarray(X)))
    assert accumulator.count == 20


@pytest.mark.parametrize("kind", ["float32", "int16", "bool", ">f8", "fortran", "strided", "list"])
def test_kinds_of_rows(kind):
    X = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 9, size=(40, 3)).astype(float)
    forms = {
        "fortran": np.asfortranarray(X),
        "strided": np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2],
        "list": X.tolist(),
    }
    rows = forms[kind] if kind in forms else X.astype(kind)
    got = MomentAccumulator(3, 3).update(rows)
    np.testing.assert_array_equal(got.gram, MomentAccumulator(3, 3).update(X).gram)
    assert got.gram.dtype == np.float64


def test_float32_rows_are_summed_in_float64():
    X = (5001 + np.random.default_rng(0).normal(size=(5000, 2))).astype(np.float32)
    accumulator = MomentAccumulator(2, 4).update(X)
    expected = direct_moments(X.astype(float) - accumulator.shift, 4)
    known = ~has_power_above_two(2, 4)
    np.testing.assert_allclose(accumulator.homogenised()[known], expected[known], atol=1e-10)


def test_input_is_left_alone_and_state_is_protected():
    X = data(30, 3)
    X.flags.writeable = False
    weights = np.ones(30)
    shift = np.zeros(3)
    accumulator = MomentAccumulator(3, 3, shift=shift).update(X, weights)
    shift += 1
    np.testing.assert_array_equal(accumulator.shift, np.zeros(3))
    np.testing.assert_array_equal(weights, np.ones(30))
    for array in (accumulator.gram, accumulator.shift, accumulator.scale):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_constant_column_has_no_variance():
    X = np.column_stack([data(1000, 1), np.full(1000, 3.1)])
    values = MomentAccumulator(2, 3).update(X).moments(2).values
    np.testing.assert_array_equal(values, [0.0])


def test_pickle_and_copy_continue():
    X = data(80, 3)
    reference = MomentAccumulator(3, 4).update(X[:40]).update(X[40:])
    half = MomentAccumulator(3, 4).update(X[:40])
    for clone in (pickle.loads(pickle.dumps(half)), copy.deepcopy(half)):
        assert_same_moments(clone.update(X[40:]), reference, 0)
    assert half.count == 40
    assert "of 40 rows" in repr(half)
