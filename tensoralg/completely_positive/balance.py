"""Tensors whose diagonal entries differ by orders of magnitude, in units of their own.

A is completely positive exactly when ``A_(i1..id) / (s_i1 .. s_id)`` is, for any positive s. With
diagonal entries of about 1 a relative error says the same of every entry; without, atoms may miss
small entries altogether and still rebuild the tensor to many digits.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.tensor_input import (
    ROUNDING_OF_DOUBLES,
    ExactTensor,
    largest_nearby,
)
from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.solvers.certificate_proofs import MeansProof, ScaledProof

__all__ = ["Units", "atoms_in_units", "balance", "certificate_in_units"]

Units = tuple[Fraction, ...]
Weighted = list[tuple[Fraction, tuple[Fraction, ...]]]

_NEAR = 6  # binary digits by which diagonal entries may differ


def balance(tensor: ExactTensor) -> tuple[ExactTensor, Units | None]:
    """Scale the indices of a tensor by powers of two until its diagonal entries are about 1.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative diagonal.

    Returns
    -------
    tensor : ExactTensor
        With ``A_(i1..id) / (s_i1 .. s_id)``.
    units : tuple of Fraction, length n, or None
        The s; None where the tensor is left as it is.

    Examples
    --------
    >>> from tensoralg.completely_positive.tensor_input import read_tensor
    >>> scaled, units = balance(read_tensor([[2**20, 2**9], [2**9, 1]]))
    >>> units, scaled.values[1]
    ((Fraction(1024, 1), Fraction(1, 1)), Fraction(1, 2))
    """
    n, d = tensor.dimension, tensor.order
    diagonal = [tensor.lookup[(i,) * d] for i in range(n)]
    # a smaller diagonal entry of doubles may be nothing but rounding: that is not blown up
    rounding = Fraction(min(tensor.noise, ROUNDING_OF_DOUBLES))
    if tensor.noise > 1e-9:
        rounding = Fraction(tensor.noise)
    nearby = largest_nearby(tensor)
    sizes = [
        _bits(max(value, rounding * large)) if value > 0 else None
        for value, large in zip(diagonal, nearby, strict=True)
    ]
    known = [size for size in sizes if size is not None]
    if d == 1 or not known or max(known) - min(known) < _NEAR:
        return tensor, None
    units = tuple(Fraction(2) ** (0 if size is None else round(size / d)) for size in sizes)
    factors = [math.prod((units[i] for i in row), start=Fraction(1)) for row in tensor.rows]
    values, given = _divided(tensor.values, factors), _divided(tensor.given, factors)
    return dataclasses.replace(tensor, values=values, given=given), units


def certificate_in_units(certificate: Certificate, units: Units) -> Certificate:
    """Turn a certificate of the scaled tensor into one of the tensor as given.

    Parameters
    ----------
    certificate : Certificate
        Of the tensor that `balance` returned.
    units : tuple of Fraction
        The s.

    Returns
    -------
    Certificate
        Of the same value.
    """
    form = {a: c / math.prod(units[i] for i in a) for a, c in certificate.form.items()}
    listed = {
        a: value * math.prod(units[i] for i in a)
        for a, value in certificate.tensor.items()
        if value
    }
    proof = certificate.proof
    # an inequality of means holds in any units
    scaled = proof if isinstance(proof, MeansProof) else ScaledProof(units, proof)
    return dataclasses.replace(certificate, tensor=listed, form=form, proof=scaled)


def atoms_in_units(
    found: SymmetricDecomposition, exact: Weighted | None, tensor: ExactTensor, units: Units
) -> dict[str, Any]:
    """Turn atoms of the scaled tensor into atoms of the tensor as given.

    Parameters
    ----------
    found : SymmetricDecomposition
        Of dimension n.
    exact : list of (Fraction, tuple of Fraction), or None
        Weighted atoms.
    tensor : ExactTensor
        As given.
    units : tuple of Fraction, length n
        The s.

    Returns
    -------
    dict
        The `decomposition`, its relative `residual`, and `exact_decomposition`.
    """
    sizes = [float(unit) for unit in units]
    atoms = SymmetricDecomposition(found.weights, found.points * sizes, order=tensor.order)
    weighted = exact and [
        (weight, tuple(unit * value for unit, value in zip(units, point, strict=True)))
        for weight, point in exact
    ]
    residual = atoms.residual(tensor.symmetric)
    return {"decomposition": atoms, "residual": residual, "exact_decomposition": weighted}


def _divided(values: Sequence[Fraction], factors: Sequence[Fraction]) -> tuple[Fraction, ...]:
    return tuple(v / f for v, f in zip(values, factors, strict=False))


def _bits(value: Fraction) -> int:
    """Binary logarithm, to within 1."""
    return value.numerator.bit_length() - value.denominator.bit_length()
