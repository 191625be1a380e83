"""Completely positive decompositions without a semidefinite program: many starts, then a polish.

A tensor of low rank, on the boundary of the cone, has one decomposition only: it comes from the
column space of a flattening by linear algebra. Else the atoms of a tensor on the boundary lie on a
variety that its singular blocks show, and those of an interior one anywhere: nonnegative least
squares on random points of it, which then slide, mostly ends at the decomposition. The other
starts are Levenberg-Marquardt with many atoms written as squares ``u = z * z``, then merged and
polished with coordinates frozen at zero, and atoms added by need (conditional gradients). Where
entries vanish, every atom is supported on one of the maximal supports that the zeros allow.

References
----------
.. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
   arXiv:2206.12553.
.. [2] P. Groetzner, M. Dur, "A factorization method for completely positive matrices", Linear
   Algebra and its Applications 591 (2020).
"""

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.indices import number_of_multi_indices
from tensoralg.solvers.atom_polish import leave_out, polish_scaled
from tensoralg.solvers.conditional_gradient import conditional_gradient, merge_directions
from tensoralg.solvers.moment_curve import curve_atoms
from tensoralg.solvers.power_sums import PowerSum, descend, power_sum
from tensoralg.solvers.symmetric_flattening import flattening_points, flattening_svd
from tensoralg.solvers.variety_search import search_on_variety

__all__ = ["multi_start_decomposition"]

Array = NDArray[Any]

_ANGLES = (0.1, 0.3)  # distances of unit vectors that count as one direction
_THRESHOLDS = (1e-5, 1e-2)  # of the polish: fewer than where the start is accurate
_LARGEST_RANK = 60  # of a flattening whose points are extracted
_FINEST = 1e-14
_MOST_EQUATIONS = 260  # more make nonnegative least squares on samples slow
_RECOGNISED = 5e-3  # residual after the squares from which merging and polishing are tried


def multi_start_decomposition(
    entries: ArrayLike,
    dimension: int,
    order: int,
    *,
    supports: Sequence[Sequence[int]] | None = None,
    n_atoms: int | None = None,
    rng: int | np.random.Generator | None = None,
    n_starts: int = 4,
    tol: float = 1e-12,
    reduce: bool = False,
) -> tuple[Array, float]:
    """Search nonnegative atoms whose powers add up to a tensor.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices, in lexicographic order.
    dimension : int
        Dimension n.
    order : int
        Order d.
    supports : sequence of sequences of int, optional
        Sets of indices; every atom vanishes outside one of them. Default: one set of all indices
        with a positive diagonal entry.
    n_atoms : int, optional
        Number of atoms at every start, spread over the supports in proportion to their default:
        the smaller of 2^s - 1 and C(s+d-1, d) for a support of size s, C(n+d-1, d) without any.
    rng : int, Generator or None
        Source of the starts.
    n_starts : int, default 4
        Largest number of starts, of three kinds in turns: random points where all forms in the
        kernels of singular blocks vanish; no atom, and some added by need; `n_atoms` random atoms
        that are written as squares. The search ends early where the second kind finds the tensor
        to be away from the cone.
    tol : float, default 1e-12
        Relative residual at which the search ends.
    reduce : bool, default False
        Leave out atoms afterwards as long as the others suffice, which takes longer.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        At least 0 exactly, weights absorbed; linearly independent powers, so r <= C(n+d-1, d).
        The best of all starts: nothing is claimed but the residual.
    residual : float
        Relative residual in the Frobenius norm, computed from the returned atoms.

    Raises
    ------
    ShapeError
        A number of entries other than C(n+d-1, d).
    ValueError
        Entries that are not finite, supports outside ``0 .. n-1``, `n_atoms` below 1.

    Examples
    --------
    >>> atoms, residual = multi_start_decomposition([2.0, 1.0, 2.0], 2, 2, rng=0)
    >>> bool((atoms >= 0).all()), residual < 1e-12
    (True, True)
    """
    problem = power_sum(entries, dimension, order)
    sets = _checked_supports(supports, problem)
    counts = _atom_counts(sets, problem, n_atoms, plain=supports is None)
    generator = np.random.default_rng(rng)
    masks = np.zeros((len(sets), dimension), dtype=bool)
    for row, support in zip(masks, sets, strict=True):
        row[support] = True
    small = min(dimension, order) > 1 and len(problem.values) <= _MOST_EQUATIONS
    best, best_residual = _by_algebra(problem, generator, tol)
    for attempt in range(n_starts if sets else 0):
        if best_residual <= tol:
            break
        outside = False
        if attempt % 3 == 0 and small:
            found, residual = search_on_variety(
                problem, masks, generator, start=best, tol=0.1 * tol
            )
        elif attempt % 3 == 1:
            found, residual, outside = conditional_gradient(problem, masks, generator, tol=tol)
        else:
            start = _start(problem, sets, counts, generator)
            found, residual = _from_squares(problem, start, tol)
        if residual < best_residual:
            best, best_residual = found, residual
        if outside:
            break
    return _finished(problem, best, best_residual, tol, reduce)


def _from_squares(problem: PowerSum, start: Array, tol: float) -> tuple[Array, float]:
    found, residual = descend(problem, start, start > 0, squares=True, max_iter=300, tol=1e-3 * tol)
    return _settle(problem, found, tol) if tol < residual < _RECOGNISED else (found, residual)


