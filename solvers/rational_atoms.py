"""Sums of powers of points with rational weights, in exact arithmetic.

The points a of the lattice ``a_i = 0, 1, .., |a| = d`` are as many as the monomials of degree d,
and the forms ::

    l_a(x) = prod_i prod_{j < a_i} (x_i - j E / d) / (a_i)!,    E = x_1 + .. + x_n,

are 1 at a and 0 at all others. So every tensor is a combination of powers of lattice points,
``A = sum_a <l_a, A> a^(x)d``, with weights that are rational numbers where the entries are. Where
the entries vanish whose support leaves a family of faces, so do these weights.

References
----------
.. [1] K. C. Chung, T. H. Yao, "On lattices admitting unique Lagrange interpolations", SIAM Journal
   on Numerical Analysis 14 (1977).
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.core.index_maps import insertion_positions
from tensoralg.solvers.rational_forms import Form, Index

__all__ = ["WeightedAtoms", "lattice_weights", "power_sum_form"]

WeightedAtoms = Sequence[tuple[Fraction, Sequence[Fraction]]]


def power_sum_form(atoms: WeightedAtoms, dimension: int, order: int) -> Form:
    """Entries of ``sum w u^(x)d``, with integers and Fractions only.

    Parameters
    ----------
    atoms : sequence of (Fraction, sequence of Fraction)
        Weights w and points u.
    dimension, order : int
        Dimension n and order d.

    Returns
    -------
    dict from Index to Fraction
        Nonzero entries by sorted multi-index, from 0.

    Examples
    --------
    >>> half = Fraction(1, 2)
    >>> power_sum_form([(Fraction(4), (half, half)), (Fraction(1), (0, 1))], 2, 2)
    {(0, 0): Fraction(1, 1), (0, 1): Fraction(1, 1), (1, 1): Fraction(2, 1)}
    """
    integers: list[tuple[Fraction, list[int]]] = []
    for weight, point in atoms:
        unit = math.lcm(*(Fraction(value).denominator for value in point))
        integers.append((weight / unit**order, [int(value * unit) for value in point]))
    common = math.lcm(*(weight.denominator for weight, _ in integers))
    totals: dict[Index, int] = {}
    for weight, multiples in integers:
        part: dict[Index, int] = {(): int(weight * common)}
        for _ in range(order):  # sorted multi-indices grow at their end
            part = {
                (*index, i): value * multiples[i]
                for index, value in part.items()
                for i in range(index[-1] if index else 0, dimension)
                if multiples[i]
            }
        for index, value in part.items():
            totals[index] = totals.get(index, 0) + value
    return {index: Fraction(total, common) for index, total in sorted(totals.items()) if total}


def lattice_weights(entries: Sequence[Fraction], dimension: int, order: int) -> list[Fraction]:
    """Weights of the lattice points whose powers add up to a tensor.

    Parameters
    ----------
    entries : sequence of Fraction, length C(n+d-1, d)
        Any entries, over the sorted multi-indices in lexicographic order.
    dimension, order : int
        Dimension n and order d.

    Returns
    -------
    list of Fraction, length C(n+d-1, d)
        One for each sorted multi-index: it stands for the point that counts each of its indices.

    Examples
    --------
    The lattice points (2, 0), (1, 1) and (0, 2):

    >>> lattice_weights([Fraction(5), Fraction(1), Fraction(1)], 2, 2)
    [Fraction(1, 1), Fraction(1, 1), Fraction(0, 1)]
    """
    common = math.lcm(*(value.denominator for value in entries))
    start = np.empty(len(entries), dtype=object)
    start[:] = [int(value * common) for value in entries]
    weights: list[Fraction] = []

    def contract(
        rest: npt.NDArray[np.object_], degree: int, last: int, run: int, unit: int
    ) -> None:
        """Apply one factor of l_a after another; `run` counts the last index so far."""
        if not degree:
            weights.append(Fraction(int(rest[0]), unit))
            return
        slices = rest[insertion_positions(dimension, degree)]
        total = slices.sum(axis=0)
        for i in range(last, dimension):
            j = run if i == last else 0
            contract(order * slices[i] - j * total, degree - 1, i, j + 1, unit * (j + 1))

    contract(start, order, 0, 0, common * order**order)
    return weights
