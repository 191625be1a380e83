"""Certificates that need no solver: a negative entry, zero patterns, inequalities of means."""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from tensoralg.solvers.certificate_proofs import MeansProof, SubdivisionProof
from tensoralg.solvers.exact_certificates import Certificate
from tensoralg.solvers.rational_forms import Form, Index, exact_form, monomials

__all__ = [
    "hoelder_certificate",
    "means_certificate",
    "negative_entry_certificate",
    "zero_pattern_certificate",
]


def negative_entry_certificate(
    entries: Iterable[Any], dimension: int, order: int
) -> Certificate | None:
    """Certify by the most negative entry A_a: the form is the monomial x^a.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.

    Returns
    -------
    Certificate or None
        None where no entry is negative.

    Raises
    ------
    ValueError
        A wrong number of entries, NaN or infinity.

    Examples
    --------
    >>> negative_entry_certificate([1, -2, 1], 2, 2).value
    Fraction(-2, 1)
    >>> negative_entry_certificate([1, 2, 1], 2, 2) is None
    True
    """
    tensor = exact_form(entries, dimension, order)
    index = min(tensor, key=lambda a: tensor[a], default=None)
    if index is None or tensor[index] >= 0:
        return None
    form = {index: Fraction(1)}
    return _checked("negative entry", dimension, order, tensor, form, SubdivisionProof((None,)))


def zero_pattern_certificate(
    entries: Iterable[Any], dimension: int, order: int
) -> Certificate | None:
    """Certify by A_a = 0 and A_b > 0 where every variable of x^a occurs in x^b.

    With ``b = w_0 a + sum w_i d e_i`` the form is ``M x^a + sum c x_i^d - x^b``, where the c are
    small and M, which costs nothing, makes the inequality of means true.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.

    Returns
    -------
    Certificate or None
        None where the pattern of zeros allows every positive entry.

    Raises
    ------
    ValueError
        A wrong number of entries, NaN or infinity.

    Examples
    --------
    >>> zero_pattern_certificate([1, 0, 0, 0, 0, 0, 1, 0, 0, 1], 3, 3) is None
    True
    >>> zero_pattern_certificate([1, 0, 0, 0, 0.2, 0, 1, 0, 0, 1], 3, 3).verify()
    True
    """
    values = list(entries)
    tensor = exact_form(values, dimension, order)
    listed = monomials(dimension, order)
    zeros = {frozenset(a): a for a in listed if a not in tensor}
    for target in sorted(tensor, key=lambda a: tensor[a], reverse=True):
        inside = [a for support, a in zeros.items() if support <= set(target)]
        if tensor[target] > 0 and inside:
            # the largest share of x^a leaves the fewest powers x_i^d
            share, zero = max((_share(a, target), a) for a in inside)
            weights = {zero: share}
            for i in sorted(set(target)):
                rest = Fraction(target.count(i) - share * zero.count(i)) / order
                if rest > 0:
                    corner = (i,) * order
                    weights[corner] = weights.get(corner, Fraction(0)) + rest
            return _means("zero pattern", dimension, order, tensor, target, weights)
    return None


def hoelder_certificate(entries: Iterable[Any], dimension: int, order: int) -> Certificate | None:
    """Certify by an entry above its Hoelder bound: A_a^d > prod A_{i..i}^{a_i}.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.

    Returns
    -------
    Certificate or None
        None where every entry obeys its bound.

    Raises
    ------
    ValueError
        A wrong number of entries, NaN or infinity.

    Examples
    --------
    >>> hoelder_certificate([1, 2, 1], 2, 2).polynomial().as_expr()
    x_1**2/2 - x_1*x_2 + x_2**2/2
    """
    tensor = exact_form(entries, dimension, order)
    for target, value in tensor.items():
        bound = math.prod(tensor.get((i,) * order, Fraction(0)) for i in target)
        if value > 0 and value**order > bound:
            weights = {(i,) * order: Fraction(target.count(i), order) for i in target}
            return _means("Hoelder", dimension, order, tensor, target, weights)
    return None


