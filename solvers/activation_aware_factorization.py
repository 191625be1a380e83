"""Products of two thin matrices that stand for a weight, by the error of its outputs.

``min |X (W - L R)^T|_F`` over L with r columns is solved by the truncated singular value
decomposition of ``W G^(1/2)`` with ``G = X^T X``: its leading left vectors U give ``L = U`` and
``R = U^T W``, without an inverse of G.

References
----------
.. [1] C. Eckart, G. Young, "The approximation of one matrix by another of lower rank",
   Psychometrika 1 (1936).
"""

from dataclasses import dataclass
from typing import Any

from tensoralg.core.tensor_train_rounding import check_tolerance
from tensoralg.core.validation import positive_integer
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.solvers.gram_problem import GramProblem, gram_problem

__all__ = ["WeightFactors", "activation_aware_factorization"]


@dataclass(frozen=True, slots=True, eq=False)
class WeightFactors:
    """Two thin matrices whose product stands for a weight.

    Parameters
    ----------
    left : array, shape (out, rank)
        Orthonormal columns.
    right : array, shape (rank, in)
        ``left^T weight``.
    errors : array of float64, shape (min(out, in) + 1,)
        Relative error ``|X (W - L R)^T|_F / |X W^T|_F`` at every rank from 0 on.
    """

    left: Any
    right: Any
    errors: Any

    @property
    def rank(self) -> int:
        """Number of columns of `left`."""
        return int(self.left.shape[1])

    def dense(self) -> Any:
        """Return the product, shape (out, in)."""
        return self.left @ self.right


def activation_aware_factorization(
    weight: Any, gram: Any, *, rank: int | None = None, rtol: float | None = None
) -> WeightFactors:
    """Factorise a weight matrix so that its outputs change least.

    Parameters
    ----------
    weight : array, shape (out, in)
        Finite real numbers.
    gram : array, shape (in, in)
        ``X^T X`` of the inputs X; the unit matrix gives the plain singular value decomposition.
    rank : int, optional
        Largest rank, at least 1; all of them by default.
    rtol : float, optional
        Largest relative error of the outputs, at least 0; the smallest rank that has it is taken.

    Returns
    -------
    WeightFactors
        Of rank 1 at least, in the weight's dtype and on its device.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    TypeError
        A rank that is no integer, or arrays of different libraries.
    ValueError
        NaN or infinite entries, a Gram matrix that is not symmetric, a rank below 1, or a
        tolerance below 0.

    Notes
    -----
    Best possible at every rank [1]_. Errors below about 1e-8 are not resolved.

    Examples
    --------
    >>> import numpy as np
    >>> weight, gram = np.diag([3.0, 2.0, 1.0]), np.diag([0.0, 1.0, 1.0])
    >>> found = activation_aware_factorization(weight, gram, rank=1)
    >>> float(abs(found.dense()[1, 1])), [round(float(e), 3) for e in found.errors]
    (2.0, [1.0, 0.447, 0.0, 0.0])
    """
    if rank is not None:
        rank = positive_integer("rank", rank)
    check_tolerance(rtol)
    problem = gram_problem(weight, gram)
    xp = namespace_of(problem.weight)
    left, squares = _left_vectors(problem)
    tails = xp.flip(xp.cumulative_sum(xp.flip(squares), include_initial=True))
    whole = float(tails[0])
    errors = xp.sqrt(tails / whole) if whole > 0.0 else xp.zeros_like(tails)
    most = min(problem.weight.shape)
    kept = most if rank is None else min(rank, most)
    if rtol is not None:
        enough = int(xp.sum(xp.astype(errors > rtol, xp.int64)))
        kept = min(kept, max(enough, min(1, most)))
    left = left[:, :kept]
    right = (left.T @ problem.weight) * problem.unit
    return WeightFactors(xp.astype(left, problem.dtype), xp.astype(right, problem.dtype), errors)


def _left_vectors(problem: GramProblem) -> tuple[Any, Any]:
    """Return left singular vectors of ``W G^(1/2)`` and squared singular values, falling."""
    xp = namespace_of(problem.weight)
    rows, columns = problem.weight.shape
    if rows <= columns:
        product = problem.outputs @ problem.weight.T
        values, vectors = xp.linalg.eigh((product + product.T) / 2.0)
        values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
        return vectors, xp.maximum(values, xp.zeros_like(values))
    values, vectors = xp.linalg.eigh(problem.gram)
    root = vectors * xp.sqrt(xp.maximum(values, xp.zeros_like(values)))[None, :]
    left, sizes, _ = xp.linalg.svd(problem.weight @ root, full_matrices=False)
    return left, sizes * sizes
