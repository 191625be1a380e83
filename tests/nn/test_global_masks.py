"""Masks of all structures together: unions, closed and filled, and the input made of them."""

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from tensoralg.core.errors import ShapeError
from tensoralg.nn import global_mask, mask_coordinates, with_mask

torch.set_num_threads(1)

IMAGES = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9),
    elements=st.sampled_from([0, 0, 0, 1, 2]),
)  # fmt: skip


def plain_mask(labels, closing):
    """scipy's closing and filling, far from the border."""
    far = closing + 1
    wide = np.pad(labels > 0, far)
    if closing:
        wide = ndimage.binary_closing(wide, iterations=closing)
    wide = ndimage.binary_fill_holes(wide)
    return wide[tuple(slice(far, far + n) for n in labels.shape)]


@settings(max_examples=60, deadline=None)
@given(IMAGES, st.integers(0, 3))
def test_closing_and_filling_are_those_of_scipy(labels, closing):
    assert np.array_equal(global_mask(labels, closing=closing), plain_mask(labels, closing))


def test_a_winding_channel_keeps_its_inside_outside():
    """Spreading by rows has to turn many corners."""
    labels = np.zeros((13, 13), dtype=np.int32)
    labels[1:-1, 1:-1] = 1
    for k in range(2, 9, 2):  # a corridor to and fro, open at one end
        labels[k, 2:11] = 0
        labels[k + 1, 10 if k % 4 == 2 else 2] = 0
    labels[0:2, 2] = 0
    assert np.array_equal(global_mask(labels, closing=0), labels > 0)
    labels[0, 2] = labels[1, 2] = 1  # shut
    assert global_mask(labels, closing=0)[1:-1, 1:-1].all()


@settings(max_examples=30, deadline=None)
@given(IMAGES)
def test_a_filled_mask_covers_the_union_and_filling_again_adds_nothing(labels):
    union = global_mask(labels, fill=False)
    assert np.array_equal(union, labels != 0)
    filled = global_mask(labels, closing=0)
    assert (filled | union == filled).all()
    assert np.array_equal(global_mask(filled, closing=0), filled)


def test_every_library_gives_the_same():
    labels = np.random.default_rng(0).integers(0, 3, (7, 8, 9)) * (np.arange(9) % 4 > 0)
    expected = global_mask(labels, include=[1])
    given_torch = global_mask(torch.from_numpy(labels), include=[1])
    assert isinstance(given_torch, torch.Tensor)
    assert np.array_equal(given_torch.numpy(), expected)
    strict = global_mask(array_api_strict.asarray(labels), include=[1])
    assert np.array_equal(np.asarray(strict), expected)
    coordinates = np.asarray(mask_coordinates(array_api_strict.asarray(expected), frame="moments"))
    assert np.allclose(coordinates, mask_coordinates(torch.from_numpy(expected), frame="moments"))


def test_structures_are_chosen_by_label():
    labels = np.array([[1, 2, 3, 0]])
    assert global_mask(labels, include=[1, 3, 9], fill=False).tolist() == [[1, 0, 1, 0]]
    assert global_mask(labels, exclude=[1], fill=False).tolist() == [[0, 1, 1, 0]]
    assert global_mask(labels, include=[1, 2], exclude=[3], fill=False).tolist() == [[1, 1, 0, 0]]
    assert not global_mask(labels, include=[7]).any()
    assert global_mask([[0.0, 2.0]], fill=False).tolist() == [[False, True]]
    half = np.array([0, 2], dtype=np.float16)
    assert global_mask(half, include=[2], fill=False).tolist() == [False, True]


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy, array_api_strict.asarray])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int64, np.float32, np.float64])
def test_labels_of_every_type_are_compared_as_integers(library, dtype):
    """In bytes 257 would be 1, and 300 would be 44."""
    labels = library(np.array([[1, 0, 44]]).astype(dtype))
    assert not np.asarray(global_mask(labels, include=[257, 300], fill=False)).any()
    one = np.asarray(global_mask(labels, include=[1], fill=False))
    assert one.tolist() == [[True, False, dtype is np.bool_]]
    left = np.asarray(global_mask(labels, exclude=[257, 300], fill=False))
    assert left.tolist() == [[True, False, True]]


