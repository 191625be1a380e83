"""Volume, centroid and inertia of a structure: moments of its voxels up to the second."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.moment_features import gram_of_rows
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.nn.label_checks import checked_mask

__all__ = ["StructureMoments", "checked_spacing", "structure_moments"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StructureMoments:
    """Moments of a structure up to the second, each voxel counted with its centre.

    Parameters
    ----------
    voxels : int
        Their number n.
    volume : float
        n times the volume of one voxel, such as mm^3.
    centroid : ndarray of float64, shape (D,)
        The mean place; voxel 0 has its centre at 0. NaN without voxels.
    covariance : ndarray of float64, shape (D, D)
        Mean of (x - centroid)(x - centroid)^T; NaN without voxels.

    Examples
    --------
    >>> moments = structure_moments(np.array([[True, True, True]]), spacing=(2.0, 3.0))
    >>> moments.volume, moments.centroid.tolist(), moments.covariance[1, 1].item()
    (18.0, [0.0, 3.0], 6.0)
    """

    voxels: int
    volume: float
    centroid: FloatArray
    covariance: FloatArray

    @property
    def inertia(self) -> FloatArray:
        """Tensor of inertia for mass 1 around the centroid: trace(covariance) I - covariance."""
        inertia: FloatArray = np.trace(self.covariance) * np.eye(len(self.centroid))
        return inertia - self.covariance


def structure_moments(mask: Any, spacing: ArrayLike = 1.0) -> StructureMoments:
    """Compute volume, centroid and covariance of a structure's voxels.

    Parameters
    ----------
    mask : array of bool, shape (n_1, .., n_D)
        Where the structure is.
    spacing : float or array_like, shape (D,), default 1
        Distance between the centres of neighbouring voxels along every axis, such as mm.

    Returns
    -------
    StructureMoments
        On the host, in float64.

    Raises
    ------
    ShapeError
        Not one spacing for every axis.
    ValueError
        A mask that is not of booleans, or a spacing that is not positive and finite.

    Notes
    -----
    The entries of one Gram matrix of (1, x_1, .., x_D), which the moment pass of the mixtures
    accumulates (`tensoralg.gpu.moment_features`).

    Examples
    --------
    >>> structure_moments(np.array([False, True, True])).centroid.tolist()
    [1.5]
    """
    xp, mask = checked_mask("mask", mask)
    unit = checked_spacing(spacing, mask.ndim)
    places = [xp.astype(axis, xp.float64) for axis in xp.nonzero(mask)]
    count = int(places[0].shape[0])
    if not count:
        nothing = np.full(mask.ndim, np.nan)
        return StructureMoments(0, 0.0, nothing, np.full((mask.ndim, mask.ndim), np.nan))
    # from the middle of the image, so that no large numbers cancel
    middle = (np.array(mask.shape, dtype=np.float64) - 1) / 2
    ones = np.ones(mask.ndim)
    gram, _ = gram_of_rows(xp.stack(places, axis=1), None, middle, ones, 2, powers=True)
    host = to_numpy(gram)
    mean = host[0, 1 : mask.ndim + 1] / count
    second = host[1:, 1 : mask.ndim + 1] / count
    covariance = (second - np.outer(mean, mean)) * np.outer(unit, unit)
    volume = count * float(np.prod(unit))
    return StructureMoments(count, volume, (mean + middle) * unit, covariance)


def checked_spacing(spacing: ArrayLike, dimension: int, name: str = "spacing") -> FloatArray:
    """Return one positive spacing for every axis."""
    unit = np.asarray(spacing, dtype=np.float64)
    if unit.ndim > 1 or (unit.ndim == 1 and len(unit) != dimension):
        raise ShapeError(
            f"{name} must be one number for each of {dimension} axes; got shape {unit.shape}"
        )
    unit = np.broadcast_to(unit, (dimension,))
    if not (np.isfinite(unit).all() and (unit > 0).all()):
        raise ValueError(f"{name} must be positive and finite; got {unit.tolist()}")
    return unit
