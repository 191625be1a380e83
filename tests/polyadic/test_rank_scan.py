"""Core consistency against its dense definition, and what a scan over ranks reports."""

import warnings
from typing import Any

import dask.array
import numpy as np
import pytest
import sparse

from tensoralg import KruskalTensor
from tensoralg.errors import ConvergenceWarning, ShapeError
from tensoralg.polyadic import core_consistency, decompose, rank_scan


def noisy(shape: tuple[int, ...], rank: int, noise: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    X = KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape]).to_dense()
    return X + noise * X.std() * rng.standard_normal(shape)


def plain_core_consistency(X: Any, K: KruskalTensor) -> float:
    """The definition with one large least-squares problem."""
    weights = K.weights ** (1 / K.order)
    columns = np.ones((1, 1))
    for factor in K.factors:
        columns = np.kron(columns, factor * weights)
    core = np.linalg.lstsq(columns, X.reshape(-1), rcond=None)[0].reshape((K.rank,) * K.order)
    ideal = np.zeros_like(core)
    ideal[tuple(np.arange(K.rank) for _ in range(K.order))] = 1.0
    return float(100 * (1 - ((core - ideal) ** 2).sum() / K.rank))


@pytest.mark.parametrize("shape", [(6, 5, 4), (4, 3, 5, 3)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_core_consistency_follows_the_definition(shape: tuple[int, ...], rank: int) -> None:
    X = noisy(shape, 2, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        K = decompose(X, rank, rng=0).tensor
    expected = plain_core_consistency(X, K)
    assert core_consistency(X, K) == pytest.approx(expected, abs=1e-6 * max(1, abs(expected)))


def test_core_consistency_of_every_kind_of_tensor() -> None:
    rng = np.random.default_rng(3)
    X = noisy((6, 5, 4), 2, 0.1) * (rng.random((6, 5, 4)) < 0.6)
    K = KruskalTensor(rng.random(2) + 1, [rng.standard_normal((n, 2)) for n in X.shape])
    expected = plain_core_consistency(X, K.normalize())
    assert core_consistency(sparse.COO.from_numpy(X), K) == pytest.approx(expected)
    assert core_consistency(dask.array.from_array(X, chunks=2), K) == pytest.approx(expected)
    assert core_consistency(X * 1e200, KruskalTensor(K.weights * 1e200, K.factors)) == (
        pytest.approx(expected)
    )
    full = noisy((6, 5, 4), 2, 0.0)
    mask = rng.random(X.shape) < 0.7
    truth = decompose(full, 2, rng=0).tensor
    hidden = np.where(mask, full, np.nan)
    assert core_consistency(hidden, truth, mask=mask) == pytest.approx(100.0, abs=1e-4)


def test_core_consistency_refuses_other_shapes() -> None:
    K = KruskalTensor([1.0], [np.ones((2, 1))] * 3)
    with pytest.raises(ShapeError, match=r"\(2, 2, 2\); got \(2, 2\)"):
        core_consistency(np.ones((2, 2)), K)
    assert core_consistency(np.ones((2, 2, 2)), KruskalTensor([0.0], K.factors)) == 0.0


def test_a_scan_shows_the_true_rank() -> None:
    X = noisy((9, 8, 7), 3, 0.02)
    scan = rank_scan(X, [4, 2, 3, 1, 3], rng=0)
    assert scan.ranks.tolist() == [1, 2, 3, 4]
    assert (np.diff(scan.fits) > 0).all()
    assert scan.fits[2] > 0.97
    assert scan.core_consistencies[2] > 90
    assert scan.fits[3] - scan.fits[2] < 0.01 < scan.fits[2] - scan.fits[1]
    assert scan.agreements[2] > 0.99
    assert [r.tensor.rank for r in scan.results] == [1, 2, 3, 4]
    figure = scan.plot()
    assert next(axes.get_title() for axes in figure.axes) == "fit"
    figure.canvas.draw()


def test_a_scan_with_one_start_has_no_agreement() -> None:
    scan = rank_scan(noisy((5, 4, 3), 1, 0.0), [1], n_starts=1, rng=0)
    assert np.isnan(scan.agreements).all()
    with pytest.raises(ValueError, match="at least one rank"):
        rank_scan(np.ones((2, 2, 2)), [])
    with pytest.raises(ValueError, match="ranks must be at least 1"):
        rank_scan(np.ones((2, 2, 2)), [0])


def test_a_scan_on_a_cluster_has_the_same_numbers() -> None:
    distributed = pytest.importorskip("distributed")
    X = noisy((7, 6, 5), 2, 0.1)
    here = rank_scan(X, [2, 1], rng=3, n_starts=2)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = rank_scan(X, [2, 1], rng=3, n_starts=2, client=client)
        with pytest.raises(ValueError, match="callback"):
            rank_scan(X, [1], client=client, callback=print)
    np.testing.assert_array_equal(here.fits, there.fits)
    np.testing.assert_array_equal(here.agreements, there.agreements)
    for one, two in zip(here.results, there.results, strict=True):
        np.testing.assert_array_equal(one.tensor.weights, two.tensor.weights)
