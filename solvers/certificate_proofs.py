"""Exact proofs that a form with rational coefficients is nonnegative on the nonnegative orthant.

Every proof stores the few numbers that a reader cannot guess and checks itself against the form
with integers and Fractions: the standard library, no array library, no solver.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from tensoralg.solvers.rational_forms import (
    Form,
    Index,
    add_product,
    monomials,
    multiplicity,
    sum_power,
    times_sum,
)
from tensoralg.solvers.rational_matrices import is_positive_semidefinite

__all__ = [
    "FacesProof",
    "GramBlock",
    "GramProof",
    "MeansProof",
    "Proof",
    "ScaledProof",
    "SubdivisionProof",
]

# A text may ask for any amount of work: these bounds are far above what real proofs need, and
# what lies beyond them proves nothing.
_LARGEST_ROOT = 10_000  # common denominator of the weights of a mean
_MOST_TERMS = 1_000_000  # of a form
_MOST_SORTED = 100_000_000  # indices, in products with powers of a sum
_MOST_EXPONENTS = 10_000_000  # of a form, one for each variable of each term
_MOST_STEPS = 300_000_000  # terms of all pieces of a subdivision
_MOST_SETS = 200_000  # of variables


@dataclass(frozen=True, slots=True)
class MeansProof:
    """Weighted arithmetic and geometric means: sum c_i x^(a_i) >= c x^b.

    With weights w_i >= 0 of sum 1 and b = sum w_i a_i the left side is at least
    ``prod (c_i / w_i)^(w_i) x^b``; its common power is compared with that of c in integers.

    Attributes
    ----------
    weights : tuple of (Index, Fraction)
        The w_i by multi-index a_i.
    """

    weights: tuple[tuple[Index, Fraction], ...]
    method: ClassVar[str] = "means"

    def holds(self, form: Form, dimension: int) -> bool:
        """Whether the inequality of means proves the form nonnegative."""
        negative = [(index, c) for index, c in form.items() if c < 0]
        indices = [index for index, _ in self.weights]
        if len(negative) != 1 or len(set(indices)) != len(indices):
            return False
        target, value = negative[0]
        if sum(w for _, w in self.weights) != 1:
            return False
        for i in range(dimension):
            if sum(w * index.count(i) for index, w in self.weights) != target.count(i):
                return False
        used = [(form.get(index, Fraction(0)), w) for index, w in self.weights]
        if any(c <= 0 or w <= 0 for c, w in used):
            return False
        common = math.lcm(*(w.denominator for _, w in used))
        if common > _LARGEST_ROOT:
            return False
        mean = math.prod(((c / w) ** int(w * common) for c, w in used), start=Fraction(1))
        return mean >= (-value) ** common

    def to_data(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"weights": [[list(index), str(w)] for index, w in self.weights]}


@dataclass(frozen=True, slots=True)
class GramBlock:
    """One term x^factor (x_1 + .. + x_n)^r b' Q b of a `GramProof`.

    Attributes
    ----------
    factor : Index
        Multi-index of the monomial that multiplies the sum of squares; () for 1.
    degree : int
        Degree of the monomials b.
    gram : tuple of Fraction
        Upper triangle of Q by rows, b in lexicographic order.
    """

    factor: Index
    degree: int
    gram: tuple[Fraction, ...]

    def matrix(self, dimension: int) -> list[list[Fraction]]:
        """Full symmetric matrix Q."""
        size = math.comb(dimension + self.degree - 1, self.degree)
        values = iter(self.gram)
        full = [[Fraction(0)] * size for _ in range(size)]
        for i in range(size):
            for j in range(i, size):
                full[i][j] = full[j][i] = next(values)
        return full

    def expand(self, dimension: int) -> Form:
        """Form x^factor b' Q b."""
        basis = monomials(dimension, self.degree)
        values = iter(self.gram)
        result: Form = {}
        for i, left in enumerate(basis):
            for j in range(i, len(basis)):
                value = next(values)
                if value:
                    index = tuple(sorted(self.factor + left + basis[j]))
                    result[index] = result.get(index, Fraction(0)) + (2 - (i == j)) * value
        return result


