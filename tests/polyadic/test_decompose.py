"""decompose: plans, precisions, sources, starts, and the public product."""

import warnings
from pathlib import Path
from typing import Any

import array_api_strict
import dask.array
import numpy as np
import pytest
import pyttb
import scipy.sparse
import sparse
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import KruskalTensor, load
from tensoralg.cli import main
from tensoralg.errors import ConvergenceWarning, ShapeError
from tensoralg.polyadic import decompose, mttkrp

PRECISIONS = ["float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8"]


def noisy(shape: tuple[int, ...], rank: int, noise: float = 0.01, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    X = KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape]).to_dense()
    return X + noise * X.std() * rng.standard_normal(shape)


@pytest.mark.parametrize(
    ("options", "method", "reason"),
    [
        ({}, "compressed", "dense tensor"),
        ({"method": "als"}, "als", "asked for"),
        ({"nonnegative": True}, "als", "nonnegative"),
        ({"mask": np.ones((6, 5, 4), dtype=bool)}, "compressed", "without a mask"),
        ({"mask": np.arange(120).reshape(6, 5, 4) % 9 > 0}, "compressed", "few missing"),
        ({"mask": np.arange(120).reshape(6, 5, 4) % 2 > 0}, "als", "50% of the cells"),
        ({"init": "random"}, "als", "given start"),
        ({"precision": "bfloat16"}, "als", "bfloat16"),
    ],
)
def test_the_message_explains_the_method(options: Any, method: str, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = decompose(noisy((6, 5, 4), 2), 2, rng=0, **options)
    assert result.method == method
    assert result.message.startswith(f"{method}: ")
    assert reason in result.message


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_precision_ends_at_the_exact_fit(precision: str, dtype: str) -> None:
    X = noisy((20, 18, 16), 3).astype(dtype)
    exact = decompose(X, 3, rng=0)
    result = decompose(X, 3, precision=precision, rng=0, n_starts=3)
    assert result.fit > exact.fit - 1e-5
    assert result.tensor.dtype == dtype


def test_without_the_finish_a_low_precision_shows() -> None:
    X = noisy((20, 18, 16), 3, noise=0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rough = decompose(X, 3, precision="float8", rng=0, exact_finish=False, n_starts=3)
        fine = decompose(X, 3, precision="float8", rng=0, n_starts=3)
    assert rough.fit < fine.fit - 1e-4
    wide = X - rough.tensor.to_dense()
    assert rough.fit == pytest.approx(1 - np.linalg.norm(wide) / np.linalg.norm(X), abs=1e-12)


def test_all_sources_of_a_dense_tensor_agree(tmp_path: Path, monkeypatch: Any) -> None:
    X = noisy((16, 14, 12), 3)
    expected = decompose(X, 3, rng=0)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr("tensoralg.polyadic.inputs._RESIDENT_BYTES", 1)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for source in (mapped, dask.array.from_array(X, chunks=(5, 6, 7))):
        for method in ("auto", "als"):
            result = decompose(source, 3, rng=0, method=method, n_starts=2)
            assert result.fit == pytest.approx(expected.fit, abs=1e-7)
            assert result.tensor.match_score(expected.tensor) > 1 - 1e-3


def test_streamed_tensors_are_checked_too() -> None:
    X = noisy((6, 5, 4), 2)
    X[4, 3, 2] = np.nan
    with pytest.raises(ValueError, match=r"got nan at index \(4, 3, 2\)"):
        decompose(dask.array.from_array(X, chunks=2), 2)
    with pytest.raises(ValueError, match="mask is not supported"):
        decompose(dask.array.ones((3, 3, 3)), 1, mask=np.ones((3, 3, 3), dtype=bool))
    assert decompose(dask.array.zeros((3, 3, 3)), 1).fit == 1.0
    tiny = decompose(dask.array.from_array(noisy((6, 5, 4), 2) * 1e-200, chunks=3), 2, rng=0)
    assert tiny.fit == pytest.approx(decompose(noisy((6, 5, 4), 2), 2, rng=0).fit, abs=1e-6)


def test_another_library_in_the_same_library_out() -> None:
    X = noisy((6, 5, 4), 2)
    result = decompose(array_api_strict.asarray(X), 2, method="als", rng=0)
    assert result.tensor.factors[0].__array_namespace__() is array_api_strict
    assert result.fit == pytest.approx(decompose(X, 2, rng=0).fit, abs=1e-6)
    assert decompose(array_api_strict.zeros((2, 2, 2)), 1).fit == 1.0
    auto = decompose(array_api_strict.asarray(X), 2, rng=0)
    assert auto.tensor.factors[0].__array_namespace__() is array_api_strict


def test_nonnegative_factors_stay_nonnegative() -> None:
    rng = np.random.default_rng(0)
    X = KruskalTensor(None, [rng.random((n, 3)) for n in (9, 8, 7)]).to_dense()
    result = decompose(X, 3, nonnegative=True, rng=0, n_starts=3, max_iter=3000)
    assert all((f >= 0).all() for f in result.tensor.factors)
    assert result.fit > 0.999
    negative = decompose(-X, 2, nonnegative=True, rng=0, max_iter=50)
    assert negative.fit == pytest.approx(0.0, abs=1e-9)


def test_starts_are_reported_and_the_best_is_kept() -> None:
    X = noisy((7, 6, 5), 4, noise=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = decompose(X, 4, method="als", n_starts=4, rng=0, max_iter=60)
    assert result.starts.shape == (4,)
    assert result.fit == pytest.approx(result.starts.max(), abs=1e-12)
    assert "best of 4 starts" in result.message


def test_starts_on_a_cluster_are_the_same_numbers() -> None:
    distributed = pytest.importorskip("distributed")
    X = noisy((7, 6, 5), 3, noise=0.2)
    options: dict[str, Any] = {"method": "als", "n_starts": 3, "rng": 5, "max_iter": 500}
    here = decompose(X, 3, **options)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = decompose(X, 3, client=client, **options)
        with pytest.raises(ValueError, match="callback"):
            decompose(X, 3, client=client, callback=print, **options)
    np.testing.assert_array_equal(here.tensor.factors[0], there.tensor.factors[0])
    np.testing.assert_array_equal(here.starts, there.starts)


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    st.integers(0, 999),
    st.permutations(range(4)),
)
def test_permuting_the_modes_permutes_the_model(
    shape: tuple[int, ...], seed: int, order: list[int]
) -> None:
    axes = [k for k in order if k < len(shape)]
    rng = np.random.default_rng(seed)
    X = KruskalTensor(None, [rng.standard_normal((n, 1)) for n in shape]).to_dense()
    one = decompose(X, 1, rng=0)
    two = decompose(np.transpose(X, axes), 1, rng=0)
    assert one.fit > 1 - 1e-7
    assert two.fit > 1 - 1e-7
    np.testing.assert_allclose(
        np.transpose(one.tensor.to_dense(), axes), two.tensor.to_dense(), atol=1e-6 * abs(X).max()
    )


@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 8), (3, 4, 5, 6)])
def test_mttkrp_agrees_with_pyttb(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.5)
    K = KruskalTensor(rng.random(3), [rng.standard_normal((n, 3)) for n in shape])
    for mode in range(len(shape)):
        expected = pyttb.tensor(X).mttkrp(list(K.factors), mode)
        for source in (X, np.asfortranarray(X), sparse.COO.from_numpy(X), X.tolist()):
            np.testing.assert_allclose(mttkrp(source, K.factors, mode), expected, atol=1e-12)
        np.testing.assert_allclose(mttkrp(X, K, mode), expected * K.weights, atol=1e-12)
        np.testing.assert_allclose(mttkrp(X, K.factors, mode - len(shape)), expected, atol=1e-12)
    if len(shape) == 2:
        np.testing.assert_allclose(
            mttkrp(scipy.sparse.csr_array(X), K.factors, 0), X @ K.factors[1], atol=1e-12
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones((2, 3)), [np.ones((2, 1)), np.ones((3, 1))], 2), ValueError, "mode must lie"),
        ((np.ones((2, 3)), [np.ones((2, 1)), np.ones((3, 1))], 0.5), TypeError, "mode must be an"),
        ((np.ones((2, 3)), [np.ones((2, 1))], 0), ShapeError, "2 matrices"),
        ((np.ones((2, 3)), [np.ones((2, 1)), np.ones((2, 1))], 0), ShapeError, r"factors\[1\]"),
        ((np.ones((2, 3)), [np.ones((2, 1)), np.ones((3, 2))], 0), ShapeError, r"factors\[1\]"),
        ((np.ones((2, 3)), [np.ones(2), np.ones((3, 1))], 0), ShapeError, r"factors\[0\]"),
        ((np.ones(2), [np.ones((2, 1))], 0), ShapeError, "two modes"),
        ((np.ones((2, 2), complex), [np.ones((2, 1))] * 2, 0), ValueError, "complex"),
        ((array_api_strict.ones((2, 2)), [np.ones((2, 1))] * 2, 0), TypeError, "librar"),
    ],
)
def test_bad_products_are_named(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        mttkrp(*arguments)


def test_the_command_writes_what_it_found(tmp_path: Path, capsys: Any) -> None:
    X = noisy((6, 5, 4), 2, noise=0.0)
    np.save(tmp_path / "X.npy", X)
    out = tmp_path / "K.npz"
    assert main(["decompose", str(tmp_path / "X.npy"), "--rank", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("fit 1 (converged")
    np.testing.assert_allclose(load(out).to_dense(), X, atol=1e-6)
    assert main(["decompose", str(out), "--rank", "2"]) == 0  # a Kruskal tensor is a tensor


def test_the_command_reads_masks_and_sparse_files(tmp_path: Path, capsys: Any) -> None:
    X = noisy((6, 5, 4), 1, noise=0.0)
    mask = np.random.default_rng(0).random(X.shape) < 0.8
    np.save(tmp_path / "X.npy", np.where(mask, X, np.nan))
    np.save(tmp_path / "mask.npy", mask)
    name = str(tmp_path / "X.npy")
    assert main(["decompose", name, "--rank", "1", "--mask", str(tmp_path / "mask.npy")]) == 0
    fit = float(capsys.readouterr().out.split()[1])
    assert fit > 1 - 1e-6
    assert main(["decompose", name, "--rank", "1"]) == 2
    assert "must be finite" in capsys.readouterr().err
    scipy.sparse.save_npz(tmp_path / "S.npz", scipy.sparse.csr_array(X[0]))
    sparse.save_npz(str(tmp_path / "T.npz"), sparse.COO.from_numpy(X))
    for file in ("S.npz", "T.npz"):
        assert main(["decompose", str(tmp_path / file), "--rank", "1"]) == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("X.npy", b"not an array", "not a .npy file"),
        ("X.npz", b"not an archive", "not a .npz file"),
        ("X.txt", b"1 2 3", "must end in .npy or .npz"),
        ("missing", None, "No such file"),
    ],
)
def test_bad_files_end_in_one_line(
    name: str, content: bytes | None, said: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    else:
        path = tmp_path / "missing.npy"
    assert main(["decompose", str(path), "--rank", "2"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
