"""Sums of products of data columns, and the moments that they hold."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.incomplete_tensor import IncompleteSymmetricTensor
from tensoralg.core.indices import square_free_indices
from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.moment_algebra import gram_positions, homogenised_positions
from tensoralg.mixtures.moment_input import checked_gram_shape, checked_integer, checked_unit

__all__ = ["MomentSums"]

FloatArray = NDArray[np.float64]


class MomentSums:
    """What a moment accumulator holds, and how moments are read from it.

    Parameters
    ----------
    dimension, order, shift, scale, powers, missing
        As in :class:`tensoralg.mixtures.MomentAccumulator`.
    """

    def __init__(
        self,
        dimension: int,
        order: int,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        powers: bool = False,
        missing: bool = False,
    ) -> None:
        self.dimension = checked_integer(dimension, "dimension", 1)
        self.order = checked_integer(order, "order", 1)
        self.powers, self.missing = bool(powers), bool(missing)
        self._shape = checked_gram_shape(self.dimension, self.order, powers=self.powers)
        self.shift = checked_unit(shift, "shift", self.dimension)
        unit = checked_unit(1.0 if scale is None else scale, "scale", self.dimension, positive=True)
        assert unit is not None
        self.scale = unit
        self.count = 0
        self.total_weight = 0.0
        self._gram: Any = None
        self._mask_gram: Any = None

    def __repr__(self) -> str:
        options = "".join(f", {name}=True" for name in ("powers", "missing") if getattr(self, name))
        return (
            f"MomentAccumulator(dimension={self.dimension}, order={self.order}{options}) "
            f"of {self.count} rows"
        )

    @property
    def gram(self) -> Any:
        """The sums G, shape (n_a, n_b), in the namespace of the data; numpy zeros without any."""
        return self._shown(self._gram)

    @property
    def mask_gram(self) -> Any:
        """Sums of the weights that entered each entry of G, or None unless `missing`."""
        return self._shown(self._mask_gram) if self.missing else None

    def _shown(self, array: Any) -> Any:
        if array is None:
            return np.zeros(self._shape)
        if isinstance(array, np.ndarray):
            array = array.view()
            array.flags.writeable = False
        return array

    def homogenised(self) -> FloatArray:
        """All moments as the entries of one symmetric tensor with a constant coordinate.

        Coordinate 0 is the constant 1, data coordinate j (standardised) has index j + 1.

        Returns
        -------
        ndarray of float64, shape (C(d+m, m),)
            Entry k is the mean of the product over ``multi_indices(d + 1, m)[k]``; NaN where it
            is not accumulated (a coordinate three times, unless `powers`) or never observed.
            On the host, whatever the namespace of the data.

        Raises
        ------
        ValueError
            No rows were seen.

        Examples
        --------
        >>> from tensoralg.mixtures import MomentAccumulator
        >>> accumulator = MomentAccumulator(1, 3, shift=0).update([[1.0], [3.0]])
        >>> accumulator.homogenised().tolist()  # 1, x, x^2, x^3
        [1.0, 2.0, 5.0, nan]
        """
        left, right = homogenised_positions(self.dimension, self.order, powers=self.powers)
        values = self._means()[left, right]
        values[(left < 0) | (right < 0)] = np.nan
        return values

    def moments(self, order: int) -> IncompleteSymmetricTensor:
        """Means of the products over pairwise distinct coordinates.

        Parameters
        ----------
        order : int
            Number of factors, 1 to the accumulator's order, at most d.

        Returns
        -------
        IncompleteSymmetricTensor
            Means of products of (x - shift) / scale at the square-free multi-indices; with
            `missing` at those that some row has observed entirely.

        Raises
        ------
        ValueError
            An order out of range, or no rows were seen.

        Examples
        --------
        >>> from tensoralg.mixtures import MomentAccumulator
        >>> MomentAccumulator(3, 3, shift=0).update([[1.0, 2.0, 5.0]]).moments(2).values.tolist()
        [2.0, 5.0, 10.0]
        """
        order = checked_integer(order, "order", 1)
        largest = min(self.order, self.dimension)
        if order > largest:
            raise ValueError(
                f"order must be at most {largest} (the accumulator's order {self.order}, its "
                f"dimension {self.dimension}), got {order}"
            )
        indices = square_free_indices(self.dimension, order)
        left, right = gram_positions(indices + 1, self.dimension, powers=self.powers)
        values = self._means()[left, right]
        observed = ~np.isnan(values)
        return IncompleteSymmetricTensor(indices[observed], values[observed], order, self.dimension)

    def _means(self) -> FloatArray:
        if self._gram is None:
            raise ValueError("no rows were seen: call update with rows of positive weight first")
        gram: FloatArray = to_numpy(self._gram)
        if not self.missing:
            return np.asarray(gram / gram[0, 0])
        observed = to_numpy(self._mask_gram)
        with np.errstate(invalid="ignore"):
            return np.where(observed > 0, gram / observed, np.nan)

    def _same_basis(self, other: "MomentSums") -> bool:
        assert self.shift is not None
        assert other.shift is not None
        return np.array_equal(self.shift, other.shift) and np.array_equal(self.scale, other.scale)
