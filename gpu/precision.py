"""Precision policies: what is stored, multiplied and accumulated in which number format.

Low precision is emulated by rounding: an operand comes back in float32, but every value is one
that the low-precision format holds. Products of such values and float32 sums are then those of
the hardware, up to the order of the additions.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of

__all__ = [
    "PRECISIONS",
    "PrecisionPolicy",
    "largest_magnitude",
    "precision_policy",
    "round_operand",
    "tensor_scale",
]

_ROUNDINGS = ("nearest", "stochastic")
_FLOAT32_BITS = 23


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """Number formats of one way to multiply.

    Parameters
    ----------
    name : str
        One of `PRECISIONS`.
    storage : str
        Format in which an operand lies in memory on hardware that has it.
    multiply : str
        Format of the factors of every product.
    accumulate : str
        Format of the sums; "int32" sums are exact, and emulated in float32.
    rounding : str
        "nearest" (ties to even) or "stochastic".
    scaling : str
        "none"; "tensor": the operand is multiplied by a power of two that brings its largest
        magnitude to the top of the format; "row": one real scale per row.

    Examples
    --------
    >>> precision_policy("tf32").accumulate
    'float32'
    """

    name: str
    storage: str
    multiply: str
    accumulate: str
    rounding: str
    scaling: str


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary floating-point format: significand bits after the point, exponents, maximum."""

    bits: int
    least_exponent: int
    largest: float


_FORMATS = {
    "float32": _Format(23, -126, float(np.finfo(np.float32).max)),
    "tf32": _Format(10, -126, (2.0 - 2.0**-10) * 2.0**127),
    "bfloat16": _Format(7, -126, (2.0 - 2.0**-7) * 2.0**127),
    "float16": _Format(10, -14, 65504.0),
    "float8_e4m3": _Format(3, -6, 448.0),
}

# name: storage, multiply, accumulate, scaling
_POLICIES = {
    "float64": ("float64", "float64", "float64", "none"),
    "float32": ("float32", "float32", "float32", "none"),
    "tf32": ("float32", "tf32", "float32", "none"),
    "bfloat16": ("bfloat16", "bfloat16", "float32", "none"),
    "float16": ("float16", "float16", "float32", "tensor"),
    "float8": ("float8_e4m3", "float8_e4m3", "float32", "tensor"),
    "int8": ("int8", "int8", "int32", "row"),
}

PRECISIONS = tuple(_POLICIES)


def precision_policy(name: str, *, rounding: str = "nearest") -> PrecisionPolicy:
    """Look a policy up by its name.

    Parameters
    ----------
    name : str
        "float64", "float32", "tf32", "bfloat16", "float16", "float8" (e4m3) or "int8".
    rounding : str, default "nearest"
        "nearest" (ties to even) or "stochastic" (unbiased).

    Returns
    -------
    PrecisionPolicy
        The policy.

    Raises
    ------
    ValueError
        If the name or the rounding is unknown.

    Examples
    --------
    >>> precision_policy("int8").scaling
    'row'
    """
    if name not in _POLICIES:
        raise ValueError(f"precision: {name!r} is unknown; accepted are {', '.join(PRECISIONS)}")
    if rounding not in _ROUNDINGS:
        raise ValueError(
            f"rounding: {rounding!r} is unknown; accepted are {' and '.join(_ROUNDINGS)}"
        )
    storage, multiply, accumulate, scaling = _POLICIES[name]
    return PrecisionPolicy(name, storage, multiply, accumulate, rounding, scaling)


def largest_magnitude(x: Any) -> float:
    """Find the largest absolute value of an array; it must be finite.

    Parameters
    ----------
    x : array
        Real, not empty, of any shape and namespace.

    Returns
    -------
    float
        max |x|.

    Raises
    ------
    ValueError
        If x holds NaN or infinity.

    Examples
    --------
    >>> largest_magnitude(np.array([1.0, -2.0]))
    2.0
    """
    xp = namespace_of(x)
    top = max(float(xp.max(x)), -float(xp.min(x)))
    if not math.isfinite(top):
        raise ValueError("x holds NaN or infinity; only finite values can be rounded")
    return top


def tensor_scale(policy: PrecisionPolicy, largest: float) -> float:
    """Find the power of two that brings a magnitude to the top of the policy's format.

    Parameters
    ----------
    policy : PrecisionPolicy
        Only scaling "tensor" scales.
    largest : float
        Largest magnitude of the operand.

    Returns
    -------
    float
        The power of two; 1 for other policies and for zeros.

    Examples
    --------
    >>> tensor_scale(precision_policy("float8"), 1.0)
    256.0
    """
    if policy.scaling != "tensor" or largest == 0:
        return 1.0
    # within float32's normal range, and so that the inverse is too
    exponent = math.frexp(_FORMATS[policy.multiply].largest / largest)[1] - 1
    return 2.0 ** max(-120, min(exponent, 120))


