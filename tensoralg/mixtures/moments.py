"""All moments of a data set up to an order, in one pass, chunk by chunk, mergeable."""

from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.moment_features import gram_of_rows
from tensoralg.gpu.namespaces import namespace_of, to_numpy
from tensoralg.gpu.row_chunks import chunk_mean
from tensoralg.mixtures.dask_rows import as_dask_array, is_dask, merged_update
from tensoralg.mixtures.moment_algebra import gaussian_gram, rebased_gram
from tensoralg.mixtures.moment_input import (
    check_same_place,
    checked_mixture,
    checked_rows,
    checked_unit,
    checked_weights,
    explain_not_finite,
)
from tensoralg.mixtures.moment_sums import MomentSums

__all__ = ["MomentAccumulator"]

FloatArray = NDArray[np.float64]


class MomentAccumulator(MomentSums):
    r"""Weighted sums of products of data columns, up to a total degree.

    The state is one matrix G = sum_n w_n V_a(z_n)^T V_b(z_n), where z = (x - shift) / scale, V_q
    holds the square-free monomials of degree 0 to q, a = floor(m/2) and b = m - a. It contains
    every product of m or fewer coordinates in which no coordinate occurs more than twice.
    Memory does not depend on the number of rows.

    Parameters
    ----------
    dimension : int
        Number d of columns, at least 1.
    order : int
        Highest degree m of the products, at least 1.
    shift : array_like, shape (d,), or number, optional
        Origin of every column. By default the weighted mean of the first chunk (0 for a column
        that it misses entirely).
    scale : array_like, shape (d,), or number, optional
        Unit of every column, positive; by default 1.
    powers : bool, default False
        Use all monomials instead of the square-free ones as features: G then contains every
        product of m or fewer coordinates.
    missing : bool, default False
        NaN marks a missing value. Every product is then averaged over the rows that have all of
        its factors, which is right when values are missing completely at random.

    Attributes
    ----------
    shift : ndarray of shape (d,) or None
        The origin in use; None before the first row.
    scale : ndarray of shape (d,)
        The unit in use.
    count : int
        Rows seen with positive weight.
    total_weight : float
        The sum of their weights.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.
    ProblemTooLargeError
        G would take more than 1 GiB.

    Notes
    -----
    Rows of weight 0 equal rows that are not there, whatever they contain. An update that raises
    leaves the accumulator as it was. numpy rows go through a compiled sweep on one core that
    releases the interpreter lock, so that threads can fill one accumulator each and merge them.
    Arrays of other array-API namespaces (CuPy) are computed where they live by matrix products,
    and G stays there; all chunks must be of one namespace and device.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0, 1.0], [2.0, 4.0, 5.0]])
    >>> accumulator = MomentAccumulator(3, 3).update(X[:1]).update(X[1:])
    >>> accumulator.count, accumulator.moments(3).values.tolist()
    (2, [16.0])
    """

    def update(self, X: Any, sample_weight: Any = None) -> Self:
        """Add rows.

        Parameters
        ----------
        X : array, shape (N, d), N >= 1
            Real numbers of any floating or integer dtype, computed in float64. The chunks of a
            Dask array are accumulated where they are, and the accumulators merged in a tree.
        sample_weight : array, shape (N,), optional
            Weights >= 0; 3 equals three copies of a row, 0 equals none. A first chunk whose
            weights are all 0 leaves the shift open.

        Returns
        -------
        MomentAccumulator
            Itself.

        Raises
        ------
        ShapeError
            X is not two-dimensional, has no rows, or has another number of columns.
        ValueError
            A dtype that is not real; NaN or infinity (row and column are named); a weight that is
            negative or not finite; products that exceed the float64 range.
        TypeError
            The arrays belong to another library than the earlier ones.

        Examples
        --------
        >>> MomentAccumulator(2, 3).update([[1.0, 2.0], [3.0, 5.0]], sample_weight=[1, 3])
        MomentAccumulator(dimension=2, order=3) of 2 rows
        """
        if is_dask(X):
            return self._update_blocks(X, sample_weight)
        X = checked_rows(X, self.dimension)
        weight = checked_weights(sample_weight, X)
        check_same_place(self._gram, X)
        xp = namespace_of(X)
        count, total = int(X.shape[0]), float(X.shape[0])
        if weight is not None:
            count = int(xp.count_nonzero(weight))
            total = float(xp.sum(weight, dtype=xp.float64))
            if count == 0:
                return self
        shift = self.shift
        with np.errstate(over="ignore", invalid="ignore"):
            if shift is None:
                shift = to_numpy(chunk_mean(X, weight, missing=self.missing))
                if not np.isfinite(shift).all():
                    raise explain_not_finite(X, weight, self.missing, self.order)
            gram, mask_gram = gram_of_rows(
                X,
                weight,
                shift,
                self.scale,
                self.order,
                powers=self.powers,
                missing=self.missing,
            )
            if self._gram is not None:
                gram += self._gram
                if mask_gram is not None:
                    mask_gram += self._mask_gram
        if not bool(xp.all(xp.isfinite(gram))):
            raise explain_not_finite(X, weight, self.missing, self.order)
        shift.flags.writeable = False
        self.shift, self._gram, self._mask_gram = shift, gram, mask_gram
        self.count += count
        self.total_weight += total
        return self

    def _update_blocks(self, X: Any, sample_weight: Any) -> Self:
        """Add the rows of a Dask array: its chunks are accumulated where they are."""
        X = as_dask_array(X)
        if X.shape[1] != self.dimension:
            raise ShapeError(
                f"X has {X.shape[1]} columns, but this accumulator has dimension {self.dimension}"
            )
        if X.shape[0] == 0:
            raise ShapeError(f"X has no rows: got shape {X.shape}, at least 1 row is needed")
        found = merged_update(self._empty(), X, sample_weight)
        return self if found is None else self.merge(found)

    def _empty(self) -> "MomentAccumulator":
        """Make an accumulator without rows, with this one's origin, unit and options."""
        return MomentAccumulator(
            self.dimension,
            self.order,
            shift=self.shift,
            scale=self.scale,
            powers=self.powers,
            missing=self.missing,
        )

    def merge(self, other: "MomentAccumulator") -> Self:
        """Add the rows that another accumulator has seen.

        Parameters
        ----------
        other : MomentAccumulator
            One with the same dimension, order, powers and missing; it is left as it is. Another
            shift or scale is re-expanded exactly to this one's.

        Returns
        -------
        MomentAccumulator
            Itself.

        Raises
        ------
        ValueError
            A property differs (both values are named), the shift differs with `missing`, or sums
            exceed the float64 range.
        TypeError
            `other` is no accumulator, or holds arrays of another library.

        Examples
        --------
        >>> other = MomentAccumulator(2, 3).update([[7.0, 7.0]])
        >>> MomentAccumulator(2, 3).update([[1.0, 2.0], [3.0, 5.0]]).merge(other).count
        3
        """
        if not isinstance(other, MomentAccumulator):
            raise TypeError(f"other must be a MomentAccumulator, got {type(other).__name__}")
        for name in ("dimension", "order", "powers", "missing"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"cannot merge: {name} is {mine} here and {theirs} in other")
        if other._gram is None:
            return self
        check_same_place(self._gram, other._gram)
        addend = other.rebased(self.shift, self.scale)
        if self._gram is None:
            self._gram, self._mask_gram = addend._gram, addend._mask_gram
        else:
            self._gram = _finite(self._gram + addend._gram)
            if self.missing:
                self._mask_gram = self._mask_gram + addend._mask_gram
        self.shift = addend.shift
        self.count += other.count
        self.total_weight += other.total_weight
        return self

    def rebased(self, shift: ArrayLike | None = None, scale: ArrayLike | None = None) -> Self:
        """Express the same sums with another origin and unit, exactly.

        Parameters
        ----------
        shift, scale : array_like, shape (d,), or number, optional
            The new origin and unit; by default the present ones.

        Returns
        -------
        MomentAccumulator
            A new one: what an accumulator with this shift and scale would hold after the same
            rows, up to rounding.

        Raises
        ------
        ValueError
            An argument is out of range, or sums exceed the float64 range; or another origin with
            `missing`, where the sums over other rows that it takes are not known.

        Examples
        --------
        >>> accumulator = MomentAccumulator(1, 2, shift=2).update([[1.0], [3.0]])
        >>> accumulator.rebased(shift=0).homogenised().tolist()  # 1, x, x^2
        [1.0, 2.0, 5.0]
        """
        result = deepcopy(self)
        new_shift = checked_unit(shift, "shift", self.dimension)
        new_scale = checked_unit(scale, "scale", self.dimension, positive=True)
        result.shift = self.shift if new_shift is None else new_shift
        result.scale = self.scale if new_scale is None else new_scale
        if self._gram is None or self._same_basis(result):
            return result
        assert self.shift is not None
        assert result.shift is not None
        if self.missing and not np.array_equal(self.shift, result.shift):
            raise ValueError(
                "accumulators with missing=True cannot change their shift: here it is "
                f"{self.shift}, wanted {result.shift}; give both accumulators the same shift from "
                "the start"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            gram = rebased_gram(
                self._gram,
                self.dimension,
                self.order,
                self.scale / result.scale,
                (self.shift - result.shift) / result.scale,
                powers=self.powers,
            )
        result._gram = _finite(gram)
        return result

    @classmethod
    def from_parameters(
        cls,
        weights: ArrayLike,
        means: ArrayLike,
        covariances: ArrayLike,
        order: int,
        *,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        powers: bool = False,
    ) -> "MomentAccumulator":
        """Exact moments of a diagonal Gaussian mixture, as infinitely many rows would give.

        Parameters
        ----------
        weights : array_like, shape (r,)
            Weights >= 0 with sum 1.
        means, covariances : array_like, shape (r, d)
            Means and variances (>= 0) of the components.
        order : int
            Highest degree m of the products, at least 1.
        shift, scale : array_like, shape (d,), or number, optional
            Origin (by default the mixture's mean) and unit (by default 1).
        powers : bool, default False
            As in the class.

        Returns
        -------
        MomentAccumulator
            With total weight 1 and count 0, since no row was seen.

        Raises
        ------
        ValueError
            A shape, sign, sum or order that is not accepted.

        Examples
        --------
        >>> MomentAccumulator.from_parameters([1], [[2.0]], [[3.0]], 2, shift=0).homogenised()
        array([1., 2., 7.])
        """
        w, mu, variance = checked_mixture(weights, means, covariances)
        origin = w @ mu if shift is None else shift
        result = cls(mu.shape[1], order, shift=origin, scale=scale, powers=powers)
        assert result.shift is not None
        standardised = (mu - result.shift) / result.scale
        result._gram = gaussian_gram(
            w, standardised, variance / result.scale**2, result.order, powers=result.powers
        )
        result.total_weight = 1.0
        return result


def _finite(gram: Any) -> Any:
    """Return the sums, or raise where they left the float64 range."""
    xp = namespace_of(gram)
    if not bool(xp.all(xp.isfinite(gram))):
        raise ValueError(
            "the merged or rebased sums exceed the float64 range; give the accumulators a shift "
            "and a scale that fit the data"
        )
    return gram
