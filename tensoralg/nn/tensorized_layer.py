"""What all layers whose weights are tensor trains share: cores, ranks, rounding, state."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_algebra import initial_standard_deviation
from tensoralg.core.tensor_train_rounding import round_cores
from tensoralg.core.tensor_train_shapes import count_parameters
from tensoralg.nn.core_moments import (
    absorbing_maps,
    carry_moments,
    forget_moments,
    gradient_maps,
    own_copy,
    set_data,
)
from tensoralg.nn.factor_cache import FactorCache, records_graph
from tensoralg.nn.fake_quantization import follow_cores
from tensoralg.nn.parameters import full_precision, listed, resize, stored_list
from tensoralg.nn.stale_moments import forget_stale_moments

__all__ = ["TensorizedLayer", "always_called"]


class TensorizedLayer(nn.Module):
    """Base of the layers whose weight is a tensor train.

    Parameters
    ----------
    core_shapes : sequence of tuple of int
        Shapes (r_{k-1}, ..., r_k) of the cores.
    dtype : torch.dtype, optional
        Of the cores.
    device : torch.device, optional
        Of the cores.

    Raises
    ------
    ValueError
        A dtype that is complex or no floating-point type.

    Attributes
    ----------
    cores : ParameterList
        The train.
    bonds : ParameterList or None
        A vector for each inner bond that scales its entries (rank-adaptive training only).
    dense_parameters : int
        Numbers in the weight that the cores stand for.
    quantizers : ModuleDict or None
        Modules that quantize tensors by name: "core_0" .., "left", "right", "output" and, for a
        linear layer, "input" and "hidden".
    """

    cores: nn.ParameterList
    bonds: nn.ParameterList | None
    quantizers: nn.ModuleDict | None
    dense_parameters: int

    def __init__(
        self,
        core_shapes: Sequence[tuple[int, ...]],
        *,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"dtype must be a real floating-point type; got {dtype}")
        self.cores = nn.ParameterList(
            nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for shape in core_shapes
        )
        self.bonds = None
        self.quantizers = None
        self._cache = FactorCache()
        self._learning = False
        # PyTorch's fused encoder layers read `weight` past layers that have no hooks
        self.register_forward_pre_hook(always_called)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All bonds of the train, the ones at both ends included."""
        return (self.cores[0].shape[0], *(core.shape[-1] for core in self.cores))

    @property
    def core_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the cores."""
        return tuple(tuple(core.shape) for core in self.cores)

    @property
    def mode_sizes(self) -> tuple[int, ...]:
        """Number of values of each mode; for a matrix form rows times columns."""
        return tuple(core.numel() // (core.shape[0] * core.shape[-1]) for core in self.cores)

    @property
    def compressed_parameters(self) -> int:
        """Numbers in the cores."""
        return count_parameters(self.mode_sizes, self.ranks)

    def train_cores(self) -> list[Tensor]:
        """Cores of order three with the bonds' factors multiplied in; gradients flow through."""
        cores = [
            core if core.ndim == 3 else core.reshape(core.shape[0], -1, core.shape[-1])
            for core in listed(self.cores)
        ]
        if self.bonds is not None:
            for k, bond in enumerate(listed(self.bonds)):
                cores[k] = cores[k] * bond
        return cores

    def replace_cores(
        self,
        cores: Sequence[Tensor],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        maps: Sequence[tuple[Tensor, Tensor]] | None = None,
        bonds: Sequence[Tensor] | None = None,
    ) -> None:
        """Put other cores, of the same modes and any ranks, in the place of the present ones.

        The Parameter objects stay, so optimizers keep their references; gradients are dropped,
        quantizers get scales for what has changed (`follow_cores`). A DistributedDataParallel
        wrapper has to be made anew.

        Parameters
        ----------
        cores : sequence of Tensor, shapes (r_{k-1}, n_k, r_k)
            As many as there are.
        optimizer : torch.optim.Optimizer, optional
            Whose moments of the cores follow.
        maps : sequence of pair of Tensor, optional
            For each core L_k and R_k with ``new core = L_k core R_k``, where ``L_{k+1} R_k`` is
            the identity, as from `round_cores` of `train_cores`: with the bonds' factors. Without
            them the optimizer's moments start anew where a shape has changed.
        bonds : sequence of Tensor, shapes (r_k,), optional
            Factors of the inner bonds, for a layer that has some; then `maps` are those of the
            cores without factors. By default the factors become ones, the cores having taken
            them in.

        Raises
        ------
        ShapeError
            Another number of cores, other modes, or ranks that do not meet.
        """
        if reason := self._misfit([tuple(core.shape) for core in cores]):
            raise ShapeError(f"cores do not fit this layer: {reason}")
        with torch.no_grad():
            before = [core.detach() for core in self.train_cores()]
            moved = gradient_maps(maps) if optimizer is not None and maps is not None else None
            if moved is not None and self.bonds is not None and bonds is None:
                moved = absorbing_maps(moved, listed(self.bonds))
            for k, (parameter, core) in enumerate(zip(self.cores, cores, strict=True)):
                shape = (core.shape[0], *parameter.shape[1:-1], core.shape[2])
                if optimizer is not None:
                    carry_moments(optimizer, parameter, shape, None if moved is None else moved[k])
                set_data(parameter, own_copy(core.to(parameter).reshape(shape)))
            if self.bonds is not None:
                ones = [torch.ones(rank) for rank in self.ranks[1:-1]]
                for bond, value in zip(self.bonds, bonds or ones, strict=True):
                    if optimizer is not None:  # it multiplies other things now
                        forget_moments(optimizer, bond, value.shape)
                    set_data(bond, own_copy(value.to(bond)))
            if self.quantizers is not None:
                follow_cores(self.quantizers, before, self.train_cores())
        self._cores_changed()

    def _adopt(self, cores: Sequence[Tensor], like: Tensor) -> None:
        """Take over cores as new parameters with another tensor's dtype and device."""
        for k, (present, core) in enumerate(zip(self.cores, cores, strict=True)):
            shape = (core.shape[0], *present.shape[1:-1], core.shape[2])
            value = own_copy(core.to(like).reshape(shape))
            self.cores[k] = nn.Parameter(value, requires_grad=like.requires_grad)
        self._cores_changed()

    def round_(
        self,
        rtol: float | None = None,
        ranks: int | Sequence[int] | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Self:
        """Reduce the ranks in place.

        Parameters
        ----------
        rtol : float, optional
            Largest relative error of the weight in the Frobenius norm, padding of the modes
            included.
        ranks : int or sequence of int, optional
            Largest ranks: one for every bond, one for each inner bond, or all with the ones at
            the ends.
        optimizer : torch.optim.Optimizer, optional
            Whose moments of the cores follow. One that is not given here cannot go on where it
            remembers moments of another shape.

        Returns
        -------
        Self
            This layer, with smaller cores.

        Raises
        ------
        ValueError
            A core is not finite.
        """
        if not all(bool(torch.isfinite(value).all()) for value in self._dependencies()):
            raise ValueError("the cores have NaN or infinite entries; ranks cannot be chosen")
        with torch.no_grad():
            cores, maps = round_cores(self.train_cores(), rtol=rtol, ranks=ranks, balance=True)
        self.replace_cores(cores, optimizer=optimizer, maps=maps)
        return self

    def add_bonds(self) -> nn.ParameterList:
        """Put a vector of ones on every inner bond, as parameters; they stay if there are some."""
        if self.bonds is None:
            like = self.cores[0]
            self.bonds = nn.ParameterList(
                nn.Parameter(torch.ones(rank, dtype=like.dtype, device=like.device))
                for rank in self.ranks[1:-1]
            )
            self._cores_changed()
        return self.bonds

    def absorb_bonds(self, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Multiply the bonds into the cores and take them away; the weight stays the same.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer, optional
            Whose moments of the cores follow; those of the bonds are forgotten.
        """
        if self.bonds is not None:
            cores = [core.detach() for core in self.train_cores()]
            eyes = [torch.eye(rank).to(cores[0]) for rank in self.ranks]
            maps = list(pairwise(eyes))
            self.replace_cores(cores, optimizer=optimizer, maps=maps)
            self.bonds = None
            self._cores_changed()

    def _misfit(self, shapes: Sequence[tuple[int, ...]]) -> str | None:
        """Why cores of order three of these shapes cannot stand here, or None."""
        if len(shapes) != len(self.cores):
            return f"{len(shapes)} cores where there are {len(self.cores)}"
        previous = 1
        for k, (shape, size) in enumerate(zip(shapes, self.mode_sizes, strict=True)):
            if len(shape) != 3 or shape[1] != size:
                return f"core {k} has shape {shape}, expected (r, {size}, r')"
            if shape[0] != previous or shape[2] < 1:
                return f"core {k} has shape {shape}, its first rank should be {previous}"
            previous = shape[2]
        return None if previous == 1 else f"the last rank is {previous}, not 1"

    def _cores_changed(self) -> None:
        """Bring up to date what depends on the ranks."""
        self._cache.clear()

    def _draw_cores(self, root_mean_square: float, represented: Callable[[], float]) -> None:
        """Draw cores whose weight has exactly the given size, as `represented` measures it."""
        self._cores_changed()
        if self.cores[0].is_meta:  # there are no values
            return
        deviation = initial_standard_deviation(self.ranks, root_mean_square)
        with torch.no_grad():
            for core in self.cores:
                nn.init.normal_(core, std=deviation)
            if self.bonds is not None:
                for bond in self.bonds:
                    bond.fill_(1.0)
            # one draw scatters, widely for small ranks; padding is not part of the weight
            factor = (root_mean_square / represented()) ** (1 / len(self.cores))
            for core in self.cores:
                core.mul_(factor)

    def _dependencies(self) -> list[Tensor]:
        """All parameters on which merged factors depend."""
        if self.bonds is None:
            return listed(self.cores)
        return [*listed(self.cores), *listed(self.bonds)]

    def _may_keep(self) -> bool:
        """Whether merged factors can be kept: eval mode, and no graph is being recorded."""
        if self.training or self.quantizers is not None or records_graph():
            return False
        parameters = self._dependencies()
        learns = (type(p) is nn.Parameter and p.requires_grad for p in parameters)
        if torch.is_grad_enabled() and any(learns):
            # trained in eval mode: fused optimizers change values behind the version counters
            self._learning = True
            self._cache.clear()
        return not self._learning and FactorCache.may_keep(parameters)

    def _factors(self, key: Any, compute: Callable[[], Any], keep: bool) -> Any:
        """Compute a value from the cores in full precision, or take a kept one in eval mode."""
        device_type = self.cores[0].device.type

        def computed() -> Any:
            with full_precision(device_type):
                return compute()

        return self._cache.get(key, self._dependencies(), computed) if keep else computed()

    def _quantized(self, name: str, tensor: Tensor) -> Tensor:
        """Pass the tensor by way of the quantizer of this name if there is one."""
        if self.quantizers is None or name not in self.quantizers:
            return tensor
        result: Tensor = self.quantizers[name](tensor)
        return result

    def _forward_cores(self) -> list[Tensor]:
        """Return the cores that the forward pass uses."""
        cores = self.train_cores()
        if self.quantizers is not None:
            cores = [self._quantized(f"core_{k}", core) for k, core in enumerate(cores)]
        return cores

    def train(self, mode: bool = True) -> Self:
        """Set training mode as every module does, and forget merged factors.

        Parameters
        ----------
        mode : bool, default True
            False for evaluation.

        Returns
        -------
        Self
            This layer.
        """
        self._cache.clear()
        self._learning = False
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the parameters; merged factors are computed anew."""
        self._cache.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Give the cores the stored ranks before the values are copied."""
        stored = stored_list(state_dict, f"{prefix}cores.")
        shapes = [
            (t.shape[0], prod(t.shape[1:-1]), t.shape[-1]) if t.ndim >= 3 else tuple(t.shape)
            for t in stored
        ]
        bonds = stored_list(state_dict, f"{prefix}bonds.")
        fitting = len(stored) == len(self.cores) and all(
            t.shape[1:-1] == core.shape[1:-1] for t, core in zip(stored, self.cores, strict=True)
        )
        if fitting and self._misfit(shapes) is None:
            before = self.ranks
            for core, value in zip(self.cores, stored, strict=True):
                resize(core, value.shape)
            if self.ranks != before:
                forget_stale_moments(self)
            if len(bonds) == len(self.cores) - 1:
                for bond, value in zip(self.add_bonds(), bonds, strict=True):
                    resize(bond, value.shape)
            elif self.bonds is not None:  # reported as missing keys
                for bond, rank in zip(self.bonds, self.ranks[1:-1], strict=True):
                    resize(bond, (rank,))
            self._cores_changed()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def always_called(module: nn.Module, inputs: Any) -> None:
    """Do nothing: a layer with a hook has to be called.

    Parameters
    ----------
    module : Module
        Any layer.
    inputs : object
        Its arguments.
    """
