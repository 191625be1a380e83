"""A weight matrix and the Gram matrix of its inputs, checked and brought to size.

Both are divided by powers of two, which changes no code, so that squares neither overflow nor
vanish.
"""

import math
from dataclasses import dataclass
from typing import Any

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of

__all__ = ["GramProblem", "gram_problem"]

# of the Gram matrix: what sums in single precision leave
_ASYMMETRY = 1e-4
_NEGATIVE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class GramProblem:
    """Rows whose products with data should change little.

    Parameters
    ----------
    weight : array of float64, shape (rows, columns)
        Divided by `unit`.
    gram : array of float64, shape (columns, columns)
        Symmetric and positive semidefinite up to rounding, of a size near 1.
    outputs : array of float64, shape (rows, columns)
        ``weight @ gram``.
    inverse : array of float64, shape (columns,)
        One over the diagonal; 0 for columns without data.
    unit : float
        A power of two.
    dtype : dtype
        Of the weight as it was given.
    """

    weight: Any
    gram: Any
    outputs: Any
    inverse: Any
    unit: float
    dtype: Any

    @property
    def whole(self) -> Any:
        """Squared outputs of every row, shape (rows,)."""
        xp = namespace_of(self.weight)
        total = xp.sum(self.outputs * self.weight, axis=1)
        return xp.maximum(total, xp.zeros_like(total))

    @property
    def exact(self) -> float:
        """Relative error that rounding to the weight's own precision may leave."""
        return 4.0 * float(namespace_of(self.weight).finfo(self.dtype).eps)

    def errors(self, value: Any) -> Any:
        """Return the squared output error of every row.

        Parameters
        ----------
        value : array of float64, shape (rows, columns)
            In the place of `weight`.

        Returns
        -------
        array of float64, shape (rows,)
            Not negative.
        """
        xp = namespace_of(value)
        difference = self.weight - value
        squares = xp.sum((difference @ self.gram) * difference, axis=1)
        return xp.maximum(squares, xp.zeros_like(squares))


def gram_problem(weight: Any, gram: Any) -> GramProblem:
    """Check a weight matrix and a Gram matrix.

    Parameters
    ----------
    weight : array, shape (rows, columns)
        Finite real numbers.
    gram : array, shape (columns, columns)
        ``X^T X``. Its nearest positive semidefinite matrix counts where it has negative
        eigenvalues beyond 1e-6 of its trace.

    Returns
    -------
    GramProblem
        In float64.

    Raises
    ------
    ShapeError
        Shapes that do not belong together.
    TypeError
        Arrays of different libraries.
    ValueError
        NaN or infinite entries, or a Gram matrix that is not symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> gram_problem(np.array([[1.0, 2.0]]), np.diag([4.0, 0.0])).inverse.tolist()
    [1.0, 0.0]
    """
    xp = namespace_of(weight, gram)
    weight = as_float_array(weight, xp, name="weight")
    gram = as_float_array(gram, xp, name="gram")
    if weight.ndim != 2:
        raise ShapeError(f"weight must have shape (out, in); got {tuple(weight.shape)}")
    if gram.shape != (weight.shape[1], weight.shape[1]):
        raise ShapeError(
            f"gram must have shape {(weight.shape[1], weight.shape[1])} for a weight of shape "
            f"{tuple(weight.shape)}; got {tuple(gram.shape)}"
        )
    for name, matrix in (("weight", weight), ("gram", gram)):
        if not bool(xp.all(xp.isfinite(matrix))):
            raise ValueError(f"{name} must be finite; it has NaN or infinite entries")
    dtype = weight.dtype
    weight, unit = _near_one(xp, xp.astype(weight, xp.float64))
    gram, _ = _near_one(xp, xp.astype(gram, xp.float64))
    if gram.shape[0] and float(xp.max(xp.abs(gram - gram.T))) > _ASYMMETRY * 2.0:
        raise ValueError("gram must be symmetric: X^T X of the inputs X")
    gram = _semidefinite(xp, (gram + gram.T) / 2.0)
    diagonal = xp.linalg.diagonal(gram)
    least = float(xp.finfo(xp.float64).eps) * (float(xp.max(diagonal)) if gram.shape[0] else 0.0)
    live = diagonal > least
    inverse = xp.where(live, 1.0 / xp.where(live, diagonal, xp.ones_like(diagonal)), 0.0 * diagonal)
    # what rounding left beside a column without data
    gram = xp.where(live[:, None] & live[None, :], gram, xp.zeros_like(gram))
    return GramProblem(weight, gram, weight @ gram, inverse, unit, dtype)


def _near_one(xp: Any, matrix: Any) -> tuple[Any, float]:
    """Divide by the power of two below the largest entry; return that, too."""
    largest = float(xp.max(xp.abs(matrix))) if math.prod(matrix.shape) else 0.0
    if largest == 0.0:
        return matrix, 1.0
    exponent = min(max(math.frexp(largest)[1] - 1, -1000), 1000)
    return matrix / 2.0**exponent, 2.0**exponent


def _semidefinite(xp: Any, gram: Any) -> Any:
    """Return the matrix, without its negative eigenvalues where they are more than rounding."""
    size = gram.shape[0]
    if size == 0:
        return gram
    identity = xp.eye(size, dtype=gram.dtype, device=device_of(gram))
    trace = float(xp.sum(xp.abs(xp.linalg.diagonal(gram))))
    try:
        factor = xp.linalg.cholesky(gram + _NEGATIVE * max(trace, 1.0) * identity)
        if bool(xp.all(xp.isfinite(factor))):
            return gram
    except Exception as error:  # every library has its own class for it
        if type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
    values, vectors = xp.linalg.eigh(gram)
    values = xp.maximum(values, xp.zeros_like(values))
    return (vectors * values[None, :]) @ vectors.T
