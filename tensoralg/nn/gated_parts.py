"""Small trainable parts for a frozen Transformer, each weighed by a gate for every sample."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.tensor_train_algebra import contract_matrix_cores, initial_standard_deviation
from tensoralg.nn.layer_shapes import default_ranks, layer_shape
from tensoralg.nn.pelt import PELT

__all__ = [
    "Bottleneck",
    "Gate",
    "LowRankDelta",
    "MatrixTrainDelta",
    "Prefix",
    "Prompt",
    "WeightDelta",
]

_DEVIATION = 0.02  # of new slots and tokens


class Gate(nn.Module):
    """Mean over a sample's tokens of ``sigmoid(weight x_t + bias)``, as a logarithm.

    Parameters
    ----------
    features : int
        Width of the tokens.
    initial : float
        The value at the start.
    like : Tensor
        Whose dtype and device the parameters get.

    Attributes
    ----------
    constant : float or None
        Takes the gate's place.

    Examples
    --------
    >>> gate = Gate(4, 0.25, torch.zeros(()))
    >>> gate(torch.ones(2, 3, 4), -2).exp().flatten()
    tensor([0.2500, 0.2500], grad_fn=<ViewBackward0>)
    """

    def __init__(self, features: int, initial: float, like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, dtype=like.dtype, device=like.device))
        bias = math.log(initial) - math.log1p(-initial)
        self.bias = nn.Parameter(torch.full((1,), bias, dtype=like.dtype, device=like.device))
        self.constant: float | None = None

    def forward(self, x: Tensor, token_axis: int | None, mask: Tensor | None = None) -> Tensor:
        """Return the gates' logarithms, with size 1 in the places of tokens and features.

        Parameters
        ----------
        x : Tensor, shape (..., features)
            The tokens.
        token_axis : int or None
            The axis of `x` that tokens of one sample share; None where each is a sample.
        mask : Tensor of bool, shape (...), optional
            True where there is a token. A sample of padding only is averaged as it stands.

        Returns
        -------
        Tensor, shape (..., 1)
            In float32 or wider; never positive.
        """
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        if self.constant is not None:
            value = math.log(self.constant) if self.constant > 0 else -math.inf
            return torch.full((1,) * x.ndim, value, dtype=wide, device=x.device)
        scores = (x.to(wide) * self.weight.to(wide)).sum(dim=-1, keepdim=True)
        logarithms = functional.logsigmoid(scores + self.bias.to(wide))
        if token_axis is None:
            return logarithms
        if mask is None:
            mean = logarithms.logsumexp(dim=token_axis, keepdim=True)
            return mean - math.log(max(1, x.shape[token_axis]))
        present = mask.unsqueeze(-1)
        present = present | ~present.any(dim=token_axis, keepdim=True)
        total = logarithms.masked_fill(~present, -math.inf).logsumexp(token_axis, keepdim=True)
        return total - present.sum(dim=token_axis, keepdim=True).to(wide).log()

    def get_extra_state(self) -> Tensor:
        """Put the constant into ``state_dict``; -1 where there is none."""
        value = -1.0 if self.constant is None else self.constant
        return torch.tensor(value, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the constant from ``state_dict``, and train or freeze the gate accordingly.

        Parameters
        ----------
        state : Tensor, shape ()
            As from `get_extra_state`.
        """
        self.fix(None if float(state) < 0 else float(state))

    def fix(self, constant: float | None) -> None:
        """Put a constant in the gate's place and freeze it; None frees it."""
        if (constant is None) != (self.constant is None):
            self.requires_grad_(constant is None)
        self.constant = constant

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return f"features={self.weight.shape[0]}, constant={self.constant}"


