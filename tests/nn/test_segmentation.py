"""Training to label voxels: the loss with what was not annotated, batches, the trainer."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.nn import (
    SegmentationCase,
    UNet,
    evaluate_segmentation,
    fit_segmentation,
    predict_segmentation,
    segmentation_loss,
)
from tensoralg.nn.segmentation import _Batches

torch.set_num_threads(1)


def plain_loss(logits, labels, ignored):
    """Voxel by voxel, structure by structure."""
    shares = logits.softmax(dim=1)
    batch, classes = logits.shape[:2]
    terms, sums = [], {k: [0.0, 0.0, 0.0] for k in range(1, classes)}
    for b in range(batch):
        left_out = {k for k in range(1, classes) if ignored[b, k]}
        for place in np.ndindex(*labels.shape[1:]):
            label = int(labels[(b, *place)])
            if label == -1:
                continue
            label = 0 if label in left_out else label
            p = shares[(b, slice(None), *place)]
            union = {0} | left_out if label == 0 else {label}
            terms.append(-math.log(sum(float(p[k]) for k in union)))
            for k in set(sums) - left_out:
                sums[k][0] += float(p[k]) * (label == k)
                sums[k][1] += float(p[k])
                sums[k][2] += label == k
    overlaps = [2 * a / max(1, b + c) for a, b, c in sums.values() if c]
    value = sum(terms) / max(1, len(terms))
    return value + (1 - sum(overlaps) / len(overlaps) if overlaps else 0)


@pytest.mark.parametrize("space", [(5,), (3, 4), (2, 3, 2)])
def test_the_loss_is_that_of_the_plain_loop(space):
    torch.manual_seed(0)
    logits = torch.randn(3, 4, *space, dtype=torch.float64)
    labels = torch.randint(-1, 4, (3, *space))
    ignored = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
    for these in (ignored, torch.zeros_like(ignored)):
        expected = plain_loss(logits, labels, these)
        assert float(segmentation_loss(logits, labels, these)) == pytest.approx(expected)
    none = segmentation_loss(logits, labels, dice_weight=0)
    assert float(none) == pytest.approx(
        float(functional.cross_entropy(logits, labels, ignore_index=-1))
    )


def test_what_was_not_annotated_is_kept_out_of_the_loss():
    """No choice between background and the ignored structure is rewarded."""
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (1, 6))
    ignored = torch.tensor([[False, False, True]])
    logits = torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True)
    loss = segmentation_loss(logits, labels, ignored)
    with torch.no_grad():
        share = logits.softmax(dim=1)
        swapped = share[:, [2, 1, 0]].log()  # background and the ignored one exchanged
    assert segmentation_loss(swapped, labels, ignored).item() == pytest.approx(loss.item())
    as_background = labels.masked_fill(labels == 2, 0)
    assert segmentation_loss(logits, as_background, ignored).item() == pytest.approx(loss.item())
    assert segmentation_loss(swapped, labels).item() != pytest.approx(loss.item())


def test_gradients_are_right_and_finite():
    torch.manual_seed(0)
    labels = torch.tensor([[0, 1, 2, -1], [0, 0, 0, 0]])
    ignored = torch.tensor([[False, False, False], [False, True, True]])
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: segmentation_loss(x, labels, ignored), (logits,))
    large = (1e4 * logits).detach().requires_grad_()
    segmentation_loss(large, labels, ignored).backward()
    assert bool(torch.isfinite(large.grad).all())
    unknown = torch.full_like(labels, -1)
    nothing = segmentation_loss(logits, unknown, ignored)
    assert nothing.item() == 0
    nothing.backward()
    assert bool((logits.grad == 0).all())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": torch.zeros(1, 2, 2).long()}, ShapeError, "labels must have the shape"),
        ({"labels": torch.zeros(2, 1, 1).long()}, ShapeError, r"and labels \(2, 1, 1\)"),
        ({"labels": torch.zeros(2, 2, 2).byte()}, TypeError, "labels must be int64"),
        ({"ignored": torch.tensor([False, True, False])}, ShapeError, r"ignored .* \(2, 3\)"),
        ({"ignored": torch.zeros(2, 3)}, TypeError, "ignored must be of booleans"),
    ],
)
def test_arguments_of_the_loss_are_not_broadcast(change, error, words):
    arguments = {"logits": torch.zeros(2, 3, 2, 2), "labels": torch.zeros(2, 2, 2).long()}
    with pytest.raises(error, match=words):
        segmentation_loss(**{**arguments, **change})


def test_other_negative_labels_are_no_background():
    """-100 is what other losses of torch leave out."""
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 6), torch.tensor([[0, 1, 2, 0, -1, -1]])
    other = torch.tensor([[0, 1, 2, 0, -100, -2]])
    assert torch.equal(segmentation_loss(logits, other), segmentation_loss(logits, labels))


def square(low, high, size=12, label=1):
    labels = torch.zeros(size, size + 1, dtype=torch.int64)
    labels[low:high, low:high] = label
    return labels


def test_batches_of_several_sizes_are_padded_with_unknown_voxels():
    cases = [SegmentationCase(torch.ones(1, n, n + 1), square(1, 3, n), ignore=[2]) for n in (5, 7)]
    ((images, labels, ignored),) = _Batches(cases, 4, 3, None, None)
    assert images.shape == (2, 1, 7, 8)
    sizes = sorted((labels != -1).flatten(1).sum(dim=1).tolist())
    assert sizes == [30, 56]
    assert bool((images.sum(dim=1) == (labels != -1)).all())
    assert ignored.tolist() == [[False, False, True]] * 2


def test_padding_does_not_change_the_loss():
    torch.manual_seed(0)
    logits = torch.randn(1, 2, 5, 6)
    labels = square(1, 3, 5)[None]
    wide = functional.pad(logits, (0, 3, 0, 2), value=7.0)
    padded = functional.pad(labels, (0, 3, 0, 2), value=-1)
    assert torch.allclose(segmentation_loss(wide, padded), segmentation_loss(logits, labels))


def test_volumes_are_cut_and_put_together_along_every_axis():
    labels = torch.arange(24).reshape(2, 3, 4)
    case = SegmentationCase(labels[None].float(), labels, spacing=(1, 2, 3), name="a")
    for axis in range(3):
        parts = case.slices(axis)
        assert torch.equal(torch.stack([p.labels for p in parts], dim=axis), labels)
        assert torch.equal(torch.stack([p.image for p in parts], dim=axis + 1), case.image)
        assert parts[0].spacing == tuple(s for k, s in enumerate((1.0, 2.0, 3.0)) if k != axis)
    with pytest.raises(ValueError, match="axis must be below 3; got 3"):
        case.slices(3)


class Threshold(nn.Module):
    """Logits that say whether the image is above 0."""

    def forward(self, image):
        return torch.cat([-image, image], dim=1)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_predictions_of_slices_are_the_volume(axis):
    torch.manual_seed(0)
    image = torch.randn(1, 3, 4, 5)
    model = nn.Sequential(Threshold(), nn.Dropout()).train()
    labels = predict_segmentation(model, image, axis=axis, batch_size=2)
    assert torch.equal(labels, (image[0] > 0).long())
    assert model.training


def test_mirrored_and_double_images_train_and_are_labelled():
    """Axes of volumes are often turned round, and numpy's numbers are double."""
    torch.manual_seed(0)
    labels = square(2, 7).numpy()[::-1]
    case = SegmentationCase(labels[None].astype(">f8"), labels.astype(">i2"), spacing=2.0)
    assert case.image.dtype == torch.float64
    assert case.spacing == (2.0, 2.0)
    model = UNet(1, 2, (4,))
    assert fit_segmentation(model, [case], epochs=30, rate=0.03).status == "finished"
    told = predict_segmentation(model, labels[None])
    assert torch.equal(told, predict_segmentation(model, case.image))
    assert evaluate_segmentation(model, [case], [1]).mean_dice > 0.9


