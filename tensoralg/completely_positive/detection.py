"""Decide whether a symmetric tensor is completely positive, with a proof either way."""

import dataclasses
import enum
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.exact_tests import first_violation, is_doubly_nonnegative
from tensoralg.completely_positive.hankel import hankel_atoms
from tensoralg.completely_positive.relaxation_steps import (
    check_solver,
    orders_within_reach,
    solve_order,
)
from tensoralg.completely_positive.search import Search
from tensoralg.completely_positive.tensor_input import ExactTensor, read_tensor
from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.solvers.atom_net import refine_on_net
from tensoralg.solvers.atom_polish import polish_atoms
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition

__all__ = ["Detection", "Verdict", "detect"]


_FEW_ENTRIES = 60  # a start takes well below a second
_EXACT, _NEAR = 1e-12, 1e-3  # residuals between which nets around atoms are tried
_MOST_UNKNOWNS = 3000  # coordinates of atoms; more take minutes, and are not needed inside the cone


class Verdict(enum.StrEnum):
    """What is known of a tensor."""

    COMPLETELY_POSITIVE = "completely positive"
    NOT_COMPLETELY_POSITIVE = "not completely positive"
    UNDECIDED = "undecided"

    def __bool__(self) -> bool:
        raise TypeError("a verdict is never a bool: compare it with Verdict's members")


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """A verdict and what it rests on.

    Attributes
    ----------
    verdict : Verdict
        "completely positive", "not completely positive" or "undecided".
    decomposition : SymmetricDecomposition or None
        Points >= 0 with weights 1. It rebuilds the tensor where the verdict is "completely
        positive"; for "undecided" it is the best that was found.
    residual : float or None
        Relative Frobenius distance of the tensor that the decomposition rebuilds.
    certificate : Certificate or None
        For "not completely positive": a form p, nonnegative on the nonnegative orthant, with
        ``<p, A> < 0``; verified in exact arithmetic.
    relaxation_order : int or None
        Order k of the last relaxation that was solved; None where none was needed.
    shift : float or None
        Least t such that ``A / <A, e^d> + t U`` lies in that relaxation; U is the uniform measure
        on the simplex, or the mean of those on the faces that the zeros of A allow.
    message : str
        How the verdict was reached, what was changed in the input, and for "undecided" the
        evidence: orders, shifts, residuals and ranks.
    evidence : tuple of str
        What was tried, step by step.
    """

    verdict: Verdict
    decomposition: SymmetricDecomposition | None
    residual: float | None
    certificate: Certificate | None
    relaxation_order: int | None
    shift: float | None
    message: str
    evidence: tuple[str, ...] = ()


def detect(
    A: Any,
    *,
    max_order: int | None = None,
    certificate: bool = True,
    solver: str = "auto",
    rng: int | np.random.Generator | None = 0,
    symmetrize: bool = False,
) -> Detection:
    """Decide whether a tensor is a sum of powers ``u^(x)d`` of nonnegative vectors.

    Exact tests come first, then a search for atoms without a semidefinite program, then the
    dehomogenised moment relaxations of growing order [1]_. "Completely positive" is said only when
    nonnegative atoms rebuild the tensor to 1e-9; "not completely positive" only with a certificate
    that was verified in exact arithmetic.

    Parameters
    ----------
    A : SymmetricTensor, array_like of shape (n,) * d, or nested lists
        Real, d >= 1. Integers and Fractions are kept exact, floats are taken as the binary
        fractions that they store.
    max_order : int, optional
        Highest order k of a relaxation, at least ``ceil(d/2)``. By default as high as sizes allow,
        at most three steps.
    certificate : bool, default True
        Whether a certificate is part of the result. It is made and verified in any case.
    solver : {"auto", "clarabel", "sdpa", "scs"}
        Conic solver. No verdict rests on what it says of itself.
    rng : int, Generator or None, default 0
        Source of all random choices.
    symmetrize : bool, default False
        Average over all orders of the indices instead of asking for symmetry.

    Returns
    -------
    Detection
        Verdict, decomposition or certificate, and a message.

    Raises
    ------
    NotSymmetricError
        The message names two entries that differ.
    ShapeError
        Not an array of shape ``(n,) * d``.
    ValueError
        A NaN or infinite entry, complex numbers, `max_order` below ``ceil(d/2)``, an unknown
        solver.
    ProblemTooLargeError
        The relaxation of order `max_order` would not fit in memory; the message has its size.

    References
    ----------
    .. [1] J. Nie, X. Tang, Z. Yang, S. Zhong, "Dehomogenization for completely positive tensors",
       arXiv:2206.12553.
    .. [2] J. Nie, "The A-truncated K-moment problem", Foundations of Computational Mathematics 14
       (2014).
    .. [3] J. Fan, A. Zhou, "A semidefinite algorithm for completely positive tensor
       decomposition", Computational Optimization and Applications 66 (2017).

    Examples
    --------
    >>> detect([[2, 1], [1, 2]]).verdict.value
    'completely positive'
    >>> no = detect([[1, 2], [2, 1]])
    >>> no.verdict.value, no.certificate.verify()
    ('not completely positive', True)
    >>> no.certificate.polynomial().as_expr()
    x_1**2/2 - x_1*x_2 + x_2**2/2
    """
    tensor = read_tensor(A, symmetrize=symmetrize)
    check_solver(solver)
    highest = _highest_order(max_order, tensor.order)
    generator = np.random.default_rng(rng)
    search = Search(tensor, generator, solver)
    orders = orders_within_reach(search, highest)
    violation = first_violation(tensor)
    if violation is not None:
        found = f"the exact tests found a violation ({violation.kind})"
        return _refuted(tensor, violation, found, certificate)
    if _plain(search):
        return _proved(search, "the atoms are plain from the entries")
    if _by_quadrature(search):
        return _proved(search, "a strong Hankel tensor: atoms from a Gauss rule")
    if _without_relaxation(search, 2):
        return _proved(search, "atoms were found without a relaxation")
    for order in orders:
        violation = solve_order(search, order)
        if violation is not None:
            found = f"the relaxation of order {order} needs the shift {search.shift:.3e}"
            return _refuted(tensor, violation, found, certificate, search)
        if search.rebuilt:
            return _proved(search, f"atoms were found in the relaxation of order {order}")
    if _without_relaxation(search, 8 if len(search.core.values) <= _FEW_ENTRIES else 2):
        return _proved(search, "atoms were found without a relaxation")
    return _undecided(search)


