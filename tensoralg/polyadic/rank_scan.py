"""How many terms: fits, core consistencies and agreement of starts over a range of ranks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ProblemTooLargeError, ShapeError
from tensoralg.core.kruskal_tensor import KruskalTensor
from tensoralg.core.validation import positive_integer
from tensoralg.gpu.mode_contraction import contract_mode
from tensoralg.gpu.namespaces import namespace_of
from tensoralg.polyadic.decomposition import decompose
from tensoralg.polyadic.inputs import PreparedTensor, prepare_tensor
from tensoralg.polyadic.result import PolyadicResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RankScan", "core_consistency", "rank_scan"]

_MOST_CORE_ENTRIES = 2**25  # the core of rank r and order N has r^N


@dataclass(frozen=True, slots=True, eq=False)
class RankScan:
    """What decompositions of several ranks say about the number of terms.

    Attributes
    ----------
    ranks : ndarray of int, shape (k,)
        The ranks, increasing.
    fits : ndarray of float64, shape (k,)
        Best fit of each rank.
    core_consistencies : ndarray of float64, shape (k,)
        In percent, often negative where terms are too many; see `core_consistency`. NaN where the
        core would be too large.
    agreements : ndarray of float64, shape (k,)
        Median match score of the other starts with the best one: 1 where all find the same terms,
        NaN where there was one start.
    results : tuple of PolyadicResult
        The best decomposition of each rank.
    """

    ranks: NDArray[np.int64]
    fits: NDArray[np.float64]
    core_consistencies: NDArray[np.float64]
    agreements: NDArray[np.float64]
    results: tuple[PolyadicResult, ...]

    def plot(self) -> "Figure":
        """Draw the three curves over the rank.

        Returns
        -------
        matplotlib.figure.Figure
            Not shown and not saved (`savefig` does). Negative core consistencies are drawn at 0.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.0, 3.0), layout="constrained")
        curves = [
            ("fit", self.fits, (None, 1.02)),
            ("core consistency (%)", np.maximum(self.core_consistencies, 0.0), (-3.0, 103.0)),
            ("agreement of starts", self.agreements, (-0.03, 1.03)),
        ]
        for axes, (label, values, limits) in zip(figure.subplots(1, 3), curves, strict=True):
            axes.plot(self.ranks, values, marker="o", color="#2a6f97")
            axes.set(xlabel="rank", title=label, xticks=self.ranks)
            axes.set_ylim(*limits)
            axes.grid(alpha=0.3)
        return figure


