"""What every engine of polyadic decomposition returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import namespace_of

__all__ = ["PolyadicSolution", "zero_solution"]


@dataclass(frozen=True, slots=True, eq=False)
class PolyadicSolution:
    """Factors of a polyadic model and how they were reached.

    Parameters
    ----------
    factors : tuple of arrays, shapes (n_1, r) to (n_N, r)
        The model is ``sum_s prod_k factors[k][i_k, s]``; weights are absorbed. float64, in the
        namespace and on the device of the tensor.
    fit : float
        ``1 - ||X - model|| / ||X||`` of exactly these factors, in float64 (over the observed
        cells where there is a mask).
    status : str
        "converged": the fit grows by less than the tolerance per iteration. "max_iter": it still
        grew when the iterations ran out. "stopped": the callback ended it. "degenerate": the
        iterations ran out while terms of opposite sign grew and cancelled.
    n_iter : int
        Iterations that were done.
    history : array of float64, shape (n_iter,)
        The fit after every iteration.
    message : str
        What happened, and what to do about it.
    starts : array of float64, shape (k,)
        Where several starts were run: the fits of all that were run to their ends, the one that
        was kept first. Empty where there was one.

    Examples
    --------
    >>> import numpy as np
    >>> solution = PolyadicSolution(
    ...     factors=(np.ones((2, 1)), np.ones((3, 1))),
    ...     fit=1.0,
    ...     status="converged",
    ...     n_iter=1,
    ...     history=np.ones(1),
    ...     message="",
    ... )
    >>> solution.rank, solution.shape, solution.converged
    (1, (2, 3), True)
    """

    factors: tuple[Any, ...]
    fit: float
    status: str
    n_iter: int
    history: NDArray[np.float64]
    message: str
    starts: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @property
    def rank(self) -> int:
        """Number of terms."""
        return int(self.factors[0].shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is modelled."""
        return tuple(int(factor.shape[0]) for factor in self.factors)

    @property
    def converged(self) -> bool:
        """Whether the tolerance was met."""
        return self.status == "converged"


def zero_solution(factors: Sequence[Any]) -> PolyadicSolution:
    """Fit the zero tensor.

    Parameters
    ----------
    factors : sequence of N arrays, shapes (n_k, r)
        Only their shapes, namespace and device matter.

    Returns
    -------
    PolyadicSolution
        All terms are zero, and the fit is 1.

    Examples
    --------
    >>> zero_solution([np.ones((2, 1)), np.ones((3, 1))]).fit
    1.0
    """
    xp = namespace_of(*factors)
    zeros = tuple(xp.zeros_like(factor, dtype=xp.float64) for factor in factors)
    message = "the tensor is zero: all terms are"
    return PolyadicSolution(zeros, 1.0, "converged", 0, np.zeros(0), message)
