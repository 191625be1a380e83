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

    Pass one multiplies the last mode by a few Gaussian columns and finds bases of the other
    modes; pass two multiplies these in and finds the basis of the last; every correction is one
    more pass, a sweep of orthogonal iterations in all modes.

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
    last = len(shape) - 1
    kept = [None] * len(shape) if containing is None else containing
    # enough columns that every unfolding of the sketch has twice as many as its basis
    columns = min(shape[last], max(4, *(_columns_for(shape, ranks[k], k) for k in range(last))))
    sketch = _contract_last(tensor, generator.standard_normal((shape[last], columns)), policy)
    bases = [
        _basis(_leading_directions(_unfold(sketch, k), ranks[k], generator), ranks[k], kept[k])
        for k in range(last)
    ]
    rotated = _contract_first(tensor, bases[0], policy)
    for basis in bases[1:]:
        rotated = _rotate(rotated, basis)
    rows = rotated.reshape(shape[last], -1)
    directions = _leading_directions(rows, ranks[last], generator)
    bases.append(_basis(directions, ranks[last], kept[last]))
    for _ in range(corrections):
        partial = _contract_last(tensor, bases[last], policy)
        for mode in range(last):
            rows = _project(partial, bases, mode)
            # one orthogonal iteration
            bases[mode] = _basis(rows @ (rows.T @ bases[mode]), ranks[mode], kept[mode])
    # `rows` are those of the last mode but one, all the others multiplied by their bases
    others = [basis.shape[1] for k, basis in enumerate(bases) if k != last - 1]
    core = (bases[last - 1].T @ rows).reshape(-1, *others)
    return TensorSketch(tuple(bases), np.ascontiguousarray(np.moveaxis(core, 0, last - 1)))


def _columns_for(shape: Sequence[int], rank: int, mode: int) -> int:
    """Gaussian columns with which the unfolding in a mode has twice as many columns as wanted."""
    others = math.prod(n for k, n in enumerate(shape[:-1]) if k != mode)
    return -(-2 * rank // others)


def _contract_last(tensor: Any, factor: FloatArray, policy: Any) -> FloatArray:
    """Multiply the last mode: shape (n_1, .., n_{N-1}, d)."""
    if hasattr(tensor, "slabs"):
        parts = [_contract_last(slab, factor, policy) for _, _, slab in tensor.slabs(_SLAB_BYTES)]
        return np.asarray(np.concatenate(parts))
    mode = len(tensor.shape) - 1
    return to_numpy(contract_mode(tensor, _beside(tensor, factor), mode, policy=policy))


def _contract_first(tensor: Any, factor: FloatArray, policy: Any) -> FloatArray:
    """Multiply the first mode: shape (n_2, .., n_N, d)."""
    if not hasattr(tensor, "slabs"):
        return to_numpy(contract_mode(tensor, _beside(tensor, factor), 0, policy=policy))
    total: Any = None
    for start, stop, slab in tensor.slabs(_SLAB_BYTES):
        part = contract_mode(slab, factor[start:stop].astype(slab.dtype), 0, policy=policy)
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


def _rotate(tensor: FloatArray, basis: FloatArray) -> FloatArray:
    """Multiply the first mode and move it to the end."""
    flat = tensor.reshape(tensor.shape[0], -1)
    product = flat.T @ basis.astype(flat.dtype)
    return product.reshape(*tensor.shape[1:], basis.shape[1])


def _project(partial: FloatArray, bases: Sequence[FloatArray], mode: int) -> FloatArray:
    """Multiply the bases of all modes but one and the last; rows of that mode, float64."""
    result = partial
    # the largest reduction first keeps the products small
    others = [k for k in range(len(bases) - 1) if k != mode]
    for k in sorted(others, key=lambda k: bases[k].shape[1] / bases[k].shape[0]):
        product = np.tensordot(bases[k].T.astype(result.dtype), result, axes=(1, k))
        result = np.moveaxis(product, 0, k)
    return _unfold(result, mode).astype(np.float64)


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