def rank_scan(
    X: Any,
    ranks: Iterable[int],
    *,
    n_starts: int = 3,
    rng: int | np.random.Generator | None = None,
    client: Any = None,
    **options: Any,
) -> RankScan:
    """Decompose a tensor at several ranks.

    Parameters
    ----------
    X : array_like of shape (n_1, ..., n_N)
        As in `decompose`.
    ranks : iterable of int
        The ranks to try; repetitions count once.
    n_starts : int, default 3
        Starts of every rank, each a decomposition of its own.
    rng : int, Generator or None
        Source of all random choices.
    client : dask.distributed.Client, optional
        Where all starts of all ranks run, side by side, with the same numbers as here. Warnings
        stay there; the statuses come back.
    **options
        Handed on to `decompose`.

    Returns
    -------
    RankScan
        Fits, core consistencies, agreements and the best decompositions.

    Raises
    ------
    TypeError
        Ranks that are one number, or no integers.
    ValueError
        No rank, a callback together with a client, or what `decompose` raises.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> truth = KruskalTensor(None, [rng.standard_normal((n, 2)) for n in (6, 5, 4)])
    >>> scan = rank_scan(truth.to_dense(), [1, 2], rng=0)
    >>> scan.fits.round(6)[1].item(), scan.core_consistencies.round(2).tolist()
    (1.0, [100.0, 100.0])
    """
    try:
        given = iter(ranks)
    except TypeError:
        raise TypeError(
            f"ranks must be several integers, such as range(1, 5); got {ranks!r}"
        ) from None
    listed = sorted({positive_integer("ranks", rank) for rank in given})
    if not listed:
        raise ValueError("ranks must name at least one rank; got none")
    starts = positive_integer("n_starts", n_starts)
    generator = np.random.default_rng(rng)
    tensor = prepare_tensor(X, options.get("mask"))
    jobs = [(rank, seed) for rank in listed for seed in generator.spawn(starts)]
    found = _decompose_all(_Request(X, options), jobs, client)
    results, consistencies, agreements = [], [], []
    for rank in listed:
        tries = [result for (r, _), result in zip(jobs, found, strict=True) if r == rank]
        best = max(tries, key=lambda result: result.fit)
        others = [best.tensor.match_score(t.tensor) for t in tries if t is not best]
        results.append(best)
        is_small = rank**tensor.order <= _MOST_CORE_ENTRIES
        consistencies.append(_consistency(tensor, best.tensor) if is_small else math.nan)
        agreements.append(float(np.median(others)) if others else math.nan)
    return RankScan(
        ranks=np.array(listed),
        fits=np.array([result.fit for result in results]),
        core_consistencies=np.array(consistencies),
        agreements=np.array(agreements),
        results=tuple(results),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """What all starts share; it travels to a cluster once."""

    X: Any
    options: dict[str, Any]

    def run(self, rank: int, seed: np.random.Generator) -> PolyadicResult:
        """Decompose the tensor at one rank, from one start."""
        return decompose(self.X, rank, rng=seed, **self.options)


def _decompose_all(
    request: _Request, jobs: list[tuple[int, np.random.Generator]], client: Any
) -> list[PolyadicResult]:
    """Run all jobs, here or on a cluster; the results come in their order."""
    if client is None:
        return [request.run(rank, seed) for rank, seed in jobs]
    if request.options.get("callback") is not None:
        raise ValueError("callback is not supported with client: starts run elsewhere")
    shared = client.scatter(request, broadcast=True, hash=False)
    futures = [client.submit(_Request.run, shared, *job, pure=False) for job in jobs]
    gathered: list[PolyadicResult] = client.gather(futures)
    return gathered


def core_consistency(X: Any, tensor: KruskalTensor, *, mask: Any = None) -> float:
    """Tell how far the best core for given factors is from the superdiagonal one.

    Parameters
    ----------
    X : array_like of shape (n_1, ..., n_N)
        Dense, or read slab by slab, or sparse.
    tensor : KruskalTensor
        A decomposition of X.
    mask : bool array_like of X's shape, optional
        True: observed; the other cells are taken from the decomposition.

    Returns
    -------
    float
        ``100 (1 - ||G - I||^2 / r)``, where G is the least-squares core of X for the factors with
        the weights absorbed, and I the superdiagonal core of ones. 100 where the terms do not
        interact; near or below 0 where there are too many of them. Only tensors of three and
        more modes can say anything.

    Raises
    ------
    ShapeError
        Another shape.
    TypeError
        A decomposition that is no KruskalTensor.
    ProblemTooLargeError
        The core, of r^N entries, would have more than 2^25.
    ValueError
        No term, or what `decompose` says about bad tensors.

    References
    ----------
    .. [1] R. Bro and H. A. L. Kiers, "A new efficient method for determining the number of
       components in PARAFAC models", J. Chemometrics 17 (2003).

    Examples
    --------
    >>> import numpy as np
    >>> K = KruskalTensor([1.0, 2.0], [np.eye(3)[:, :2]] * 3)
    >>> core_consistency(K.to_dense(), K)
    100.0
    """
    return _consistency(prepare_tensor(X, mask), tensor)


def _consistency(tensor: PreparedTensor, model: KruskalTensor) -> float:
    """Do it with a prepared tensor."""
    if not isinstance(model, KruskalTensor):
        raise TypeError(f"tensor must be a KruskalTensor; got {type(model).__name__}")
    if tensor.shape != model.shape:
        raise ShapeError(f"X must have the decomposition's shape {model.shape}; got {tensor.shape}")
    if model.rank == 0:
        raise ValueError("tensor must have at least one term; got rank 0")
    if model.rank**model.order > _MOST_CORE_ENTRIES:
        raise ProblemTooLargeError(
            f"the core of rank {model.rank} and order {model.order} has "
            f"{model.rank**model.order} entries; at most {_MOST_CORE_ENTRIES} are accepted"
        )
    xp = array_api_compat.array_namespace(model.weights)
    unit = model.normalize()
    weights = xp.astype(unit.weights, xp.float64)
    scale = 2.0**-tensor.exponent
    # the weights are shared evenly, so that no mode is much longer than another
    share = (weights * scale) ** (1.0 / model.order)
    factors = [xp.astype(f, xp.float64) * share for f in unit.factors]
    if bool(xp.any(share == 0)):
        return 0.0  # a term of weight zero explains nothing: the core has no one for it
    inverses = [xp.linalg.pinv(f).T for f in factors]
    core = _project(tensor, inverses, factors)
    rank = model.rank
    target = xp.reshape(xp.zeros_like(core), (-1,))
    step = sum(rank**k for k in range(model.order))
    target = xp.where(xp.arange(rank**model.order) % step == 0, 1.0, target)
    gap = float(xp.sum((xp.reshape(core, (-1,)) - target) ** 2))
    return 100.0 * (1.0 - gap / rank)


def _project(tensor: PreparedTensor, inverses: list[Any], factors: list[Any]) -> Any:
    """Multiply every mode by a matrix (n_k, r): the core (r, ..., r)."""
    data = tensor.data
    if tensor.is_sparse:
        return _project_sparse(data, inverses)
    if tensor.is_streamed:
        core: Any = None
        for start, stop, slab in data.slabs():
            part = _project_dense(slab, [inverses[0][start:stop, :], *inverses[1:]])
            core = part if core is None else core + part
        return core
    if tensor.mask is not None:
        xp = namespace_of(data)
        filled = KruskalTensor(None, factors).to_dense()
        data = xp.where(tensor.mask, data, xp.astype(filled, data.dtype))
    return _project_dense(data, inverses)


def _project_dense(data: Any, inverses: list[Any]) -> Any:
    xp = namespace_of(data)
    core = data
    for inverse in inverses:
        # the first mode is summed over, and its new index becomes the last
        core = contract_mode(core, xp.astype(inverse, core.dtype, copy=False), 0)
        core = xp.astype(core, xp.float64, copy=False)
    return core


def _project_sparse(data: Any, inverses: list[Any]) -> NDArray[np.float64]:
    """Sum the outer products of the rows that the nonzero entries pick, some at a time."""
    order, rank = data.ndim, inverses[0].shape[1]
    core = np.zeros((rank,) * order)
    half = (order + 1) // 2
    for begin in range(0, data.values.size, 2**14):
        some = slice(begin, begin + 2**14)
        rows = [
            inverse[where[some]] for inverse, where in zip(inverses, data.coordinates, strict=True)
        ]
        left = data.values[some, None].astype(np.float64)
        for matrix in rows[:half]:
            left = (left[:, :, None] * matrix[:, None, :]).reshape(len(left), -1)
        right = np.ones((len(left), 1))
        for matrix in rows[half:]:
            right = (right[:, :, None] * matrix[:, None, :]).reshape(len(right), -1)
        core += (left.T @ right).reshape(core.shape)
    return core
