"""Dice, distances of centroids and moments, with what is missing said and counted."""

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from tensoralg.core.errors import ShapeError
from tensoralg.nn import centroid_distance, dice, score_segmentation, structure_moments

torch.set_num_threads(1)

NAN = float("nan")
EMPTY, FULL = np.zeros((2, 3), dtype=bool), np.ones((2, 3), dtype=bool)
LIBRARIES = [np.asarray, torch.from_numpy, array_api_strict.asarray]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("prediction", "target", "expected"),
    [(FULL, EMPTY, 0.0), (EMPTY, FULL, 0.0), (EMPTY, EMPTY, NAN), (FULL, FULL, 1.0)],
)
def test_what_is_empty(library, prediction, target, expected):
    p, t = library(prediction), library(target)
    assert dice(p, t) == pytest.approx(expected, nan_ok=True)
    distance = 0.0 if prediction.all() and target.all() else NAN
    assert centroid_distance(p, t, (1.0, 2.0)) == pytest.approx(distance, nan_ok=True)


PAIRS = hnp.array_shapes(min_dims=1, max_dims=3, max_side=6).flatmap(
    lambda shape: st.tuples(*(hnp.arrays(np.bool_, shape) for _ in range(2)))
)


@settings(max_examples=50, deadline=None)
@given(PAIRS)
def test_dice_is_symmetric_and_counts(pair):
    p, t = pair
    value = dice(p, t)
    assert value == pytest.approx(dice(t, p), nan_ok=True)
    if p.any() or t.any():
        assert value == 2 * (p & t).sum() / (p.sum() + t.sum())
    assert dice(torch.from_numpy(p), torch.from_numpy(t)) == pytest.approx(value, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(PAIRS, st.floats(0.1, 9))
def test_distances_are_those_of_scipys_centroids(pair, unit):
    p, t = pair
    spacing = unit * np.arange(1, p.ndim + 1)
    value = centroid_distance(p, t, spacing)
    if not (p.any() and t.any()):
        assert np.isnan(value)
        return
    places = [np.array(ndimage.center_of_mass(m)) * spacing for m in (p, t)]
    assert value == pytest.approx(np.linalg.norm(places[0] - places[1]), abs=1e-9)


def test_moments_are_those_of_the_coordinates():
    rng = np.random.default_rng(0)
    mask = rng.random((9, 11, 7)) < 0.3
    spacing = np.array([0.5, 2.0, 3.0])
    places = np.argwhere(mask) * spacing
    for library in LIBRARIES:
        moments = structure_moments(library(mask), spacing)
        assert moments.voxels == len(places)
        assert moments.volume == pytest.approx(3 * len(places))
        assert np.allclose(moments.centroid, places.mean(axis=0))
        assert np.allclose(moments.covariance, np.cov(places.T, bias=True))
        away = places - places.mean(axis=0)
        square = (away**2).sum(axis=1)[:, None, None] * np.eye(3)
        inertia = (square - away[:, :, None] * away[:, None, :]).mean(axis=0)
        assert np.allclose(moments.inertia, inertia)
    nothing = structure_moments(np.zeros((2, 2), dtype=bool))
    assert (nothing.voxels, nothing.volume) == (0, 0.0)
    assert np.isnan(nothing.centroid).all()
    assert np.isnan(nothing.inertia).all()


def test_one_voxel_far_away_has_an_exact_place():
    mask = np.zeros((1, 2000), dtype=bool)
    mask[0, 1999] = True
    moments = structure_moments(mask, (1.0, 0.1))
    assert moments.centroid.tolist() == [0.0, pytest.approx(199.9, rel=1e-15)]
    assert moments.covariance.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_structures_by_label(library):
    prediction = library(np.array([[0, 1, 2, 2, 4]]))
    target = library(np.array([[1, 1, 2, 0, 0]]))
    values = dice(prediction, target, labels=[1, 2, 3, 4])
    assert values.tolist() == pytest.approx([2 / 3, 2 / 3, NAN, 0.0], nan_ok=True)
    far = centroid_distance(prediction, target, (1.0, 4.0), labels=[1, 2, 3, 4])
    assert far.tolist() == pytest.approx([2.0, 2.0, NAN, NAN], nan_ok=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_in_bytes_are_compared_as_integers(library):
    """255 is not -1, and 300 is not 44."""
    image = library(np.array([[44, 255, 0]], dtype=np.uint8))
    assert dice(image, image, labels=[44, 255, 300]).tolist() == pytest.approx(
        [1.0, 1.0, NAN], nan_ok=True
    )
    assert np.isnan(centroid_distance(image, image, labels=[300])).all()
    scores = score_segmentation(image, image, [44, 255, 300])
    assert scores.missing.tolist() == [[False, False, True]]
    assert scores.mean_dice == 1
    inside = library(np.array([[True, False]]))
    assert score_segmentation(inside, inside, [1]).mean_dice == 1


def test_lists_are_compared_with_arrays():
    there = torch.tensor([True, False])
    assert dice([True, False], there) == dice(there, [1, 0]) == 1
    assert centroid_distance([False, True], there) == 1
    assert score_segmentation([1, 0], there.long(), [1]).mean_dice == 1
    soft = torch.tensor([0.9, 0.0], requires_grad=True)
    with pytest.raises(ValueError, match="prediction must be of booleans"):
        dice(soft, there)


@pytest.mark.parametrize("score", [dice, centroid_distance])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((FULL, FULL[:1]), {}, ShapeError, r"got \(2, 3\) and \(1, 3\)"),
        ((FULL, torch.ones(2, 3)), {}, TypeError, "different libraries"),
        ((FULL * 2, FULL), {}, ValueError, "prediction must be of booleans, or of 0 and 1; got 2"),
        ((FULL, FULL * 0.5), {}, ValueError, "target must be of booleans"),
        ((FULL, FULL), {"labels": []}, ValueError, "at least one"),
        ((FULL, FULL), {"labels": [1, 1]}, ValueError, "different labels"),
        ((FULL, FULL), {"labels": 1}, TypeError, "labels must be a list"),
        ((FULL * 0.5, FULL), {"labels": [1]}, ValueError, "prediction must be whole numbers"),
    ],
)
def test_bad_images_are_named(score, arguments, options, error, words):
    with pytest.raises(error, match=words):
        score(*arguments, **options)


