"""The methods that a study compares: moments, and scikit-learn's expectation maximization."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensoralg.mixtures.inference import MixtureInference
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
    clean : (N, d) float array or None
        The rows before outliers and gaps came in, where they did; only ``em-truth`` looks at them.
    """

    X: NDArray[Any]
    n_components: int
    order: int
    random_state: int
    truth: "MixtureParameters | None" = None
    clean: NDArray[Any] | None = None

    @property
    def missing(self) -> bool:
        """Whether cells are missing (NaN)."""
        # a sum is NaN where a cell is: no array of booleans as large as the rows
        return bool(np.isnan(np.sum(self.X)))


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
    model : MixtureInference or None
        The fitted estimator, where it knows its own standard errors.
    """

    weights: NDArray[Any]
    means: NDArray[Any]
    covariances: NDArray[Any]
    converged: bool
    message: str = ""
    model: "MixtureInference | None" = None


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
    counts : bool
        Whether it finds the number of components by itself.
    """

    name: str
    summary: str
    fit: Callable[[Problem], Fit]
    counts: bool = False


def _moments(problem: Problem, **options: Any) -> Fit:
    from tensoralg.mixtures import DiagonalGaussianMixture

    settings = {"n_components": problem.n_components, "order": problem.order} | options
    model = DiagonalGaussianMixture(
        **settings, missing=problem.missing, random_state=problem.random_state
    ).fit(problem.X)
    message = model.diagnostics_.message
    return Fit(model.weights_, model.means_, model.covariances_, model.converged_, message, model)


def _expectation_maximization(problem: Problem, **options: Any) -> Fit:
    from sklearn.mixture import GaussianMixture

    if problem.missing:
        raise ValueError(
            "scikit-learn's GaussianMixture takes no missing cells; em-imputed fills them first"
        )
    model = GaussianMixture(
        problem.n_components,
        covariance_type="diag",
        random_state=problem.random_state,
        **options,
    ).fit(problem.X)
    message = f"{model.n_iter_} iterations"
    return Fit(model.weights_, model.means_, model.covariances_, bool(model.converged_), message)


def _after_imputation(problem: Problem) -> Fit:
    """Fill missing cells with the means of their columns, which shrinks the variances."""
    gaps = np.isnan(problem.X)
    filled = np.where(gaps, np.nanmean(problem.X, axis=0), problem.X)
    fit = _expectation_maximization(replace(problem, X=filled), **_RESTARTS)
    said = f"{gaps.mean():.1%} of the cells filled with the means of their columns"
    return replace(fit, message=f"{fit.message}; {said}")


def _by_information_criterion(problem: Problem) -> Fit:
    """Try one component, two, .. until the criterion has risen twice in a row."""
    from sklearn.mixture import GaussianMixture

    if problem.missing:
        raise ValueError("scikit-learn's GaussianMixture takes no missing cells")
    scores: list[float] = []
    best = None
    while len(scores) < min(_MOST_TRIED, len(problem.X)):
        model = GaussianMixture(
            len(scores) + 1,
            covariance_type="diag",
            random_state=problem.random_state,
            **_RESTARTS | {"n_init": 3},
        ).fit(problem.X)
        scores.append(model.bic(problem.X))
        if scores[-1] == min(scores):
            best = model
        elif len(scores) - 1 - int(np.argmin(scores)) >= 2:
            break
    assert best is not None  # at least one is tried
    message = f"BIC of 1 to {len(scores)} components: least at {len(best.weights_)}"
    return Fit(best.weights_, best.means_, best.covariances_, bool(best.converged_), message)


def _from_the_truth(problem: Problem) -> Fit:
    truth = problem.truth
    if truth is None:
        raise ValueError("em-truth needs a known mixture")
    return _expectation_maximization(
        problem if problem.clean is None else replace(problem, X=problem.clean),
        # Dirichlet draws sum to 1 within rounding; scikit-learn checks to 1e-8
        weights_init=truth.weights / np.sum(truth.weights),
        means_init=truth.means,
        precisions_init=1 / truth.covariances,
        tol=1e-8,
        max_iter=1000,
    )


_RESTARTS: dict[str, Any] = {
    "init_params": "k-means++",
    "n_init": 10,
    "tol": 1e-6,
    "max_iter": 500,
}
_MOST_TRIED = 40

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "moments",
            "tensoralg: moments, feasible least squares, then a few EM steps",
            _moments,
        ),
        Method(
            "moments-only",
            "tensoralg without the EM steps: one pass over the data",
            lambda problem: _moments(problem, polish=None),
        ),
        Method(
            "moments-robust",
            "tensoralg with robust=True, which resists wild rows",
            lambda problem: _moments(problem, robust=True),
        ),
        Method(
            "moments-auto",
            "tensoralg, told nothing of the number of components: it is detected from the moments",
            lambda problem: _moments(problem, n_components="auto"),
            counts=True,
        ),
        Method(
            "moments-robust-auto",
            "both: robust=True, and the number of components is detected",
            lambda problem: _moments(problem, n_components="auto", robust=True),
            counts=True,
        ),
        Method(
            "em-default",
            "scikit-learn's GaussianMixture(covariance_type='diag') with its defaults",
            _expectation_maximization,
        ),
        Method(
            "em-restarts",
            "scikit-learn's EM from 10 k-means++ starts, tol 1e-6, at most 500 steps each",
            lambda problem: _expectation_maximization(problem, **_RESTARTS),
        ),
        Method(
            "em-imputed",
            "em-restarts after mean imputation: it takes no missing cells, so every one is filled "
            "with the mean of its column",
            _after_imputation,
        ),
        Method(
            "em-bic",
            "scikit-learn's EM (3 k-means++ starts, tol 1e-6) with 1, 2, .. components until the "
            "Bayesian information criterion has risen twice in a row; the least is kept",
            _by_information_criterion,
            counts=True,
        ),
        Method(
            "em-truth",
            "scikit-learn's EM started at the known parameters, tol 1e-8, on the rows before "
            "outliers and gaps: the statistical limit",
            _from_the_truth,
        ),
    )
}
