"""Round the multipliers of a moment relaxation to an exact sum-of-squares certificate.

Everything is homogenised: ``1 - x_1 - .. - x_{n-1}`` is ``x_n`` and the constant is
``E = x_1 + .. + x_n``, so that no terms above degree d are left to cancel. The identity to prove
is ``E^(2k-d) p = sum x^g E^r b' Q b``, all of degree 2k. Its rounding error is a form of degree 2k,
and the block b' Q b of the monomials of degree k takes any such form in exactly.

What makes room for that is an interior point known in closed form, with S = sum x_i^2:

``E^2k = S^k / 2 + sum_i x_i E S^(k-1) / 2
+ sum_{i<j} x_i x_j (S^(k-1) + 2 sum_{s<k-1} S^s E^(2(k-1-s)))``.

Every Q of it is positive definite with eigenvalues of at least 1/2, and pairing with its form E^d
gives the mass of a tensor, in which shifts are measured.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.indices import multi_indices, multiplicities, rank_multi_indices
from tensoralg.solvers.certificate_proofs import GramBlock, GramProof
from tensoralg.solvers.exact_certificates import Certificate
from tensoralg.solvers.rational_forms import Form, Index, exact_form, multiplicity, pairing
from tensoralg.solvers.svec import positive_part

__all__ = ["gram_certificate"]

Array = NDArray[Any]
Blocks = dict[Index, Array]

_SPARE_BITS = (6, 12, 20, 30)  # of the grid, beyond the bits of the slack: short numbers first


def gram_certificate(
    entries: Iterable[Any],
    dimension: int,
    order: int,
    relaxation_order: int,
    multipliers: Sequence[ArrayLike],
    constraints: Sequence[Sequence[int]],
) -> Certificate | None:
    """Certify that a tensor is not completely positive from floating multipliers.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 2 and order d.
    relaxation_order : int
        The k of the relaxation, 2 k >= d.
    multipliers : sequence of array_like, shapes (s, s)
        Gram matrix Q >= 0 of each block, as in
        :class:`tensoralg.solvers.uniform_shift.ShiftResult`: in the monomials of degree <= t
        in x_1 .. x_{n-1} (x_1 .. x_n for the homogeneous relaxation), index 0 the constant, t = k
        for the moment matrix and k - 1 otherwise. ``sum g b' Q b`` has degree <= d up to a
        solver's accuracy.
    constraints : sequence of sequences of int
        The g of each block as a product of at most two variables of the tensor, from 0; n-1
        stands for ``1 - x_1 - .. - x_{n-1}`` and () for 1.

    Returns
    -------
    Certificate or None
        None where the form does not separate A by more than its rounding.

    Raises
    ------
    ValueError
        Entries, multipliers or constraints that do not fit the dimension and the orders.

    References
    ----------
    .. [1] H. Peyrl, P. A. Parrilo, "Computing sum of squares decompositions with rational
       coefficients", Theoretical Computer Science 409 (2008).

    Examples
    --------
    >>> certificate = gram_certificate([1, 2, 1], 2, 2, 1, [[[1, -2], [-2, 4]]], [()])
    >>> certificate.verify(), certificate.value < 0
    (True, True)
    """
    space = _space(dimension, relaxation_order, order)
    tensor = exact_form(entries, dimension, order)
    total = sum((value * multiplicity(a) for a, value in tensor.items()), start=Fraction(0))
    blocks = _collect(space, multipliers, constraints)
    if blocks is None or total <= 0:
        return None
    form = space.quotient(_expand(space, blocks))
    if not np.isfinite(form).all():
        return None
    value = float(form @ [float(tensor.get(a, Fraction(0)) / total) for a in space.listed])
    for share, spare in product((0.5, 0.9), _SPARE_BITS) if value < 0 else ():
        slack = -share * value
        bits = max(math.ceil(-math.log2(slack)) + spare, 0)
        shifted = form + slack * _weights(dimension, order)
        exact = {
            a: Fraction(int(c), 1 << bits)
            for a, c in zip(space.listed, _to_grid(shifted, bits), strict=True)
            if c
        }
        if pairing(exact, tensor) < 0:
            proof = gram_proof(space, exact, blocks, slack, bits)
            if proof is not None:
                found = Certificate("gram", dimension, order, tensor, exact, proof)
                if found.verify():
                    return found
    return None


@dataclass(frozen=True, slots=True)
class GramSpace:
    """Monomials and positions for forms of degree d, multiplied up to degree 2k.

    Attributes
    ----------
    dimension, order, half : int
        The n, d and k.
    listed : list of Index
        Monomials of degree d.
    lift : ndarray of int64, shape (C(n+2k-1, 2k), C(n+d-1, d))
        Multiplication by E^(2k-d).
    """

    dimension: int
    order: int
    half: int
    listed: list[Index]
    lift: Array

    def quotient(self, target: Array) -> Array:
        """Least-squares quotient of a form of degree 2k by E^(2k-d)."""
        solution: Array = np.linalg.lstsq(self.lift.astype(float), target, rcond=None)[0]
        return solution


@lru_cache(maxsize=8)
def _space(dimension: int, half: int, order: int) -> GramSpace:
    if dimension < 2 or 2 * half < order or order < 1:
        raise ValueError(
            f"relaxation_order must be at least {-(-order // 2)} for order={order} and "
            f"dimension at least 2; got {half} and {dimension}"
        )
    listed = [tuple(row) for row in multi_indices(dimension, order).tolist()]
    return GramSpace(dimension, order, half, listed, _lift(dimension, order, 2 * half))


def gram_proof(
    space: GramSpace, form: Form, blocks: Blocks, slack: float, bits: int
) -> GramProof | None:
    """Round blocks + slack * (interior point) so that they prove the given form exactly.

    Parameters
    ----------
    space : GramSpace
        Dimension, degrees and positions.
    form : dict from Index to Fraction
        Exact form of degree d, close to the blocks' form plus slack * E^d.
    blocks : dict from Index to ndarray
        Floating Gram matrices by factor, in the bases of homogeneous monomials.
    slack : float
        Weight of the interior point.
    bits : int
        The grid is 2^-bits.

    Returns
    -------
    GramProof or None
        None where a rounded matrix is not positive semidefinite.
    """
    unit = 1 << bits
    rounded = {
        factor: _to_grid(slack * interior + blocks.get(factor, 0.0), bits)
        for factor, interior in _interior(space.dimension, space.half).items()
    }
    values = np.array([int(form.get(a, Fraction(0)) * unit) for a in space.listed], dtype=object)
    rest = space.lift.astype(object) @ values - _expand(space, rounded)
    # an odd rest leaves halves off the diagonal: twice all matrices on half the unit
    rounded = {factor: 2 * matrix for factor, matrix in rounded.items()}
    rounded[()] = rounded[()] + _carrier(space, rest)
    if any(np.linalg.eigvalsh(m.astype(float) / unit)[0] <= 0 for m in rounded.values()):
        return None
    blocks_exact = tuple(
        _block(factor, matrix, space.half - bool(factor), 2 * unit)
        for factor, matrix in rounded.items()
    )
    return GramProof(2 * space.half, blocks_exact)


def _collect(
    space: GramSpace, multipliers: Sequence[ArrayLike], constraints: Sequence[Sequence[int]]
) -> Blocks | None:
    """Semidefinite multipliers in homogeneous monomials, by factor; None if not finite."""
    n, k = space.dimension, space.half
    blocks: Blocks = {}
    for values, factors in zip(multipliers, constraints, strict=True):
        factor = tuple(sorted(int(i) for i in factors))
        if len(factor) != len(set(factor)) or len(factor) > 2 or set(factor) - set(range(n)):
            raise ValueError(
                f"constraints must be (), (i,) or (i, j) with different i, j in 0 .. {n - 1}; "
                f"got {factors}"
            )
        matrix, degree = np.asarray(values, dtype=float), k - bool(factor)
        sizes = {math.comb(N + degree, degree): N for N in (n, n - 1)}
        if matrix.shape not in {(size, size) for size in sizes}:
            raise ValueError(
                f"the multiplier of {factor} must be square of size "
                f"{math.comb(n - 1 + degree, degree)} for n={n}, k={k}; got shape {matrix.shape}"
            )
        if not np.isfinite(matrix).all():
            return None
        if matrix.any():
            change = _change(sizes[len(matrix)], n, degree)
            blocks[factor] = blocks.get(factor, 0.0) + change.T @ positive_part(matrix) @ change
    return blocks


def _to_grid(array: Array, bits: int) -> Array:
    """Integers nearest to 2^bits times the array, as Python integers."""
    flat = [int(x) for x in np.rint(np.ldexp(array, bits)).ravel()]
    return np.array(flat, dtype=object).reshape(array.shape)


def _block(factor: Index, matrix: Array, degree: int, unit: int) -> GramBlock:
    upper = matrix[np.triu_indices(len(matrix))]
    return GramBlock(factor, degree, tuple(Fraction(int(q), unit) for q in upper))


@lru_cache(maxsize=64)
def _weights(dimension: int, degree: int) -> Array:
    """Coefficients of E^degree."""
    return np.asarray(multiplicities(multi_indices(dimension, degree)))


@lru_cache(maxsize=64)
def _lift(dimension: int, low: int, high: int) -> Array:
    """Matrix of the multiplication by E^(high-low) from degree `low` to degree `high`."""
    base, more = multi_indices(dimension, low), multi_indices(dimension, high - low)
    matrix = np.zeros((math.comb(dimension + high - 1, high), len(base)), dtype=np.int64)
    _scatter(matrix.T, base, more, _weights(dimension, high - low), dimension)
    return matrix


def _scatter(rows: Array, base: Array, more: Array, weights: Array, dimension: int) -> None:
    """Add weights[j] to rows[i, position of base[i] more[j]]."""
    shape = (len(base), len(more), -1)
    joined = np.concatenate(
        [
            np.broadcast_to(base[:, None], (*shape[:2], base.shape[1])),
            np.broadcast_to(more[None], (*shape[:2], more.shape[1])),
        ],
        axis=-1,
    )
    positions = rank_multi_indices(np.sort(joined, axis=-1), dimension)
    np.add.at(rows, (np.arange(len(base))[:, None], positions), weights)


@lru_cache(maxsize=64)
def _change(n_variables: int, dimension: int, degree: int) -> Array:
    """Homogeneous forms x^b E^(degree - |b|) of the monomials of degree <= `degree`, by rows."""
    basis = multi_indices(n_variables + 1, degree)
    lower = degree - np.count_nonzero(basis, axis=1)
    rows = np.zeros((len(basis), math.comb(dimension + degree - 1, degree)))
    for power in range(degree + 1):
        chosen = np.flatnonzero(lower == power)
        part = np.zeros((len(chosen), rows.shape[1]))
        more = multi_indices(dimension, power)
        _scatter(part, basis[chosen, power:] - 1, more, _weights(dimension, power), dimension)
        rows[chosen] = part
    return rows


@lru_cache(maxsize=64)
def _products(dimension: int, degree: int, factor: Index) -> Array:
    """Positions of x^factor b_i b_j among the monomials of degree |factor| + 2 degree."""
    basis = multi_indices(dimension, degree)
    size = len(basis)
    joined = np.concatenate(
        [
            np.broadcast_to(basis[:, None], (size, size, degree)),
            np.broadcast_to(basis[None], (size, size, degree)),
            np.broadcast_to(np.array(factor, dtype=np.int64), (size, size, len(factor))),
        ],
        axis=-1,
    )
    return rank_multi_indices(np.sort(joined, axis=-1), dimension)


def _expand(space: GramSpace, blocks: Blocks) -> Array:
    """Coefficients of sum x^g E^r b' Q b, a form of degree 2k; exact for integers."""
    n, k = space.dimension, space.half
    exact = any(matrix.dtype == object for matrix in blocks.values())
    total = np.zeros(len(space.lift), dtype=object if exact else float)
    for factor, matrix in blocks.items():
        degree = k - bool(factor)
        reached = len(factor) + 2 * degree
        part = np.zeros(math.comb(n + reached - 1, reached), dtype=total.dtype)
        np.add.at(part, _products(n, degree, factor), matrix)
        total = total + (part if reached == 2 * k else _lift(n, reached, 2 * k) @ part)
    return total


