"""Missing cells of a tensor: filled in from a model, in blocks (expectation-maximization)."""

import math
from collections.abc import Sequence
from typing import Any

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.solvers.polyadic_residual import block_model, block_size, blocks

__all__ = ["FilledTensor"]


class FilledTensor:
    """A copy of a tensor whose unobserved cells hold a model's values.

    Least squares on the filled tensor never makes the error over the observed cells worse.
    Whatever the unobserved cells of the given tensor hold is selected away, never multiplied.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N)
        float32 or float64.
    mask : bool array of the tensor's shape
        True: observed.
    factors : sequence of N arrays, shapes (n_k, r)
        Of the first model; it is scaled to the observed cells before it fills the others, so
        that a model at random fills in next to nothing.

    Attributes
    ----------
    tensor : array, shape (n_1, .., n_N)
        The filled copy.
    squared_error : float
        Over the observed cells, of the model that filled it last.

    References
    ----------
    Tomasi and Bro, PARAFAC and missing values, Chemometrics and Intelligent Laboratory Systems
    75, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> ones = [np.ones((2, 1)), np.ones((2, 1))]
    >>> holed = np.array([[1.0, np.nan], [1.0, 1.0]])
    >>> filled = FilledTensor(holed, ~np.isnan(holed), ones)
    >>> filled.fill(ones)
    >>> filled.tensor.tolist(), filled.squared_error
    ([[1.0, 1.0], [1.0, 1.0]], 0.0)
    """

    def __init__(self, tensor: Any, mask: Any, factors: Sequence[Any]) -> None:
        self._given, self._mask = tensor, mask
        xp = namespace_of(tensor)
        self.tensor = xp.where(mask, tensor, xp.zeros_like(tensor[..., :1]))
        self.squared_error = math.inf
        inner, norm = 0.0, 0.0
        for given, model, observed, _ in self._blocks(factors):
            product = xp.where(observed, given * model, xp.zeros_like(model))
            inner += float(xp.sum(product))
            norm += float(xp.sum(xp.where(observed, model * model, xp.zeros_like(model))))
        self._scale: float | None = inner / norm if norm > 0.0 else 0.0

    def fill(self, factors: Sequence[Any]) -> None:
        """Put a model's values into the unobserved cells and measure it on the others.

        Parameters
        ----------
        factors : sequence of N arrays of float64, shapes (n_k, r)
            Of the model.
        """
        xp = namespace_of(self.tensor)
        errors = []
        scale, self._scale = self._scale, None
        for given, model, observed, target in self._blocks(factors):
            error = xp.where(observed, given - model, xp.zeros_like(model))
            errors.append(float(xp.sum(error * error)))
            if scale is not None:
                model = model * scale
            narrow = xp.astype(model, self.tensor.dtype)
            target[...] = xp.where(observed, xp.astype(given, self.tensor.dtype), narrow)
        self.squared_error = math.fsum(errors)

    def _blocks(self, factors: Sequence[Any]) -> Any:
        """Give blocks of the tensor, the model and the mask, and where to write."""
        xp = namespace_of(self.tensor)
        limit = block_size(xp)
        wide = [xp.astype(factor, xp.float64, copy=False) for factor in factors]
        pairs = zip(
            blocks(self._given, wide, self._mask, limit),
            blocks(self.tensor, (), None, limit),
            strict=True,
        )
        for (given, part, observed), (target, _, _) in pairs:
            model = xp.reshape(block_model(part), tuple(given.shape))
            known = xp.where(observed, given, xp.zeros_like(given))
            yield xp.astype(known, xp.float64), model, observed, target
