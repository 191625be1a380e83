"""Certificates, in exact arithmetic, that a symmetric tensor is not completely positive.

A completely positive tensor ``A = sum u^(x)d`` with ``u >= 0`` pairs with every form p that is
nonnegative on the nonnegative orthant to ``<p, A> = sum p(u) >= 0``. A certificate is a form p
with rational coefficients, a proof that it is nonnegative there, and ``<p, A> < 0``.

`Certificate.to_json` writes an object with the keys ``format``, ``version``, ``kind``,
``dimension``, ``order``, ``tensor`` and ``form`` (lists of [sorted indices from 0, "p/q"], zeros
left out), ``value`` (that is <p, A>), ``proof`` and ``sha256``. With E = x_1 + .. + x_n the
``method`` of a proof is

- "gram": ``degree`` D and ``blocks`` of ``factor`` g, ``degree`` t and ``gram`` Q, the upper
  triangle by rows over the monomials b of degree t in lexicographic order;
  ``E^(D-d) p = sum x^g E^(D-|g|-2t) b' Q b`` with every Q positive semidefinite;
- "means": ``weights``, [indices of x^a, w]; p has one negative coefficient p_b, the w sum to 1 and
  average the a to b, and ``prod (p_a / w_a)^w_a >= -p_b``;
- "subdivision": ``splits``, a binary tree in preorder, [i, j] for the edge that is bisected (the
  first half keeps vertex i) and null at a leaf, where no coefficient is negative;
- "faces": ``margin``, ``threshold`` and ``faces`` of ``variables`` and ``proof``, the latter for
  ``p - margin E^d`` on that face;
- "scaled": positive ``scales`` s, and a ``proof`` for ``p(s_1 x_1, .., s_n x_n)``.

Proofs that ask for more work than real ones ever do are not believed: a reader of a foreign text
does not wait for hours.

``docs/verify_certificate.py`` reads this text and imports nothing of this package.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tensoralg.solvers.certificate_proofs import (
    FacesProof,
    GramBlock,
    GramProof,
    MeansProof,
    Proof,
    ScaledProof,
    SubdivisionProof,
)
from tensoralg.solvers.rational_forms import Form, Index, pairing

__all__ = ["Certificate"]

_FORMAT = "tensoralg certificate: not completely positive"
_VERSION = 1
_RATIONAL = re.compile(r"-?[0-9]+(/[0-9]*[1-9][0-9]*)?")
_DEEPEST = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Certificate:
    """An exact proof that a tensor is not completely positive.

    Parameters
    ----------
    kind : str
        Where the form comes from: "negative entry", "zero pattern", "Hoelder", "gram",
        "bernstein" or "faces".
    dimension, order : int
        Dimension n and order d of the tensor, degree of the form.
    tensor : mapping from Index to Fraction
        Nonzero entries of A by sorted multi-index, from 0, as given to the detection.
    form : mapping from Index to Fraction
        Coefficients of p by sorted multi-index.
    proof : Proof
        Why p is nonnegative on the nonnegative orthant.
    intact : bool
        False where a text's checksum or stated value contradicts its numbers.

    Raises
    ------
    ValueError
        A multi-index that is not sorted, has another length than `order`, or leaves
        ``0 .. dimension-1``.

    Notes
    -----
    ``<p, A> = sum_a p_a A_a`` over the monomials: the entries are not weighted, so that
    ``<p, u^(x)d> = p(u)``.

    References
    ----------
    .. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
       Numerical Algebra, Control and Optimization 13 (2023).

    Examples
    --------
    >>> from tensoralg.solvers.certificate_means import negative_entry_certificate
    >>> certificate = negative_entry_certificate([1, -2, 1], 2, 2)
    >>> certificate.value, certificate.verify()
    (Fraction(-2, 1), True)
    >>> certificate.polynomial().as_expr()
    x_1*x_2
    """

    kind: str
    dimension: int
    order: int
    tensor: Mapping[Index, Fraction]
    form: Mapping[Index, Fraction]
    proof: Proof
    intact: bool = True

    def __post_init__(self) -> None:
        for name in ("tensor", "form"):
            terms = dict(getattr(self, name))
            for index in terms:
                _check_index(name, index, self.dimension, self.order)
            object.__setattr__(self, name, terms)

    def __repr__(self) -> str:
        return (
            f"Certificate(kind={self.kind!r}, dimension={self.dimension}, order={self.order}, "
            f"value={float(self.value):.6g})"
        )

    @property
    def value(self) -> Fraction:
        """The number <p, A>, negative in a valid certificate."""
        return pairing(self.form, self.tensor)

    def verify(self) -> bool:
        """Check everything again from the stored numbers, with integers and Fractions only."""
        return (
            self.intact
            and self.order >= 1
            and self.value < 0
            and self.proof.holds(dict(self.form), self.dimension)
        )

    def certifies(self, tensor: Mapping[Index, Fraction]) -> bool:
        """Check that this is a valid certificate for the given tensor and no other.

        Parameters
        ----------
        tensor : mapping from Index to Fraction
            Entries by sorted multi-index; zeros may be left out.

        Returns
        -------
        bool
            Whether the entries agree exactly and `verify` holds.
        """
        given = {a: value for a, value in tensor.items() if value}
        return given == {a: c for a, c in self.tensor.items() if c} and self.verify()

    def polynomial(self) -> Any:
        """Return p as a sympy.Poly in x_1, .., x_n with rational coefficients."""
        import sympy  # type: ignore[import-untyped]

        names = sympy.symbols(f"x_1:{self.dimension + 1}")
        terms = {
            tuple(index.count(i) for i in range(self.dimension)): sympy.Rational(
                c.numerator, c.denominator
            )
            for index, c in self.form.items()
        }
        return sympy.Poly.from_dict(terms, *names, domain="QQ")

    def to_json(self) -> str:
        """Write plain JSON with fractions as strings "p/q", a version and a checksum.

        Raises
        ------
        ValueError
            A number has more digits than Python converts to text; the message has the limit.
        """
        try:
            data = {
                "format": _FORMAT,
                "version": _VERSION,
                "kind": self.kind,
                "dimension": self.dimension,
                "order": self.order,
                "tensor": _listing(self.tensor),
                "form": _listing(self.form),
                "value": str(self.value),
                "proof": {"method": self.proof.method, **self.proof.to_data()},
            }
        except ValueError as error:
            raise ValueError(f"the certificate has numbers of too many digits: {error}") from None
        return json.dumps({**data, "sha256": _checksum(data)})

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Read what `to_json` wrote; nothing is believed before `verify`.

        Parameters
        ----------
        text : str
            A JSON object.

        Returns
        -------
        Certificate
            With ``intact=False`` when checksum or stated value do not fit the numbers.

        Raises
        ------
        ValueError
            Text that is no certificate of a known version, or numbers that cannot be read.
        """
        try:
            data = json.loads(text)
        except RecursionError:
            raise ValueError("text is nested too deeply for a certificate") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(f"text must be a JSON object with format {_FORMAT!r}")
        if data.get("version") != _VERSION:
            raise ValueError(f"version must be {_VERSION}; got {data.get('version')!r}")
        try:
            stated = data.pop("sha256")
            n, order = _integer(data["dimension"]), _integer(data["order"])
            tensor, form = (_form(name, data[name], n, order) for name in ("tensor", "form"))
            intact = _checksum(data) == stated and _rational(data["value"]) == pairing(form, tensor)
            proof = _proof(data["proof"], n)
            return cls(str(data["kind"]), n, order, tensor, form, proof, intact)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the certificate is damaged: {error!r}") from error


