"""Where a polyadic decomposition starts: at random, from singular vectors, or as given."""

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of

__all__ = ["check_start", "given_start", "polyadic_start", "random_start", "singular_vector_start"]

# entries of a slab of an unfolding whose float64 copy is made at a time
_SLAB = 2**20
# powers of two within which products of a start's entries stay far from float64's limits
_MODERATE = 64
_OVERSAMPLING = 8  # columns of a sketch beyond the rank


def polyadic_start(
    tensor: Any,
    rank: int,
    *,
    init: Any = "random",
    rng: int | np.random.Generator | None = None,
    nonnegative: bool = False,
    exponent: int = 0,
) -> list[Any]:
    """Make starting factors for a tensor.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or anything with `shape` for a random start
        Without missing cells where singular vectors are asked for.
    rank : int
        Number of terms.
    init : {"random", "svd"} or object with `weights` and `factors`, default "random"
        The last is a `KruskalTensor`.
    rng : int, Generator or None
        Seed of a random start and of columns beyond a mode's dimension.
    nonnegative : bool, default False
        Replace all entries by their absolute values.
    exponent : int, default 0
        A given start is one of 2 to this power times the tensor.

    Returns
    -------
    list of N arrays of float64, shapes (n_k, rank)
        In the tensor's namespace, on its device.

    Raises
    ------
    ValueError
        If `init` is no known name, or its shapes are not the tensor's and the rank.
    TypeError
        If it has arrays of another library.

    Examples
    --------
    >>> import numpy as np
    >>> [factor.shape for factor in polyadic_start(np.zeros((2, 3, 4)), 5, rng=0)]
    [(2, 5), (3, 5), (4, 5)]
    """
    check_start(tensor, rank, init)
    if not isinstance(init, str):
        factors = given_start(tensor, rank, init, exponent=exponent)
    elif init == "random":
        factors = random_start(tensor, rank, rng=rng)
    else:
        factors = singular_vector_start(tensor, rank, rng=rng)
    if nonnegative:
        factors = [namespace_of(factor).abs(factor) for factor in factors]
    return factors


def check_start(tensor: Any, rank: int, init: Any) -> None:
    """Raise unless a start is known by name or fits the tensor.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or anything with `shape`
        What is to be decomposed.
    rank : int
        Number of terms.
    init : {"random", "svd"} or object with `weights` and `factors`
        As for `polyadic_start`.

    Raises
    ------
    ValueError
        If `init` is no known name, or its shapes are not the tensor's and the rank.
    TypeError
        If it is something else, or has arrays of another library or device.

    Examples
    --------
    >>> import numpy as np
    >>> check_start(np.zeros((2, 3)), 1, "svd")
    """
    if isinstance(init, str):
        if init not in ("random", "svd"):
            raise ValueError(
                f"init: unknown start {init!r}; accepted are 'random', 'svd' or a KruskalTensor"
            )
        return
    if not hasattr(init, "factors"):
        raise TypeError(
            f"init: got {type(init).__name__}; accepted are 'random', 'svd' or a KruskalTensor"
        )
    _check_factors(tuple(tensor.shape), rank, init.factors)
    home = tensor if _is_array(tensor) else None
    namespace_of(home, *init.factors)
    if home is not None and any(device_of(f) != device_of(home) for f in init.factors):
        raise TypeError("init: its factors are on another device than the tensor; move them first")


def random_start(
    tensor: Any, rank: int, *, rng: int | np.random.Generator | None = None
) -> list[Any]:
    """Draw standard normal factors.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or anything with `shape`
        Only its shape, namespace and device matter.
    rank : int
        Number of terms.
    rng : int, Generator or None
        The same numbers on every device for the same seed.

    Returns
    -------
    list of N arrays of float64, shapes (n_k, rank)
        In the tensor's namespace, on its device; numpy where it is no array.

    Examples
    --------
    >>> import numpy as np
    >>> one, two = (random_start(np.zeros((2, 3)), 2, rng=7) for _ in range(2))
    >>> bool((one[1] == two[1]).all())
    True
    """
    generator = np.random.default_rng(rng)
    return [_beside(tensor, generator.standard_normal((n, rank))) for n in tensor.shape]


