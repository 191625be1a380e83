"""Contractions as matrix products of any array library; on CuPy with Tensor Core types.

CuPy's own ``matmul`` copies transposed stacks, and stores sums of 16-bit products in 16 bits. So
cuBLAS is called directly: it reads the tensor where it lies and stores float32 sums.
"""

import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.gpu.precision import (
    PrecisionPolicy,
    largest_magnitude,
    precision_policy,
    round_operand,
    tensor_scale,
)

__all__ = ["contract_stack", "multiply_on_device"]

_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """Numbers by which CUDA and cuBLAS name types and ways to compute."""

    operand: int
    result: int
    compute: int


# from library_types.h and cublas_api.h, whose numbers are part of the binary interface
_REAL32, _REAL64, _REAL16, _BFLOAT16 = 0, 1, 2, 14
_COMPUTE_32, _COMPUTE_64, _COMPUTE_TF32 = 68, 70, 77
_KEEP, _TRANSPOSE, _DEFAULT_ALGORITHM = 0, 1, -1

# float8 and int8 values are float16 values: CuPy reaches no multiplication of 8-bit types
_KINDS = {
    "float64": _Kind(_REAL64, _REAL64, _COMPUTE_64),
    "float32": _Kind(_REAL32, _REAL32, _COMPUTE_32),
    "tf32": _Kind(_REAL32, _REAL32, _COMPUTE_TF32),
    "bfloat16": _Kind(_BFLOAT16, _REAL32, _COMPUTE_32),
    "float16": _Kind(_REAL16, _REAL32, _COMPUTE_32),
    "float8": _Kind(_REAL16, _REAL32, _COMPUTE_32),
    "int8": _Kind(_REAL16, _REAL32, _COMPUTE_32),
}


