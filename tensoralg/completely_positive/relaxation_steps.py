"""The steps of a detection that solve a moment relaxation."""

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.exact_tests import convincing
from tensoralg.completely_positive.face_steps import faces_within_reach, solve_faces, within_reach
from tensoralg.completely_positive.lifting import lift_certificate
from tensoralg.completely_positive.search import Search
from tensoralg.core.errors import ProblemTooLargeError
from tensoralg.solvers.atoms import atoms_from_moments
from tensoralg.solvers.certificate_bernstein import bernstein_certificate
from tensoralg.solvers.certificate_gram import gram_certificate
from tensoralg.solvers.conic import automatic_solver, available_solvers, predict_bytes
from tensoralg.solvers.facial_reduction import reduce_faces
from tensoralg.solvers.moment_matrices import dehomogenize
from tensoralg.solvers.moment_relaxation import (
    Relaxation,
    build_relaxation,
    predict_size,
    solve_moments,
)
from tensoralg.solvers.uniform_shift import ShiftResult, solve_shift

__all__ = ["check_solver", "orders_within_reach", "solve_order"]

# smaller shifts are within a solver's accuracy; an exact certificate may be found all the same
_TELLING, _TELLING_EXACT = 1e-7, 1e-10
_FAR = 1e-4  # beyond this there are no atoms to look for
_GIB = 2**30
_MOST_BYTES = 4 * _GIB
# without max_order: sizes that are solved in seconds
_MOST_ORDERS = 3
_MANY_MOMENTS = 200  # from here on a solve takes tens of seconds


def check_solver(solver: str) -> None:
    """Refuse the name of a solver that is unknown or not installed.

    Parameters
    ----------
    solver : str
        The argument of `detect`.

    Raises
    ------
    ValueError
        The message lists the accepted names.

    Examples
    --------
    >>> check_solver("auto")
    """
    accepted = ("auto", *available_solvers())
    if solver not in accepted:
        names = ", ".join(map(repr, accepted))
        raise ValueError(f"solver must be one of {names}; got {solver!r}")


def orders_within_reach(search: Search, highest: int | None) -> list[int]:
    """List the orders of relaxations that are to be solved.

    Parameters
    ----------
    search : Search
        The detection.
    highest : int or None
        The user's `max_order`.

    Returns
    -------
    list of int
        From ``ceil(d/2)``; without `highest` only sizes that take seconds.

    Raises
    ------
    ProblemTooLargeError
        Order `highest` does not fit in memory.
    """
    n, d = search.core.dimension, search.core.order
    lowest = (d + 1) // 2
    if n < 2:
        return []
    if highest is not None:
        _refuse_too_large(search, highest)
        return list(range(lowest, highest + 1))
    orders = []
    for k in range(lowest, lowest + _MOST_ORDERS):
        m, sizes = predict_size(n, d, k)
        if search.rebuilt and m > _MANY_MOMENTS:
            break  # the verdict stands; only a hidden violation is looked for
        if not within_reach(n, d, k) and not faces_within_reach(search, k):
            search.evidence.append(
                f"order {k} was left out: {m} free moments, blocks of up to {sizes[0]} rows "
                f"(max_order={k} asks for it)"
            )
            break
        orders.append(k)
    return orders


def _refuse_too_large(search: Search, highest: int) -> None:
    n, d = search.core.dimension, search.core.order
    if faces_within_reach(search, highest):
        return
    m, sizes = predict_size(n, d, highest)
    name = search.solver
    if name == "auto":
        name = automatic_solver(sizes, m + 1, 0, memory_limit=_MOST_BYTES)
    needed = predict_bytes(sizes, m + 1, 0, name)
    if needed > _MOST_BYTES:
        raise ProblemTooLargeError(
            f"max_order={highest}: the relaxation of order {highest} for n={n}, d={d} has {m} "
            f"free moments and blocks of up to {sizes[0]} rows; it needs about "
            f"{needed / _GIB:.3g} GiB, the limit is {_MOST_BYTES / _GIB:.3g}"
        )


