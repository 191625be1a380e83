"""One image with its labels: what a network that labels voxels learns from and is scored on."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.label_checks import checked_labels

__all__ = ["UNKNOWN", "SegmentationCase", "checked_axis"]

UNKNOWN = -1  # the label of voxels that nobody labelled


@dataclass(frozen=True, slots=True, eq=False)
class SegmentationCase:
    """One image with its labels.

    Parameters
    ----------
    image : Tensor or array of float, shape (C, n_1, .., n_D)
        Finite.
    labels : Tensor or array of int, shape (n_1, .., n_D)
        0 is background, -1 marks voxels that nobody labelled: they are kept out of loss and scores.
    ignore : iterable of int, optional
        Structures that were not annotated in this case.
    spacing : sequence of float, length D, optional
        Distance between the centres of neighbouring voxels along every axis; ones by default.
    name : str, optional
        For messages.

    Raises
    ------
    ShapeError
        Shapes that do not fit each other.
    TypeError
        An ignored structure that is no integer.
    ValueError
        An image that is not finite, labels that are no labels, or the background ignored.

    Examples
    --------
    >>> case = SegmentationCase(torch.zeros(1, 4, 5), torch.ones(4, 5, dtype=torch.int64))
    >>> case.spacing
    (1.0, 1.0)
    """

    image: Tensor
    labels: Tensor
    ignore: frozenset[int] = field(default_factory=frozenset)
    spacing: tuple[float, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        image = torch.as_tensor(self.image)
        image = image if image.is_floating_point() else image.to(torch.get_default_dtype())
        _, labels = checked_labels("labels", torch.as_tensor(self.labels), least=UNKNOWN)
        where = f" of case {self.name!r}" if self.name else ""
        if image.shape[1:] != labels.shape:
            raise ShapeError(
                f"labels{where} must have the image's shape without its channels; "
                f"got image {tuple(image.shape)} and labels {tuple(labels.shape)}"
            )
        if not bool(torch.isfinite(image).all()):
            raise ValueError(f"image{where} must be finite")
        ignored = frozenset(nonnegative_integer("a label in ignore", k) for k in self.ignore)
        if 0 in ignored:
            raise ValueError("ignore must not have the background 0")
        spacing = tuple(float(s) for s in self.spacing) or (1.0,) * labels.ndim
        if len(spacing) != labels.ndim:
            raise ShapeError(f"spacing{where} must have {labels.ndim} numbers; got {spacing}")
        for name, value in {
            "image": image,
            "labels": labels.to(torch.int64),
            "ignore": ignored,
            "spacing": spacing,
        }.items():
            object.__setattr__(self, name, value)

    def slices(self, axis: int) -> list["SegmentationCase"]:
        """Cut a volume into images.

        Parameters
        ----------
        axis : int
            From 0 to D - 1, the axis that the images do not have.

        Returns
        -------
        list of SegmentationCase
            One for every place along the axis; they share memory with this case.

        Raises
        ------
        ValueError
            No such axis.
        """
        place = checked_axis(axis, self.labels.ndim)
        spacing = self.spacing[:place] + self.spacing[place + 1 :]
        planes = zip(self.image.unbind(place + 1), self.labels.unbind(place), strict=True)
        return [replace(self, image=image, labels=at, spacing=spacing) for image, at in planes]


def checked_axis(axis: int, dimension: int) -> int:
    """Return an axis of space, or raise.

    Parameters
    ----------
    axis : int
        From 0.
    dimension : int
        Number of axes.

    Returns
    -------
    int
        The axis.

    Raises
    ------
    ValueError
        No such axis.

    Examples
    --------
    >>> checked_axis(1, 3)
    1
    """
    place = nonnegative_integer("axis", axis)
    if place >= dimension:
        raise ValueError(f"axis must be below {dimension}; got {place}")
    return place
