"""Tucker compression of a large tensor by random projections: three passes over its entries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.mode_contraction import contract_mode
from tensoralg.gpu.namespaces import device_of, namespace_of, to_numpy

__all__ = ["TensorSketch", "tensor_sketch"]

FloatArray = NDArray[np.float64]

_SLAB_BYTES = 2**26
_OVERSAMPLING = 6


@dataclass(frozen=True, slots=True, eq=False)
class TensorSketch:
    """Orthonormal bases of all modes and the tensor's coordinates in them.

    Parameters
    ----------
    bases : tuple of N ndarrays of float64, shapes (n_k, d_k)
        Orthonormal columns.
    core : ndarray of float64, shape (d_1, .., d_N)
        The tensor multiplied by the transposed basis in every mode.

    Examples
    --------
    >>> import numpy as np
    >>> sketch = TensorSketch((np.eye(3)[:, :1], np.eye(2)), np.array([[1.0, 2.0]]))
    >>> [factor.tolist() for factor in sketch.expand([np.ones((1, 1)), np.ones((2, 1))])]
    [[[1.0], [0.0], [0.0]], [[1.0], [1.0]]]
    """

    bases: tuple[FloatArray, ...]
    core: FloatArray

    def expand(self, factors: Sequence[FloatArray]) -> list[FloatArray]:
        """Factors of the tensor from factors of the core, shapes (d_k, r) to (n_k, r)."""
        return [basis @ factor for basis, factor in zip(self.bases, factors, strict=True)]


def tensor_sketch(
    tensor: Any,
    ranks: Sequence[int],
    *,
    rng: int | np.random.Generator | None = None,
    corrections: int = 1,
    policy: Any = None,
    containing: Sequence[FloatArray] | None = None,
) -> TensorSketch:
    """Compress a tensor to a small core by random projections and orthogonal iterations.

    Pass one multiplies one mode, mostly the last, by a few Gaussian columns and finds bases of
    the others; pass two multiplies these in and finds the basis of the first one; every
    correction is one more pass, a sweep of orthogonal iterations in the others.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or TensorBlocks
        float32 or float64, N >= 2. The products run in its own precision.
    ranks : sequence of N int
        Columns d_k of the bases, 1 <= d_k <= n_k.
    rng : int, Generator or None
        Seed of the Gaussian columns.
    corrections : int, default 1
        Number of corrections, at least 1.
    policy : PrecisionPolicy, optional
        Precision of the products with the tensor itself.
    containing : sequence of N ndarrays, shapes (n_k, r), optional
        The bases contain these columns up to rounding, r <= d_k; without them nothing changes.

    Returns
    -------
    TensorSketch
        On the host, wherever the tensor is. The core is exactly the tensor's projection, up to
        the rounding of the products.

    References
    ----------
    .. [1] N. Halko, P. G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM
       Review 53 (2011), algorithms 4.1 and 4.4.
    .. [2] L. De Lathauwer, B. De Moor, J. Vandewalle, "On the best rank-1 and rank-(R1, .., RN)
       approximation of higher-order tensors", SIAM J. Matrix Anal. Appl. 21 (2000), section 4.

    Examples
    --------
    >>> import numpy as np
    >>> tensor = np.einsum("i,j,k->ijk", [3.0, 4.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0])
    >>> abs(tensor_sketch(tensor, (1, 1, 1), rng=0).core).round(9).tolist()
    [[[5.0]]]
    """
    generator = np.random.default_rng(rng)
    shape = tuple(tensor.shape)
    pivot = _pivot(shape, ranks)
    others = [k for k in range(len(shape)) if k != pivot]
    kept = [None] * len(shape) if containing is None else containing
    # enough columns that every unfolding of the sketch has twice as many as its basis
    size = math.prod(shape) // shape[pivot]
    columns = min(shape[pivot], max(4, *(-(-2 * ranks[k] * shape[k] // size) for k in others)))
    gaussian = generator.standard_normal((shape[pivot], columns))
    sketch = _contract(tensor, gaussian, pivot, policy)
    bases: list[FloatArray] = [np.empty((0, 0))] * len(shape)
    for position, k in enumerate(others):
        directions = _leading_directions(_unfold(sketch, position), ranks[k], generator)
        bases[k] = _basis(directions, ranks[k], kept[k])
    partial = _contract(tensor, bases[0], 0, policy)
    rows, _ = _project(partial, [*range(1, len(shape)), 0], bases, pivot)
    directions = _leading_directions(rows, ranks[pivot], generator)
    bases[pivot] = _basis(directions, ranks[pivot], kept[pivot])
    for _ in range(corrections):
        partial = _contract(tensor, bases[pivot], pivot, policy)
        for k in others:
            rows, modes = _project(partial, [*others, pivot], bases, k)
            rows = rows.astype(np.float64)
            # one orthogonal iteration
            bases[k] = _basis(rows @ (rows.T @ bases[k]), ranks[k], kept[k])
    # `rows` are those of the last of the modes, all the others multiplied by their bases
    core = (bases[modes[0]].T @ rows).reshape([ranks[k] for k in modes])
    return TensorSketch(tuple(bases), np.ascontiguousarray(core.transpose(np.argsort(modes))))


def _pivot(shape: Sequence[int], ranks: Sequence[int]) -> int:
    """Mode that is multiplied first: the last, unless another but the first shrinks much more."""
    ratios = [rank / n for rank, n in zip(ranks, shape, strict=True)]
    best = min(ratios[1:])
    return len(shape) - 1 if ratios[-1] <= 1.25 * best else 1 + ratios[1:].index(best)


def _contract(tensor: Any, factor: FloatArray, mode: int, policy: Any) -> FloatArray:
    """Multiply one mode of the tensor by columns, which become the last axis; on the host."""
    if not hasattr(tensor, "slabs"):
        return to_numpy(contract_mode(tensor, _beside(tensor, factor), mode, policy=policy))
    if mode > 0:
        parts = [_contract(slab, factor, mode, policy) for _, _, slab in tensor.slabs(_SLAB_BYTES)]
        return np.concatenate(parts)
    total: Any = None
    for start, stop, slab in tensor.slabs(_SLAB_BYTES):
        part = _contract(slab, factor[start:stop], 0, policy)
        total = part if total is None else np.add(total, part, out=total)
    return np.asarray(total)


def _beside(tensor: Any, factor: FloatArray) -> Any:
    """Bring a factor to the tensor's library, device and precision."""
    if isinstance(tensor, np.ndarray):
        return factor.astype(tensor.dtype)
    return namespace_of(tensor).asarray(factor, dtype=tensor.dtype, device=device_of(tensor))


