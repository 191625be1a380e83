"""Canonical polyadic decomposition: checks at the border, starts, and what comes back."""

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.core.kruskal_tensor import KruskalTensor
from tensoralg.core.validation import positive_integer
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import PrecisionPolicy, precision_policy
from tensoralg.polyadic.arguments import (
    checked_callback,
    checked_generator,
    checked_tolerance,
)
from tensoralg.polyadic.engines import Task, run_tasks
from tensoralg.polyadic.inputs import PreparedTensor, prepare_tensor
from tensoralg.polyadic.planning import Plan, plan_decomposition
from tensoralg.polyadic.result import PolyadicResult
from tensoralg.solvers.polyadic_residual import relative_residual
from tensoralg.solvers.polyadic_solution import PolyadicSolution
from tensoralg.solvers.polyadic_starts import check_start
from tensoralg.solvers.stochastic_steps import StochasticSchedule

__all__ = ["decompose"]

_LOGGER = logging.getLogger("tensoralg.polyadic")


def decompose(
    X: Any,
    rank: int,
    *,
    method: str = "auto",
    precision: str | PrecisionPolicy | None = None,
    mask: Any = None,
    init: KruskalTensor | str | None = None,
    n_starts: int = 1,
    max_iter: int = 500,
    tol: float = 1e-8,
    callback: Callable[..., object] | None = None,
    rng: int | np.random.Generator | None = None,
    nonnegative: bool = False,
    exact_finish: bool = True,
    schedule: StochasticSchedule | None = None,
    client: Any = None,
) -> PolyadicResult:
    """Write a tensor as a sum of r rank-one terms, in the least-squares sense.

    Parameters
    ----------
    X : array_like of shape (n_1, ..., n_N)
        A dense array of any array library (a CuPy array is decomposed on its device), a list, a
        numpy.memmap or Dask array (read slab by slab, never as a whole), a pydata sparse.COO or
        a scipy sparse matrix (never densified). Integers are promoted to float64.
    rank : int
        Number r of terms, at least 1; it may exceed every dimension.
    method : {"auto", "als", "compressed", "sgd"}, default "auto"
        "als": alternating least squares. "compressed": a small core by random sketches, generalised
        eigenvalues and Levenberg-Marquardt there, exact sweeps on X. "sgd": stochastic gradients of
        sampled fibres. "auto" says in the message what it chose and why.
    precision : str or PrecisionPolicy, optional
        "float64", "float32", "tf32", "bfloat16", "float16", "float8" or "int8": what the operands
        of the large products are rounded to; a policy may also ask for stochastic rounding. None:
        X's own dtype. "compressed" rounds in its sketches only; sparse tensors take none.
    mask : bool array_like of X's shape, optional
        True: observed. What the other cells hold does not matter. "auto" takes "als" where many
        are missing; "sgd" takes no mask.
    init : KruskalTensor or {"random", "svd"}, optional
        Where "als" or "sgd" starts.
    n_starts : int, default 1
        Random starts; the best fit is kept and all are reported.
    max_iter : int, default 500
        Most iterations of one start.
    tol : float, default 1e-8
        The iteration ends where it improves the fit by less. With 0, "als" and "sgd" take all
        iterations, "compressed" ends where rounding allows no growth.
    callback : callable, optional
        Called as ``callback(iteration, fit, factors)`` after every iteration; a truthy return
        ends the work, and the best tensor so far is returned with status "stopped".
    rng : int, Generator or None
        Source of all random choices.
    nonnegative : bool, default False
        Keep all factors nonnegative (hierarchical alternating least squares). Uses "als".
    exact_finish : bool, default True
        End "als" and "sgd" with sweeps in full precision, which remove what a low precision left.
        "compressed" always ends exactly.
    schedule : StochasticSchedule, optional
        Samples, steps and the stage of signs of "sgd".
    client : dask.distributed.Client, optional
        Where the starts run, side by side.

    Returns
    -------
    PolyadicResult
        Kruskal tensor in X's dtype (float64 for integers) and library, true fit, status, history
        and message.

    Raises
    ------
    ShapeError
        A single number, an empty mode, a mask of another shape.
    TypeError
        A rank that is no integer, a mask that is not boolean, arrays of different libraries.
    ValueError
        A rank below 1; NaN or infinite observed entries (the index is named); a mask that is False
        everywhere; complex data; an unknown method, precision or start; a method that cannot do
        what is asked; a schedule without "sgd".

    Warns
    -----
    ConvergenceWarning
        The status is "max_iter" (unless tol is 0) or "degenerate".

    Notes
    -----
    X is scaled by a power of two, so data of size 1e-200 or 1e160 have the fit of moderate data.
    Best approximations need not exist for r > 1 and N > 2: then terms grow and cancel, and the
    status is "degenerate".

    References
    ----------
    .. [1] T. G. Kolda and B. W. Bader, "Tensor decompositions and applications", SIAM Review 51
       (2009).
    .. [2] L. Ma and E. Solomonik, "Efficient parallel CP decomposition with pairwise perturbation
       and multi-sweep dimension tree", arXiv:2010.12056.
    .. [3] Z. Yang, J. Shan and Z. Zhang, "Hardware-efficient mixed-precision CP tensor
       decomposition", arXiv:2209.04003: two stages, of which "sgd" follows the idea; step sizes
       and number formats are ours.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg import KruskalTensor
    >>> rng = np.random.default_rng(0)
    >>> truth = KruskalTensor([3.0, 1.0], [rng.standard_normal((n, 2)) for n in (6, 5, 4)])
    >>> result = decompose(truth.to_dense(), 2, rng=0)
    >>> result.status, round(result.fit, 9), result.tensor.match_score(truth) > 1 - 1e-6
    ('converged', 1.0, True)
    """
    r = positive_integer("rank", rank)
    starts = positive_integer("n_starts", n_starts)
    iterations = positive_integer("max_iter", max_iter)
    tolerance = checked_tolerance(tol)
    policy = precision_policy(precision) if isinstance(precision, str) else precision
    name = None if policy is None else policy.name
    if schedule is not None and method != "sgd":
        raise ValueError(f"schedule is for method 'sgd' only; got method {method!r}")
    tensor = prepare_tensor(X, mask)
    plan = plan_decomposition(
        tensor, method, nonnegative=nonnegative, has_start=init is not None, precision=name
    )
    shown = checked_callback(callback, tensor.exponent)
    generator = checked_generator(rng)
    if init is not None:
        check_start(tensor.data, r, init)
    if tensor.is_zero:
        return _zero_result(tensor, r)
    seeds = generator.spawn(starts)
    task = Task(
        tensor=tensor,
        rank=r,
        plan=plan,
        policy=policy,
        init=init,
        max_iter=iterations,
        tol=tolerance,
        nonnegative=nonnegative,
        exact_finish=exact_finish,
        schedule=schedule,
    )
    solutions = run_tasks(task, seeds, callback=shown, client=client)
    fits = np.array([solution.fit for solution in solutions])
    best = solutions[int(np.argmax(fits))]
    if solutions[-1].status == "stopped" and best is not solutions[-1]:
        message = f"{best.message}; the callback stopped start {len(solutions)} of {starts}"
        best = replace(best, status="stopped", message=message)
    result = _result(tensor, best, plan, fits)
    _LOGGER.debug("%s", result.message)
    if best.status == "degenerate" or (best.status == "max_iter" and tolerance > 0.0):
        warnings.warn(result.message, ConvergenceWarning, stacklevel=2)
    return result


