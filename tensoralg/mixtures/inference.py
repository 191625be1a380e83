"""What a fitted mixture says about its own uncertainty."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from tensoralg.mixtures.cell_limits import CellLimits
from tensoralg.mixtures.delete_block import Refit, accumulate_blocks, jackknife, merged
from tensoralg.mixtures.density import MixtureDensity
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimating_equations import (
    Equations,
    LikelihoodEquations,
    MomentEquations,
    unit_of,
)
from tensoralg.mixtures.fitting import Mixture
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.sources import rows_to_read
from tensoralg.mixtures.uncertainty import (
    MomentTest,
    StandardErrors,
    check_size,
    leftover_moments,
    moment_test,
    read_rows,
    sandwich,
)
from tensoralg.mixtures.validation import is_count

__all__ = ["MixtureInference"]

Array = NDArray[Any]
_METHODS = ("auto", "sandwich", "jackknife")
_FROM_MOMENTS = ("moments only", "misfit", "undetermined")  # status of fits without a polish
_LEAST_BLOCKS = 10
_UNKNOWN_ROWS = 10_000  # that an iterator is taken to have


class MixtureInference(MixtureDensity):
    """The part of the estimator that looks back: standard errors, and a test of the model.

    Attributes
    ----------
    diagnostics_ : FitDiagnostics
        How the parameters came about; gets the results.
    reg_covar : float
        Floor of the variances.
    robust : bool
        Whether far rows were left out.
    """

    diagnostics_: FitDiagnostics
    reg_covar: float
    robust: bool
    _limits: CellLimits | None = None  # of the last fit, with robust=True

    def standard_errors(
        self,
        X: Any,
        sample_weight: Any = None,
        *,
        method: str = "auto",
        blocks: int = 50,
    ) -> StandardErrors:
        """Estimate standard errors of weights, means and variances.

        Parameters
        ----------
        X : array_like of shape (N, d), Dask array, iterable of chunks, or list of accumulators
            The rows that were fitted; of a Dask array one chunk after the other comes to this
            process. A fit without polish can do with ten or more :class:`MomentAccumulator` of
            blocks of them.
        sample_weight : array_like of shape (N,), optional
            Nonnegative, as in `fit`; a weight counts as that many rows.
        method : {"auto", "sandwich", "jackknife"}, default "auto"
            "sandwich" takes the scores of the rows and, for maximum likelihood, the observed
            information; it costs one pass. "jackknife" repeats the moment estimate without one
            block of rows each; it is for fits without polish only. "auto" is the sandwich where
            rows are given and moments were not averaged over missing cells.
        blocks : int, default 50
            Number of blocks of the jackknife.

        Returns
        -------
        StandardErrors
            NaN in constant columns and for variances at the floor. A short form is kept in
            ``diagnostics_.standard_errors``.

        Raises
        ------
        ValueError
            Bad arguments or data, rows that do not determine the parameters, or a method that
            the fit does not allow.
        ProblemTooLargeError
            The covariance matrix of all parameters would take more than 1 GiB.

        Examples
        --------
        >>> import numpy as np
        >>> from tensoralg.mixtures import DiagonalGaussianMixture
        >>> X = np.random.default_rng(0).normal(5.0, 2.0, (10_000, 3))
        >>> model = DiagonalGaussianMixture().fit(X)
        >>> model.standard_errors(X).means.round(2).tolist()  # 2 / sqrt(10,000)
        [[0.02, 0.02, 0.02]]
        """
        check_is_fitted(self)
        method = self._checked_method(X, method)
        if len(self._columns()) == 0:
            raise ValueError("every column was constant: nothing was estimated from the rows")
        check_size(len(self.weights_), len(self._columns()))
        if method == "jackknife":
            result = self._jackknife(X, sample_weight, blocks)
        else:
            equations, shift, scale = self._equations()
            source = rows_to_read(self, X, sample_weight)
            found = read_rows(source(), equations, shift, scale, self._columns(), [])
            joint = sandwich(equations, found)
            result = StandardErrors.from_joint(
                joint, scale, self._columns(), "sandwich", found.rows
            )
        self.diagnostics_.standard_errors = {
            name: getattr(result, name) for name in ("weights", "means", "covariances", "method")
        }
        return result

    def moment_test(self, X: Any, sample_weight: Any = None) -> MomentTest:
        """Test the mixture against moments that its parameters leave over.

        Means of products of two and three (up to `order`) different columns are compared with
        those of the mixture. A small p-value says that the rows are no mixture of that many
        diagonal Gaussians: coordinates are correlated inside components, or there are more
        components.

        Parameters
        ----------
        X : array_like of shape (N, d), Dask array, or iterable of 2-D chunks
            The rows that were fitted.
        sample_weight : array_like of shape (N,), optional
            Nonnegative, as in `fit`; a weight counts as that many rows.

        Returns
        -------
        MomentTest
            Also kept in ``diagnostics_.moment_test``.

        Raises
        ------
        TypeError
            Accumulators: the test needs rows.
        ValueError
            As `standard_errors`; or a fit of moments alone with missing cells.

        Examples
        --------
        >>> import numpy as np
        >>> from tensoralg.mixtures import DiagonalGaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 3))
        >>> model = DiagonalGaussianMixture()
        >>> bool(model.fit(X).moment_test(X).p_value > 0.01)
        True
        >>> X[:, 1] += X[:, 0]
        >>> bool(model.fit(X).moment_test(X).p_value < 1e-6)
        True
        """
        check_is_fitted(self)
        self._refuse_missing_moments("moment_test")
        columns = self._columns()
        if len(columns) == 0:
            raise ValueError("every column was constant: there are no moments to compare")
        check_size(len(self.weights_), len(columns))
        equations, shift, scale = self._equations()
        source = rows_to_read(self, X, sample_weight)
        rows: float = _UNKNOWN_ROWS
        if source.again:
            rows = sum(float(len(x) if w is None else w.sum()) for x, w in source())
        moments = leftover_moments(len(columns), self.diagnostics_.order, rows)
        found = read_rows(source(), equations, shift, scale, columns, moments)
        result = moment_test(equations, found, moments)
        self.diagnostics_.moment_test = asdict(result)
        return result

    def _columns(self) -> NDArray[np.int64]:
        """Return the columns that took part in the fit."""
        constant = self.diagnostics_.constant_columns
        return np.setdiff1d(np.arange(self.means_.shape[1]), constant)

    def _has_gaps(self) -> bool:
        """Whether cells are missing, or were hidden as far ones."""
        return bool(self.missing) or (self._limits is not None and self._limits.cells)

    def _from_moments(self) -> bool:
        """Whether the parameters solve moment equations rather than those of the likelihood."""
        return self.diagnostics_.status in _FROM_MOMENTS

    def _standardised(self) -> tuple[Mixture, NDArray[np.bool_], Array, Array]:
        """Return the mixture in its own units, its variances at the floor, shift and scale."""
        shift, scale = unit_of(self.weights_, self.means_, self.covariances_)
        c = self._columns()
        means = (self.means_.astype(np.float64) - shift)[:, c] / scale[c]
        variances = self.covariances_.astype(np.float64)[:, c] / scale[c] ** 2
        weights = self.weights_.astype(np.float64)
        mixture = Mixture(weights / weights.sum(), means, variances)
        floored = variances <= max(self.reg_covar, 1e-12) * (1 + 1e-3)
        return mixture, floored, shift, scale

    def _equations(self) -> tuple[Equations, Array, Array]:
        mixture, floored, shift, scale = self._standardised()
        if not self._from_moments():
            return LikelihoodEquations(mixture, floored, missing=self._has_gaps()), shift, scale
        self._refuse_read_out()
        noise = float(np.nan_to_num(self.diagnostics_.moment_residual))
        order = self.diagnostics_.order
        return MomentEquations(mixture, floored, order=order, noise=noise), shift, scale

    def _refuse_read_out(self) -> None:
        """Refuse moment estimates that solve no equations in the moments."""
        if self._from_moments() and self.diagnostics_.start not in ("algebraic", "least squares"):
            raise ValueError(
                f"this moment estimate (start {self.diagnostics_.start!r}) has no formula for its "
                "standard errors; fit with polish='em'"
            )

    def _checked_method(self, X: Any, method: str) -> str:
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(_METHODS)}; got {method!r}")
        self._refuse_read_out()
        blocks_given = _are_accumulators(X)
        if method == "auto":
            averaged = self._has_gaps() and self._from_moments()
            method = "jackknife" if blocks_given or averaged else "sandwich"
        if method == "jackknife":
            # with one component both estimators are the mean and variance of each column
            if not self._from_moments() and self.diagnostics_.status != "closed form":
                raise ValueError(
                    "the jackknife repeats moment estimates, but this fit maximised the likelihood "
                    "(polish='em'): pass its rows, with method='sandwich'"
                )
        elif blocks_given:
            raise ValueError("method='sandwich' needs rows; accumulators allow the jackknife only")
        else:
            self._refuse_missing_moments("the sandwich")
        return method

    def _refuse_missing_moments(self, what: str) -> None:
        if self._has_gaps() and self._from_moments():
            raise ValueError(
                f"{what} does not cover moments averaged over missing cells; use "
                "standard_errors(..., method='jackknife'), or fit with polish='em'"
            )

    def _jackknife(self, X: Any, sample_weight: Any, blocks: int) -> StandardErrors:
        mixture, _, shift, scale = self._standardised()
        order = self.diagnostics_.order
        if _are_accumulators(X):
            if sample_weight is not None:
                raise ValueError("sample_weight cannot be combined with accumulators")
            parts = _checked_blocks(X, self.means_.shape[1], order)
            if self._has_gaps():
                shift = np.asarray(parts[0].shift)
            parts = [part.rebased(shift, scale) for part in parts]
        else:
            if not is_count(blocks, _LEAST_BLOCKS):
                raise ValueError(f"blocks must be an integer >= {_LEAST_BLOCKS}; got {blocks!r}")
            source = rows_to_read(self, X, sample_weight)
            order = 2 if len(mixture.weights) == 1 else order  # all that one component reads
            parts = accumulate_blocks(
                source(), int(blocks), shift, scale, order, missing=self._has_gaps()
            )
            if len(parts) < _LEAST_BLOCKS:
                raise ValueError(
                    f"the jackknife needs at least {_LEAST_BLOCKS} rows; got {len(parts)}"
                )
        if self._has_gaps():
            centre = unit_of(self.weights_, self.means_, self.covariances_)[0]
            offset = ((centre - shift) / scale)[self._columns()]
            mixture = Mixture(mixture.weights, mixture.means + offset, mixture.variances)
        refit = Refit(mixture, self._columns(), order, max(float(self.reg_covar), 1e-12))
        joint = jackknife(parts, refit)
        rows = merged(parts).total_weight
        return StandardErrors.from_joint(joint, scale, self._columns(), "jackknife", rows)


def _are_accumulators(X: Any) -> bool:
    """Whether X is a list of accumulators."""
    return (
        isinstance(X, (list, tuple))
        and len(X) > 0
        and all(isinstance(part, MomentAccumulator) for part in X)
    )


def _checked_blocks(X: Sequence[Any], dimension: int, order: int) -> list[MomentAccumulator]:
    """Refuse too few accumulators, and those that do not hold the moments of the fit."""
    parts = [part for part in X if part.count > 0]
    if len(parts) < _LEAST_BLOCKS:
        raise ValueError(
            f"the jackknife needs at least {_LEAST_BLOCKS} accumulators with rows; got {len(parts)}"
        )
    for k, part in enumerate(parts):
        if part.dimension != dimension or part.order < order:
            raise ValueError(
                f"accumulator {k} has dimension {part.dimension} and order {part.order}; the fit "
                f"has {dimension} columns and read moments up to order {order}"
            )
    return parts
