"""Exchange of the term that a polyadic model misses least for the one it lacks most."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of, to_numpy
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps
from tensoralg.solvers.polyadic_updates import hadamard

__all__ = ["exchanged_factors", "removal_losses"]

FloatArray = NDArray[np.float64]

_ROUNDS = 6
_SEED = 0
# what an exchange must promise beyond the loss, and of the tensor's squared norm
_MARGIN = 1.1
_LEAST_GAIN = 1e-6


def exchanged_factors(sweeps: AlternatingSweeps) -> list[Any] | None:
    """Look for an exchange of one term that lowers the error of a stationary model.

    Alternating least squares often ends where two terms share what one could do, and a term of
    the tensor is missing. A few sweeps for a single term of the residual, which is never formed,
    find what is missing; if its square exceeds what the loss of some other term costs, the two
    are exchanged. Where the residual is noise nothing is found.

    Parameters
    ----------
    sweeps : AlternatingSweeps
        The model, after a sweep; it is not changed.

    Returns
    -------
    list of N arrays of float64, shapes (n_k, r), or None
        None if no exchange promises a lower error.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = np.linalg.qr(rng.standard_normal((4, 2)))[0].T
    >>> tensor = 3.0 * np.multiply.outer(np.multiply.outer(x, x), x)
    >>> tensor += 2.0 * np.multiply.outer(np.multiply.outer(y, y), y)
    >>> sweeps = AlternatingSweeps(tensor, [np.stack([x, x], axis=1)] * 3)
    >>> sweeps.sweep()
    >>> sweeps.restore(exchanged_factors(sweeps))
    >>> sweeps.sweep()
    >>> round(sweeps.exact_fit(), 9)
    1.0
    """
    square, vectors = _missing_term(sweeps)
    losses = removal_losses(hadamard(sweeps.grams[:-1]), sweeps.weights)
    weakest = int(np.argmin(losses))
    gain = square - _MARGIN * losses[weakest]
    if not gain > _LEAST_GAIN * sweeps.squared_norm:
        return None
    root = square ** (0.5 / len(vectors))
    factors = []
    for factor, vector in zip(sweeps.balanced(), vectors, strict=True):
        xp = namespace_of(factor)
        is_weakest = xp.arange(sweeps.rank, device=device_of(factor)) == weakest
        factors.append(xp.where(is_weakest[None, :], root * vector, factor))
    return factors


def removal_losses(gram: FloatArray, weights: FloatArray) -> FloatArray:
    """Find what the squared error grows by if a term is left out and one mode is solved anew.

    Parameters
    ----------
    gram : (r, r) array
        Elementwise product of the Gram matrices of the other modes.
    weights : (r,) array
        Norms of the columns in the mode that is solved for.

    Returns
    -------
    (r,) array
        Zero for terms that the others can replace.

    Examples
    --------
    >>> removal_losses(np.eye(2), np.array([3.0, 2.0])).tolist()
    [9.0, 4.0]
    """
    values, vectors = np.linalg.eigh(gram)
    floor = max(values[-1], 0.0) * 1e-14
    inverse = np.einsum("sk,k,sk->s", vectors, 1.0 / np.maximum(values, floor), vectors)
    result: FloatArray = weights**2 / inverse
    return result


def _missing_term(sweeps: AlternatingSweeps) -> tuple[float, list[Any]]:
    """Find a large term of the residual by alternating sweeps: its square and unit vectors."""
    rng = np.random.default_rng(_SEED)
    factors = sweeps.factors
    xp = namespace_of(*factors)
    vectors = []
    for factor in factors:
        vector = rng.standard_normal((factor.shape[0], 1))
        vector /= np.linalg.norm(vector)
        on_host = isinstance(factor, np.ndarray)
        vectors.append(vector if on_host else xp.asarray(vector, device=device_of(factor)))
    products = sweeps.products_with(vectors)
    square = 0.0
    for _ in range(_ROUNDS):
        for mode, factor in enumerate(factors):
            overlap = np.ones(sweeps.rank)
            for k, other in enumerate(factors):
                if k != mode:
                    overlap *= to_numpy(xp.matmul(other.T, vectors[k]))[:, 0]
            column = overlap[:, None]
            if not isinstance(factor, np.ndarray):
                column = xp.asarray(column, device=device_of(factor))
            vector = xp.astype(products.product(mode), xp.float64) - xp.matmul(factor, column)
            square = float(xp.sum(vector * vector))
            if square == 0.0:
                return 0.0, vectors
            vectors[mode] = vector / square**0.5
            products.replace(mode, xp.astype(vectors[mode], sweeps.dtype))
    return square, vectors
