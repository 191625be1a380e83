"""Means from the papers' homogeneous form, which reads the moments of one order only."""

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import number_of_multi_indices, rank_multi_indices, rank_square_free
from tensoralg.core.monomials import evaluate_monomials, graded_indices
from tensoralg.solvers.symmetric_generating_polynomials import fit_weights, homogeneous_components

__all__ = ["homogeneous_means", "shifted_moments"]

Array = NDArray[np.float64]


def shifted_moments(moments: list[Array], shift: Array) -> list[Array]:
    """Square-free moments of ``x + shift`` from those of ``x``, by degree.

    Parameters
    ----------
    moments : list of ndarray
        Entry q has shape (C(d, q),).
    shift : ndarray of shape (d,)
        What is added to every row.

    Returns
    -------
    list of ndarray
        The same layout; exact up to rounding.
    """
    d = len(shift)
    indices = graded_indices(d, len(moments) - 1)
    out = [m.copy() for m in moments]
    for j in range(d):
        # x_j is linear in every monomial that has it: E[(x_j + s) x^g] = E[x_j x^g] + s E[x^g]
        for q in range(len(out) - 1, 0, -1):
            at = np.flatnonzero((indices[q] == j).any(axis=1))
            rest = indices[q][at]
            rest = rest[rest != j].reshape(len(at), q - 1)
            out[q][at] += shift[j] * out[q - 1][rank_square_free(rest, d)]
    return out


def homogeneous_means(
    moments: list[Array], rank: int, rng: np.random.Generator, shift: Array
) -> tuple[Array, bool]:
    """Means of the components from one random split of the homogeneous form.

    Centred data make the form degenerate (``sum_s w_s mu_s = 0`` ties the points together), so
    the moments are moved by `shift` first and the means moved back.

    Parameters
    ----------
    moments : list of ndarray
        Square-free moments of degree 0 to m.
    rank : int
        Number of components.
    rng : Generator
        Source of the split and of the combination of matrices.
    shift : ndarray of shape (d,)
        A generic move away from the mean.

    Returns
    -------
    ndarray of shape (r, d)
        The means.
    bool
        Whether all points were real.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, arXiv:2102.04500, section 3, and arXiv:2401.01337, section 3.
       The scale of each point from the order below is ours.
    """
    moved = shifted_moments(moments, shift)
    d, order = len(shift), len(moments) - 1
    indices = graded_indices(d, order)
    entries = np.full(number_of_multi_indices(d, order), np.nan)
    entries[rank_multi_indices(indices[order], d)] = moved[order]
    points, weights = homogeneous_components(entries, None, order, d, rank, rng=rng, n_splits=1)
    below = fit_weights(evaluate_monomials(points, indices[order - 1]), moved[order - 1])
    # weights are w c^m, the order below has w c^(m-1) for the mean c u
    means = (weights / np.where(np.abs(below) < 1e-300, 1e-300, below))[:, None] * points
    real = bool(np.abs(means.imag).max() <= 1e-8 * np.abs(means).max())
    return np.asarray(means.real + means.imag) - shift, real
