"""Homogeneous polynomials with rational coefficients, on the standard library alone.

A form of degree d in n variables is a dictionary from sorted multi-indices ``i1 <= .. <= id`` over
``0 .. n-1`` (the monomial ``x_i1 .. x_id``) to Fractions or integers; zeros are left out. The order
of `monomials` is that of `tensoralg.core.indices.multi_indices`.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

__all__ = [
    "Form",
    "Index",
    "add_product",
    "exact_form",
    "exact_number",
    "monomials",
    "multiplicity",
    "pairing",
    "sum_power",
    "times_sum",
]

Index = tuple[int, ...]
Form = dict[Index, Fraction]


def monomials(dimension: int, degree: int) -> list[Index]:
    """Sorted multi-indices of one degree in lexicographic order.

    Examples
    --------
    >>> monomials(2, 2)
    [(0, 0), (0, 1), (1, 1)]
    """
    return list(combinations_with_replacement(range(dimension), degree))


def multiplicity(index: Index) -> int:
    """Count the orderings of a multi-index: d! / prod(counts!).

    Examples
    --------
    >>> multiplicity((0, 0, 1))
    3
    """
    return math.factorial(len(index)) // math.prod(
        math.factorial(index.count(i)) for i in set(index)
    )


def exact_number(value: Any) -> Fraction:
    """Convert an integer, a Fraction or a finite float (bit for bit) to a Fraction.

    Raises
    ------
    ValueError
        NaN or infinity.
    TypeError
        Something that is not a real number.

    Examples
    --------
    >>> exact_number(0.5), exact_number(3)
    (Fraction(1, 2), Fraction(3, 1))
    """
    if isinstance(value, numbers.Rational):
        # NumPy's integers are Rationals, too, and must not survive inside a Fraction
        return Fraction(int(value.numerator), int(value.denominator))
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"entries must be finite; got {number}")
    return Fraction(number)


def exact_form(entries: Iterable[Any], dimension: int, degree: int) -> Form:
    """Nonzero entries by multi-index, from a listing in the order of `monomials`.

    Raises
    ------
    ValueError
        Another number of entries than C(dimension + degree - 1, degree); NaN or infinity.

    Examples
    --------
    >>> exact_form([1, 0, 0.5], 2, 2)
    {(0, 0): Fraction(1, 1), (1, 1): Fraction(1, 2)}
    """
    values = [exact_number(value) for value in entries]
    indices = monomials(dimension, degree)
    if len(values) != len(indices):
        raise ValueError(
            f"entries must hold {len(indices)} numbers for dimension={dimension}, "
            f"order={degree}; got {len(values)}"
        )
    return {index: value for index, value in zip(indices, values, strict=True) if value}


def pairing(form: Mapping[Index, Fraction], tensor: Mapping[Index, Fraction]) -> Fraction:
    """Evaluate <p, A> = sum over monomials of p_a A_a; for A = sum u^d this is sum p(u).

    Examples
    --------
    >>> pairing({(0, 0): Fraction(1), (0, 1): Fraction(-2)}, {(0, 1): Fraction(3)})
    Fraction(-6, 1)
    """
    return sum((c * tensor[a] for a, c in form.items() if a in tensor), Fraction(0))


def add_product(
    target: dict[Index, Any],
    left: Mapping[Index, Any],
    right: Mapping[Index, Any],
    scale: Any = 1,
) -> None:
    """Add scale * left * right to a form, in place.

    Examples
    --------
    >>> square: dict[Index, int] = {}
    >>> add_product(square, {(0,): 1, (1,): -1}, {(0,): 1, (1,): -1})
    >>> square
    {(0, 0): 1, (0, 1): -2, (1, 1): 1}
    """
    for a, x in left.items():
        for b, y in right.items():
            index = tuple(sorted(a + b))
            target[index] = target.get(index, 0) + scale * x * y


def times_sum(form: Mapping[Index, Any], dimension: int, power: int) -> dict[Index, Any]:
    """Multiply a form by (x_1 + .. + x_n)^power.

    Examples
    --------
    >>> times_sum({(0,): 1, (1,): -1}, 2, 1)
    {(0, 0): 1, (0, 1): 0, (1, 1): -1}
    """
    result = dict(form)
    line: dict[Index, int] = {(i,): 1 for i in range(dimension)}
    for _ in range(power):
        product: dict[Index, Any] = {}
        add_product(product, result, line)
        result = product
    return result


def sum_power(dimension: int, power: int) -> dict[Index, int]:
    """Expand (x_1 + .. + x_n)^power: its coefficients are the multiplicities.

    Examples
    --------
    >>> sum_power(2, 2)
    {(0, 0): 1, (0, 1): 2, (1, 1): 1}
    """
    return {index: multiplicity(index) for index in monomials(dimension, power)}
