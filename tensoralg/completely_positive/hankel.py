"""Atoms of strong Hankel tensors, ``A_(i1..id) = c_i1 .. c_id h_(i1 + .. + id)``, by quadrature.

Where h_0, h_1, .. are moments of a measure on t >= 0, the tensor is the integral of the powers of
``(c_0, c_1 t, c_2 t^2, ..)``, and a Gauss rule, or for an even number of moments to match a Radau
rule with a node at 0, turns the integral into the least number of atoms. Hilbert, Cauchy and
Pascal tensors are of this kind, and too thin for a search with random starts.

References
----------
.. [1] L. Qi, "Hankel tensors: associated Hankel matrices and Vandermonde decomposition",
   Communications in Mathematical Sciences 13 (2015).
.. [2] W. Gautschi, "Orthogonal polynomials: computation and approximation", Oxford University
   Press (2004), sections 2.1.7 and 3.1.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.core.indices import multi_indices

__all__ = ["hankel_atoms", "nodes_and_weights"]

Array = npt.NDArray[np.float64]

_TOLERANCE = 1e-12
_MOST_ENTRIES = 5000


def hankel_atoms(tensor: ExactTensor) -> Array | None:
    """Decompose a strong Hankel tensor, up to scales of its indices and their order.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries, positive mass.

    Returns
    -------
    ndarray, shape (r, n), or None
        Nonnegative atoms; those of ``tensor.scaled`` if h are moments on t >= 0. None for a tensor
        of another kind.
    """
    n, d = tensor.dimension, tensor.order
    entries = tensor.scaled
    if n < 2 or len(entries) > _MOST_ENTRIES or entries.min() <= 0.0:
        return None
    tried: list[list[int]] = []
    for order in (np.arange(n), _along_curve(tensor)):
        place = np.empty(n, dtype=int)
        place[order] = np.arange(n)
        if place.tolist() in tried:
            continue
        tried.append(place.tolist())
        found = _scales_and_moments(tensor, place)
        if found is None:
            continue
        scales, moments = found
        nodes, weights = nodes_and_weights(moments)
        powers = nodes[:, None] ** place
        return np.asarray(scales * powers * weights[:, None] ** (1.0 / d))
    return None


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


def _radau(alphas: list[Fraction], betas: list[Fraction]) -> Fraction:
    """Last diagonal entry of the Jacobi matrix for which 0 is an eigenvalue."""
    if not alphas:
        return Fraction(0)
    below, value = Fraction(0), Fraction(1)  # p_(k-1)(0) and p_k(0)
    for k, alpha in enumerate(alphas):
        below, value = value, -alpha * value - (betas[k - 1] * below if k else 0)
    # zeros of p_k at 0 itself: the point 0 carries weight already
    return -betas[-1] * below / value if value else Fraction(0)


def _along_curve(tensor: ExactTensor) -> npt.NDArray[np.int64]:
    """Order the indices by their distance from one end; scales of the indices do not matter.

    log h is convex, so ``log (h_(di)^(p/d) h_(dj)^(q/d) / h_(pi+qj))``, p + q = d, grows with the
    distance of i and j.
    """
    n, d = tensor.dimension, tensor.order
    p = d // 2
    logs = dict(zip(tensor.rows, np.log(tensor.scaled).tolist(), strict=True))
    mixed = [[logs[tuple(sorted((i,) * p + (j,) * (d - p)))] for j in range(n)] for i in range(n)]
    pure = np.diagonal(mixed)
    distance = np.add.outer(p * pure, (d - p) * pure) / d - mixed
    distance = distance + distance.T
    end = np.unravel_index(distance.argmax(), distance.shape)[0]
    return np.argsort(distance[end], kind="stable")


def _scales_and_moments(
    tensor: ExactTensor, place: npt.NDArray[np.int64]
) -> tuple[Array, list[Fraction]] | None:
    """Find c and h, c = 1 if possible; None where the entries are not of the form."""
    n, d = tensor.dimension, tensor.order
    rows = place[multi_indices(n, d)]
    sums = rows.sum(axis=1)
    first = np.array([np.flatnonzero(sums == s)[0] for s in range(d * (n - 1) + 1)])
    entries = tensor.scaled
    if np.abs(entries / entries[first][sums] - 1.0).max() <= _TOLERANCE:
        return np.ones(n), [tensor.values[k] / tensor.mass for k in first]
    counts = (rows[:, :, None] == place[None, None, :]).sum(axis=1)
    columns = np.hstack([counts, np.eye(len(first))[sums]])
    logs = np.log(entries)
    solution = np.linalg.lstsq(columns, logs, rcond=None)[0]
    if np.abs(columns @ solution - logs).max() > _TOLERANCE * max(1.0, np.abs(logs).max()):
        return None
    scales = np.exp(solution[:n])
    with np.errstate(over="ignore", invalid="ignore"):
        moments = entries[first] / np.prod(scales ** counts[first], axis=1)
    if not np.isfinite(moments).all():
        return None
    return scales, [Fraction(float(h)) for h in moments]
