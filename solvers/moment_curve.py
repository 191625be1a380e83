"""Nonnegative atoms on a moment curve: binary tensors and rescaled Hankel tensors by quadrature.

The entries of a tensor of dimension 2 are moments ``h_k = sum_s w_s x_s^k`` on the half line, and
the eigenvalues of a Hankel pencil are the nodes of a Gauss formula. A tensor whose entries are
``c_i1 .. c_id h(i1 + .. + id)`` (Hilbert, Cauchy, Pascal) is the image of a binary tensor of order
d (n-1) under ``(p, q) -> (c_j p^(n-1-j) q^j)``. Such tensors lie on the boundary of the cone and
are so ill-conditioned that a search in n dimensions stalls at 1e-6.

References
----------
.. [1] L. Qi, "Hankel tensors: associated Hankel matrices and Vandermonde decomposition",
   Communications in Mathematical Sciences 13 (2015).
.. [2] W. Gautschi, Orthogonal Polynomials: Computation and Approximation (2004).
"""

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tensoralg.solvers.atom_polish import polish_scaled
from tensoralg.solvers.power_sums import PowerSum, power_sum

__all__ = ["binary_atoms", "curve_atoms", "hankel_form"]

Array = NDArray[Any]

_RECOGNISED = 1e-2  # residual of a quadrature formula from which it is polished
_CANDIDATES = 3  # formulas that are polished


def binary_atoms(values: Array, *, tol: float = 1e-14) -> tuple[Array, float]:
    """Nonnegative atoms of a tensor of dimension 2.

    Parameters
    ----------
    values : ndarray, shape (D+1,)
        Entries with 0 .. D indices equal to 1, finite.
    tol : float, default 1e-14
        Relative residual at which the search ends.

    Returns
    -------
    atoms : ndarray, shape (r, 2)
        At least 0 exactly, weights absorbed.
    residual : float
        Relative residual; not small where the tensor is not completely positive.

    Examples
    --------
    >>> atoms, residual = binary_atoms(np.array([1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5]))
    >>> len(atoms), residual < 1e-13
    (3, True)
    """
    order = len(values) - 1
    problem = power_sum(values, 2, order)
    best = np.zeros((0, 2))
    best_residual = problem.residual(best)
    found = []
    for nodes in _node_candidates(problem.values):
        atoms, residual = problem.weighted(np.concatenate([nodes, np.eye(2)]))
        found.append((residual, atoms))
    for residual, atoms in sorted(found, key=lambda item: item[0])[:_CANDIDATES]:
        if residual > _RECOGNISED or best_residual <= tol:
            break
        polished, new_residual = polish_scaled(problem, atoms, tol)
        if new_residual < best_residual:
            best, best_residual = polished, new_residual
    return best * problem.unit, best_residual


def hankel_form(problem: PowerSum) -> tuple[Array, Array] | None:
    """Write positive entries as ``c_i1 .. c_id h(i1 + .. + id)``, if they are of that form.

    Parameters
    ----------
    problem : PowerSum
        The equations of a tensor.

    Returns
    -------
    tuple of ndarray, shapes (n,) and (d (n-1) + 1,), or None
        The factors c and the sequence h of the scaled tensor; None for any other tensor.

    Examples
    --------
    >>> entries = 1 / np.array([1.0, 2.0, 3.0, 3.0, 4.0, 5.0])  # the Hilbert matrix
    >>> c, h = hankel_form(power_sum(entries, 3, 2))
    >>> (h / h[0]).round(9).tolist()
    [1.0, 0.5, 0.333333333, 0.25, 0.2]
    """
    n, d = problem.dimension, problem.order
    if problem.values.min() <= 0:
        return None
    sums = problem.indices.sum(axis=1)
    design = np.zeros((len(sums), n + d * (n - 1) + 1))
    for column in problem.indices.T:
        design[np.arange(len(sums)), column] += 1.0
    design[np.arange(len(sums)), n + sums] = 1.0
    # c_j may take any factor a b^j from h: c_0 = c_(n-1) = 1
    free = np.delete(np.arange(design.shape[1]), sorted({0, n - 1}))
    logarithms = np.log(problem.values)
    solution = np.zeros(design.shape[1])
    solution[free] = np.linalg.lstsq(design[:, free], logarithms, rcond=None)[0]
    spread = max(float(np.ptp(logarithms)), 1.0)
    if np.abs(design @ solution - logarithms).max() > 1e-13 * spread * design.shape[1]:
        return None
    return np.exp(solution[:n]), np.exp(solution[n:])


def curve_atoms(problem: PowerSum, tol: float) -> tuple[Array, float] | None:
    """Atoms of a binary or rescaled Hankel tensor.

    Parameters
    ----------
    problem : PowerSum
        The equations of a tensor.
    tol : float
        Relative residual at which the search ends.

    Returns
    -------
    tuple of ndarray, shape (r, n), and float, or None
        Nonnegative atoms of the scaled tensor and their residual; None for any other tensor.

    Examples
    --------
    >>> problem = power_sum([1.0, 0.5, 0.5], 2, 2)
    >>> curve_atoms(problem, 1e-14)[1] < 1e-14
    True
    """
    n = problem.dimension
    if n == 1 or problem.order == 1:
        return None
    if n == 2:
        return binary_atoms(problem.values, tol=tol)
    form = hankel_form(problem)
    if form is None:
        return None
    factors, sequence = form
    p, q = binary_atoms(sequence, tol=0.1 * tol)[0].T
    powers = np.arange(n)
    atoms = factors * p[:, None] ** (n - 1 - powers) * q[:, None] ** powers
    return polish_scaled(problem, atoms, tol) if len(atoms) else None


def _node_candidates(values: Array) -> list[Array]:
    """Directions (1, x) of Gauss formulas with every number of nodes, from both ends."""
    order = len(values) - 1
    scale = 1.0
    if values[0] > 0 and values[-1] > 0:
        scale = float((values[-1] / values[0]) ** (1 / order))
    balanced = values / scale ** np.arange(order + 1)
    candidates = []
    for flipped in (False, True):
        h = balanced[::-1] if flipped else balanced
        for r in range((order + 1) // 2, 0, -1):
            first = scipy.linalg.hankel(h[:r], h[r - 1 : 2 * r - 1])
            second = scipy.linalg.hankel(h[1 : r + 1], h[r : 2 * r])
            ratios = scipy.linalg.eig(second, first, right=False, homogeneous_eigvals=True)
            top, bottom = np.real(ratios * np.conj(ratios[1]))
            finite = bottom > 1e-14 * np.abs(top)  # an infinite node is an end of the line
            x = np.maximum(top[finite], 0) / bottom[finite]
            pair = np.column_stack([x, np.ones(len(x))] if flipped else [np.ones(len(x)), x])
            pair[:, 1] *= scale
            candidates.append(pair / pair.sum(axis=1, keepdims=True))
    return candidates