def contract_stack(
    stack: Any,
    factor: Any,
    policy: PrecisionPolicy | None = None,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Sum a stack of planes times a factor over the middle axis.

    Parameters
    ----------
    stack : array, shape (left, size, right)
        float32 or float64, of any namespace; CuPy arrays C-contiguous.
    factor : array, shape (size, r)
        Same namespace and dtype.
    policy : PrecisionPolicy, optional
        CuPy multiplies in the policy's type: tf32, bfloat16 and float16 on Tensor Cores, float8
        and int8 as the float16 numbers that they are. Other libraries round both operands and
        multiply in float32. tf32 to nearest is left to the hardware's own rounding.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (left, right, r)
        ``result[l, q, s] = sum_i stack[l, i, q] * factor[i, s]``.

    Examples
    --------
    >>> contract_stack(np.ones((1, 2, 3)), np.ones((2, 1))).tolist()
    [[[2.0], [2.0], [2.0]]]
    """
    if array_api_compat.is_cupy_array(stack):
        import cupy

        if policy is None:
            policy = precision_policy(str(stack.dtype))
        return multiply_on_device(cupy, stack, factor, policy, rng)
    xp = namespace_of(stack, factor)
    left, size, right = stack.shape
    if policy is not None:
        rng = np.random.default_rng(rng)
        stack = round_operand(stack, policy, rng=rng, axis=1)
        factor = round_operand(factor, policy, rng=rng, axis=0)
    if right == 1:
        product = xp.matmul(xp.reshape(stack, (left, size)), factor)
    elif left == 1:
        product = xp.matmul(xp.matrix_transpose(xp.reshape(stack, (size, right))), factor)
    else:
        product = xp.matmul(xp.matrix_transpose(stack), factor)
    return xp.reshape(product, (left, right, factor.shape[1]))


def multiply_on_device(
    library: Any,
    stack: Any,
    factor: Any,
    policy: PrecisionPolicy,
    rng: int | np.random.Generator | None = None,
) -> Any:
    """Contract a stack of planes through cuBLAS.

    Parameters
    ----------
    library : module
        CuPy, or what stands in for it.
    stack : array, shape (left, size, right)
        C-contiguous.
    factor : array, shape (size, r)
        Same library.
    policy : PrecisionPolicy
        Decides the types of the operands, of the sums and of the result.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding.

    Returns
    -------
    array, shape (left, right, r)
        float32; float64 for the policy "float64".
    """
    rng = np.random.default_rng(rng)
    operand, undo = _device_operand(library, stack, policy, rng, 1)
    columns, undo_columns = _device_operand(library, factor, policy, rng, 0)
    left, _, right = stack.shape
    wanted = np.float64 if policy.multiply == "float64" else np.float32
    out = library.empty((left, right, factor.shape[1]), dtype=wanted)
    if 0 in stack.shape or 0 in factor.shape:
        out[...] = 0
        return out
    _call_cublas(library, operand, columns, out, _KINDS[policy.name])
    if undo is not None:
        # the powers of two of both operands, or one scale of each row and column
        out *= undo if isinstance(undo, float) else library.reshape(undo, (left, right, 1))
        out *= undo_columns
    return out


def _call_cublas(library: Any, stack: Any, factor: Any, out: Any, kind: _Kind) -> None:
    """Write the products of all planes with the factor to `out`, without a copy of any.

    cuBLAS reads columns first, so it sees every array transposed, and computes the transposed
    result: factor^T (r, size) times each plane (size, right).
    """
    left, size, right = stack.shape
    rank = factor.shape[1]
    flat = right == 1
    rows, batch, leading = (left, 1, size) if flat else (right, left, right)
    one, zero = np.ones(1, dtype=out.dtype), np.zeros(1, dtype=out.dtype)
    a = (_address(factor), kind.operand, rank)
    b = (_address(stack), kind.operand, leading)
    c = (_address(out), kind.result, rank)
    sizes = (_KEEP, _KEEP if flat else _TRANSPOSE, rank, rows, size)
    cublas = library.cuda.cublas
    handle = library.cuda.device.get_cublas_handle()
    end = (kind.compute, _DEFAULT_ALGORITHM)
    if batch == 1:
        cublas.gemmEx(handle, *sizes, one.ctypes.data, *a, *b, zero.ctypes.data, *c, *end)
        return
    cublas.gemmStridedBatchedEx(
        handle, *sizes, one.ctypes.data, *a, 0, *b, size * right,
        zero.ctypes.data, *c, right * rank, batch, *end,
    )  # fmt: skip


def _address(array: Any) -> int:
    """Device address of an array's first element."""
    return int(array.data.ptr)


def _device_operand(
    library: Any, x: Any, policy: PrecisionPolicy, rng: Any, axis: int
) -> tuple[Any, Any]:
    """Bring an operand into the policy's type; also what undoes its scaling, or None."""
    if policy.multiply == "float64":
        return library.ascontiguousarray(x, dtype=np.float64), None
    if math.prod(x.shape) == 0 or policy.name == "float32":
        return library.ascontiguousarray(x, dtype=np.float32), None
    stochastic = policy.rounding == "stochastic"
    if policy.name == "tf32":
        rounded = round_operand(x, policy, rng=rng) if stochastic else x
        return library.ascontiguousarray(rounded, dtype=np.float32), None
    if policy.name == "int8":
        return _integers(library, x, policy, rng, axis)
    largest = largest_magnitude(x)
    scale = tensor_scale(policy, largest)
    bits = policy.name == "bfloat16"
    out = library.empty(x.shape, dtype=np.uint16 if bits else np.float16)
    step = -(-x.shape[0] // _BLOCKS)
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        rounded = x[part]
        if stochastic or policy.name == "float8":
            rounded = round_operand(rounded, policy, rng=rng, largest=largest)
        # what is rounded already is converted exactly
        out[part] = _bfloat16_bits(library, rounded) if bits else _scaled_halves(rounded, scale)
    return out, None if bits else 1.0 / scale


def _bfloat16_bits(library: Any, x: Any) -> Any:
    """Upper halves of float32 words, rounded to nearest, ties to even."""
    word = library.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    odd = (word >> np.uint32(16)) & np.uint32(1)
    return ((word + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)


def _scaled_halves(x: Any, scale: float) -> Any:
    """float16 numbers of x times a power of two."""
    return (x.astype(np.float32) * np.float32(scale)).astype(np.float16)


def _integers(
    library: Any, x: Any, policy: PrecisionPolicy, rng: Any, axis: int
) -> tuple[Any, Any]:
    """Integers -127 .. 127 as float16 numbers, and their scales along the axis."""
    scale = abs(x).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(127)
    scale[scale == 0] = 1
    rounded = round_operand(x, policy, rng=rng, axis=axis)
    steps = library.rint(rounded / scale).astype(np.float16)
    return library.ascontiguousarray(steps), scale
