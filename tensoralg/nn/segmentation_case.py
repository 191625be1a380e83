"""One image with its labels: what a network that labels voxels learns from and is scored on."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.label_checks import checked_label_set, checked_labels
from tensoralg.nn.mask_moments import checked_spacing

__all__ = ["UNKNOWN", "SegmentationCase", "as_image", "checked_axis"]

UNKNOWN = -1  # the label of voxels that nobody labelled


@dataclass(frozen=True, slots=True, eq=False)
class SegmentationCase:
    """One image with its labels.

    Parameters
    ----------
    image : Tensor or array of float, shape (C, n_1, .., n_D)
        Finite. Other than floating numbers become torch's default dtype. Memory is shared with the
        argument where that needs no copy.
    labels : Tensor or array of int, shape (n_1, .., n_D)
        0 is background, -1 marks voxels that nobody labelled: they are kept out of loss and scores.
    ignore : iterable of int, optional
        Structures that were not annotated in this case.
    spacing : float or sequence of float, length D, optional
        Distance between the centres of neighbouring voxels along every axis; ones by default.
    name : str, optional
        For messages.

    Raises
    ------
    ShapeError
        Shapes that do not fit each other, or not one spacing for every axis.
    TypeError
        An ignored structure that is no integer.
    ValueError
        An image that is not finite, labels that are no labels, the background ignored, or a
        spacing that is not positive and finite.

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
        where = f" of case {self.name!r}" if self.name else ""
        image = as_image(f"image{where}", self.image)
        _, labels = checked_labels(f"labels{where}", self.labels, least=UNKNOWN)
        labels = torch.as_tensor(_readable(labels))
        if image.shape[1:] != labels.shape:
            raise ShapeError(
                f"labels{where} must have the image's shape without its channels; "
                f"got image {tuple(image.shape)} and labels {tuple(labels.shape)}"
            )
        unit = 1.0 if isinstance(self.spacing, tuple) and not self.spacing else self.spacing
        for name, value in {
            "image": image,
            "labels": labels,
            "ignore": checked_label_set(f"ignore{where}", self.ignore),
            "spacing": tuple(checked_spacing(unit, labels.ndim, f"spacing{where}").tolist()),
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


def as_image(name: str, image: Any) -> Tensor:
    """Return an image as a floating tensor, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    image : Tensor or array, shape (C, n_1, .., n_D)
        Of real numbers.

    Returns
    -------
    Tensor
        In its own floating dtype, or in torch's default one.

    Raises
    ------
    ValueError
        An image that is complex or not finite.

    Examples
    --------
    >>> as_image("image", [[0, 1]])
    tensor([[0., 1.]])
    """
    found = torch.as_tensor(_readable(image))
    if found.is_complex():
        raise ValueError(f"{name} must be real; got dtype {found.dtype}")
    found = found if found.is_floating_point() else found.to(torch.get_default_dtype())
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} must be finite")
    return found


def _readable(values: Any) -> Any:
    """Copy mirrored numpy arrays, and those of another byte order: torch refuses them."""
    if not isinstance(values, np.ndarray):
        return values
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


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
