"""Decide whether a symmetric tensor is completely positive, with a proof either way."""

import dataclasses
import enum
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.completely_positive.balance import (
    Units,
    atoms_in_units,
    balance,
    certificate_in_units,
)
from tensoralg.completely_positive.certificates import Certificate
from tensoralg.completely_positive.comparison import ExactAtoms, comparison_atoms
from tensoralg.completely_positive.exact_atoms import exact_atoms, plain_atoms
from tensoralg.completely_positive.exact_tests import first_violation, known_criterion
from tensoralg.completely_positive.relaxation_steps import (
    check_solver,
    orders_within_reach,
    solve_order,
)
from tensoralg.completely_positive.search import REBUILT, Search
from tensoralg.completely_positive.tensor_input import ExactTensor, read_tensor
from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.core.index_maps import dense_values
from tensoralg.core.validation import random_generator
from tensoralg.solvers.atom_polish import polish_atoms
from tensoralg.solvers.moment_curve import hankel_atoms
from tensoralg.solvers.nonnegative_decomposition import multi_start_decomposition

__all__ = ["Detection", "Verdict", "detect"]


_BY_TESTS = "the exact tests found a violation"
_FEW_ENTRIES = 60  # a start takes well below a second
_SETTLED = 1e-11  # relaxations tell no smaller distances from the cone
_RANK = 1e-12  # eigenvalues below it, relative to the sum of the entries, count as zero
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
    exact_decomposition : list of (Fraction, tuple of Fraction), or None
        For integers and Fractions that are "completely positive": positive weights w and points
        u >= 0 with ``sum w u^(x)d = A`` exactly, where they were found, as they are inside the
        cone. Floats are taken for rounded, and none are sought.
    """

    verdict: Verdict
    decomposition: SymmetricDecomposition | None
    residual: float | None
    certificate: Certificate | None
    relaxation_order: int | None
    shift: float | None
    message: str
    evidence: tuple[str, ...] = ()
    exact_decomposition: ExactAtoms | None = None

    def __bool__(self) -> bool:
        raise TypeError("a detection is never a bool: compare its verdict with Verdict's members")


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
    nonnegative atoms rebuild the tensor to 1e-9, relative to its norm; "not completely positive"
    only with a certificate that was verified in exact arithmetic.

    Entries that are integers or Fractions may be completely positive exactly: rational atoms that
    rebuild the tensor without any error are then part of the result, if they are found. Without
    them the verdict says that some completely positive tensor is as near as `residual`, and the
    message says so.

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
        Neither the exact tests nor a search for atoms decide, and the relaxation of order
        `max_order` would not fit in memory; the message has its size.

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

    Exact entries get atoms that rebuild them without any error:

    >>> atoms = detect([[3, 1], [1, 2]]).exact_decomposition
    >>> [[sum(w * u[i] * u[j] for w, u in atoms) for j in range(2)] for i in range(2)]
    [[Fraction(3, 1), Fraction(1, 1)], [Fraction(1, 1), Fraction(2, 1)]]
    """
    tensor = read_tensor(A, symmetrize=symmetrize)
    check_solver(solver)
    highest = _highest_order(max_order, tensor.order)
    generator = random_generator("rng", rng)
    violation = first_violation(tensor)
    if violation is not None:
        return _refuted(tensor, violation, f"{_BY_TESTS} ({violation.kind})", certificate)
    scaled, units = balance(tensor)
    violation = first_violation(scaled) if units else None
    if violation is not None:
        found = _refuted(scaled, violation, f"{_BY_TESTS} ({violation.kind})", certificate)
    else:
        found = _decide(Search(scaled, generator, solver), highest, certificate)
    return _in_given_units(found, tensor, units) if units else found


def _decide(search: Search, highest: int | None, certificate: bool) -> Detection:
    """Look for a proof of a tensor that passed the exact tests."""
    tensor = search.tensor
    how = next((text for step, text in _STEPS if step(search)), "")
    if how and _settled(search):
        return _proved(search, how)
    # relaxations: for atoms, or only to see whether a small residual hides a violation
    for order in orders_within_reach(search, None if how else highest):
        if highest is not None and order > highest:
            break
        violation = solve_order(search, order)
        if violation is not None:
            found = f"the relaxation of order {order} needs the shift {search.shift:.3e}"
            return _refuted(tensor, violation, found, certificate, search)
        if not how and search.rebuilt:
            how = f"atoms were found in the relaxation of order {order}"
        if how and _settled(search):
            break
    if how:
        return _proved(search, how)
    if _without_relaxation(search, 8 if len(search.core.values) <= _FEW_ENTRIES else 2):
        return _proved(search, "atoms were found without a relaxation")
    return _undecided(search)