def _finished(
    problem: PowerSum, atoms: Array, residual: float, tol: float, reduce: bool
) -> tuple[Array, float]:
    """Leave out what is superfluous, polish to rounding error and return to the given scale."""
    atoms, residual = _basic(problem, atoms, residual, tol)
    if _FINEST < residual <= tol:
        atoms, residual = polish_scaled(problem, atoms, _FINEST, (1e-5, 0.0))
    if reduce:
        atoms, residual = leave_out(problem, atoms, residual, max(tol, residual))
    return atoms * problem.unit, residual


def _by_algebra(problem: PowerSum, rng: np.random.Generator, tol: float) -> tuple[Array, float]:
    """Decompose Hankel tensors and those whose middle flattening is rank-deficient."""
    n, d = problem.dimension, problem.order
    best = np.zeros((0, n))
    best_residual = problem.residual(best)
    if n == 1 or d == 1:
        single = np.maximum(problem.values, 0.0)[None, :] ** (1 / d)
        atoms = single[single.any(axis=1)]
        return atoms, problem.residual(atoms)
    on_curve = curve_atoms(problem, tol)
    if on_curve is not None and on_curve[1] < best_residual:
        best, best_residual = on_curve
    if d == 2 or best_residual <= tol:
        return best, best_residual
    degree = d - d // 2
    sizes = flattening_svd(problem.values, d, n, degree)[1]
    # a larger rank would take the multiples of all vanishing forms, which is slow
    largest = min(len(sizes) - (d > 3), number_of_multi_indices(n, degree - 1), _LARGEST_RANK)
    # ill-conditioned tensors show no sharp rank: a few are tried, each costs milliseconds
    ranks = {int(np.sum(sizes > relative * sizes[0])) for relative in (1e-13, 1e-10, 1e-7)}
    for rank in sorted(ranks):
        # a cubic tensor of rank n has one decomposition though the flattening has full rank
        if not 0 < rank <= largest:
            continue
        points = flattening_points(problem.values, d, n, rank, rng=rng)
        if points is None:
            continue
        real = np.real(points)
        upright = np.maximum(real * np.where(real.sum(axis=1) < 0, -1.0, 1.0)[:, None], 0.0)
        weighted, residual = problem.weighted(upright)
        if residual > _RECOGNISED:
            continue
        atoms, residual = polish_scaled(problem, weighted, tol)
        if residual < best_residual:
            best, best_residual = atoms, residual
        if best_residual <= tol:
            break
    return best, best_residual


def _settle(problem: PowerSum, found: Array, tol: float) -> tuple[Array, float]:
    """Polish; where that does not reach the tolerance, merge directions first."""
    best, best_residual = polish_scaled(problem, found, tol, _THRESHOLDS)
    for angle in _ANGLES:
        if best_residual <= tol:
            break
        merged = merge_directions(found, problem.order, angle)
        if len(merged) == len(found):
            continue
        polished, residual = polish_scaled(problem, merged, tol, _THRESHOLDS)
        if residual < best_residual:
            best, best_residual = polished, residual
    return best, best_residual


def _basic(problem: PowerSum, atoms: Array, residual: float, tol: float) -> tuple[Array, float]:
    """Keep atoms with linearly independent powers, if they rebuild the tensor as well."""
    fewer, _ = problem.weighted(atoms)
    if len(fewer) in (0, len(atoms)):
        return atoms, residual
    polished, new_residual = polish_scaled(problem, fewer, min(tol, residual))
    return (polished, new_residual) if new_residual <= max(tol, residual) else (atoms, residual)


def _start(
    problem: PowerSum, sets: list[list[int]], counts: list[int], rng: np.random.Generator
) -> Array:
    """Random atoms on the supports, all scaled by one factor towards the tensor's size."""
    atoms = np.zeros((sum(counts), problem.dimension))
    row = 0
    diagonal = _diagonal(problem) ** (1 / problem.order)
    for support, count in zip(sets, counts, strict=True):
        block = rng.standard_normal((count, len(support))) ** 2 + 1e-3
        atoms[row : row + count, support] = block * diagonal[support]
        row += count
    model = (problem.difference(atoms) / problem.root + problem.values) * problem.root
    factor = float(model @ (problem.values * problem.root)) / float(model @ model)
    return np.asarray(atoms * max(factor, 1e-6) ** (1 / problem.order))


def _diagonal(problem: PowerSum) -> Array:
    """Entries with one distinct index, in the order of the indices."""
    equal = (problem.indices == problem.indices[:, :1]).all(axis=1)
    return np.asarray(np.maximum(problem.values[equal], 0.0))


def _checked_supports(
    supports: Sequence[Sequence[int]] | None, problem: PowerSum
) -> list[list[int]]:
    positive = set(np.flatnonzero(_diagonal(problem) > 0).tolist())
    if supports is None:
        return [sorted(positive)] if positive else []
    sets = []
    for support in supports:
        members = {int(i) for i in support}
        if not members <= set(range(problem.dimension)):
            raise ValueError(
                f"supports must hold indices 0 .. {problem.dimension - 1}; got {sorted(members)}"
            )
        if members & positive:
            sets.append(sorted(members & positive))
    return sets


def _atom_counts(
    sets: list[list[int]], problem: PowerSum, n_atoms: int | None, *, plain: bool
) -> list[int]:
    d = problem.order
    counts = [comb(len(s) + d - 1, d) for s in sets]
    if not plain:
        counts = [min(c, 2 ** len(s) - 1) for c, s in zip(counts, sets, strict=True)]
    if n_atoms is None:
        return counts
    if n_atoms < 1:
        raise ValueError(f"n_atoms must be at least 1; got {n_atoms}")
    total = sum(counts)
    return [max(1, round(n_atoms * c / total)) for c in counts]
