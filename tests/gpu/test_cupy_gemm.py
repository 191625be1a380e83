"""The cuBLAS calls of the CuPy engine, read by a stand-in that computes what cuBLAS would."""

import ctypes
import subprocess
import sys
import types

import array_api_compat
import ml_dtypes
import numpy as np
import pytest

from tensoralg.gpu import cupy_gemm
from tensoralg.gpu.mode_contraction import contract_mode
from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.gpu.namespaces import probe_devices
from tensoralg.gpu.precision import PRECISIONS, precision_policy, round_operand

TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
HAS_DEVICE = any(d.usable and d.kind == "cupy" for d in probe_devices())
COMPUTE = {68: np.float32, 70: np.float64, 77: np.float32}


class FakeCublas:
    """Reads matrices column by column at raw addresses, as cuBLAS does."""

    def __init__(self):
        self.calls = []

    @staticmethod
    def matrix(address, kind, leading, rows, columns):
        dtype = np.dtype(TYPES[kind])
        memory = (ctypes.c_char * (leading * columns * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype=dtype).reshape(columns, leading)[:, :rows].T

    def gemmEx(  # noqa: N802
        self, handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, b, kind_b, ldb, beta, c,
        kind_c, ldc, compute, algorithm,
    ):  # fmt: skip
        assert handle == "handle"
        assert algorithm == -1
        self.calls.append((kind_a, kind_c, compute))
        wanted = COMPUTE[compute]
        scalar = ctypes.c_double if wanted is np.float64 else ctypes.c_float
        assert scalar.from_address(alpha).value == 1
        assert scalar.from_address(beta).value == 0
        left = self.matrix(a, kind_a, lda, *((m, k) if op_a == 0 else (k, m)))
        right = self.matrix(b, kind_b, ldb, *((k, n) if op_b == 0 else (n, k)))
        left, right = left.astype(wanted), right.astype(wanted)
        product = (left if op_a == 0 else left.T) @ (right if op_b == 0 else right.T)
        self.matrix(c, kind_c, ldc, m, n)[...] = product

    def gemmStridedBatchedEx(  # noqa: N802
        self, handle, op_a, op_b, m, n, k, alpha, a, kind_a, lda, stride_a, b, kind_b, ldb,
        stride_b, beta, c, kind_c, ldc, stride_c, batch, compute, algorithm,
    ):  # fmt: skip
        sizes = [np.dtype(TYPES[kind]).itemsize for kind in (kind_a, kind_b, kind_c)]
        for i in range(batch):
            self.gemmEx(
                handle, op_a, op_b, m, n, k, alpha,
                a + i * stride_a * sizes[0], kind_a, lda,
                b + i * stride_b * sizes[1], kind_b, ldb, beta,
                c + i * stride_c * sizes[2], kind_c, ldc, compute, algorithm,
            )  # fmt: skip


@pytest.fixture
def library(monkeypatch):
    """Numpy under CuPy's name, with cuBLAS beside it."""
    module = types.ModuleType("cupy")
    for name in ("empty", "ascontiguousarray", "rint", "reshape"):
        setattr(module, name, getattr(np, name))
    device = types.SimpleNamespace(get_cublas_handle=lambda: "handle")
    module.cuda = types.SimpleNamespace(cublas=FakeCublas(), device=device)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(cupy_gemm, "_address", lambda array: array.ctypes.data)
    return module


SHAPES = [(5, 6, 1), (1, 6, 7), (4, 6, 7), (1, 1, 1), (3, 9, 20)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_policy_reaches_cublas_in_its_type(library, shape, name, rounding):
    rng = np.random.default_rng(0)
    stack, factor = rng.standard_normal(shape), rng.standard_normal((shape[1], 3))
    policy = precision_policy(name, rounding=rounding)
    result = cupy_gemm.multiply_on_device(library, stack, factor, policy, 4)
    kind = {"float64": 1, "float32": 0, "tf32": 0, "bfloat16": 14}.get(name, 2)
    compute = {"float64": 70, "tf32": 77}.get(name, 68)
    assert set(library.cuda.cublas.calls) == {(kind, 1 if name == "float64" else 0, compute)}
    if rounding == "nearest" and name != "tf32":
        # tf32 is rounded by the hardware, which the stand-in is not
        stack = round_operand(stack, policy, axis=1).astype(float)
        factor = round_operand(factor, policy, axis=0).astype(float)
    expected = np.einsum("lnr,ns->lrs", stack, factor)
    loose = {"bfloat16": 0.1, "float16": 0.02, "tf32": 0.02, "float8": 1.5, "int8": 0.4}
    tolerance = 1e-5 if rounding == "nearest" else loose.get(name, 1e-5)
    assert result.dtype == (np.float64 if name == "float64" else np.float32)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("name", ["float16", "float8", "int8"])
@pytest.mark.parametrize("unit", [1e-30, 1e25])
def test_scaled_types_neither_overflow_nor_vanish(library, name, unit):
    rng = np.random.default_rng(1)
    stack, factor = rng.standard_normal((2, 30, 4)), rng.standard_normal((30, 2))
    policy = precision_policy(name)
    small = cupy_gemm.multiply_on_device(library, stack, factor, policy)
    result = cupy_gemm.multiply_on_device(library, stack * unit, factor, policy)
    # the unit is no power of two: rounding may fall on the other side
    np.testing.assert_allclose(result / unit, small, atol={"float8": 1.0}.get(name, 0.1))


def test_cupy_arrays_are_sent_to_the_device_engine(library, monkeypatch):
    monkeypatch.setattr(array_api_compat, "is_cupy_array", lambda x: True)
    rng = np.random.default_rng(2)
    stack = rng.standard_normal((3, 4, 5)).astype(np.float32)
    factor = rng.standard_normal((4, 2)).astype(np.float32)
    result = cupy_gemm.contract_stack(stack, factor)
    np.testing.assert_allclose(result, np.einsum("lnr,ns->lrs", stack, factor), atol=1e-5)
    assert library.cuda.cublas.calls[0] == (0, 0, 68)
    cupy_gemm.contract_stack(stack.astype(float), factor.astype(float))
    assert library.cuda.cublas.calls[-1] == (1, 1, 70)


def test_values_that_are_not_finite_are_refused(library):
    stack = np.full((2, 3, 4), np.nan, dtype=np.float32)
    for name in ("bfloat16", "float16", "float8", "int8"):
        with pytest.raises(ValueError, match="NaN or infinity"):
            cupy_gemm.multiply_on_device(library, stack, np.ones((3, 2)), precision_policy(name))


def test_empty_products_are_zero(library):
    result = cupy_gemm.multiply_on_device(
        library, np.ones((2, 0, 3)), np.ones((0, 2)), precision_policy("bfloat16")
    )
    assert result.shape == (2, 3, 2)
    assert not result.any()


def test_the_engine_imports_without_a_gpu():
    code = "import sys, tensoralg.gpu.cupy_gemm; assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not HAS_DEVICE, reason="no CUDA device")
@pytest.mark.parametrize("name", PRECISIONS)
def test_a_real_device_agrees_with_the_host(name):
    import cupy

    rng = np.random.default_rng(3)
    tensor = rng.standard_normal((20, 30, 40)).astype(np.float32)
    factors = [rng.standard_normal((n, 8)).astype(np.float32) for n in tensor.shape]
    policy = precision_policy(name)
    for mode in range(3):
        expected = contract_mode(tensor, factors[mode], mode, policy=policy)
        result = contract_mode(
            cupy.asarray(tensor), cupy.asarray(factors[mode]), mode, policy=policy
        )
        np.testing.assert_allclose(result.get(), expected, atol=0.05 if name == "tf32" else 1e-3)
        device = mttkrp(cupy.asarray(tensor), [cupy.asarray(f) for f in factors], mode)
        np.testing.assert_allclose(
            device.get(), mttkrp(tensor, factors, mode), rtol=1e-3, atol=1e-2
        )
