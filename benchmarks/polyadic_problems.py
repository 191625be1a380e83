"""Problems and peers that the polyadic benchmarks share."""

import contextlib
import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.moment_pass import own_peak
from tensoralg import KruskalTensor
from tensoralg.polyadic import decompose
from tensoralg.solvers.polyadic_residual import relative_residual


@dataclass(frozen=True)
class Problem:
    """Gaussian factors, nearly collinear where a cosine is given, and noise."""

    name: str
    shape: tuple[int, ...]
    rank: int
    cosine: float = 0.0
    noise: float = 0.01

    def draw(self, seed: int) -> NDArray[np.float32]:
        """The tensor of a seed; noise is relative to the norm of the signal."""
        rng = np.random.default_rng(seed)
        factors = []
        for n in self.shape:
            common = rng.standard_normal((n, 1))
            own = rng.standard_normal((n, self.rank))
            factors.append(np.sqrt(self.cosine) * common + np.sqrt(1 - self.cosine) * own)
        signal = KruskalTensor(None, factors).to_dense()
        noise = rng.standard_normal(self.shape)
        noise *= self.noise * np.linalg.norm(signal) / np.linalg.norm(noise)
        result: NDArray[np.float32] = (signal + noise).astype(np.float32)
        return result


A = Problem("A", (100, 100, 100), 10)
B = Problem("B", (200, 200, 200), 20)
C = Problem("C", (50, 50, 50, 50), 10)
TINY = Problem("30^3 R4", (30, 30, 30), 4)
A_SWAMP = Problem("A, cosine .95", (100, 100, 100), 10, 0.95)
B_SWAMP = Problem("B, cosine .9", (200, 200, 200), 20, 0.9)


def true_fit(X: Any, factors: Any, weights: Any = None, mask: Any = None) -> float:
    """Fit in float64 from the differences of the observed cells, the same for everybody."""
    wide = [np.asarray(f, dtype=np.float64) for f in factors]
    if weights is not None:
        wide[0] = wide[0] * np.asarray(weights, dtype=np.float64)
    return 1.0 - relative_residual(X, wide, mask=mask)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """A result and the CPU seconds it took; warnings about convergence are counted elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        result = call()
        return result, time.process_time() - start


def fresh_peak() -> float:
    """Peak memory of this process in MB, counted from now on where the system can do that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return own_peak()


def ours(X: Any, rank: int, seed: int, **options: Any) -> tuple[float, float]:
    """True fit and CPU seconds of the default method."""
    result, seconds = timed(lambda: decompose(X, rank, rng=seed, **options))
    tensor = result.tensor
    return true_fit(X, tensor.factors, tensor.weights, options.get("mask")), seconds


def tensorly_trace(
    X: Any,
    rank: int,
    seed: int,
    *,
    init: str,
    dtype: str,
    sweeps: int,
    budget: float,
    target: float,
) -> tuple[float, float]:
    """CPU seconds TensorLy takes to the target, and its best fit; infinity where it stops short.

    The clock stands still while the fit is computed, in float64, after every fifth sweep (every
    sweep at first); the sweeps between two looks are charged.
    """
    from tensorly.decomposition import parafac

    data = X.astype(dtype)
    spent, best, reached = 0.0, -np.inf, np.inf
    count = 0
    mark = time.process_time()

    def look(cp: Any, _error: Any = None) -> bool:
        nonlocal spent, best, reached, count, mark
        spent += time.process_time() - mark
        count += 1
        if count <= 20 or count % 5 == 0:
            weights, factors = cp
            fit = true_fit(X, factors, weights)
            best = max(best, fit)
            if fit >= target and not np.isfinite(reached):
                reached = spent
        mark = time.process_time()
        return bool(np.isfinite(reached)) or spent > budget

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mark = time.process_time()
        svd = "randomized_svd" if init == "randomized_svd" else "truncated_svd"
        parafac(
            data,
            rank,
            n_iter_max=sweeps,
            init="random" if init == "random" else "svd",
            svd=svd,
            tol=0,
            return_errors=True,  # the callback is handed them
            random_state=seed,
            callback=look,
        )
    return reached, best


def tensorly_fit(
    X: Any, rank: int, seed: int, *, init: str, mask: Any, sweeps: int, tol: float, budget: float
) -> tuple[float, float]:
    """True fit and CPU seconds of TensorLy with its own stopping rule, within a budget."""
    from tensorly.decomposition import parafac

    begin = time.process_time()
    (weights, factors), seconds = timed(
        lambda: parafac(
            X,
            rank,
            n_iter_max=sweeps,
            init=init,
            tol=tol,
            mask=mask,
            random_state=seed,
            callback=lambda *_: time.process_time() - begin > budget,
        )
    )
    return true_fit(X, factors, weights, mask), seconds


def pytensorlab_fit(X: Any, rank: int, seed: int, mask: Any = None) -> tuple[float, float] | None:
    """True fit and CPU seconds of pytensorlab's default; None where it is not installed."""
    if importlib.util.find_spec("pytensorlab") is None:
        return None
    import pytensorlab

    np.random.seed(seed)  # noqa: NPY002  (the peer reads the global state)
    known = X if mask is None else pytensorlab.IncompleteTensor(X[mask], np.nonzero(mask), X.shape)
    (model, _), seconds = timed(lambda: pytensorlab.cpd(known, rank, print_steps=False))
    return true_fit(X, [np.asarray(f) for f in model.factors], mask=mask), seconds


__all__ = [
    "A_SWAMP",
    "B_SWAMP",
    "TINY",
    "A",
    "B",
    "C",
    "Problem",
    "fresh_peak",
    "ours",
    "pytensorlab_fit",
    "tensorly_fit",
    "tensorly_trace",
    "timed",
    "true_fit",
]
