"""Moment matching in many coordinates without moments: value and gradient of the objective.

Weighted points match the square-free moments of data rows in the sense of least squares,

    f(w, z) = 1/2 sum_q C_q || sum_s w_s z_s^(q) - E[x^(q)] ||^2,

where x^(q) holds the square-free monomials of degree q. There are C(d, q) of them, and none is
formed: their inner products are elementary symmetric polynomials,

    f = 1/2 sum_{s,t} w_s w_t k(z_s, z_t) - sum_s w_s E[k(x, z_s)] + constant,
    k(x, z) = sum_q C_q e_q(x_1 z_1, .., x_d z_d).

One pass over the rows gives value and gradient at O(N d r m) operations, in chunks, by compiled
code for numpy rows and by matrix products in any other array library.

References
----------
.. [1] S. Sherman, T. G. Kolda, "Estimating higher-order moments using symmetric tensor
   decomposition", SIAM J. Matrix Anal. Appl. 41 (2020): moments that stay implicit.
.. [2] B. Guo, J. Nie, Z. Yang, "Diagonal Gaussian mixture models and higher order tensor
   decompositions", arXiv:2401.01337: why only square-free moments are matched.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.gpu.implicit_sums import elementary_from_powers, implicit_sums
from tensoralg.solvers.block_sums import BlockRows, Chunks, observed_share, sum_over_rows
from tensoralg.solvers.implicit_gram import ImplicitGram

__all__ = ["ImplicitEvaluation", "ImplicitMoments"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ImplicitEvaluation:
    """The objective at given weights and points.

    Attributes
    ----------
    value : float
        The objective less a constant of the data, half the squared norm of their moments.
    by_weight : ndarray of shape (r,)
        Derivatives by the weights.
    by_point : ndarray of shape (r, d)
        Derivatives by the points.
    data_products : ndarray of shape (r, m + 1)
        ``E[e_q(x * z_s)]`` of every point and degree.
    """

    value: float
    by_weight: Array
    by_point: Array
    data_products: Array


class ImplicitMoments:
    """The square-free moments of standardised rows, as an objective for weighted points.

    Parameters
    ----------
    chunks : callable
        Called once per pass; returns an iterable of ``(X, sample_weight)`` with X (n, d) of any
        array library and sample_weight (n,) or None. With a method ``reduce(function, merge)``
        that is called instead: sums are then taken where the chunks are.
    factors : array_like of shape (m + 1,)
        Factor C_q >= 0 of the squared mismatch of every degree q from 0 to m, m >= 1.
    shift, scale : array_like of shape (d,)
        Rows are taken as ``(x - shift) / scale``.
    missing : bool, default False
        NaN marks a missing cell. Cells must be missing independently of the values and of each
        other: a product is corrected by the shares of its columns. Takes one pass at once.

    Attributes
    ----------
    n_passes : int
        How often the rows were read.

    Raises
    ------
    ShapeError
        `shift`, `scale` and the chunks do not fit together.
    ValueError
        `factors` are not at least two finite numbers >= 0; no row of positive weight; NaN without
        ``missing=True``.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]])
    >>> moments = ImplicitMoments(
    ...     lambda: [(points, None)], np.ones(4), shift=np.zeros(3), scale=np.ones(3))
    >>> exact = moments.evaluate(np.array([0.5, 0.5]), points)
    >>> float(abs(exact.by_weight).max()), float(abs(exact.by_point).max())
    (0.0, 0.0)
    """

    def __init__(
        self,
        chunks: Chunks,
        factors: ArrayLike,
        *,
        shift: ArrayLike,
        scale: ArrayLike,
        missing: bool = False,
    ) -> None:
        self.factors = np.asarray(factors, dtype=np.float64)
        origin = np.asarray(shift, dtype=np.float64)
        unit = np.asarray(scale, dtype=np.float64)
        _check(self.factors, origin, unit)
        self._rows = BlockRows(chunks, [np.arange(len(origin))], origin, unit)
        self.n_passes = int(missing)
        if missing:
            self._rows.observed = observed_share(self._rows)

    @property
    def dimension(self) -> int:
        """Number of coordinates d."""
        return self._rows.dimension

    def evaluate(self, weights: ArrayLike, points: ArrayLike) -> ImplicitEvaluation:
        """Evaluate the objective and its gradient in one pass over the rows.

        Parameters
        ----------
        weights : array_like of shape (r,)
            Weights w_s.
        points : array_like of shape (r, d)
            Points z_s, in standardised coordinates.

        Returns
        -------
        ImplicitEvaluation
            Value and derivatives.

        Raises
        ------
        ShapeError
            `weights` and `points` do not fit the rows or each other.
        """
        w, z = self._checked(weights, points)
        products, slopes = self._averages(z, 1)
        data = products @ self.factors
        by_weight, by_point = ImplicitGram(w, z, self.factors).product(w, np.zeros_like(z))
        return ImplicitEvaluation(
            float(w @ (0.5 * by_weight - data)),
            by_weight - data,
            by_point - w[:, None] * slopes,
            products,
        )

    def second_moments(self, weights: ArrayLike, points: ArrayLike) -> Array:
        """Read the means of x_j^2 of every component, in one pass over the rows.

        ``E[x_j^2 x^a]`` over the square-free a without j, of degree up to m - 1, is matched in
        the sense of least squares by ``sum_s w_s E_s[x_j^2] z_s^a``.

        Parameters
        ----------
        weights : array_like of shape (r,)
            Weights w_s of the components.
        points : array_like of shape (r, d)
            Their means.

        Returns
        -------
        ndarray of shape (r, d)
            E_s[x_j^2] in standardised coordinates; noise can make it too small.

        Raises
        ------
        ShapeError
            `weights` and `points` do not fit the rows or each other.
        """
        w, z = self._checked(weights, points)
        _, reads = self._averages(z, 2)
        if self._rows.observed is not None:
            # the cell itself is there once, not twice
            reads = reads * self._rows.observed
        return ImplicitGram(w, z, self.factors).solve_columns(reads)

    def mean_errors(self, weights: ArrayLike, points: ArrayLike) -> Array:
        """Estimate the standard errors of the means at a least-squares fit, in one pass.

        At the optimum the mean of component s is ``E[l_s(x) x_j]`` with functionals l_s of the
        other coordinates that are dual to the components. The error counted is that of the rows
        that they average, with integer weights as repetitions; not counted is that the
        functionals depend on the estimates.

        Parameters
        ----------
        weights : array_like of shape (r,)
            Weights w_s of the components.
        points : array_like of shape (r, d)
            Their means.

        Returns
        -------
        ndarray of shape (r, d)
            Standard errors in standardised coordinates; infinite where components coincide.

        Raises
        ------
        ShapeError
            `weights` and `points` do not fit the rows or each other.
        """
        w, z = self._checked(weights, points)
        kernel = ImplicitGram(w, z, self.factors).kernels[1] * w
        try:
            dual = np.linalg.inv(kernel).T
        except np.linalg.LinAlgError:
            return np.full(z.shape, np.inf)
        self.n_passes += 1
        zeroth, first, second, total = sum_over_rows(
            self._rows, _squared_sums, z, self.factors[1:].tolist(), dual
        )
        square = second - 2.0 * z * first + z**2 * zeroth[:, None]
        return np.asarray(np.sqrt(np.maximum(square, 0.0)) / total)

    def _averages(self, points: Array, power: int) -> tuple[Array, Array]:
        """Average the products with the points, and x_j^power times those without x_j."""
        self.n_passes += 1
        values, reads, total = sum_over_rows(
            self._rows, _sums, points, len(self.factors) - 1, self.factors[1:].tolist(), power
        )
        if not (np.isfinite(values).all() and np.isfinite(reads).all()):
            raise ValueError("chunks: X holds NaN or inf, or products overflow (NaN: missing=True)")
        return values / total, reads / total

    def _checked(self, weights: ArrayLike, points: ArrayLike) -> tuple[Array, Array]:
        w = np.asarray(weights, dtype=np.float64)
        z = np.asarray(points, dtype=np.float64)
        if z.ndim != 2 or w.shape != z.shape[:1] or z.shape[1] != self.dimension or len(w) == 0:
            raise ShapeError(
                f"weights of shape (r,) and points of shape (r, {self.dimension}) are needed, "
                f"r >= 1; got {w.shape} and {z.shape}"
            )
        return w, z


def _check(factors: Array, shift: Array, scale: Array) -> None:
    if factors.ndim != 1 or len(factors) < 2 or not (factors >= 0).all():
        raise ValueError(
            f"factors must be m + 1 >= 2 numbers >= 0, one for every degree; got {factors}"
        )
    if not np.isfinite(factors).all():
        raise ValueError(f"factors must be finite; got {factors}")
    if shift.ndim != 1 or shift.shape != scale.shape:
        raise ShapeError(
            f"shift and scale must both have shape (d,); got {shift.shape} and {scale.shape}"
        )
    if not (np.isfinite(shift).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("shift must be finite and scale finite and positive")


def _sums(
    rows: BlockRows, points: Array, order: int, factors: list[float], power: int
) -> tuple[Any, Any, float]:
    """Take the sums of `implicit_sums` over all rows, and their total weight."""
    values: Any = 0.0
    reads: Any = 0.0
    total = 0.0
    for x, w, xp in rows.filled():
        more, read = implicit_sums(x, w, xp.asarray(points), order, factors, power=power)
        values, reads = values + more, reads + read
        total += float(x.shape[0] if w is None else xp.sum(w))
    return values, reads, total


def _squared_sums(
    rows: BlockRows, points: Array, factors: list[float], dual: Array
) -> tuple[Any, Any, Any, float]:
    """Sum l^2, l^2 x and l^2 x^2 of the functionals l over all rows, and the weights."""
    zeroth: Any = 0.0
    first: Any = 0.0
    second: Any = 0.0
    total = 0.0
    for x, w, xp in rows.filled():
        power, sums = x, []
        for k in range(1, len(factors) + 1):
            sums.append(power @ xp.asarray(points.T**k))
            power = power * x
        e = elementary_from_powers(sums)[:-1]
        values = sum(factor * part for factor, part in zip(factors, e, strict=True))
        square = (values @ xp.asarray(dual)) ** 2
        total += float(x.shape[0] if w is None else xp.sum(w))
        if w is not None:
            square = square * w[:, None]
        zeroth = zeroth + xp.sum(square, axis=0)
        first, second = first + square.T @ x, second + square.T @ (x * x)
    return zeroth, first, second, total
