"""What `decompose` returns."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.kruskal_tensor import KruskalTensor

__all__ = ["PolyadicResult"]


@dataclass(frozen=True, slots=True, eq=False)
class PolyadicResult:
    """A polyadic decomposition and how far it can be trusted.

    Attributes
    ----------
    tensor : KruskalTensor
        Unit columns, positive weights, heaviest term first (`KruskalTensor.normalize`).
    fit : float
        ``1 - ||X - model|| / ||X||`` of exactly this tensor, computed from the differences in
        float64, whatever precision the work was done in; over the observed cells where there is
        a mask. 1 for a zero tensor.
    status : str
        "converged": the tolerance was met. "max_iter": the fit still grew when the iterations ran
        out. "stopped": the callback ended it. "degenerate": terms grew and cancelled each other,
        as where no best approximation of this rank exists.
    n_iter : int
        Iterations of the start that was kept.
    history : ndarray of float64, shape (n_iter,)
        The fit after every iteration of the start that was kept. Most entries are estimates in
        the precision of the work; the last is `fit` up to the rounding of the result.
    message : str
        The method that was used and why, what happened, and what to try next.
    method : str
        The method that was used: "als", "compressed", "sgd" or "svd".
    starts : ndarray of float64, shape (k,)
        The fit of every start that was run to its end, the one that was kept included. "compressed"
        takes only that one to the tensor itself: the others have the fits of the core. It runs
        more starts than were asked for where these are cheap.
    """

    tensor: KruskalTensor
    fit: float
    status: str
    n_iter: int
    history: NDArray[np.float64]
    message: str
    method: str = ""
    starts: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
