"""Estimates of the fit of polyadic models from a fixed sample of the tensor's entries."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.gpu.sampled_gradient import khatri_rao_rows
from tensoralg.gpu.sparse_kernels import model_entries
from tensoralg.solvers.polyadic_residual import relative_residual, squared_norm

__all__ = ["FitProbe"]

_ENTRIES = 2**16
_EXACT_SIZE = 2**18


class FitProbe:
    """Entries that are drawn once, so that fits of successive models compare without noise.

    Parameters
    ----------
    tensor : array or TensorBlocks, shape (n_1, ..., n_N)
        Read once here.
    rng : numpy.random.Generator
        Source of the draws, which are uniform.
    exact_size : int, default 2**18
        Tensors with no more entries are fitted exactly: that is as fast.

    Attributes
    ----------
    squared_norm : float
        Of the whole tensor, in float64.
    is_exact : bool
        Whether the fits are.

    Examples
    --------
    >>> probe = FitProbe(np.ones((2, 3)), np.random.default_rng(0))
    >>> probe.fit([np.ones((2, 1)), np.ones((3, 1))])
    1.0
    """

    def __init__(
        self, tensor: Any, rng: np.random.Generator, *, exact_size: int = _EXACT_SIZE
    ) -> None:
        shape = tuple(int(n) for n in tensor.shape)
        self._tensor = tensor
        self._size = math.prod(shape)
        is_streamed = hasattr(tensor, "slabs")
        self.is_exact = self._size <= exact_size and not is_streamed
        where = np.stack([rng.integers(0, n, size=_ENTRIES) for n in shape])
        self._where = where[:, np.argsort(where[0], kind="stable")]
        if is_streamed:
            self._values, self.squared_norm = _stream(tensor, self._where)
        else:
            self._values = _entries(tensor, self._where)
            self.squared_norm = squared_norm(tensor)

    def fit(self, factors: Sequence[Any]) -> float:
        """Estimate ``1 - ||X - model|| / ||X||``.

        Parameters
        ----------
        factors : sequence of N arrays, shapes (n_k, r)
            float64, in the namespace of the tensor.

        Returns
        -------
        float
            In float64; exact where `is_exact`.
        """
        if self.is_exact:
            return 1.0 - relative_residual(self._tensor, factors)
        difference = self._values - self._model(factors)
        error, norm = float(difference @ difference), float(self._values @ self._values)
        if norm == 0.0:  # all nonzero entries were missed
            norm = self.squared_norm * _ENTRIES / self._size
        return 1.0 - math.sqrt(error / norm)

    def best_scale(self, factors: Sequence[Any]) -> float:
        """Estimate the number by which the model, times its sign, fits best.

        Parameters
        ----------
        factors : sequence of N arrays, shapes (n_k, r)
            float64, in the namespace of the tensor.

        Returns
        -------
        float
            ``|<X, model>| / <model, model>`` over the sample; 0 for a model that vanishes.
        """
        model = self._model(factors)
        norm = float(model @ model)
        return abs(float(self._values @ model)) / norm if norm > 0.0 else 0.0

    def _model(self, factors: Sequence[Any]) -> Any:
        """Entries of the model where the tensor's were drawn."""
        if isinstance(factors[0], np.ndarray):
            return model_entries(self._where, factors)
        xp = namespace_of(*factors)
        rows = khatri_rao_rows(factors, 0, list(self._where[1:]))
        first = xp.asarray(self._where[0], device=device_of(factors[0]))
        return xp.sum(xp.take(factors[0], first, axis=0) * rows, axis=1)


def _entries(tensor: Any, where: NDArray[np.int64]) -> Any:
    """Entries of an array at given places, in float64."""
    if isinstance(tensor, np.ndarray):
        return tensor[tuple(where)].astype(np.float64)
    xp = namespace_of(tensor)
    positions = np.ravel_multi_index(tuple(where), tuple(tensor.shape))
    flat = xp.reshape(tensor, (-1,))
    return xp.astype(xp.take(flat, xp.asarray(positions, device=device_of(tensor))), xp.float64)


def _stream(tensor: Any, where: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Entries and squared norm of a tensor in one pass; the places are sorted by first index."""
    values = np.empty(where.shape[1])
    parts = []
    for start, stop, slab in tensor.slabs():
        first, last = np.searchsorted(where[0], [start, stop])
        values[first:last] = slab[(where[0, first:last] - start, *where[1:, first:last])]
        parts.append(squared_norm(slab))
    return values, math.fsum(parts)
