"""Candidate decompositions of a symmetric tensor, and the verdict on the best of them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.solvers.symmetric_least_squares import (
    EntryFit,
    Terms,
    coordinate_sweeps,
    levenberg_marquardt,
    terms_from_points,
)

__all__ = ["Outcome", "Pool", "Tolerances", "verdict"]

Array = NDArray[Any]

# weights of unit points relative to the tensor's norm: above it terms cancel, as they do when
# they run away towards a tensor of smaller border rank
_LARGEST_WEIGHT = 1e4
_COMFORTABLE_WEIGHT = 1e2
_SCREENING_STEPS, _FINAL_STEPS = 80, 400
_RIDGES = (1e-3, 1e-5)
_REAL_TRIALS = 6  # real refinements of complex candidates


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Relative sizes that count as zero.

    Attributes
    ----------
    residual : float
        A fit below it is exact.
    rank : float
        Singular values below it, relative to the largest, are dropped.
    """

    residual: float = 1e-10
    rank: float = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Terms with a verdict.

    Attributes
    ----------
    terms : Terms
        Unit points and weights.
    status : str
        "exact", "approximate", "complex", "not converged" or "failed".
    message : str
        What happened and what to try next.
    """

    terms: Terms
    status: str
    message: str


class Pool:
    """The candidates found so far, refined on entry when asked for."""

    def __init__(self, fit: EntryFit, tolerance: float, refine: bool) -> None:
        self.fit, self.tolerance, self.refine = fit, tolerance, refine
        self.terms: list[Terms] = []
        self.real_trials = 0

    def add(self, points: Array | None) -> None:
        """Take points in; complex ones also start a real refinement of their real span."""
        if points is None or not np.all(np.isfinite(points)):
            return
        terms = terms_from_points(self.fit, points)
        if self.refine:
            terms = levenberg_marquardt(self.fit, terms, max_iter=_SCREENING_STEPS)
        self.terms.append(terms)
        if self.refine and not terms.is_real and self.real_trials < _REAL_TRIALS:
            self.real_trials += 1
            real = terms_from_points(self.fit, _real_span(terms.points))
            self.terms.append(levenberg_marquardt(self.fit, real, max_iter=_SCREENING_STEPS))

    def add_random(self, rank: int, rng: np.random.Generator, *, square_free: bool = False) -> None:
        """Refine random points, under a ridge that fades: without it most starts run away."""
        points = rng.standard_normal((rank, self.fit.dimension))
        if square_free and len(self.terms) % 4 < 3:
            points = coordinate_sweeps(self.fit, points, ridge=10.0 ** -rng.integers(1, 4))
        terms = terms_from_points(self.fit, points)
        if not square_free and len(self.terms) % 2:
            # equal positive weights: for odd order the signs are free anyway
            terms = replace(terms, weights=np.full(rank, self.fit.norm / rank))
        for ridge in _RIDGES:
            terms = levenberg_marquardt(
                self.fit, terms, max_iter=_SCREENING_STEPS // 2, ridge=ridge
            )
        self.terms.append(levenberg_marquardt(self.fit, terms, max_iter=_SCREENING_STEPS))

    def is_exact(self, terms: Terms) -> bool:
        """Whether terms fit to the tolerance without cancelling each other."""
        return terms.residual <= self.tolerance and self.is_regular(terms)

    def is_regular(self, terms: Terms) -> bool:
        """Whether the weights are of the tensor's own size."""
        return _size(terms) <= _LARGEST_WEIGHT * self.fit.norm

    def settled(self, *, real: bool) -> bool:
        """Whether an exact candidate of modest weights is there."""
        limit = _COMFORTABLE_WEIGHT * self.fit.norm
        return any(
            self.is_exact(t) and (t.is_real or not real) and _size(t) <= limit for t in self.terms
        )

    def best(self) -> Terms | None:
        """Exact real terms, else exact complex ones, else the best fit, real when comparable."""
        exact = [t for t in self.terms if self.is_exact(t)]
        if exact:
            return min(exact, key=lambda t: (not t.is_real, _size(t)))
        regular = [t for t in self.terms if self.is_regular(t)] or self.terms
        if not regular:
            return None
        return min(regular, key=lambda t: t.residual * (1 if t.is_real else 10))


def verdict(pool: Pool, rank: int, refine: bool) -> Outcome:
    """Judge the best candidate of a pool.

    Parameters
    ----------
    pool : Pool
        All candidates.
    rank : int
        Number of terms that was searched for.
    refine : bool
        Whether the candidates were refined, so that they should have converged.

    Returns
    -------
    Outcome
        The best candidate with its status.

    Examples
    --------
    >>> import numpy as np
    >>> fit = EntryFit(np.array([[0, 0, 0]]), np.array([8.0]), np.ones(1), 1)
    >>> pool = Pool(fit, 1e-10, True)
    >>> pool.add(np.array([[1.0]]))
    >>> verdict(pool, 1, True).status
    'exact'
    """
    terms = pool.best()
    if terms is None:
        n = pool.fit.dimension
        return Outcome(
            Terms(np.eye(1, n).repeat(rank, 0), np.zeros(rank), 1.0),
            "failed",
            f"no start for rank {rank} gave finite terms; try another rank",
        )
    if refine and not terms.converged:
        terms = levenberg_marquardt(pool.fit, terms, max_iter=_FINAL_STEPS)
    rank = len(terms.weights)
    size = _size(terms) / pool.fit.norm
    if pool.is_exact(terms):
        if terms.is_real:
            return Outcome(terms, "exact", f"{rank} real term{'s' * (rank > 1)}")
        return Outcome(
            terms,
            "complex",
            f"{rank} complex terms are exact; no exact real decomposition of this rank was found; "
            "a higher rank may allow real points",
        )
    kind = "" if terms.is_real else "complex "
    text = f"{rank} {kind}terms leave a relative residual of {terms.residual:.1e}"
    if size > _COMFORTABLE_WEIGHT:
        return Outcome(
            terms,
            "not converged",
            f"{text} with weights {size:.0e} times the norm of the tensor: the terms cancel each "
            "other, as for a limit of tensors of smaller rank; try a higher rank",
        )
    if refine and not terms.converged:
        return Outcome(terms, "not converged", f"{text}; the refinement reached its step limit")
    return Outcome(terms, "approximate", text)


def _size(terms: Terms) -> float:
    return float(np.abs(terms.weights).max(initial=0.0))


def _real_span(points: Array) -> Array:
    """Real vectors a + b and a - b for each conjugate pair a +- ib, phases removed first."""
    squares = np.sum(points**2, axis=1)
    turned = points * np.exp(-0.5j * np.angle(squares))[:, None]
    return np.asarray(turned.real + turned.imag)