def test_nothing_is_labelled_by_numbers_that_are_not_finite():
    model = UNet(1, 2, (4,))
    with pytest.raises(ValueError, match="image must be finite"):
        predict_segmentation(model, torch.full((1, 3, 3), math.nan))
    with torch.no_grad():
        model.head.bias.fill_(math.nan)
    with pytest.raises(ValueError, match="model must give finite logits; got NaN"):
        predict_segmentation(model, torch.zeros(1, 3, 3))


def test_a_volume_without_slices_has_no_labels():
    assert predict_segmentation(UNet(1, 2, (4,)), torch.zeros(1, 0, 3, 4), axis=0).shape == (
        0,
        3,
        4,
    )


def test_augmentation_adds_no_steps():
    labels = torch.full((4, 5, 6), -1)
    labels[:2] = 0
    case = SegmentationCase(torch.randn(1, 4, 5, 6), labels)
    result = fit_segmentation(
        UNet(1, 2, (4,)), [case], epochs=2, axis=0, batch_size=1,
        augment=lambda c: SegmentationCase(c.image, c.labels.clamp(min=0)),
    )  # fmt: skip
    assert result.steps == 4


def test_cases_of_numpy_and_of_torch():
    case = SegmentationCase(np.ones((1, 2, 3), dtype=np.float32), np.ones((2, 3)), ignore=[2])
    assert case.labels.dtype == torch.int64
    assert case.ignore == frozenset({2})
    assert SegmentationCase(np.ones((1, 2), dtype=bool), [0, 1]).image.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": torch.zeros(2, 2)}, ShapeError, "got image .1, 2, 3. and labels .2, 2."),
        (
            {"labels": torch.full((2, 3), -2)},
            ValueError,
            "labels of case 'x' must be at least -1; got -2",
        ),
        (
            {"image": torch.full((1, 2, 3), math.nan)},
            ValueError,
            "case 'x' must be finite",
        ),
        ({"ignore": [0]}, ValueError, "ignore of case 'x' must not have the background"),
        ({"ignore": 1}, TypeError, "ignore of case 'x' must be a list"),
        ({"spacing": (1.0,)}, ShapeError, "spacing of case 'x' must be one number for each of 2"),
        ({"spacing": (1.0, math.nan)}, ValueError, "spacing of case 'x' must be positive"),
        ({"image": torch.zeros(1, 2, 3) + 1j}, ValueError, "image of case 'x' must be real"),
    ],
)
def test_bad_cases_are_refused(change, error, words):
    arguments = {"image": torch.zeros(1, 2, 3), "labels": torch.zeros(2, 3), "name": "x"}
    with pytest.raises(error, match=words):
        SegmentationCase(**{**arguments, **change})


