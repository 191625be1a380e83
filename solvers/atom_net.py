"""Bring nearly fitting nonnegative atoms to an exact fit by a net of points around them.

Descent on atoms is slow where many decompositions meet the boundary. Nonnegative least squares on a
random net of points around the atoms, at many distances, is a linear problem instead: it picks
the few points whose powers fit best, and every round starts a net around those. The residual falls
by a factor of ten or more in a round until it is rounding.

References
----------
.. [1] C. L. Lawson, R. J. Hanson, "Solving least squares problems" (1974), chapter 23.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.solvers.atom_polish import nonnegative_weights, polish_atoms

__all__ = ["refine_on_net"]

Array = NDArray[Any]

_DISTANCES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_COPIES = 6
_PATIENCE = 3
_MOST_NUMBERS = 2**22  # in the matrix of nonnegative least squares


def refine_on_net(
    entries: ArrayLike,
    dimension: int,
    order: int,
    atoms: ArrayLike,
    *,
    rng: int | np.random.Generator | None = None,
    n_rounds: int = 12,
    tol: float = 1e-12,
) -> tuple[Array, float]:
    """Refine atoms by nonnegative least squares on random nets around them.

    Parameters
    ----------
    entries : array_like, shape (C(n+d-1, d),)
        Entries at the sorted multi-indices.
    dimension : int
        Dimension n.
    order : int
        Order d.
    atoms : array_like, shape (r, n)
        Nonnegative atoms, weights absorbed. Coordinates that are 0 stay 0.
    rng : int, Generator or None
        Source of the nets.
    n_rounds : int, default 12
        Largest number of nets; three in a row that do not halve the residual end it.
    tol : float, default 1e-12
        Relative residual at which the search ends.

    Returns
    -------
    atoms : ndarray, shape (s, n)
        At least 0 exactly, weights absorbed; never worse than the start.
    residual : float
        Relative residual.

    Examples
    --------
    >>> atoms, residual = refine_on_net([2.0, 1.0, 2.0], 2, 2, [[1.4, 0.7], [0.0, 1.2]], rng=0)
    >>> bool((atoms >= 0).all()), residual < 1e-12
    (True, True)
    """
    generator = np.random.default_rng(rng)
    best, best_residual = polish_atoms(entries, dimension, order, atoms)
    stalled = 0
    for _ in range(n_rounds):
        size = len(best) * (1 + len(_DISTANCES) * _COPIES)
        if best_residual <= tol or not 0 < size * len(np.asarray(entries)) <= _MOST_NUMBERS:
            break
        net = _net(best, generator)
        weights, residual = nonnegative_weights(entries, dimension, order, net)
        kept = weights > 0
        found = net[kept] * weights[kept, None] ** (1.0 / order)
        polished, new_residual = polish_atoms(entries, dimension, order, found)
        if residual < new_residual:
            polished, new_residual = found, residual
        stalled = 0 if new_residual < 0.5 * best_residual else stalled + 1
        if new_residual < best_residual:
            best, best_residual = polished, new_residual
        if stalled == _PATIENCE:
            break
    return best, best_residual


def _net(atoms: Array, rng: np.random.Generator) -> Array:
    """Directions of the atoms, with small coordinates also at 0, and of random ones around them."""
    snapped = np.where(atoms < 1e-3 * atoms.max(), 0.0, atoms)
    around = [
        atoms * np.exp(distance * rng.standard_normal(atoms.shape))
        for distance in _DISTANCES
        for _ in range(_COPIES)
    ]
    net = np.concatenate([atoms, snapped[snapped.any(axis=1)], *around])
    return np.asarray(net / np.linalg.norm(net, axis=1)[:, None])
