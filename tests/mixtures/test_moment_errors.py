"""What a moment accumulator refuses, and that it stays as it was."""

import copy

import numpy as np
import pytest

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.mixtures.moments import MomentAccumulator


def data(rows, dimension):
    return np.random.default_rng(0).normal(size=(rows, dimension)) + 1.0


BAD_CHUNKS = {
    "nan": ([[1.0, 2.0], [3.0, np.nan]], r"nan in row 1, column 1.*missing=True"),
    "infinity": ([[1.0, 2.0], [-np.inf, 0.0]], r"-inf in row 1, column 0"),
    "one dimension": (np.ones(55), r"\(55,\).*reshape\(-1, 1\).*reshape\(1, -1\)"),
    "three dimensions": (np.ones((2, 2, 2)), r"\(2, 2, 2\)"),
    "width": (np.ones((4, 3)), "3 columns.*dimension 2"),
    "empty": (np.ones((0, 2)), "no rows"),
    "object": (np.array([[1, None], [2, 3]], dtype=object), "object"),
    "text": (np.array([["a", "b"]]), "str"),
    "complex": (np.ones((2, 2), dtype=complex), "complex"),
    "masked": (np.ma.masked_equal(np.eye(2), 0), "masked"),
    "overflow": (np.array([[1e200, 1.0], [0.0, 1e200]]), "float64 range"),
}


@pytest.mark.parametrize("case", BAD_CHUNKS)
@pytest.mark.parametrize("first", [True, False])
def test_bad_chunk_is_named_and_changes_nothing(case, first):
    chunk, message = BAD_CHUNKS[case]
    accumulator = MomentAccumulator(2, 3)
    if not first:
        accumulator.update(data(10, 2))
    before = copy.deepcopy(vars(accumulator))
    with pytest.raises(ValueError, match=message):
        accumulator.update(chunk)
    after = vars(accumulator)
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_bad_cell_far_down_is_found():
    X = data(100_000, 2)
    X[99_990, 1] = np.nan
    with pytest.raises(ValueError, match="row 99990, column 1"):
        MomentAccumulator(2, 3).update(X)
    with pytest.raises(ValueError, match="inf in row 1, column 0"):
        MomentAccumulator(2, 3, missing=True).update([[np.nan, 1.0], [np.inf, 1.0]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0, 1.0], r"-1\.0 for row 1"),
        ([1.0, np.nan, 1.0], "nan for row 1"),
        ([1.0, 1.0, np.inf], "inf for row 2"),
        ([1.0, 1.0], r"\(3,\).*\(2,\)"),
        ([[1.0], [1.0], [1.0]], r"\(3,\).*\(3, 1\)"),
    ],
)
def test_bad_weights_are_named(weights, message):
    accumulator = MomentAccumulator(2, 3)
    with pytest.raises(ValueError, match=message):
        accumulator.update(np.ones((3, 2)), weights)
    assert accumulator.count == 0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 3), {}, "dimension"),
        ((2.5, 3), {}, r"dimension.*2\.5"),
        ((2, 0), {}, "order"),
        ((2, 3), {"shift": [1, 2, 3]}, r"shift.*\(2,\).*\(3,\)"),
        ((2, 3), {"shift": np.nan}, "shift.*finite.*column 0"),
        ((2, 3), {"scale": [1, 0]}, "scale.*positive.*column 1"),
        ((2, 3), {"scale": "wide"}, "scale.*wide"),
    ],
)
def test_bad_constructor_arguments_are_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MomentAccumulator(*arguments, **options)


def test_too_large_problem_is_refused_at_once():
    with pytest.raises(ProblemTooLargeError, match="GiB"):
        MomentAccumulator(500, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, 0.6]}, r"sum of 1\.1"),
        ({"weights": [1.5, -0.5]}, r"-0\.5"),
        ({"weights": [1.0]}, r"weights.*\(2,\)"),
        ({"means": [0.0, 1.0]}, "means"),
        ({"covariances": np.ones((2, 2))}, r"covariances.*\(2, 3\)"),
        ({"covariances": -np.ones((2, 3))}, "covariances.*negative"),
        ({"means": np.full((2, 3), np.nan)}, "means.*finite"),
    ],
)
def test_bad_parameters_are_named(change, message):
    parameters = {"weights": [0.5, 0.5], "means": np.zeros((2, 3)), "covariances": np.ones((2, 3))}
    with pytest.raises(ValueError, match=message):
        MomentAccumulator.from_parameters(**{**parameters, **change}, order=3)


def test_merge_and_moments_refuse_what_does_not_fit():
    accumulator = MomentAccumulator(3, 3).update(data(10, 3))
    for other, message in [
        (MomentAccumulator(2, 3), "dimension is 3 here and 2"),
        (MomentAccumulator(3, 4), "order is 3 here and 4"),
        (MomentAccumulator(3, 3, powers=True), "powers is False here and True"),
        (MomentAccumulator(3, 3, missing=True), "missing is False here and True"),
    ]:
        with pytest.raises(ValueError, match=message):
            accumulator.merge(other)
    with pytest.raises(TypeError, match="ndarray"):
        accumulator.merge(np.ones(3))
    for order in (0, 4):
        with pytest.raises(ValueError, match=str(order)):
            accumulator.moments(order)
    assert issubclass(ShapeError, ValueError)


def test_merging_beyond_float64_is_refused_and_changes_nothing():
    near = MomentAccumulator(3, 3, shift=0).update(np.ones((4, 3)))
    far = MomentAccumulator(3, 3, shift=1e110).update(np.full((4, 3), 1e110))
    with pytest.raises(ValueError, match="exceed the float64 range"):
        near.merge(far)
    assert near.count == 4
    np.testing.assert_array_equal(near.moments(3).values, [1.0])
    with pytest.raises(ValueError, match="exceed the float64 range"):
        near.rebased(scale=1e-120)
