"""Estimating equations of the two estimators: per-row scores, and how the estimate answers them.

Both estimators solve ``sum_n s_n(theta) = 0``; to first order a row moves the estimate by
``bread^-1 s_n``, whatever the model says about its distribution. Parameters are in standardised
coordinates, in the order weights, means row by row, variances row by row.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.fitting import Mixture
from tensoralg.solvers.elementary_symmetric import elementary_symmetric, without_variable
from tensoralg.solvers.expectation_maximization import responsibilities
from tensoralg.solvers.feasible_least_squares import normal_matrix

__all__ = ["Equations", "LikelihoodEquations", "MomentEquations", "unit_of"]

Array = NDArray[np.float64]
_MASS_PENALTY = 3.0  # of the total mass in feasible least squares


class Equations(Protocol):
    """What an estimator has to say about its standard errors.

    Attributes
    ----------
    mixture : Mixture
        The estimate.
    expansion : ndarray of shape (r (2 d + 1), P)
        Change of all parameters with the free ones.
    """

    mixture: Mixture
    expansion: Array

    def scores(self, z: Array, weights: Array) -> Array:
        """Scores of standardised rows, shape (n, P)."""
        ...

    def bread(self) -> Array:
        """Sum over the rows seen of the derivative of minus the scores, shape (P, P)."""
        ...


def _simplex_basis(r: int) -> Array:
    """Orthonormal basis of the vectors of sum 0, shape (r, r - 1)."""
    return np.linalg.qr(np.column_stack([np.ones(r), np.eye(r)[:, : r - 1]]))[0][:, 1:]


class LikelihoodEquations:
    """Scores of the log-likelihood, and the observed information by Louis' formula.

    Parameters
    ----------
    mixture : Mixture
        The estimate.
    fixed : ndarray of bool, shape (r, d)
        Variances that were not estimated: those at the floor.
    missing : bool
        Whether NaN is a missing cell.

    References
    ----------
    .. [1] T. A. Louis, "Finding the observed information matrix when using the EM algorithm",
       J. R. Stat. Soc. B 44, 1982.
    """

    def __init__(self, mixture: Mixture, fixed: NDArray[np.bool_], *, missing: bool) -> None:
        self.mixture, self.missing = mixture, missing
        r, d = mixture.means.shape
        free = np.flatnonzero(np.concatenate([np.ones(r * d, dtype=bool), ~fixed.ravel()]))
        self.expansion = np.zeros((r + 2 * r * d, r - 1 + len(free)))
        self.expansion[:r, : r - 1] = _simplex_basis(r)
        self.expansion[r + free, r - 1 + np.arange(len(free))] = 1.0
        self._free = free
        self._information = np.zeros((r + 2 * r * d,) * 2)
        self._outer = np.zeros((r - 1 + len(free),) * 2)

    def scores(self, z: Array, weights: Array) -> Array:
        """Scores of standardised rows; their information is added up."""
        w, mu, var = self.mixture.weights, self.mixture.means, self.mixture.variances
        r, d = mu.shape
        q = responsibilities(z, w, mu, var, missing=self.missing)
        by_weight = q / w
        by_mean, by_variance = np.empty((len(z), r, d)), np.empty((len(z), r, d))
        for s in range(r):
            observed = np.isfinite(z)
            gap = np.where(observed, z - mu[s], 0.0)
            c_mean = gap / var[s]
            c_variance = 0.5 * np.where(observed, c_mean**2 - 1.0 / var[s], 0.0)
            share = (weights * q[:, s])[:, None]
            self._add_information(s, gap, observed, np.hstack([c_mean, c_variance]), share)
            by_mean[:, s], by_variance[:, s] = q[:, s, None] * c_mean, q[:, s, None] * c_variance
        rest = np.hstack([by_mean.reshape(len(z), -1), by_variance.reshape(len(z), -1)])
        found = np.hstack([by_weight @ self.expansion[:r, : r - 1], rest[:, self._free]])
        self._outer += found.T @ (weights[:, None] * found)
        return found

    def _add_information(
        self, s: int, gap: Array, observed: NDArray[np.bool_], c: Array, share: Array
    ) -> None:
        """Add E[complete information] - E[c c^T] of component s; both cancel for its weight."""
        r, d = self.mixture.means.shape
        var, j = self.mixture.variances[s], np.arange(d)
        means, variances = r + s * d + j, r + r * d + s * d + j
        both = np.concatenate([means, variances])
        mass = (share * observed).sum(axis=0)
        first, second = (share * gap).sum(axis=0), (share * gap**2).sum(axis=0)
        total = self._information
        total[means, means] += mass / var
        total[means, variances] += first / var**2
        total[variances, means] += first / var**2
        total[variances, variances] += second / var**3 - 0.5 * mass / var**2
        total[np.ix_(both, both)] -= c.T @ (share * c)
        with_weight = (share * c).sum(axis=0) / self.mixture.weights[s]
        total[s, both] -= with_weight
        total[both, s] -= with_weight

    def bread(self) -> Array:
        """Observed information of the rows seen so far."""
        information: Array = self.expansion.T @ self._information @ self.expansion + self._outer
        return information


class MomentEquations:
    """Scores of feasible least squares for weights and means, then of the variances.

    The normal equations of both steps are polynomials in the row; inner products of monomials are
    elementary symmetric polynomials, so that no vector of moments is formed.

    Parameters
    ----------
    mixture : Mixture
        The estimate.
    fixed : ndarray of bool, shape (r, d)
        Variances that were not estimated: those at the floor.
    order : int
        Highest degree of the moments.
    noise : float
        Relative residual, which set the pull of the variances towards the pooled one.
    """

    def __init__(
        self, mixture: Mixture, fixed: NDArray[np.bool_], *, order: int, noise: float
    ) -> None:
        self.mixture, self.order = mixture, order
        r, d = mixture.means.shape
        self._free = np.flatnonzero(~fixed.ravel())
        n = r * (d + 1)
        self.expansion = np.zeros((r + 2 * r * d, n + len(self._free)))
        self.expansion[:n, :n] = np.eye(n)
        # least squares leaves the total mass almost free; the weights are normalised after it
        self.expansion[:r, :r] -= mixture.weights[:, None]
        self.expansion[n + self._free, n + np.arange(len(self._free))] = 1.0
        self._noise, self._rows = noise, 0.0
        self._factors = np.ones(order + 1)
        self._factors[0] = _MASS_PENALTY
        expected = self._products(mixture.means, mixture.means**2 + mixture.variances)
        self._expected = mixture.weights @ expected

    def _products(self, z: Array, square: Array) -> Array:
        """Transposed Jacobians of both steps times the monomials of the rows."""
        w, mu = self.mixture.weights, self.mixture.means
        c = z[:, None, :] * mu[None]
        e = elementary_symmetric(c, self.order)
        rest = without_variable(np.broadcast_to(e[:, :, None, :], (*c.shape, self.order + 1)), c)
        by_mean = w[:, None] * z[:, None, :] * (rest[..., :-1] @ self._factors[1:] ** 2)
        by_variance = w[:, None] * square[:, None, :] * rest[..., : self.order - 1].sum(axis=-1)
        by_weight = e @ self._factors**2
        flat = by_variance.reshape(len(z), -1)[:, self._free]
        return np.hstack([by_weight, by_mean.reshape(len(z), -1), flat])

    def scores(self, z: Array, weights: Array) -> Array:
        """Scores of standardised rows."""
        self._rows += float(weights.sum())
        return self._products(z, z**2) - self._expected

    def bread(self) -> Array:
        """Differentiate minus the scores: block triangular, means do not know of variances."""
        w, mu = self.mixture.weights, self.mixture.means
        n, k = mu.size + len(w), len(self._free)
        bread = np.zeros((n + k, n + k))
        bread[:n, :n] = normal_matrix(w, mu, self._factors)
        cross, within = self._variance_blocks()
        cross[:, : len(w)] -= cross[:, : len(w)] @ np.outer(w, np.ones(len(w)))
        bread[n:, :n], bread[n:, n:] = cross[self._free], within[np.ix_(self._free, self._free)]
        return self._rows * bread

    def _variance_blocks(self) -> tuple[Array, Array]:
        """Differentiate the equations of the variances by (weights, means) and by variances."""
        w, mu, m = self.mixture.weights, self.mixture.means, self.order
        r, d = mu.shape
        index = np.arange(d)
        c = mu[:, None, :] * mu[None]
        e = elementary_symmetric(c, m)
        once = without_variable(np.broadcast_to(e[:, :, None, :], (r, r, d, m + 1)), c)
        inner = once[..., : m - 1].sum(axis=-1)  # (s, t, j): <mu_s^g, mu_t^g>, j not in g
        second = mu**2 + self.mixture.variances
        pair = w[:, None] * w[None, :]
        by_weight = np.einsum("s,stj,tj->sjt", w, inner, second)
        twice = without_variable(
            np.broadcast_to(once[:, :, :, None, :], (r, r, d, d, m + 1)), c[:, :, None, :]
        )[..., : m - 2].sum(axis=-1)
        by_mean = np.einsum("st,tj,sk,stjk->sjtk", pair, second, mu, twice)
        own = 2.0 * np.einsum("st,stj,tj->jst", pair, inner, mu)
        by_mean[:, index, :, index] = own
        cross = np.concatenate([by_weight.reshape(r * d, r), by_mean.reshape(r * d, r * d)], axis=1)
        within = np.zeros((r, d, r, d))
        design = np.einsum("st,stj->jst", pair, inner)
        # the same pull towards the pooled variance as in the estimate
        norms = np.sqrt(design[:, np.arange(r), np.arange(r)]).mean(axis=1)
        pull = (min(max(self._noise, 1e-10), 0.1) * norms) ** 2
        within[:, index, :, index] = design + pull[:, None, None] * np.eye(r)
        return cross, within.reshape(r * d, r * d)


def unit_of(weights: Any, means: Any, variances: Any) -> tuple[Array, Array]:
    """Mean and standard deviation of every column of a mixture.

    Parameters
    ----------
    weights : array_like of shape (r,)
    means, variances : array_like of shape (r, d)
        The mixture, in any units.

    Returns
    -------
    tuple of ndarray of shape (d,)
        Means and standard deviations.

    Examples
    --------
    >>> [a.tolist() for a in unit_of([0.5, 0.5], [[1.0], [3.0]], [[3.0], [3.0]])]
    [[2.0], [2.0]]
    """
    w, mu, var = (np.asarray(a, dtype=np.float64) for a in (weights, means, variances))
    # measured from one of the means: large offsets would cost digits
    origin = mu[0]
    centre = w @ (mu - origin)
    spread = w @ (var + (mu - origin - centre) ** 2)
    return origin + centre, np.sqrt(spread)
