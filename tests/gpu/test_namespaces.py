"""Namespaces, dtypes and devices, with array-api-strict in CuPy's place."""

import builtins
import dataclasses
import importlib
import re
import sys
import types
from fractions import Fraction

import array_api_compat.numpy
import array_api_strict as strict
import numpy as np
import pytest

from tensoralg.errors import ShapeError
from tensoralg.gpu import namespaces
from tensoralg.gpu.namespaces import (
    as_float_array,
    device_of,
    library_versions,
    namespace_of,
    probe_devices,
    to_numpy,
)


class Frame:
    """A stand-in for a data frame: host data behind `__array__`."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 2), dtype=dtype)


# namespaces


@pytest.mark.parametrize(
    "arrays",
    [
        (),
        ([1.0, 2.0],),
        (1, 2.0, None),
        (np.zeros(2),),
        (np.float32(1.0),),
        (np.zeros(2), [1, 2], 3.0),
        (Frame(),),
    ],
)
def test_numpy_is_the_namespace_of_host_data(arrays):
    assert namespace_of(*arrays) is array_api_compat.numpy


def test_lists_numbers_and_numpy_scalars_follow_the_arrays_beside_them():
    x = strict.asarray([1.0, 2.0])
    assert namespace_of([1, 2], x, 3.0, None, np.float64(2.0)) is strict


def test_two_libraries_in_one_call_are_both_named():
    with pytest.raises(TypeError, match=r"numpy and array_api_strict"):
        namespace_of(np.zeros(2), strict.zeros(2))


@pytest.mark.parametrize("thing", [object(), "text", {1: 2}, {1.0}])
def test_what_is_no_array_is_refused_by_its_type(thing):
    with pytest.raises(TypeError, match=type(thing).__name__):
        namespace_of(thing)


def test_sparse_matrices_are_refused_by_their_type():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match="csr_array"):
        namespace_of(scipy_sparse.csr_array(np.eye(3)))


# devices and conversion


def test_device_of_host_data_and_of_a_device_array():
    assert device_of(np.zeros(2)) == "cpu"
    assert device_of([1, 2]) == "cpu"
    there = strict.Device("device1")
    assert device_of(strict.zeros(2, device=there)) == there


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "complex128"])
@pytest.mark.parametrize("device", ["CPU_DEVICE", "device1"])
def test_to_numpy_keeps_values_and_dtype_from_every_device(dtype, device):
    values = np.array([[0, 1], [1, 0]], dtype=dtype)
    there = strict.asarray(values, device=strict.Device(device))
    back = to_numpy(there)
    assert isinstance(back, np.ndarray)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_to_numpy_does_not_copy_numpy_arrays():
    x = np.arange(3.0)
    assert to_numpy(x) is x


def test_to_numpy_asks_cupy_for_its_own_copy(monkeypatch):
    class FakeCupyArray:
        def get(self):
            return np.array([1.0, 2.0])

    fake = FakeCupyArray()
    monkeypatch.setattr(namespaces, "namespace_of", lambda *arrays: types.ModuleType("cupy"))
    monkeypatch.setattr(namespaces.array_api_compat, "is_cupy_array", lambda x: x is fake)
    np.testing.assert_array_equal(to_numpy(fake), [1.0, 2.0])


# dtype in, dtype out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float64", "float64"),
        ("float32", "float32"),
        ("float16", "float32"),
        ("int8", "float64"),
        ("uint64", "float64"),
        ("int32", "float64"),
        ("bool", "float64"),
        (">f8", "float64"),
        (">f4", "float32"),
        (">i2", "float64"),
    ],
)
def test_dtype_rule_on_numpy(given, expected):
    x = np.array([[0, 1], [1, 1]]).astype(given)
    y = as_float_array(x, np, name="X")
    assert y.dtype == np.dtype(expected)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float64", "float64"), ("float32", "float32"), ("int16", "float64"), ("bool", "float64")],
)
def test_dtype_rule_on_another_library_stays_on_its_device(given, expected):
    there = strict.Device("device1")
    x = strict.asarray([0, 1], dtype=getattr(strict, given), device=there)
    y = as_float_array(x, strict, name="X")
    assert y.dtype == getattr(strict, expected)
    assert y.device == there


def test_lists_numbers_and_frames_become_float64():
    assert as_float_array([[1, 2], [3, 4]], np, name="X").dtype == np.float64
    assert as_float_array(3, np, name="X").shape == ()
    assert as_float_array(Frame(), np, name="X").shape == (2, 2)
    assert as_float_array([1, 2], strict, name="X").dtype == strict.float64


def test_float_arrays_that_fit_are_not_copied():
    x = np.arange(3.0)
    assert as_float_array(x, np, name="X") is x
    assert as_float_array(x, array_api_compat.numpy, name="X") is x


@pytest.mark.parametrize(
    "x",
    [
        np.array([1 + 2j]),
        [1j, 2.0],
        np.array([1], dtype=object),
        [Fraction(1, 2)],
        ["1.0", "2.0"],
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        [None, 1.0],
    ],
)
def test_refused_dtypes_name_the_argument_and_the_dtype(x):
    with pytest.raises(ValueError, match="weights: .*" + re.escape(np.asarray(x).dtype.name)):
        as_float_array(x, np, name="weights")


def test_complex_passes_where_it_is_allowed():
    assert as_float_array([1j], np, name="T", allow_complex=True).dtype == np.complex128
    single = np.array([1j], dtype=np.complex64)
    assert as_float_array(single, np, name="T", allow_complex=True).dtype == np.complex64
    with pytest.raises(ValueError, match="complex64"):
        as_float_array(["a"], np, name="T", allow_complex=True)


def test_ragged_rows_and_masked_arrays_are_refused():
    with pytest.raises(ShapeError, match="X: rows of different lengths"):
        as_float_array([[1.0, 2.0], [3.0]], np, name="X")
    with pytest.raises(ValueError, match="X: masked arrays"):
        as_float_array(np.ma.masked_invalid([1.0, np.nan]), np, name="X")


def test_an_array_of_another_library_is_not_converted_silently():
    with pytest.raises(TypeError, match="X is an array of array_api_strict"):
        as_float_array(strict.zeros(2), np, name="X")
    with pytest.raises(TypeError, match="X is an array of numpy"):
        as_float_array(np.zeros(2), strict, name="X")


# device probes; the failures are injected


def by_kind():
    return {
        kind: [d for d in probe_devices() if d.kind == kind]
        for kind in ("cpu", "numba.cuda", "cupy")
    }


def test_every_engine_has_an_entry_and_the_cpu_works():
    found = by_kind()
    assert all(found.values())
    assert found["cpu"][0].usable
    assert "usable" in found["cpu"][0].detail
    assert all(d.detail for d in probe_devices())


def test_devices_are_values():
    device = probe_devices()[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.usable = False


@pytest.mark.parametrize(
    "error",
    [ImportError("libcuda.so.1 missing"), OSError("bad ELF"), RuntimeError("driver too old")],
)
@pytest.mark.parametrize(("engine", "kind"), [("cupy", "cupy"), ("numba.cuda", "numba.cuda")])
def test_an_import_that_fails_is_a_reason_not_an_exception(monkeypatch, error, engine, kind):
    real = importlib.import_module

    def broken(name, package=None):
        if name == engine:
            raise error
        return real(name, package)

    monkeypatch.setattr(namespaces.importlib, "import_module", broken)
    (device,) = by_kind()[kind]
    assert not device.usable
    assert str(error) in device.detail
    assert type(error).__name__ in device.detail


def test_a_missing_engine_says_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    (device,) = by_kind()["cupy"]
    assert not device.usable
    assert device.detail.startswith("not installed")


class FakeDeviceContext:
    def __init__(self, number):
        self.number = number

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


def fake_cupy(count=1, total=12.0, failure=None):
    class FakeArray:
        def __mul__(self, factor):
            return self

        def sum(self):
            if failure is not None:
                raise failure
            return self

        def get(self):
            return np.float64(total)

    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: count,
        getDeviceProperties=lambda number: {"name": b"Fake GPU", "totalGlobalMem": 8 * 2**30},
    )
    module = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(runtime=runtime, Device=FakeDeviceContext)
    module.arange = lambda stop: FakeArray()
    return module


def test_each_working_cupy_device_is_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count=2))
    devices = by_kind()["cupy"]
    assert [d.usable for d in devices] == [True, True]
    assert devices[0].name == "Fake GPU"
    assert devices[0].detail == "8 GiB of memory"


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (
            fake_cupy(failure=RuntimeError("out of memory\n on device")),
            "RuntimeError: out of memory on device",
        ),
        (fake_cupy(total=11.0), "wrong answer"),
        (fake_cupy(count=0), "no device found"),
        (fake_cupy(failure=KeyError()), "KeyError: no message"),
    ],
)
def test_a_cupy_that_imports_but_does_not_compute_is_not_usable(monkeypatch, fake, reason):
    monkeypatch.setitem(sys.modules, "cupy", fake)
    (device,) = by_kind()["cupy"]
    assert not device.usable
    assert reason in device.detail


class FakeGpu(FakeDeviceContext):
    name = b"Fake GPU"
    compute_capability = (9, 0)


class FakeCuda(types.ModuleType):
    """numba.cuda with one GPU whose kernels do `work` to the device array."""

    def __init__(self, work):
        super().__init__("numba.cuda")
        self.gpus = [FakeGpu(0)]
        self.work = work

    def get_current_device(self):
        return self.gpus[0]

    def to_device(self, values):
        copy = values.copy()
        return types.SimpleNamespace(values=copy, copy_to_host=lambda: copy)

    def jit(self, kernel):
        def launch(array):
            self.work(array.values)

        return {(1, 4): launch}


def double(values):
    values *= 2.0


def forget(values):
    pass


def crash(values):
    raise RuntimeError("ptxas failed")


@pytest.mark.parametrize(
    ("work", "usable", "detail"),
    [
        (double, True, "compute capability 9.0"),
        (forget, False, "wrong answer"),
        (crash, False, "ptxas failed"),
    ],
)
def test_numba_cuda_is_judged_by_what_a_kernel_returns(monkeypatch, work, usable, detail):
    monkeypatch.setitem(sys.modules, "numba.cuda", FakeCuda(work))
    (device,) = by_kind()["numba.cuda"]
    assert device.usable is usable
    assert detail in device.detail


def test_a_cpu_that_computes_wrongly_is_reported(monkeypatch):
    monkeypatch.setattr(namespaces.np, "array_equal", lambda *arrays: False)
    (device,) = by_kind()["cpu"]
    assert not device.usable


# versions


def test_versions_come_from_metadata_without_imports(monkeypatch):
    real = builtins.__import__

    def no_libraries(name, *rest, **named):
        assert name.partition(".")[0] not in ("cvxpy", "sympy", "sklearn", "cupy", "torch"), name
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", no_libraries)
    versions = library_versions()
    assert versions["numpy"] == np.__version__
    assert versions["python"] == sys.version.split()[0]
    assert {"scipy", "scikit-learn", "numba", "cvxpy", "cupy", "torch"} <= set(versions)


def test_a_library_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setitem(namespaces._DISTRIBUTIONS, "phantom", ("no-such-distribution-here",))
    assert library_versions()["phantom"] is None