def _in_given_units(found: Detection, tensor: ExactTensor, units: Units) -> Detection:
    """Carry a detection of the scaled tensor back to the given one."""
    message = f"{found.message}; decided after scaling the indices by powers of two"
    changes: dict[str, Any] = {}
    if found.certificate is not None:
        changes["certificate"] = certificate_in_units(found.certificate, units)
    elif found.decomposition is not None:
        changes = atoms_in_units(found.decomposition, found.exact_decomposition, tensor, units)
        message += f", which rebuilds the tensor as given to {changes['residual']:.1e}"
        if found.verdict == Verdict.COMPLETELY_POSITIVE and changes["residual"] > REBUILT:
            changes["verdict"] = Verdict.UNDECIDED
    return dataclasses.replace(found, message=message, **changes)


def _settled(search: Search) -> bool:
    """Whether nothing more is to be learnt of a tensor that was rebuilt."""
    if search.tensor.noise:
        return True
    if search.exact is None:
        search.exact = exact_atoms(search)
    return search.exact is not None or search.residual <= _SETTLED


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
    found = plain_atoms(search)
    return found is not None and _offer_exact(search, found)


def _by_comparison(search: Search) -> bool:
    found = comparison_atoms(search.core)
    return found is not None and _offer_exact(search, found)


def _offer_exact(search: Search, weighted: ExactAtoms) -> bool:
    d, mass = search.tensor.order, search.core.mass
    rows = [[float(value) for value in point] for _, point in weighted]
    sizes = [float(weight / mass) ** (1.0 / d) for weight, _ in weighted]
    atoms = np.array(rows).reshape(len(rows), search.core.dimension)
    return search.offer(atoms * np.array(sizes)[:, None])


def _by_quadrature(search: Search) -> bool:
    core = search.core
    atoms = hankel_atoms([value / core.mass for value in core.values], core.dimension, core.order)
    if atoms is None:
        return False
    polished, _ = polish_atoms(core.scaled, core.dimension, core.order, atoms)
    return search.offer(atoms) or search.offer(polished)


def _without_relaxation(search: Search, n_starts: int) -> bool:
    core = search.core
    zeros = search.supports is not None and len(search.supports) > 1
    atoms, residual = multi_start_decomposition(
        core.scaled,
        core.dimension,
        core.order,
        supports=search.supports if zeros else None,
        n_atoms=None if zeros else _number_of_atoms(core),
        rng=search.rng,
        n_starts=n_starts,
    )
    search.evidence.append(
        f"search from {n_starts} starts without a relaxation: relative residual {residual:.1e}"
    )
    return search.offer(atoms)


def _number_of_atoms(core: ExactTensor) -> int | None:
    """How many atoms to search with; None leaves it to the search.

    A completely positive matrix of rank r >= 2 needs at most r (r + 1) / 2 - 1 of them (Barioli and
    Berman, Linear Algebra Appl. 363, 2003); a few more make the search easier.
    """
    most = max(_MOST_UNKNOWNS // core.dimension, 1)
    if core.order == 2:
        matrix = dense_values(core.scaled, core.dimension, 2)
        rank = int(np.linalg.matrix_rank(matrix, tol=_RANK, hermitian=True))
        enough = rank * (rank + 1) // 2 + rank
        # where that many take minutes: most matrices get by with twice their rank
        return enough if enough <= most else min(2 * rank + 4, most)
    return most if len(core.values) > most else None


_STEPS: tuple[tuple[Callable[[Search], bool], str], ...] = (
    (_plain, "the atoms are plain from the entries"),
    (_by_quadrature, "a strong Hankel tensor: atoms from a Gauss rule"),
    (lambda search: _without_relaxation(search, 2), "atoms were found without a relaxation"),
    (_by_comparison, "the comparison matrix is positive semidefinite"),
)


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
    if not search.tensor.noise:
        _settled(search)
        how += f"; {_exactness(search)}"
    return Detection(
        Verdict.COMPLETELY_POSITIVE,
        search.decomposition,
        search.residual,
        None,
        search.order,
        search.shift,
        _message(search.tensor, how),
        tuple(search.evidence),
        search.exact,
    )


def _exactness(search: Search) -> str:
    """Say what the verdict proves of entries that are exact."""
    if search.exact is not None:
        return f"{len(search.exact)} rational atoms rebuild the tensor exactly"
    criterion = known_criterion(search.tensor)
    if criterion:
        return f"exactly so: {criterion}"
    return (
        "no rational atoms were found that rebuild the tensor exactly: proven is that a completely "
        "positive tensor is as near as this residual"
    )


def _undecided(search: Search) -> Detection:
    tensor = search.tensor
    how = "no proof either way: " + "; ".join(search.evidence)
    criterion = known_criterion(tensor)
    if criterion:
        how += f"; {criterion}, but no atoms were found that rebuild it"
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
