"""The matricized tensor times Khatri-Rao product, checked at the border."""

import operator
from collections.abc import Sequence
from typing import Any

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_tensor import KruskalTensor
from tensoralg.gpu.mttkrp import mttkrp as fast_mttkrp
from tensoralg.gpu.namespaces import as_float_array, device_of, namespace_of
from tensoralg.gpu.sparse_tensor import as_sparse_tensor, is_sparse

__all__ = ["mttkrp"]


def mttkrp(X: Any, factors: Sequence[Any] | KruskalTensor, mode: int) -> Any:
    """Multiply a tensor by the columns of all factors but one.

    ``result[i, s] = sum X[i_1, ..., i_N] * prod_{k != mode} factors[k][i_k, s]``, the sum over
    all indices with ``i_mode = i``: the product of every gradient and every least-squares update
    of a polyadic decomposition.

    Parameters
    ----------
    X : array_like of shape (n_1, ..., n_N), N >= 2
        A dense array of any array library, a list, a pydata sparse.COO or a scipy sparse matrix,
        which is not densified.
    factors : sequence of N array_like, shapes (n_k, r), or KruskalTensor
        In X's library; ``factors[mode]`` is not read beyond its shape. The weights of a
        `KruskalTensor` multiply the columns of the result.
    mode : int
        From -N to N - 1; negative modes count from the last.

    Returns
    -------
    array, shape (n_mode, r)
        In the wider of the dtypes of X and the factors.

    Raises
    ------
    ShapeError
        Fewer than two modes, or factors that do not fit.
    TypeError
        A mode that is no integer; arrays of different libraries or devices.
    ValueError
        A mode out of range, complex or another unsupported dtype.

    References
    ----------
    .. [1] T. G. Kolda and B. W. Bader, "Tensor decompositions and applications", SIAM Review 51
       (2009), section 3.4.
    .. [2] K. Hayashi, G. Ballard, Y. Jiang and M. J. Tobia, "Shared-memory parallelization of
       MTTKRP for dense tensors", arXiv:1708.08976: no reordering of the tensor.

    Examples
    --------
    >>> mttkrp([[1.0, 2.0], [3.0, 4.0]], [[[1.0], [1.0]], [[1.0], [10.0]]], 0).tolist()
    [[21.0], [43.0]]
    """
    weights: Any = None
    if isinstance(factors, KruskalTensor):
        weights, factors = factors.weights, factors.factors
    try:
        factors = list(factors)
    except TypeError:
        raise TypeError(
            f"factors must be matrices, one per mode; got {type(factors).__name__}"
        ) from None
    tensor: Any
    if is_sparse(X):
        tensor = as_sparse_tensor(X, name="X")
        xp = namespace_of(*factors)
        dtypes = [tensor.values.dtype]
    else:
        xp = namespace_of(X, *factors)
        tensor = as_float_array(X, xp, name="X")
        dtypes = [tensor.dtype]
    shape = tuple(int(n) for n in tensor.shape)
    if len(shape) < 2:
        raise ShapeError(f"X must have at least two modes; got shape {shape}")
    position = _mode(mode, len(shape))
    matrices = [as_float_array(f, xp, name=f"factors[{k}]") for k, f in enumerate(factors)]
    _check_factors(shape, matrices)
    if not is_sparse(tensor) and any(device_of(f) != device_of(tensor) for f in matrices):
        raise TypeError("factors are on another device than X; move them first")
    dtype = xp.result_type(*dtypes, *(f.dtype for f in matrices))
    matrices = [xp.astype(f, dtype, copy=False) for f in matrices]
    if not is_sparse(tensor):
        tensor = xp.astype(tensor, dtype, copy=False)
    result = fast_mttkrp(tensor, matrices, position)
    return result if weights is None else result * xp.astype(weights, dtype, copy=False)


def _mode(mode: int, order: int) -> int:
    """Count a mode from 0."""
    try:
        number = operator.index(mode)
    except TypeError:
        raise TypeError(f"mode must be an integer; got {mode!r}") from None
    if not -order <= number < order:
        raise ValueError(f"mode must lie in {-order} .. {order - 1}; got {number}")
    return number % order


def _check_factors(shape: tuple[int, ...], factors: Sequence[Any]) -> None:
    if len(factors) != len(shape):
        raise ShapeError(f"factors must be {len(shape)} matrices, one per mode; got {len(factors)}")
    rank = factors[0].shape[-1] if factors[0].ndim else 0
    for k, (n, factor) in enumerate(zip(shape, factors, strict=True)):
        if tuple(factor.shape) != (n, rank) or factor.ndim != 2:
            raise ShapeError(
                f"factors[{k}] must have shape ({n}, r) with r = {rank} as for factors[0]; "
                f"got {tuple(factor.shape)}"
            )
