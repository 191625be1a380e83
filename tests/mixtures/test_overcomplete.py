"""More components than linear algebra reaches: found, or honestly not, up to the counting bound."""

from typing import Any

import numpy as np
import pytest

from tensoralg.errors import RankBoundError
from tensoralg.mixtures import (
    DiagonalGaussianMixture,
    MomentAccumulator,
    component_bound,
    counting_bound,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def truth(d: int, r: int, seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return (
        rng.dirichlet(np.full(r, 5.0)),
        rng.standard_normal((r, d)),
        rng.uniform(0.3, 1.5, (r, d)),
    )


def error(model: DiagonalGaussianMixture, means: Any) -> float:
    distance = np.linalg.norm(model.means_[:, None] - means[None], axis=2)
    if sorted(distance.argmin(axis=1)) != list(range(len(means))):
        return np.inf
    return float(np.linalg.norm(distance.min(axis=1)) / np.linalg.norm(means))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("d", "order", "r", "form"),
    [
        (8, 3, 6, "affine"),
        (8, 4, 7, "affine"),
        (8, 4, 9, "affine"),
        (10, 3, 8, "affine"),
        (8, 4, 6, "power"),
        (8, 5, 10, "power"),
        (12, 5, 21, "power"),
    ],
)
def test_exact_moments(d: int, order: int, r: int, form: str, seed: int) -> None:
    w, mu, var = truth(d, r, seed)
    moments = MomentAccumulator.from_parameters(w, mu, var, order, powers=form == "power")
    model = DiagonalGaussianMixture(r, order=order, form=form, random_state=seed)
    model.fit_moments(moments)
    assert error(model, mu) < 1e-9
    above = r > component_bound(d, order, form=form)  # type: ignore[arg-type]
    assert above == (form == "affine")
    assert model.diagnostics_.start == ("least squares" if above else "algebraic")
    assert model.diagnostics_.status == "moments only"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("d", "order", "r"), [(8, 4, 12), (6, 5, 9), (5, 4, 5)])
def test_near_the_counting_bound_the_status_is_honest(
    d: int, order: int, r: int, seed: int
) -> None:
    w, mu, var = truth(d, r, seed)
    model = DiagonalGaussianMixture(r, order=order, random_state=seed)
    model.fit_moments(MomentAccumulator.from_parameters(w, mu, var, order))
    found = error(model, mu) < 1e-6
    assert model.diagnostics_.status == ("moments only" if found else "misfit")
    assert model.converged_ == found
    with pytest.raises(RankBoundError, match=r"bounds: .*counting"):
        DiagonalGaussianMixture(counting_bound(d, order) + 1, order=order).fit_moments(
            MomentAccumulator.from_parameters(w, mu, var, order)
        )


@pytest.mark.parametrize(("d", "order", "r", "form"), [(8, 3, 6, "affine"), (8, 4, 6, "power")])
def test_samples(d: int, order: int, r: int, form: str) -> None:
    w, mu, var = truth(d, r, 3)
    known = DiagonalGaussianMixture.from_parameters(w, 1.3 * mu, var)
    X = known.sample(60_000, random_state=0)[0]
    model = DiagonalGaussianMixture(r, order=order, form=form, random_state=0).fit(X)
    assert model.diagnostics_.start != "k-means++"
    assert model.score(X) > known.score(X) - 1e-3
    assert error(model, 1.3 * mu) < 0.05
