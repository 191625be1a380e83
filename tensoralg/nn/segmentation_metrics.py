"""How well a structure was found: overlap, and distance of the centroids.

A structure that is missing cannot be found well or badly: its figures are NaN.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.nn.label_checks import checked_labels, checked_mask, label_list
from tensoralg.nn.mask_moments import checked_spacing, structure_moments

__all__ = [
    "centroid_distance",
    "dice",
]

FloatArray = NDArray[np.float64]


def dice(prediction: Any, target: Any, *, labels: Sequence[int] | None = None) -> Any:
    """Compute Dice's coefficient: twice the shared voxels over those of both.

    Parameters
    ----------
    prediction, target : array, same shape
        Masks of booleans (or of 0 and 1); with `labels`, images of labels.
    labels : sequence of int, optional
        The structures that are compared one by one.

    Returns
    -------
    float or array of float64, shape (len(labels),)
        From 0 to 1. A structure that is in neither gives NaN, one that is only in the prediction
        or only in the target 0. The array is on the host.

    Raises
    ------
    ShapeError
        Different shapes.
    TypeError
        Arrays of different libraries.
    ValueError
        Values that are no mask, or with `labels` no labels.

    Examples
    --------
    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    >>> dice(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2]), labels=[1, 2, 3]).round(2).tolist()
    [0.67, 0.67, nan]
    """
    if labels is None:
        xp, prediction, target = _checked_pair(prediction, target, checked_mask)
        return overlap_of_masks(xp, prediction, target)
    xp, prediction, target = _checked_pair(prediction, target, checked_labels)
    return np.array(
        [overlap_of_masks(xp, prediction == k, target == k) for k in checked_label_list(labels)]
    )


def centroid_distance(
    prediction: Any, target: Any, spacing: ArrayLike = 1.0, *, labels: Sequence[int] | None = None
) -> Any:
    """Distance between the centroids of a predicted and a true structure.

    Parameters
    ----------
    prediction, target : array, same shape (n_1, .., n_D)
        As for `dice`.
    spacing : float or array_like, shape (D,), default 1
        Distance between the centres of neighbouring voxels along every axis.
    labels : sequence of int, optional
        The structures that are compared one by one.

    Returns
    -------
    float or array of float64, shape (len(labels),)
        In the unit of `spacing`; NaN where a structure is missing in either. The array is on the
        host.

    Raises
    ------
    ShapeError
        Different shapes, or not one spacing for every axis.
    TypeError
        Arrays of different libraries.
    ValueError
        Values that are no mask or labels, or a spacing that is not positive and finite.

    Examples
    --------
    >>> left, right = np.array([[True, False, False]]), np.array([[False, False, True]])
    >>> centroid_distance(left, right, spacing=(1.0, 2.5))
    5.0
    """
    check = checked_mask if labels is None else checked_labels
    _, prediction, target = _checked_pair(prediction, target, check)
    unit = checked_spacing(spacing, prediction.ndim)
    if labels is None:
        return distance_of_masks(prediction, target, unit)
    return np.array(
        [distance_of_masks(prediction == k, target == k, unit) for k in checked_label_list(labels)],
        dtype=np.float64,
    )


def overlap_of_masks(xp: Any, prediction: Any, target: Any) -> float:
    """Dice's coefficient of two masks, as a number on the host."""
    both, one, other = (
        int(xp.sum(xp.astype(m, xp.int64))) for m in (prediction & target, prediction, target)
    )
    return 2 * both / (one + other) if one + other else float("nan")


def distance_of_masks(prediction: Any, target: Any, unit: FloatArray) -> float:
    """Distance between the centroids of two masks."""
    places = [structure_moments(m, unit).centroid for m in (prediction, target)]
    return float(np.linalg.norm(places[0] - places[1]))


def _checked_pair(prediction: Any, target: Any, check: Any) -> tuple[Any, Any, Any]:
    """Check two images of one library and shape."""
    xp, prediction = check("prediction", prediction, like=target)
    _, target = check("target", target, like=prediction)
    check_same_shape(prediction, target)
    return xp, prediction, target


def check_same_shape(prediction: Any, target: Any) -> None:
    """Refuse images of different shapes: they would be broadcast."""
    if tuple(prediction.shape) != tuple(target.shape):
        raise ShapeError(
            f"prediction and target must have the same shape; "
            f"got {tuple(prediction.shape)} and {tuple(target.shape)}"
        )


def checked_label_list(labels: Iterable[int]) -> tuple[int, ...]:
    """Check the structures that are compared."""
    found = label_list("labels", labels)
    if len(set(found)) != len(found) or not found:
        raise ValueError(f"labels must be different labels, at least one; got {found}")
    return tuple(found)
