"""Volumes of labels from files of medical imaging, and their resolution.

Reading needs nibabel, which is imported when a file is read.
"""

import gzip
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import PersistenceError, ShapeError, TensorAlgError
from tensoralg.nn.label_checks import checked_labels
from tensoralg.nn.mask_moments import checked_spacing

__all__ = ["LabelVolume", "VolumeReadingUnavailableError", "read_label_volume"]


class VolumeReadingUnavailableError(TensorAlgError):
    """nibabel is not installed: no volume can be read."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelVolume:
    """Labels of voxels and where these lie.

    Parameters
    ----------
    labels : ndarray of int64, shape (n_1, n_2, n_3)
        0 is background. Axes go to the right, to the front and upwards as far as the file's
        axes are near these.
    spacing : ndarray of float64, shape (3,)
        Distance between the centres of neighbouring voxels along every axis, in mm.
    affine : ndarray of float64, shape (4, 4)
        From indices of voxels to mm.

    Examples
    --------
    >>> volume = LabelVolume(np.arange(8).reshape(2, 2, 2), np.ones(3), np.eye(4))
    >>> volume.resampled(2.0).labels.shape
    (1, 1, 1)
    """

    labels: NDArray[np.int64]
    spacing: NDArray[np.float64]
    affine: NDArray[np.float64]

    def resampled(self, spacing: ArrayLike) -> "LabelVolume":
        """Take the labels of the nearest voxels on a grid of another spacing.

        Parameters
        ----------
        spacing : float or array_like, shape (3,)
            The wanted distance in mm along every axis. The new grid covers the same space, its
            last voxels reach beyond it by less than their size.

        Returns
        -------
        LabelVolume
            The affine map follows.

        Raises
        ------
        ShapeError
            Not one spacing for every axis.
        ValueError
            A spacing that is not positive and finite.
        """
        wanted = checked_spacing(spacing, 3)
        ratio = wanted / self.spacing
        places = []
        for size, step in zip(self.labels.shape, ratio, strict=True):
            # centres of the new voxels, in indices of old ones; both grids begin at one border
            centres = (np.arange(int(np.ceil(size / step - 1e-9))) + 0.5) * step - 0.5
            places.append(np.clip(np.floor(centres + 0.5), 0, size - 1).astype(np.int64))
        onto = np.diag([*ratio, 1.0])
        onto[:3, 3] = 0.5 * ratio - 0.5
        return LabelVolume(self.labels[np.ix_(*places)], wanted.copy(), self.affine @ onto)


def read_label_volume(path: str | os.PathLike[str]) -> LabelVolume:
    """Read a volume of labels, such as a NIfTI file.

    Parameters
    ----------
    path : path_like
        Of a kind that nibabel reads. Axes are turned and mirrored so that they go to the right,
        to the front and upwards as nearly as possible; nothing is interpolated.

    Returns
    -------
    LabelVolume
        Labels with spacing and affine map.

    Raises
    ------
    FileNotFoundError
        No such file.
    PersistenceError
        No image of voxels that nibabel can read, or a compressed file that is damaged.
    ShapeError
        Not three axes.
    ValueError
        Values that are not whole nonnegative numbers.
    VolumeReadingUnavailableError
        nibabel is not installed.

    Examples
    --------
    >>> volume = read_label_volume("brain.nii.gz")  # doctest: +SKIP
    >>> volume.resampled(4.0).labels.shape  # doctest: +SKIP
    (46, 45, 48)
    """
    try:
        import nibabel
    except ImportError as error:
        raise VolumeReadingUnavailableError(
            f"no volumes: nibabel cannot be imported ({error}); "
            "install it with: pip install nibabel"
        ) from None
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {os.fspath(path)}")
    unreadable = (nibabel.filebasedimages.ImageFileError, OSError, EOFError, ValueError, zlib.error)
    try:
        _check_whole(path)
        loaded: Any = nibabel.load(path)
        if not hasattr(loaded, "affine"):
            raise ValueError(f"{type(loaded).__name__} is no image of voxels")
        image: Any = nibabel.as_closest_canonical(loaded)
        values = np.asarray(image.dataobj)
    except unreadable as error:
        raise PersistenceError(f"{os.fspath(path)} cannot be read as a volume: {error}") from error
    if values.ndim > 3 and set(values.shape[3:]) == {1}:
        values = values.reshape(values.shape[:3])
    if values.ndim != 3:
        raise ShapeError(f"{os.fspath(path)} must hold one volume; got shape {values.shape}")
    _, labels = checked_labels(f"the values of {os.fspath(path)}", values)
    affine = np.asarray(image.affine, dtype=np.float64)
    # lengths of the columns, so that a rotated grid keeps its distances
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    return LabelVolume(labels.astype(np.int64), checked_spacing(spacing, 3), affine)


def _check_whole(path: str | os.PathLike[str]) -> None:
    """Compare a compressed file with its checksum: nibabel stops reading before it."""
    if os.path.isfile(path) and os.fspath(path).lower().endswith((".gz", ".mgz")):
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
