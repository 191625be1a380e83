"""Starting factors from generalised eigenvalues of two slices of a tensor (Jennrich)."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.solvers.polyadic_gradient import residual_gradient

__all__ = ["generalized_eigenvalue_starts", "mode_groups"]

FloatArray = NDArray[np.float64]

_MOST_UNITS = 8  # modes, or groups of small ones, whose splits are all compared
_FIRST_POWER_STEPS = 4  # alternating steps that split a merged mode into its own modes


def generalized_eigenvalue_starts(
    tensor: FloatArray,
    rank: int,
    *,
    n_pencils: int = 6,
    n_sweeps: int = 2,
    rng: int | np.random.Generator | None = None,
) -> list[tuple[float, list[FloatArray]]]:
    """Polyadic factors from random pairs of slices, each improved by a few alternating sweeps.

    Two random combinations of slices of a tensor of rank r are ``A D B'`` and ``A E B'`` with
    diagonal D, E: A holds the eigenvectors of their pencil. For an exact tensor of that rank the
    factors are exact; noise moves them, and may turn two real eigenvalues into a complex pair,
    which then stands for the plane of its real and imaginary parts.

    Parameters
    ----------
    tensor : ndarray, shape (d_1, .., d_N)
        float64, N >= 3: a small core.
    rank : int
        Number of terms r. There must be two groups of modes with at least r entries each and a
        third with at least two: see `mode_groups`.
    n_pencils : int, default 6
        Number of random pairs.
    n_sweeps : int, default 2
        Alternating least-squares sweeps for each.
    rng : int, Generator or None
        Seed of the pairs.

    Returns
    -------
    list of (float, list of N ndarrays of shape (d_k, r))
        Relative residual and factors, the best first; empty where no groups of modes exist.

    References
    ----------
    .. [1] S. E. Leurgans, R. T. Ross, R. B. Abel, "A decomposition for three-way arrays", SIAM J.
       Matrix Anal. Appl. 14 (1993).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.normal(size=(n, 3)) for n in (4, 3, 3))
    >>> starts = generalized_eigenvalue_starts(np.einsum("is,js,ks->ijk", A, B, C), 3, rng=0)
    >>> starts[0][0] < 1e-10
    True
    """
    generator = np.random.default_rng(rng)
    groups = mode_groups(tensor.shape, rank)
    norm = float(np.linalg.norm(tensor))
    if groups is None or norm == 0.0:
        return []
    merged = _merge(tensor, groups)
    left, right = (_leading(merged, mode, rank) for mode in (0, 1))
    small = np.einsum("ijk,ia,jb->kab", merged, left, right, optimize=True)
    weights = _slice_weights(small)
    starts = []
    for _ in range(n_pencils):
        pair = _eigenvectors(small, weights, generator)
        if pair is None:
            continue
        factors = _unmerge(tensor, groups, left @ pair[0], right @ pair[1])
        starts.append(_improve(tensor, factors, n_sweeps, norm))
    return sorted(starts, key=lambda start: start[0])


def mode_groups(shape: Sequence[int], rank: int) -> tuple[list[int], list[int], list[int]] | None:
    """Split the modes in two groups with `rank` entries or more and a third with two or more.

    Parameters
    ----------
    shape : sequence of N int
        Dimensions.
    rank : int
        Number of terms.

    Returns
    -------
    tuple of three lists of int, or None
        The first two groups are as few modes as possible, and as small; None where there is no
        such split.

    Examples
    --------
    >>> mode_groups((5, 3, 4), 4)
    ([0], [2], [1])
    >>> mode_groups((3, 3, 3, 3, 2), 5)
    ([0, 1], [2, 4], [3])
    """
    best: tuple[tuple[int, int, int], tuple[list[int], list[int], list[int]]] | None = None
    units = _few_units(shape)
    for labels in itertools.product(range(3), repeat=len(units)):
        groups = tuple(
            sorted(k for unit, label in zip(units, labels, strict=True) if label == g for k in unit)
            for g in range(3)
        )
        sizes = [math.prod(shape[k] for k in group) for group in groups]
        if sizes[0] < rank or sizes[1] < rank or sizes[2] < 2 or not groups[0] or not groups[1]:
            continue
        if groups[0] > groups[1]:
            continue
        key = (len(groups[0]) + len(groups[1]), sizes[0] * sizes[1], -sizes[2])
        if best is None or key < best[0]:
            best = key, (groups[0], groups[1], groups[2])
    return None if best is None else best[1]


def _few_units(shape: Sequence[int]) -> list[list[int]]:
    """Modes that go into the same group: one each, but of many modes the smallest together."""
    units = [[k] for k in range(len(shape))]
    while len(units) > _MOST_UNITS:  # all splits of sixteen modes would be 43 million
        units.sort(key=lambda unit: math.prod(shape[k] for k in unit))
        units = [units[0] + units[1], *units[2:]]
    return units


def _merge(tensor: FloatArray, groups: Sequence[Sequence[int]]) -> FloatArray:
    """Tensor of order three whose modes are the groups."""
    shape = [math.prod(tensor.shape[k] for k in group) for group in groups]
    return tensor.transpose([k for group in groups for k in group]).reshape(shape)


def _leading(tensor: FloatArray, mode: int, rank: int) -> FloatArray:
    """Leading left singular vectors of an unfolding."""
    rows = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
    if rows.shape[1] >= rows.shape[0]:
        vectors: FloatArray = np.linalg.eigh(rows @ rows.T)[1][:, ::-1]
    else:
        vectors = np.linalg.svd(rows)[0]
    return np.ascontiguousarray(vectors[:, :rank])


def _slice_weights(slices: FloatArray) -> FloatArray:
    """Matrix W, shape (k, r): random combinations are drawn as W z, along leading directions."""
    flat = slices.reshape(len(slices), -1)
    if flat.shape[0] > flat.shape[1]:  # the Gram matrix would be large and mostly zero
        directions, sizes, _ = np.linalg.svd(flat, full_matrices=False)
        kept = sizes > 1e-12 * sizes[0]
        return np.asarray(directions[:, kept] / np.sqrt(sizes[kept]))
    values, vectors = np.linalg.eigh(flat @ flat.T)
    keep = values > 1e-24 * values[-1]
    # fourth root: between the plain directions, which are noisy, and their own sizes
    return np.asarray(vectors[:, keep] / np.sqrt(np.sqrt(values[keep])))


def _eigenvectors(
    slices: FloatArray, weights: FloatArray, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray] | None:
    """Columns A and B of which two random combinations of the slices are A D B' and A E B'."""
    mixes = generator.standard_normal((2, weights.shape[1])) @ weights.T
    first, second = np.tensordot(mixes, slices, axes=1)
    try:
        _, vectors = np.linalg.eig(np.linalg.solve(second.T, first.T).T)
        left = _real_basis(vectors)
        right = np.linalg.solve(left, second).T
    except np.linalg.LinAlgError:
        return None
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return None
    lengths = np.linalg.norm(right, axis=0)
    return left, right / np.where(lengths > 0, lengths, 1.0)


def _real_basis(vectors: NDArray[Any]) -> FloatArray:
    """Real and imaginary parts instead of complex conjugate columns."""
    if not np.iscomplexobj(vectors):
        return np.asarray(vectors, dtype=np.float64)
    columns, k = [], 0
    while k < vectors.shape[1]:
        column = vectors[:, k]
        columns.append(column.real)
        if np.abs(column.imag).max() > 0 and k + 1 < vectors.shape[1]:
            columns.append(column.imag)
            k += 1
        k += 1
    return np.array(columns).T


def _unmerge(
    tensor: FloatArray, groups: Sequence[Sequence[int]], left: FloatArray, right: FloatArray
) -> list[FloatArray]:
    """Factors of all modes; those of the third group come from the tensor by least squares."""
    merged = _merge(tensor, groups)
    gram = (left.T @ left) * (right.T @ right)
    third = _solve(gram, merged.reshape(-1, merged.shape[2]).T @ khatri_rao([left, right]))
    factors: list[FloatArray] = [np.empty(0)] * tensor.ndim
    for group, columns in zip(groups, (left, right, third), strict=True):
        shape = [tensor.shape[k] for k in group]
        for k, factor in zip(group, _rank_one_columns(columns, shape), strict=True):
            factors[k] = factor
    return factors


def _rank_one_columns(columns: FloatArray, shape: Sequence[int]) -> list[FloatArray]:
    """Factors whose Khatri-Rao product is close to the columns, by rank-one approximations."""
    if len(shape) == 1:
        return [columns]
    rank = columns.shape[1]
    matrices = columns.reshape(shape[0], -1, rank)
    # the start: the row of largest norm of each matrix
    largest = np.argmax(np.einsum("ijs,ijs->is", matrices, matrices), axis=0)
    rest = matrices[largest, :, np.arange(rank)].T
    for _ in range(_FIRST_POWER_STEPS):
        rest = rest / np.maximum(np.linalg.norm(rest, axis=0), np.finfo(float).tiny)
        first = np.einsum("ijs,js->is", matrices, rest)
        rest = np.einsum("ijs,is->js", matrices, first)
        rest = rest / np.maximum(np.einsum("is,is->s", first, first), np.finfo(float).tiny)
    return [first, *_rank_one_columns(rest, shape[1:])]


def _improve(
    tensor: FloatArray, factors: list[FloatArray], n_sweeps: int, norm: float
) -> tuple[float, list[FloatArray]]:
    """Alternate least squares over the modes; relative residual and factors."""
    for _ in range(n_sweeps):
        grams = [factor.T @ factor for factor in factors]
        for mode in range(tensor.ndim):
            others = [gram for k, gram in enumerate(grams) if k != mode]
            product = np.multiply.reduce(others)
            factor = _solve(product, mttkrp(tensor, factors, mode))
            factors[mode] = factor
            grams[mode] = factor.T @ factor
    value, _ = residual_gradient(tensor, factors)
    return math.sqrt(2.0 * value) / norm, factors


def _solve(gram: FloatArray, rows: FloatArray) -> FloatArray:
    """Solve ``X gram = rows`` with a ridge at the level of rounding."""
    ridge = 1e-14 * max(float(np.trace(gram)), np.finfo(float).tiny)
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(len(gram)), rows.T).T)