def singular_vector_start(
    tensor: Any, rank: int, *, rng: int | np.random.Generator | None = None
) -> list[Any]:
    """Leading left singular vectors of every unfolding, from Gram matrices in float64.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or TensorBlocks
        float32 or float64.
    rank : int
        Number of terms. Modes of a smaller dimension are filled up with normal columns of
        expected length 1.
    rng : int, Generator or None
        Seed of those columns.

    Returns
    -------
    list of N arrays of float64, shapes (n_k, rank)
        In the tensor's namespace, on its device.

    Raises
    ------
    ValueError
        If the tensor is sparse.

    References
    ----------
    Kolda and Bader, Tensor decompositions and applications, SIAM Review 51, 2009, section 3.4.

    Examples
    --------
    >>> import numpy as np
    >>> start = singular_vector_start(np.diag([3.0, 2.0, 1.0]), 2, rng=0)
    >>> np.abs(start[0]).round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    if hasattr(tensor, "coordinates"):
        raise ValueError(
            "init: singular vectors of a sparse tensor are not available; use 'random'"
        )
    generator = np.random.default_rng(rng)
    factors = []
    for gram in _unfolding_grams(tensor, rank, generator):
        xp = namespace_of(gram)
        _, vectors = xp.linalg.eigh(gram)
        leading = xp.flip(vectors, axis=1)[:, :rank]
        n = gram.shape[0]
        missing = rank - leading.shape[1]
        if missing > 0:
            extra = generator.standard_normal((n, missing)) / math.sqrt(n)
            leading = xp.concat([leading, _beside(tensor, extra)], axis=1)
        factors.append(leading)
    return factors


def given_start(tensor: Any, rank: int, init: Any, *, exponent: int = 0) -> list[Any]:
    """Factors of a Kruskal tensor with its weights multiplied in, checked against the tensor.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or anything with `shape`
        What is to be decomposed.
    rank : int
        Number of terms that is expected.
    init : object with `weights` (r,) and `factors`
        A `KruskalTensor`.
    exponent : int, default 0
        Its model is divided by 2 to this power. One that is very large or small even then is
        scaled to a size of about 1, as its products would leave the range of float64.

    Returns
    -------
    list of N arrays of float64, shapes (n_k, rank)
        Copies; the weights go into the first factor.

    Raises
    ------
    ValueError
        If the number of factors or a shape is wrong.
    TypeError
        If `init` has no factors, or arrays of another library than the tensor.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> init = SimpleNamespace(weights=np.array([2.0]), factors=[np.ones((2, 1)), np.ones((3, 1))])
    >>> given_start(np.zeros((2, 3)), 1, init)[0].tolist()
    [[2.0], [2.0]]
    """
    check_start(tensor, rank, init)
    xp = namespace_of(*init.factors)
    factors = [xp.astype(xp.asarray(f), xp.float64, copy=True) for f in init.factors]
    weights = getattr(init, "weights", None)
    if weights is not None:
        weights = xp.astype(xp.asarray(weights), xp.float64, copy=True)
    return _at_moderate_scale(xp, factors, weights, exponent)


def _at_moderate_scale(xp: Any, factors: list[Any], weights: Any, exponent: int) -> list[Any]:
    """Multiply weights in; where sizes are extreme, columns become about unit by powers of two."""
    columns = [[math.frexp(float(x))[1] for x in xp.max(xp.abs(f), axis=0)] for f in factors]
    heavy = [1] * len(columns[0])
    if weights is not None:
        heavy = [math.frexp(float(x))[1] for x in weights]
    powers = [sum(term) - exponent for term in zip(*columns, heavy, strict=True)]
    parts = [abs(p) for column in (*columns, heavy) for p in column]
    if exponent == 0 and max([*parts, *map(abs, powers)], default=0) <= _MODERATE:
        return factors if weights is None else [factors[0] * weights, *factors[1:]]
    units = [
        _times_powers(xp, f, [-p for p in column])
        for f, column in zip(factors, columns, strict=True)
    ]
    largest = max(powers)
    excess = largest if abs(largest) > _MODERATE else 0
    terms = [p - excess for p in powers]
    if weights is not None:
        units[0] = units[0] * _times_powers(xp, weights, [-p for p in heavy])
    # terms that are smaller by more than the range of float64 vanish
    return [_times_powers(xp, units[0], [max(p, -1020) for p in terms]), *units[1:]]


def _times_powers(xp: Any, array: Any, powers: Sequence[int]) -> Any:
    """Multiply the last axis by powers of two, in two steps as one may overflow."""
    for part in ([p // 2 for p in powers], [p - p // 2 for p in powers]):
        array = array * xp.asarray([2.0**p for p in part], device=device_of(array))
    return array


def _check_factors(shape: Sequence[int], rank: int, factors: Sequence[Any]) -> None:
    """Raise unless there is one (n_k, rank) matrix for every mode."""
    if len(factors) != len(shape):
        raise ValueError(f"init: {len(factors)} factors for a tensor of order {len(shape)}")
    for mode, (n, factor) in enumerate(zip(shape, factors, strict=True)):
        found = tuple(getattr(factor, "shape", ()))
        if found != (n, rank):
            raise ValueError(
                f"init: factor {mode} has shape {found}; accepted is {(n, rank)} "
                "(the tensor's dimension, the rank)"
            )


def _is_array(tensor: Any) -> bool:
    """Whether new arrays can be made in the tensor's own namespace."""
    return bool(array_api_compat.is_array_api_obj(tensor)) and not array_api_compat.is_dask_array(
        tensor
    )


