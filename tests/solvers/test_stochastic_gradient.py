"""Block stochastic gradients: optimum reached, precisions, schedules, slabs, honest statuses."""

from pathlib import Path
from typing import Any

import array_api_strict
import dask.array
import numpy as np
import pytest

from tensoralg.gpu.precision import precision_policy
from tensoralg.gpu.sparse_tensor import SparseTensor
from tensoralg.gpu.tensor_blocks import TensorBlocks
from tensoralg.solvers.alternating_least_squares import alternating_least_squares
from tensoralg.solvers.polyadic_probe import FitProbe
from tensoralg.solvers.polyadic_residual import relative_residual
from tensoralg.solvers.stochastic_gradient import stochastic_polyadic
from tensoralg.solvers.stochastic_steps import StochasticSchedule


def noisy(shape: tuple[int, ...], rank: int, seed: int, noise: float = 0.05) -> tuple[Any, Any]:
    """A tensor, and factors near enough to its own for every method to find the optimum."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((n, rank)) for n in shape]
    tensor = factors[0]
    for f in factors[1:]:
        tensor = tensor[..., None, :] * f
    tensor = tensor.sum(axis=-1)
    scale = noise * np.linalg.norm(tensor) / np.sqrt(tensor.size)
    start = [f + 0.5 * rng.standard_normal(f.shape) for f in factors]
    return tensor + scale * rng.standard_normal(shape), start


@pytest.mark.parametrize("shape", [(30, 25, 20), (12, 11, 10, 9), (300, 6, 5), (40, 30)])
def test_reaches_the_least_squares_fit(shape: tuple[int, ...]) -> None:
    tensor, start = noisy(shape, 3, 0)
    found = stochastic_polyadic(tensor, start, rng=1)
    best = alternating_least_squares(tensor, start)
    assert found.status == "converged"
    assert found.fit > best.fit - 1e-4
    assert found.fit == pytest.approx(1 - relative_residual(tensor, found.factors), abs=1e-14)
    assert len(found.history) == found.n_iter
    assert found.history[-1] == found.fit
    assert found.history[: found.n_iter // 2].max() > 0.9


def test_exact_rank_has_no_floor() -> None:
    tensor, start = noisy((30, 25, 20), 3, 1, noise=0.0)
    assert stochastic_polyadic(tensor, start, rng=0).fit > 1 - 1e-6


@pytest.mark.parametrize("name", ["tf32", "bfloat16", "float16", "float8", "int8"])
def test_residual_form_reaches_the_full_fit_in_every_format(name: str) -> None:
    tensor, start = noisy((30, 25, 20), 3, 2)
    tensor = tensor.astype(np.float32)
    full = alternating_least_squares(tensor, start)
    for rounding in ("nearest", "stochastic"):
        policy = precision_policy(name, rounding=rounding)
        found = stochastic_polyadic(tensor, start, max_iter=60, rng=0, policy=policy)
        assert found.fit > full.fit - 1e-4


def test_rounding_what_is_stored_leaves_a_floor() -> None:
    tensor, start = noisy((30, 25, 20), 3, 3, noise=0.01)
    policy = precision_policy("float8")
    stored = StochasticSchedule(residual_form=False)
    rounded = stochastic_polyadic(tensor, start, rng=0, policy=policy, schedule=stored)
    assert 0.9 < rounded.fit < 0.98
    assert stochastic_polyadic(tensor, start, rng=0, policy=policy).fit > 0.989


def test_same_seed_same_result_and_the_start_is_kept() -> None:
    tensor, start = noisy((10, 9, 8), 2, 4)
    copies = [f.copy() for f in start]
    policy = precision_policy("int8", rounding="stochastic")
    one, two = (
        stochastic_polyadic(tensor, start, max_iter=20, rng=5, policy=policy) for _ in range(2)
    )
    for a, b in zip(one.factors, two.factors, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.float64
    for a, b in zip(start, copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_signs_rescue_a_step_that_is_too_short() -> None:
    tensor, start = noisy((30, 25, 20), 3, 5)
    start = [np.random.default_rng(9).standard_normal(f.shape) for f in start]
    short = {"step": 1e-3, "decay": 0.0, "steps_per_epoch": 15}
    plain = stochastic_polyadic(
        tensor, start, max_iter=80, rng=0, schedule=StochasticSchedule(**short)
    )
    signs = stochastic_polyadic(
        tensor, start, max_iter=80, rng=0, schedule=StochasticSchedule(**short, sign_epochs=60)
    )
    assert signs.fit > plain.fit + 0.1


@pytest.mark.parametrize("schedule", [{"step": 1 / 3}, {"decay": 0.5}, {"n_fibres": 200}])
def test_other_schedules_come_near(schedule: dict[str, Any]) -> None:
    tensor, start = noisy((30, 25, 20), 3, 6)
    found = stochastic_polyadic(
        tensor, start, max_iter=150, rng=0, schedule=StochasticSchedule(**schedule)
    )
    assert found.fit > 0.945


def test_steps_that_diverge_are_taken_back() -> None:
    tensor, start = noisy((12, 11, 10), 2, 7)
    for policy in (None, precision_policy("float16")):
        found = stochastic_polyadic(
            tensor, start, rng=0, schedule=StochasticSchedule(step=1e8), policy=policy
        )
        assert "diverged" in found.message
        assert found.fit > 0.9
        assert np.isfinite(found.history).all()


def test_one_epoch_is_not_called_convergence() -> None:
    tensor, start = noisy((12, 11, 10), 2, 8)
    found = stochastic_polyadic(tensor, start, max_iter=1, rng=0)
    assert (found.status, found.n_iter) == ("max_iter", 1)
    endless = stochastic_polyadic(tensor, start, max_iter=150, tol=0.0, rng=0)
    assert (endless.status, endless.n_iter) == ("max_iter", 150)


def test_callback_sees_every_epoch_and_stops() -> None:
    tensor, start = noisy((12, 11, 10), 2, 9)
    seen = []

    def callback(epoch: int, fit: float, factors: Any) -> bool:
        seen.append((epoch, fit))
        assert fit == pytest.approx(1 - relative_residual(tensor, factors), abs=1e-12)
        return epoch == 4

    found = stochastic_polyadic(tensor, start, rng=0, tol=0.0, callback=callback)
    assert found.status == "stopped"
    assert [epoch for epoch, _ in seen] == [1, 2, 3, 4]


def test_slabs_of_every_source_reach_the_fit(tmp_path: Path) -> None:
    tensor, start = noisy((40, 16, 15), 3, 10)
    tensor = tensor.astype(np.float32)
    path = tmp_path / "tensor.bin"
    tensor.tofile(path)
    mapped = np.memmap(path, dtype=np.float32, mode="r", shape=tensor.shape)
    best = alternating_least_squares(tensor, start).fit

    class Narrow(TensorBlocks):
        """Five slabs however small the tensor is."""

        def slabs(self, max_bytes: int = 0) -> Any:
            return super().slabs(8 * 16 * 15 * 4)

    for source in (mapped, dask.array.from_array(tensor, chunks=(10, 8, 15))):
        blocks = Narrow(source)
        assert len(list(blocks.slabs())) >= 4
        found = stochastic_polyadic(blocks, start, max_iter=60, rng=0)
        assert found.fit > best - 5e-4
        assert found.fit == pytest.approx(1 - relative_residual(tensor, found.factors), abs=1e-9)


def test_other_array_libraries_stay_in_theirs() -> None:
    tensor, start = noisy((12, 11, 10), 2, 11)
    xp = array_api_strict
    few = {"max_iter": 5, "rng": 0, "schedule": StochasticSchedule(steps_per_epoch=9)}
    for policy in (None, precision_policy("bfloat16"), precision_policy("int8")):
        host = stochastic_polyadic(tensor, start, policy=policy, **few)
        found = stochastic_polyadic(
            xp.asarray(tensor), [xp.asarray(f) for f in start], policy=policy, **few
        )
        assert all(f.__array_namespace__() is xp for f in found.factors)
        assert found.fit == pytest.approx(host.fit, abs=1e-4)


def test_zeros_and_columns_that_vanish() -> None:
    tensor, start = noisy((12, 11, 10), 2, 12)
    nothing = stochastic_polyadic(0 * tensor, start)
    assert (nothing.fit, nothing.status) == (1.0, "converged")
    start[0][:, 1] = 0.0  # the other factors' columns bring it back
    assert stochastic_polyadic(tensor, start, rng=0).fit > 0.9
    all_zero = stochastic_polyadic(tensor, [0 * f for f in start], max_iter=30, rng=0)
    assert all_zero.fit == 0.0


def test_start_of_any_scale() -> None:
    tensor, start = noisy((12, 11, 10), 2, 13)
    for scale in (1e-40, 1e60):
        tiny = [f * scale for f in start]
        assert stochastic_polyadic(tensor.astype(np.float32), tiny, rng=0).fit > 0.9


def test_probe_estimates_the_fit_and_misses_nothing_it_is_told() -> None:
    tensor, start = noisy((40, 30, 20), 2, 14)
    rng = np.random.default_rng(0)
    exact = FitProbe(tensor, rng)
    sampled = FitProbe(tensor, rng, exact_size=0)
    streamed = FitProbe(TensorBlocks(tensor), rng)
    assert (exact.is_exact, sampled.is_exact, streamed.is_exact) == (True, False, False)
    truth = 1 - relative_residual(tensor, start)
    assert exact.fit(start) == truth
    assert sampled.fit(start) == pytest.approx(truth, abs=0.02)
    assert streamed.fit(start) == pytest.approx(truth, abs=0.02)
    assert streamed.squared_norm == pytest.approx(float((tensor**2).sum()), rel=1e-12)
    spike = np.zeros((1000, 1000, 3), dtype=np.float32)
    spike[3, 4, 2] = 1.0
    missed = FitProbe(spike, rng)
    zeros = [np.zeros((n, 1)) for n in spike.shape]
    assert missed.squared_norm == 1.0
    assert missed.fit(zeros) in (0.0, 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_fibres": 0},
        {"steps_per_epoch": 1.5},
        {"step": -1.0},
        {"step": float("nan")},
        {"decay": 2.0},
        {"sign_epochs": -1},
        {"sign_step": 0.0},
    ],
)
def test_schedules_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StochasticSchedule(**wrong)


def test_wrong_arguments() -> None:
    start = [np.ones((2, 1)), np.ones((3, 1))]
    with pytest.raises(ValueError, match="sparse"):
        stochastic_polyadic(SparseTensor([[0], [0]], [1.0], (2, 3)), start)
    with pytest.raises(ValueError, match="start_factors"):
        stochastic_polyadic(np.ones((2, 4)), start)
    with pytest.raises(ValueError, match="two modes"):
        stochastic_polyadic(np.ones(2), start[:1])
