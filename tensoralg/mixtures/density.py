"""What a mixture with known parameters can do: score rows, tell components apart, draw samples."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from tensoralg.gpu.namespaces import to_numpy
from tensoralg.mixtures.chunked_rows import is_device_array
from tensoralg.mixtures.dask_rows import is_dask
from tensoralg.mixtures.scoring import Scorer, lazily, total_score
from tensoralg.mixtures.validation import check_cells, is_count, positive_rows, refuse_dtype

__all__ = ["MixtureDensity", "generator_of"]

Array = NDArray[Any]


class MixtureDensity(DensityMixin, BaseEstimator):
    """The part of the estimator that needs its parameters only, not how they were found.

    Attributes
    ----------
    weights_ : ndarray of shape (r,)
        Weights.
    means_, covariances_ : ndarray of shape (r, d)
        Means and variances.
    missing : bool
        Whether NaN marks a missing cell.
    random_state : int, RandomState, Generator or None
        Source of samples.
    """

    weights_: Array
    means_: Array
    covariances_: Array
    missing: bool
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.missing)
        return tags

    def _validated(self, X: Any) -> Array:
        """Return rows of real numbers in host memory, of the width of the fit."""
        refuse_dtype(X)
        return np.asarray(
            validate_data(
                self,
                to_numpy(X) if is_device_array(X) else X,
                dtype=[np.float64, np.float32],
                ensure_all_finite=False,
                reset=False,
            )
        )

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        X = self._validated(X)
        check_cells(X, np.arange(len(X)), missing=bool(self.missing))
        return np.ascontiguousarray(X)

    def _scorer(self) -> Scorer:
        check_is_fitted(self)
        origin = np.asarray(self.means_[0], dtype=np.float64)
        means = self.means_.astype(np.float64) - origin
        return Scorer(self.weights_, means, self.covariances_, origin, bool(self.missing))

    def score_samples(self, X: Any) -> Any:
        """Log-density of every row.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.

        Returns
        -------
        ndarray of shape (N,)
            ``log p(x)``; very low, never NaN, for rows far away. Of a Dask array it is one, too,
            computed chunk by chunk when it is asked for.
        """
        if is_dask(X):
            return lazily(X, self._scorer(), "log_density", np.float64)
        return self._scorer().log_density(self._rows(X))

    def score(self, X: Any, y: None = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows; of a Dask array only sums travel.
        y : None
            Ignored.
        sample_weight : array_like or Dask array of shape (N,), optional
            Nonnegative; weight 3 equals the row three times, 0 equals deletion.

        Returns
        -------
        float
            Log-likelihood per row.
        """
        total, rows = self._total(X, sample_weight)
        return total / rows

    def _total(self, X: Any, sample_weight: Any) -> tuple[float, float]:
        """Sum the log-densities, and the weights of the rows."""
        scorer = self._scorer()
        if is_dask(X):
            return total_score(X, sample_weight, scorer)
        if sample_weight is None:
            scores = scorer.log_density(self._rows(X))
            return float(scores.sum()), float(len(scores))
        X = self._validated(X)
        rows, weights = positive_rows(X, sample_weight)
        check_cells(X[rows], rows, missing=bool(self.missing))
        assert weights is not None
        return float(weights @ scorer.log_density(X[rows])), float(weights.sum())

    def predict_proba(self, X: Any) -> Any:
        """Probability of every component given the row.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.

        Returns
        -------
        ndarray of shape (N, r)
            Rows sum to one. Of a Dask array it is one, too, computed when it is asked for.
        """
        if is_dask(X):
            r = len(self._scorer().weights)
            return lazily(X, self._scorer(), "responsibilities", np.float64, r)
        return self._scorer().responsibilities(self._rows(X))

    def predict(self, X: Any) -> Any:
        """Most probable component of every row.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.

        Returns
        -------
        ndarray of int, shape (N,)
            Component numbers from 0. Of a Dask array it is one, too, computed when it is asked for.
        """
        if is_dask(X):
            return lazily(X, self._scorer(), "labels", np.int64)
        return self._scorer().labels(self._rows(X))

    def sample(
        self, n_samples: int = 1, *, random_state: Any = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """Draw rows from the mixture.

        Parameters
        ----------
        n_samples : int, default 1
            How many rows.
        random_state : int, RandomState, Generator or None
            Source of the draw; by default the estimator's own.

        Returns
        -------
        X : ndarray of shape (n_samples, d)
            Rows, in random order of components.
        labels : ndarray of int, shape (n_samples,)
            The component of each row.

        Raises
        ------
        ValueError
            If `n_samples` is no positive integer.
        """
        check_is_fitted(self)
        if not is_count(n_samples):
            raise ValueError(f"n_samples must be an integer >= 1; got {n_samples!r}")
        rng = generator_of(self.random_state if random_state is None else random_state)
        shares = self.weights_.astype(np.float64)
        labels = rng.choice(len(shares), int(n_samples), p=shares / shares.sum())
        noise = rng.standard_normal((int(n_samples), self.means_.shape[1]))
        X = self.means_[labels] + np.sqrt(self.covariances_[labels]) * noise
        return X.astype(self.means_.dtype), labels

    def _n_parameters(self) -> int:
        r, d = self.means_.shape
        return int(r * (2 * d + 1) - 1)

    def bic(self, X: Any, *, sample_weight: Any = None) -> float:
        """Bayesian information criterion, lower is better.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.
        sample_weight : array_like or Dask array of shape (N,), optional
            Nonnegative; their sum counts as N.

        Returns
        -------
        float
            ``-2 log L + (r (2 d + 1) - 1) log N``.
        """
        total, rows = self._total(X, sample_weight)
        return float(-2.0 * total + self._n_parameters() * np.log(rows))

    def aic(self, X: Any, *, sample_weight: Any = None) -> float:
        """Akaike information criterion, lower is better.

        Parameters
        ----------
        X : array_like or Dask array of shape (N, d)
            Rows.
        sample_weight : array_like or Dask array of shape (N,), optional
            Nonnegative.

        Returns
        -------
        float
            ``-2 log L + 2 (r (2 d + 1) - 1)``.
        """
        return float(-2.0 * self._total(X, sample_weight)[0] + 2.0 * self._n_parameters())


def generator_of(random_state: Any) -> np.random.Generator:
    """Make a Generator of anything that scikit-learn accepts, or of a Generator.

    None draws fresh entropy: numpy's global state is neither read nor moved.
    """
    if random_state is None or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state)
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
