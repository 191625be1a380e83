"""Ranks that shrink while a network is trained, under one budget for all of its tensor trains."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.core.tensor_train_algebra import train_norm
from tensoralg.core.tensor_train_rounding import (
    allocate_ranks,
    bond_singular_values,
    check_tolerance,
    round_cores,
)
from tensoralg.core.validation import positive_integer
from tensoralg.nn.tensorized_layer import TensorizedLayer

__all__ = ["RankReport", "RankScheduler", "tensorized_layers"]

_logger = logging.getLogger("tensoralg.nn")


def tensorized_layers(model: nn.Module) -> dict[str, TensorizedLayer]:
    """Return the layers of a model whose weights are tensor trains, by name; a shared one once.

    Parameters
    ----------
    model : Module
        Any module, a layer itself included.

    Returns
    -------
    dict of str to TensorizedLayer
        In the model's order.

    Raises
    ------
    ValueError
        There is none.

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> list(tensorized_layers(nn.Sequential(nn.ReLU(), TTLinear(8, 8, rank=2))))
    ['1']
    """
    found = {n: m for n, m in model.named_modules() if isinstance(m, TensorizedLayer)}
    if not found:
        raise ValueError("model has no tensor-train layers; see tensoralg.nn.tensorize")
    return found


def check_finite(name: str, layer: TensorizedLayer) -> None:
    """Raise where a layer's ranks cannot be judged: all comparisons with NaN fail."""
    if not all(bool(torch.isfinite(value).all()) for value in layer._dependencies()):
        raise ValueError(
            f"the cores of layer {name!r} have NaN or infinite entries: training has diverged, "
            "and ranks cannot be chosen"
        )


@dataclass(frozen=True)
class RankReport:
    """What one rounding did.

    Attributes
    ----------
    ranks : dict of str to tuple of int
        The bonds of every layer afterwards, the ones at both ends included.
    errors : dict of str to float
        Relative change of every layer's weight in the Frobenius norm.
    parameters : int
        Numbers in all cores afterwards.
    """

    ranks: dict[str, tuple[int, ...]]
    errors: dict[str, float]
    parameters: int

    def __str__(self) -> str:
        lines = [f"{self.parameters} tensor-train parameters"]
        lines += [f"  {n}: ranks {r}, error {self.errors[n]:.3g}" for n, r in self.ranks.items()]
        return "\n".join(lines)


