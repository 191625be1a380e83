"""Several starts of one least-squares problem, of which only the best are run to their ends."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.solvers.polyadic_least_squares import LeastSquaresIteration

__all__ = ["Competition"]

Callback = Callable[[int, float, Sequence[NDArray[np.float64]]], Any]

_FIRST_STEPS, _NEXT_STEPS = 12, 25  # of all candidates, of the better ones


class Competition:
    """Successive halving of starts.

    Parameters
    ----------
    max_iter : int
        Largest number of steps of one start.
    tol : float
        As in `LeastSquaresIteration.run`.

    Attributes
    ----------
    is_stopped : bool
        Whether the callback ended it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tensor = np.einsum("i,j,k->ijk", *rng.normal(size=(3, 4)))
    >>> starts = ([rng.normal(size=(4, 1)) for _ in range(3)] for _ in itertools.count())
    >>> race = Competition(100, 1e-8)
    >>> best, fits = race.best((LeastSquaresIteration(tensor, s) for s in starts), 4, 1)
    >>> race.status_of(best), round(best.fit, 9), len(fits)
    ('converged', 1.0, 1)
    """

    def __init__(self, max_iter: int, tol: float) -> None:
        self.max_iter, self.tol = max_iter, tol
        self.is_stopped = False
        self._finished: set[LeastSquaresIteration] = set()

    def best(
        self,
        iterations: Iterator[LeastSquaresIteration],
        n_candidates: int,
        n_finalists: int,
        callback: Callback | None = None,
        *,
        first_may_win: bool = True,
    ) -> tuple[LeastSquaresIteration, list[float]]:
        """Run all candidates for a few steps, the better ones for more, finalists to their ends.

        Parameters
        ----------
        iterations : iterator of LeastSquaresIteration
            At least `n_candidates`; made as they are needed.
        n_candidates, n_finalists : int
            How many start, how many are run to their ends.
        callback : callable, optional
            As in `LeastSquaresIteration.run`; it ends everything.
        first_may_win : bool, default True
            Whether a first start that converges within the first steps is not put in competition.

        Returns
        -------
        best : LeastSquaresIteration
            Of smallest residual.
        fits : list of float
            Of the finalists, the best first.
        """
        candidates: list[LeastSquaresIteration] = []
        for iteration in itertools.islice(iterations, n_candidates):
            candidates.append(iteration)
            self._advance(iteration, _FIRST_STEPS, callback)
            is_first = first_may_win and len(candidates) == 1
            if self.is_stopped or (is_first and iteration in self._finished):
                break
        for keep, steps in ((2 * n_finalists, _NEXT_STEPS), (n_finalists, self.max_iter)):
            candidates = sorted(candidates, key=lambda c: c.value)[:keep]
            for iteration in candidates:
                self._advance(iteration, steps, callback)
        candidates.sort(key=lambda c: c.value)
        return candidates[0], [iteration.fit for iteration in candidates]

    def status_of(self, iteration: LeastSquaresIteration) -> str:
        """Tell how a start ended.

        Parameters
        ----------
        iteration : LeastSquaresIteration
            One of those that were run.

        Returns
        -------
        str
            "converged", "max_iter" or "stopped".
        """
        if self.is_stopped:
            return "stopped"
        return "converged" if iteration in self._finished else "max_iter"

    def _advance(
        self, iteration: LeastSquaresIteration, steps: int, callback: Callback | None
    ) -> None:
        """Run a start further, unless everything has ended or it has."""
        if self.is_stopped or iteration in self._finished:
            return
        steps = min(steps, self.max_iter - len(iteration.history))
        status = iteration.run(steps, self.tol, callback)
        self.is_stopped = status == "stopped"
        if status == "converged":
            self._finished.add(iteration)
