"""Copositive forms: nonnegative on the nonnegative orthant, the dual of complete positivity.

A form p with ``p(u) >= 0`` for all u >= 0 is refuted by one rational point, and proved by exact
identities: no negative coefficient, a positive semidefinite matrix, coefficients of
``(x_1 + .. + x_n)^r p`` that are all nonnegative (Polya), or a subdivision of the simplex on whose
pieces no Bernstein coefficient is negative. The last two find a proof for every form that is
positive on the simplex, if they are given enough terms.

References
----------
.. [1] G. Polya, "Ueber positive Darstellung von Polynomen", Vierteljahrsschrift der
   Naturforschenden Gesellschaft in Zuerich 73 (1928).
.. [2] S. Bundfuss, M. Duer, "Algorithmic copositivity detection by simplicial partition", Linear
   Algebra and its Applications 428 (2008).
"""

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tensoralg.completely_positive.cone_points import local_minimizers
from tensoralg.completely_positive.cone_problem import Floats, form_values
from tensoralg.completely_positive.tensor_input import read_tensor
from tensoralg.core.indices import number_of_multi_indices
from tensoralg.core.validation import positive_integer
from tensoralg.solvers.certificate_bernstein import subdivision_proof
from tensoralg.solvers.certificate_proofs import GramBlock, GramProof, Proof, SubdivisionProof
from tensoralg.solvers.rational_forms import Form, Index, monomials, multiplicity, times_sum

__all__ = ["Copositivity", "CopositivityVerdict", "copositivity"]

_BITS = (1, 3, 6, 12, 24, 48)  # of rounded points: short numbers first
_STARTS = 50
_MOST_TERMS = 3000  # of a multiplied form
_MOST_POINTS = 20


class CopositivityVerdict(enum.StrEnum):
    """What is known of a form."""

    COPOSITIVE = "copositive"
    NOT_COPOSITIVE = "not copositive"
    UNDECIDED = "undecided"

    def __bool__(self) -> bool:
        raise TypeError("a verdict is never a bool: compare it with CopositivityVerdict's members")


@dataclass(frozen=True, slots=True, eq=False)
class Copositivity:
    """A verdict on a form and its proof.

    Attributes
    ----------
    verdict : CopositivityVerdict
        "copositive", "not copositive" or "undecided".
    dimension, order : int
        Number n of variables and degree d.
    form : mapping from Index to Fraction
        Coefficients of the monomials by sorted multi-index, from 0.
    proof : Proof or None
        For "copositive": why no value on the nonnegative orthant is negative.
    point : tuple of Fraction, or None
        For "not copositive": nonnegative, with a negative `value` of the form.
    value : Fraction or None
        The form's value there.
    least : float
        The least value on the simplex ``u >= 0, sum u = 1`` that was found, in doubles.
    message : str
        How the verdict was reached.
    """

    verdict: CopositivityVerdict
    dimension: int
    order: int
    form: Mapping[Index, Fraction]
    proof: Proof | None
    point: tuple[Fraction, ...] | None
    value: Fraction | None
    least: float
    message: str

    def verify(self) -> bool:
        """Check the proof again from the stored numbers; False also where nothing is proven.

        Integers and Fractions only.
        """
        if self.verdict == CopositivityVerdict.COPOSITIVE:
            return self.proof is not None and self.proof.holds(dict(self.form), self.dimension)
        if self.verdict == CopositivityVerdict.NOT_COPOSITIVE:
            return (
                self.point is not None
                and len(self.point) == self.dimension
                and min(self.point) >= 0
                and self.value == _value(self.form, self.point) < 0
            )
        return False


