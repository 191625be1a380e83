"""The methods that a study compares: moments, and scikit-learn's expectation maximization."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensoralg.studies.generation import MixtureParameters

__all__ = ["METHODS", "Fit", "Method", "Problem"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What a method is given.

    Attributes
    ----------
    X : (N, d) float array
        Rows.
    n_components, order, random_state : int
        Number of components, order of the moments, seed.
    truth : MixtureParameters or None
        The known mixture, if there is one; only the method ``em-truth`` looks at it.
    """

    X: NDArray[Any]
    n_components: int
    order: int
    random_state: int
    truth: "MixtureParameters | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What a method returns.

    Attributes
    ----------
    weights : (r,) float array
        Weights.
    means, covariances : (r, d) float array
        Means and variances.
    converged : bool
        Whether the method met its own tolerance.
    message : str
        What it has to say.
    """

    weights: NDArray[Any]
    means: NDArray[Any]
    covariances: NDArray[Any]
    converged: bool
    message: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of a study.

    Attributes
    ----------
    name : str
        What the specification calls it.
    summary : str
        What it does, in one line of the report.
    fit : callable
        Takes a `Problem`, returns a `Fit`; what it raises makes the cell a failed one.
    """

    name: str
    summary: str
    fit: Callable[[Problem], Fit]


def _moments(problem: Problem, polish: str | None) -> Fit:
    from tensoralg.mixtures import DiagonalGaussianMixture

    model = DiagonalGaussianMixture(
        problem.n_components,
        order=problem.order,
        polish=polish,
        random_state=problem.random_state,
    ).fit(problem.X)
    message = model.diagnostics_.message
    return Fit(model.weights_, model.means_, model.covariances_, model.converged_, message)


def _expectation_maximization(problem: Problem, **options: Any) -> Fit:
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        problem.n_components,
        covariance_type="diag",
        random_state=problem.random_state,
        **options,
    ).fit(problem.X)
    message = f"{model.n_iter_} iterations"
    return Fit(model.weights_, model.means_, model.covariances_, bool(model.converged_), message)


def _from_the_truth(problem: Problem) -> Fit:
    truth = problem.truth
    if truth is None:
        raise ValueError("em-truth needs a known mixture")
    return _expectation_maximization(
        problem,
        # Dirichlet draws sum to 1 within rounding; scikit-learn checks to 1e-8
        weights_init=truth.weights / np.sum(truth.weights),
        means_init=truth.means,
        precisions_init=1 / truth.covariances,
        tol=1e-8,
        max_iter=1000,
    )


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "moments",
            "tensoralg: moments, feasible least squares, then a few EM steps",
            lambda problem: _moments(problem, "em"),
        ),
        Method(
            "moments-only",
            "tensoralg without the EM steps: one pass over the data",
            lambda problem: _moments(problem, None),
        ),
        Method(
            "em-default",
            "scikit-learn's GaussianMixture(covariance_type='diag') with its defaults",
            _expectation_maximization,
        ),
        Method(
            "em-restarts",
            "scikit-learn's EM from 10 k-means++ starts, tol 1e-6, at most 500 steps each",
            lambda problem: _expectation_maximization(
                problem, init_params="k-means++", n_init=10, tol=1e-6, max_iter=500
            ),
        ),
        Method(
            "em-truth",
            "scikit-learn's EM started at the known parameters, tol 1e-8: the statistical limit",
            _from_the_truth,
        ),
    )
}
