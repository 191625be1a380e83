"""Decompose symmetric tensors, complete or not, into sums of symmetric powers of vectors."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoralg.core.decompositions import SymmetricDecomposition
from tensoralg.core.errors import ConvergenceWarning, ProblemTooLargeError, RankBoundError
from tensoralg.core.incomplete_tensor import IncompleteSymmetricTensor
from tensoralg.core.indices import number_of_multi_indices, rank_multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor
from tensoralg.core.validation import nonnegative_integer
from tensoralg.solvers.coordinate_splits import largest_rank
from tensoralg.solvers.symmetric_candidates import Outcome, Tolerances
from tensoralg.solvers.symmetric_incomplete import detect_rank, search_incomplete
from tensoralg.solvers.symmetric_least_squares import EntryFit
from tensoralg.solvers.symmetric_search import generic_rank, search_complete

__all__ = ["SymmetricResult", "decompose"]

Array = npt.NDArray[Any]

# float32 entries carry relative errors of 6e-8 each
_TOLERANCES = {"float64": Tolerances(1e-10, 1e-9), "float32": Tolerances(1e-5, 3e-6)}
_MOST_ENTRIES = 2**28  # of an incomplete tensor, the unknown ones included: 2 GiB


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricResult:
    """A decomposition and how far it can be trusted.

    Attributes
    ----------
    decomposition : SymmetricDecomposition
        Unit points and weights, heaviest first. Real terms of odd order have positive weights;
        of even order the weights are signed. Complex terms have positive weights.
    residual : float
        Relative distance to the given entries in the Frobenius norm.
    status : str
        "exact": real terms reproduce the entries (1e-10, for float32 1e-5). "complex": complex
        terms do, and no real ones of this rank were found. "approximate": a local optimum
        with the residual stated. "not converged": the iteration stopped early or the terms cancel
        each other, as for limits of tensors of smaller rank. "failed": no usable start.
    message : str
        What was done, what was found and what to try next.
    """

    decomposition: SymmetricDecomposition
    residual: float
    status: str
    message: str


def decompose(
    T: SymmetricTensor | IncompleteSymmetricTensor | npt.ArrayLike,
    rank: int | None = None,
    *,
    rng: int | np.random.Generator | None = None,
    refine: bool = True,
) -> SymmetricResult:
    """Write a symmetric tensor as a sum of r weighted powers ``w_s u_s^(x)m`` of vectors.

    Complete tensors: the flattenings give the rank and, by the eigenvalues of multiplication
    matrices, the points; beyond their reach the generating polynomials with free parameters are
    made to commute; binary forms use Sylvester's algorithm for every rank. Incomplete tensors with
    all entries at pairwise distinct indices: the homogeneous generating polynomials up to
    ``max_{p,k} min(C(k, p), C(n-k-2, m-p-1))`` terms, least squares from random starts beyond.
    Levenberg-Marquardt on all known entries refines the result.

    Parameters
    ----------
    T : SymmetricTensor, IncompleteSymmetricTensor or array_like of shape (n,) * m
        Real, of order m >= 3. Integers are promoted to float64.
    rank : int, optional
        Number r of terms. None detects it: from the numerical rank of the flattenings, by a
        tolerance or the largest gap, and upwards for small complete tensors until the fit is
        exact. Fewer terms are returned when as many as the rank of the flattening are exact.
    rng : int, Generator or None
        Source of all random choices.
    refine : bool, default True
        Whether the algebraic result is refined; random starts always are.

    Returns
    -------
    SymmetricResult
        Decomposition, residual, status and message. float32 entries give float32 (or complex64)
        terms, computed in float64.

    Raises
    ------
    RankBoundError
        More terms than the entries can determine: for a complete tensor more than twice the
        generic rank, which no tensor needs; for an incomplete one more unknowns than entries, or
        no rank given and none revealed.
    NotSymmetricError
        A dense array that is not symmetric.
    ProblemTooLargeError
        An incomplete tensor with more than 2**28 entries, known or not.
    ValueError
        An order below 3, complex entries, no known entry, NaN or infinite values, a negative rank.

    Warns
    -----
    ConvergenceWarning
        The status is "not converged" or "failed".

    References
    ----------
    .. [1] J. Nie, "Generating polynomials and symmetric tensor decompositions", Foundations of
       Computational Mathematics 17 (2017).
    .. [2] J. Nie, "Low rank symmetric tensor approximations", SIAM Journal on Matrix Analysis and
       Applications 38 (2017).
    .. [3] J. Brachat, P. Comon, B. Mourrain, E. Tsigaridas, "Symmetric tensor decomposition",
       Linear Algebra and its Applications 433 (2010).
    .. [4] B. Guo, J. Nie, Z. Yang, arXiv:2102.04500 and arXiv:2401.01337 (incomplete tensors).

    Examples
    --------
    The monomial x y z is a sum of four cubes, although its flattening has rank 3:

    >>> xyz = SymmetricTensor.from_function(lambda i, j, k: float({i, j, k} == {0, 1, 2}), 3, 3)
    >>> result = decompose(xyz, rng=0)
    >>> result.status, result.decomposition.rank, result.residual < 1e-10
    ('exact', 4, True)
    """
    tensor = _tensor(T)
    count = None if rank is None else nonnegative_integer("rank", rank)
    generator = np.random.default_rng(rng)
    values = tensor.entries if isinstance(tensor, SymmetricTensor) else tensor.values
    if not len(values):
        raise ValueError("T has no known entry")
    scale = float(np.abs(values).max())
    if scale == 0.0 or count == 0:
        return _no_terms(tensor, scale)
    limits = _TOLERANCES["float32" if values.dtype == np.float32 else "float64"]
    scaled = values.astype(np.float64) / scale
    if isinstance(tensor, IncompleteSymmetricTensor):
        outcome = _incomplete(tensor, scaled, count, generator, refine, limits)
    else:
        outcome = _complete(tensor, scaled, count, generator, refine, limits)
    return _result(tensor, outcome, scale, limits)


def _tensor(T: Any) -> SymmetricTensor | IncompleteSymmetricTensor:
    tensor: SymmetricTensor | IncompleteSymmetricTensor = T
    if not isinstance(T, SymmetricTensor | IncompleteSymmetricTensor):
        single = getattr(T, "dtype", None) in (np.float32, np.float16)
        tensor = SymmetricTensor.from_dense(T, rtol=1e-6 if single else 1e-10)
    if np.issubdtype(tensor.dtype, np.complexfloating):
        raise ValueError(f"T must be real; got dtype {tensor.dtype}")
    if tensor.order < 3:
        raise ValueError(
            f"T must have order 3 or more; got order {tensor.order} "
            "(matrices have infinitely many decompositions: use numpy.linalg.eigh)"
        )
    return tensor


def _complete(
    tensor: SymmetricTensor,
    scaled: Array,
    rank: int | None,
    rng: np.random.Generator,
    refine: bool,
    limits: Tolerances,
) -> Outcome:
    n, m = tensor.dimension, tensor.order
    generic = generic_rank(n, m)
    if rank is not None and rank > max(2 * generic, m):
        raise RankBoundError(
            f"rank={rank} exceeds {max(2 * generic, m)}: no symmetric tensor of dimension n={n} "
            f"and order m={m} needs more than twice the generic rank {generic}"
        )
    return search_complete(scaled, m, n, rank, rng=rng, refine=refine, tolerances=limits)


def _incomplete(
    tensor: IncompleteSymmetricTensor,
    scaled: Array,
    rank: int | None,
    rng: np.random.Generator,
    refine: bool,
    limits: Tolerances,
) -> Outcome:
    n, m = tensor.dimension, tensor.order
    total = number_of_multi_indices(n, m)
    if total > _MOST_ENTRIES:
        raise ProblemTooLargeError(
            f"T has dimension n={n} and order m={m}: {total} entries, known or not; "
            f"at most {_MOST_ENTRIES} are accepted"
        )
    position = rank_multi_indices(tensor.indices, n)
    entries, known = np.zeros(total), np.zeros(total, dtype=bool)
    entries[position], known[position] = scaled, True
    if known.all():
        complete = SymmetricTensor(entries, m, n)
        return _complete(complete, entries, rank, rng, refine, limits)
    counting = len(scaled) // n
    bounds = (
        f"bounds: {largest_rank(n, m, 'homogeneous')} for the homogeneous generating polynomials, "
        f"{counting} by counting {len(scaled)} known entries (n={n}, m={m})"
    )
    if rank is not None and rank > counting:
        raise RankBoundError(f"rank={rank} terms have more unknowns than entries; {bounds}")
    fit = EntryFit(tensor.indices, scaled, np.sqrt(tensor.multiplicities), n)

    def search(count: int) -> Outcome:
        return search_incomplete(
            fit, entries, known, count, rng=rng, refine=refine, tolerances=limits
        )

    lower, revealed = detect_rank(entries, known, m, n, rng=rng, tol=limits.rank)
    if rank is None:
        return _detected(search, lower, revealed, counting, bounds)
    if revealed and lower < rank:
        # superfluous terms would fit as well, with arbitrary points
        fewer = search(lower)
        if fewer.status == "exact":
            note = f"{lower} terms are exact; {rank} were asked for. "
            return Outcome(fewer.terms, fewer.status, note + fewer.message)
    return search(rank)


def _detected(
    search: Callable[[int], Outcome], lower: int, revealed: bool, counting: int, bounds: str
) -> Outcome:
    """Search at the revealed rank, or upwards from a lower bound until the fit is exact."""
    if lower > counting:
        raise RankBoundError(
            f"rank=None: the known entries show rank {lower} or more, which has more unknowns than "
            f"entries; {bounds}"
        )
    outcome = search(lower)
    if revealed or outcome.status in ("exact", "complex"):
        return outcome
    last = min(lower + 3, counting - 1)  # as many unknowns as entries would fit anything
    for rank in range(lower + 1, last + 1):
        outcome = search(rank)
        if outcome.status in ("exact", "complex"):
            note = f"no exact decomposition with fewer than {rank} terms was found. "
            return Outcome(outcome.terms, outcome.status, note + outcome.message)
    raise RankBoundError(
        "rank=None: no known block of a flattening reveals the rank, and no rank from "
        f"{lower} to {max(last, lower)} fits exactly; give rank; {bounds}"
    )


def _no_terms(tensor: SymmetricTensor | IncompleteSymmetricTensor, scale: float) -> SymmetricResult:
    dtype = tensor.dtype
    empty = SymmetricDecomposition(
        np.zeros(0, dtype), np.zeros((0, tensor.dimension), dtype), order=tensor.order
    )
    if scale == 0.0:
        return SymmetricResult(empty, 0.0, "exact", "the tensor is zero: no terms are needed")
    return SymmetricResult(empty, 1.0, "approximate", "rank 0 was asked for: no terms")


def _result(
    tensor: SymmetricTensor | IncompleteSymmetricTensor,
    outcome: Outcome,
    scale: float,
    limits: Tolerances,
) -> SymmetricResult:
    points, weights = _normalised(outcome.terms.points, outcome.terms.weights, tensor.order)
    by_size = np.argsort(-np.abs(weights), kind="stable")
    dtype = np.result_type(tensor.dtype, np.complex64) if np.iscomplexobj(points) else tensor.dtype
    decomposition = SymmetricDecomposition(
        (weights * scale)[by_size].astype(tensor.dtype),
        points[by_size].astype(dtype),
        order=tensor.order,
    )
    # the verdict rests on what is handed out, against what was given
    residual = float(decomposition.residual(tensor))
    status, message = outcome.status, outcome.message
    if status in ("exact", "complex") and not residual <= 10 * limits.residual:
        status = "approximate"
        message += f"; the rounded terms leave a relative residual of {residual:.1e}"
    if status in ("not converged", "failed"):
        warnings.warn(f"decompose: {message}", ConvergenceWarning, stacklevel=3)
    return SymmetricResult(decomposition, residual, status, message)


def _normalised(points: Array, weights: Array, order: int) -> tuple[Array, Array]:
    """Move signs and phases between unit points and real weights."""
    if not np.iscomplexobj(points):
        signs = np.sign(weights)
        if order % 2 == 0:
            largest = np.abs(points).argmax(axis=1)
            signs = np.sign(points[np.arange(len(points)), largest])
        signs = np.where(signs == 0, 1.0, signs)
        return points * signs[:, None], weights * signs**order
    phases = np.exp(0.5j * np.angle(np.sum(points**2, axis=1)))
    turned, moved = points / phases[:, None], weights * phases**order
    real = np.abs(turned.imag).max(axis=1) < 1e-8
    turned[real] = turned[real].real
    # a real point keeps a real weight, of either sign for even order
    signs = np.where(real, np.exp(1j * np.pi * (order % 2) * (moved.real < 0)), 1.0)
    phases = np.where(real, signs, np.exp(1j * np.angle(moved) / order))
    turned, moved = turned * phases[:, None], moved * phases.conj() ** order
    return turned, moved.real
