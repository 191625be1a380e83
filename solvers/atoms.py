"""Atoms of a measure on the simplex from its moments: flat truncation and extraction.

Moments ``w_b`` of degree at most D in N variables are stored as the entries of a symmetric tensor
of order D in ``(1, x)``: sorted multi-indices over ``0 .. N``, 0 for the constant. A prefix of
that vector holds the moments of a lower degree. Where the moment matrix ``M_t`` has the rank of
``M_(t-1)``, it is the matrix of that many atoms: with ``M_t = V V^T`` the rows of V that belong
to ``x_j b`` are those of ``b`` times one matrix for each j, and these matrices commute; their
joint eigenvalues are the coordinates of the atoms.

References
----------
.. [1] D. Henrion, J. B. Lasserre, "Detecting global optimality and extracting solutions in
   GloptiPoly", Positive Polynomials in Control (2005).
.. [2] R. M. Corless, P. M. Gianni, B. M. Trager, "A reordered Schur factorization method for
   zero-dimensional polynomial systems with multiple roots", ISSAC 1997.
.. [3] J. Nie, "The A-truncated K-moment problem", Foundations of Computational Mathematics 14
   (2014).
"""

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import RankBoundError, ShapeError
from tensoralg.core.index_maps import catalecticant_positions, insertion_positions
from tensoralg.core.indices import number_of_multi_indices
from tensoralg.solvers.atom_polish import polish_scaled
from tensoralg.solvers.power_sums import PowerSum, power_sum

__all__ = [
    "FlatTruncation",
    "atoms_from_moments",
    "extract_atoms",
    "flat_truncations",
    "moment_matrix",
]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FlatTruncation:
    """A moment matrix with a gap in its singular values.

    Attributes
    ----------
    t : int
        Degree of the monomials that number the rows.
    rank : int
        Number of singular values above the gap.
    ratio : float
        The last singular value above it over the first one below; infinite where that is zero.
    flat : bool
        Whether the moment matrix of degree t-1 has the same numerical rank.
    """

    t: int
    rank: int
    ratio: float
    flat: bool


