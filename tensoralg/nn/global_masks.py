"""Global binary masks: where the organs of an image lie, without saying which is where.

The mask is the union of all labelled structures, closed and filled: holes of the raw union would
show the outlines of the structures that are to be found. numpy, torch and other arrays of the
array API are computed where they live.

References
----------
.. [1] "Global binary masks" for the segmentation of organs, arXiv:2205.09107. Closing, filling and
   coordinates of the bounding box are our own.
"""

from collections.abc import Iterable
from typing import Any, Literal

import array_api_compat

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.gpu.namespaces import namespace_of

__all__ = ["box_coordinates", "global_mask", "with_mask"]


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
        no path along the axes, through all D dimensions, leads from it to the border.
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
    wanted, unwanted = _label_set("include", include), _label_set("exclude", exclude)
    if both := sorted((wanted or set()) & (unwanted or set())):
        raise ValueError(f"include and exclude must differ; both have {both}")
    xp, labels = checked_labels("labels", labels)
    if wanted is None:
        mask = labels != 0
    else:
        mask = xp.zeros(labels.shape, dtype=xp.bool, device=array_api_compat.device(labels))
        for label in sorted(wanted):
            mask = mask | (labels == label)
    for label in sorted(unwanted or ()):
        mask = mask & (labels != label)
    return _filled(xp, _closed(xp, mask, reach)) if fill else mask


def box_coordinates(mask: Any) -> Any:
    """Coordinates in which the bounding box of a mask reaches from -1 to 1 along every axis.

    Two images in which the masks' boxes differ in place and size have the same coordinates at
    corresponding places.

    Parameters
    ----------
    mask : array of bool, shape (n_1, .., n_D)
        Not empty.

    Returns
    -------
    array of float32, shape (D, n_1, .., n_D)
        -1 at the first and 1 at the last border of the box, beyond these outside. Voxels have
        their values at their centres: a box of n voxels has -1 + 1/n, .., 1 - 1/n.

    Raises
    ------
    ValueError
        The mask is empty, or not of booleans.

    Examples
    --------
    >>> import numpy as np
    >>> box_coordinates(np.array([False, True, True, False])).tolist()
    [[-1.5, -0.5, 0.5, 1.5]]
    """
    xp, mask = checked_mask("mask", mask)
    device, dimension = array_api_compat.device(mask), mask.ndim
    channels = []
    for axis, size in enumerate(mask.shape):
        others = tuple(k for k in range(dimension) if k != axis)
        places = xp.nonzero(xp.any(mask, axis=others) if others else mask)[0]
        if not places.shape[0]:
            raise ValueError("mask must not be empty: it has no bounding box")
        low, high = int(places[0]), int(places[-1]) + 1
        centres = xp.arange(size, dtype=xp.float32, device=device) + 0.5
        line = (2 * centres - (low + high)) / (high - low)
        shape = tuple(size if k == axis else 1 for k in range(dimension))
        channels.append(xp.broadcast_to(xp.reshape(line, shape), mask.shape))
    return xp.stack(channels)