def round_operand(
    x: Any,
    policy: PrecisionPolicy,
    *,
    rng: int | np.random.Generator | None = None,
    axis: int = -1,
    largest: float | None = None,
) -> Any:
    """Round an array to the values that the policy's products can hold.

    Parameters
    ----------
    x : array
        Finite, float32 or float64, of any shape and namespace.
    policy : PrecisionPolicy
        Decides format, rounding and scaling.
    rng : int, numpy.random.Generator or None
        Source of stochastic rounding; not read for rounding to nearest.
    axis : int, default -1
        For scaling by rows: the axis along which one scale is shared, which must be the summed
        one for the scales to factor out of a product.
    largest : float, optional
        For scaling by tensor: the magnitude that gets to the top of the format, where x is one
        block of a larger array; the default is the largest of x.

    Returns
    -------
    array
        Same shape and namespace; float64 for the policy float64, otherwise float32. Values are
        float32 first, then rounded to the format, and the scale is divided out again.

    Raises
    ------
    ValueError
        If x holds NaN or infinity, or a value too large for the format: nothing overflows
        silently. Small values may become 0.

    Examples
    --------
    >>> round_operand(np.array([1.01, -3.0]), precision_policy("bfloat16")).tolist()
    [1.0078125, -3.0]
    """
    xp = namespace_of(x)
    if policy.multiply == "float64":
        return xp.astype(x, xp.float64, copy=False)
    if math.prod(x.shape) == 0:
        return xp.astype(x, xp.float32)
    top = largest_magnitude(x)
    _refuse_overflow(top, _FORMATS["float32"], "nearest")
    if policy.multiply == "int8":
        return _round_rows(x, policy, rng, axis, xp)
    form = _FORMATS[policy.multiply]
    scale = tensor_scale(policy, max(top, largest or 0.0))
    _refuse_overflow(top * scale, form, policy.rounding)
    if policy.multiply == "float32":
        return xp.astype(x, xp.float32, copy=False)
    if isinstance(x, np.ndarray):
        return _round_numpy(x, form, scale, _seed(policy, rng))
    return _round_generic(x, form, scale, policy, rng, xp)


def _refuse_overflow(top: float, form: _Format, rounding: str) -> None:
    """Raise if a value of this magnitude can round to infinity."""
    # to nearest, half a unit in the last place above the largest value is still finite
    margin = 2.0 ** -(form.bits + 2) if rounding == "nearest" else 0.0
    if top > form.largest * (1.0 + margin):
        raise ValueError(
            f"x: magnitude {top:.3g} is beyond the largest value {form.largest:.3g} of the format "
            f"with {form.bits} bits; scale the data first"
        )


def _seed(policy: PrecisionPolicy, rng: int | np.random.Generator | None) -> int:
    """Draw a seed for the compiled kernel; 0 stands for rounding to nearest."""
    if policy.rounding == "nearest":
        return 0
    return int(np.random.default_rng(rng).integers(1, 2**32, dtype=np.uint64))


def _round_numpy(x: Any, form: _Format, scale: float, seed: int) -> Any:
    from tensoralg.gpu.rounding_kernels import round_to_grid

    turned = x.flags.f_contiguous and not x.flags.c_contiguous
    source = np.ascontiguousarray(x.T if turned else x)
    out = np.empty(source.shape, dtype=np.float32)
    smallest = 2.0**form.least_exponent
    # with the exponents of float32, dropping bits is right below its normal numbers too
    special = form.least_exponent > _FORMATS["float32"].least_exponent
    round_to_grid(
        source.reshape(-1),
        out.reshape(-1),
        scale,
        _FLOAT32_BITS - form.bits,
        smallest if special else 0.0,
        smallest * 2.0**-form.bits if special else 1.0,
        seed,
    )
    return out.T if turned else out


def _round_generic(
    x: Any, form: _Format, scale: float, policy: PrecisionPolicy, rng: Any, xp: Any
) -> Any:
    """Round the number of steps of the format's grid around each value."""
    value = xp.astype(x, xp.float32) * scale
    size = xp.abs(value)
    least = 2.0**form.least_exponent
    # logarithms may be off by one next to a power of two
    guess = xp.astype(xp.floor(xp.log2(xp.where(size < least, least, size))), xp.int64)
    guess = xp.clip(guess, form.least_exponent, 127)
    table = xp.asarray([2.0**e for e in range(-126, 128)], dtype=xp.float32)
    power = xp.reshape(xp.take(table, xp.reshape(guess, (-1,)) + 126), x.shape)
    power = xp.where(power > size, power * 0.5, power)
    power = xp.where(power <= size * 0.5, power * 2.0, power)
    power = xp.where(power < least, xp.full_like(power, least), power)
    # the spacing itself, power / 2**bits, may be below the normal numbers
    steps = value / power * 2.0**form.bits
    if policy.rounding == "nearest":
        steps = xp.round(steps)
    else:
        steps = xp.floor(steps + _uniform(x, rng, xp))
    return steps * 2.0**-form.bits * power * (1.0 / scale)


def _round_rows(x: Any, policy: PrecisionPolicy, rng: Any, axis: int, xp: Any) -> Any:
    """Round to integers -127 .. 127 times one scale along the axis."""
    high = xp.max(x, axis=axis, keepdims=True)
    low = xp.min(x, axis=axis, keepdims=True)
    top = xp.astype(xp.maximum(high, -low), xp.float32)
    scale = xp.where(top > 0, top / 127.0, xp.ones_like(top))
    steps = xp.astype(x, xp.float32) / scale
    if policy.rounding == "nearest":
        steps = xp.round(steps)
    else:
        steps = xp.floor(steps + _uniform(x, rng, xp))
    return xp.clip(steps, -127.0, 127.0) * scale


def _uniform(x: Any, rng: Any, xp: Any) -> Any:
    """Even numbers in [0, 1) of x's shape, drawn on the host and sent to x's device."""
    draws = np.random.default_rng(rng).random(x.shape, dtype=np.float32)
    return draws if isinstance(x, np.ndarray) else xp.asarray(draws, device=x.device)