def _home(tensor: PreparedTensor) -> tuple[Any, dict[str, Any]]:
    """Namespace of the result, and the keywords that put new arrays beside the data."""
    if tensor.is_sparse or tensor.is_streamed:
        return np, {}
    return namespace_of(tensor.data), {"device": tensor.data.device}


def _zero_result(tensor: PreparedTensor, rank: int) -> PolyadicResult:
    """Zero weights on unit columns, which fit a zero tensor exactly."""
    xp, place = _home(tensor)
    dtype = getattr(xp, tensor.dtype)
    factors = []
    for n in tensor.shape:
        first = xp.arange(n, **place)[:, None] == xp.zeros(rank, dtype=xp.int64, **place)[None, :]
        factors.append(xp.astype(first, dtype))
    return PolyadicResult(
        tensor=KruskalTensor(xp.zeros(rank, dtype=dtype, **place), factors),
        fit=1.0,
        status="converged",
        n_iter=0,
        history=np.empty(0),
        message="every observed entry is zero: zero weights fit exactly",
        method="als",
        starts=np.ones(1),
    )


def _result(
    tensor: PreparedTensor, solution: PolyadicSolution, plan: Plan, fits: NDArray[np.float64]
) -> PolyadicResult:
    """Normalize the solution in the dtype of the data, and give the fit of exactly that."""
    xp = namespace_of(*solution.factors)
    unit = KruskalTensor(None, solution.factors).normalize()
    dtype = getattr(xp, tensor.dtype)
    fit = solution.fit
    if tensor.dtype == "float32":  # the rounding of the factors belongs to the fit
        rounded = [xp.astype(xp.astype(f, dtype), xp.float64) for f in unit.factors]
        rounded[0] = rounded[0] * xp.astype(xp.astype(unit.weights, dtype), xp.float64)
        fit = 1.0 - relative_residual(tensor.data, rounded, mask=tensor.mask)
    spread = f"; best of {len(fits)} starts, fits {fits.min():.6g} to {fits.max():.6g}"
    message = f"{plan.method}: {plan.reason}. {solution.message}"
    return PolyadicResult(
        tensor=_at_scale(xp, unit, tensor.exponent, dtype),
        fit=fit,
        status=solution.status,
        n_iter=solution.n_iter,
        history=np.asarray(solution.history, dtype=np.float64),
        message=message + (spread if len(fits) > 1 else ""),
        method=plan.method,
        starts=solution.starts if len(solution.starts) else fits,
    )


def _at_scale(xp: Any, unit: KruskalTensor, exponent: int, dtype: Any) -> KruskalTensor:
    """Multiply the weights by a power of two; where they leave the range, the factors share it."""
    half = exponent // 2
    limits = xp.finfo(dtype)
    factors = [xp.astype(f, dtype, copy=False) for f in unit.factors]
    mantissa, power = math.frexp(float(xp.max(unit.weights)))
    smallest = math.frexp(float(limits.smallest_normal))[1] + 24
    largest = math.frexp(float(limits.max))[1]  # the mantissa of the limit is rounded up to 1
    if mantissa == 0.0 or smallest <= power + exponent < largest:
        weights = (unit.weights * 2.0**half) * 2.0 ** (exponent - half)
        return KruskalTensor(xp.astype(weights, dtype, copy=False), factors)
    # beyond the dtype's range: unit columns are given up for a tensor that can be stored
    share = 2.0 ** math.ceil((exponent + power) / (unit.order + 1))
    rest = (unit.weights * 2.0**half / share**unit.order) * 2.0 ** (exponent - half)
    return KruskalTensor(xp.astype(rest, dtype), [xp.astype(f * share, dtype) for f in factors])
