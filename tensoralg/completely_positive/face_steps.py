"""The step of a detection that splits a tensor with zeros among the faces that its zeros allow."""

import numpy as np

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.exact_tests import convincing
from tensoralg.completely_positive.lifting import lift_certificate
from tensoralg.completely_positive.search import Search
from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.solvers.certificate_faces import faces_certificate
from tensoralg.solvers.face_relaxation import build_face_relaxation, solve_face_shift
from tensoralg.solvers.moment_relaxation import predict_size

__all__ = ["faces_within_reach", "solve_faces", "within_reach"]

# smaller shifts are within a solver's accuracy; an exact certificate may be found all the same
_TELLING, _TELLING_EXACT = 1e-8, 1e-9
# sizes that are solved in seconds
_LARGEST_BLOCK = 60
_MOST_MOMENTS = 500
_MOST_MOMENTS_OF_FACES = 2000


def within_reach(dimension: int, order: int, relaxation_order: int) -> bool:
    """Whether a relaxation is solved in seconds.

    Parameters
    ----------
    dimension, order, relaxation_order : int
        The n >= 2, d and k.

    Returns
    -------
    bool
        By the predicted size of its blocks and number of free moments.
    """
    moments, blocks = predict_size(dimension, order, relaxation_order)
    return blocks[0] <= _LARGEST_BLOCK and moments <= _MOST_MOMENTS


def faces_within_reach(search: Search, order: int) -> bool:
    """Whether the zeros split the tensor among faces that are solved in seconds.

    Parameters
    ----------
    search : Search
        The detection.
    order : int
        Order k of the relaxation.

    Returns
    -------
    bool
        False also where there are no zeros, or too many faces to list.
    """
    if search.supports is None or len(search.supports) < 2:
        return False
    d = search.core.order
    sizes = [predict_size(len(C), d, order) for C in search.supports if len(C) > 1]
    large = max((blocks[0] for _, blocks in sizes), default=0) > _LARGEST_BLOCK
    return bool(sizes) and not large and sum(m for m, _ in sizes) <= _MOST_MOMENTS_OF_FACES


def solve_faces(search: Search, order: int) -> Certificate | None:
    """Solve the relaxation of order k with one measure for each maximal support.

    Parameters
    ----------
    search : Search
        The detection; takes the order, the shift and the evidence.
    order : int
        Order k of the relaxation, ``2 k >= d``.

    Returns
    -------
    Certificate or None
        A verified certificate that the tensor is not completely positive. None also where the
        zeros do not split the tensor, or the faces are too many or too large.
    """
    core, d = search.core, search.core.order
    if search.supports is None or not faces_within_reach(search, order):
        return None
    faces = [support for support in search.supports if len(support) > 1]
    try:
        relaxation = build_face_relaxation(core.scaled, core.dimension, d, order, faces)
        result = solve_face_shift(relaxation, solver=search.solver)
    except ProblemTooLargeError as error:
        search.evidence.append(f"faces, order {order}: refused: {error}")
        return None
    search.evidence.append(
        f"order {order} on {len(faces)} faces: shift {result.t:.3e}, {result.status}, residual "
        f"{result.residual:.1e}"
    )
    search.order, search.shift = order, result.t if np.isfinite(result.t) else None
    telling = _TELLING if core.noise else _TELLING_EXACT
    if not result.t > telling or not np.isfinite(result.coefficients).all():
        return None
    found = faces_certificate(core.values, core.dimension, d, result.coefficients, search.supports)
    if found is None or not convincing(found.form, core):
        return None
    return lift_certificate(found, search.tensor, search.active)
