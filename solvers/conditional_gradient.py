"""Closest completely positive tensor by a conditional gradient method whose atoms slide.

The distance from a tensor A to ``B = sum_s u_s^(x)d`` is convex in the measure behind B. At a
minimum the form ``f(x) = <A - B, x^(x)d>`` is at most 0 on the orthant, so that B - A separates A
from the cone unless A = B. While f is positive somewhere, its maximisers become new atoms; then
nonnegative least squares drops what is superfluous, and all atoms move together. Atoms are added
by need, so few of them are kept: on the boundary, where many starts with many atoms converge
slowly, that ends at the decomposition.

References
----------
.. [1] Q. Denoyelle, V. Duval, G. Peyre, E. Soubies, "The sliding Frank-Wolfe algorithm and its
   application to super-resolution microscopy", Inverse Problems 36 (2020).
.. [2] T. G. Kolda, J. R. Mayo, "Shifted power method for computing tensor eigenpairs", SIAM
   Journal on Matrix Analysis and Applications 32 (2011).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.monomials import evaluate_monomials
from tensoralg.solvers.atom_polish import polish_scaled
from tensoralg.solvers.power_sums import PowerSum, descend

__all__ = ["ascend", "conditional_gradient", "merge_directions"]

Array = NDArray[Any]

_ANGLES = (0.0, 0.1, 0.3)  # distances of unit vectors that are merged before the atoms move
_PROBES = 100  # starts of the ascent
_MOST_NEW = 6  # atoms that are added at a time
_APART = 0.05  # distance of unit vectors that count as two new atoms
_TELLING = 1e-4  # smaller residuals may be slow convergence
_RECOGNISED = 1e-2  # residual from which coordinates are frozen


def conditional_gradient(
    problem: PowerSum,
    masks: Array,
    rng: np.random.Generator,
    *,
    max_iter: int = 15,
    tol: float = 1e-13,
) -> tuple[Array, float, bool]:
    """Approximate a tensor by nonnegative atoms, adding and moving them in turns.

    Parameters
    ----------
    problem : PowerSum
        The equations.
    masks : ndarray of bool, shape (k, n)
        Supports that atoms may have; one row of True for no restriction.
    rng : Generator
        Source of the points from which maximisers are sought.
    max_iter : int, default 15
        Largest number of rounds.
    tol : float, default 1e-13
        Residual at which the iteration ends.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        Nonnegative atoms of the scaled tensor. Where the tensor is not completely positive they
        approach the closest tensor that is.
    residual : float
        Norm of the difference.
    outside : bool
        Whether the difference separates the tensor from all points that were probed: a sign, not a
        proof, that it is not completely positive.

    Examples
    --------
    >>> from tensoralg.solvers.power_sums import power_sum
    >>> problem = power_sum([1.0, 2.0, 1.0], 2, 2)  # the closest is [[1.5, 1.5], [1.5, 1.5]]
    >>> rng = np.random.default_rng(0)
    >>> atoms, residual, outside = conditional_gradient(problem, np.ones((1, 2), bool), rng)
    >>> bool(np.allclose(problem.size * atoms.T @ atoms, 1.5)), round(residual**2, 9), outside
    (True, 0.1, True)
    """
    atoms = np.zeros((0, problem.dimension))
    residual = problem.residual(atoms)
    mass = abs(float(problem.values @ problem.root**2))
    outside = False
    most_new = int(rng.integers(2, _MOST_NEW + 1))  # a restart should take another path
    for _ in range(max_iter):
        if residual <= tol:
            break
        new, largest = _maximisers(problem, atoms, masks, rng, most_new, _PROBES, 60)
        if residual > _TELLING and _separated(problem, atoms, largest * mass):
            # narrow maxima are easily missed: look more closely
            new, largest = _maximisers(problem, atoms, masks, rng, most_new, 4 * _PROBES, 600)
            outside = _separated(problem, atoms, largest * mass)
            if outside:
                break
        grown = problem.weighted(np.concatenate([atoms, new]))[0]
        moved, new_residual = _moved(problem, grown, tol)
        if new_residual < 0.9999 * residual:
            atoms, residual = moved, new_residual
        elif not len(new):
            break
    return atoms, residual, outside


def ascend(problem: PowerSum, difference: Array, starts: Array, *, n_steps: int = 60) -> Array:
    """Maximise ``<difference, x^(x)d>`` over nonnegative unit vectors by a shifted power method.

    Parameters
    ----------
    problem : PowerSum
        Tables of the tensor.
    difference : ndarray, shape (C(n+d-1, d),)
        Tensor, times the roots of the multiplicities as in `PowerSum.difference`.
    starts : ndarray, shape (k, n)
        Nonnegative unit vectors; zeros stay zero.
    n_steps : int, default 60
        Number of steps; the values never fall.

    Returns
    -------
    ndarray, shape (k, n)
        Nonnegative unit vectors.

    Examples
    --------
    >>> from tensoralg.solvers.power_sums import power_sum
    >>> problem = power_sum([1.0, 0.0, 0.0, 4.0], 2, 3)
    >>> ascend(problem, -problem.difference(np.zeros((0, 2))), np.array([[0.6, 0.8]])).round(6)
    array([[0., 1.]])
    """
    slopes = (problem.exponents * difference[problem.raised]).T
    shift = (problem.order - 1) * float(np.linalg.norm(difference))
    free, x = starts > 0, starts
    for _ in range(n_steps):
        y = evaluate_monomials(x, problem.lower) @ slopes + shift * x
        y = np.where(free, np.maximum(y, 0.0), 0.0)
        lengths = np.linalg.norm(y, axis=1, keepdims=True)
        x = np.where(lengths > 0, y / np.where(lengths > 0, lengths, 1.0), x)
    return np.asarray(x)


def merge_directions(atoms: Array, order: int, angle: float) -> Array:
    """Merge nonnegative atoms that point nearly the same way.

    Parameters
    ----------
    atoms : ndarray, shape (r, n)
        Nonnegative atoms, weights absorbed.
    order : int
        Order d: an atom of length l counts with l^d.
    angle : float
        Largest distance of a unit vector from the largest atom of its group.

    Returns
    -------
    ndarray, shape (s, n)
        One atom for each group: the mean direction, with the sum of the d-th powers of lengths.

    Examples
    --------
    >>> merge_directions(np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 2.0]]), 3, 0.1).round(2).tolist()
    [[0.0, 2.0], [1.26, 0.01]]
    """
    lengths = np.linalg.norm(atoms, axis=1)
    rest, lengths = atoms[lengths > 0], lengths[lengths > 0]
    units, masses = rest / lengths[:, None], lengths**order
    merged = []
    while len(units):
        near = np.linalg.norm(units - units[masses.argmax()], axis=1) <= angle
        mean = masses[near] @ units[near]
        merged.append(mean / np.linalg.norm(mean) * masses[near].sum() ** (1 / order))
        units, masses = units[~near], masses[~near]
    return np.array(merged).reshape(-1, atoms.shape[1])


def _maximisers(
    problem: PowerSum,
    atoms: Array,
    masks: Array,
    rng: np.random.Generator,
    most: int,
    n_probes: int,
    n_steps: int,
) -> tuple[Array, float]:
    """Best points of several ascents where the form is positive, and its largest value."""
    n = problem.dimension
    allowed = masks[rng.integers(len(masks), size=n_probes)]
    thinned = allowed & (rng.random((n_probes, n)) < 0.7)
    starts = np.abs(rng.standard_normal((n_probes, n))) * np.where(
        thinned.any(axis=1, keepdims=True), thinned, allowed
    )
    starts = np.concatenate([starts, np.eye(n)[masks.any(axis=0)], atoms])
    starts = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    difference = -problem.difference(atoms)
    points = ascend(problem, difference, starts, n_steps=n_steps)
    values = evaluate_monomials(points, problem.indices) @ (difference * problem.root)
    chosen: list[Array] = []
    for k in np.argsort(-values):
        if values[k] <= max(1e-3 * float(values.max()), 0.0) or len(chosen) == most:
            break
        if all(np.linalg.norm(points[k] - other) > _APART for other in chosen):
            chosen.append(points[k])
    return np.array(chosen).reshape(-1, n), float(values.max())


def _separated(problem: PowerSum, atoms: Array, largest: float) -> bool:
    """Whether ``<A - B, A>`` exceeds what a completely positive A of its mass can have."""
    difference = -problem.difference(atoms)
    return float(difference @ (problem.values * problem.root)) > 2 * max(largest, 0.0)


def _moved(problem: PowerSum, atoms: Array, tol: float) -> tuple[Array, float]:
    """Let all atoms move, as they are and merged; fewer atoms are preferred."""
    best, best_residual = atoms, problem.residual(atoms)
    first = True
    for angle in _ANGLES:
        start = merge_directions(atoms, problem.order, angle) if angle else atoms
        if angle and len(start) == len(atoms):
            continue
        found, residual = _slide(problem, start, tol)
        factor = 0.3 if len(found) >= len(best) else 2.0
        if residual < (1.0 if first else factor) * best_residual:
            best, best_residual = found, residual
        first = False
        if best_residual <= tol:
            break
    return best, best_residual


def _slide(problem: PowerSum, atoms: Array, tol: float) -> tuple[Array, float]:
    free = atoms > 1e-9 * float(atoms.max(initial=0.0))
    found, residual = descend(problem, atoms, free, squares=False, max_iter=60, tol=0.1 * tol)
    basic = problem.weighted(found)[0]
    if problem.residual(basic) <= 1.0001 * residual:
        found, residual = basic, problem.residual(basic)
    if residual < _RECOGNISED:
        return polish_scaled(problem, found, tol, (1e-5,))
    return found, residual