def copositivity(
    C: Any,
    *,
    max_leaves: int = 5000,
    rng: int | np.random.Generator | None = 0,
    symmetrize: bool = False,
) -> Copositivity:
    """Decide whether the form ``<C, u^(x)d>`` is nonnegative for all nonnegative u.

    Parameters
    ----------
    C : SymmetricTensor, array_like of shape (n,) * d, or nested lists
        Real, d >= 1. Integers and Fractions are kept exact, floats are taken as the binary
        fractions that they store.
    max_leaves : int, default 5000
        Pieces that a subdivision of the simplex may have.
    rng : int, Generator or None, default 0
        Source of the starts of the search for negative values.
    symmetrize : bool, default False
        Average over all orders of the indices instead of asking for symmetry.

    Returns
    -------
    Copositivity
        A verdict with an exact proof or an exact counterexample; "undecided" mostly for forms
        that are nonnegative with zeros, on the boundary of the cone.

    Raises
    ------
    NotSymmetricError, ShapeError, ValueError
        As for :func:`tensoralg.completely_positive.detect`; `max_leaves` below 1.

    Examples
    --------
    >>> found = copositivity([[1, -1], [-1, 1]])
    >>> found.verdict.value, found.verify()
    ('copositive', True)
    >>> no = copositivity([[1, -2], [-2, 3]])
    >>> no.verdict.value, no.point, no.value
    ('not copositive', (Fraction(1, 1), Fraction(1, 2)), Fraction(-1, 4))
    """
    positive_integer("max_leaves", max_leaves)
    tensor = read_tensor(C, symmetrize=symmetrize)
    n, d = tensor.dimension, tensor.order
    entries = zip(tensor.rows, tensor.given, strict=True)
    form = {row: value * multiplicity(row) for row, value in entries if value}
    size = max(map(abs, form.values()), default=Fraction(1))
    coefficients = np.array([float(form.get(row, Fraction(0)) / size) for row in tensor.rows])
    points = local_minimizers(coefficients, d, n, np.random.default_rng(rng), _STARTS)
    points = np.concatenate([np.eye(n), points[:_MOST_POINTS]])
    values = form_values(coefficients, points, d)
    least = float(values.min()) * float(size)
    for point in points[np.argsort(values, kind="stable")]:
        for rational in _rounded(point):
            value = _value(form, rational)
            if value < 0:
                verdict, text = CopositivityVerdict.NOT_COPOSITIVE, "a negative value was found"
                return Copositivity(verdict, n, d, form, None, rational, value, least, text)
    for proof, text in _proofs(form, n, d, max_leaves):
        if proof is not None and proof.holds(dict(form), n):
            verdict = CopositivityVerdict.COPOSITIVE
            return Copositivity(verdict, n, d, form, proof, None, None, least, text)
    text = (
        f"no proof either way: the least value found on the simplex is {least:.3e}, and neither "
        f"Polya's multipliers nor {max_leaves} pieces of the simplex prove that it is none below 0"
    )
    return Copositivity(CopositivityVerdict.UNDECIDED, n, d, form, None, None, None, least, text)


def _proofs(form: Form, n: int, d: int, max_leaves: int) -> Iterator[tuple[Proof | None, str]]:
    """Ways to prove a form nonnegative, the cheapest first."""
    if all(value >= 0 for value in form.values()):
        yield SubdivisionProof((None,)), "no coefficient is negative"
    if d == 2:
        gram = tuple(form.get(row, Fraction(0)) / multiplicity(row) for row in monomials(n, 2))
        yield GramProof(2, (GramBlock((), 1, gram),)), "the matrix is positive semidefinite"
    if form:
        leaves = subdivision_proof(form, n, min(max_leaves, 50))
        yield leaves, "a subdivision of the simplex"
        yield _polya(form, n, d), "all coefficients of a multiple are nonnegative"
        yield subdivision_proof(form, n, max_leaves), "a subdivision of the simplex"


def _polya(form: Form, n: int, d: int) -> GramProof | None:
    """Multiply by x_1 + .. + x_n until no coefficient is negative."""
    product, degree = dict(form), d
    while any(value < 0 for value in product.values()):
        degree += 1
        if number_of_multi_indices(n, degree) > _MOST_TERMS or degree > 10 * d:
            return None
        product = times_sum(product, n, 1)
    blocks = tuple(GramBlock(index, 0, (value,)) for index, value in product.items() if value)
    return GramProof(degree, blocks)


def _rounded(point: Floats) -> Iterator[tuple[Fraction, ...]]:
    """Rational points near one of the simplex, its largest entry 1."""
    ratios = point / point.max()
    for bits in _BITS:
        yield tuple(Fraction(round(float(v) * 2**bits), 2**bits) for v in ratios)


def _value(form: Mapping[Index, Fraction], point: tuple[Fraction, ...]) -> Fraction:
    terms = (
        c * math.prod((point[i] for i in index), start=Fraction(1)) for index, c in form.items()
    )
    return sum(terms, Fraction(0))