def test_lists_follow_the_array_beside_them():
    image = torch.zeros(1, 1, 2, requires_grad=True)
    both = with_mask(image, [[True, False]], mode="concat")
    assert both.requires_grad
    assert both.tolist() == [[[0.0, 0.0]], [[1.0, 0.0]]]


def test_the_inner_outline_of_a_hollow_structure_does_not_show():
    labels = np.zeros((9, 9), dtype=np.uint8)
    labels[1:8, 1:8] = 1
    labels[3:6, 3:6] = 2
    hollow = global_mask(labels, include=[1], fill=False)
    assert not hollow[4, 4]
    assert np.array_equal(global_mask(labels, include=[1]), global_mask(labels))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"labels": [0.5]}, ValueError, "labels must be whole numbers; got 0.5"),
        ({"labels": [np.nan]}, ValueError, "whole numbers; got nan"),
        ({"labels": [-1]}, ValueError, "labels must be at least 0; got -1"),
        ({"labels": [1j]}, ValueError, "dtype complex128"),
        ({"labels": 3}, ValueError, "axes of space"),
        ({"labels": [1e19]}, ValueError, r"labels must be below 2\^63; got 1e\+19"),
        ({"labels": np.array([2**63], dtype=np.uint64)}, ValueError, r"below 2\^63"),
        ({"labels": [1], "include": 1}, TypeError, "include must be a list"),
        ({"labels": [1], "exclude": np.int64(1)}, TypeError, "exclude must be a list"),
        ({"labels": [1], "include": [0]}, ValueError, "include must not have the background"),
        ({"labels": [1], "exclude": ["a"]}, TypeError, "a label in exclude must be an integer"),
        ({"labels": [1], "include": [1], "exclude": [1]}, ValueError, r"both have \[1\]"),
        ({"labels": [1], "closing": -1}, ValueError, "closing must be at least 0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        global_mask(**arguments)


@pytest.mark.parametrize("frame", ["box", "moments"])
def test_coordinates_follow_the_mask(frame):
    """Moved and stretched voxels keep their coordinates."""
    rng = np.random.default_rng(1)
    mask = np.zeros((12, 14), dtype=bool)
    mask[3:8, 4:11] = rng.random((5, 7)) < 0.7
    before = mask_coordinates(mask, frame=frame)
    moved = np.roll(mask, (2, 1), axis=(0, 1))
    after = np.roll(mask_coordinates(moved, frame=frame), (-2, -1), axis=(1, 2))
    assert np.allclose(after[:, mask], before[:, mask], atol=1e-5)
    large = mask.repeat(3, axis=0).repeat(3, axis=1)
    middle = mask_coordinates(large, frame=frame)[:, 1::3, 1::3]
    assert np.allclose(middle, before, atol=1e-5)


def test_both_frames_are_the_same_for_a_box():
    mask = np.zeros((9, 6, 5), dtype=bool)
    mask[2:7, 1:2, 0:3] = True
    box, moments = (mask_coordinates(mask, frame=f) for f in ("box", "moments"))
    assert np.allclose(box, moments, atol=1e-5)
    assert np.allclose(box[0, :, 0, 0], (np.arange(9) - 4) / 2.5)


def test_harmonics_are_sines_and_cosines_of_the_coordinates():
    mask = np.ones((4, 6), dtype=bool)
    plain = mask_coordinates(mask)
    waves = mask_coordinates(mask, harmonics=2)
    assert waves.shape == (10, 4, 6)
    expected = [f(np.pi * k * plain) for k in (0.5, 1) for f in (np.sin, np.cos)]
    assert np.allclose(waves, np.concatenate([plain, *expected]), atol=1e-6)
    image = np.zeros((3, 2, 4, 6))
    both = with_mask(image, mask[None].repeat(3, 0), coordinates="box", harmonics=2)
    assert np.allclose(both[1, 1:], waves)
    assert with_mask(image[:0], np.ones((0, 4, 6)), coordinates="box", harmonics=2).shape == (
        0, 11, 4, 6,
    )  # fmt: skip


def test_an_empty_mask_has_no_coordinates():
    with pytest.raises(ValueError, match="mask must not be empty"):
        mask_coordinates(np.zeros((3, 3), dtype=bool))
    with pytest.raises(ValueError, match="frame must be"):
        mask_coordinates(np.ones((3, 3), dtype=bool), frame="voxels")


@pytest.mark.parametrize(
    ("image", "mask", "channels"),
    [
        ((3, 5, 7), (5, 7), 3),
        ((3, 5, 7), (1, 5, 7), 3),
        ((2, 3, 5, 7), (2, 5, 7), 3),
        ((2, 3, 5, 7), (2, 1, 5, 7), 3),
        ((1, 1, 5, 7), (1, 5, 7), 1),  # a batch, though one volume would fit as well
        ((3, 4, 5, 7), (4, 5, 7), 3),
        ((2, 3, 4, 5, 7), (2, 4, 5, 7), 3),
        ((0, 3, 5, 7), (0, 5, 7), 3),
    ],
)
def test_the_mask_replaces_the_image_or_stands_beside_it(image, mask, channels):
    torch.manual_seed(0)
    picture = torch.randn(image)
    inside = torch.rand(mask) < 0.6
    axis = len(image) - len([n for n in image[-3:] if n in (4, 5, 7)]) - 1
    alone = with_mask(picture, inside)
    assert alone.shape == (*image[:axis], 1, *image[axis + 1 :])
    assert torch.equal(alone.flatten(), inside.flatten().float())
    both = with_mask(picture, inside, mode="concat")
    assert both.shape[axis] == channels + 1
    assert torch.equal(both.narrow(axis, 0, channels), picture)
    assert torch.equal(both.narrow(axis, channels, 1), alone)
    space = len(image) - axis - 1
    wide = with_mask(picture, inside, coordinates="box")
    assert wide.shape[axis] == 1 + space
    if inside.numel() and axis:
        assert torch.equal(wide[0, 1:], mask_coordinates(inside.reshape(alone.shape)[0, 0]))


def test_one_volume_can_be_asked_for():
    image, mask = np.zeros((1, 1, 5, 7), dtype=np.float32), np.ones((1, 5, 7), dtype=bool)
    volume = with_mask(image, mask, mode="concat", coordinates="moments", dimension=3)
    assert volume.shape == (5, 1, 5, 7)
    assert with_mask(image, mask, mode="concat", coordinates="moments").shape == (1, 4, 5, 7)


def test_the_image_gives_the_dtype():
    mask = np.ones((2, 2), dtype=bool)
    assert with_mask(np.zeros((1, 2, 2)), mask).dtype == np.float64
    assert with_mask(np.zeros((1, 2, 2), dtype=np.uint8), mask, mode="concat").dtype == np.float32


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"mode": "add"}, ValueError, "mode must be"),
        ({"mask": np.ones((4, 4), dtype=bool)}, ShapeError, "got image .1, 3, 4. and mask .4, 4."),
        (
            {"mask": np.full((3, 4), 2)},
            ValueError,
            "mask must be of booleans, .*; got 2",
        ),
        ({"mask": torch.ones(3, 4, dtype=torch.bool)}, TypeError, "different libraries"),
        ({"dimension": 3}, ShapeError, "for dimension 3"),
        ({"coordinates": "voxels"}, ValueError, "frame must be"),
    ],
)
def test_what_does_not_fit_is_named(change, error, words):
    arguments = {"image": np.zeros((1, 3, 4)), "mask": np.ones((3, 4), dtype=bool)}
    with pytest.raises(error, match=words):
        with_mask(**{**arguments, **change})