def test_bad_training_is_refused():
    model, case = UNet(1, 2, (4,)), SegmentationCase(torch.zeros(1, 4, 4), torch.zeros(4, 4))
    with pytest.raises(ValueError, match="at least one case"):
        fit_segmentation(model, [], epochs=1)
    with pytest.raises(ValueError, match="at least one case"):
        evaluate_segmentation(model, [], [1])
    high = SegmentationCase(torch.zeros(1, 4, 4), torch.full((4, 4), 2), name="x")
    with pytest.raises(ValueError, match="below the model's 2 classes; got 2 in case 'x'"):
        fit_segmentation(model, [case, high], epochs=1)
    ignoring = SegmentationCase(torch.zeros(1, 4, 4), torch.zeros(4, 4), ignore=[5])
    with pytest.raises(ValueError, match="2 classes; got 5"):
        fit_segmentation(model, [ignoring], epochs=1)
    unknown = SegmentationCase(torch.zeros(1, 4, 4), torch.full((4, 4), -1))
    with pytest.raises(ValueError, match="at least one voxel that is labelled"):
        fit_segmentation(model, [unknown], epochs=1)
    two = SegmentationCase(torch.zeros(2, 4, 4), torch.zeros(4, 4))
    with pytest.raises(ShapeError, match=r"of axes; got \[\(1, 2\), \(2, 2\)\]"):
        fit_segmentation(model, [case, two], epochs=1)
    with pytest.raises(TypeError, match="classes must be given"):
        fit_segmentation(Threshold(), [case], epochs=1)


def images(count, *, ignore=()):
    """Two squares, the brighter one is structure 2; structures of `ignore` are not drawn in."""
    found = []
    for _ in range(count):
        at = torch.randint(1, 4, (2,)).tolist()
        labels = square(at[0], at[0] + 4) + 0
        labels[7 : 7 + 4, at[1] + 4 : at[1] + 8] = 2
        image = labels.float()[None] + 0.05 * torch.randn(1, *labels.shape)
        for k in ignore:
            labels[labels == k] = 0
        found.append(SegmentationCase(image, labels, ignore=ignore))
    return found


def test_structures_annotated_in_different_cases_are_all_learnt():
    torch.manual_seed(0)
    cases = images(9, ignore=[1]) + images(3, ignore=[2])
    model = UNet(1, 3, (8,))
    result = fit_segmentation(model, cases, epochs=20, batch_size=4, rate=0.03)
    assert result.status == "finished"
    scores = evaluate_segmentation(model, images(4), [1, 2])
    assert scores.mean_dice > 0.9
    # without the ignore sets structure 1 is learnt as background, as in most of the cases
    torch.manual_seed(0)
    wrong = [SegmentationCase(c.image, c.labels) for c in cases]
    other = UNet(1, 3, (8,))
    fit_segmentation(other, wrong, epochs=20, batch_size=4, rate=0.03)
    assert evaluate_segmentation(other, images(4), [1, 2]).mean_dice < scores.mean_dice - 0.1


def test_a_checkpoint_resumes_bit_by_bit(tmp_path):
    def model():
        torch.manual_seed(0)
        return UNet(1, 3, (4,))

    def moved(case):
        shift = int(torch.randint(0, 2, ()))
        return SegmentationCase(case.image.roll(shift, 1), case.labels.roll(shift, 0))

    torch.manual_seed(1)
    cases = images(5)
    options = {"epochs": 3, "batch_size": 2, "augment": moved}
    whole = model()
    torch.manual_seed(2)
    fit_segmentation(whole, cases, **options)
    parts = model()
    torch.manual_seed(2)
    stopped = fit_segmentation(
        parts, cases, checkpoint=tmp_path / "c", callback=lambda step, _: step == 4, **options
    )
    assert stopped.status == "stopped"
    torch.manual_seed(99)
    result = fit_segmentation(parts, cases, checkpoint=tmp_path / "c", **options)
    assert result.steps == 9
    pairs = zip(whole.state_dict().values(), parts.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_volumes_train_in_two_and_three_dimensions():
    torch.manual_seed(0)
    labels = torch.zeros(6, 7, 8, dtype=torch.int64)
    labels[2:5, 2:5, 2:6] = 1
    case = SegmentationCase(labels[None].float() - 0.5, labels, spacing=(1.0, 2.0, 3.0))
    for dimension, axis in ((2, 1), (3, None)):
        model = UNet(1, 2, (4,), dimension=dimension)
        fit_segmentation(model, [case], epochs=40, batch_size=4, rate=0.03, axis=axis)
        scores = evaluate_segmentation(model, [case], [1], axis=axis)
        assert scores.mean_dice > 0.9
        assert scores.mean_distance < 1
