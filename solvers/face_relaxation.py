"""Moment relaxation of a tensor with zeros: one measure for each face that the zeros allow.

Atoms of a completely positive tensor with ``A_a = 0`` vanish on some variable of x^a: each lies on
a face of the simplex that holds no support of a zero entry. So A is a sum of tensors A_C, one for
every maximal face C, and each A_C has moments of ``|C| - 1`` variables only: many small blocks
where the relaxation of the whole simplex has one that grows with the dimension.

As there, ``t = min t : A + t U lies in the relaxation`` is always attained, with U the mean of the
uniform measures of the faces. Its multipliers give a form p that is nonnegative on every face, with
``<p, A> = -t``, which `tensoralg.solvers.certificate_faces` makes exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.solvers.conic import ConicBlock, ConicProblem, ConicResult, solve_conic
from tensoralg.solvers.moment_matrices import congruence, dehomogenize
from tensoralg.solvers.moment_relaxation import Relaxation, build_relaxation
from tensoralg.solvers.svec import smat, svec

__all__ = ["FaceRelaxation", "FaceResult", "build_face_relaxation", "solve_face_shift"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Face:
    """One face: its moments are ``known + directions @ z``.

    Attributes
    ----------
    variables : tuple of int
        Sorted variables of the tensor.
    positions : ndarray of int64
        Places of the face's entries among those of the tensor.
    lower : ndarray, shape (q, q)
        From the face's entries to its moments of degree at most d.
    relaxation : Relaxation
        Blocks of the relaxation on this face.
    known : ndarray, shape (C(|C|-1+2k, 2k),)
        Moments where all free variables are zero.
    directions : csc_array, shape (C(|C|-1+2k, 2k), m)
        How the free variables z of the whole problem move them.
    """

    variables: tuple[int, ...]
    positions: NDArray[np.int64]
    lower: Array
    relaxation: Relaxation
    known: Array
    directions: sp.csc_array


@dataclass(frozen=True, slots=True, eq=False)
class FaceRelaxation:
    """Relaxation of order k on all faces of at least two variables.

    Attributes
    ----------
    dimension, order, relaxation_order : int
        The n, d and k.
    faces : tuple of Face
        Faces of a single variable are left out: they hold one entry, which is not negative.
    n_free : int
        Number m of free variables: entries that faces share, and moments above degree d.
    """

    dimension: int
    order: int
    relaxation_order: int
    faces: tuple[Face, ...]
    n_free: int


@dataclass(frozen=True, slots=True, eq=False)
class FaceResult:
    """The least shift of a tensor into the relaxation, and the form that proves it.

    Attributes
    ----------
    t : float
        Positive only if the tensor is not completely positive; NaN if the solver failed.
    coefficients : ndarray, shape (C(n+d-1, d),)
        Form p with ``<p, A> = -t``, nonnegative on every face up to the solver's accuracy; zero
        at monomials that fit no face.
    moments : tuple of ndarray
        Moments of degree at most 2k for each face, of A + t U.
    status : {"solved", "inaccurate", "failed"}
        Judged by residuals computed from the result.
    residual : float
        The largest of the primal and dual residuals and the gap.
    conic : ConicResult
        Everything else.
    """

    t: float
    coefficients: Array
    moments: tuple[Array, ...]
    status: str
    residual: float
    conic: ConicResult


def build_face_relaxation(
    entries: ArrayLike,
    dimension: int,
    order: int,
    relaxation_order: int,
    faces: Sequence[Sequence[int]],
    *,
    products: bool = True,
) -> FaceRelaxation:
    """Write down the relaxation of a tensor that is a sum of tensors on faces.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries over ``multi_indices(n, d)``, of mass ``<A, e^d> = 1``.
    dimension, order, relaxation_order : int
        The n, d and k, ``2 k >= d``.
    faces : sequence of sequences of int
        Maximal sets of variables that contain no support of a zero entry.
    products : bool, default True
        Add the localizing matrices of products of two factors.

    Returns
    -------
    FaceRelaxation

    Raises
    ------
    ValueError
        No face of at least two variables, or an order that is too low.

    Examples
    --------
    >>> relaxation = build_face_relaxation([0.2, 0.1, 0, 0.2, 0.1, 0.2], 3, 2, 1, [(0, 1), (1, 2)])
    >>> len(relaxation.faces), relaxation.n_free
    (2, 1)
    """
    n, d, k = dimension, order, relaxation_order
    values = np.asarray(entries, dtype=np.float64)
    chosen = [tuple(sorted(face)) for face in faces if len(face) > 1]
    if not chosen:
        raise ValueError(f"faces must hold one of at least two variables; got {list(faces)}")
    places = [rank_multi_indices(np.array(C)[multi_indices(len(C), d)], n) for C in chosen]
    # of the faces that share an entry the last takes what the others leave
    last = np.full(len(values), -1)
    for number, place in enumerate(places):
        last[place] = number
    free_before = np.cumsum([0, *[int(np.sum(last[p] != i)) for i, p in enumerate(places)]])
    above = [comb(len(C) - 1 + 2 * k, 2 * k) - len(p) for C, p in zip(chosen, places, strict=True)]
    above_before = free_before[-1] + np.cumsum([0, *above])
    m = int(above_before[-1])
    shares = [
        _shares(places, number, last, free_before, (len(place), m))
        for number, place in enumerate(places)
    ]
    pieces = []
    for i, (C, place) in enumerate(zip(chosen, places, strict=True)):
        start = np.where(last[place] == i, values[place], 0.0)
        lower = np.array([dehomogenize(unit, len(C), d) for unit in np.eye(len(place))]).T
        higher = sp.csc_array(
            (np.ones(above[i]), (np.arange(above[i]), above_before[i] + np.arange(above[i]))),
            shape=(above[i], m),
        )
        directions = sp.csc_array(sp.vstack([sp.csc_array(lower @ shares[i]), higher]))
        known = np.concatenate([lower @ start, np.zeros(above[i])])
        blank = np.zeros(len(place))
        relaxation = build_relaxation(blank, len(C) - 1, d, k, products=products)
        pieces.append(Face(C, place, lower, relaxation, known, directions))
    return FaceRelaxation(n, d, k, tuple(pieces), m)


def solve_face_shift(
    relaxation: FaceRelaxation, *, solver: str = "auto", tol: float = 1e-9, **options: Any
) -> FaceResult:
    """Least t such that A + t U lies in the relaxation, and the form that proves it.

    Parameters
    ----------
    relaxation : FaceRelaxation
        As from `build_face_relaxation`.
    solver, tol, **options
        As in :func:`tensoralg.solvers.conic.solve_conic`.

    Returns
    -------
    FaceResult

    Examples
    --------
    >>> entries = np.array([1, 1, 0, 1.5, 1, 1]) / 7.5  # [[1, 1, 0], [1, 1.5, 1], [0, 1, 1]]
    >>> relaxation = build_face_relaxation(entries, 3, 2, 1, [(0, 1), (1, 2)])
    >>> solve_face_shift(relaxation).t > 0
    True
    """
    objective = np.zeros(1 + relaxation.n_free)
    objective[0] = 1
    weight = 1 / len(relaxation.faces)
    blocks = []
    for face in relaxation.faces:
        for block in face.relaxation.blocks:
            # polynomials that are orthonormal for the face's uniform measure
            matrices = congruence(block.change, block.map)
            offset = smat(np.asarray(matrices @ face.known))
            uniform = weight * (matrices @ face.relaxation.uniform)
            moved = sp.csc_array(matrices @ face.directions)
            columns = sp.hstack([sp.csc_array(-uniform[:, None]), -moved], format="csc")
            blocks.append(ConicBlock(offset, columns))
    problem = ConicProblem(objective, tuple(blocks))
    result = solve_conic(problem, solver=solver, tol=tol, **options)
    t = float(result.y[0])
    moments = tuple(
        face.known + face.directions @ result.y[1:] + t * weight * face.relaxation.uniform
        for face in relaxation.faces
    )
    residual = float(max(result.primal_residual, result.dual_residual, result.gap))
    form = _form(relaxation, result)
    return FaceResult(t, form, moments, result.status, residual, result)


def _shares(
    places: list[NDArray[np.int64]],
    number: int,
    last: NDArray[np.int64],
    free_before: NDArray[np.int64],
    shape: tuple[int, int],
) -> sp.csc_array:
    """How free shares move the entries of one face: its own, less those of earlier faces."""
    rows, columns, signs = [], [], []
    for other, place in enumerate(places[: number + 1]):
        free = place[last[place] != other]
        variables = free_before[other] + np.arange(len(free))
        mine = np.flatnonzero(np.isin(free, places[number]))
        if other < number:
            # only the last face that shares an entry pays for the others
            mine = mine[last[free[mine]] == number]
        rows.append(np.searchsorted(places[number], free[mine]))
        columns.append(variables[mine])
        signs.append(np.full(len(mine), 1.0 if other == number else -1.0))
    data = (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns)))
    return sp.csc_array(data, shape=shape)


def _form(relaxation: FaceRelaxation, result: ConicResult) -> Array:
    """Coefficients of p: the mean over the faces that share a monomial."""
    count = comb(relaxation.dimension + relaxation.order - 1, relaxation.order)
    total, owners = np.zeros(count), np.zeros(count)
    multipliers = iter(result.multipliers)
    for face in relaxation.faces:
        moments = np.zeros(len(face.known))
        for block in face.relaxation.blocks:
            Q = block.change.T @ next(multipliers) @ block.change
            moments += block.map.T @ svec(Q)
        total[face.positions] += face.lower.T @ moments[: len(face.positions)]
        owners[face.positions] += 1
    return np.asarray(total / np.maximum(owners, 1))
