"""Completely positive decompositions on the variety that the singular blocks of a tensor confine.

A tensor on the boundary of the cone has its atoms on a variety, `tensoralg.solvers.kernel_forms`,
and lies as a rule in the interior of the cone over its nonnegative points. So the search is as
simple there as it is for interior tensors in the whole orthant: random points are projected to the
variety, nonnegative least squares picks the few that fit best, and these slide along the variety.
Every further round takes a net of points around the atoms, at many distances. Where the boundary
has more structure than the blocks show, atoms gather around fewer points: they are merged.

Atoms are written as squares ``u = z * z`` of roots z, weights absorbed.

References
----------
.. [1] C. L. Lawson, R. J. Hanson, "Solving least squares problems" (1974), chapter 23.
.. [2] P.-A. Absil, R. Mahony, R. Sepulchre, "Optimization Algorithms on Matrix Manifolds" (2008),
   section 8.4: Gauss-Newton steps in tangent spaces.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.solvers.conditional_gradient import merge_directions
from tensoralg.solvers.kernel_forms import KernelForms, kernel_forms
from tensoralg.solvers.power_sums import LinearModel, PowerSum, power_sum

__all__ = ["search_on_variety", "slide"]

Array = NDArray[Any]

_ON_VARIETY = 1e-6  # norm of the forms at a unit vector that counts as zero: it enters squared
_SAMPLES = 1000
_FRESH = 300  # samples of a later round
_DISTANCES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_COPIES = 4
_ANGLES = (0.03, 0.1, 0.2, 0.3)  # distances of unit vectors that are merged
_RECOGNISED = 1e-2  # residual from which atoms are merged
_PATIENCE, _FAR_PATIENCE = 6, 3  # rounds without progress, near and far away
_FAR, _SETTLED = 1e-3, 1e-11  # residuals: one that is hardly the cone's, one that is slow to fall
_FINEST = 1e-15
_SMALL = 3e-2  # coordinates of roots that are also tried at 0
_RETRACTION = 4  # Gauss-Newton steps back to the variety


def search_on_variety(
    problem: PowerSum,
    masks: Array,
    rng: np.random.Generator,
    *,
    start: Array | None = None,
    n_rounds: int = 40,
    tol: float = 1e-13,
) -> tuple[Array, float]:
    """Search nonnegative atoms among the points where all kernel forms of a tensor vanish.

    Parameters
    ----------
    problem : PowerSum
        The equations; n >= 2 and d >= 2.
    masks : ndarray of bool, shape (k, n)
        Supports that atoms may have; one row of True for no restriction.
    rng : Generator
        Source of the samples and nets.
    start : ndarray, shape (r, n), optional
        Atoms of the scaled tensor from which the first net is made, besides the samples.
    n_rounds : int, default 40
        Largest number of rounds; several in a row that do not halve the residual end the search.
    tol : float, default 1e-13
        Residual at which the search ends.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        At least 0 exactly, weights absorbed, for the scaled tensor.
    residual : float
        Norm of the difference.

    Examples
    --------
    >>> u = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    >>> problem = power_sum((u.T @ u)[np.triu_indices(3)], 3, 2)
    >>> rng = np.random.default_rng(0)
    >>> atoms, residual = search_on_variety(problem, np.ones((1, 3), bool), rng)
    >>> bool((atoms >= 0).all()), residual < 1e-13
    (True, True)
    """
    balanced, scale = _balanced(problem)
    forms = kernel_forms(balanced)
    points = [_samples(forms, masks, rng, _SAMPLES)]
    if start is not None and len(start):
        points.append(_net(forms, np.sqrt(start / scale), rng))
    z, best = np.zeros((0, problem.dimension)), np.inf
    stalled = 0
    for _ in range(n_rounds):
        candidates = np.concatenate(points)
        if not len(candidates):
            break
        found, residual = _fitted(balanced, forms, masks, candidates, tol)
        stalled = 0 if residual < 0.5 * best else stalled + 1
        if residual < best:
            z, best = found, residual
        if best <= tol or stalled >= (_PATIENCE if _SETTLED < best < _FAR else _FAR_PATIENCE):
            break
        points = [_net(forms, z, rng), _samples(forms, masks, rng, _FRESH)]
    atoms = z**2 * scale
    return atoms, problem.residual(atoms)


def slide(
    problem: PowerSum, forms: KernelForms, roots: Array, *, max_iter: int = 40, tol: float = _FINEST
) -> tuple[Array, float]:
    """Levenberg-Marquardt along the variety: tangent steps of minimum norm, then projection.

    Parameters
    ----------
    problem : PowerSum
        The equations.
    forms : KernelForms
        Forms that vanish at the roots, possibly none.
    roots : ndarray, shape (r, n)
        Roots of the atoms, none zero. Coordinates that are 0 stay 0.
    max_iter : int, default 40
        Largest number of steps, rejected ones included.
    tol : float, default 1e-15
        Residual at which the iteration ends; it also ends where progress does.

    Returns
    -------
    roots : ndarray, shape (r, n)
        Nonnegative, never worse than the start.
    residual : float
        Norm of the difference.

    Examples
    --------
    >>> problem = power_sum([1.0, 1.0, 1.0, 2.0], 2, 3)
    >>> start = np.array([[0.7, 0.7], [0.0, 0.7]])
    >>> roots, residual = slide(problem, kernel_forms(problem), start)
    >>> residual < 1e-14
    True
    """
    z = roots
    difference = problem.difference(z**2)
    residual = float(np.linalg.norm(difference))
    damping, growth, history = 1e-2, 2.0, [residual]
    model: LinearModel | None = None
    for _ in range(max_iter):
        if residual <= tol or damping > 1e8:
            break
        if model is None:
            slopes = problem.jacobian(z**2) * (2 * z)
            if forms.count:
                slopes = np.matmul(slopes.transpose(1, 0, 2), forms.tangents(z)).transpose(1, 0, 2)
            model = LinearModel(slopes.reshape(len(difference), -1), exact=True)
        step = model.step(difference, damping * residual)
        trial = np.where(z > 0, np.abs(z + step.reshape(z.shape)), 0.0)
        if forms.count:
            trial = _retracted(forms, trial)
        new_difference = problem.difference(trial**2)
        new_residual = float(np.linalg.norm(new_difference))
        if new_residual < residual:
            z, difference, residual = trial, new_difference, new_residual
            damping, growth, model = max(damping / 5, 1e-14), 2.0, None
            history.append(residual)
            if len(history) > 8 and residual > 0.7 * history[-8]:
                break
        else:
            damping, growth = damping * growth, growth * 2
    return z, residual


def _retracted(forms: KernelForms, roots: Array) -> Array:
    kept = roots.any(axis=1)
    result = roots.copy()
    result[kept] = forms.project(roots[kept], n_steps=_RETRACTION)[0]
    return result


def _balanced(problem: PowerSum) -> tuple[PowerSum, Array]:
    """Scale all positive diagonal entries to 1; atoms are those of the new problem times a row."""
    n, d = problem.dimension, problem.order
    equal = (problem.indices == problem.indices[:, :1]).all(axis=1)
    diagonal = problem.values[equal]
    scale = np.where(diagonal > 0, np.maximum(diagonal, 0.0), 1.0) ** (1.0 / d)
    balanced = power_sum(problem.values / scale[problem.indices].prod(axis=1), n, d)
    return balanced, scale * balanced.unit


def _samples(forms: KernelForms, masks: Array, rng: np.random.Generator, count: int) -> Array:
    """Random points of the variety on random subsets of the supports."""
    n = masks.shape[1]
    allowed = masks[rng.integers(len(masks), size=count)]
    thinned = allowed & (rng.random((count, n)) < rng.uniform(0.3, 1.0, (count, 1)))
    thinned = np.where(thinned.any(axis=1, keepdims=True), thinned, allowed)
    return _confined(forms, np.abs(rng.standard_normal((count, n))) * thinned)


def _confined(forms: KernelForms, roots: Array) -> Array:
    """Project to unit vectors on the variety; those that do not reach it are left out."""
    kept = roots[roots.any(axis=1)]
    units = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    if not forms.count or not len(units):
        return np.asarray(units)
    units, distance = forms.project(units)
    return np.asarray(units[distance < _ON_VARIETY])


def _net(forms: KernelForms, roots: Array, rng: np.random.Generator) -> Array:
    """List the roots, also with small coordinates at 0, and points of the variety around them."""
    snapped = np.where(roots < _SMALL * roots.max(axis=1, keepdims=True), 0.0, roots)
    around = [
        roots * np.exp(distance * rng.standard_normal(roots.shape))
        for distance in _DISTANCES
        for _ in range(_COPIES)
    ]
    kept = roots[roots.any(axis=1)]
    units = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    return np.concatenate([units, _confined(forms, np.concatenate([snapped, *around]))])


def _fitted(
    problem: PowerSum, forms: KernelForms, masks: Array, candidates: Array, tol: float
) -> tuple[Array, float]:
    """Pick by nonnegative least squares, slide, and merge what points the same way."""
    best, best_residual = _picked(problem, forms, candidates, tol)
    if best_residual > _RECOGNISED:
        return best, best_residual
    gathered = best**2
    for angle in _ANGLES:
        if best_residual <= tol:
            break
        merged = merge_directions(gathered, problem.order, angle)
        if len(merged) == len(gathered):
            continue
        support = masks[(merged @ masks.T).argmax(axis=1)]
        merged = _confined(forms, np.sqrt(merged * support))
        found, residual = _picked(problem, forms, merged, tol)
        # the merged atoms are at the end of their path, the others are not
        if residual < 0.3 * best_residual:
            best, best_residual = found, residual
    return best, best_residual


def _picked(
    problem: PowerSum, forms: KernelForms, candidates: Array, tol: float
) -> tuple[Array, float]:
    atoms, residual = problem.weighted(candidates**2)
    roots = np.sqrt(atoms)
    if residual <= tol or not len(roots) or not np.isfinite(residual):
        return roots, residual
    return slide(problem, forms, roots)
