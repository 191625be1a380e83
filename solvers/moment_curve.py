"""Nonnegative atoms on a moment curve: binary tensors and rescaled Hankel tensors by quadrature.

The entries of a tensor of dimension 2 are moments ``h_k = sum_s w_s x_s^k`` on the half line, and
the eigenvalues of a Hankel pencil are the nodes of a Gauss formula. A tensor whose entries are
``c_i1 .. c_id h(i1 + .. + id)``, up to the order of its indices (Hilbert, Cauchy, Pascal), is the
integral of the powers of ``(c_0, c_1 t, c_2 t^2, ..)``: a Gauss rule for h, or for an odd number of
moments a Radau rule with a node at 0, turns it into the least number of atoms. Such tensors lie on
the boundary of the cone and are so ill-conditioned that a search in n dimensions stalls at 1e-6;
the rule is ill-conditioned, too, and its recurrence is computed in Fractions.

References
----------
.. [1] L. Qi, "Hankel tensors: associated Hankel matrices and Vandermonde decomposition",
   Communications in Mathematical Sciences 13 (2015).
.. [2] W. Gautschi, "Orthogonal polynomials: computation and approximation", Oxford University
   Press (2004), sections 2.1.7 and 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tensoralg.core.indices import multi_indices, rank_multi_indices
from tensoralg.solvers.atom_polish import polish_scaled
from tensoralg.solvers.power_sums import PowerSum, power_sum

__all__ = [
    "HankelForm",
    "binary_atoms",
    "curve_atoms",
    "hankel_atoms",
    "hankel_form",
    "nodes_and_weights",
]

Array = NDArray[Any]

_RECOGNISED = 1e-2  # residual of a quadrature formula from which it is polished
_CANDIDATES = 3  # formulas that are polished
_TOLERANCE = 1e-12
_MOST_ENTRIES = 5000


@dataclass(frozen=True, slots=True, eq=False)
class HankelForm:
    """Entries written as ``c_i1 .. c_id h(place_i1 + .. + place_id)``.

    Attributes
    ----------
    factors : ndarray, shape (n,)
        The positive c.
    places : ndarray of int, shape (n,)
        A permutation of 0 .. n-1.
    moments : list of Fraction, length d (n-1) + 1
        The h; entries of the tensor themselves where all factors are 1.
    """

    factors: Array
    places: Array
    moments: list[Fraction]


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
    >>> bool((atoms >= 0).all()), residual < 1e-13
    (True, True)
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


def hankel_form(entries: Sequence[Fraction], dimension: int, order: int) -> HankelForm | None:
    """Write positive entries as ``c_i1 .. c_id h(..)``, if they are of that form.

    Parameters
    ----------
    entries : sequence of Fraction, length C(n+d-1, d)
        Entries at the sorted multi-indices, in lexicographic order.
    dimension, order : int
        Dimension n and order d.

    Returns
    -------
    HankelForm or None
        None for any other tensor.

    Examples
    --------
    >>> form = hankel_form([Fraction(1, k) for k in (1, 2, 3, 3, 4, 5)], 3, 2)
    >>> [str(h) for h in form.moments]
    ['1', '1/2', '1/3', '1/4', '1/5']
    """
    n = dimension
    if n < 2 or len(entries) > _MOST_ENTRIES or min(entries) <= 0:
        return None
    values = np.array([float(value) for value in entries])
    if values.min() <= 0.0 or not np.isfinite(values).all():
        return None
    tried: list[list[int]] = []
    for sequence in (np.arange(n), _along_curve(np.log(values), n, order)):
        places = np.empty(n, dtype=int)
        places[sequence] = np.arange(n)
        if places.tolist() not in tried:
            tried.append(places.tolist())
            found = _factors_and_moments(entries, values, places, order)
            if found is not None:
                return HankelForm(found[0], places, found[1])
    return None


def hankel_atoms(entries: Sequence[Fraction], dimension: int, order: int) -> Array | None:
    """Decompose a strong Hankel tensor, up to factors of its indices and their order.

    Parameters
    ----------
    entries : sequence of Fraction, length C(n+d-1, d)
        Entries at the sorted multi-indices, in lexicographic order.
    dimension, order : int
        Dimension n and order d.

    Returns
    -------
    ndarray, shape (r, n), or None
        Nonnegative atoms; those of the tensor if its h are moments on t >= 0. None for a tensor of
        another kind.

    Examples
    --------
    >>> atoms = hankel_atoms([Fraction(1, k) for k in (1, 2, 3, 3, 4, 5)], 3, 2)
    >>> (atoms.T @ atoms).round(6).tolist()
    [[1.0, 0.5, 0.333333], [0.5, 0.333333, 0.25], [0.333333, 0.25, 0.2]]
    """
    form = hankel_form(entries, dimension, order)
    if form is None:
        return None
    nodes, weights = nodes_and_weights(form.moments)
    powers = nodes[:, None] ** form.places
    return np.asarray(form.factors * powers * weights[:, None] ** (1.0 / order))


def nodes_and_weights(moments: Sequence[Fraction]) -> tuple[Array, Array]:
    """Return the rule on t >= 0 with the least number of nodes that has the given moments.

    Parameters
    ----------
    moments : sequence of Fraction, length D + 1
        h_0 .. h_D, h_0 positive.

    Returns
    -------
    nodes : ndarray, shape (r,)
        Ascending, at least 0; r is D // 2 + 1, or less where the moments belong to fewer points or
        rounding lets them end.
    weights : ndarray, shape (r,)
        Positive. Only for moments of a measure on t >= 0 do the nodes have these moments.

    Examples
    --------
    >>> nodes, weights = nodes_and_weights([Fraction(1, k + 1) for k in range(4)])
    >>> nodes.round(6).tolist(), weights.round(6).tolist()
    ([0.211325, 0.788675], [0.5, 0.5])
    """
    count = len(moments) // 2
    previous, current = [Fraction(0)] * len(moments), list(moments)
    alphas: list[Fraction] = []
    betas: list[Fraction] = []
    # Chebyshev's algorithm: `current` holds the integrals of p_k t^l
    for k in range(count + len(moments) % 2):
        if k and current[k] <= 0:  # no more points, up to rounding
            betas = betas[: k - 1]
            break
        if k:
            betas.append(current[k] / previous[k - 1])
        if k == count:
            alphas.append(_radau(alphas, betas))
            break
        alphas.append(current[k + 1] / current[k] - (previous[k] / previous[k - 1] if k else 0))
        beta = betas[-1] if k else Fraction(0)
        following = [
            current[j + 1] - alphas[k] * current[j] - beta * previous[j]
            for j in range(len(current) - 1)
        ]
        previous, current = current, following
    off = np.sqrt([float(beta) for beta in betas])
    jacobi = np.diag([float(alpha) for alpha in alphas]) + np.diag(off, 1) + np.diag(off, -1)
    nodes, vectors = np.linalg.eigh(jacobi)
    if len(alphas) > count:
        nodes[0] = 0.0
    return np.maximum(nodes, 0.0), float(moments[0]) * vectors[0] ** 2


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
    n, d = problem.dimension, problem.order
    if n == 1 or d == 1:
        return None
    if n == 2:
        return binary_atoms(problem.values, tol=tol)
    form = hankel_form([Fraction(float(value)) for value in problem.values], n, d)
    if form is None:
        return None
    nodes, weights = nodes_and_weights(form.moments)
    gauss = np.column_stack([np.ones(len(nodes)), nodes]) * weights[:, None] ** (1 / (d * (n - 1)))
    best: tuple[Array, float] | None = None
    for find in (lambda: gauss, lambda: binary_atoms(_floats(form.moments), tol=0.1 * tol)[0]):
        p, q = find().T  # the second also knows of a node at infinity
        atoms = form.factors * p[:, None] ** (n - 1 - form.places) * q[:, None] ** form.places
        if len(atoms):
            found = polish_scaled(problem, atoms, tol)
            best = found if best is None or found[1] < best[1] else best
        if best is not None and best[1] <= tol:
            break
    return best


def _radau(alphas: list[Fraction], betas: list[Fraction]) -> Fraction:
    """Last diagonal entry of the Jacobi matrix for which 0 is an eigenvalue."""
    if not alphas:
        return Fraction(0)
    below, value = Fraction(0), Fraction(1)  # p_(k-1)(0) and p_k(0)
    for k, alpha in enumerate(alphas):
        below, value = value, -alpha * value - (betas[k - 1] * below if k else 0)
    # zeros of p_k at 0 itself: the point 0 carries weight already
    return -betas[-1] * below / value if value else Fraction(0)


def _along_curve(logs: Array, n: int, d: int) -> Array:
    """Order the indices by their distance from one end; factors of the indices do not matter.

    log h is convex, so ``log (h_(di)^(p/d) h_(dj)^(q/d) / h_(pi+qj))``, p + q = d, grows with the
    distance of i and j.
    """
    p = d // 2
    pairs = [sorted((i,) * p + (j,) * (d - p)) for i in range(n) for j in range(n)]
    mixed = logs[rank_multi_indices(np.array(pairs), n)].reshape(n, n)
    pure = np.diagonal(mixed)
    distance = np.add.outer(p * pure, (d - p) * pure) / d - mixed
    distance = distance + distance.T
    end = np.unravel_index(distance.argmax(), distance.shape)[0]
    return np.argsort(distance[end], kind="stable")


def _factors_and_moments(
    entries: Sequence[Fraction], values: Array, places: Array, d: int
) -> tuple[Array, list[Fraction]] | None:
    """Find c and h, c = 1 if possible; None where the entries are not of the form."""
    n = len(places)
    rows = places[multi_indices(n, d)]
    sums = rows.sum(axis=1)
    first = np.array([np.flatnonzero(sums == s)[0] for s in range(d * (n - 1) + 1)])
    if np.abs(values / values[first][sums] - 1.0).max() <= _TOLERANCE:
        return np.ones(n), [entries[k] for k in first]
    counts = (rows[:, :, None] == places[None, None, :]).sum(axis=1)
    columns = np.hstack([counts, np.eye(len(first))[sums]])
    logs = np.log(values)
    solution = np.linalg.lstsq(columns, logs, rcond=None)[0]
    if np.abs(columns @ solution - logs).max() > _TOLERANCE * max(1.0, np.abs(logs).max()):
        return None
    factors = np.exp(solution[:n])
    with np.errstate(over="ignore", invalid="ignore"):
        moments = values[first] / np.prod(factors ** counts[first], axis=1)
    if not np.isfinite(moments).all():
        return None
    return factors, [Fraction(float(h)) for h in moments]


def _floats(values: Sequence[Fraction]) -> Array:
    return np.array([float(value) for value in values])


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
