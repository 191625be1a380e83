"""Global binary masks: where the organs of an image lie, without saying which is where.

The mask is the union of all labelled structures, closed and filled: holes of the raw union would
show the outlines of the structures that are to be found. numpy, torch and other arrays of the
array API are computed where they live.

References
----------
.. [1] "Global binary masks" for the segmentation of organs, arXiv:2205.09107. Closing, filling and
   coordinates of the bounding box are our own.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

import array_api_compat
import numpy as np

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.label_checks import checked_label_set, checked_labels, checked_mask
from tensoralg.nn.mask_moments import structure_moments

__all__ = ["global_mask", "mask_coordinates", "with_mask"]


def global_mask(
    labels: Any,
    *,
    include: Iterable[int] | None = None,
    exclude: Iterable[int] | None = None,
    fill: bool = True,
    closing: int = 1,
) -> Any:
    """Mark the voxels inside the union of labelled structures.

    Parameters
    ----------
    labels : array of int, shape (n_1, .., n_D)
        0 is background. One image, without axes of channels or of a batch: a hole is filled where
        no path along the axes, through all D dimensions, leads from it to the border: along an
        axis of one voxel every voxel lies there, and nothing is filled.
    include : iterable of int, optional
        The structures; all labels but 0 by default. Those that the image does not have add
        nothing.
    exclude : iterable of int, optional
        Structures left out of the union. Where others surround one, filling covers it again.
    fill : bool, default True
        Close gaps and fill holes; otherwise the raw union.
    closing : int, default 1
        Gaps up to twice as many voxels wide are closed before holes are filled: by a dilation and
        an erosion with a cross, the image continued as background. Not used without `fill`.

    Returns
    -------
    array of bool, shape (n_1, .., n_D)
        In the library and on the device of `labels`; all False where no structure is present.

    Raises
    ------
    TypeError
        A label in `include` or `exclude`, or `closing`, is no integer.
    ValueError
        `labels` has no axis, or values that are not whole nonnegative numbers; a label is in both
        lists or is the background.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.array([[1, 1, 1], [1, 0, 2], [3, 2, 2]])
    >>> global_mask(labels, exclude=[3]).astype(int).tolist()
    [[1, 1, 1], [1, 1, 1], [0, 1, 1]]
    >>> global_mask(labels, exclude=[3], fill=False).astype(int).tolist()
    [[1, 1, 1], [1, 0, 1], [0, 1, 1]]
    """
    reach = nonnegative_integer("closing", closing)
    wanted = None if include is None else checked_label_set("include", include)
    unwanted = checked_label_set("exclude", () if exclude is None else exclude)
    if both := sorted(unwanted & (wanted or set())):
        raise ValueError(f"include and exclude must differ; both have {both}")
    xp, labels = checked_labels("labels", labels)
    if wanted is None:
        mask = labels != 0
    else:
        mask = xp.zeros(labels.shape, dtype=xp.bool, device=array_api_compat.device(labels))
        for label in sorted(wanted):
            mask = mask | (labels == label)
    for label in sorted(unwanted):
        mask = mask & (labels != label)
    return _filled(xp, _closed(xp, mask, reach)) if fill else mask


def mask_coordinates(
    mask: Any, *, frame: Literal["box", "moments"] = "box", harmonics: int = 0
) -> Any:
    """Coordinates in which the mask reaches from about -1 to 1 along every axis.

    Two images in which the masks differ in place and size have the same coordinates at
    corresponding places.

    Parameters
    ----------
    mask : array of bool, shape (n_1, .., n_D)
        Not empty.
    frame : {"box", "moments"}, default "box"
        "box": -1 and 1 are the borders of the mask's bounding box. "moments": the origin is the
        centroid, the unit the half width of the box that has the mask's variance along the axis;
        a few voxels that stick out hardly move it.
    harmonics : int, default 0
        Add sines and cosines of pi/2, pi, 2 pi, .. times the coordinates, that many pairs: from
        them a network makes narrow functions of the place sooner than from coordinates alone.

    Returns
    -------
    array of float32, shape (D (1 + 2 harmonics), n_1, .., n_D)
        Of the voxels' centres: the coordinates, then sines and cosines by turns. For a mask that
        is a box both frames are the same: n voxels have -1 + 1/n, .., 1 - 1/n.

    Raises
    ------
    ValueError
        Another frame, or a mask that is empty or not of booleans.

    Examples
    --------
    >>> import numpy as np
    >>> mask = np.array([False, True, True, False])
    >>> mask_coordinates(mask).tolist()
    [[-1.5, -0.5, 0.5, 1.5]]
    >>> mask_coordinates(mask, frame="moments").tolist()
    [[-1.5, -0.5, 0.5, 1.5]]
    """
    pairs = nonnegative_integer("harmonics", harmonics)
    if frame not in ("box", "moments"):
        raise ValueError(f"frame must be 'box' or 'moments'; got {frame!r}")
    xp, mask = checked_mask("mask", mask)
    if not xp.any(mask):
        raise ValueError("mask must not be empty: it has no coordinates")
    middle, half = _box(xp, mask) if frame == "box" else _ellipsoid(mask)
    channels = []
    for axis, size in enumerate(mask.shape):
        places = xp.arange(size, dtype=xp.float32, device=array_api_compat.device(mask))
        line = (places - middle[axis]) / half[axis]
        shape = tuple(size if k == axis else 1 for k in range(mask.ndim))
        channels.append(xp.broadcast_to(xp.reshape(line, shape), mask.shape))
    plain = xp.stack(channels)
    turns = [plain * (math.pi / 2 * 2**k) for k in range(pairs)]
    waves = [wave(turn) for turn in turns for wave in (xp.sin, xp.cos)]
    return xp.concat([plain, *waves])


def with_mask(
    image: Any,
    mask: Any,
    *,
    mode: Literal["only", "concat"] = "only",
    coordinates: Literal["box", "moments"] | None = None,
    harmonics: int = 0,
    dimension: int | None = None,
) -> Any:
    """Give a network the mask: in the place of the image, or as one more channel.

    Parameters
    ----------
    image : array, shape (B, C, n_1, .., n_D) or (C, n_1, .., n_D)
        With ``mode="only"`` its values are not used.
    mask : array of bool, shape (B, n_1, .., n_D) or (n_1, .., n_D)
        Of every image. An axis of one channel, as the image has one, is accepted.
    mode : {"only", "concat"}, default "only"
        "only": the mask alone is the input.
    coordinates : {"box", "moments"}, optional
        Add the channels of `mask_coordinates` in this frame.
    harmonics : int, default 0
        Of the coordinates.
    dimension : int, optional
        D. By default what fits the shapes, and where both do, images of a batch (D = 2) rather
        than one volume.

    Returns
    -------
    array, shape (B, C', n_1, .., n_D) or (C', n_1, .., n_D)
        Channels in the order image, mask, coordinates, in the image's floating dtype (float32 if
        the image has another one). Nothing is shared with the arguments.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    TypeError
        Image and mask are of different libraries.
    ValueError
        Another mode or frame, a mask that is not of booleans or, with coordinates, empty.

    Examples
    --------
    >>> import torch
    >>> image, mask = torch.randn(2, 1, 5, 7), torch.ones(2, 5, 7, dtype=torch.bool)
    >>> with_mask(image, mask, mode="only", coordinates="box").shape
    torch.Size([2, 3, 5, 7])
    """
    if mode not in ("only", "concat"):
        raise ValueError(f"mode must be 'only' or 'concat'; got {mode!r}")
    xp, mask = checked_mask("mask", mask, like=image)
    image = image if array_api_compat.is_torch_array(image) else xp.asarray(image)
    batched = _is_batch(tuple(image.shape), tuple(mask.shape), dimension)
    mask = xp.reshape(mask, (image.shape[0], *image.shape[2:]) if batched else image.shape[1:])
    dtype = image.dtype if xp.isdtype(image.dtype, "real floating") else xp.float32
    axis = 1 if batched else 0
    parts = [xp.astype(image, dtype)] if mode == "concat" else []
    parts.append(xp.expand_dims(xp.astype(mask, dtype), axis=axis))
    if coordinates is not None:
        rows = [mask[row, ...] for row in range(mask.shape[0])] if batched else [mask]
        places = [mask_coordinates(row, frame=coordinates, harmonics=harmonics) for row in rows]
        if batched and places:
            parts.append(xp.astype(xp.stack(places), dtype))
        elif places:
            parts.append(xp.astype(places[0], dtype))
        else:  # an empty batch
            wide = (0, (mask.ndim - 1) * (1 + 2 * harmonics), *mask.shape[1:])
            parts.append(xp.zeros(wide, dtype=dtype, device=array_api_compat.device(mask)))
    return xp.concat(parts, axis=axis)


def _box(xp: Any, mask: Any) -> tuple[list[float], list[float]]:
    """Middle and half width of the bounding box along every axis, in voxels."""
    middle, half = [], []
    for axis in range(mask.ndim):
        others = tuple(k for k in range(mask.ndim) if k != axis)
        places = xp.nonzero(xp.any(mask, axis=others) if others else mask)[0]
        low, high = int(places[0]), int(places[-1])
        middle.append((low + high) / 2)
        half.append((high - low + 1) / 2)
    return middle, half


def _ellipsoid(mask: Any) -> tuple[list[float], list[float]]:
    """Centroid, and half width of the box of the same variance along every axis, in voxels."""
    moments = structure_moments(mask)
    # a voxel is not a point: it is 1 wide and has a variance of its own
    variance = np.diagonal(moments.covariance) + 1 / 12
    return moments.centroid.tolist(), np.sqrt(3 * variance).tolist()


def _is_batch(image: tuple[int, ...], mask: tuple[int, ...], dimension: int | None) -> bool:
    """Tell a batch (B, C, ...) from one image (C, ...) by the mask's shape."""
    fits = {}
    if len(image) >= 3:
        batch, space = image[:1], image[2:]
        fits[len(space)] = (True, mask in ((*batch, *space), (*batch, 1, *space)))
    if len(image) >= 2:
        space = image[1:]
        fits[len(space)] = (False, mask in (space, (1, *space)))
    right = sorted(d for d, (_, fit) in fits.items() if fit and dimension in (None, d))
    if not right:
        wanted = "" if dimension is None else f" for dimension {dimension}"
        raise ShapeError(
            f"mask must have the image's shape without its channels{wanted}; "
            f"got image {image} and mask {mask}"
        )
    # (C, H, W) is an image as a matter of course, (B, C, H, W) a batch
    chosen = right[-1] if len(image) == 3 else right[0]
    return fits[chosen][0]