def with_mask(
    image: Any,
    mask: Any,
    *,
    mode: Literal["only", "concat"] = "only",
    coordinates: bool = False,
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
    coordinates : bool, default False
        Add the D channels of `box_coordinates`.
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
        Another mode, a mask that is not of booleans or, with coordinates, empty.

    Examples
    --------
    >>> import torch
    >>> image, mask = torch.randn(2, 1, 5, 7), torch.ones(2, 5, 7, dtype=torch.bool)
    >>> with_mask(image, mask, mode="only", coordinates=True).shape
    torch.Size([2, 3, 5, 7])
    """
    if mode not in ("only", "concat"):
        raise ValueError(f"mode must be 'only' or 'concat'; got {mode!r}")
    xp = namespace_of(image, mask)
    _, mask = checked_mask("mask", mask)
    image = xp.asarray(image)
    batched = _is_batch(tuple(image.shape), tuple(mask.shape), dimension)
    mask = xp.reshape(mask, (image.shape[0], *image.shape[2:]) if batched else image.shape[1:])
    dtype = image.dtype if xp.isdtype(image.dtype, "real floating") else xp.float32
    axis = 1 if batched else 0
    parts = [xp.astype(image, dtype)] if mode == "concat" else []
    parts.append(xp.expand_dims(xp.astype(mask, dtype), axis=axis))
    if coordinates and batched:
        rows = [box_coordinates(mask[row, ...]) for row in range(mask.shape[0])]
        empty = xp.zeros(
            (0, mask.ndim - 1, *mask.shape[1:]), dtype=dtype, device=array_api_compat.device(mask)
        )
        parts.append(xp.astype(xp.stack(rows), dtype) if rows else empty)
    elif coordinates:
        parts.append(xp.astype(box_coordinates(mask), dtype))
    return xp.concat(parts, axis=axis)


def checked_labels(name: str, labels: Any, *, least: int = 0) -> tuple[Any, Any]:
    """Return the namespace and labels as integers, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    labels : array or nested list, any shape but ()
        Whole numbers; floating ones are accepted, as files of volumes often hold them.
    least : int, default 0
        The smallest label accepted.

    Returns
    -------
    xp : module
        The array-API namespace.
    labels : array of int
        Integers and booleans as they are, floating numbers as int64.

    Raises
    ------
    ValueError
        A single number, or values that are not whole or too small.

    Examples
    --------
    >>> import numpy as np
    >>> checked_labels("labels", np.array([0.0, 2.0]))[1].tolist()
    [0, 2]
    """
    xp = namespace_of(labels)
    labels = xp.asarray(labels)
    if labels.ndim == 0:
        raise ValueError(f"{name} must have axes of space; got a single number")
    if xp.isdtype(labels.dtype, "real floating"):
        whole = xp.isfinite(labels) & (xp.round(labels) == labels)
        if not xp.all(whole):
            wrong = float(labels[~whole][0])
            raise ValueError(f"{name} must be whole numbers; got {wrong}")
        labels = xp.astype(labels, xp.int64)
    elif not xp.isdtype(labels.dtype, ("integral", "bool")):
        raise ValueError(f"{name} must be whole numbers; got dtype {labels.dtype}")
    if xp.isdtype(labels.dtype, "signed integer") and xp.any(labels < least):
        raise ValueError(f"{name} must be at least {least}; got {int(xp.min(labels))}")
    return xp, labels


def checked_mask(name: str, mask: Any) -> tuple[Any, Any]:
    """Return the namespace and a mask as booleans, or raise naming the argument.

    Parameters
    ----------
    name : str
        The argument's name, for the messages.
    mask : array or nested list, any shape but ()
        Booleans, or numbers that are all 0 or 1.

    Returns
    -------
    xp : module
        The array-API namespace.
    mask : array of bool
        The mask.

    Raises
    ------
    ValueError
        Other values.

    Examples
    --------
    >>> import numpy as np
    >>> checked_mask("mask", np.array([0.0, 1.0]))[1].tolist()
    [False, True]
    """
    xp = namespace_of(mask)
    mask = xp.asarray(mask)
    if mask.ndim == 0:
        raise ValueError(f"{name} must have axes of space; got a single number")
    if not xp.isdtype(mask.dtype, "bool"):
        wrong = (mask != 0) & (mask != 1)
        if xp.any(wrong):
            seen = mask[wrong][0]
            raise ValueError(f"{name} must be of booleans, or of 0 and 1; got {seen}")
        mask = mask == 1
    return xp, mask


def _label_set(name: str, labels: Iterable[int] | None) -> set[int] | None:
    """Check a list of labels."""
    if labels is None:
        return None
    if isinstance(labels, int | str):
        raise TypeError(f"{name} must be a list of labels; got {labels!r}")
    found = {nonnegative_integer(f"a label in {name}", label) for label in labels}
    if 0 in found:
        raise ValueError(f"{name} must not have the background 0")
    return found


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
