"""A linear layer whose weight is one tensor train over its inputs, then its outputs."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.validation import positive_integer
from tensoralg.nn.core_products import merge_left, merge_right
from tensoralg.nn.factor_cache import records_graph
from tensoralg.nn.layer_shapes import default_ranks, layer_shape
from tensoralg.nn.parameters import copied
from tensoralg.nn.planner import Plan, plan_linear
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.weight_train import train_of_weight

__all__ = ["TTLinear"]

_MANY_TOKENS = 1 << 20
_KEPT_ROUTES = 256


class TTLinear(TensorizedLayer):
    """Linear layer ``y = x W + b`` with W as a tensor train.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of input and output; any numbers, primes too (the modes are then padded).
    rank : int or sequence of int, optional
        One number for all bonds, or one for each (of the inner bonds, or of all with the ones at
        the ends); capped at what can be of use. By default the largest number up to 32 with which
        the layer is at most half as large as a dense one; where none is, full ranks.
    in_shape, out_shape : int or sequence of int, optional
        Modes that inputs and outputs are split into, or how many. Their products may exceed the
        features.
    bias : bool, default True
        Whether there is a bias.
    dtype : torch.dtype, optional
        Of the parameters.
    device : torch.device or str, optional
        Of the parameters.

    Attributes
    ----------
    cores : ParameterList
        Shapes (r_{k-1}, n_k, r_k), the inputs' modes before the outputs'.
    bias : Parameter, shape (out_features,), or None
        As that of ``nn.Linear``.

    Raises
    ------
    ShapeError
        Modes whose product is too small, ranks that do not fit, or an input of another width.

    Notes
    -----
    W = A B is a matrix of the middle bond's rank whose factors are trains themselves [1]_. A
    forward pass takes the cheapest of three routes (`explain` shows them): ``(x A) B``, one core
    after the other, or the dense W. In eval mode without gradients A and B are kept until a core
    changes. The root mean square of the initial W is ``1 / sqrt(3 in_features)``, as
    ``nn.Linear`` has it. `load_state_dict` gives the cores the stored ranks.

    References
    ----------
    .. [1] Z. Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive
       Tensor Optimization", NeurIPS 2024, arXiv:2405.14377.

    Examples
    --------
    >>> layer = TTLinear(768, 3072, rank=32)
    >>> layer(torch.zeros(5, 768)).shape
    torch.Size([5, 3072])
    >>> layer.ranks, layer.compressed_parameters
    ((1, 12, 32, 32, 32, 16, 1), 32144)
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int | Sequence[int] | None = None,
        in_shape: int | Sequence[int] | None = None,
        out_shape: int | Sequence[int] | None = None,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        in_features = positive_integer("in_features", in_features)
        out_features = positive_integer("out_features", out_features)
        ins = layer_shape("in_shape", in_features, in_shape)
        outs = layer_shape("out_shape", out_features, out_shape)
        # planned modes: the largest at the ends, where the ranks are small
        ins = ins if isinstance(in_shape, Sequence) else ins[::-1]
        ranks = default_ranks((*ins, *outs), rank, in_features * out_features)
        shapes = list(zip(ranks[:-1], (*ins, *outs), ranks[1:], strict=True))
        super().__init__(shapes, dtype=dtype, device=device)
        self.in_features, self.out_features = in_features, out_features
        self.in_shape, self.out_shape = ins, outs
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device))
        else:
            self.register_parameter("bias", None)
        self.dense_parameters = in_features * out_features
        self.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """The weight, shape (out_features, in_features), computed anew; quantized if the cores are.

        It is what an input is multiplied with.
        """
        left, right = self._factor_pair()
        return (left @ right).mT

    def reset_parameters(self) -> None:
        """Draw new cores and a new bias, of the sizes that ``nn.Linear`` draws."""

        def represented() -> float:
            left, right = (half.double() for half in self._halves(self.train_cores()))
            square = torch.sum((left.mT @ left) * (right @ right.mT))
            return math.sqrt(float(square) / self.dense_parameters)

        self._draw_cores(1 / math.sqrt(3 * self.in_features), represented)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute ``x W + b``.

        Parameters
        ----------
        input : Tensor, shape (..., in_features)
            Any leading shape: none, and zeros too; a nested tensor of sequences too.

        Returns
        -------
        Tensor, shape (..., out_features)
            The output.

        Raises
        ------
        ShapeError
            Another last dimension.
        """
        if input.is_nested:  # sentences of several lengths, in PyTorch's fused encoders
            return self._nested_forward(input)
        if input.ndim == 0 or input.shape[-1] != self.in_features:
            raise ShapeError(
                f"input must have shape (..., {self.in_features}); got {tuple(input.shape)}"
            )
        if self.quantizers is not None:
            return self._quantized_forward(input)
        keep = self._may_keep()
        route = self._route(input, keep)
        if route == "sequential":
            return self._sequential(input)
        if route == "dense":
            weight = self._factors("weight", lambda: self.weight, keep)
            return functional.linear(input, weight, self.bias)
        left, right = self._factors("halves", self._factor_pair, keep)
        return functional.linear(torch.matmul(input, left), right.mT, self.bias)

    def _nested_forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Compute the rows of all sequences at once; hooks have run, so this is no call."""
        if input.layout is not torch.jagged:
            parts = input.unbind()
            rows = self.forward(torch.cat(parts))
            outputs = list(rows.split_with_sizes([len(part) for part in parts]))
            return torch.nested.as_nested_tensor(outputs, layout=input.layout)
        jagged: Any = input  # its type knows nothing of offsets
        ragged = jagged._ragged_idx  # in a graph of any shape, other sizes are symbols too
        if ragged == input.ndim - 1:
            raise ShapeError(
                f"input must have shape (..., {self.in_features}); its last dimension is ragged"
            )
        # with these very offsets the output can be added to the input
        return torch.nested.nested_tensor_from_jagged(
            self.forward(jagged.values()),
            offsets=jagged.offsets(),
            lengths=jagged.lengths(),
            jagged_dim=ragged,
        )

    def _route(self, input: Tensor, keep: bool) -> str:  # noqa: A002
        """Choose the cheapest route; one that fits every number of tokens in a recorded graph."""
        if records_graph():
            return self._recorded_route
        tokens = input.numel() // self.in_features
        route = self._routes.get((tokens, keep))
        if route is None:
            if len(self._routes) >= _KEPT_ROUTES:
                self._routes.clear()
            route = self._routes[tokens, keep] = self._plan(tokens, keep).chosen
        return route

    def _plan(self, tokens: int, keep: bool) -> Plan:
        """Plan for a number of tokens."""
        return plan_linear(
            self.in_shape,
            self.out_shape,
            self.ranks,
            tokens=tokens,
            in_features=self.in_features,
            out_features=self.out_features,
            cached=keep,
        )

    def _cores_changed(self) -> None:
        """Bring up to date what depends on the ranks."""
        super()._cores_changed()
        self._routes: dict[tuple[int, bool], str] = {}
        # in a graph for any number of tokens: what is best for many
        self._recorded_route = self._plan(_MANY_TOKENS, False).chosen

    def _halves(self, cores: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Merge the cores to A, (in_features, r), and B, (r, out_features), with W = A B."""
        d = len(self.in_shape)
        left, right = merge_left(cores[:d]), merge_right(cores[d:])
        return left[: self.in_features], right[:, : self.out_features]

    def _factor_pair(self) -> tuple[Tensor, Tensor]:
        """Return A and B as the forward pass uses them."""
        left, right = self._halves(self._forward_cores())
        return self._quantized("left", left), self._quantized("right", right)

    def _sequential(self, input: Tensor) -> Tensor:  # noqa: A002
        """Contract the input with one core after the other; best for very few tokens."""
        cores, d = self.train_cores(), len(self.in_shape)
        tokens, rest = input.numel() // self.in_features, math.prod(self.in_shape)
        x = (
            functional.pad(input, (0, rest - self.in_features))
            if rest > self.in_features
            else input
        )
        for core in cores[:d]:
            r, n, s = core.shape
            rest //= n
            x = torch.matmul(core.reshape(r * n, s).mT, x.reshape(tokens, r * n, rest))
        for core in cores[d:]:
            r, n, s = core.shape
            x = torch.matmul(x.reshape(-1, r), core.reshape(r, n * s))
        x = x.reshape(*input.shape[:-1], math.prod(self.out_shape))[..., : self.out_features]
        return x if self.bias is None else x + self.bias.to(x.dtype)  # autocast's, if it is on

    def _quantized_forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Take the halves' route with a quantizer wherever one is present."""
        left, right = self._factor_pair()
        hidden = torch.matmul(self._quantized("input", input), left)
        output = functional.linear(self._quantized("hidden", hidden), right.mT, self.bias)
        return self._quantized("output", output)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        rank: int | Sequence[int] | None = None,
        rtol: float | None = None,
        gram: Tensor | None = None,
        in_shape: int | Sequence[int] | None = None,
        out_shape: int | Sequence[int] | None = None,
    ) -> Self:
        """Factorise the weight of a dense layer.

        Parameters
        ----------
        linear : nn.Linear
            The layer; it is not changed, and nothing is shared with it.
        rank : int or sequence of int, optional
            Largest ranks.
        rtol : float, optional
            Largest relative error of the weight in the Frobenius norm; with `gram`, of the
            outputs that the middle bond's truncation causes. Without `rank` and `rtol` the
            factorisation is exact, which is rarely smaller than the dense weight.
        gram : Tensor, shape (in_features, in_features), optional
            ``X^T X`` of the layer's inputs: then the error of the outputs ``X W`` counts, not that
            of W. It need not be positive definite.
        in_shape, out_shape : int or sequence of int, optional
            As for the constructor.

        Returns
        -------
        TTLinear
            With the dtype, the device, the mode and a copy of the bias of `linear`.

        Raises
        ------
        TypeError
            No ``nn.Linear``.
        ShapeError
            A Gram matrix of another shape.
        ValueError
            A weight or a Gram matrix that is not finite.

        Examples
        --------
        >>> dense = nn.Linear(16, 32)
        >>> layer = TTLinear.from_linear(dense)
        >>> x = torch.ones(16)
        >>> bool(torch.allclose(layer(x), dense(x), atol=1e-5))
        True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear; got {type(linear).__name__}")
        weight = linear.weight.detach()
        layer = cls(
            linear.in_features,
            linear.out_features,
            rank=1,
            in_shape=in_shape,
            out_shape=out_shape,
            bias=linear.bias is not None,
            device="meta",  # nothing is drawn
        )
        ranks = None if rank is None else default_ranks(layer.mode_sizes, rank, 0)
        cores = train_of_weight(
            weight.mT, layer.in_shape, layer.out_shape, ranks=ranks, rtol=rtol, gram=gram
        )
        layer._adopt(cores, linear.weight)
        if linear.bias is not None:
            layer.bias = copied(linear.bias)
        return layer.train(linear.training)

    def to_linear(self) -> nn.Linear:
        """Build the dense layer that computes the same.

        Returns
        -------
        nn.Linear
            It shares nothing with this layer.
        """
        has_bias = self.bias is not None
        linear = nn.Linear(self.in_features, self.out_features, bias=has_bias, device="meta")
        linear.weight = copied(self.weight)
        if self.bias is not None:
            linear.bias = copied(self.bias)
        return linear.train(self.training)

    def explain(self, tokens: int) -> Plan:
        """Show how the layer computes its output and what the other ways would cost.

        Parameters
        ----------
        tokens : int
            Rows of the input.

        Returns
        -------
        Plan
            Printing it shows a table. In eval mode merging the cores counts nothing.

        Examples
        --------
        >>> TTLinear(768, 3072, rank=32).explain(512).chosen
        'halves'
        """
        return self._plan(positive_integer("tokens", tokens), not self.training)

    def extra_repr(self) -> str:
        """Text for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"in_shape={self.in_shape}, out_shape={self.out_shape}, ranks={self.ranks}, "
            f"bias={self.bias is not None}"
        )