def _shifted(xp: Any, mask: Any, axis: int, step: int) -> Any:
    """Move a mask by one voxel, background coming in."""
    shape = list(mask.shape)
    shape[axis] = 1
    edge = xp.zeros(tuple(shape), dtype=xp.bool, device=array_api_compat.device(mask))
    kept = [slice(None)] * mask.ndim
    kept[axis] = slice(None, -1) if step > 0 else slice(1, None)
    inner = mask[tuple(kept)]
    return xp.concat([edge, inner] if step > 0 else [inner, edge], axis=axis)


def _dilated(xp: Any, mask: Any) -> Any:
    """Add the neighbours along the axes."""
    result = mask
    for axis in range(mask.ndim):
        for step in (1, -1):
            result = result | _shifted(xp, mask, axis, step)
    return result


def _closed(xp: Any, mask: Any, reach: int) -> Any:
    """Dilate and erode, in an image large enough that its border loses nothing."""
    if not reach or 0 in mask.shape:
        return mask
    device = array_api_compat.device(mask)
    wide = xp.zeros(tuple(n + 2 * reach for n in mask.shape), dtype=xp.bool, device=device)
    inside = tuple(slice(reach, reach + n) for n in mask.shape)
    wide[inside] = mask
    for _ in range(reach):
        wide = _dilated(xp, wide)
    outside = ~wide
    for _ in range(reach):
        outside = _dilated(xp, outside)
    # what lies beyond the widened image is background, but no voxel of the image is that near
    return ~outside[inside]


def _filled(xp: Any, mask: Any) -> Any:
    """Fill what no path along the axes connects with the border.

    The outside spreads through whole rows, forward and backward along every axis in turn, until
    a round adds nothing: few rounds, where spreading voxel by voxel would need many.
    """
    if 0 in mask.shape:
        return mask
    outside = xp.zeros(mask.shape, dtype=xp.bool, device=array_api_compat.device(mask))
    for axis in range(mask.ndim):
        for place in (0, -1):
            border = _plane(mask.ndim, axis, place)
            outside[border] = ~mask[border]
    count = -1
    while count != (count := int(xp.sum(xp.astype(outside, xp.int64)))):
        for axis in range(mask.ndim):
            for order in (range(1, mask.shape[axis]), range(mask.shape[axis] - 2, -1, -1)):
                step = 1 if order.step > 0 else -1
                for place in order:
                    here = _plane(mask.ndim, axis, place)
                    before = _plane(mask.ndim, axis, place - step)
                    outside[here] = outside[here] | (outside[before] & ~mask[here])
    return ~outside


def _plane(dimension: int, axis: int, place: int) -> tuple[Any, ...]:
    """Index one plane across an axis."""
    return tuple(place if k == axis else slice(None) for k in range(dimension))