def means_certificate(
    entries: Iterable[Any],
    dimension: int,
    order: int,
    target: Index,
    weights: Mapping[Index, Fraction],
) -> Certificate | None:
    """Certify by A_b > prod A_a^(w_a) with b = sum w_a a, a general inequality of means.

    Parameters
    ----------
    entries : iterable of int, Fraction or float, length C(n+d-1, d)
        Entries over the sorted multi-indices in lexicographic order; floats count bit for bit.
    dimension, order : int
        Dimension n >= 1 and order d >= 1.
    target : tuple of int
        Sorted multi-index b.
    weights : mapping from tuple of int to Fraction
        Positive weights w_a of sum 1.

    Returns
    -------
    Certificate or None
        None where the inequality holds, or weights do not average to b.

    Raises
    ------
    ValueError
        A wrong number of entries, NaN or infinity.

    Examples
    --------
    >>> half = Fraction(1, 2)
    >>> means_certificate([1, 2, 3, 1], 2, 3, (0, 0, 1), {(0, 0, 0): half, (0, 1, 1): half}) is None
    False
    """
    tensor = exact_form(entries, dimension, order)
    return _means("Hoelder", dimension, order, tensor, tuple(target), dict(weights))


def _share(inner: Index, outer: Index) -> Fraction:
    """Largest w with outer - w * inner >= 0, at most 1."""
    return min(Fraction(outer.count(i), inner.count(i)) for i in set(inner))


def _means(
    kind: str,
    dimension: int,
    order: int,
    tensor: Form,
    target: Index,
    weights: dict[Index, Fraction],
) -> Certificate | None:
    """Choose coefficients c_a > 0 with sum c_a A_a < A_b that the inequality of means allows."""
    proof = MeansProof(tuple(weights.items()))
    for bits in (4, 10, 20, 40, 80):
        form = _coefficients(tensor, target, weights, bits)
        if form is None:
            return None
        found = _checked(kind, dimension, order, tensor, form, proof)
        if found is not None:
            return found
    return None


def _coefficients(
    tensor: Form, target: Index, weights: Mapping[Index, Fraction], bits: int
) -> Form | None:
    value = tensor.get(target, Fraction(0))
    positive = {a: w for a, w in weights.items() if tensor.get(a, Fraction(0)) > 0}
    zeros = [a for a in weights if a not in tensor]
    if value <= 0 or len(positive) + len(zeros) != len(weights):
        return None
    # c_a A_a / w_a = m for all a: m = prod A_a^(w_a) makes the mean 1, up to rounding upwards
    mean = value / 2
    if not zeros:
        logs = sum(float(w) * _logarithm(tensor[a]) for a, w in positive.items())
        mean = _exponential(logs) * (1 + Fraction(bits > 10, 2**48))
    form = {a: _round_up(w * mean / tensor[a], bits) for a, w in positive.items()}
    if zeros:
        free = math.fsum(float(weights[a]) for a in zeros)
        logs = sum(float(w) * _logarithm(form[a] / w) for a, w in positive.items())
        for a in zeros:
            form[a] = Fraction(2) ** math.ceil(
                math.log2(float(weights[a])) - logs / math.log(2) / free
            )
    form[target] = Fraction(-1)
    return form


def _logarithm(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _exponential(value: float) -> Fraction:
    """Return exp(value) also beyond the range of floats."""
    exponent = math.floor(value / math.log(2))
    return Fraction(math.exp(value - exponent * math.log(2))) * Fraction(2) ** exponent


def _round_up(value: Fraction, bits: int) -> Fraction:
    """Smallest multiple of a power of two, `bits` below the leading one, that is not smaller."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length() - bits
    unit = Fraction(2) ** exponent
    return unit * math.ceil(value / unit)


def _checked(
    kind: str, dimension: int, order: int, tensor: Form, form: Form, proof: Any
) -> Certificate | None:
    certificate = Certificate(kind, dimension, order, tensor, form, proof)
    return certificate if certificate.verify() else None
