"""Scores of whole cases, structure by structure, and a table of them.

A structure that is not in the target has no part in means, and is counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.nn.label_checks import checked_label_set, checked_labels
from tensoralg.nn.mask_moments import checked_spacing
from tensoralg.nn.segmentation_metrics import (
    check_same_shape,
    checked_label_list,
    distance_of_masks,
    overlap_of_masks,
)

__all__ = ["SegmentationScores", "score_segmentation"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentationScores:
    """Scores of several cases, structure by structure; printing them shows a table.

    Parameters
    ----------
    labels : tuple of int
        The structures.
    dice : ndarray of float64, shape (cases, structures)
        NaN where the structure is not in the target, or was not annotated.
    distance : ndarray of float64, shape (cases, structures)
        Of the centroids; NaN also where the structure was not found.
    missing : ndarray of bool, shape (cases, structures)
        Whether the structure is not in the target or was not annotated; left out of all means.
    not_found : ndarray of bool, shape (cases, structures)
        Whether it is in the target and not in the prediction: Dice 0, no distance.
    invented : ndarray of bool, shape (cases, structures)
        Whether it was annotated, is not in the target, but in the prediction: Dice is NaN by
        `missing`, this is where the error shows.
    names : tuple of str
        For the table.

    Examples
    --------
    >>> target = np.array([[1, 1, 0, 0]])
    >>> print(score_segmentation(target, target, [1, 2], names=["left", "right"]))
    structure   Dice  distance  cases  not found  missing  invented
    left       1.000      0.00      1          0        0         0
    right        nan       nan      0          0        1         0
    mean       1.000      0.00      1          0        1         0
    """

    labels: tuple[int, ...]
    dice: FloatArray
    distance: FloatArray
    missing: NDArray[np.bool_]
    not_found: NDArray[np.bool_]
    invented: NDArray[np.bool_]
    names: tuple[str, ...]

    @property
    def mean_dice(self) -> float:
        """Mean over all structures that are in their case's target; NaN without any."""
        return _mean(self.dice)

    @property
    def mean_distance(self) -> float:
        """Mean over all structures that are in both target and prediction; NaN without any."""
        return _mean(self.distance)

    def join(self, other: "SegmentationScores") -> "SegmentationScores":
        """Put the cases of two sets of scores below each other.

        Parameters
        ----------
        other : SegmentationScores
            Of the same structures.

        Returns
        -------
        SegmentationScores
            Of all cases.

        Raises
        ------
        ValueError
            Other structures.
        """
        if self.labels != other.labels:
            raise ValueError(f"labels must be the same; got {self.labels} and {other.labels}")
        return SegmentationScores(
            self.labels,
            np.concatenate([self.dice, other.dice]),
            np.concatenate([self.distance, other.distance]),
            np.concatenate([self.missing, other.missing]),
            np.concatenate([self.not_found, other.not_found]),
            np.concatenate([self.invented, other.invented]),
            self.names,
        )

    def __str__(self) -> str:
        width = max(len(name) for name in (*self.names, "structure"))
        lines = [f"{'structure':<{width}}   Dice  distance  cases  not found  missing  invented"]
        columns = [*((name, slice(k, k + 1)) for k, name in enumerate(self.names))]
        for name, part in [*columns, ("mean", slice(None))]:
            counts = (
                int((~self.missing[:, part]).sum()),
                *(int(a[:, part].sum()) for a in (self.not_found, self.missing, self.invented)),
            )
            lines.append(
                f"{name:<{width}}  {_mean(self.dice[:, part]):>5.3f}"
                f"  {_mean(self.distance[:, part]):>8.2f}"
                f"  {counts[0]:>5}  {counts[1]:>9}  {counts[2]:>7}  {counts[3]:>8}"
            )
        return "\n".join(lines)


def score_segmentation(
    prediction: Any,
    target: Any,
    labels: Sequence[int],
    *,
    spacing: ArrayLike = 1.0,
    ignore: Iterable[int] = (),
    names: Sequence[str] | None = None,
) -> SegmentationScores:
    """Compare one case, structure by structure.

    Parameters
    ----------
    prediction, target : array of int, same shape (n_1, .., n_D)
        Images of labels. In the target -1 marks voxels that nobody labelled; they are left out.
    labels : sequence of int
        The structures.
    spacing : float or array_like, shape (D,), default 1
        Distance between the centres of neighbouring voxels along every axis.
    ignore : iterable of int, optional
        Structures that were not annotated in this case: counted as missing, whatever the target
        says.
    names : sequence of str, optional
        Of the structures, for the table.

    Returns
    -------
    SegmentationScores
        With one case; `SegmentationScores.join` puts cases together.

    Raises
    ------
    ShapeError
        Different shapes, not one spacing for every axis, or not one name for every label.
    TypeError
        Arrays of different libraries.
    ValueError
        Values that are no labels.

    Examples
    --------
    >>> scores = score_segmentation(np.array([1, 1, 2, 0]), np.array([1, 1, 1, 0]), [1, 2])
    >>> scores.dice.tolist(), scores.invented.tolist()
    ([[0.8, nan]], [[False, True]])
    """
    chosen = checked_label_list(labels)
    left_out = checked_label_set("ignore", ignore)
    titles = tuple(names) if names is not None else tuple(str(k) for k in chosen)
    if len(titles) != len(chosen):
        raise ShapeError(f"names must be one for each of {len(chosen)} labels; got {len(titles)}")
    xp, prediction = checked_labels("prediction", prediction, like=target)
    _, target = checked_labels("target", target, least=-1, like=prediction)
    check_same_shape(prediction, target)
    unit = checked_spacing(spacing, prediction.ndim)
    known = target != -1
    rows = []
    for k in chosen:
        p, t = (prediction == k) & known, target == k
        found, there = bool(xp.any(p)), bool(xp.any(t))
        annotated = k not in left_out
        scored = annotated and there
        rows.append(
            (
                overlap_of_masks(xp, p, t) if scored else np.nan,
                distance_of_masks(p, t, unit) if scored else np.nan,
                not scored,
                scored and not found,
                annotated and found and not there,
            )
        )
    dices, distances, missing, not_found, invented = (
        np.array([column]) for column in zip(*rows, strict=True)
    )
    return SegmentationScores(chosen, dices, distances, missing, not_found, invented, titles)


def _mean(values: FloatArray) -> float:
    """Mean of what is there; NaN of nothing, without a warning."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else float("nan")
