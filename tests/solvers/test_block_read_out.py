"""The three-block read-out: exact recovery, invariances, noise, other arrays, bad input."""

import functools
import pickle
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tensoralg.errors import RankBoundError, ShapeError
from tensoralg.solvers.block_read_out import block_bound, block_read_out
from tensoralg.solvers.block_tensor import block_functionals

Array = NDArray[Any]


def sample(seed: int, d: int, r: int, n: int, separation: float = 0.7) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    means = separation * rng.standard_normal((r, d))
    variances = rng.uniform(0.3, 1.5, (r, d))
    weights = rng.dirichlet(np.full(r, 8.0))
    labels = rng.choice(r, n, p=weights)
    X = means[labels] + np.sqrt(variances[labels]) * rng.standard_normal((n, d))
    return X, weights, means, variances


def read(X: Array, r: int, weight: Any = None, **options: Any) -> Any:
    total = np.ones(len(X)) if weight is None else weight
    shift = np.average(X, axis=0, weights=total)
    scale = np.sqrt(np.average((X - shift) ** 2, axis=0, weights=total))
    scale[scale == 0] = 1.0
    return block_read_out(lambda: [(X, weight)], r, shift=shift, scale=scale, rng=0, **options)


def in_units(found: Any, X: Array) -> tuple[Array, Array]:
    shift, scale = X.mean(axis=0), X.std(axis=0)
    variances = scale**2 * (found.second_moments - found.means**2)
    return shift + scale * found.means, variances


def match(found: Array, means: Array) -> Array:
    distance = ((means[:, None] - found[None]) ** 2).sum(axis=2)
    return np.asarray(linear_sum_assignment(distance)[1])


