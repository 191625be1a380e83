"""One start of a decomposition, and many of them, here or on a Dask cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensoralg.core.kruskal_tensor import KruskalTensor
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.polyadic.inputs import PreparedTensor
from tensoralg.polyadic.planning import Plan
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.compressed_polyadic import compressed_polyadic
from tensoralg.solvers.polyadic_residual import relative_residual
from tensoralg.solvers.polyadic_solution import PolyadicSolution
from tensoralg.solvers.polyadic_starts import polyadic_start

__all__ = ["Task", "run_tasks"]

_FINISH_SWEEPS = 50  # at most; they end where the fit no longer grows
_LARGE_MATRIX = 2**21  # entries
_BLOCK = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Everything one start needs but its seed.

    Attributes
    ----------
    tensor : PreparedTensor
        What is decomposed.
    rank : int
        Number of terms.
    plan : Plan
        The method.
    policy : PrecisionPolicy or None
        Precision of the operands of large products.
    init : KruskalTensor, str or None
        Where iterative methods start.
    max_iter : int
        Most iterations.
    tol : float
        Smallest improvement of the fit per iteration.
    nonnegative : bool
        Whether factors stay nonnegative.
    exact_finish : bool
        Whether sweeps in full precision follow.
    schedule : StochasticSchedule or None
        Samples and steps of stochastic gradients.
    """

    tensor: PreparedTensor
    rank: int
    plan: Plan
    policy: Any
    init: Any
    max_iter: int
    tol: float
    nonnegative: bool
    exact_finish: bool
    schedule: Any = None


def run_tasks(
    task: Task,
    seeds: Sequence[np.random.Generator],
    *,
    callback: Callable[..., object] | None = None,
    client: Any = None,
) -> list[PolyadicSolution]:
    """Run one start per seed.

    Parameters
    ----------
    task : Task
        What to do.
    seeds : sequence of Generator
        One per start; the result depends on nothing else. Starts of the compressed method share
        one sketch here, and make their own on a cluster.
    callback : callable, optional
        Its truthy return ends this start and leaves out the following ones.
    client : dask.distributed.Client, optional
        Where to run them.

    Returns
    -------
    list of PolyadicSolution
        In the order of the seeds, as far as they ran.

    Raises
    ------
    ValueError
        A callback together with a client: it could not stop what runs elsewhere.
    """
    if not _is_random(task):
        seeds = seeds[:1]
    if client is not None:
        if callback is not None:
            raise ValueError("callback is not supported with client: starts run elsewhere")
        # the tensor travels once, not with every start
        shared = client.scatter(task, broadcast=True, hash=False)
        futures = [client.submit(run_task, shared, seed, pure=False) for seed in seeds]
        gathered: list[PolyadicSolution] = client.gather(futures)
        return gathered
    if task.plan.method == "compressed" and task.tensor.order > 1:
        return [_compressed(task, seeds[0], n_starts=len(seeds), callback=callback)]
    solutions = []
    for seed in seeds:
        solutions.append(run_task(task, seed, callback=callback))
        if solutions[-1].status == "stopped":
            break
    return solutions


def _is_random(task: Task) -> bool:
    """Whether two starts can differ."""
    if task.tensor.order == 1 or task.plan.method == "svd":
        return False
    return task.plan.method == "sgd" or not isinstance(task.init, KruskalTensor)


def run_task(
    task: Task, rng: np.random.Generator, *, callback: Callable[..., object] | None = None
) -> PolyadicSolution:
    """Run one start.

    Parameters
    ----------
    task : Task
        What to do.
    rng : Generator
        Source of its random choices.
    callback : callable, optional
        Called after every iteration; a truthy return ends it.

    Returns
    -------
    PolyadicSolution
        Factors at the scale of the prepared tensor.
    """
    method = task.plan.method
    if task.tensor.order == 1:
        return _only_vector(task)
    if method == "svd":
        return _singular_values(task)
    if method == "compressed":
        return _compressed(task, rng, n_starts=1, callback=callback)
    start = polyadic_start(
        task.tensor.data if task.tensor.mask is None or task.init != "svd" else _known(task),
        task.rank,
        init="random" if task.init is None else task.init,
        rng=rng,
        nonnegative=task.nonnegative,
        exponent=task.tensor.exponent,
    )
    return (_stochastic if method == "sgd" else _alternating)(task, start, rng, callback)


def _compressed(
    task: Task, rng: np.random.Generator, *, n_starts: int, callback: Callable[..., object] | None
) -> PolyadicSolution:
    """All starts share one sketch."""
    return compressed_polyadic(
        task.tensor.data,
        task.rank,
        n_starts=n_starts,
        max_iter=task.max_iter,
        tol=task.tol,
        callback=callback,
        rng=rng,
        policy=task.policy,
        mask=task.tensor.mask,
    )


