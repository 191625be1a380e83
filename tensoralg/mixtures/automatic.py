"""``n_components="auto"``: how the estimator detects the number of components and reports it."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from tensoralg.mixtures.diagnostics import FitDiagnostics
from tensoralg.mixtures.fitting import Mixture, Settings
from tensoralg.mixtures.moments import MomentAccumulator
from tensoralg.mixtures.notices import warn
from tensoralg.mixtures.rank_detection import detect_rank

__all__ = ["kept_start", "with_detected"]


def with_detected(
    accumulator: MomentAccumulator | None,
    constant: NDArray[np.bool_],
    settings: Settings,
    diagnostics: FitDiagnostics,
) -> Settings:
    """Detect the number of components; return the settings with it.

    Parameters
    ----------
    accumulator : MomentAccumulator or None
        Moments of standardised columns in parts, or exact ones; None where they are too many.
    constant : ndarray of bool, shape (d,)
        Columns that show nothing.
    settings : Settings
        Returned as they are unless `automatic`.
    diagnostics : FitDiagnostics
        Gets the evidence.

    Returns
    -------
    Settings
        With a number of components.
    """
    if not settings.automatic:
        return settings
    if constant.all():
        return settings.with_components(1)
    if accumulator is None:
        raise ValueError(
            f"n_components='auto' reads moments of order {settings.order}, which are too many "
            f"for {len(constant)} columns; give n_components a number, or detect it from fewer "
            "columns"
        )
    # a stream of its own: the fit is then that of the same number given
    (rng,) = settings.rng.spawn(1)
    test = detect_rank(accumulator, columns=np.flatnonzero(~constant).tolist(), rng=rng)
    diagnostics.rank_test = asdict(test)
    if test.rank == test.room:
        warn(
            f"n_components='auto' found {test.rank} components, the most that moments of order "
            f"{accumulator.order} of {int(np.sum(~constant))} columns can show: there may be "
            "more; raise order, or give n_components a number"
        )
    return settings.with_components(test.rank)


def kept_start(warm: Mixture | None, settings: Settings) -> Mixture | None:
    """Drop a warm start of another number of components than was detected."""
    if warm is None or len(warm.weights) == settings.n_components:
        return warm
    warn(
        f"warm_start=True, but the last fit has {len(warm.weights)} components and "
        f"{settings.n_components} were detected: a new start is made"
    )
    return None