def _unfold(tensor: FloatArray, mode: int) -> FloatArray:
    """Rows of one mode, the other modes in order."""
    return np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)


def _project(
    partial: FloatArray, axes: Sequence[int], bases: Sequence[FloatArray], mode: int
) -> tuple[FloatArray, list[int]]:
    """Multiply the modes that are still whole by their bases, all but one.

    `axes` names the modes of the axes; the last is multiplied already. The rows of the one mode
    come back, with the order of the modes in which they lie.
    """
    result, modes, whole = partial, list(axes), list(axes[:-1])
    whole.remove(mode)
    # the largest reduction first keeps the products small
    for k in sorted(whole, key=lambda k: bases[k].shape[1] / bases[k].shape[0]):
        result = contract_mode(result, bases[k].astype(result.dtype), modes.index(k))
        modes.remove(k)
        modes.append(k)
    return result.reshape(result.shape[0], -1), modes


def _leading_directions(
    matrix: FloatArray, rank: int, generator: np.random.Generator
) -> FloatArray:
    """Columns close to the leading left singular vectors times their values, in falling order."""
    rows, columns = matrix.shape
    wanted = min(rank + _OVERSAMPLING, rows, columns)
    test = generator.standard_normal((columns, wanted)).astype(matrix.dtype)
    basis = np.linalg.qr((matrix @ test).astype(np.float64))[0]
    product = matrix.T @ basis.astype(matrix.dtype)
    basis = np.linalg.qr((matrix @ product).astype(np.float64))[0]
    small = (basis.T.astype(matrix.dtype) @ matrix).astype(np.float64)
    values, vectors = np.linalg.eigh(small @ small.T)
    scales = np.sqrt(np.maximum(values, 0.0))
    return np.asarray((basis @ (vectors * scales))[:, ::-1])


def _basis(directions: FloatArray, rank: int, kept: FloatArray | None) -> FloatArray:
    """Orthonormal columns along the leading directions, after those along the kept ones."""
    if kept is None:
        if directions.shape[1] > rank:
            directions = directions[:, :rank]
        return np.asarray(np.linalg.qr(directions)[0])
    first = np.linalg.qr(kept)[0]
    rest = directions - first @ (first.T @ directions)
    _, vectors = np.linalg.eigh(rest.T @ rest)
    both = np.concatenate([first, rest @ vectors[:, ::-1]], axis=1)
    return np.asarray(np.linalg.qr(both)[0][:, :rank])
