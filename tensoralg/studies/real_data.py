"""Mixtures of real data with known classes: held-out likelihood and agreement, per method."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoralg.studies.generation import MixtureParameters
from tensoralg.studies.machine import one_thread
from tensoralg.studies.methods import METHODS, Problem
from tensoralg.studies.summary import median, number

__all__ = ["REAL_DATA", "RealDataSet", "SplitResult", "compare_on_splits", "real_data_rows"]

_HELD_OUT = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class RealDataSet:
    """A data set with true classes, read from scikit-learn's own files: no network is needed.

    Attributes
    ----------
    name : str
        Its name in ``sklearn.datasets``: ``load_<name>``.
    n_components : int
        Number of true classes, and of components fitted.
    remark : str
        What to know about it.
    """

    name: str
    n_components: int
    remark: str

    def load(self) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
        """Read rows (N, d), class of every row (N,), names of the columns."""
        import sklearn.datasets

        data = getattr(sklearn.datasets, f"load_{self.name}")()
        return data.data, data.target, tuple(map(str, data.feature_names))


@dataclass(frozen=True, slots=True, eq=False)
class SplitResult:
    """One method on one random split of a data set.

    Attributes
    ----------
    data, method : str
        Which.
    seed : int
        Which split.
    held_out, agreement : float
        Mean log-likelihood of the held-out rows, in the units of the standardised columns, and
        adjusted Rand index of their components against the true classes; NaN after a failure.
    seconds : float
        Wall-clock time of the fit on one thread.
    fitted : MixtureParameters or None
        The mixture of the standardised columns.
    message : str
        Why it failed.
    """

    data: str
    method: str
    seed: int
    held_out: float = float("nan")
    agreement: float = float("nan")
    seconds: float = float("nan")
    fitted: MixtureParameters | None = None
    message: str = ""


REAL_DATA = (
    RealDataSet("wine", 3, "178 wines, 13 chemical measurements, 3 cultivars"),
    RealDataSet(
        "breast_cancer",
        2,
        "569 tumours, 30 measurements, 2 diagnoses; skewed and strongly correlated, so that a "
        "mixture with diagonal covariances is a rough model",
    ),
)


def compare_on_splits(
    data: RealDataSet,
    methods: Sequence[str],
    splits: int,
    *,
    order: int = 3,
    callback: Callable[[SplitResult], None] | None = None,
) -> list[SplitResult]:
    """Fit every method to random 70% of the rows and judge it on the other 30%.

    The columns are standardised by the rows that are fitted; every method gets the same rows.

    Parameters
    ----------
    data : RealDataSet
        The data.
    methods : sequence of str
        Names from `tensoralg.studies.METHODS`, without "em-truth".
    splits : int
        Number of random splits, stratified by class.
    order : int
        Order of the moments.
    callback : callable, optional
        Called with every result.

    Returns
    -------
    list of SplitResult
        One per split and method.

    Examples
    --------
    >>> from tensoralg.studies.real_data import REAL_DATA, compare_on_splits
    >>> len(compare_on_splits(REAL_DATA[0], ["em-default"], splits=2))
    2
    """
    results = []
    for seed, train, test, classes in _splits(data, splits):
        for method in methods:
            problem = Problem(train, data.n_components, order, seed)
            result = _judge(data.name, method, problem, test, classes)
            results.append(result)
            if callback:
                callback(result)
    return results


def _splits(
    data: RealDataSet, splits: int
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]:
    from sklearn.model_selection import StratifiedShuffleSplit

    X, classes, _ = data.load()
    shuffle = StratifiedShuffleSplit(splits, test_size=_HELD_OUT, random_state=0)
    for seed, (train, test) in enumerate(shuffle.split(X, classes)):
        center, scale = X[train].mean(axis=0), X[train].std(axis=0)
        yield seed, (X[train] - center) / scale, (X[test] - center) / scale, classes[test]


def _judge(
    name: str,
    method: str,
    problem: Problem,
    test: NDArray[np.float64],
    classes: NDArray[np.int64],
) -> SplitResult:
    from sklearn.metrics import adjusted_rand_score

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        try:
            fit = METHODS[method].fit(problem)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            return SplitResult(name, method, problem.random_state, message=message)
        seconds = time.perf_counter() - started
        fitted = MixtureParameters(fit.weights, fit.means, fit.covariances)
        return SplitResult(
            name,
            method,
            problem.random_state,
            fitted.score(test),
            float(adjusted_rand_score(classes, fitted.predict(test))),
            seconds,
            fitted,
        )


def real_data_rows(results: Sequence[SplitResult]) -> list[list[str]]:
    """Write medians over the splits as table rows: data, method, and four numbers.

    Parameters
    ----------
    results : sequence of SplitResult
        From `compare_on_splits`.

    Returns
    -------
    list of list of str
        Data and method, held-out log-likelihood, adjusted Rand index, seconds, failures.

    Examples
    --------
    >>> from tensoralg.studies.real_data import SplitResult, real_data_rows
    >>> real_data_rows([SplitResult("wine", "moments", 0, -15.0, 0.9, 0.1)])
    [['wine, moments', '-15.0', '0.900', '0.100', '0/1']]
    """
    rows = []
    for data, method in dict.fromkeys((r.data, r.method) for r in results):
        group = [r for r in results if (r.data, r.method) == (data, method)]
        failures = sum(bool(r.message) for r in group)
        rows.append(
            [
                f"{data}, {method}",
                number(median(r.held_out for r in group)),
                number(median(r.agreement for r in group)),
                number(median(r.seconds for r in group)),
                f"{failures}/{len(group)}",
            ]
        )
    return rows
