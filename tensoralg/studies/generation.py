"""Known mixtures and data drawn from them, determined by the numbers of a cell alone."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.studies.specification import CellKey

__all__ = [
    "OUTLIER_DEVIATIONS",
    "MixtureParameters",
    "draw_mixture",
    "draw_samples",
    "method_seed",
    "spoil_samples",
]

# one stream per purpose, so that adding a draw to one cannot move another
_MIXTURE, _SAMPLES, _METHOD, _OUTLIERS, _MISSING = 1, 2, 3, 4, 5
OUTLIER_DEVIATIONS = 40.0
_CHUNK = 65536


@dataclass(frozen=True, slots=True, eq=False, init=False)
class MixtureParameters:
    """The parameters of a Gaussian mixture with diagonal covariances.

    Attributes
    ----------
    weights : (r,) float array
        Mixing proportions.
    means : (r, d) float array
        Means.
    covariances : (r, d) float array
        Variances, one row per component.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    covariances: NDArray[np.float64]

    def __init__(self, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike) -> None:
        given = {"weights": weights, "means": means, "covariances": covariances}
        for name, values in given.items():
            array = np.array(values, dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def is_finite(self) -> bool:
        """Tell whether every parameter is a finite number."""
        return all(np.isfinite(a).all() for a in (self.weights, self.means, self.covariances))

    def score(self, X: ArrayLike) -> float:
        """Mean log-likelihood per row, by scikit-learn: the same referee for every method.

        Parameters
        ----------
        X : (N, d) array-like
            Rows.

        Returns
        -------
        float
            Mean natural log-density.
        """
        rows, referee = np.asarray(X), self._referee()
        starts = range(0, len(rows), _CHUNK)
        total = sum(referee.score_samples(rows[k : k + _CHUNK]).sum() for k in starts)
        return float(total) / len(rows)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Assign every row to the component of the largest posterior probability.

        Parameters
        ----------
        X : (N, d) array-like
            Rows.

        Returns
        -------
        (N,) int array
            Positions of the components.
        """
        return np.asarray(self._referee().predict(np.asarray(X)), dtype=np.int64)

    def _referee(self) -> Any:
        from sklearn.mixture import GaussianMixture

        referee = GaussianMixture(len(self.weights), covariance_type="diag")
        referee.weights_, referee.means_ = self.weights, self.means
        referee.covariances_ = self.covariances
        referee.precisions_cholesky_ = 1 / np.sqrt(self.covariances)
        return referee


def draw_mixture(key: CellKey) -> MixtureParameters:
    """Draw the known mixture of a cell.

    Means are ``separation * N(0, I)``, variances ``U(0.3, 1.5)``, weights ``Dirichlet(5)``. The
    mixture depends on dimension, components, separation and seed only: other sample sizes,
    orders and methods of the same seed are compared on the same mixture.

    Parameters
    ----------
    key : CellKey
        The cell.

    Returns
    -------
    MixtureParameters
        r components in d dimensions.

    Examples
    --------
    >>> from tensoralg.studies.generation import draw_mixture
    >>> from tensoralg.studies.specification import CellKey
    >>> draw_mixture(CellKey(8, 3, 3, 1000, 0.5, 0, "moments")).means.shape
    (3, 8)
    """
    rng = np.random.default_rng(_sequence(_MIXTURE, key))
    shape = (key.components, key.dimension)
    means = key.separation * rng.standard_normal(shape)
    covariances = rng.uniform(0.3, 1.5, shape)
    return MixtureParameters(rng.dirichlet(np.full(key.components, 5.0)), means, covariances)


def draw_samples(key: CellKey, mixture: MixtureParameters) -> NDArray[np.float64]:
    """Draw the data of a cell: the same for every method and order of a grid point and seed.

    Parameters
    ----------
    key : CellKey
        The cell; its number of samples and seed are used.
    mixture : MixtureParameters
        The known mixture, from `draw_mixture`.

    Returns
    -------
    (N, d) float array
        Rows.

    Examples
    --------
    >>> from tensoralg.studies.generation import draw_mixture, draw_samples
    >>> from tensoralg.studies.specification import CellKey
    >>> key = CellKey(8, 3, 3, 1000, 0.5, 0, "moments")
    >>> draw_samples(key, draw_mixture(key)).shape
    (1000, 8)
    """
    rng = np.random.default_rng(_sequence(_SAMPLES, key, key.samples))
    labels = rng.choice(key.components, size=key.samples, p=mixture.weights)
    scales = np.sqrt(mixture.covariances)
    X = np.empty((key.samples, key.dimension))
    for start in range(0, key.samples, _CHUNK):
        rows, chosen = X[start : start + _CHUNK], labels[start : start + _CHUNK]
        rng.standard_normal(out=rows)
        rows *= scales[chosen]
        rows += mixture.means[chosen]
    return X


def spoil_samples(
    key: CellKey, mixture: MixtureParameters, X: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Replace rows by wild ones and take cells away, as the cell says.

    A share `key.outliers` of the rows, at random places, is drawn anew: every cell is normal about
    the mean of its column with forty times the column's standard deviation. Then every cell of the
    result is taken away with probability `key.missing`, independently of everything: what is
    missing is NaN. Larger shares spoil what smaller ones spoil, and more.

    Parameters
    ----------
    key : CellKey
        The cell.
    mixture : MixtureParameters
        The known mixture; its mean and deviations place the wild rows.
    X : (N, d) float array
        Rows from `draw_samples`; they stay as they are.

    Returns
    -------
    (N, d) float array
        `X` itself where nothing is to be spoiled.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.studies.generation import draw_mixture, draw_samples, spoil_samples
    >>> from tensoralg.studies.specification import CellKey
    >>> key = CellKey(8, 3, 3, 1000, 0.5, 0, "moments", outliers=0.01, missing=0.2)
    >>> mixture = draw_mixture(key)
    >>> X = spoil_samples(key, mixture, draw_samples(key, mixture))
    >>> int((abs(X) > 20).any(axis=1).sum()), round(float(np.isnan(X).mean()), 1)
    (10, 0.2)
    """
    if key.grid_point.is_clean():
        return X
    spoiled = X.copy()
    if key.outliers:
        rng = np.random.default_rng(_sequence(_OUTLIERS, key, key.samples))
        chosen = rng.permutation(len(X))[: round(key.outliers * len(X))]
        mean = mixture.weights @ mixture.means
        second = mixture.weights @ (mixture.means**2 + mixture.covariances)
        deviation = OUTLIER_DEVIATIONS * np.sqrt(second - mean**2)
        spoiled[chosen] = mean + deviation * rng.standard_normal((len(chosen), X.shape[1]))
    if key.missing:
        rng = np.random.default_rng(_sequence(_MISSING, key, key.samples))
        for start in range(0, len(X), _CHUNK):
            part = spoiled[start : start + _CHUNK]
            part[rng.random(part.shape) < key.missing] = np.nan
    return spoiled


def method_seed(key: CellKey) -> int:
    """Give the integer that seeds a method's own randomness.

    Parameters
    ----------
    key : CellKey
        The cell.

    Returns
    -------
    int
        A number below 2**32, as scikit-learn's ``random_state`` takes it.

    Examples
    --------
    >>> from tensoralg.studies.generation import method_seed
    >>> from tensoralg.studies.specification import CellKey
    >>> key = CellKey(8, 3, 3, 1000, 0.5, 0, "moments")
    >>> method_seed(key) == method_seed(key)
    True
    """
    return int(_sequence(_METHOD, key, key.samples).generate_state(1)[0])


def _sequence(purpose: int, key: CellKey, *more: int) -> np.random.SeedSequence:
    bits = int.from_bytes(struct.pack("<d", key.separation), "little")
    return np.random.SeedSequence([purpose, key.dimension, key.components, bits, key.seed, *more])