class RankScheduler:
    """Round all tensor-train layers of a model now and then; cores and moments really shrink.

    Parameters
    ----------
    model : Module
        With at least one tensor-train layer.
    optimizer : Optimizer, optional
        Its moments follow by the same maps as the cores.
    target_parameters : int, optional
        Numbers that all cores together may have at the end. The layers share it: again and again
        the singular value goes, of whatever bond of whatever layer, whose square relative to its
        layer's weight is the smallest for every number that its removal saves.
    rtol : float, optional
        Largest relative error, in the Frobenius norm, of each layer at each rounding.
    every : int, default 1
        A call of `step` out of how many rounds.
    roundings : int, default 1
        Roundings over which the budget shrinks, geometrically, from the present number of
        parameters to the target.

    Raises
    ------
    ValueError
        No tensor-train layers, neither a target nor a tolerance, or a target below the number
        of parameters at ranks 1.

    See Also
    --------
    CoMERAPenalty : ranks that shrink by a penalty on diagonal factors.

    Notes
    -----
    Rounding is that of [1]_: quasi-optimal, and the same whatever the gauge of the cores. After
    it, singular values are shared between neighbouring cores and all cores are of one size, so
    that one learning rate suits them.

    References
    ----------
    .. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011).

    Examples
    --------
    >>> from tensoralg.nn import TTLinear
    >>> model = nn.Sequential(TTLinear(64, 64, rank=16), nn.ReLU(), TTLinear(64, 10, rank=8))
    >>> scheduler = RankScheduler(model, target_parameters=600)
    >>> report = scheduler.step()
    >>> report.parameters <= 600
    True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        target_parameters: int | None = None,
        rtol: float | None = None,
        every: int = 1,
        roundings: int = 1,
    ) -> None:
        if target_parameters is None and rtol is None:
            raise ValueError("give target_parameters, rtol or both; got neither")
        rtol = check_tolerance(rtol)
        self._layers = tensorized_layers(model)
        least = sum(sum(layer.mode_sizes) for layer in self._layers.values())
        if target_parameters is not None:
            positive_integer("target_parameters", target_parameters)
            if target_parameters < least:
                raise ValueError(
                    f"target_parameters must be at least {least}, the number at ranks 1; "
                    f"got {target_parameters}"
                )
        self._optimizer = optimizer
        self._target = target_parameters
        self._rtol = rtol
        self._every = positive_integer("every", every)
        self._roundings = positive_integer("roundings", roundings)
        self._start = self.parameters
        self._calls = 0
        self._history: list[RankReport] = []

    @property
    def history(self) -> list[RankReport]:
        """What all roundings so far did, in order; `plot_ranks` draws it."""
        return list(self._history)

    @property
    def parameters(self) -> int:
        """Numbers in the cores of all layers."""
        return sum(layer.compressed_parameters for layer in self._layers.values())

    @property
    def budget(self) -> int | None:
        """Numbers that the next rounding leaves at most; None without a target."""
        if self._target is None:
            return None
        done = min(self._calls // self._every + 1, self._roundings) / self._roundings
        if done == 1.0:
            return self._target
        start = max(self._start, self._target)
        between: float = float(start) ** (1 - done) * float(self._target) ** done
        return max(self._target, round(between))

    @torch.no_grad()
    def step(self) -> RankReport | None:
        """Count a call, and round when it is the turn.

        Returns
        -------
        RankReport or None
            None when this call did not round.

        Raises
        ------
        ValueError
            A core is not finite; nothing is rounded.
        """
        budget = self.budget
        self._calls += 1
        if self._calls % self._every:
            return None
        for name, layer in self._layers.items():
            check_finite(name, layer)
        limits = self._limits(budget)
        errors = {}
        for name, layer in self._layers.items():
            errors[name] = self._round(layer, limits.get(name))
        ranks = {name: layer.ranks for name, layer in self._layers.items()}
        report = RankReport(ranks, errors, self.parameters)
        self._history.append(report)
        _logger.info("%s", report)
        return report

    def _limits(self, budget: int | None) -> dict[str, tuple[int, ...]]:
        """Largest ranks of every layer under the budget; none without one."""
        if budget is None or budget >= self.parameters:
            return {}
        spectra = []
        for layer in self._layers.values():
            values = [s.double().tolist() for s in bond_singular_values(_wide(layer))]
            norm = sum(s * s for s in values[0]) ** 0.5 if values else 0.0
            spectra.append([[s / (norm or 1.0) for s in bond] for bond in values])
        sizes = [layer.mode_sizes for layer in self._layers.values()]
        return dict(zip(self._layers, allocate_ranks(spectra, sizes, budget), strict=True))

    def _round(self, layer: TensorizedLayer, ranks: Sequence[int] | None) -> float:
        """Round one layer; the relative error. Nothing is touched where no rank changes."""
        before = _wide(layer)
        cores, maps = round_cores(before, rtol=self._rtol, ranks=ranks, balance=True)
        after = (1, *(core.shape[-1] for core in cores))
        if after == layer.ranks:
            return 0.0
        error = _relative_change(before, cores)
        layer.replace_cores(cores, optimizer=self._optimizer, maps=maps)
        return error

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on; the ranks are in the model's state."""
        history = [[r.ranks, r.errors, r.parameters] for r in self._history]
        return {"calls": self._calls, "start": self._start, "history": history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state.

        Parameters
        ----------
        state : dict
            Of `state_dict`.
        """
        self._calls, self._start = int(state["calls"]), int(state["start"])
        self._history = [RankReport(*entries) for entries in state.get("history", [])]


def _wide(layer: TensorizedLayer) -> list[Tensor]:
    """Return the cores in double precision: rounding is seldom, and squares are compared."""
    return [core.detach().double() for core in layer.train_cores()]


def _relative_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Compare a train with its rounding, a projection: the squared norms differ by the error's."""
    whole = train_norm(before)
    return max(0.0, 1.0 - (train_norm(after) / whole) ** 2) ** 0.5 if whole else 0.0