def _beside(tensor: Any, values: NDArray[Any]) -> Any:
    """Numbers made on the host, as an array of the tensor's library on its device."""
    if not _is_array(tensor) or isinstance(tensor, np.ndarray):
        return values
    xp = namespace_of(tensor)
    return xp.asarray(values, device=device_of(tensor))


def _unfolding_grams(tensor: Any, rank: int, generator: np.random.Generator) -> list[Any]:
    """Gram matrix of the rows of every unfolding, in float64."""
    if hasattr(tensor, "slabs"):
        return _slab_grams(tensor, rank, generator)
    if isinstance(tensor, np.ndarray) and tensor.flags.f_contiguous and tensor.ndim > 1:
        # in C order as it lies, with the modes reversed
        return [_gram(tensor.T, mode) for mode in reversed(range(tensor.ndim))]
    return [_gram(tensor, mode) for mode in range(tensor.ndim)]


def _gram(tensor: Any, mode: int) -> Any:
    """One of them, from slabs (before, n, after) of a reshaped view."""
    xp = namespace_of(tensor)
    n = tensor.shape[mode]
    before = math.prod(tensor.shape[:mode])
    view = xp.reshape(tensor, (before, n, -1))
    step = max(1, _SLAB // max(1, n * view.shape[2]))
    columns = max(1, _SLAB // n)
    gram = _beside(tensor, np.zeros((n, n)))
    for start in range(0, before, step):
        for first in range(0, view.shape[2], columns):
            last = min(first + columns, view.shape[2])
            block = view[start : min(start + step, before), :, first:last]
            rows = xp.permute_dims(xp.astype(block, xp.float64), (1, 0, 2))
            rows = xp.reshape(rows, (n, -1))
            gram = gram + xp.matmul(rows, rows.T)
    return gram


def _slab_grams(tensor: Any, rank: int, generator: np.random.Generator) -> list[Any]:
    """Do the same for a tensor that is read by slabs of its first mode, in one pass.

    Rows of the first unfolding meet only where two slabs do: random combinations of its columns
    stand for all of them.
    """
    shape = tuple(tensor.shape)
    columns = rank + _OVERSAMPLING
    signs = [generator.choice([-1.0, 1.0], size=(n, columns)) for n in shape[1:]]
    grams = [np.zeros((n, n)) for n in shape]
    sketch = np.zeros((shape[0], columns))
    for start, stop, slab in tensor.slabs(_SLAB * 8):
        for mode in range(1, len(shape)):
            grams[mode] += _gram(slab, mode)
        for row in range(start, stop):
            combined = np.asarray(slab[row - start], dtype=np.float64) @ signs[-1]
            for sign in reversed(signs[:-1]):
                combined = np.einsum("...is,is->...s", combined, sign)
            sketch[row] = combined
    grams[0] = sketch @ sketch.T
    return grams
