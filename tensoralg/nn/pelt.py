"""Which small trainable parts a frozen Transformer gets."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from tensoralg.core.validation import nonnegative_integer, positive_integer

__all__ = ["METHODS", "PELT"]

METHODS = ("lora", "adapter", "prefix", "prompt")


@dataclass(frozen=True)
class PELT:
    """Which parts `adapt` adds to a model, and how large they are; 0 leaves a part out.

    Parameters
    ----------
    lora : int, default 0
        Rank of the change of the weights of queries and values [1]_.
    adapter : int, default 0
        Width of the bottleneck behind every feed-forward part [2]_.
    prefix : int, default 0
        Learned keys and values in every attention [3]_.
    prompt : int, default 0
        Learned tokens before the first block's [4]_.
    gate : bool, default True
        Each part is weighed by a gate in (0, 1), the mean of ``sigmoid(w x_t + b)`` over the
        tokens of a sample, padding left out [5]_. Without it every part counts fully.
    initial_gate : float, default 0.5
        What every gate is at the start, for every sample.
    lora_scale : float, default 1.0
        Factor of the change of the weights, beside the gate (alpha / r in [1]_).
    delta_in_shape, delta_out_shape : sequence of int, optional
        Factors of a layer's inputs and outputs, as many: then the change of a weight is a tensor
        train in matrix form with cores (r, m, n, r') of rank `lora`. Two cores of shapes
        ``(in, 1)`` and ``(1, out)`` are [1]_.
    targets : sequence of str, default ("query", "value")
        Names of the linear layers that `lora` changes; within a
        :class:`torch.nn.MultiheadAttention` "query", "key" and "value" are its projections.
    after : sequence of str, default ("contract", "linear2")
        Names of the linear layers that an adapter follows.
    train : sequence of str, default ()
        Names or patterns of parameters of the model that are trained as well, such as
        ``"classifier"``. They are saved with the adapter.

    Raises
    ------
    TypeError, ValueError
        A size that is no integer or negative, a gate outside (0, 1), a scale that is not
        finite, one of the two shapes without the other, or nothing to train.

    References
    ----------
    .. [1] E. J. Hu et al., "LoRA", ICLR 2022, arXiv:2106.09685.
    .. [2] N. Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019,
       arXiv:1902.00751.
    .. [3] X. L. Li, P. Liang, "Prefix-Tuning", ACL 2021, arXiv:2101.00190.
    .. [4] B. Lester, R. Al-Rfou, N. Constant, "The Power of Scale for Parameter-Efficient Prompt
       Tuning", EMNLP 2021, arXiv:2104.08691.
    .. [5] Y. Mao et al., "UniPELT", ACL 2022, arXiv:2110.07577. Together with [4]_ in
       arXiv:2405.05493.

    Examples
    --------
    >>> PELT(lora=8, prefix=10).methods
    ('lora', 'prefix')
    """

    lora: int = 0
    adapter: int = 0
    prefix: int = 0
    prompt: int = 0
    gate: bool = True
    _: KW_ONLY
    initial_gate: float = 0.5
    lora_scale: float = 1.0
    delta_in_shape: Sequence[int] | None = None
    delta_out_shape: Sequence[int] | None = None
    targets: Sequence[str] = ("query", "value")
    after: Sequence[str] = ("contract", "linear2")
    train: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in METHODS:
            object.__setattr__(self, name, nonnegative_integer(name, getattr(self, name)))
        if not isinstance(self.gate, bool):
            raise TypeError(f"gate must be True or False; got {self.gate!r}")
        if not 0 < self.initial_gate < 1:
            raise ValueError(f"initial_gate must lie in (0, 1); got {self.initial_gate}")
        if not math.isfinite(self.lora_scale):
            raise ValueError(f"lora_scale must be finite; got {self.lora_scale}")
        for name in ("targets", "after", "train"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, names)
            if wrong := [n for n in names if not isinstance(n, str) or not n]:
                raise TypeError(f"{name} must be names; got {wrong[0]!r}")
        self._check_shapes()
        if not self.methods and not self.train:
            raise ValueError(
                f"nothing to train: all of {', '.join(METHODS)} are 0 and train is empty"
            )

    def _check_shapes(self) -> None:
        """Both shapes or none, of as many factors."""
        shapes = []
        for name in ("delta_in_shape", "delta_out_shape"):
            shape = getattr(self, name)
            if shape is not None:
                shape = tuple(positive_integer(f"{name}[{k}]", n) for k, n in enumerate(shape))
                object.__setattr__(self, name, shape)
            shapes.append(shape)
        ins, outs = shapes
        if (ins is None) != (outs is None) or (ins is not None and len(ins) != len(outs)):
            raise ValueError(
                "delta_in_shape and delta_out_shape must be given together, with as many "
                f"factors; got {ins} and {outs}"
            )

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the parts that are not left out."""
        return tuple(name for name in METHODS if getattr(self, name))
