"""Rational atoms that rebuild a tensor exactly: a proof of complete positivity without rounding.

Inside the cone a tensor A has many decompositions. A small multiple of
``W = sum of the powers of all lattice points on faces that the zeros allow`` is taken off, floating
atoms of ``A - share W`` are rounded, and what is left, ``share W`` and the rounding errors, is a
combination of the same powers with weights that a formula gives exactly
(:mod:`tensoralg.solvers.rational_atoms`): positive ones, where the errors are smaller than the
share. On the boundary there are only the atoms that there are; those are guessed from their ratios.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.comparison import ExactAtoms, comparison_atoms
from tensoralg.completely_positive.exact_tests import first_violation
from tensoralg.completely_positive.search import Search, Support
from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.core.index_maps import listed_multiplicities
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition
from tensoralg.solvers.rational_atoms import lattice_weights, power_sum_form
from tensoralg.solvers.rational_matrices import solve_exactly

__all__ = ["ExactAtoms", "exact_atoms", "plain_atoms", "rebuilds_exactly"]

Array = npt.NDArray[np.float64]

_SHARES = (1e-2, 1e-4, 1e-6)  # of the mass that lattice points take over
_CLOSE = 1e-9  # residual of a search from which its atoms are rounded
_BITS = (10, 16, 24, 34, 46)  # of the rounded atoms: short numbers first
_DENOMINATORS = (16, 1000)  # of the ratios of an atom's entries
_SURE = 1e-6  # rounding errors up to this are taken for ratios recognised
_MOST_UNKNOWNS = 2000  # coordinates of atoms
_MOST_EQUATIONS = 250


def exact_atoms(search: Search) -> ExactAtoms | None:
    """Look for rational atoms that rebuild a tensor exactly.

    Parameters
    ----------
    search : Search
        Its `decomposition` gives the first guess.

    Returns
    -------
    list of (Fraction, tuple of Fraction), or None
        Positive weights and nonnegative points; verified. None does not mean that there are none.
    """
    core = search.core
    for found in _attempts(search):
        if found is not None and rebuilds_exactly(found, core):
            return _spread(found, search.active, search.tensor.dimension)
    return None


def rebuilds_exactly(atoms: ExactAtoms, tensor: ExactTensor) -> bool:
    """Check with integers and Fractions only that weighted powers add up to a tensor.

    Parameters
    ----------
    atoms : list of (Fraction, tuple of Fraction)
        Weights and points.
    tensor : ExactTensor
        The tensor.

    Returns
    -------
    bool
        Whether no weight and no entry of a point is negative, and all entries agree.
    """
    if any(weight < 0 or min(point) < 0 for weight, point in atoms):
        return False
    listed = {row: value for row, value in tensor.lookup.items() if value}
    return power_sum_form(atoms, tensor.dimension, tensor.order) == listed


def plain_atoms(search: Search) -> ExactAtoms | None:
    """Atoms that can be read off the entries, of the core's dimension.

    Parameters
    ----------
    search : Search
        Of a tensor that passed the exact tests.

    Returns
    -------
    list of (Fraction, tuple of Fraction), or None
        For order 1 and for tensors with one active index at a time, zero among them.
    """
    core, d = search.core, search.tensor.order
    if not search.active:
        return []
    if d == 1:
        return [(Fraction(1), core.values)]
    if search.supports and all(len(support) == 1 for support in search.supports):
        n = core.dimension
        return [
            (core.lookup[(i,) * d], tuple(Fraction(int(j == i)) for j in range(n)))
            for i in range(n)
        ]
    return None


def _attempts(search: Search) -> Iterator[ExactAtoms | None]:
    """From the cheapest to the dearest."""
    yield plain_atoms(search)
    core = search.core
    if len(core.values) * core.dimension > _MOST_UNKNOWNS:
        return
    yield comparison_atoms(core)
    if search.decomposition is not None and search.rebuilt:
        points = search.decomposition.points[:, list(search.active)]
        for most in _DENOMINATORS:
            yield _guessed(core, points, most)
    if search.supports is not None and search.inside:
        search.inside = False
        yield from _inside(core, search.supports, search.rng)


def _spread(atoms: ExactAtoms, active: Support, dimension: int) -> ExactAtoms:
    """Put zeros at the indices that carry no entry."""
    place = {index: k for k, index in enumerate(active)}
    return [
        (weight, tuple(point[place[i]] if i in place else Fraction(0) for i in range(dimension)))
        for weight, point in atoms
    ]


def _guessed(tensor: ExactTensor, points: Array, most: int) -> ExactAtoms | None:
    """Guess the ratios of every atom's entries; the weights then solve linear equations."""
    if not len(points) or len(points) > len(tensor.values) or len(tensor.values) > _MOST_EQUATIONS:
        return None
    guesses = []
    for point in points / points.max(axis=1, keepdims=True):
        guess = tuple(Fraction(float(value)).limit_denominator(most) for value in point)
        if np.abs(point - np.array(guess, dtype=float)).max() > _SURE:
            return None
        unit = math.lcm(*(value.denominator for value in guess))
        guesses.append(tuple(value * unit for value in guess))
    powers = [
        power_sum_form([(Fraction(1), guess)], tensor.dimension, tensor.order) for guess in guesses
    ]
    matrix = [[power.get(row, Fraction(0)) for power in powers] for row in tensor.rows]
    weights = solve_exactly(matrix, tensor.values)
    if weights is None or min(weights) < 0:
        return None
    return [(weight, guess) for weight, guess in zip(weights, guesses, strict=True) if weight]