@dataclass(frozen=True, slots=True)
class GramProof:
    """Sums of squares: (x_1 + .. + x_n)^(D - d) p is a sum of `GramBlock` terms of degree D.

    Attributes
    ----------
    degree : int
        The common degree D >= d.
    blocks : tuple of GramBlock
        Every Q is positive semidefinite.
    """

    degree: int
    blocks: tuple[GramBlock, ...]
    method: ClassVar[str] = "gram"

    def holds(self, form: Form, dimension: int) -> bool:
        """Whether the identity holds coefficient by coefficient and no Q has a negative pivot."""
        order = len(next(iter(form))) if form else self.degree
        size = _terms(dimension, self.degree)
        steps = size * self.degree * (self.degree - order + 1)
        if self.degree < order or size > _MOST_TERMS or steps > _MOST_SORTED:
            return False
        total = times_sum(form, dimension, self.degree - order)
        by_power: dict[int, Form] = {}
        for block in self.blocks:
            power = self.degree - len(block.factor) - 2 * block.degree
            size = math.comb(dimension + block.degree - 1, block.degree)
            if power < 0 or len(block.gram) != size * (size + 1) // 2:
                return False
            add_product(by_power.setdefault(power, {}), block.expand(dimension), {(): 1})
        for power, terms in by_power.items():
            add_product(total, times_sum(terms, dimension, power), {(): 1}, -1)
        if any(total.values()):
            return False
        return all(is_positive_semidefinite(block.matrix(dimension)) for block in self.blocks)

    def to_data(self) -> dict[str, Any]:
        """Plain JSON values."""
        blocks = [
            {"factor": list(b.factor), "degree": b.degree, "gram": [str(q) for q in b.gram]}
            for b in self.blocks
        ]
        return {"degree": self.degree, "blocks": blocks}


@dataclass(frozen=True, slots=True)
class SubdivisionProof:
    """Bisection of the simplex until every Bernstein coefficient is nonnegative.

    Attributes
    ----------
    splits : tuple of (int, int) or None
        The binary tree in preorder: the edge (i, j) that is bisected, or None at a leaf. The
        first child keeps vertex i, the second vertex j; the midpoint takes the other's place.
    """

    splits: tuple[tuple[int, int] | None, ...]
    method: ClassVar[str] = "subdivision"

    def holds(self, form: Form, dimension: int) -> bool:
        """Whether all coefficients of the form on all leaves are nonnegative."""
        terms = _terms(dimension, len(next(iter(form), ())))
        if terms * dimension > _MOST_EXPONENTS or len(self.splits) * terms > _MOST_STEPS:
            return False
        scale = math.lcm(*(c.denominator for c in form.values()))
        stack = [{exponents(a, dimension): int(c * scale) for a, c in form.items()}]
        for edge in self.splits:
            if not stack:
                return False
            piece = stack.pop()
            if edge is not None:
                i, j = edge
                if i == j or not {i, j} <= set(range(dimension)):
                    return False
                stack += [half(piece, j, i), half(piece, i, j)]
            elif any(c < 0 for c in piece.values()):
                return False
        return not stack

    def to_data(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"splits": [list(edge) if edge else None for edge in self.splits]}


@dataclass(frozen=True, slots=True)
class FacesProof:
    """Positive on faces of the simplex, and large wherever no face is near.

    On every face C, p >= margin (sum x)^d by a proof of its own. A set of variables that fits no
    face contains the support of a monomial with a coefficient so large that it outweighs all
    negative ones once those variables exceed `threshold`; the others are too small to matter.

    Attributes
    ----------
    margin, threshold : Fraction
        Both positive.
    faces : tuple of (Index, Proof)
        Variables of each face with the proof for p - margin (sum x)^d restricted to it.
    """

    margin: Fraction
    threshold: Fraction
    faces: tuple[tuple[Index, "Proof"], ...]
    method: ClassVar[str] = "faces"

    def holds(self, form: Form, dimension: int) -> bool:
        """Whether margin, threshold and the faces' proofs add up to a proof for the form."""
        n, order = dimension, len(next(iter(form), ()))
        if min(self.margin, self.threshold) <= 0 or n * self.threshold >= 1:
            return False
        if any(_terms(len(face), order) * len(face) > _MOST_EXPONENTS for face, _ in self.faces):
            return False
        # sum of multiplicity * monomial is 1 on the simplex: no value lies below -lowest
        lowest = max([-c / multiplicity(a) for a, c in form.items()] + [Fraction(0)])
        mass = (1 - n * self.threshold) ** order
        if self.margin * mass < lowest * (1 - mass):
            return False
        strong = [set(a) for a, c in form.items() if c * self.threshold**order >= lowest and c > 0]
        if not _covered(n, [set(face) for face, _ in self.faces], strong):
            return False
        return all(
            proof.holds(face_form(form, face, self.margin, order), len(face))
            for face, proof in self.faces
        )

    def to_data(self) -> dict[str, Any]:
        """Plain JSON values."""
        faces: list[dict[str, Any]] = [
            {"variables": list(face), "proof": {"method": proof.method, **proof.to_data()}}
            for face, proof in self.faces
        ]
        return {"margin": str(self.margin), "threshold": str(self.threshold), "faces": faces}


