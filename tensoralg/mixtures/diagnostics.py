"""What a fit says about itself."""

from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["FitDiagnostics"]


@dataclass(slots=True)
class FitDiagnostics:
    """How a mixture was found, and what the reader should know before trusting it.

    Attributes
    ----------
    status : str
        "converged" (the polish met its tolerance), "max_iter" (it did not), "collapsed" (a
        component sits at the variance floor or was removed); without a polish "moments only",
        "misfit" (the parameters contradict the moments) or "undetermined" (others match as well);
        "closed form" (one component), "given" (by `from_parameters`).
    message : str
        The same in a sentence, with what to do next.
    start : str
        Where the polish began: "algebraic" (generating polynomials), "least squares" (above the
        algebraic bound), "block read-out" (of three blocks of columns, where the moments are too
        many), "k-means++" (no moment start was possible; or it contradicted the
        moments, had a `mean_error` above 0.1 or collapsed, and this was more likely), "warm",
        "closed form", "given".
    order, form : int, str
        Highest moment order and form of the generating polynomials; 3 and "blocks" where a
        read-out of three blocks took their place, whatever was asked.
    bounds : dict
        Largest number of components by form, by counting and for the variances.
    splits, complex_pairs, negative_weights, refined : int
        Splits of the coordinates tried; complex eigenvalue pairs replaced by their real span;
        negative weights repaired; candidates refined by feasible least squares.
    moment_residual : float
        Relative mismatch of the square-free moments at the best moment start.
    moment_misfit : float
        Largest mismatch of any moment at the best moment start in units of its standard error.
        Below 4 where the rows come from such a mixture; above 8 the start is not trusted. NaN
        where a block read-out had nothing but noise to go by.
    mean_error : float
        Standard error that the moments leave on the means of the component known worst, in
        standard deviations of the columns. Above 0.1 k-means++ competes; above 0.5 the moments
        do not determine the mixture.
    singular_values : list of float
        Singular values of one flattening: their drop shows the number of components.
    start_log_likelihoods : dict
        Log-likelihood per row of the best start of each kind after a few EM steps; empty where
        there was only one start.
    log_likelihoods : list of float
        Log-likelihood per row in every accepted pass of the polish, before its M step. It does
        not decrease, up to rounding, except where a component was started anew.
    floored : list of (int, int)
        Pairs (component, column) whose variance sits at the floor.
    restarted : list of int
        Components that died in the polish and were started anew.
    constant_columns : list of int
        Columns that took no part in the moments.
    outliers : int
        Rows that ``robust=True`` left out, or, without it, rows beyond fifty robust deviations.
    outlying_cells : int
        Cells of other rows that ``robust=True`` hid, as if missing: it does so where more than a
        tenth of the rows would have to be left out.
    missing : int
        Missing cells.
    rank_test : dict
        With ``n_components="auto"``, the fields of :class:`RankTest`: "rank", "ranks", "room",
        "singular_values", "thresholds".
    implicit_moments : dict
        Where least squares over implicit moments followed a block read-out: "order"; "taken",
        whether its result replaced the read-out's; "steps"; "passes" over the rows; "objective",
        less a constant, at the start and after every step that was taken.
    standard_errors : dict
        "weights", "means", "covariances" and "method", after a call of `standard_errors`.
    moment_test : dict
        "statistic", "degrees_of_freedom", "p_value" and "moments", after a call of `moment_test`.
    """

    status: str = "not fitted"
    message: str = ""
    start: str = ""
    order: int = 3
    form: str = "affine"
    bounds: dict[str, int] = field(default_factory=dict)
    splits: int = 0
    complex_pairs: int = 0
    negative_weights: int = 0
    refined: int = 0
    moment_residual: float = float("nan")
    moment_misfit: float = float("nan")
    mean_error: float = float("nan")
    singular_values: list[float] = field(default_factory=list)
    start_log_likelihoods: dict[str, float] = field(default_factory=dict)
    log_likelihoods: list[float] = field(default_factory=list)
    floored: list[tuple[int, int]] = field(default_factory=list)
    restarted: list[int] = field(default_factory=list)
    constant_columns: list[int] = field(default_factory=list)
    outliers: int = 0
    outlying_cells: int = 0
    missing: int = 0
    rank_test: dict[str, Any] = field(default_factory=dict)
    implicit_moments: dict[str, Any] = field(default_factory=dict)
    standard_errors: dict[str, Any] = field(default_factory=dict)
    moment_test: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a plain dictionary."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        """Show one field a line, the empty ones left out."""
        shown = ((k, v) for k, v in self.as_dict().items() if v not in ([], {}, 0, ""))
        return "\n".join(f"{k}: {v}" for k, v in shown)