def _checksum(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _listing(form: Mapping[Index, Fraction]) -> list[list[Any]]:
    return [[list(index), str(c)] for index, c in sorted(form.items()) if c]


def _check_index(name: str, index: Index, dimension: int, order: int) -> None:
    valid = all(isinstance(i, int) and 0 <= i < dimension for i in index)
    if not valid or len(index) != order or list(index) != sorted(index):
        raise ValueError(
            f"{name} must be given by sorted multi-indices of length {order} "
            f"over 0 .. {dimension - 1}; got {index}"
        )


def _integer(value: Any, low: int = 0, high: int = 1000) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"a certificate holds an integer in {low} .. {high}; got {value!r}")
    return value


def _rational(value: Any) -> Fraction:
    if not isinstance(value, str) or not _RATIONAL.fullmatch(value):
        raise ValueError(f"fractions are written as strings 'p/q'; got {value!r}")
    return Fraction(value)


def _index(value: Iterable[Any], dimension: int) -> Index:
    return tuple(_integer(i, 0, dimension - 1) for i in value)


def _form(name: str, listing: Iterable[Any], dimension: int, order: int) -> Form:
    form: Form = {}
    for index, value in listing:
        key = _index(index, dimension)
        if key in form:
            raise ValueError(f"{name} lists {key} twice")
        _check_index(name, key, dimension, order)
        form[key] = _rational(value)
    return form


def _proof(data: Mapping[str, Any], dimension: int, depth: int = 0) -> Proof:
    method = data["method"]
    if method == MeansProof.method:
        return MeansProof(tuple((_index(a, dimension), _rational(w)) for a, w in data["weights"]))
    if method == GramProof.method:
        blocks = tuple(_block(block, dimension) for block in data["blocks"])
        return GramProof(_integer(data["degree"]), blocks)
    if method == SubdivisionProof.method:
        return SubdivisionProof(tuple(_edge(edge, dimension) for edge in data["splits"]))
    if method == FacesProof.method and depth < _DEEPEST:
        faces = [(_index(face["variables"], dimension), face["proof"]) for face in data["faces"]]
        return FacesProof(
            _rational(data["margin"]),
            _rational(data["threshold"]),
            tuple((face, _proof(proof, len(face), depth + 1)) for face, proof in faces),
        )
    if method == ScaledProof.method and depth < _DEEPEST:
        scales = tuple(_rational(value) for value in data["scales"])
        return ScaledProof(scales, _proof(data["proof"], dimension, depth + 1))
    raise ValueError(f"a certificate's proof cannot be of method {method!r} here")


def _block(data: Mapping[str, Any], dimension: int) -> GramBlock:
    return GramBlock(
        tuple(sorted(_index(data["factor"], dimension))),
        _integer(data["degree"]),
        tuple(_rational(value) for value in data["gram"]),
    )


def _edge(value: Any, dimension: int) -> tuple[int, int] | None:
    if value is None:
        return None
    i, j = _index(value, dimension)
    if i == j:
        raise ValueError(f"an edge joins two vertices; got {value}")
    return i, j
