"""Rows in Dask arrays: the numbers of arrays in memory, and only sums that travel."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.delayed import Delayed
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensoralg.errors import ShapeError
from tensoralg.mixtures import DiagonalGaussianMixture, MomentAccumulator
from tensoralg.mixtures.dask_rows import DaskRows
from tensoralg.solvers.expectation_maximization import expectation_maximization

Array = NDArray[Any]

TRUTH = DiagonalGaussianMixture.from_parameters(
    [0.4, 0.6], [[2.0, 1.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 2.0, 0.0]], np.ones((2, 5))
)
X = TRUTH.sample(3000, random_state=0)[0]
WEIGHTS = np.random.default_rng(1).integers(0, 4, 3000).astype(np.float64)
ROWS = (700, 50, 1250, 1000)


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def blocks(data: Array = X, columns: int = -1) -> Any:
    return da.from_array(data, chunks=(ROWS, columns)[: data.ndim])


def unknown(data: Array = X) -> Any:
    parts = np.split(data, np.cumsum(ROWS)[:-1])
    return da.concatenate(
        [da.from_delayed(dask.delayed(p), (np.nan, *p.shape[1:]), p.dtype) for p in parts]
    )


def fitted(data: Any, n_components: int = 2, **options: Any) -> DiagonalGaussianMixture:
    weight = options.pop("sample_weight", None)
    options.setdefault("random_state", 0)
    return DiagonalGaussianMixture(n_components, **options).fit(data, sample_weight=weight)


def assert_same(one: Any, two: Any, atol: float = 1e-8) -> None:
    assert one.n_iter_ == two.n_iter_
    assert one.diagnostics_.start == two.diagnostics_.start
    for name in ("weights_", "means_", "covariances_", "lower_bound_"):
        left, right = getattr(one, name), getattr(two, name)
        assert np.asarray(left).dtype == np.asarray(right).dtype
        np.testing.assert_allclose(left, right, atol=atol, err_msg=name)


@pytest.mark.parametrize("n_components", [1, 2])
@pytest.mark.parametrize(
    "given_rows",
    [
        blocks(),
        blocks(columns=2),
        unknown(),
        da.from_array(X, chunks=(37, 5)),
        da.from_array(X, chunks=(5000, 5)),
        da.concatenate([blocks()[:0], blocks()]),
        da.concatenate([blocks()[blocks()[:, 0] > 1e9], unknown()]),
        da.from_array(X.astype(object), chunks=(1000, 5)),
    ],
    ids=["rows", "columns", "unknown", "many", "one", "empty first", "none first", "object"],
)
def test_the_numbers_of_an_array(given_rows: Any, n_components: int) -> None:
    assert_same(fitted(given_rows, n_components), fitted(X, n_components))


@pytest.mark.parametrize("form", ["affine", "power"])
def test_a_fit_without_polish(form: str) -> None:
    assert_same(fitted(blocks(), polish=None, form=form), fitted(X, polish=None, form=form))


def test_single_precision() -> None:
    model = fitted(blocks(X.astype(np.float32)))
    assert model.means_.dtype == np.float32
    assert_same(model, fitted(X.astype(np.float32)), atol=1e-5)


def test_integers() -> None:
    counts = np.random.default_rng(0).poisson(4.0, (3000, 4))
    assert_same(fitted(blocks(counts)), fitted(counts), atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("missing", [True, False])
def test_weights(known: bool, missing: bool) -> None:
    data = X.copy()
    data[WEIGHTS == 0] = np.inf  # rows of weight 0 are deleted, whatever they hold
    if missing:
        data[::9, 2] = np.nan
        data[7] = np.nan
    wanted = fitted(data, sample_weight=WEIGHTS, missing=missing)
    cut = blocks if known else unknown
    weights = [cut(WEIGHTS)] if not known else [
        WEIGHTS, WEIGHTS.tolist(), da.from_array(WEIGHTS, chunks=613)
    ]  # fmt: skip
    for weight in weights:
        model = fitted(cut(data), sample_weight=weight, missing=missing)
        # with missing cells moments are about the first chunk's mean, which differs
        assert_same(model, wanted, atol=1e-3 if missing else 1e-8)


def test_a_sample_is_compared_on_where_there_are_many_rows() -> None:
    many = TRUTH.sample(60_000, random_state=3)[0]
    model, wanted = fitted(da.from_array(many, chunks=(9000, 5))), fitted(many)
    assert model.converged_
    np.testing.assert_allclose(model.means_, wanted.means_, atol=1e-3)
    np.testing.assert_allclose(model.lower_bound_, wanted.lower_bound_, atol=1e-5)


def test_the_sample_is_uniform_and_small() -> None:
    number = np.arange(200_000.0)[:, None]
    rows = DaskRows(da.from_array(number, chunks=(7000, 1)), number[:, 0] + 1, missing=False)
    found = rows.sample(np.random.default_rng(0), 5000)
    assert found is not None
    drawn, weights = found
    assert drawn.shape == (5000, 1)
    assert len(np.unique(drawn)) == 5000
    np.testing.assert_array_equal(weights, drawn[:, 0] + 1)
    share = np.histogram(drawn, bins=20, range=(0, 200_000))[0] / 250
    assert 0.75 < share.min() < share.max() < 1.25


def test_clusters_start_where_moments_cannot() -> None:
    with pytest.warns(UserWarning, match="counting bound"):
        model = fitted(blocks(X[:, :2]), 3, max_iter=500)
    assert model.diagnostics_.start == "k-means++"
    with pytest.warns(UserWarning, match="counting bound"):
        plain = fitted(X[:, :2], 3, max_iter=500)
    # a third component is hardly determined: rounding decides in which step the iteration ends
    assert plain.diagnostics_.start == "k-means++"
    assert model.lower_bound_ == pytest.approx(plain.lower_bound_, abs=1e-6)
    np.testing.assert_allclose(model.means_, plain.means_, atol=1e-2)


def test_fewer_distinct_rows_than_components() -> None:
    data = np.repeat([[0.0, 0.0, 1.0], [5.0, 5.0, 2.0]], 60, axis=0)
    with pytest.warns(UserWarning, match="2 distinct rows"):
        model = fitted(da.from_array(data, chunks=(50, 3)), 4)
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), [0.0, 5.0], atol=1e-6)


def test_a_constant_column_and_a_warm_start() -> None:
    data = np.insert(X, 2, 3.0, axis=1)
    with pytest.warns(UserWarning, match=r"columns \[2\] are constant"):
        model = DiagonalGaussianMixture(2, warm_start=True, random_state=0).fit(blocks(data))
    first = model.means_
    with pytest.warns(UserWarning, match=r"columns \[2\] are constant"):
        model.fit(blocks(data))
    assert model.diagnostics_.start == "warm"
    np.testing.assert_allclose(model.means_, first, atol=1e-2)
    with pytest.warns(UserWarning, match="a new start is made"):
        assert model.fit(blocks()).means_.shape == (2, 5)


def test_a_dead_component_starts_anew_at_the_worst_row() -> None:
    start = ([0.5, 0.5], [[0.0] * 5, [1e4] * 5], np.ones((2, 5)))
    here = expectation_maximization(lambda: [(X, None)], *start)
    there = expectation_maximization(DaskRows(blocks(), None, missing=False), *start)
    assert here.restarted == there.restarted == (1,)
    np.testing.assert_allclose(there.means, here.means, atol=1e-8)


@pytest.mark.parametrize(
    ("data", "weight", "options", "error", "words"),
    [
        (blocks()[:, 0], None, {}, ShapeError, r"reshape\(-1, 1\)"),
        (blocks()[None], None, {}, ShapeError, "must have shape"),
        (blocks() + 0j, None, {}, ValueError, "complex128"),
        (blocks()[:, :0], None, {}, ShapeError, "0 features"),
        (blocks()[:0], None, {}, ValueError, "no rows"),
        (blocks()[:1], None, {}, ValueError, "at least 2 rows"),
        (unknown().T, None, {}, ShapeError, "unknown number of columns"),
        (da.ma.masked_less(blocks(), 0.0), None, {}, TypeError, "MaskedArray"),
        (blocks(), WEIGHTS[1:], {}, ShapeError, r"\(3000,\), got \(2999,\)"),
        (blocks(), blocks(WEIGHTS)[1:], {}, ShapeError, r"\(3000,\), got \(2999,\)"),
        (blocks(), blocks(), {}, ShapeError, r"shape \(N,\)"),
        (unknown(), WEIGHTS, {}, ValueError, "unknown sizes"),
        (unknown(), blocks(WEIGHTS).rechunk(500), {}, ShapeError, "6 chunks and X has 4"),
        (unknown(), blocks(WEIGHTS).rechunk(((50, 700, 1250, 1000),)), {}, ShapeError, "chunk 0"),
        (blocks(), -WEIGHTS, {}, ValueError, "chunk 0 of X .from row 0.: .*nonnegative"),
        (blocks(), 0 * WEIGHTS, {}, ValueError, "positive weight|no rows"),
        (blocks(), 1e300 * WEIGHTS, {}, ValueError, "divide the weights"),
    ],
)
def test_what_is_refused_by_name(
    data: Any, weight: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        fitted(data, sample_weight=weight, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_cell_is_named(bad: float) -> None:
    data = X.copy()
    data[717, 3] = bad
    with pytest.raises(ValueError, match=r"chunk 1 of X \(from row 700\): .*row 17, column 3"):
        fitted(blocks(data))
    with pytest.raises(ValueError, match=r"chunk 1 of X: .*row 17, column 3"):
        fitted(unknown(data))
    accumulator = MomentAccumulator(5, 3).update(X)
    before = accumulator.gram.copy()
    with pytest.raises(ValueError, match=r"chunk 1 of X.*row 17, column 3"):
        accumulator.update(blocks(data))
    np.testing.assert_array_equal(accumulator.gram, before)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("cut", [blocks, unknown])
def test_an_accumulator_of_chunks(cut: Any, missing: bool) -> None:
    data = X.copy()
    if missing:
        data[::7, 1] = np.nan
    wanted = MomentAccumulator(5, 4, missing=missing).update(data[:700])
    for first, last in ((700, 750), (750, 2000), (2000, 3000)):
        wanted.update(data[first:last])
    found = MomentAccumulator(5, 4, missing=missing).update(cut(data))
    assert found.count == 3000
    np.testing.assert_array_equal(found.shift, wanted.shift)
    np.testing.assert_allclose(found.homogenised(), wanted.homogenised(), rtol=1e-12, atol=1e-13)
    # rows that come later, with weights
    wanted.update(data, sample_weight=WEIGHTS)
    found.update(cut(data), sample_weight=cut(WEIGHTS))
    assert found.count == wanted.count
    assert found.total_weight == pytest.approx(wanted.total_weight)
    np.testing.assert_allclose(found.homogenised(), wanted.homogenised(), rtol=1e-12, atol=1e-13)


def test_an_accumulator_refuses_other_columns_and_passes_over_weights_of_zero() -> None:
    accumulator = MomentAccumulator(4, 3)
    with pytest.raises(ShapeError, match="5 columns"):
        accumulator.update(blocks())
    with pytest.raises(ShapeError, match="no rows"):
        accumulator.update(blocks(X[:, :4])[:0])
    accumulator.update(blocks(X[:, :4]), sample_weight=0 * WEIGHTS)
    assert accumulator.shift is None
    assert accumulator.count == 0


def _as_text(number: int, rows: Array, weights: Array | None) -> str:
    return f"[{number}]"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=90))
def test_the_tree_keeps_the_order_of_the_chunks(lengths: list[int]) -> None:
    if not sum(lengths):
        lengths[0] = 1
    rows = DaskRows(da.zeros((sum(lengths), 1), chunks=(tuple(lengths), 1)), None, missing=None)
    wanted = [f"[{k}]" for k, n in enumerate(lengths) if n]
    with dask.config.set(scheduler="synchronous"):
        assert rows.reduce(_as_text, str.__add__) == "".join(wanted)
        assert rows.first(_as_text) == wanted[0]


def test_arrays_in_memory_load_no_dask() -> None:
    code = (
        "import sys, numpy, tensoralg.mixtures as m\n"
        "m.DiagonalGaussianMixture(1).fit(numpy.random.default_rng(0).random((50, 3)))\n"
        "m.MomentAccumulator(3, 3).update(numpy.ones((4, 3)))\n"
        "print('dask' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def cluster(workers: int, **options: Any) -> Any:
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **options
    )


def test_as_many_workers_as_you_like_and_only_sums_move(monkeypatch: Any) -> None:
    from distributed import Client, wait

    many = TRUTH.sample(120_000, random_state=4)[0]
    sizes: list[int] = []
    compute = Delayed.compute

    def measured(self: Any, **options: Any) -> Any:
        result = compute(self, **options)
        sizes.append(len(pickle.dumps(result)))
        return result

    def moved(self: Any) -> Any:
        raise AssertionError("rows were read into this process")

    monkeypatch.setattr(Delayed, "compute", measured)
    monkeypatch.setattr(DaskRows, "__call__", moved)
    models, between = [], []
    for workers in (1, 4):
        # stealing tasks together with their rows is Dask's choice, not ours
        with (
            dask.config.set({"scheduler": None, "distributed.scheduler.work-stealing": False}),
            cluster(workers, processes=False) as local,
            Client(local),
        ):
            rows = da.from_array(many, chunks=(5000, 5)).persist()
            wait(rows)
            models.append(fitted(rows))
            logs = [worker.transfer_incoming_log for worker in local.workers.values()]
            between += [entry["total"] for log in logs for entry in log]
    assert_same(*models, atol=0.0)
    sample = (
        8 * 7 * 21_000
    )  # with keys and weights: starts are compared on 20,000 rows; a few more are drawn
    assert max(sizes) < sample
    assert sorted(sizes)[-3] < 10_000  # everything else, on either cluster
    # a chunk has 200,000 bytes; the sample travels in parts, once on the way to each merge
    assert sum(size for size in between if size > 20_000) < 2 * sample


def _dying(rows: Array, folder: str, last: int, block_info: Any = None) -> Array:
    """Kill the worker that computes chunk 2 for the third time."""
    number = block_info[0]["chunk-location"][0]
    if number == 2:
        time_ = len(os.listdir(folder))
        Path(folder, f"{time_}").touch()
        if time_ == last:
            os.kill(os.getpid(), signal.SIGKILL)
    return rows


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_fit_loses_nothing(tmp_path: Path) -> None:
    from distributed import Client

    wanted = fitted(X)
    with (
        dask.config.set(scheduler=None),
        cluster(2, processes=True) as local,
        Client(local) as client,
    ):
        rows = blocks().map_blocks(_dying, str(tmp_path), 2, dtype=X.dtype)
        before = set(client.run(os.getpid).values())
        model = fitted(rows)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            after = set(client.run(os.getpid).values())
            if len(after) == 2:
                break
            time.sleep(0.1)
    assert len(list(tmp_path.iterdir())) > 3, "no pass followed the one that was interrupted"
    assert len(after - before) == 1, "one worker died and was replaced"
    assert_same(model, wanted)