@pytest.mark.parametrize(
    ("spacing", "error"),
    [((1.0,), ShapeError), ((1.0, 0.0), ValueError), (NAN, ValueError), (-1, ValueError)],
)
def test_bad_spacings_are_named(spacing, error):
    with pytest.raises(error, match="spacing must be"):
        centroid_distance(FULL, FULL, spacing)


def test_scores_count_what_is_missing_not_found_and_invented():
    target = np.array([[1, 1, 2, 2, 0, 0, -1]])
    prediction = np.array([[1, 0, 0, 0, 3, 4, 1]])
    scores = score_segmentation(prediction, target, [1, 2, 3, 4], ignore=[4], spacing=(1, 2))
    assert scores.dice[0].tolist() == pytest.approx([2 / 3, 0, NAN, NAN], nan_ok=True)
    assert scores.distance[0].tolist() == pytest.approx([1, NAN, NAN, NAN], nan_ok=True)
    assert scores.missing.tolist() == [[False, False, True, True]]
    assert scores.not_found.tolist() == [[False, True, False, False]]
    assert scores.invented.tolist() == [[False, False, True, False]]
    assert scores.mean_dice == pytest.approx(1 / 3)
    assert scores.mean_distance == pytest.approx(1)
    both = scores.join(score_segmentation(target.clip(0), target, [1, 2, 3, 4]))
    assert both.dice.shape == (2, 4)
    assert both.mean_dice == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    rows = [line.split() for line in str(both).splitlines()]
    assert rows[2] == ["2", "0.500", "0.00", "2", "1", "0", "0"]
    assert rows[3] == ["3", "nan", "nan", "0", "0", "2", "1"]
    assert rows[-1][0] == "mean"
    with pytest.raises(ValueError, match="labels must be the same"):
        scores.join(score_segmentation(target.clip(0), target, [1]))
    with pytest.raises(ShapeError, match="names must be one for each"):
        score_segmentation(prediction, target, [1], names=["a", "b"])


def test_an_ignored_structure_is_left_out_even_where_the_target_has_it():
    target = np.array([1, 1, 2])
    scores = score_segmentation(np.array([1, 1, 1]), target, [1, 2], ignore=[2])
    assert np.isnan(scores.dice[0, 1])
    assert not scores.not_found.any()