class LowRankDelta(nn.Module):
    """Change of a weight as a product of two matrices, zero at the start.

    Parameters
    ----------
    in_features, out_features, rank : int
        Sizes.
    like : Tensor
        Whose dtype and device the parameters get.

    Examples
    --------
    >>> LowRankDelta(6, 4, 2, torch.zeros(())).matrix().shape
    torch.Size([4, 6])
    """

    def __init__(self, in_features: int, out_features: int, rank: int, like: Tensor) -> None:
        super().__init__()
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        self.down = nn.Parameter(torch.empty(rank, in_features, **options))
        self.up = nn.Parameter(torch.zeros(out_features, rank, **options))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x down^T up^T``, shape (..., out_features)."""
        return functional.linear(functional.linear(x, self.down), self.up)

    def matrix(self) -> Tensor:
        """Return the change as a weight, shape (out_features, in_features)."""
        return self.up @ self.down


class MatrixTrainDelta(nn.Module):
    """Change of a weight as a tensor train in matrix form, zero at the start.

    Parameters
    ----------
    in_features, out_features : int
        Sizes; the products of the shapes may exceed them.
    in_shape, out_shape : sequence of int
        As many factors.
    rank : int
        Largest rank.
    like : Tensor
        Whose dtype and device the cores get.

    Raises
    ------
    ShapeError
        Factors whose product is too small.

    Examples
    --------
    >>> delta = MatrixTrainDelta(384, 384, (4, 8, 12), (4, 8, 12), 4, torch.zeros(()))
    >>> sum(core.numel() for core in delta.cores)
    1664
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        rank: int,
        like: Tensor,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        ins = layer_shape("delta_in_shape", in_features, in_shape)
        outs = layer_shape("delta_out_shape", out_features, out_shape)
        modes = [m * n for m, n in zip(ins, outs, strict=True)]
        ranks = default_ranks(modes, rank, in_features * out_features)
        self.cores = nn.ParameterList(
            nn.Parameter(torch.zeros(r, m, n, s, dtype=like.dtype, device=like.device))
            for r, m, n, s in zip(ranks[:-1], ins, outs, ranks[1:], strict=True)
        )
        # the size that LoRA's first matrix has, with the last core as its second one
        deviation = initial_standard_deviation(ranks, (3 * in_features) ** -0.5)
        for core in list(self.cores)[:-1]:
            nn.init.normal_(core, std=deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Contract the input with one core after the other; shape (..., out_features)."""
        leading = x.shape[:-1]
        tokens, rest = math.prod(leading), math.prod(core.shape[1] for core in self.cores)
        if rest > self.in_features:
            x = functional.pad(x, (0, rest - self.in_features))
        done = 1
        for core in self.cores:
            r, m, n, s = core.shape
            rest //= m
            x = x.reshape(tokens, done, r * m, rest)
            x = torch.matmul(core.reshape(r * m, n * s).mT, x)  # (tokens, done, n s, rest)
            done *= n
        return x.reshape(*leading, done)[..., : self.out_features]

    def matrix(self) -> Tensor:
        """Return the change as a weight, shape (out_features, in_features)."""
        dense: Tensor = contract_matrix_cores(list(self.cores))
        return dense[: self.in_features, : self.out_features].mT


class WeightDelta(nn.Module):
    """A gated change of a linear layer's weight.

    Parameters
    ----------
    in_features, out_features : int
        Of the layer.
    config : PELT
        Rank, scale, shapes and gate.
    like : Tensor
        Whose dtype and device the parameters get.

    Examples
    --------
    >>> delta = WeightDelta(6, 4, PELT(lora=2), torch.zeros(()))
    >>> delta(torch.ones(2, 3, 6), -2).abs().max().item()
    0.0
    """

    def __init__(self, in_features: int, out_features: int, config: PELT, like: Tensor) -> None:
        super().__init__()
        self.delta: LowRankDelta | MatrixTrainDelta
        if config.delta_in_shape is None or config.delta_out_shape is None:
            self.delta = LowRankDelta(in_features, out_features, config.lora, like)
        else:
            self.delta = MatrixTrainDelta(
                in_features, out_features, config.delta_in_shape, config.delta_out_shape,
                config.lora, like,
            )  # fmt: skip
        self.scale = config.lora_scale
        self.gate = Gate(in_features, config.initial_gate, like) if config.gate else None

    def forward(self, x: Tensor, token_axis: int | None, mask: Tensor | None = None) -> Tensor:
        """Return what is added to the layer's output; arguments as for `Gate`."""
        added: Tensor = self.delta(x)
        added = added if self.scale == 1 else added * self.scale
        if self.gate is None:
            return added
        weighed: Tensor = added * self.gate(x, token_axis, mask).exp().to(added.dtype)
        return weighed

    def matrix(self) -> Tensor | None:
        """Return what can be added to the weight; None where it depends on the input."""
        if self.gate is None:
            return self.delta.matrix() * self.scale
        if self.gate.constant is None:
            return None
        return self.delta.matrix() * (self.scale * self.gate.constant)


class Bottleneck(nn.Module):
    """``x + g up(relu(down(x)))``, the identity at the start.

    Parameters
    ----------
    features : int
        Width of the tokens.
    config : PELT
        Width of the bottleneck and gate.
    like : Tensor
        Whose dtype and device the parameters get.

    Examples
    --------
    >>> x = torch.ones(2, 3, 6)
    >>> torch.equal(Bottleneck(6, PELT(adapter=2), torch.zeros(()))(x, -2), x)
    True
    """

    def __init__(self, features: int, config: PELT, like: Tensor) -> None:
        super().__init__()
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        self.down = nn.Linear(features, config.adapter, **options)
        self.up = nn.Linear(config.adapter, features, **options)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
        self.gate = Gate(features, config.initial_gate, like) if config.gate else None

    def forward(self, x: Tensor, token_axis: int | None, mask: Tensor | None = None) -> Tensor:
        """Return tokens of the same shape; arguments as for `Gate`."""
        added: Tensor = self.up(functional.relu(self.down(x)))
        if self.gate is not None:
            added = added * self.gate(x, token_axis, mask).exp().to(added.dtype)
        return x + added


class _Slots(nn.Module):
    """Learned rows that attention sees beside the sample's own, weighed by a gate."""

    def __init__(self, features: int, gate_features: int, config: PELT, like: Tensor) -> None:
        super().__init__()
        self.features = features
        self.options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        self.gate = Gate(gate_features, config.initial_gate, like) if config.gate else None

    def drawn(self, count: int) -> nn.Parameter:
        """Draw new rows."""
        rows = torch.empty(count, self.features, **self.options)
        return nn.Parameter(nn.init.normal_(rows, std=_DEVIATION))

    def log_gate(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Logarithms of the gates of samples (B, T, features), shape (B, 1, 1, 1)."""
        if self.gate is None:
            return x.new_zeros(x.shape[0], 1, 1, 1)
        value: Tensor = self.gate(x, 1, mask)
        return value.expand(x.shape[0], 1, 1).unsqueeze(-1)


class Prefix(_Slots):
    """Learned keys and values; the logarithm of a gate is their bias.

    Parameters
    ----------
    features : int
        Width of all heads together.
    gate_features : int
        Width of the tokens.
    config : PELT
        Number of slots and gate.
    like : Tensor
        Whose dtype and device the parameters get.

    Notes
    -----
    A gate g that multiplied keys and values would leave the slots their share of the softmax at
    g = 0. As a bias ``log g`` it weighs that share: 0 at g = 0, and an ungated prefix at g = 1.

    Examples
    --------
    >>> keys, values, bias = Prefix(6, 6, PELT(prefix=3), torch.zeros(())).slots(
    ...     torch.ones(2, 5, 6), None, heads=2)
    >>> keys.shape, bias.shape
    (torch.Size([2, 2, 3, 3]), torch.Size([2, 1, 1, 3]))
    """

    def __init__(self, features: int, gate_features: int, config: PELT, like: Tensor) -> None:
        super().__init__(features, gate_features, config, like)
        self.keys = self.drawn(config.prefix)
        self.values = self.drawn(config.prefix)

    def slots(self, x: Tensor, mask: Tensor | None, *, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values (B, heads, P, d) and a bias (B, 1, 1, P) for samples `x`."""
        count, batch = self.keys.shape[0], x.shape[0]
        keys, values = (
            rows.view(count, heads, -1).transpose(0, 1).expand(batch, -1, -1, -1)
            for rows in (self.keys, self.values)
        )
        return keys, values, self.log_gate(x, mask).expand(-1, -1, -1, count)


class Prompt(_Slots):
    """Learned tokens before a sample's own; the logarithm of a gate is their bias as keys.

    Parameters
    ----------
    features : int
        Width of the tokens.
    config : PELT
        Number of tokens and gate.
    like : Tensor
        Whose dtype and device the parameters get.

    Examples
    --------
    >>> Prompt(6, PELT(prompt=3), torch.zeros(())).tokens.shape
    torch.Size([3, 6])
    """

    def __init__(self, features: int, config: PELT, like: Tensor) -> None:
        super().__init__(features, features, config, like)
        self.tokens = self.drawn(config.prompt)
