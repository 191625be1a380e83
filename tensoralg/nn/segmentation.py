"""Training a network to label voxels: cases, their loss, a trainer and its scores.

A case names the structures that were not annotated in it. There the loss treats "background or
one of these" as one class: neither choice between them is rewarded or punished.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import positive_integer
from tensoralg.nn.evaluation import device_of
from tensoralg.nn.module_modes import evaluating
from tensoralg.nn.segmentation_case import UNKNOWN, SegmentationCase, as_image, checked_axis
from tensoralg.nn.segmentation_scores import SegmentationScores, score_segmentation
from tensoralg.nn.training import TrainingResult, fit

__all__ = [
    "evaluate_segmentation",
    "fit_segmentation",
    "predict_segmentation",
    "segmentation_loss",
]


def segmentation_loss(
    logits: Tensor,
    labels: Tensor,
    ignored: Tensor | None = None,
    *,
    dice_weight: float = 1.0,
) -> Tensor:
    """Cross-entropy plus one minus the mean soft Dice of the structures.

    Parameters
    ----------
    logits : Tensor, shape (B, K, n_1, .., n_D)
        Of background 0 and K - 1 structures.
    labels : Tensor of int64, shape (B, n_1, .., n_D)
        From 0 to K - 1; -1 and other negative numbers are kept out of the loss.
    ignored : Tensor of bool, shape (B, K), optional
        Structures that were not annotated in a row: there "background or one of these" is one
        class of the cross-entropy, to which voxels with such a label belong, and they have no part
        in Dice. Column 0 is not used.
    dice_weight : float, default 1
        Of the second term.

    Returns
    -------
    Tensor, shape ()
        The cross-entropy is a mean over known voxels; Dice is computed over the whole batch, its
        mean is over structures that the batch has. 0 where nothing is known.

    Raises
    ------
    ShapeError
        Shapes that do not fit each other: they would be broadcast.
    TypeError
        Labels that are not int64, or `ignored` not of booleans.

    Notes
    -----
    The union of background and what was not annotated is the marginal loss of partially labelled
    images.

    Examples
    --------
    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    >>> round(segmentation_loss(logits, torch.tensor([[0, 1]])).item(), 4)
    0.0002
    """
    if ignored is None:
        ignored = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    _check_loss_arguments(logits, labels, ignored)
    classes, space = logits.shape[1], tuple(range(2, logits.ndim))
    known = labels >= 0
    wide = ignored.reshape(*ignored.shape, *(1,) * len(space))
    target = labels.clamp(min=0)
    of_ignored = wide.expand(logits.shape).gather(1, target[:, None])[:, 0]
    target = target.masked_fill(of_ignored, 0)
    log_shares = functional.log_softmax(logits, dim=1)
    # background, or whatever nobody looked for
    elsewhere = wide.clone()
    elsewhere[:, 0] = True
    background = torch.logsumexp(log_shares.masked_fill(~elsewhere, -torch.inf), dim=1)
    own = log_shares.gather(1, target[:, None])[:, 0]
    log_likelihood = torch.where(target == 0, background, own)
    loss = -(log_likelihood * known).sum() / known.sum().clamp(min=1)
    if not dice_weight or classes == 1:
        return loss
    counted = known[:, None] & ~wide
    shares = log_shares.exp() * counted
    truth = functional.one_hot(target, classes).movedim(-1, 1) * counted
    axes = (0, *space)
    sizes = truth.sum(axes)[1:]
    overlap = 2 * (shares * truth).sum(axes)[1:] / (shares.sum(axes)[1:] + sizes).clamp(min=1)
    present = sizes > 0
    missed = ((1 - overlap) * present).sum() / present.sum().clamp(min=1)
    return loss + dice_weight * missed


def fit_segmentation(
    model: nn.Module,
    cases: Sequence[SegmentationCase],
    *,
    epochs: int,
    batch_size: int = 8,
    rate: float = 3e-3,
    weight_decay: float = 1e-4,
    dice_weight: float = 1.0,
    axis: int | None = None,
    augment: Callable[[SegmentationCase], SegmentationCase] | None = None,
    classes: int | None = None,
    **options: Any,
) -> TrainingResult:
    """Train a network to label voxels, with AdamW and one cycle of the learning rate.

    Parameters
    ----------
    model : nn.Module
        Logits (B, K, ...) for images (B, C, ...), such as a `UNet`.
    cases : sequence of SegmentationCase
        Images of different sizes are padded within their batch; the padding is kept out of the
        loss.
    epochs : int
        Passes through all cases, those before a resumption included.
    batch_size : int, default 8
        Images in one step.
    rate : float, default 3e-3
        Largest learning rate.
    weight_decay : float, default 1e-4
        Of AdamW.
    dice_weight : float, default 1
        As for `segmentation_loss`.
    axis : int, optional
        Cut volumes into images across this axis; images without any known voxel are left out.
    augment : callable, optional
        ``augment(case)`` returns what a case is replaced with, before it is cut, anew in every
        epoch. A resumption is exact where chance comes from torch's global generator. If more
        images with known voxels result than the cases have, as many as these are drawn.
    classes : int, optional
        K; the model's `out_channels` by default.
    **options
        For `tensoralg.nn.training.fit`: `checkpoint`, `callback`, `progress`, `autocast`,
        `validation`, and others.

    Returns
    -------
    TrainingResult
        History and status.

    Raises
    ------
    ValueError
        No case, no known voxel, a label that the model has no output for, or an argument out of
        range.
    ShapeError
        Cases with different numbers of channels or axes.
    TypeError
        A model without `out_channels`, and no `classes`.

    Examples
    --------
    >>> from tensoralg.nn import UNet
    >>> _ = torch.manual_seed(0)
    >>> labels = torch.zeros(8, 9, dtype=torch.int64)
    >>> labels[2:6, 3:7] = 1
    >>> case = SegmentationCase(labels[None].float(), labels)
    >>> model = UNet(1, 2, (4,))
    >>> result = fit_segmentation(model, [case], epochs=30, rate=0.03)
    >>> result.status, bool((predict_segmentation(model, case.image) == labels).all())
    ('finished', True)
    """
    if not cases:
        raise ValueError("cases must have at least one case")
    positive_integer("epochs", epochs)
    if classes is None:
        classes = getattr(model, "out_channels", None)
        if not isinstance(classes, int):
            raise TypeError("classes must be given for a model without out_channels")
    data = _Batches(cases, positive_integer("batch_size", batch_size), classes, axis, augment)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=weight_decay)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * len(data), pct_start=0.2
    )

    def loss(network: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        images, labels, ignored = batch
        logits = network(images.to(_dtype_of(network, images)))
        return segmentation_loss(logits, labels, ignored, dice_weight=dice_weight)

    return fit(model, data, optimizer, epochs=epochs, loss=loss, schedule=cycle, **options)


def predict_segmentation(
    model: nn.Module, image: Any, *, axis: int | None = None, batch_size: int = 8
) -> Tensor:
    """Label the voxels of one image with the likeliest class, in eval mode.

    Parameters
    ----------
    model : nn.Module
        Logits (B, K, ...) for images (B, C, ...); its training flags are put back.
    image : Tensor or array, shape (C, n_1, .., n_D)
        Finite. Moved to the model's device and floating dtype.
    axis : int, optional
        Cut a volume into images across this axis.
    batch_size : int, default 8
        Images at once.

    Returns
    -------
    Tensor of int64, shape (n_1, .., n_D)
        On the model's device.

    Raises
    ------
    ValueError
        No such axis, a batch size below 1, or an image or outputs that are not finite.

    Examples
    --------
    >>> predict_segmentation(nn.Identity(), torch.eye(2)).tolist()
    [0, 1]
    """
    size = positive_integer("batch_size", batch_size)
    image = as_image("image", image)
    image = image.to(device_of(model), _dtype_of(model, image))
    place = None if axis is None else checked_axis(axis, image.ndim - 1)
    images = image[None] if place is None else image.movedim(place + 1, 0)
    parts = [images[k : k + size] for k in range(0, max(len(images), 1), size)]
    with evaluating(model), torch.no_grad():
        labels = torch.cat([_likeliest(model(part)) for part in parts])
    return labels[0] if place is None else labels.movedim(0, place)


def evaluate_segmentation(
    model: nn.Module,
    cases: Sequence[SegmentationCase],
    labels: Sequence[int],
    *,
    axis: int | None = None,
    names: Sequence[str] | None = None,
) -> SegmentationScores:
    """Score a network on cases.

    Parameters
    ----------
    model, axis
        As for `predict_segmentation`.
    cases : sequence of SegmentationCase
        At least one.
    labels : sequence of int
        The structures.
    names : sequence of str, optional
        Of the structures, for the table.

    Returns
    -------
    SegmentationScores
        With a row for every case; distances in the unit of the cases' spacing.

    Raises
    ------
    ValueError
        No case.

    Examples
    --------
    >>> case = SegmentationCase(torch.eye(2), torch.tensor([0, 1]))
    >>> evaluate_segmentation(nn.Identity(), [case], [1]).mean_dice
    1.0
    """
    scores: SegmentationScores | None = None
    for case in cases:
        found = predict_segmentation(model, case.image, axis=axis)
        one = score_segmentation(
            found, case.labels.to(found.device), labels,
            spacing=case.spacing, ignore=case.ignore, names=names,
        )  # fmt: skip
        scores = one if scores is None else scores.join(one)
    if scores is None:
        raise ValueError("cases must have at least one case")
    return scores


def _likeliest(logits: Tensor) -> Tensor:
    """Take the likeliest class; NaN would count as such."""
    if bool(logits.isnan().any()):
        raise ValueError("model must give finite logits; got NaN")
    return logits.argmax(dim=1)


def _dtype_of(model: nn.Module, image: Tensor) -> torch.dtype:
    """Tell in which dtype a model wants its images."""
    found = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(found, image.dtype)


def _check_loss_arguments(logits: Tensor, labels: Tensor, ignored: Tensor) -> None:
    """Refuse what would be broadcast or compared wrongly; values are not read back."""
    if logits.ndim < 2 or labels.shape != (logits.shape[0], *logits.shape[2:]):
        raise ShapeError(
            f"labels must have the shape of logits without the classes; "
            f"got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        )
    if ignored.shape != logits.shape[:2]:
        raise ShapeError(
            f"ignored must have shape {tuple(logits.shape[:2])}; got {tuple(ignored.shape)}"
        )
    if labels.dtype != torch.int64:
        raise TypeError(f"labels must be int64; got {labels.dtype}")
    if ignored.dtype != torch.bool:
        raise TypeError(f"ignored must be of booleans; got {ignored.dtype}")


class _Batches:
    """Shuffled batches, drawn from torch's global generator."""

    def __init__(
        self,
        cases: Sequence[SegmentationCase],
        batch_size: int,
        classes: int,
        axis: int | None,
        augment: Callable[[SegmentationCase], SegmentationCase] | None,
    ) -> None:
        self.cases, self.batch_size, self.classes = list(cases), batch_size, classes
        self.axis, self.augment = axis, augment
        kinds = sorted({(len(case.image), case.labels.ndim) for case in self.cases})
        if len(kinds) > 1:
            raise ShapeError(
                f"cases must have the same number of channels and of axes; got {kinds}"
            )
        # the schedule has to know the number of steps: augmentation must not add any
        self.count = len(self.images(self.cases))
        if not self.count:
            raise ValueError("cases must have at least one voxel that is labelled")

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def images(self, cases: Iterable[SegmentationCase]) -> list[SegmentationCase]:
        """Cut volumes, and check the labels."""
        found = []
        for case in cases:
            largest = max([int(case.labels.max()) if case.labels.numel() else 0, *case.ignore])
            if largest >= self.classes:
                raise ValueError(
                    f"labels must be below the model's {self.classes} classes; "
                    f"got {largest} in case {case.name!r}"
                )
            found += [case] if self.axis is None else case.slices(self.axis)
        return [case for case in found if bool((case.labels != UNKNOWN).any())]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        cases = self.cases if self.augment is None else [self.augment(c) for c in self.cases]
        images = self.images(cases)
        order = torch.randperm(len(images)).tolist()[: self.count]
        for first in range(0, len(order), self.batch_size):
            rows = order[first : first + self.batch_size]
            yield _stacked([images[row] for row in rows], self.classes)


def _stacked(cases: Sequence[SegmentationCase], classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pad cases to one size: zeros in the images, unknown labels."""
    size = [max(n) for n in zip(*(case.labels.shape for case in cases), strict=True)]
    images, labels = [], []
    ignored = torch.zeros(len(cases), classes, dtype=torch.bool)
    for row, case in enumerate(cases):
        border: list[int] = []
        for wanted, found in zip(reversed(size), reversed(case.labels.shape), strict=True):
            border += [0, wanted - found]
        images.append(functional.pad(case.image, border))
        labels.append(functional.pad(case.labels, border, value=UNKNOWN))
        ignored[row, list(case.ignore)] = True
    return torch.stack(images), torch.stack(labels), ignored
