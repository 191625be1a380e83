"""decompose(method="sgd"): the optimum after the exact finish, precisions, sources, refusals."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import array_api_strict
import dask.array
import numpy as np
import pytest

from tensoralg import KruskalTensor
from tensoralg.core.errors import ConvergenceWarning
from tensoralg.gpu.sparse_tensor import SparseTensor
from tensoralg.polyadic import decompose

PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")


def noisy_tensor(seed: int, shape: tuple[int, ...] = (24, 20, 18), rank: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    truth = KruskalTensor(None, [rng.standard_normal((n, rank)) for n in shape])
    X = truth.to_dense()
    return X + 0.05 * np.linalg.norm(X) / np.sqrt(X.size) * rng.standard_normal(shape), truth


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.filterwarnings("ignore::tensoralg.core.errors.ConvergenceWarning")
def test_every_precision_ends_at_the_float64_fit(precision: str) -> None:
    X, truth = noisy_tensor(0)
    best = decompose(X, 3, rng=0)
    found = decompose(X, 3, method="sgd", precision=precision, max_iter=40, rng=2)
    assert found.method == "sgd"
    assert "exact sweeps" in found.message
    assert found.fit > best.fit - 1e-5
    assert found.tensor.match_score(truth) > 0.99


def test_without_the_finish_the_message_says_nothing_of_it() -> None:
    X, _ = noisy_tensor(1)
    found = decompose(X, 3, method="sgd", exact_finish=False, rng=2)
    assert "exact" not in found.message
    assert found.status == "converged"
    assert found.fit > decompose(X, 3, rng=0).fit - 1e-4


def test_too_few_epochs_warn() -> None:
    X, _ = noisy_tensor(2)
    with pytest.warns(ConvergenceWarning, match="epochs"):
        decompose(X, 3, method="sgd", max_iter=2, rng=0)


@pytest.mark.filterwarnings("ignore::tensoralg.core.errors.ConvergenceWarning")
def test_other_libraries_given_starts_and_large_scales() -> None:
    X, truth = noisy_tensor(3, (10, 9, 8), 2)
    start = KruskalTensor(None, [array_api_strict.asarray(f) for f in truth.factors])
    strict = array_api_strict.asarray(X)
    found = decompose(strict, 2, method="sgd", init=start, max_iter=3, rng=0)
    assert found.tensor.factors[0].__array_namespace__() is array_api_strict
    assert found.fit > 0.94
    huge = decompose(X * 1e160, 2, method="sgd", max_iter=40, rng=3)
    usual = decompose(X, 2, method="sgd", max_iter=40, rng=3)
    assert huge.fit == pytest.approx(usual.fit, abs=1e-6)
    assert usual.fit > 0.94


def test_a_callback_stops_it() -> None:
    X, _ = noisy_tensor(4)
    found = decompose(X, 3, method="sgd", rng=0, callback=lambda *seen: seen[0] == 3)
    assert (found.status, found.n_iter) == ("stopped", 3)


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (SparseTensor([[0, 1], [1, 0], [2, 2]], [1.0, 2.0], (3, 3, 3)), {}, "sparse"),
        (np.ones((3, 3, 3)), {"nonnegative": True}, "nonnegative"),
        (np.ones(3), {}, "a single mode"),
    ],
)
def test_what_it_cannot_do_is_refused(X: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompose(X, 1, method="sgd", **options)


@pytest.mark.filterwarnings("ignore::tensoralg.core.errors.ConvergenceWarning")
def test_a_chunked_array_is_passed_by_slabs() -> None:
    X, truth = noisy_tensor(5, (30, 20, 18))
    chunked = dask.array.from_array(X, chunks=(10, 10, 18))
    found = decompose(chunked, 3, method="sgd", max_iter=30, rng=0)
    assert found.tensor.match_score(truth) > 0.99


@pytest.mark.slow
def test_a_mapped_file_is_never_resident_as_a_whole(tmp_path: Path) -> None:
    code = f"""
        import resource, warnings
        import numpy as np
        from tensoralg.polyadic import decompose
        rng = np.random.default_rng(0)
        A, B, C = (rng.standard_normal((n, 3)).astype(np.float32) for n in (600, 400, 500))
        path, shape = {str(tmp_path / "large.bin")!r}, (600, 400, 500)
        mapped = np.memmap(path, dtype=np.float32, mode="w+", shape=shape)
        for i in range(600):
            mapped[i] = (A[i] * B) @ C.T
        mapped.flush()
        del mapped
        mapped = np.memmap(path, dtype=np.float32, mode="r", shape=shape)
        small = np.ones((20, 20, 20), np.float32)
        warnings.simplefilter("ignore")
        decompose(small, 1, method="sgd", rng=0)
        def peak():
            for line in open("/proc/self/status"):
                if line.startswith("VmHWM"):
                    return int(line.split()[1])
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        found = decompose(mapped, 3, method="sgd", max_iter=4, rng=0)
        print(peak() - before, found.fit)
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no peak of the resident memory that can be reset")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    peak, fit = run.stdout.split()
    assert int(peak) < 260 * 2**10  # of 458 MiB
    assert float(fit) > 0.99