@lru_cache(maxsize=16)
def _interior(dimension: int, half: int) -> Blocks:
    """Positive definite Gram matrices of E^2k, as in the module's text."""

    def squares(s: int, m: int) -> Array:  # of (x_1^2 + .. + x_n^2)^s E^2m
        lift = _lift(dimension, s, s + m)
        return np.asarray((lift * _weights(dimension, s)) @ lift.T, dtype=float)

    pairs = squares(half - 1, 0) + 2 * sum(
        (squares(s, half - 1 - s) for s in range(half - 1)), start=np.zeros(1)
    )
    single = squares(half - 1, 0) / 2
    blocks: Blocks = {(): squares(half, 0) / 2}
    blocks.update(((i,), single) for i in range(dimension))
    blocks.update((pair, pairs) for pair in combinations(range(dimension), 2))
    return blocks


def _carrier(space: GramSpace, form: Array) -> Array:
    """Integer matrix C with b' C b twice the given integer form, one entry pair a monomial."""
    n, k = space.dimension, space.half
    indices = multi_indices(n, 2 * k)
    # every other index: both halves agree where the monomial is a square
    left, right = (rank_multi_indices(indices[:, s::2], n) for s in (0, 1))
    size = math.comb(n + k - 1, k)
    matrix = np.full((size, size), 0, dtype=object)
    matrix[left, right] += form
    matrix[right, left] += form
    return matrix
