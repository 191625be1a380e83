"""Rounding to a few bits with a learnable step, differentiable: learned step size quantization."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tensoralg.nn.bit_packing import code_range
from tensoralg.solvers.quantization_grid import number_of_bits

__all__ = ["FakeQuantize", "follow_cores"]

_LEAST_LOG_SCALE = -80.0  # exp of it is a normal number in float32
_LARGEST_LOG_SCALE = 80.0
_CANDIDATES = 24  # scales that the start compares


class _LearnedStep(torch.autograd.Function):
    """``s * round(clip(x / s))`` with the gradients of [1]_; only x and s are kept for later."""

    @staticmethod
    def forward(x: Tensor, log_scale: Tensor, low: int, high: int) -> Tensor:
        """Round to the grid."""
        scale = _scale_of(log_scale).to(_computing_dtype(x))
        if _has_kernel(x):
            result = torch.empty_like(x, memory_format=torch.contiguous_format)
            grid = _grid(x, scale, low, high)
            kernels().round_to_grid(_flat(x), *grid, _flat(result))
            return result
        steps = (_computing(x) / scale).clamp_(low, high).round_()
        return steps.mul_(scale).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the inputs."""
        x, log_scale, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x, log_scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Straight through inside the range; the bound or the rounding error for the scale."""
        (gradient,) = gradients
        x, log_scale = ctx.saved_tensors
        scale = _scale_of(log_scale).to(_computing_dtype(x))
        # under create_graph the kernels could not be differentiated again
        if _has_kernel(x) and gradient.dtype == x.dtype and not torch.is_grad_enabled():
            to_x = torch.empty_like(x, memory_format=torch.contiguous_format)
            grid = _grid(x, scale, ctx.low, ctx.high)
            flat = _flat(gradient), _flat(x)
            total = kernels().round_to_grid_backward(*flat, *grid, _flat(to_x))
            slope_sum = torch.tensor(total, dtype=scale.dtype)
        else:
            steps = _computing(x) / scale
            clipped = steps.clamp(ctx.low, ctx.high)
            inside = clipped == steps
            to_x = torch.where(inside, gradient, torch.zeros_like(gradient))
            slope = torch.where(inside, steps.round() - steps, clipped)
            slope_sum = (gradient * slope).sum()
        balance = 1 / math.sqrt(max(x.numel(), 1) * ctx.high)
        # by the chain rule of scale = exp(log_scale)
        to_scale = (slope_sum * scale * balance).to(log_scale.dtype)
        return to_x, to_scale, None, None


# PyTorch asks for it at every call, and finding it anew takes a fifth of the call's time
_LearnedStep.forward.__signature__ = inspect.signature(_LearnedStep.forward)  # type: ignore[attr-defined]


def kernels() -> Any:
    """Import the compiled loops, which take a second, when they are first needed."""
    from tensoralg.nn import quantization_kernels

    return quantization_kernels


def _has_kernel(x: Tensor) -> bool:
    """Tell whether the compiled loops apply: on the CPU, outside of a recorded graph."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
    )


def _flat(x: Tensor) -> Any:
    """View a tensor, or a contiguous copy of it, as a flat array."""
    return x.detach().contiguous().reshape(-1).numpy()


def _grid(x: Tensor, scale: Tensor, low: int, high: int) -> tuple[Any, Any, Any]:
    """Return the grid's numbers in the dtype of x."""
    kind = np.float32 if x.dtype == torch.float32 else np.float64
    return kind(float(scale)), kind(low), kind(high)


def _scale_of(log_scale: Tensor) -> Tensor:
    """Return the positive scale; its logarithm is cut where float32 would end."""
    # half precision would end far before
    return _computing(log_scale).clamp(_LEAST_LOG_SCALE, _LARGEST_LOG_SCALE).exp()


def _computing(x: Tensor) -> Tensor:
    """Return x in the dtype of the computation; a scalar operand would not widen it."""
    return x.to(_computing_dtype(x))