@given(st.integers(2, 6), st.integers(0, 5), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_points_are_recovered_exactly(r: int, extra: int, seed: int) -> None:
    """A mixture of points has exact moments: weights and means come out to rounding."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((r, 3 * r + extra))
    weights = rng.uniform(0.5, 1.5, r)
    weights /= weights.sum()
    shift = weights @ means
    found = block_read_out(
        lambda: [(means, weights)], r, shift=shift, scale=np.ones(means.shape[1]), rng=seed
    )
    order = match(shift + found.means, means)
    # the condition of three random r x r matrices
    assert np.allclose(shift + found.means[order], means, atol=1e-4)
    assert np.allclose(found.weights[order], weights, atol=1e-4)
    assert np.allclose(found.second_moments[order], (means - shift) ** 2, atol=1e-3)


def test_sample_is_recovered_to_its_noise() -> None:
    X, weights, means, variances = sample(1, 90, 4, 20_000)
    found = read(X, 4)
    mu, var = in_units(found, X)
    order = match(mu, means)
    assert np.linalg.norm(mu[order] - means) < 0.04 * np.linalg.norm(means)
    assert np.linalg.norm(var[order] - variances) < 0.1 * np.linalg.norm(variances)
    assert np.abs(found.weights[order] - weights).max() < 0.02
    assert found.n_complex == 0
    assert found.n_passes == 5
    assert found.misfit < 8
    # the predicted error is that of the worst component, in standard deviations
    actual = np.sqrt((((mu[order] - means) / X.std(axis=0)) ** 2).mean(axis=1)).max()
    assert 0.5 < found.mean_error / actual < 2.0


@pytest.mark.parametrize("rank", [3, 5])
def test_wrong_number_of_components_shows(rank: int) -> None:
    X, *_ = sample(1, 90, 4, 20_000)
    found = read(X, rank)
    assert found.misfit > 20
    if rank > 4:
        assert found.mean_error == np.inf


def test_components_without_different_means_do_not_stand_out() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 60)) * rng.choice([1.0, 3.0], (4000, 1))
    assert read(X, 2).mean_error == np.inf


def test_singular_values_drop_after_the_components() -> None:
    X, *_ = sample(2, 120, 5, 20_000)
    values = read(X, 5).singular_values
    assert len(values) == 8
    assert values[3] > 5 * values[4]


def test_other_distributions() -> None:
    """Only independence inside a component is used: exponentials do as well."""
    rng = np.random.default_rng(3)
    means = rng.uniform(0.5, 2.5, (3, 90))
    labels = rng.choice(3, 20_000)
    X = means[labels] * rng.exponential(size=(20_000, 90))
    mu, _ = in_units(read(X, 3), X)
    assert np.linalg.norm(mu[match(mu, means)] - means) < 0.05 * np.linalg.norm(means)


def test_chunks_and_weights_stand_for_rows() -> None:
    X, *_ = sample(4, 45, 3, 3000)
    whole = read(X, 3)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    parts = [(X[:700], None), (X[700:701], None), (X[701:], None)]
    chunked = block_read_out(lambda: parts, 3, shift=shift, scale=scale, rng=0)
    assert np.allclose(chunked.means, whole.means, atol=1e-9)
    weight = np.random.default_rng(0).integers(0, 4, len(X)).astype(float)
    repeated = read(np.repeat(X, weight.astype(int), axis=0), 3)
    weighted = read(X, 3, weight)
    assert np.allclose(weighted.means, repeated.means, atol=1e-8)
    assert np.allclose(weighted.weights, repeated.weights, atol=1e-9)
    assert weighted.misfit == pytest.approx(repeated.misfit, rel=1e-6)


def test_missing_cells() -> None:
    X, weights, means, _ = sample(5, 90, 3, 20_000)
    holes = X.copy()
    rng = np.random.default_rng(0)
    holes[rng.random(X.shape) < rng.uniform(0.0, 0.5, 90)] = np.nan
    shift, scale = np.nanmean(holes, axis=0), np.nanstd(holes, axis=0)
    found = block_read_out(
        lambda: [(holes, None)], 3, shift=shift, scale=scale, missing=True, rng=0
    )
    mu = shift + scale * found.means
    order = match(mu, means)
    assert np.linalg.norm(mu[order] - means) < 0.06 * np.linalg.norm(means)
    assert np.abs(found.weights[order] - weights).max() < 0.03
    assert found.n_passes == 6
    none = block_read_out(lambda: [(X, None)], 3, shift=shift, scale=scale, rng=1)
    same = block_read_out(lambda: [(X, None)], 3, shift=shift, scale=scale, missing=True, rng=1)
    assert np.allclose(none.means, same.means)


def test_columns_left_out() -> None:
    X, *_ = sample(6, 60, 3, 4000)
    wide = np.insert(X, 7, 3.0, axis=1)
    columns = np.delete(np.arange(61), 7)
    found, alone = read(wide, 3, columns=columns), read(X, 3)
    assert not found.means[:, 7].any()
    assert not found.second_moments[:, 7].any()
    # the same random split, up to the names of the columns
    assert np.allclose(found.means[:, columns], alone.means, atol=1e-9)


def test_rows_of_another_array_library() -> None:
    X, *_ = sample(7, 45, 3, 2000)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    weight = np.random.default_rng(0).uniform(size=2000)
    ours = block_read_out(lambda: [(X, weight)], 3, shift=shift, scale=scale, rng=0)
    rows, w = array_api_strict.asarray(X), array_api_strict.asarray(weight)
    found = block_read_out(lambda: [(rows, w)], 3, shift=shift, scale=scale, rng=0)
    assert np.allclose(found.means, ours.means, atol=1e-9)


def test_functionals_are_dual() -> None:
    rng = np.random.default_rng(8)
    factors = rng.standard_normal((3, 6, 6))
    factors[:, :, 0] = 1.0
    weights = rng.dirichlet(np.full(6, 5.0))
    found = block_functionals(np.einsum("s,si,sj,sk->ijk", weights, *factors), rng=0)
    order = [int(np.argmin(np.abs(found.weights - w))) for w in weights]
    for matrix, factor in zip(found.matrices, factors, strict=True):
        assert np.allclose(matrix[order] @ factor.T, np.eye(6), atol=1e-6)


def test_bad_input() -> None:
    X, *_ = sample(9, 12, 2, 50)
    one, zero = np.ones(12), np.zeros(12)
    assert block_bound(12) == 4
    for rank in (1, 5):
        with pytest.raises(RankBoundError, match=f"rank={rank}.* 2 to 4"):
            read(X, rank)
    with pytest.raises(ShapeError, match="expected \\(n, 12\\)"):
        block_read_out(lambda: [(X[:, 1:], None)], 2, shift=zero, scale=one)
    with pytest.raises(ShapeError, match="shift and scale"):
        block_read_out(lambda: [(X, None)], 2, shift=zero, scale=one[1:])
    with pytest.raises(ValueError, match="scale finite and positive"):
        block_read_out(lambda: [(X, None)], 2, shift=zero, scale=zero)
    with pytest.raises(ValueError, match="no row of positive weight"):
        block_read_out(lambda: [(X, np.zeros(50))], 2, shift=zero, scale=one)
    X[3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        block_read_out(lambda: [(X, None)], 2, shift=zero, scale=one, rng=0)
    with pytest.raises(ShapeError, match=r"\(r, r, r\)"):
        block_functionals(np.ones((2, 2, 3)))
    with pytest.raises(ValueError, match="finite"):
        block_functionals(np.full((2, 2, 2), np.nan))


class _Elsewhere:
    """Chunks that can only be reached where they are."""

    def __init__(self, parts: list[Array]) -> None:
        self.parts = parts

    def __call__(self) -> Any:
        raise AssertionError("the rows were moved")

    def reduce(self, function: Any, merge: Any) -> Any:
        found = [
            pickle.loads(pickle.dumps(function))(k, part, None) for k, part in enumerate(self.parts)
        ]
        return functools.reduce(merge, found)


def test_rows_stay_where_they_are() -> None:
    X, *_ = sample(4, 45, 3, 3000)
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    for rows, missing in ((X, False), (holes, True)):
        shift, scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        options: dict[str, Any] = {"shift": shift, "scale": scale, "missing": missing, "rng": 0}
        whole = block_read_out(lambda rows=rows: [(rows, None)], 3, **options)  # type: ignore[misc]
        there = block_read_out(_Elsewhere([rows[:1000], rows[1000:]]), 3, **options)
        assert np.allclose(there.means, whole.means, atol=1e-9)
        assert there.misfit == pytest.approx(whole.misfit, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_many_components_end_in_no_local_optimum(seed: int) -> None:
    """One start of the fit of the small tensor is not enough for twenty components."""
    X, weights, means, _ = sample(seed, 150, 20, 10_000, 0.6)
    found = read(X, 20)
    estimates, _ = in_units(found, X)
    order = match(estimates, means)
    assert found.misfit < 8
    assert np.abs(found.weights[order] - weights).max() < 0.02
    assert np.linalg.norm(estimates[order] - means) < 0.25 * np.linalg.norm(means)
    assert found.deviation(found.weights, found.means) == found.misfit
    assert found.misfit_of_one > 3 * found.misfit
