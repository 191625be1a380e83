"""A polyadic model under alternating least squares: its factors, and one sweep over them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of
from tensoralg.solvers.dimension_tree import DimensionTree, SparseProducts
from tensoralg.solvers.polyadic_missing import FilledTensor
from tensoralg.solvers.polyadic_observed import ObservedCells, is_worth_listing
from tensoralg.solvers.polyadic_residual import squared_error, squared_norm
from tensoralg.solvers.polyadic_updates import (
    cancellation,
    gram_matrix,
    hadamard,
    solve_factor,
    solve_nonnegative_factor,
    unit_columns,
)

__all__ = ["AlternatingSweeps"]

FloatArray = NDArray[np.float64]

# relative error of the inner product of a tensor and a model whose products are computed so
_PRODUCT_ERROR = {
    "float64": 1e-15,
    "float32": 1e-7,
    "tf32": 1e-3,
    "float16": 1e-3,
    "bfloat16": 1e-2,
    "int8": 1e-2,
    "float8": 1e-1,
}

# of the old rows where cells are few: rows of a start at random must not be fitted to the letter
_LARGEST_PULL = 1.0
_PULL_DECAY = 0.6


class AlternatingSweeps:
    """Unit columns in the tensor's dtype, weights and Gram matrices in float64, and their update.

    The columns are rounded to the tensor's dtype before anything is computed from them: what a
    float32 product multiplies is exactly the model whose norm is taken, and its rounding does not
    enter the fit.

    Parameters
    ----------
    tensor : array, SparseTensor or TensorBlocks, shape (n_1, .., n_N)
        N >= 2, float32 or float64, not zero.
    factors : sequence of N arrays, shapes (n_k, r)
        Where the sweeps start.
    nonnegative : bool, default False
        Update by HALS.
    mask : bool array of the tensor's shape, optional
        True: observed.
    policy : PrecisionPolicy, optional
        Of the products with the tensor itself.

    Examples
    --------
    >>> import numpy as np
    >>> sweeps = AlternatingSweeps(np.ones((2, 3)), [np.ones((2, 1)), np.ones((3, 1))])
    >>> sweeps.sweep()
    >>> round(sweeps.exact_fit(), 12)
    1.0
    """

    def __init__(
        self,
        tensor: Any,
        factors: Sequence[Any],
        *,
        nonnegative: bool = False,
        mask: Any = None,
        policy: Any = None,
    ) -> None:
        self.tensor, self.mask = tensor, mask
        self._xp = namespace_of(*factors)
        self._on_host = isinstance(factors[0], np.ndarray)
        self.shape = tuple(int(n) for n in tensor.shape)
        self.rank = int(factors[0].shape[1])
        self.nonnegative = nonnegative
        self.squared_norm = squared_norm(tensor, mask=mask)
        self.precision = _precision(tensor, policy)
        # the formula is worthless there, and next to emulated rounding a residual costs little
        self._looks_always = self.is_coarse and self._on_host
        self.dtype = _working_dtype(tensor, factors[0])
        self._filled: FilledTensor | None = None
        self._cells: ObservedCells | None = None
        self._pull = 0.0
        # listed cells are multiplied in float64: a coarse policy would be ignored
        if mask is not None and not self.is_coarse and is_worth_listing(tensor, mask, self.rank):
            self._cells = ObservedCells(tensor, mask)
            self.dtype = np.float64
            scale = self._cells.scale([self._wide(factor) for factor in factors])
            factors = [factors[0] * scale, *factors[1:]]
            share = np.count_nonzero(mask) / mask.size
            self._pull = min((1.0 - share) / share, _LARGEST_PULL) if share > 0.0 else 0.0
        elif mask is not None:
            self._filled = FilledTensor(tensor, mask, factors)
        self._last: Any = None
        self._products: Any = None
        self._policy = policy
        self.restore(factors)

    @property
    def factors(self) -> tuple[Any, ...]:
        """The model in float64, its weights in the factor that was solved for last."""
        wide = [self._wide(unit, copy=True) for unit in self._units]
        wide[-1] = self._last if self._last is not None else wide[-1] * self._row(self.weights)
        return tuple(wide)

    @property
    def formula_noise(self) -> float:
        """Error that `formula_fit` may have."""
        if self.mask is not None:
            return 1e-14
        error = max(1.0 - self.formula_fit, 0.0)
        noise = _PRODUCT_ERROR[self.precision]
        return noise / (2.0 * max(error, math.sqrt(noise)))

    @property
    def is_coarse(self) -> bool:
        """Whether products are so rounded that sweeps never come to rest."""
        return _PRODUCT_ERROR[self.precision] > 1e-6

    @property
    def cancellation(self) -> float:
        """How much larger the terms are together than their sum."""
        return cancellation(self.weights, math.sqrt(max(self._model_square(), 0.0)))

    def restore(self, factors: Sequence[Any]) -> None:
        """Continue from other factors.

        Parameters
        ----------
        factors : sequence of N arrays, shapes (n_k, r)
            Copied.
        """
        self._units, self.weights = [], np.ones(self.rank)
        for factor in factors:
            unit, norms = unit_columns(self._wide(factor), self.dtype)
            self._units.append(unit)
            self.weights = self.weights * norms
        self.grams = [gram_matrix(unit) for unit in self._units]
        self._last = None
        self._refresh()

    def sweep(self) -> None:
        """Replace every factor once by the best one given the others."""
        for mode in range(len(self.shape)):
            self._update(mode)
        self._pull *= _PULL_DECAY
        if self.mask is not None:
            self._refresh()
        elif self._looks_always:
            self.formula_fit = self.exact_fit()

    def exact_fit(self) -> float:
        """Evaluate the fit in float64 from the differences of the entries."""
        if self._cells is not None:
            square = self._cells.squared_error(self.factors)
            return 1.0 - math.sqrt(square / self.squared_norm)
        if self._filled is not None:
            return 1.0 - math.sqrt(self._filled.squared_error / self.squared_norm)
        return 1.0 - math.sqrt(squared_error(self.tensor, self.factors) / self.squared_norm)

    def balanced(self) -> list[Any]:
        """Give the factors with the weights shared evenly between the modes."""
        root = self._row(self.weights ** (1.0 / len(self.shape)))
        return [self._wide(unit) * root for unit in self._units]

    def products_with(self, factors: Sequence[Any]) -> DimensionTree | SparseProducts:
        """Prepare products of the tensor (filled, if it has a mask) with other factors.

        Parameters
        ----------
        factors : sequence of N arrays, shapes (n_k, r)
            Of any r.

        Returns
        -------
        DimensionTree or SparseProducts
            Independent of the sweeps' own.
        """
        data = self.tensor if self._filled is None else self._filled.tensor
        narrow = [self._xp.astype(factor, self.dtype, copy=False) for factor in factors]
        if hasattr(data, "coordinates"):
            return SparseProducts(data, narrow)
        return DimensionTree(data, narrow, policy=self._policy)

    def _refresh(self) -> None:
        """Give the tree all factors; fill the unobserved cells from them where there is a mask."""
        if self._filled is not None:
            self._filled.fill(self.factors)
        if self.mask is not None and self.squared_norm > 0.0:
            self.formula_fit = self.exact_fit()
        if self._cells is not None:
            return
        if self._products is None:
            self._products = self.products_with(self._units)
            return
        if self._filled is not None:
            self._products.forget()
        for mode, unit in enumerate(self._units):
            self._products.replace(mode, unit)

    def _update(self, mode: int) -> None:
        """Solve for one factor."""
        if self._cells is not None:
            old = self._units[mode] * self.weights
            factor = self._cells.solve(
                mode, self._units, old, pull=self._pull, nonnegative=self.nonnegative
            )
            self._accept(mode, factor)
            return
        product = self._wide(self._products.product(mode))
        gram = hadamard([g for k, g in enumerate(self.grams) if k != mode])
        if self.nonnegative:
            old = self._wide(self._units[mode]) * self._row(self.weights)
            factor = solve_nonnegative_factor(gram, product, old)
        else:
            factor = solve_factor(gram, product, precision=self.precision)
        self._accept(mode, factor)
        self._products.replace(mode, self._units[mode])
        if mode == len(self.shape) - 1 and self._filled is None:
            self._note_fit(gram, product, factor)

    def _accept(self, mode: int, factor: Any) -> None:
        """Put a factor in the place of an old one."""
        self._units[mode], self.weights = unit_columns(factor, self.dtype, self._units[mode])
        self.grams[mode] = gram_matrix(self._units[mode])
        if mode == len(self.shape) - 1:
            self._last = factor

    def _note_fit(self, gram: FloatArray, product: Any, factor: Any) -> None:
        """Expand the squared error, from products that are at hand."""
        inner = float(self._xp.sum(product * factor))
        model = float(np.sum(gram * gram_matrix(factor)))
        square = max(self.squared_norm - 2.0 * inner + model, 0.0)
        self.formula_fit = 1.0 - math.sqrt(square / self.squared_norm)

    def _model_square(self) -> float:
        """Squared norm of the model."""
        return float(self.weights @ hadamard(self.grams) @ self.weights)

    def _row(self, values: FloatArray) -> Any:
        """Host numbers, one per term, next to the factors."""
        if self._on_host:
            return values
        return self._xp.asarray(values, device=device_of(self._units[0]))

    def _wide(self, array: Any, *, copy: bool = False) -> Any:
        """Convert to float64."""
        if self._on_host:
            return array.astype(np.float64, copy=copy)
        return self._xp.astype(array, self._xp.float64, copy=copy)


def _precision(tensor: Any, policy: Any) -> str:
    """Name of the arithmetic of the products with the tensor."""
    own = "float32" if str(_values(tensor).dtype).endswith("float32") else "float64"
    if policy is None or policy.name == "float64":
        return own
    return str(policy.name)


def _values(tensor: Any) -> Any:
    """Whatever carries the dtype of the entries."""
    return tensor.values if hasattr(tensor, "coordinates") else tensor


def _working_dtype(tensor: Any, factor: Any) -> Any:
    """Dtype of the factors in products with the tensor."""
    xp = namespace_of(factor)
    return xp.float32 if str(_values(tensor).dtype).endswith("float32") else xp.float64
