"""Scalar functions for numba kernels that, unlike those of libm, the compiler can vectorise.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float64, int64, njit
from numba.extending import intrinsic

# fastmath is `contract` only: reassociation would destroy the range reductions.


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return int64(float64), generate


@intrinsic
def _from_bits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return float64(int64), generate


@njit(fastmath={"contract"}, cache=True, nogil=True, error_model="numpy")
def exponential(x: float) -> float:
    """exp(x) for x <= 709 to about one unit in the last place, 0 below -708; it vectorises."""
    bounded = max(x, -708.0)
    # adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits of the sum
    rounded = bounded * 1.4426950408889634 + 6755399441055744.0
    k = rounded - 6755399441055744.0
    t = bounded - k * 0.6931471803691238 - k * 1.9082149292705877e-10
    p = 2.5100592629891677e-08
    p = p * t + 2.7620203137961953e-07
    p = p * t + 2.755726792472209e-06
    p = p * t + 2.4801521054276513e-05
    p = p * t + 0.00019841269863528902
    p = p * t + 0.0013888888917369764
    p = p * t + 0.008333333333329898
    p = p * t + 0.04166666666662382
    p = p * t + 0.16666666666666669
    p = p * t + 0.5000000000000001
    p = p * t * t + t + 1.0
    scaled = _from_bits(_bits(p) + (_bits(rounded) << 52))
    return scaled if x >= -708.0 else 0.0


@njit(fastmath={"contract"}, cache=True, nogil=True, error_model="numpy")
def logarithm(x: float) -> float:
    """log(x) for normal x > 0 to about one unit in the last place; it vectorises."""
    # fdlibm's reduction: x = 2^k (1 + f) with sqrt(1/2) < 1 + f < sqrt(2)
    bits = _bits(x) + 0x00095F6200000000
    k = float((bits >> 52) - 1023)
    f = _from_bits((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E00000000) - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1.479819860511658591e-01
    p = p * z + 1.531383769920937332e-01
    p = p * z + 1.818357216161805012e-01
    p = p * z + 2.222219843214978396e-01
    p = p * z + 2.857142874366239149e-01
    p = p * z + 3.999999999940941908e-01
    p = p * z + 6.666666666666735130e-01
    half = 0.5 * f * f
    low = s * (half + p * z) + k * 1.90821492927058770002e-10
    result: float = k * 6.93147180369123816490e-01 - ((half - low) - f)
    return result
