"""The one place that finds an array's namespace and device, and converts on request.

Arrays stay where they are: nothing here moves data between host and device unless
`to_numpy` is called by name. Two array libraries in one call are an error.
"""

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError

__all__ = [
    "Device",
    "as_float_array",
    "device_of",
    "library_versions",
    "namespace_of",
    "probe_devices",
    "to_numpy",
]

# what `tensoralg info` names; the first distribution of a group that is installed counts
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "tensoralg": ("tensoralg",),
    "numpy": ("numpy",),
    "scipy": ("scipy",),
    "numba": ("numba",),
    "sympy": ("sympy",),
    "cvxpy": ("cvxpy",),
    "clarabel": ("clarabel",),
    "scikit-learn": ("scikit-learn",),
    "array-api-compat": ("array-api-compat",),
    "threadpoolctl": ("threadpoolctl",),
    "matplotlib": ("matplotlib",),
    "pyarrow": ("pyarrow",),
    "cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy-cuda11x", "cupy"),
    "torch": ("torch",),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One place where arrays can live, and whether a computation ran there.

    Parameters
    ----------
    name : str
        The hardware's name, or the engine's where no hardware answered.
    kind : str
        The engine that was asked: "cpu", "numba.cuda" or "cupy".
    usable : bool
        True only if a small computation ran there and gave the right answer.
    detail : str
        What was found; for a device that is not usable, the reason.

    Examples
    --------
    >>> Device("CPU", "cpu", True, "2 cores").usable
    True
    """

    name: str
    kind: str
    usable: bool
    detail: str


def _carries_no_namespace(array: object) -> bool:
    """Whether `array` follows its neighbours: scalars, lists and None live nowhere."""
    return array is None or isinstance(
        array, bool | int | float | complex | np.generic | list | tuple
    )


def _namespace_of_one(array: Any) -> Any:
    try:
        return array_api_compat.array_namespace(array)
    except TypeError:
        # pandas frames and the like: host data that numpy reads without a copy between devices
        if hasattr(array, "__array__"):
            return array_api_compat.numpy
        raise TypeError(
            f"expected arrays of an array library (numpy, CuPy, ...), lists or numbers; "
            f"got {type(array).__module__}.{type(array).__name__}"
        ) from None


def namespace_of(*arrays: Any) -> Any:
    """Find the array-API namespace that the given arrays share.

    Parameters
    ----------
    *arrays : array, list, number or None
        Arrays of one library. Lists, numbers and None live nowhere: they follow the arrays
        beside them, and mean numpy if there are none.

    Returns
    -------
    module
        The namespace, wrapped by array-api-compat where the library needs it.

    Raises
    ------
    TypeError
        If the arrays belong to different libraries (both are named), or if one of them
        belongs to none.

    Examples
    --------
    >>> import numpy as np
    >>> namespace_of(np.zeros(3), [1.0, 2.0]).__name__
    'array_api_compat.numpy'
    """
    found: dict[str, Any] = {}
    for array in arrays:
        if not _carries_no_namespace(array):
            namespace = _namespace_of_one(array)
            found[namespace.__name__] = namespace
    if len(found) > 1:
        names = " and ".join(name.removeprefix("array_api_compat.") for name in found)
        raise TypeError(
            f"arrays of different libraries in one call: {names}; "
            "convert them to one of the two first (tensoralg never copies implicitly)"
        )
    return next(iter(found.values()), array_api_compat.numpy)


def device_of(array: Any) -> Any:
    """Tell on which device an array lives.

    Parameters
    ----------
    array : array, list or number
        Lists and numbers live on the host.

    Returns
    -------
    object
        The library's own device object; "cpu" for numpy.

    Raises
    ------
    TypeError
        If `array` is no array.

    Examples
    --------
    >>> device_of([1.0, 2.0])
    'cpu'
    """
    if namespace_of(array) is array_api_compat.numpy:
        return "cpu"
    return array_api_compat.device(array)


def to_numpy(array: Any) -> NDArray[Any]:
    """Copy an array to the host as a numpy array; the only function that moves data.

    Parameters
    ----------
    array : array, list or number
        An array of any library; numpy arrays come back as they are, without a copy.

    Returns
    -------
    numpy.ndarray
        Same shape and dtype, in host memory; it may share memory with `array`.

    Raises
    ------
    TypeError
        If `array` is no array.

    Examples
    --------
    >>> to_numpy([1, 2, 3]).sum().item()
    6
    """
    namespace = namespace_of(array)
    if namespace is array_api_compat.numpy:
        return np.asarray(array)
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    if array_api_compat.is_torch_array(array):
        return np.asarray(array.detach().cpu().numpy())
    if array_api_compat.is_dask_array(array):
        return np.asarray(array.compute())
    # the standard's own route off a device; `copy=None` shares memory where it can
    return np.from_dlpack(array, device="cpu", copy=None)


def _read_host_data(x: Any, name: str) -> NDArray[Any]:
    """Read lists, numbers and data frames as a numpy array of whatever dtype they have."""
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            f"{name}: masked arrays are not accepted, because the mask would be ignored; "
            "pass a plain array with the masked entries filled"
        )
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"{name}: rows of different lengths are no array ({error})") from error


def as_float_array(x: Any, xp: Any, *, name: str, allow_complex: bool = False) -> Any:
    """Bring an argument into floating point in the given namespace: dtype in, dtype out.

    float32 and float64 stay as they are; float16 becomes float32; booleans, integers, lists
    and numbers become float64. Nothing is copied that already fits.

    Parameters
    ----------
    x : array, list or number
        The argument, of any shape, as the caller gave it.
    xp : module
        The namespace it should be in, from `namespace_of`.
    name : str
        The argument's name, for error messages.
    allow_complex : bool, default False
        Whether complex64 and complex128 pass through unchanged instead of being refused.

    Returns
    -------
    array
        Same shape as `x`, of namespace `xp`.

    Raises
    ------
    TypeError
        If `x` is an array of another library than `xp`.
    ValueError
        If the dtype is not accepted (complex, object, text, dates, extended precision).

    Examples
    --------
    >>> import numpy as np
    >>> as_float_array([[1, 2], [3, 4]], np, name="X").dtype
    dtype('float64')
    >>> as_float_array(np.ones(3, dtype=np.float32), np, name="X").dtype
    dtype('float32')
    """
    if _carries_no_namespace(x):
        x, own = _read_host_data(x, name), None
    else:
        own = _namespace_of_one(x)
        if own is array_api_compat.numpy:
            x = _read_host_data(x, name)
    wanted = xp.__name__.removeprefix("array_api_compat.")
    if own is not None and own.__name__.removeprefix("array_api_compat.") != wanted:
        raise TypeError(
            f"{name} is an array of {own.__name__.removeprefix('array_api_compat.')}, "
            f"but the computation runs in {wanted}; convert it first"
        )
    # numpy's `name` leaves out the byte order; other libraries write "library.float64"
    found = getattr(x.dtype, "name", None) or str(x.dtype).rpartition(".")[2]
    target = _float_dtype(found, name, allow_complex)
    return xp.asarray(x, dtype=getattr(xp, target))


def _float_dtype(found: str, name: str, allow_complex: bool) -> str:
    """Name of the dtype to compute in, for the dtype that was found."""
    if found in ("float32", "float64"):
        return found
    if found == "float16":
        return "float32"
    if found == "bool" or found.removeprefix("u") in ("int8", "int16", "int32", "int64"):
        return "float64"
    if found in ("complex64", "complex128"):
        if allow_complex:
            return found
        raise ValueError(f"{name}: complex data is not supported, got dtype {found}")
    accepted = "float64, float32, float16, integers and booleans"
    if allow_complex:
        accepted += ", complex64 and complex128"
    raise ValueError(f"{name}: dtype {found} is not supported; accepted are {accepted}")


def _probe_cpu() -> list[Device]:
    if not np.array_equal(np.eye(2) @ np.array([1.0, 2.0]), [1.0, 2.0]):
        raise RuntimeError("numpy gave a wrong product")
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = platform.processor() or platform.machine() or "CPU"
    return [Device(name, "cpu", True, f"{count} core{'' if count == 1 else 's'} usable")]


def _probe_numba_cuda() -> list[Device]:
    cuda: Any = importlib.import_module("numba.cuda")

    def double(values: Any) -> None:
        i = cuda.grid(1)
        if i < values.size:
            values[i] *= 2.0

    found = []
    for gpu in cuda.gpus:
        with gpu:
            values = cuda.to_device(np.arange(4.0))
            cuda.jit(double)[1, 4](values)
            if not np.array_equal(values.copy_to_host(), [0.0, 2.0, 4.0, 6.0]):
                raise RuntimeError("a test kernel gave a wrong answer")
            device = cuda.get_current_device()
            label = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
            version = ".".join(map(str, device.compute_capability))
            found.append(Device(label, "numba.cuda", True, f"compute capability {version}"))
    return found


def _probe_cupy() -> list[Device]:
    cupy: Any = importlib.import_module("cupy")
    found = []
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(number):
            if float((cupy.arange(4.0) * 2.0).sum().get()) != 12.0:
                raise RuntimeError("a test sum gave a wrong answer")
            properties = cupy.cuda.runtime.getDeviceProperties(number)
            label = properties["name"]
            label = label.decode() if isinstance(label, bytes) else str(label)
            memory = properties["totalGlobalMem"] / 2**30
            found.append(Device(label, "cupy", True, f"{memory:.0f} GiB of memory"))
    return found


def _probe(kind: str, label: str, attempt: Callable[[], list[Device]]) -> list[Device]:
    """Run one probe; whatever goes wrong is a device that is not usable, and why."""
    try:
        found = attempt()
    except ModuleNotFoundError as error:
        return [Device(label, kind, False, f"not installed ({error})")]
    except Exception as error:  # drivers fail in ways of their own; none may stop the report
        reason = " ".join(str(error).split()) or "no message"
        return [Device(label, kind, False, f"{type(error).__name__}: {reason}")]
    return found or [Device(label, kind, False, "no device found")]


def probe_devices() -> tuple[Device, ...]:
    """Find the devices by running a small computation on each.

    Returns
    -------
    tuple of Device
        The CPU first, then what numba and CuPy see. An engine that is missing or fails
        has one entry that is not usable and says why; no probe raises.

    Examples
    --------
    >>> probe_devices()[0].usable
    True
    """
    return (
        *_probe("cpu", "CPU", _probe_cpu),
        *_probe("numba.cuda", "CUDA through numba", _probe_numba_cuda),
        *_probe("cupy", "CUDA through CuPy", _probe_cupy),
    )


def library_versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that tensoralg stands on, without importing them.

    Returns
    -------
    dict of str to (str or None)
        Version by library name, from the installed metadata; None where not installed.

    Examples
    --------
    >>> sorted(library_versions())[:3]
    ['array-api-compat', 'clarabel', 'cupy']
    """
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for library, distributions in _DISTRIBUTIONS.items():
        versions[library] = None
        for distribution in distributions:
            try:
                versions[library] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    return versions
