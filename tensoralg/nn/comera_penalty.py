"""CoMERA's objective: the loss, the size of the trains as diagonal factors see it, a gauge term.

Every inner bond k of a layer carries a diagonal matrix D_k. The number of parameters is
``S = sum_k n_k |D_{k-1}|_0 |D_k|_0`` over the cores, its surrogate S^ has l1 norms in the place of
the counts [1]_. Both are divided by S at the start, and the sum of squares of the cores by its own
value at the start, so that no weight depends on the sizes of the layers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn.rank_scheduler import check_finite, tensorized_layers
from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["CoMERAPenalty"]


class CoMERAPenalty:
    """Loss plus size, in CoMERA's two stages, and the pruning that makes the cores smaller.

    Creating it puts a diagonal factor (`bonds`, ones) on every inner bond of every tensor-train
    layer: do so before the optimizer is made. Early stage: ``L + gamma S^ + beta |G|^2``. Late
    stage, from `aim` on: with the utopia point (L0, S0), ``L + rho (L + S^) + beta |G|^2`` is
    minimised where ``w1 (L - L0) >= w2 (S - S0)``, otherwise ``S^ + rho (L + S^) + beta |G|^2``.

    Parameters
    ----------
    model : Module
        With at least one tensor-train layer.
    gamma : float, default 0.1
        Weight of the size in the early stage.
    beta : float, default 0.01
        Weight of the cores' squares. Without it D could shrink and G grow for ever: the weight
        would stay the same.
    rho : float, default 0.1
        Weight of the sum in the late stage.
    weights : pair of float, default (1.0, 1.0)
        w1 and w2 of the late stage.
    threshold : float, default 0.02
        An index of a bond is pruned where its term ``|D_j| |left slice| |right slice|`` is below
        this share of the largest one. The share does not depend on the gauge of the cores.

    Raises
    ------
    ValueError
        No tensor-train layers, or a negative or non-finite weight.

    See Also
    --------
    RankScheduler : ranks that shrink by rounding, under one budget.

    References
    ----------
    .. [1] Z. Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive
       Tensor Optimization", NeurIPS 2024, arXiv:2405.14377, section 3.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> layer = TTLinear(16, 16, rank=4, in_shape=(4, 4), out_shape=(4, 4))
    >>> penalty = CoMERAPenalty(layer, gamma=0.5, beta=0.25)
    >>> penalty(torch.tensor(1.0)).item()
    1.75
    >>> with torch.no_grad():
    ...     layer.bonds[1][2:] = 0.0  # two of four indices of the middle bond
    >>> penalty.size(), penalty.prune()
    (0.6, 96)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        gamma: float = 0.1,
        beta: float = 0.01,
        rho: float = 0.1,
        weights: tuple[float, float] = (1.0, 1.0),
        threshold: float = 0.02,
    ) -> None:
        numbers = {"gamma": gamma, "beta": beta, "rho": rho, "threshold": threshold}
        numbers |= {f"weights[{k}]": weight for k, weight in enumerate(weights)}
        for name, value in numbers.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number of at least 0; got {value}")
        if len(weights) != 2:
            raise ValueError(f"weights must be a pair, w1 and w2; got {weights}")
        if threshold >= 1:
            raise ValueError(f"threshold must be a share below 1; got {threshold}")
        self._layers = tensorized_layers(model)
        self._gamma, self._beta, self._rho = gamma, beta, rho
        self._weights, self._threshold = weights, threshold
        self._utopia: tuple[float, float] | None = None
        for layer in self._layers.values():
            layer.add_bonds()
        with torch.no_grad():
            self._initial_size = float(self.parameters)
            self._initial_squares = float(self._squares()) or 1.0

    def __call__(self, loss: Tensor) -> Tensor:
        """Return what this stage minimises.

        Parameters
        ----------
        loss : Tensor, shape ()
            Of a batch.

        Returns
        -------
        Tensor, shape ()
            Differentiable in the loss, the cores and the bonds; without a branch that would have
            to read a value back from a device.
        """
        surrogate = self._surrogate() / self._initial_size
        gauge = self._beta * self._squares() / self._initial_squares
        if self._utopia is None:
            return loss + self._gamma * surrogate + gauge
        least_loss, least_size = self._utopia
        excess_loss = self._weights[0] * (loss.detach() - least_loss)
        excess_size = self._weights[1] * (self._counted() / self._initial_size - least_size)
        leading = torch.where(excess_loss >= excess_size, loss, surrogate)
        return leading + self._rho * (loss + surrogate) + gauge

    def aim(self, loss: float, size: float) -> None:
        """Begin the late stage: come as close as possible to a loss and a size at once.

        Parameters
        ----------
        loss : float
            L0, the best loss that training for the loss alone would reach.
        size : float
            S0, the wanted part of the number of parameters at the start, 0 to 1.

        Raises
        ------
        ValueError
            `loss` is not finite or `size` not a part.
        """
        if not (abs(loss) < float("inf") and 0 <= size <= 1):
            raise ValueError(
                f"loss must be finite and size lie in 0 .. 1; got loss={loss}, size={size}"
            )
        self._utopia = float(loss), float(size)

    @property
    def stage(self) -> str:
        """Either "early" or "late"."""
        return "early" if self._utopia is None else "late"

    @property
    def parameters(self) -> int:
        """Numbers that the cores have in fact; pruning makes it smaller."""
        return sum(layer.compressed_parameters for layer in self._layers.values())

    @torch.no_grad()
    def size(self) -> float:
        """Return S as a part of its value at the start, counting what `prune` would keep."""
        return float(self._counted()) / self._initial_size

    def bond_parameters(self) -> list[nn.Parameter]:
        """Return the diagonal factors; they are learnt best at ten times the cores' rate."""
        return [bond for layer in self._layers.values() for bond in layer.bonds or ()]

    @torch.no_grad()
    def prune(self, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Cut the indices off that have become small; cores, bonds and moments shrink.

        Parameters
        ----------
        optimizer : Optimizer, optional
            Its moments of what is left are kept.

        Returns
        -------
        int
            The number of tensor-train parameters that are left.

        Raises
        ------
        ValueError
            A core or a bond is not finite; that layer and those after it are left as they are.
        """
        for name, layer in self._layers.items():
            check_finite(name, layer)
            kept = [mask.nonzero()[:, 0] for mask in self._kept(layer)]
            if any(len(k) < r for k, r in zip(kept, layer.ranks[1:-1], strict=True)):
                _select(layer, kept, optimizer)
        return self.parameters

    def finish(self, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Prune, and multiply the diagonal factors into the cores.

        Parameters
        ----------
        optimizer : Optimizer, optional
            As for `prune`; its moments of the cores follow the factors, those of the bonds go.

        Returns
        -------
        int
            The number of tensor-train parameters.
        """
        self.prune(optimizer)
        for layer in self._layers.values():
            layer.absorb_bonds(optimizer=optimizer)
        return self.parameters

    def state_dict(self) -> dict[str, Any]:
        """Return the stage and the sizes at the start."""
        utopia = list(self._utopia) if self._utopia is not None else None
        start = [self._initial_size, self._initial_squares]
        return {"utopia": utopia, "start": start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state.

        Parameters
        ----------
        state : dict
            Of `state_dict`.
        """
        self._utopia = tuple(state["utopia"]) if state["utopia"] is not None else None
        self._initial_size, self._initial_squares = state["start"]

    def _squares(self) -> Tensor:
        """Sum the squares of all cores."""
        terms = [c.square().sum() for layer in self._layers.values() for c in layer.cores]
        return torch.stack([term.to(terms[0]) for term in terms]).sum()

    def _surrogate(self) -> Tensor:
        """Compute S^: l1 norms in the place of the counts."""
        sizes = [
            _size([bond.abs().sum() for bond in layer.bonds or ()], layer)
            for layer in self._layers.values()
        ]
        return torch.stack([size.to(sizes[0]) for size in sizes]).sum()

    def _counted(self) -> Tensor:
        """Compute S with the indices that `prune` would keep."""
        sizes = [
            _size([mask.sum() for mask in self._kept(layer)], layer)
            for layer in self._layers.values()
        ]
        return torch.stack([size.to(sizes[0]) for size in sizes]).sum()

    @torch.no_grad()
    def _kept(self, layer: TensorizedLayer) -> list[Tensor]:
        """Mark for every bond the indices whose terms are not small beside the largest one."""
        masks = []
        cores = [core.reshape(core.shape[0], -1, core.shape[-1]) for core in layer.cores]
        for k, bond in enumerate(layer.bonds or ()):
            left = torch.linalg.vector_norm(cores[k], dim=(0, 1))
            right = torch.linalg.vector_norm(cores[k + 1], dim=(1, 2))
            terms = bond.abs() * left * right
            # a bond of zeros keeps one index
            first = torch.arange(len(terms), device=terms.device) == terms.argmax()
            masks.append((terms > self._threshold * terms.max()) | first)
        return masks


def _size(counts: list[Tensor], layer: TensorizedLayer) -> Tensor:
    """Sum ``n_k count_{k-1} count_k`` over the cores of a layer; ones at both ends."""
    like = layer.cores[0]
    one = torch.ones((), dtype=like.dtype, device=like.device)
    if layer.bonds is None:  # absorbed
        return one * layer.compressed_parameters
    ends = [one, *(count.to(like.dtype) for count in counts), one]
    terms = [n * a * b for n, a, b in zip(layer.mode_sizes, ends[:-1], ends[1:], strict=True)]
    return torch.stack(terms).sum()


def _select(
    layer: TensorizedLayer, kept: list[Tensor], optimizer: torch.optim.Optimizer | None
) -> None:
    """Keep these indices of every bond, and what the optimizer remembers of them."""
    bonds = list(layer.bonds or ())
    values = [bond.detach()[k] for bond, k in zip(bonds, kept, strict=True)]
    remembered = [_selected_state(optimizer, bond, k) for bond, k in zip(bonds, kept, strict=True)]
    whole = [torch.zeros(1, dtype=torch.int64, device=layer.cores[0].device)]
    ends = [*whole, *kept, *whole]
    cores, maps = [], []
    for core, rows, columns in zip(layer.cores, ends[:-1], ends[1:], strict=True):
        flat = core.detach().reshape(core.shape[0], -1, core.shape[-1])
        cores.append(flat[rows][:, :, columns])
        identity = [torch.eye(n, dtype=core.dtype, device=core.device) for n in
                    (core.shape[0], core.shape[-1])]  # fmt: skip
        maps.append((identity[0][rows], identity[1][:, columns]))
    layer.replace_cores(cores, optimizer=optimizer, maps=maps, bonds=values)
    for bond, state in zip(bonds, remembered, strict=True):
        if optimizer is not None and state:
            optimizer.state[bond] = state


def _selected_state(
    optimizer: torch.optim.Optimizer | None, bond: Tensor, kept: Tensor
) -> dict[str, Any]:
    """Select what an optimizer remembers of a bond."""
    if optimizer is None or not (state := optimizer.state.get(bond)):
        return {}
    return {
        name: value[kept] if torch.is_tensor(value) and value.shape == bond.shape else value
        for name, value in state.items()
    }