def _inside(
    tensor: ExactTensor, supports: Sequence[Support], rng: np.random.Generator
) -> Iterator[ExactAtoms | None]:
    """Round a decomposition of the tensor less a share of lattice points."""
    units = _units(tensor)
    scaled = _rescaled(tensor, units)
    rows, n, d = scaled.rows, scaled.dimension, scaled.order
    faces = [set(support) for support in supports]
    lattice = [
        tuple(row.count(i) for i in range(n)) if any(face.issuperset(row) for face in faces) else ()
        for row in rows
    ]
    whole = power_sum_form(
        [(Fraction(1), tuple(map(Fraction, point))) for point in lattice if point], n, d
    )
    counts = listed_multiplicities(n, d).tolist()
    mass = sum(int(c) * whole.get(row, Fraction(0)) for c, row in zip(counts, rows, strict=True))
    for share in _SHARES:
        factor = Fraction(math.floor(math.log2(share * float(scaled.mass / mass))))
        unit = Fraction(2) ** int(factor)
        values = tuple(
            v - unit * whole.get(row, 0) for row, v in zip(rows, scaled.values, strict=True)
        )
        rest = replace(scaled, values=values, given=())
        if min(values) < 0 or first_violation(rest) is not None:
            continue
        atoms, residual = multi_start_decomposition(
            rest.scaled, n, d, supports=supports if len(supports) > 1 else None, rng=rng, n_starts=1
        )
        if residual <= _CLOSE:
            atoms = atoms * float(rest.mass) ** (1.0 / d)
            for bits in _BITS:
                yield _completed(scaled, atoms, lattice, units, bits)


def _completed(
    tensor: ExactTensor,
    atoms: Array,
    lattice: Sequence[tuple[int, ...]],
    units: Sequence[Fraction],
    bits: int,
) -> ExactAtoms | None:
    """Round atoms and give what is missing to the lattice points."""
    n, d = tensor.dimension, tensor.order
    scale = Fraction(1, 2**bits)
    points = [tuple(scale * round(float(v) * 2**bits) for v in atom) for atom in atoms]
    found: ExactAtoms = [(Fraction(1), point) for point in points if any(point)]
    rounded = power_sum_form(found, n, d)
    rest = [v - rounded.get(row, 0) for row, v in zip(tensor.rows, tensor.values, strict=True)]
    weights = lattice_weights(rest, n, d)
    for weight, point in zip(weights, lattice, strict=True):
        if weight < 0 or (weight and not point):
            return None
        if weight:
            found.append((weight, tuple(map(Fraction, point))))
    return [
        (weight, tuple(unit * value for unit, value in zip(units, point, strict=True)))
        for weight, point in found
    ]


def _units(tensor: ExactTensor) -> list[Fraction]:
    """Powers of two in which all diagonal entries are about 1."""
    n, d = tensor.dimension, tensor.order
    diagonal = [tensor.lookup[(i,) * d] for i in range(n)]
    bits = [v.numerator.bit_length() - v.denominator.bit_length() for v in diagonal]
    return [Fraction(2) ** round(size / d) for size in bits]


def _rescaled(tensor: ExactTensor, units: Sequence[Fraction]) -> ExactTensor:
    values = tuple(
        value / math.prod((units[i] for i in row), start=Fraction(1))
        for row, value in zip(tensor.rows, tensor.values, strict=True)
    )
    return replace(tensor, values=values, given=())