def _alternating(
    task: Task, start: list[Any], rng: np.random.Generator, callback: Callable[..., object] | None
) -> PolyadicSolution:
    found = alternating_least_squares(
        task.tensor.data,
        start,
        max_iter=task.max_iter,
        tol=task.tol,
        nonnegative=task.nonnegative,
        mask=task.tensor.mask,
        policy=task.policy,
        callback=callback,
    )
    return _finished(task, found)


def _stochastic(
    task: Task, start: list[Any], rng: np.random.Generator, callback: Callable[..., object] | None
) -> PolyadicSolution:
    from tensoralg.solvers.stochastic_gradient import stochastic_polyadic  # rarely asked for

    found = stochastic_polyadic(
        task.tensor.data,
        start,
        max_iter=task.max_iter,
        tol=task.tol,
        policy=task.policy,
        callback=callback,
        rng=rng,
        schedule=task.schedule,
    )
    return _finished(task, found)


def _finished(task: Task, found: PolyadicSolution) -> PolyadicSolution:
    """Remove what a low precision or sampled gradients left by a few exact sweeps."""
    exact = task.policy is None and task.plan.method != "sgd"
    if exact or not task.exact_finish or found.status == "stopped":
        return found
    polished = alternating_least_squares(
        task.tensor.data,
        list(found.factors),
        max_iter=_FINISH_SWEEPS,
        tol=task.tol,
        nonnegative=task.nonnegative,
        mask=task.tensor.mask,
    )
    if polished.fit < found.fit:
        return found
    return replace(
        polished,
        status=found.status,
        n_iter=found.n_iter + polished.n_iter,
        history=np.concatenate([found.history, polished.history]),
        message=f"{found.message}; {polished.n_iter} exact sweeps took the fit from "
        f"{found.fit:.8g} to {polished.fit:.8g}",
    )


def _known(task: Task) -> Any:
    """Copy the tensor with zeros where nothing was observed."""
    data, xp = task.tensor.data, namespace_of(task.tensor.data)
    return xp.where(task.tensor.mask, data, xp.zeros_like(data[..., :1]))


def _only_vector(task: Task) -> PolyadicSolution:
    """Take a tensor with one mode as one term; the others are zero."""
    data = task.tensor.data
    if task.tensor.is_sparse:
        data = data.to_dense()
    elif task.tensor.is_streamed:
        data = np.concatenate([slab for _, _, slab in data.slabs()])
    if task.tensor.mask is not None:
        data = _known(task)
    xp = namespace_of(data)
    column = xp.astype(data, xp.float64)
    if task.nonnegative:
        column = xp.where(column > 0, column, xp.zeros_like(column))
    first = xp.arange(task.rank, device=column.device) == 0
    factor = xp.where(first[None, :], column[:, None], xp.zeros_like(column)[:, None])
    return _direct(task, (factor,), "the vector is the term")


def _singular_values(task: Task) -> PolyadicSolution:
    """Take the leading singular triplets of a matrix: the best approximation there is."""
    data = task.tensor.data
    xp = namespace_of(data)
    found = None
    if xp is np and data.size > _LARGE_MATRIX and 5 * task.rank < min(data.shape):
        found = _leading_triplets(data, task.rank)
    if found is None:
        found = xp.linalg.svd(xp.astype(data, xp.float64), full_matrices=False)
    left, values, right = found
    kept = min(task.rank, int(values.shape[0]))
    columns = [left[:, :kept] * values[:kept], right[:kept, :].T]
    missing = task.rank - kept
    padded = [
        xp.concat([c, xp.zeros((c.shape[0], missing), dtype=c.dtype, device=c.device)], axis=1)
        for c in columns
    ]
    return _direct(task, tuple(padded), "the leading singular values and vectors")


def _leading_triplets(matrix: Any, rank: int) -> tuple[Any, Any, Any] | None:
    """Leading singular triplets, without a float64 copy; None where they do not settle."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, svds

    rows = max(1, _BLOCK // matrix.shape[1])
    cuts = [slice(k, k + rows) for k in range(0, matrix.shape[0], rows)]

    def times(x: Any) -> Any:
        return np.concatenate([matrix[cut].astype(np.float64, copy=False) @ x for cut in cuts])

    def turned_times(y: Any) -> Any:
        total = np.zeros((matrix.shape[1], *y.shape[1:]))
        for cut in cuts:
            total += matrix[cut].astype(np.float64, copy=False).T @ y[cut]
        return total

    operator = LinearOperator(
        matrix.shape, matvec=times, rmatvec=turned_times, matmat=times, rmatmat=turned_times,
        dtype=np.float64,
    )  # fmt: skip
    first = np.random.default_rng(0).standard_normal(min(matrix.shape))
    try:
        left, values, right = svds(operator, k=rank, v0=first)
    except ArpackNoConvergence:
        return None
    return left[:, ::-1], values[::-1], right[::-1, :]


def _direct(task: Task, factors: tuple[Any, ...], message: str) -> PolyadicSolution:
    """Wrap factors that needed no iteration."""
    fit = 1.0 - relative_residual(task.tensor.data, factors, mask=task.tensor.mask)
    return PolyadicSolution(factors, fit, "converged", 0, np.empty(0), message)