def solve_order(search: Search, order: int) -> Certificate | None:
    """Solve one relaxation: its least shift, then the search for atoms in its moments.

    Parameters
    ----------
    search : Search
        The detection; takes the atoms, the order, the shift and the evidence.
    order : int
        Order k of the relaxation.

    Returns
    -------
    Certificate or None
        A verified certificate that the tensor is not completely positive.
    """
    core = search.core
    on_faces = faces_within_reach(search, order)
    if on_faces:
        found = solve_faces(search, order)
        if found is not None:
            return found
        if not within_reach(core.dimension, core.order, order):
            return None
    known = dehomogenize(core.scaled, core.dimension, core.order)
    try:
        relaxation = build_relaxation(known, core.dimension - 1, core.order, order)
        result = solve_shift(relaxation, solver=search.solver)
    except ProblemTooLargeError as error:
        search.evidence.append(f"order {order} was refused: {error}")
        return None
    search.order, search.shift = order, result.t if np.isfinite(result.t) else None
    search.evidence.append(
        f"order {order}: shift {result.t:.3e}, {result.status}, residual {result.residual:.1e}"
        + ("" if result.status == "solved" else f" ({result.message})")
    )
    if result.t > (_TELLING if core.noise else _TELLING_EXACT):
        found = _certificate(search, result)
        if found is not None:
            return found
        search.evidence.append(f"order {order}: no exact certificate could be made of the shift")
    if not result.t > _FAR:
        _search_atoms(search, relaxation, result)
    return None


def _certificate(search: Search, result: ShiftResult) -> Certificate | None:
    """Round the multipliers to sums of squares, or else subdivide the simplex."""
    core, relaxation = search.core, result.relaxation
    n, d = core.dimension, core.order
    constraints = [block.factors for block in relaxation.blocks]
    found = gram_certificate(
        core.values, n, d, relaxation.relaxation_order, result.multipliers, constraints
    )
    if found is None:
        listed = relaxation.polynomial(result.multipliers)[: len(core.values)]
        form = np.array([listed @ dehomogenize(unit, n, d) for unit in np.eye(len(core.values))])
        found = bernstein_certificate(core.values, n, d, form)
    if found is None or not convincing(found.form, core):
        return None
    return lift_certificate(found, search.tensor, search.active)


def _search_atoms(search: Search, relaxation: Relaxation, result: ShiftResult) -> None:
    if np.isfinite(result.moments).all() and _offer(search, relaxation, result.moments, "shift"):
        return
    if not relaxation.n_free:
        return
    reduced = reduce_faces(relaxation)
    if reduced.n_free < relaxation.n_free:
        search.evidence.append(
            f"order {relaxation.relaxation_order}: kernels of known blocks leave "
            f"{reduced.n_free} of {relaxation.n_free} moments free"
        )
    for _ in range(2 if 0 < reduced.n_free < _MANY_MOMENTS else 1):
        seed = int(search.rng.integers(2**31))
        solved = solve_moments(reduced, seed=seed, solver=search.solver)
        if np.isfinite(solved.moments).all():
            if _offer(search, relaxation, solved.moments, f"objective of seed {seed}"):
                return
        else:
            search.evidence.append(f"seed {seed}: {solved.status} ({solved.message})")


def _offer(
    search: Search, relaxation: Relaxation, moments: npt.NDArray[np.float64], source: str
) -> bool:
    core, k = search.core, relaxation.relaxation_order
    atoms, residual, truncation = atoms_from_moments(
        moments, 2 * k, core.scaled, core.dimension, core.order, rng=search.rng
    )
    where = f"rank {truncation.rank} at degree {truncation.t}" if truncation else "all points"
    flat = " (flat)" if truncation and truncation.flat else ""
    search.evidence.append(
        f"order {k}, {source}: {where}{flat}, {len(atoms)} atoms, relative residual {residual:.1e}"
    )
    return search.offer(atoms)