def _computing_dtype(x: Tensor) -> torch.dtype:
    """Return float32 for half precision: eight bits of code do not fit bfloat16's mantissa."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


class FakeQuantize(nn.Module):
    """Round a tensor to `bits` bits with one learnable scale (learned step size quantization).

    The output is ``s * round(clip(x / s, low, high))``. In the backward pass rounding is the
    identity inside the range; the scale's gradient is ``round(x/s) - x/s`` inside and the bound
    outside, divided by ``sqrt(N * high)`` for N entries, as in [1]_. The parameter is the
    logarithm of s, so that s stays positive whatever an optimizer does.

    Parameters
    ----------
    bits : int
        2 to 8.
    signed : bool, default True
        Codes from ``-2**(bits-1)`` to ``2**(bits-1) - 1``; otherwise from 0 to ``2**bits - 1``.

    Attributes
    ----------
    log_scale : Parameter, shape ()
        log s.
    ready : Tensor of bool, shape ()
        Whether the scale was set, by `initialize` or by the first tensor in training mode that
        has a nonzero entry. Until then tensors pass unrounded in eval mode.

    Raises
    ------
    ValueError
        Another number of bits.

    References
    ----------
    .. [1] S. K. Esser, J. L. McKinstry, D. Bablani, R. Appuswamy, D. S. Modha, "Learned Step
       Size Quantization", ICLR 2020, arXiv:1902.08153, equations 1 to 5.

    Examples
    --------
    >>> import torch
    >>> quantizer = FakeQuantize(3)
    >>> quantizer.initialize(torch.tensor([-4.0, 3.0]))
    >>> quantizer(torch.tensor([-9.0, 0.4, 0.6, 2.0])).tolist()
    [-4.0, 0.0, 1.0, 2.0]
    """

    ready: Tensor

    def __init__(self, bits: int, *, signed: bool = True) -> None:
        super().__init__()
        self.bits = bits = number_of_bits(bits)
        self.signed = signed
        self.low, self.high = code_range(bits, signed=signed)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("ready", torch.tensor(False))
        self._is_ready = False  # the same in Python: a compiled graph cannot read a tensor

    @property
    def scale(self) -> Tensor:
        """The step s > 0 between two codes, a tensor of shape ()."""
        return _scale_of(self.log_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` rounded to the grid, in its own shape and dtype.

        Parameters
        ----------
        x : Tensor of floats, any shape
            An empty one is returned as it is.

        Returns
        -------
        Tensor, same shape and dtype
            Rounded.

        Raises
        ------
        TypeError
            `x` is not of a real floating dtype.
        """
        if not x.is_floating_point():
            raise TypeError(f"x must be a tensor of floats; got dtype {x.dtype}")
        if not self._is_ready:
            if not self.training:
                return x
            self.initialize(x)
            if not self._is_ready:  # nothing but zeros so far
                return x
        result: Tensor = _LearnedStep.apply(  # type: ignore[no-untyped-call]
            x, self.log_scale, self.low, self.high
        )
        return result

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Choose the scale with the least squared error on `x`.

        The candidates are parts of the scale that cuts nothing off.

        Parameters
        ----------
        x : Tensor of floats, any shape
            Without a nonzero entry the scale is left as it is.

        Raises
        ------
        ValueError
            `x` has a NaN or an infinite entry.
        """
        values = x.detach().reshape(-1).to(torch.float32)
        if values.numel() == 0:
            return
        if not bool(torch.isfinite(values).all()):
            raise ValueError("the scale cannot be set from x: it has NaN or infinite entries")
        ends = float(values.max()) / self.high, float(values.min()) / (self.low or -math.inf)
        if max(ends) <= 0:
            return
        whole = max(*ends, math.exp(_LEAST_LOG_SCALE))
        if values.numel() > 1 << 16:  # a regular sample tells enough
            # an odd step goes through all columns of a matrix whose width is a power of two
            values = values[:: values.numel() >> 15 | 1]
        values = values / whole  # squares of the errors must neither vanish nor overflow
        errors = []
        for k in range(_CANDIDATES):
            scale = 1 - k / (_CANDIDATES + 1)
            rounded = (values / scale).round().clamp(self.low, self.high) * scale
            errors.append((float((rounded - values).square().sum()), scale))
        self.log_scale.fill_(math.log(whole) + math.log(min(errors)[1]))
        self._set_ready()

    def _set_ready(self, ready: bool = True) -> None:
        """Note whether the scale is set, in both places."""
        self.ready.fill_(ready)
        self._is_ready = ready

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """Return the integer codes of `x`: ``codes * scale`` is what `forward` returns.

        Parameters
        ----------
        x : Tensor of floats, any shape
            Of the kind that the scale was set for.

        Returns
        -------
        Tensor of int16, same shape
            From ``low`` to ``high``.

        Raises
        ------
        ValueError
            The scale was never set.
        """
        if not self._is_ready:
            raise ValueError("the scale is not set yet; call initialize(x) or train first")
        scale = self.scale.to(_computing_dtype(x))
        return (_computing(x) / scale).round().clamp(self.low, self.high).to(torch.int16)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Keep the Python flag in step with a loaded `ready`."""
        super()._load_from_state_dict(*arguments)
        self._is_ready = bool(self.ready)

    def extra_repr(self) -> str:
        """Return what printing a model shows."""
        return f"bits={self.bits}" + ("" if self.signed else ", signed=False")


def follow_cores(
    quantizers: nn.ModuleDict, before: Sequence[Tensor], after: Sequence[Tensor]
) -> None:
    """Give the quantizers of a layer scales for other cores.

    Parameters
    ----------
    quantizers : ModuleDict
        "core_0" .. get the scale of their new core. "left", "right" and "hidden" see other numbers
        too, even where the weight is the same: the next pass in training mode sets their scales,
        and until then they round nothing. Inputs and outputs keep theirs.
    before, after : sequence of Tensor, shapes (r_{k-1}, n_k, r_k)
        The cores; where all are the same, nothing happens.
    """
    pairs = list(zip(before, after, strict=True))
    if all(old.shape == new.shape and torch.equal(old, new) for old, new in pairs):
        return
    for name, quantizer in quantizers.items():
        assert isinstance(quantizer, FakeQuantize)
        if name.startswith("core_"):
            quantizer.initialize(after[int(name.removeprefix("core_"))])
        elif name in ("left", "right", "hidden"):
            quantizer._set_ready(False)