def moment_matrix(moments: ArrayLike, n_variables: int, degree: int, t: int) -> Array:
    """Moment matrix: moments of products of two monomials of degree at most t.

    Parameters
    ----------
    moments : array_like, shape (C(N+D, D),)
        Moments of degree at most D.
    n_variables : int
        Number N of variables.
    degree : int
        Degree D.
    t : int
        Half degree, 2 t <= D.

    Returns
    -------
    ndarray, shape (C(N+t, t), C(N+t, t))
        Rows and columns in the order of the moments.

    Raises
    ------
    ShapeError
        Another number of moments.
    ValueError
        `t` outside 0 .. D/2.

    Examples
    --------
    >>> moment_matrix([1.0, 2.0, 4.0, 8.0], 1, 3, 1).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    w = _checked_moments(moments, n_variables, degree)
    if not 0 <= 2 * t <= degree:
        raise ValueError(
            f"t must lie in 0 .. {degree // 2} for moments of degree {degree}; got {t}"
        )
    return np.asarray(w[catalecticant_positions(n_variables + 1, 2 * t, t)])


def flat_truncations(
    moments: ArrayLike, n_variables: int, degree: int, *, min_ratio: float = 8.0
) -> list[FlatTruncation]:
    """List the degrees and ranks at which atoms may be extracted, the clearest first.

    Every gap of the singular values counts, because even moments that are not flat often yield
    atoms that polish to rounding error.

    Parameters
    ----------
    moments : array_like, shape (C(N+D, D),)
        Moments of degree at most D.
    n_variables : int
        Number N of variables.
    degree : int
        Degree D.
    min_ratio : float, default 8
        Smallest ratio of neighbouring singular values that counts as a gap.

    Returns
    -------
    list of FlatTruncation
        Flat ones first, then by falling ratio. Ranks beyond C(N+t-1, t-1) are left out, since
        the rows of degree t-1 do not determine the multiplication matrices there.

    Raises
    ------
    ShapeError
        Another number of moments.

    Examples
    --------
    >>> flat_truncations([1.0, 0.5, 0.25, 0.125, 0.0625], 1, 4)[0].rank
    1
    """
    w = _checked_moments(moments, n_variables, degree)
    found = []
    below: Array | None = None
    for t in range(1, degree // 2 + 1):
        lower = _singular_values(w, n_variables, t - 1) if below is None else below
        values = _singular_values(w, n_variables, t)
        below = values
        padded = np.append(values, 0.0)
        floor = values[0] * 1e-15
        for rank in range(1, min(len(values), len(lower)) + 1):
            if padded[rank - 1] <= floor:
                break
            ratio = float(padded[rank - 1] / max(padded[rank], floor))
            if ratio >= min_ratio or rank == len(values):
                flat = int(np.sum(lower > np.sqrt(padded[rank - 1] * max(padded[rank], floor))))
                found.append(FlatTruncation(t, rank, ratio, flat == rank))
    return sorted(found, key=lambda item: (not item.flat, -item.ratio))


def extract_atoms(
    moments: ArrayLike,
    n_variables: int,
    degree: int,
    t: int,
    rank: int,
    rng: int | np.random.Generator | None = None,
) -> Array:
    """Extract points from a moment matrix by multiplication matrices and a real Schur form.

    Parameters
    ----------
    moments : array_like, shape (C(N+D, D),)
        Moments of degree at most D.
    n_variables : int
        Number N of variables.
    degree : int
        Degree D.
    t : int
        Half degree of the moment matrix, 2 t <= D.
    rank : int
        Number of points, at most C(N+t-1, t-1).
    rng : int, Generator or None
        Source of the combination of the multiplication matrices.

    Returns
    -------
    ndarray, shape (rank, N)
        Points, neither clipped nor weighted; exact up to rounding where the moments are flat.

    Raises
    ------
    ShapeError
        Another number of moments.
    ValueError
        `t` outside 1 .. D/2.
    RankBoundError
        `rank` outside 1 .. C(N+t-1, t-1).

    Examples
    --------
    >>> moments = [(0.2**k + 0.7**k) / 2 for k in range(5)]
    >>> np.sort(extract_atoms(moments, 1, 4, 2, 2, rng=0).ravel()).round(9).tolist()
    [0.2, 0.7]
    """
    if t < 1:
        raise ValueError(f"t must be at least 1; got {t}")
    matrix = moment_matrix(moments, n_variables, degree, t)
    limit = comb(n_variables + t - 1, t - 1)
    if not 1 <= rank <= limit:
        raise RankBoundError(f"rank must lie in 1 .. {limit} for t={t}; got {rank}")
    values, vectors = np.linalg.eigh(matrix)
    factor = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0.0))
    shifted = factor[insertion_positions(n_variables + 1, t)]  # (N+1, rows of degree t-1, rank)
    multiplications = np.stack(
        [scipy.linalg.lstsq(shifted[0], rows, check_finite=False)[0] for rows in shifted[1:]]
    )
    xi = np.random.default_rng(rng).dirichlet(np.ones(n_variables))
    _, basis = scipy.linalg.schur(np.tensordot(xi, multiplications, axes=1), output="real")
    diagonals = np.einsum("ai,jab,bi->ij", basis, multiplications, basis, optimize=True)
    return np.asarray(diagonals)


def atoms_from_moments(
    moments: ArrayLike,
    degree: int,
    entries: ArrayLike,
    dimension: int,
    order: int,
    *,
    rng: int | np.random.Generator | None = None,
    tol: float = 1e-12,
) -> tuple[Array, float, FlatTruncation | None]:
    """Search the atoms of a tensor in the moments of a relaxation.

    Every degree and every gap is tried: extraction, projection to the simplex, nonnegative
    weights, polish. Last, all points together.

    Parameters
    ----------
    moments : array_like, shape (C(n-1+D, D),)
        Moments of degree at most D in the variables ``x_1 .. x_(n-1)`` of the simplex.
    degree : int
        Degree D, at least d.
    entries : array_like, shape (C(n+d-1, d),)
        Entries of the tensor, of any scale.
    dimension : int
        Dimension n of the tensor, at least 2.
    order : int
        Order d.
    rng : int, Generator or None
        Source of the combinations.
    tol : float, default 1e-12
        Relative residual at which the search ends.

    Returns
    -------
    atoms : ndarray, shape (r, n)
        At least 0 exactly, weights absorbed; the best that was found, whatever its residual.
    residual : float
        Relative residual, from the returned atoms.
    truncation : FlatTruncation or None
        Where the atoms come from; None for all points together.

    Raises
    ------
    ShapeError
        Another number of moments or entries.

    Examples
    --------
    >>> from tensoralg.core.monomials import evaluate_monomials
    >>> from tensoralg.core.indices import multi_indices
    >>> u = np.array([[0.5, 0.5], [0.0, 1.0]])
    >>> entries = evaluate_monomials(u, multi_indices(2, 3)).sum(axis=0)
    >>> moments = evaluate_monomials([[1.0, 0.5], [1.0, 0.0]], multi_indices(2, 4)).T @ [1.0, 1.0]
    >>> atoms, residual, _ = atoms_from_moments(moments, 4, entries, 2, 3, rng=0)
    >>> len(atoms), residual < 1e-12
    (2, True)
    """
    n_variables = dimension - 1
    problem = power_sum(entries, dimension, order)
    generator = np.random.default_rng(rng)
    best, best_residual = np.zeros((0, dimension)), np.inf
    source: FlatTruncation | None = None
    pool = []
    for candidate in flat_truncations(moments, n_variables, degree):
        points = extract_atoms(moments, n_variables, degree, candidate.t, candidate.rank, generator)
        if not np.isfinite(points).all():
            continue
        pool.append(_on_simplex(points))
        atoms, residual = _fitted(problem, pool[-1], tol)
        if residual < best_residual:
            best, best_residual, source = atoms, residual, candidate
        if best_residual <= tol:
            break
    if best_residual > tol and len(pool) > 1:
        atoms, residual = _fitted(problem, np.concatenate(pool), tol)
        if residual < best_residual:
            best, best_residual, source = atoms, residual, None
    return best * problem.unit, float(min(best_residual, problem.residual(best))), source


def _fitted(problem: PowerSum, points: Array, tol: float) -> tuple[Array, float]:
    return polish_scaled(problem, problem.weighted(points)[0], tol)


def _on_simplex(points: Array) -> Array:
    """Homogenise points of the full simplex, clip at 0 and scale the sum to 1."""
    full = np.column_stack([points, 1 - points.sum(axis=1)])
    clipped = np.maximum(full, 0.0)
    return np.asarray(clipped / np.maximum(clipped.sum(axis=1, keepdims=True), 1e-300))


def _singular_values(moments: Array, n_variables: int, t: int) -> Array:
    matrix = moments[catalecticant_positions(n_variables + 1, 2 * t, t)]
    return np.asarray(np.linalg.svd(matrix, compute_uv=False))


def _checked_moments(moments: ArrayLike, n_variables: int, degree: int) -> Array:
    w = np.asarray(moments, dtype=np.float64)
    expected = number_of_multi_indices(n_variables + 1, degree)
    if w.shape != (expected,):
        raise ShapeError(
            f"moments of degree {degree} in {n_variables} variables have shape ({expected},); "
            f"got {w.shape}"
        )
    return w
