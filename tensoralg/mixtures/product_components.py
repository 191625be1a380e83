"""Mixtures of product distributions that need not be Gaussian: component means of any function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from tensoralg.mixtures.delete_block import Refit, jackknife_errors, merged
from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.estimator import DiagonalGaussianMixture
from tensoralg.mixtures.functions import CellFunction, CellFunctions, checked_functions
from tensoralg.mixtures.product_estimate import (
    Found,
    ProductEstimate,
    judge,
    located,
    monomial_degree,
    sums_of_rows,
)
from tensoralg.mixtures.read_out_sums import ReadOutSums
from tensoralg.mixtures.sources import rows_to_fit
from tensoralg.mixtures.validation import is_count

__all__ = ["ComponentMoments", "component_moments"]

Array = NDArray[np.float64]

_FLOOR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class ComponentMoments:
    """What the moments of a mixture of product distributions say about its components.

    Attributes
    ----------
    weights : ndarray of shape (r,)
        Weights, largest first.
    means : ndarray of shape (r, d)
        Means.
    variances : ndarray of shape (r, d)
        Variances; noise can make small ones negative.
    moments : dict of ndarray of shape (r, d)
        By the name of the function g: the mean of g(x_j) in each component, for every column j.
    standard_errors : dict of ndarray
        Of "weights", "means", "variances" and, by their names, of `moments`, in the same shapes,
        by a jackknife that repeats the estimate; NaN where none was asked for.
    diagnostics : FitDiagnostics
        How the estimate came about; `status` is "moments only", "misfit" (products of different
        columns contradict the estimate), "undetermined" (others match as well) or "closed form"
        (one component).
    """

    weights: Array
    means: Array
    variances: Array
    moments: dict[str, Array]
    standard_errors: dict[str, Array]
    diagnostics: FitDiagnostics

    @property
    def status(self) -> str:
        """That of the diagnostics."""
        return self.diagnostics.status


def component_moments(
    X: Any,
    n_components: int | str,
    functions: Mapping[str, CellFunction | int] | Sequence[int] | None = None,
    *,
    order: int = 3,
    form: str = "affine",
    missing: bool = False,
    blocks: int = 32,
    sample_weight: ArrayLike | None = None,
    random_state: Any = None,
) -> ComponentMoments:
    r"""Recover a mixture of product distributions of any kind from moments.

    Inside every component the columns are independent, and that is all that is supposed: they may
    be exponential, Bernoulli, uniform, counts, and of different kinds side by side. The moments
    over pairwise distinct columns give weights and means, as for Gaussian components. Then the
    mean of every function of a single column is read out, component by component.

    Parameters
    ----------
    X : array_like of shape (N, d), Dask array, or list of 2-D chunks
        Rows.
    n_components : int or "auto"
        Number r of components; "auto" detects it.
    functions : mapping of str to function or int, or sequence of int, optional
        What to average. A function takes an array (n, d) in the units of the data and returns one
        of the same shape, cell by cell; an integer p stands for x**p. Means and variances are
        always found. Bounded functions, as indicators of intervals, are read most accurately.
    order, form, missing
        As in :class:`DiagonalGaussianMixture`. Functions never see missing cells.
    blocks : int, default 32
        Blocks of rows of the jackknife; 0 leaves standard errors out.
    sample_weight : array_like of shape (N,), optional
        Nonnegative; a weight counts as that many rows.
    random_state : int, RandomState, Generator or None
        Source of the random splits and combinations.

    Returns
    -------
    ComponentMoments
        Weights, means, variances and the moments asked for, with standard errors.

    Raises
    ------
    ValueError
        Bad arguments or data; a function whose values are not finite, or depend on other cells.
    RankBoundError
        More components than the moments determine.

    Notes
    -----
    For each column j a combination l_s of square-free monomials of the *other* columns is taken,
    of degree 1 or 2, whose mean is 1 in component s and 0 in all others. As monomials are
    square-free, their means in the components are products of the means that were found. Then
    :math:`E[l_s\, g(x_j)] = w_s E_s[g(x_j)]`. Among all such combinations that with the smallest
    second moment is used.

    Components must differ in the means of several columns: those that differ in variances alone
    are not told apart.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500, for the means. The read-out is ours.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.mixtures import component_moments
    >>> rng = np.random.default_rng(0)
    >>> scales = np.array([[1, 1, 1, 5, 5, 5], [4, 4, 4, 1, 1, 1]])
    >>> X = rng.exponential(scales[rng.choice(2, 20_000, p=[0.3, 0.7])])
    >>> found = component_moments(X, 2, {"above 4": lambda x: x > 4}, random_state=0)
    >>> np.round(found.weights, 1).tolist(), np.round(found.means[0]).tolist()
    ([0.7, 0.3], [4.0, 4.0, 4.0, 1.0, 1.0, 1.0])
    >>> np.round(found.moments["above 4"][:, 0], 1).tolist()  # exp(-1), exp(-4)
    [0.4, 0.0]
    """
    if blocks != 0 and not is_count(blocks, 2):
        raise ValueError(f"blocks must be 0 or an integer >= 2; got {blocks!r}")
    named = checked_functions(functions)
    estimator = DiagonalGaussianMixture(
        n_components, order=order, form=form, polish=None, reg_covar=_FLOOR, missing=missing,
        random_state=random_state,
    )  # fmt: skip
    settings, diagnostics = estimator._settings()
    source = rows_to_fit(estimator, X, sample_weight)
    if not source.again:
        raise ValueError(
            "X can be read only once, and the read-out takes two passes: pass an array or a list "
            "of chunks"
        )
    summary, mixture, settings = located(source, settings, diagnostics)
    shift, scale = summary.mean, summary.scale
    rows = max(float(summary.rows), summary.total_weight)  # weights stand for repeated rows
    every = CellFunctions(
        {"z": partial(_standardised, shift, scale), "z^2": partial(_squared, shift, scale), **named}
    )
    template = ReadOutSums(
        len(shift),
        settings.order,
        monomial_degree(len(shift), rows, settings.n_components),
        every,
        shift=shift,
        scale=scale,
        missing=settings.missing,
    )
    parts = sums_of_rows(source, template, max(int(blocks), 1))
    columns = np.flatnonzero(~summary.constant)
    estimate = ProductEstimate(
        Refit(mixture, columns, settings.order, settings.floor), settings.n_components
    )
    with threadpool_limits(limits=1, user_api="blas"):
        sums = merged(parts)
        whole = estimate(sums)
        errors = np.full(len(whole), np.nan)
        if len(parts) > 1:
            errors = jackknife_errors(parts, estimate, whole)
        found = estimate.split(whole, len(shift))
        judge(sums, found, estimate.noise(sums), columns, settings, diagnostics)
    return _in_units(
        found,
        estimate.split(errors, len(shift)),
        shift,
        scale,
        list(named),
        diagnostics,
    )


def _standardised(shift: Array, scale: Array, rows: Array) -> Array:
    return np.asarray((rows - shift) / scale)


def _squared(shift: Array, scale: Array, rows: Array) -> Array:
    return np.asarray(((rows - shift) / scale) ** 2)


def _in_units(
    found: Found,
    errors: Found,
    shift: Array,
    scale: Array,
    names: list[str],
    diagnostics: FitDiagnostics,
) -> ComponentMoments:
    order = np.argsort(-found.weights, kind="stable")

    def named(part: Found) -> Iterator[tuple[str, Array]]:
        return ((name, part.moments[k][order]) for k, name in enumerate(names))

    return ComponentMoments(
        found.weights[order],
        (shift + scale * found.means)[order],
        (scale**2 * found.variances)[order],
        dict(named(found)),
        {
            "weights": errors.weights[order],
            "means": (scale * errors.means)[order],
            "variances": (scale**2 * errors.variances)[order],
            **dict(named(errors)),
        },
        diagnostics,
    )
