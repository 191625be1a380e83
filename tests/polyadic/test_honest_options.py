"""No option is ignored in silence: precision, starts, schedules, given starts, callbacks."""

import warnings
from typing import Any

import numpy as np
import pytest
import sparse

from tensoralg import KruskalTensor
from tensoralg.errors import ConvergenceWarning
from tensoralg.polyadic import StochasticSchedule, decompose, precision_policy


def noisy(shape: tuple[int, ...], rank: int, noise: float = 0.01) -> tuple[KruskalTensor, Any]:
    rng = np.random.default_rng(0)
    truth = KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape])
    X = truth.to_dense()
    return truth, X + noise * X.std() * rng.standard_normal(shape)


def test_all_starts_of_the_compressed_method_are_reported() -> None:
    _, X = noisy((30, 25, 20), 3)
    result = decompose(X, 3, method="compressed", n_starts=4, rng=0)
    assert len(result.starts) >= 4
    assert result.starts[0] == pytest.approx(result.fit, abs=1e-12)
    assert len(decompose(X, 3, method="als", n_starts=2, rng=0).starts) == 2


def test_a_callback_that_stops_a_later_start_shows_in_the_status() -> None:
    _, X = noisy((9, 8, 7), 3, noise=0.2)
    begun = []

    def second(iteration: int, fit: float, factors: Any) -> bool:
        begun.extend([iteration] if iteration == 1 else [])
        return len(begun) == 2

    result = decompose(X, 3, method="als", n_starts=5, rng=0, callback=second)
    assert len(result.starts) == 2
    assert result.fit == pytest.approx(result.starts.max(), abs=1e-12)
    assert result.starts[0] > result.starts[1]  # the first start, which was not stopped, is better
    assert result.status == "stopped"
    assert "the callback stopped start 2 of 5" in result.message


def test_a_sparse_tensor_takes_no_other_precision_than_its_own() -> None:
    X = sparse.random((6, 5, 4), density=0.3, random_state=0)
    for precision in ("int8", "float32"):
        with pytest.raises(ValueError, match=f"precision '{precision}' .* own float64"):
            decompose(X, 2, precision=precision)
    one, two = (decompose(X, 1, precision=p, rng=0).fit for p in (None, "float64"))
    assert one == two


def test_a_matrix_says_that_its_precision_was_not_used() -> None:
    X = np.random.default_rng(0).standard_normal((7, 6))
    assert "and not in int8" in decompose(X, 2, precision="int8").message
    assert "not in" not in decompose(X, 2).message


def test_a_low_precision_shows_where_few_cells_are_observed() -> None:
    _, X = noisy((20, 18, 16), 2, noise=0.0)
    mask = np.random.default_rng(1).random(X.shape) < 0.15
    options: dict[str, Any] = {"mask": mask, "rng": 0, "max_iter": 300, "exact_finish": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        exact = decompose(X, 2, **options)
        rough = decompose(X, 2, precision="float8", **options)
    assert rough.fit < exact.fit - 1e-3


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e160])
@pytest.mark.parametrize("method", ["als", "sgd"])
def test_a_given_start_has_the_scale_of_the_tensor(scale: float, method: str) -> None:
    truth, X = noisy((8, 7, 6), 2)
    init = KruskalTensor(truth.weights * scale, truth.factors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = decompose(X * scale, 2, method=method, init=init, max_iter=10, rng=0)
    assert result.fit == pytest.approx(decompose(X, 2, rng=0).fit, abs=1e-6)


def test_the_first_entry_of_the_history_belongs_to_the_given_start() -> None:
    truth, X = noisy((8, 7, 6), 2, noise=0.0)
    seen: list[float] = []
    decompose(
        X * 2.0**200, 2, method="als", init=KruskalTensor(truth.weights * 2.0**200, truth.factors),
        callback=lambda k, fit, factors: seen.append(fit), rng=0,
    )  # fmt: skip
    assert seen[0] > 1 - 1e-7


def test_schedules_reach_stochastic_gradients_and_nothing_else() -> None:
    _, X = noisy((12, 11, 10), 2)
    schedule = StochasticSchedule(sign_epochs=3, step=0.2, n_fibres=20)
    options: dict[str, Any] = {"method": "sgd", "rng": 0, "exact_finish": False, "max_iter": 15}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        usual = decompose(X, 2, **options)
        other = decompose(X, 2, schedule=schedule, **options)
    assert other.fit > 0.5
    assert abs(other.history[0] - usual.history[0]) > 1e-6
    for method in ("auto", "als", "compressed"):
        with pytest.raises(ValueError, match="schedule is for method 'sgd' only"):
            decompose(X, 2, method=method, schedule=schedule)


def test_stochastic_rounding_can_be_asked_for() -> None:
    _, X = noisy((12, 11, 10), 2)
    policy = precision_policy("bfloat16", rounding="stochastic")
    options: dict[str, Any] = {"method": "sgd", "rng": 0, "max_iter": 5, "exact_finish": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        nearest = decompose(X, 2, precision="bfloat16", **options)
        random = decompose(X, 2, precision=policy, **options)
    assert nearest.fit != random.fit
    assert decompose(X, 2, precision=policy, rng=0).fit == pytest.approx(
        decompose(X, 2, rng=0).fit, abs=1e-5
    )
