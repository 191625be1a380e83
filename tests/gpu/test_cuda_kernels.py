"""numba.cuda kernels: right in numba's simulator, compiled for a GPU, refused on the host."""

import importlib
import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from tensoralg.core.errors import ShapeError
from tensoralg.gpu import cuda_kernels


def simulate(code: str) -> None:
    """Run code in a process where numba simulates CUDA."""
    head = """
        import numpy as np
        from tensoralg.gpu.cuda_kernels import cuda_sampled_gradient, cuda_sparse_mttkrp
        from tensoralg.gpu.sampled_gradient import (
            draw_fibres, gather_fibres, khatri_rao_rows, sampled_gradient)
        from tensoralg.gpu.sparse_kernels import sparse_mttkrp
        from tensoralg.gpu.sparse_tensor import SparseTensor
        rng = np.random.default_rng(0)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "done"


def numba_cuda() -> Any:
    try:
        return importlib.import_module("numba.cuda")
    except ImportError as error:
        pytest.skip(f"numba.cuda cannot be loaded: {error}")


def test_sampled_gradient_in_the_simulator() -> None:
    numba_cuda()
    simulate("""
        for shape, rank, dtype, stored in [
            ((3, 4, 5), 2, "float32", "float32"),
            ((70, 3), 3, "float64", "float64"),
            ((2, 3, 2, 3), 2, "float32", "float16"),
        ]:
            X = rng.standard_normal(shape).astype(stored)
            factors = [rng.standard_normal((n, rank)).astype(dtype) for n in shape]
            for mode in range(len(shape)):
                others = draw_fibres(shape, mode, 35 if len(shape) == 2 else 5, rng)
                found = cuda_sampled_gradient(X, factors, mode, others)
                rows = khatri_rao_rows(factors, mode, others)
                fibres = gather_fibres(X.astype(dtype), mode, others)
                expected = sampled_gradient(fibres, rows, factors[mode])
                assert found.dtype == dtype and found.shape == factors[mode].shape
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        print("done")
    """)


def test_sparse_mttkrp_in_the_simulator() -> None:
    numba_cuda()
    simulate("""
        cases = [((5, 4, 3), "float64"), ((6, 7), "float32"), ((3, 2, 3, 2), "float32")]
        for shape, dtype in cases:
            where = np.stack([rng.integers(0, n, 40) for n in shape])
            S = SparseTensor(where, rng.standard_normal(40).astype(dtype), shape)
            shuffled = rng.permutation(S.values.size)
            factors = [rng.standard_normal((n, 3)).astype(dtype) for n in shape]
            for mode in range(len(shape)):
                expected = sparse_mttkrp(S, factors, mode)
                for order in (slice(None), shuffled):
                    # copies: the simulator writes to what it is given
                    where, values = S.coordinates[:, order].copy(), S.values[order].copy()
                    found = cuda_sparse_mttkrp(where, values, factors, mode)
                    assert found.dtype == dtype
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        nothing = cuda_sparse_mttkrp(np.zeros((2, 0), int), np.zeros(0), [np.ones((2, 1))] * 2, 1)
        assert nothing.tolist() == [[0.0], [0.0]]
        print("done")
    """)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_compile_for_a_gpu(dtype: str) -> None:
    cuda = numba_cuda()
    from numba import types
    from numba.core.errors import NumbaError

    from tensoralg.gpu import cuda_loops

    def probe(values: Any) -> None:
        values[0] = 1.0

    try:
        cuda.compile_ptx(probe, types.void(types.float32[::1]), cc=(9, 0))
    except (ImportError, OSError, RuntimeError, AttributeError, NumbaError) as error:
        pytest.skip(f"numba.cuda cannot compile here: {error}")
    real = getattr(types, dtype)
    vector, matrix, indices = real[::1], real[:, ::1], types.int64[:, ::1]
    index = types.int64[::1]
    signatures = {
        "gradient": types.void(vector, index, types.int64, matrix, indices, matrix, matrix),
        "sparse": types.void(index, indices, vector, matrix, matrix),
    }
    for name, signature in signatures.items():
        kernel = getattr(cuda_loops, f"{name}_kernel")(16, dtype, 32)
        code, _ = cuda.compile_ptx(kernel, signature, cc=(9, 0))
        assert ".entry" in code
        assert "atom" in code or "red." in code
        assert ("shared" in code) == (name == "gradient")
        # products in float32 are not widened to float64 by a Python number
        assert dtype == "float64" or "fma.rn.f64" not in code


def test_host_arrays_and_wrong_shapes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    factors = [np.ones((2, 1)), np.ones((3, 1))]
    with pytest.raises(TypeError, match="on the device"):
        cuda_kernels.cuda_sampled_gradient(np.ones((2, 3)), factors, 0, [np.zeros(1, int)])
    with pytest.raises(TypeError, match="on the device"):
        cuda_kernels.cuda_sparse_mttkrp(np.zeros((2, 1), int), np.ones(1), factors, 0)
    with pytest.raises(ShapeError, match="factors"):
        cuda_kernels.cuda_sampled_gradient(np.ones((2, 4)), factors, 0, [np.zeros(1, int)])
    with pytest.raises(ShapeError, match="mode 2"):
        cuda_kernels.cuda_sampled_gradient(np.ones((2, 3)), factors, 2, [np.zeros(1, int)])
    with pytest.raises(ShapeError, match="coordinates"):
        cuda_kernels.cuda_sparse_mttkrp(np.zeros((3, 1), int), np.ones(1), factors, 0)
    wide = [np.ones((n, 300)) for n in (2, 3)]
    with pytest.raises(ShapeError, match="256"):
        cuda_kernels.cuda_sampled_gradient(np.ones((2, 3)), wide, 0, [np.zeros(1, int)])


def test_a_broken_numba_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    with pytest.raises(ImportError, match="install numba-cuda"):
        cuda_kernels._cuda()