@dataclass(frozen=True, slots=True)
class ScaledProof:
    """A proof in other units: for the form q(y) = p(s_1 y_1, .., s_n y_n).

    Attributes
    ----------
    scales : tuple of Fraction
        The positive s.
    proof : Proof
        For q, which is nonnegative on the orthant exactly when p is.
    """

    scales: tuple[Fraction, ...]
    proof: "Proof"
    method: ClassVar[str] = "scaled"

    def holds(self, form: Form, dimension: int) -> bool:
        """Whether the proof is one for the scaled form."""
        if len(self.scales) != dimension or any(s <= 0 for s in self.scales):
            return False
        scaled = {a: c * math.prod(self.scales[i] for i in a) for a, c in form.items()}
        return self.proof.holds(scaled, dimension)

    def to_data(self) -> dict[str, Any]:
        """Plain JSON values."""
        inner = {"method": self.proof.method, **self.proof.to_data()}
        return {"scales": [str(s) for s in self.scales], "proof": inner}


Proof = MeansProof | GramProof | SubdivisionProof | FacesProof | ScaledProof


def face_form(form: Mapping[Index, Fraction], face: Index, margin: Fraction, order: int) -> Form:
    """Restrict a form to the variables of a face and take margin * (sum x)^order off."""
    position = {variable: i for i, variable in enumerate(face)}
    result = {a: -margin * m for a, m in sum_power(len(face), order).items()}
    for index, c in form.items():
        if all(i in position for i in index):
            result[tuple(sorted(position[i] for i in index))] += c
    return {a: c for a, c in result.items() if c}


def _covered(dimension: int, faces: list[set[int]], strong: list[set[int]]) -> bool:
    """Whether every set of variables lies in a face or contains a strong monomial's support."""
    # a smallest set that lies in no face takes from every face one variable beyond it
    sets = {frozenset[int]()}
    for face in faces or [set()]:
        beyond = set(range(dimension)) - face
        grown = set()
        for subset in sets:
            if not subset <= face:
                grown.add(subset)
                continue
            for i in beyond:
                if not any(i in support and support <= {*subset, i} for support in strong):
                    grown.add(subset | {i})
            if len(grown) > _MOST_SETS:
                return False
        sets = grown
    return not sets


def _terms(dimension: int, degree: int) -> int:
    """Count the monomials of a degree."""
    return math.comb(dimension + degree - 1, degree) if dimension else int(not degree)


def exponents(index: Index, dimension: int) -> Index:
    """How often each variable occurs in a multi-index."""
    return tuple(index.count(i) for i in range(dimension))


def half(piece: Mapping[Index, int], keep: int, move: int) -> dict[Index, int]:
    """Coefficients, times 2^d, on the half simplex where `move` becomes the edge's midpoint.

    In barycentric coordinates x_keep = y_keep + y_move / 2 and x_move = y_move / 2. Monomials
    are given by exponents here.
    """
    result: dict[Index, int] = {}
    for a, c in piece.items():
        p, q = a[keep], a[move]
        c <<= sum(a) - p - q
        for s in range(p + 1):
            b = list(a)
            b[keep], b[move] = p - s, q + s
            key = tuple(b)
            result[key] = result.get(key, 0) + (c * math.comb(p, s) << (p - s))
    return result