def _highest_order(max_order: int | None, d: int) -> int | None:
    if max_order is None:
        return None
    try:
        order = operator.index(max_order)
    except TypeError:
        raise TypeError(f"max_order must be an integer or None; got {max_order!r}") from None
    if 2 * order < d:
        raise ValueError(
            f"max_order must be at least ceil(d/2) = {(d + 1) // 2} for order d={d}; got {order}"
        )
    return order


def _plain(search: Search) -> bool:
    """Tensors whose atoms can be read off: zero, of order 1, or with one active index at a time."""
    core, d = search.core, search.tensor.order
    if not search.active:
        return search.offer(np.zeros((0, 0)))
    if d == 1:
        return search.offer(core.scaled[None, :])
    if search.supports and all(len(support) == 1 for support in search.supports):
        diagonal = [float(core.lookup[(i,) * d] / core.mass) for i in range(core.dimension)]
        return search.offer(np.diag(np.array(diagonal) ** (1.0 / d)))
    return False


def _by_quadrature(search: Search) -> bool:
    core = search.core
    atoms = hankel_atoms(core)
    if atoms is None:
        return False
    polished, _ = polish_atoms(core.scaled, core.dimension, core.order, atoms)
    return search.offer(atoms) or search.offer(polished)


def _without_relaxation(search: Search, n_starts: int) -> bool:
    core = search.core
    zeros = search.supports is not None and len(search.supports) > 1
    many = len(core.values) * core.dimension > _MOST_UNKNOWNS
    atoms, residual = multi_start_decomposition(
        core.scaled,
        core.dimension,
        core.order,
        supports=search.supports if zeros else None,
        n_atoms=_MOST_UNKNOWNS // core.dimension if many and not zeros else None,
        rng=search.rng,
        n_starts=n_starts,
    )
    search.evidence.append(
        f"search from {n_starts} starts without a relaxation: relative residual {residual:.1e}"
    )
    if _EXACT < residual < _NEAR:
        atoms, residual = refine_on_net(
            core.scaled, core.dimension, core.order, atoms, rng=search.rng
        )
        search.evidence.append(f"nets around these atoms: relative residual {residual:.1e}")
    return search.offer(atoms)


def _refuted(
    tensor: ExactTensor,
    violation: Certificate,
    found: str,
    keep: bool,
    search: Search | None = None,
) -> Detection:
    if tensor.notes:  # the certificate is for the entries as they were given
        listed = {a: v for a, v in zip(tensor.rows, tensor.given, strict=True) if v}
        as_given = dataclasses.replace(violation, tensor=listed)
        violation = as_given if as_given.verify() else violation
    how = f"{found}; <p, A> = {float(violation.value):.3e} was verified in exact arithmetic"
    if not keep:
        how += "; certificate=False: the certificate was not kept"
    return Detection(
        Verdict.NOT_COMPLETELY_POSITIVE,
        None,
        None,
        violation if keep else None,
        search.order if search else None,
        search.shift if search else None,
        _message(tensor, how),
        tuple(search.evidence) if search else (),
    )


def _proved(search: Search, how: str) -> Detection:
    assert search.decomposition is not None
    count = search.decomposition.rank
    how = f"{how}: {count} of them, relative residual {search.residual:.1e}"
    return Detection(
        Verdict.COMPLETELY_POSITIVE,
        search.decomposition,
        search.residual,
        None,
        search.order,
        search.shift,
        _message(search.tensor, how),
        tuple(search.evidence),
    )


def _undecided(search: Search) -> Detection:
    tensor = search.tensor
    how = "no proof either way: " + "; ".join(search.evidence)
    if tensor.order == 2 and tensor.dimension <= 4 and is_doubly_nonnegative(tensor):
        how += (
            "; a doubly nonnegative matrix of dimension 4 or less is completely positive, "
            "but no atoms were found that rebuild it"
        )
    found = search.decomposition is not None
    return Detection(
        Verdict.UNDECIDED,
        search.decomposition,
        search.residual if found else None,
        None,
        search.order,
        search.shift,
        _message(tensor, how),
        tuple(search.evidence),
    )


def _message(tensor: ExactTensor, text: str) -> str:
    return "; ".join([text, *tensor.notes])
