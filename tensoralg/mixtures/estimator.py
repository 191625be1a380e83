"""DiagonalGaussianMixture: how it is fitted, in scikit-learn's manners."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.mixtures.density import generator_of
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.incremental import fitting_limits, with_rows
from tensoralg.mixtures.inference import MixtureInference
from tensoralg.mixtures.moment_input import checked_mixture
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.moments_only import Fitted, fit_accumulator
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.pipeline import fit_source
from tensoralg.mixtures.robust import restricted, robust_limits
from tensoralg.mixtures.sources import rows_to_add, rows_to_fit
from tensoralg.mixtures.validation import check_settings, is_automatic
from tensoralg.solvers.coordinate_splits import Form

__all__ = ["DiagonalGaussianMixture"]

Array = NDArray[Any]
_LEAST_ROWS = 20  # from which partial_fit takes limits with robust=True


class DiagonalGaussianMixture(MixtureInference):
    """Mixture of Gaussians with diagonal covariances, recovered from moments.

    One pass over the data accumulates the moments over pairwise distinct indices; generating
    polynomials turn them into weights and means, without random starts in parameter space;
    feasible least squares refines several of those, and the best is polished by a few EM steps.
    Where moments contradict the start, leave it open or give none, k-means++ starts compete.
    With many columns a read-out of three blocks of them replaces the moments, which are too many.

    Parameters
    ----------
    n_components : int or "auto", default 1
        Number r of components; "auto" detects it from the moments (:func:`detect_rank`).
    order : int, default 3
        Highest order m of the moments, at least 3. Higher orders identify more components
        (:func:`component_bound`) and need more rows.
    form : {"affine", "homogeneous", "power"}, default "affine"
        Form of the generating polynomials; "homogeneous" is the papers'.
    polish : {"em", None}, default "em"
        Whether EM maximises the likelihood from the best moment start.
    max_iter : int, default 100
        Largest number of EM steps.
    tol : float, default 1e-6
        EM stops when the log-likelihood per row can be expected to grow by less.
    reg_covar : float, default 1e-6
        Floor of every variance relative to the variance of its column.
    robust : bool, default False
        Leave out rows that lie farther than eight robust standard deviations from the median in
        some column, or than four from that of their component; or only those cells, where that
        would take more than a tenth of the rows. A component that far away with less than a tenth
        of the weight is left out too.
    missing : bool, default False
        Accept NaN as cells missing completely at random.
    warm_start : bool, default False
        Start EM at the parameters of the last fit.
    random_state : int, RandomState, Generator or None
        Source of the random splits and combinations.

    Attributes
    ----------
    weights_ : ndarray of shape (r,)
        Weights, largest first.
    means_ : ndarray of shape (r, d)
        Means.
    covariances_ : ndarray of shape (r, d)
        Variances.
    n_components_ : int
        Effective number of components: the arrays have that many rows.
    n_iter_ : int
        EM steps over all rows.
    converged_ : bool
        Whether EM met its tolerance; True where no EM was needed.
    lower_bound_ : float
        Log-likelihood per row, before the last M step; NaN when no likelihood was computed.
    diagnostics_ : FitDiagnostics
        How the parameters came about, and what to know before trusting them.
    n_features_in_ : int
        Number of columns.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500.
    .. [2] B. Guo, J. Nie, Z. Yang, "Diagonal Gaussian mixture models and higher order tensor
       decompositions", arXiv:2401.01337.

    Examples
    --------
    >>> import numpy as np
    >>> truth = DiagonalGaussianMixture.from_parameters(
    ...     [0.3, 0.7], [[2, 2, 0, 1, 0], [-1, 0, 1, 0, 2]], np.ones((2, 5)))
    >>> X, labels = truth.sample(5000, random_state=0)
    >>> model = DiagonalGaussianMixture(2, random_state=0).fit(X)
    >>> model.diagnostics_.start, model.converged_
    ('algebraic', True)
    >>> np.round(np.sort(model.weights_), 1).tolist()
    [0.3, 0.7]
    """

    def __init__(
        self,
        n_components: int | str = 1,
        *,
        order: int = 3,
        form: str = "affine",
        polish: str | None = "em",
        max_iter: int = 100,
        tol: float = 1e-6,
        reg_covar: float = 1e-6,
        robust: bool = False,
        missing: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.order = order
        self.form = form
        self.polish = polish
        self.max_iter = max_iter
        self.tol = tol
        self.reg_covar = reg_covar
        self.robust = robust
        self.missing = missing
        self.warm_start = warm_start
        self.random_state = random_state

    def _settings(self) -> tuple[Settings, FitDiagnostics]:
        check_settings(self)
        automatic = is_automatic(self.n_components)
        settings = Settings(
            2 if automatic else int(self.n_components),  # several, until they are counted
            int(self.order),
            cast(Form, self.form),
            self.polish == "em",
            int(self.max_iter),
            float(self.tol),
            float(self.reg_covar),
            bool(self.missing),
            generator_of(self.random_state),
            automatic,
        )
        return settings, FitDiagnostics(order=settings.order, form=settings.form)

    def fit(self, X: Any, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Estimate the mixture from rows.

        Parameters
        ----------
        X : array_like of shape (N, d), Dask array, array on a device, or iterable of 2-D chunks
            Rows. An iterable that can be read once only is not polished: a warning says so. Of a
            Dask array only sums travel, on the scheduler that is in force. An array on a device
            (CuPy, torch) is copied to the host block by block, once for each pass over the rows.
        y : None
            Ignored.
        sample_weight : array_like or Dask array of shape (N,), optional
            Nonnegative; weight 3 equals the row three times, 0 equals deletion. With chunks: one
            number for each row of all of them, or an iterable with an array for each chunk.

        Returns
        -------
        DiagonalGaussianMixture
            Itself.

        Raises
        ------
        ValueError
            Bad arguments or data; the message names the argument, row and column.
        RankBoundError
            ``polish=None``, or rows that can be read only once, and more components than the
            moments determine.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(5.0, 2.0, (1000, 3))
        >>> DiagonalGaussianMixture().fit(X).means_.round(0).tolist()
        [[5.0, 5.0, 5.0]]
        """
        with self._all_or_nothing():
            settings, diagnostics = self._settings()
            source = rows_to_fit(self, X, sample_weight)
            warm = self._last_fit()
            self._limits = robust_limits(source, settings, warm) if self.robust else None
            source, settings = restricted(source, settings, self._limits, diagnostics)
            fitted = fit_source(source, settings, diagnostics, warm)
            diagnostics.missing -= diagnostics.outlying_cells
            if hasattr(self, "accumulator_"):
                del self.accumulator_  # fit starts anew
            return self._accept(fitted)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore all attributes when the block raises: the last fit stays whole."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _last_fit(self) -> Mixture | None:
        """Return the parameters to start from, where that is wanted and they fit."""
        if not self.warm_start or not hasattr(self, "weights_"):
            return None
        automatic = is_automatic(self.n_components)  # the number is compared when it is known
        wanted = len(self.means_) if automatic else self.n_components
        if self.means_.shape != (wanted, self.n_features_in_):
            warn(
                f"warm_start=True, but the last fit has means of shape {self.means_.shape} where "
                f"{(wanted, self.n_features_in_)} are needed: a new start is made"
            )
            return None
        return Mixture(
            self.weights_.astype(np.float64),
            self.means_.astype(np.float64),
            self.covariances_.astype(np.float64),
        )

    def fit_moments(self, accumulator: MomentAccumulator) -> Self:
        """Estimate the mixture from accumulated moments alone; there are no rows to polish on.

        Parameters
        ----------
        accumulator : MomentAccumulator
            Moments up to at least `order`.

        Returns
        -------
        DiagonalGaussianMixture
            Itself; ``lower_bound_`` is NaN.

        Raises
        ------
        RankBoundError
            More components than the moments determine.
        ValueError
            An accumulator that is empty, of too low an order, or without the powers that
            ``form="power"`` reads.

        Examples
        --------
        >>> import numpy as np
        >>> exact = MomentAccumulator.from_parameters(
        ...     [0.4, 0.6], [[1, 2, 3], [3, 1, 0]], np.ones((2, 3)), 3)
        >>> model = DiagonalGaussianMixture(2, random_state=0).fit_moments(exact)
        >>> (np.round(np.sort(model.means_, axis=0), 6) + 0.0).tolist()
        [[1.0, 1.0, 0.0], [3.0, 2.0, 3.0]]
        """
        with self._all_or_nothing():
            settings, diagnostics = self._settings()
            if self.robust:
                warn("robust=True has no effect on moments: far rows are in them already")
            fitted = fit_accumulator(accumulator, settings.without_polish(), diagnostics)
            self._limits = None
            self.__dict__.pop("feature_names_in_", None)
            return self._accept(fitted)

    def partial_fit(self, X: Any, y: None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Add rows to the moments seen so far and estimate the mixture from all of them.

        Parameters
        ----------
        X : array_like of shape (N, d), or Dask array
            New rows. Those of a Dask array are summed where they are. With ``robust=True`` the
            first rows after it was set, at least 20, set limits beyond which rows are left out.
        y : None
            Ignored.
        sample_weight : array_like or Dask array of shape (N,), optional
            Nonnegative.

        Returns
        -------
        DiagonalGaussianMixture
            Itself; the accumulator is ``accumulator_``.

        Raises
        ------
        ValueError
            As `fit`, or another number of columns than before.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(5.0, 2.0, (1000, 3))
        >>> model = DiagonalGaussianMixture().partial_fit(X[:500]).partial_fit(X[500:])
        >>> model.accumulator_.count
        1000
        """
        with self._all_or_nothing():
            settings, diagnostics = self._settings()
            before = getattr(self, "accumulator_", None)
            source = rows_to_add(self, X, sample_weight, before and before.dimension)
            if before is None or not self.robust:
                self._limits = None
            if self.robust and self._limits is None:
                self._limits = robust_limits(source, least_rows=_LEAST_ROWS)
            if before is not None:
                self._limits = fitting_limits(before, self._limits, missing=settings.missing)
                diagnostics.outliers = self.diagnostics_.outliers
                diagnostics.outlying_cells = self.diagnostics_.outlying_cells
            source, settings = restricted(source, settings, self._limits, diagnostics)
            accumulator, dtype = with_rows(before, source, settings)
            fitted = fit_accumulator(accumulator, settings.without_polish(), diagnostics, dtype)
            self.accumulator_ = accumulator
            return self._accept(fitted)

    @classmethod
    def from_parameters(
        cls, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike
    ) -> "DiagonalGaussianMixture":
        """Make a mixture with known parameters, ready to score and to sample.

        Parameters
        ----------
        weights : array_like of shape (r,)
            Nonnegative, of sum 1.
        means : array_like of shape (r, d)
            Means.
        covariances : array_like of shape (r, d)
            Positive variances.

        Returns
        -------
        DiagonalGaussianMixture
            As if fitted.

        Raises
        ------
        ValueError
            Parameters that are no mixture; the message names the sum and range of the weights.

        Examples
        --------
        >>> model = DiagonalGaussianMixture.from_parameters([1.0], [[0.0]], [[1.0]])
        >>> round(model.score([[0.0]]), 6)
        -0.918939
        """
        w, mu, var = checked_mixture(weights, means, covariances, positive=True)
        dtype = np.float32 if getattr(means, "dtype", None) == np.float32 else np.float64
        var = np.maximum(var, np.finfo(dtype).tiny)
        model = cls(len(w))
        model.n_features_in_ = mu.shape[1]
        note = FitDiagnostics(status="given", start="given", message="parameters were given")
        model.weights_, model.means_, model.covariances_ = (a.astype(dtype) for a in (w, mu, var))
        model.n_components_, model.n_iter_, model.converged_ = len(w), 0, True
        model.lower_bound_, model.diagnostics_ = float("nan"), note
        return model

    def _accept(self, fitted: Fitted) -> Self:
        by_weight = np.argsort(-fitted.weights, kind="stable")
        place = np.argsort(by_weight)
        self.weights_ = fitted.weights[by_weight]
        self.means_ = fitted.means[by_weight]
        self.covariances_ = fitted.covariances[by_weight]
        self.n_components_ = len(self.weights_)
        self.n_features_in_ = self.means_.shape[1]
        self.n_iter_, self.converged_ = fitted.n_iter, fitted.converged
        self.lower_bound_, self.diagnostics_ = fitted.lower_bound, fitted.diagnostics
        self.diagnostics_.floored = [(int(place[s]), j) for s, j in fitted.diagnostics.floored]
        return self

    def fit_predict(self, X: Any, y: None = None, sample_weight: ArrayLike | None = None) -> Any:
        """Fit, then predict the component of every row.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.
        y : None
            Ignored.
        sample_weight : array_like of shape (N,), optional
            Nonnegative.

        Returns
        -------
        ndarray or Dask array of int, shape (N,)
            Component numbers from 0.
        """
        return self.fit(X, sample_weight=sample_weight).predict(X)
