"""Bits, and ranks, for every layer of a model under one budget of bytes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from tensoralg.core.validation import positive_integer
from tensoralg.nn.calibrator import Calibrator
from tensoralg.nn.grid_options import GridOptions
from tensoralg.nn.progress import tracked
from tensoralg.nn.quantization import quantize_unit
from tensoralg.nn.quantization_report import QuantizationRow
from tensoralg.nn.quantization_units import (
    Choice,
    QuantizationUnit,
    chosen_units,
    find_units,
    model_bytes,
)
from tensoralg.solvers.gram_coordinate_descent import CodesStart, EntryOrder
from tensoralg.solvers.quantization_grid import ScaleKind, number_of_bits

__all__ = ["BitAllocation", "Candidate", "allocate_bits"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to store a layer.

    Parameters
    ----------
    bits : int
        Of a code.
    rank : int or None
        Of two factors; None for one matrix.
    size_bytes : int
        Of codes and grids.
    loss : float
        Relative squared error of the outputs, times the layer's importance; the sum over the
        layers that share a weight.

    Examples
    --------
    >>> Candidate(4, None, 640, 0.01).choice
    4
    """

    bits: int
    rank: int | None
    size_bytes: int
    loss: float

    @property
    def choice(self) -> Choice:
        """As `quantize` takes it."""
        return self.bits if self.rank is None else (self.bits, self.rank)


@dataclass(frozen=True, eq=False)
class BitAllocation(Mapping[str, Choice]):
    """Bits by names of layers, as `quantize` takes them; printing it shows a table.

    Parameters
    ----------
    chosen : dict of str to Candidate
        For every layer that is to be quantized; of tied layers the first.
    candidates : dict of str to tuple of Candidate
        What there was to choose from.
    size_bytes : int
        What the whole model will take.

    Examples
    --------
    >>> best = Candidate(4, None, 640, 0.01)
    >>> allocation = BitAllocation({"head": best}, {"head": (best,)}, 768)
    >>> dict(allocation), allocation.loss
    ({'head': 4}, 0.01)
    """

    chosen: dict[str, Candidate]
    candidates: dict[str, tuple[Candidate, ...]]
    size_bytes: int

    def __getitem__(self, name: str) -> Choice:
        return self.chosen[name].choice

    def __iter__(self) -> Iterator[str]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def loss(self) -> float:
        """The sum over all layers."""
        return sum(candidate.loss for candidate in self.chosen.values())

    def __str__(self) -> str:
        lines = [("layer", "bits", "rank", "bytes", "error")]
        lines += [
            (
                name or "(the model)",
                str(one.bits),
                "" if one.rank is None else str(one.rank),
                f"{one.size_bytes:,}",
                f"{one.loss**0.5:.3f}",
            )
            for name, one in self.chosen.items()
        ]
        lines.append(("model", "", "", f"{self.size_bytes:,}", f"{self.loss**0.5:.3f}"))
        widths = [max(len(line[k]) for line in lines) for k in range(5)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if k else cell.ljust(width)
                for k, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )


def allocate_bits(
    model: nn.Module,
    calibrator: Calibrator,
    size_bytes: int,
    *,
    choices: Sequence[int] = (2, 3, 4, 8),
    ranks: Sequence[int] = (),
    importance: Mapping[str, float] | None = None,
    sweeps: int = 1,
    init: CodesStart = "gptq",
    scale: ScaleKind = "channel",
    group_size: int | None = None,
    order: EntryOrder = "greedy",
    symmetric: bool = False,
    correct_bias: bool = True,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    progress: bool = False,
) -> BitAllocation:
    """Choose bits for every layer so that a model fits into a number of bytes.

    Every layer is quantized in every way there is to choose from; from the smallest ways on, the
    bytes are then spent where they lower the error of the outputs most.

    Parameters
    ----------
    model : Module
        Is not changed.
    calibrator : Calibrator
        That saw data.
    size_bytes : int
        For the whole model after `quantize`: codes, grids, and what stays as it is.
    choices : sequence of int, default (2, 3, 4, 8)
        Numbers of bits to choose from.
    ranks : sequence of int, optional
        Ranks of factors that linear layers may become instead, with each of the `choices`.
    importance : mapping of str to float, optional
        Factors of layers' relative squared errors by name; 1 where there is none.
    sweeps : int, default 1
        Of the trials: fewer than `quantize` takes tell as much.
    init, scale, group_size, order, symmetric, correct_bias, include, exclude
        As for `quantize`, which is to be called with the same.
    progress : bool, default False
        Whether to show a bar on the standard error stream.

    Returns
    -------
    BitAllocation
        To be handed to `quantize` as its bits.

    Raises
    ------
    ValueError
        The smallest ways do not fit, the calibrator saw no data, or another wrong option.

    Notes
    -----
    The steps between ways on the lower convex hull of (bytes, error) are taken in the order of
    error per byte, as far as they fit; what is left is spent on the best single steps. The same
    bits for all layers are compared at the end.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    >>> calibrator = Calibrator(model).run([torch.randn(256, 64)])
    >>> allocation = allocate_bits(model, calibrator, 5000)
    >>> allocation.size_bytes <= 5000
    True
    """
    options = GridOptions(sweeps, init, scale, group_size, order, symmetric, correct_bias)
    budget = positive_integer("size_bytes", size_bytes)
    weights = dict(importance or {})
    if unknown := sorted(set(weights) - set(calibrator.names)):
        raise ValueError(f"importance must be named as calibrated layers; got {unknown}")
    if wrong := {name: value for name, value in weights.items() if not 0.0 <= value < math.inf}:
        raise ValueError(f"importance must be numbers of at least 0; got {wrong}")
    if not calibrator.seen:
        raise ValueError("the calibrator saw no data; run the model while it listens")
    ways = _ways(choices, ranks)
    units = find_units(model)
    units = chosen_units(units, calibrator, {"*": ways[0][0]}, include, exclude)
    calibrator.close()
    rest = model_bytes(model)
    candidates: dict[str, tuple[Candidate, ...]] = {}
    for unit in tracked(units, "try bits", show=progress):
        present, found = _candidates(unit, calibrator, ways, options, weights)
        rest -= present
        candidates[unit.name] = found
    chosen = spend_bytes(candidates, budget - rest)
    total = rest + sum(candidate.size_bytes for candidate in chosen.values())
    return BitAllocation(chosen, candidates, total)


def _ways(choices: Sequence[int], ranks: Sequence[int]) -> list[tuple[int, int | None]]:
    """List pairs of bits and rank, after a check."""
    numbers = [number_of_bits(bits) for bits in choices]
    if not numbers:
        raise ValueError("choices must have a number of bits")
    sizes = [None, *(positive_integer("rank", rank) for rank in ranks)]
    return [(bits, rank) for rank in sizes for bits in numbers]


def _candidates(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    ways: Sequence[tuple[int, int | None]],
    options: GridOptions,
    weights: Mapping[str, float],
) -> tuple[int, tuple[Candidate, ...]]:
    """Try all ways of one weight; with them the bytes that it takes now."""
    found, present = [], 0
    for bits, rank in ways:
        most = min(unit.weight.shape[:2])
        if rank is not None and (unit.is_tied or not unit.is_linear or rank >= most):
            continue
        unit.bits, unit.rank = bits, rank
        rows: dict[str, QuantizationRow] = {}
        quantize_unit(unit, calibrator, None, options, rows)
        present = sum(row.bytes_before for row in rows.values())
        loss = sum(weights.get(row.name, 1.0) * (row.error or 0.0) ** 2 for row in rows.values())
        size = sum(row.bytes_after for row in rows.values())
        found.append(Candidate(bits, rank, size, loss))
    return present, tuple(found)


def spend_bytes(candidates: Mapping[str, Sequence[Candidate]], budget: int) -> dict[str, Candidate]:
    """Choose one candidate for each name within a number of bytes.

    Parameters
    ----------
    candidates : mapping of str to sequence of Candidate
        What there is to choose from.
    budget : int
        Bytes for all.

    Returns
    -------
    dict of str to Candidate
        The choice.

    Raises
    ------
    ValueError
        The smallest ones do not fit.

    Examples
    --------
    >>> small, large = Candidate(2, None, 10, 0.5), Candidate(4, None, 20, 0.1)
    >>> chosen = spend_bytes({"a": [small, large], "b": [small, Candidate(4, None, 20, 0.4)]}, 30)
    >>> chosen["a"].bits, chosen["b"].bits
    (4, 2)
    """
    hulls = {name: _hull(found) for name, found in candidates.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(one.size_bytes for one in chosen.values())
    if left < 0:
        raise ValueError(
            f"size_bytes is {-left} bytes too small: the smallest ways to store the layers do not "
            "fit beside what stays as it is"
        )
    steps = [
        ((one.loss - two.loss) / (two.size_bytes - one.size_bytes), name, one, two)
        for name, hull in hulls.items()
        for one, two in pairwise(hull)
    ]
    for _, name, one, two in sorted(steps, key=lambda step: -step[0]):
        cost = two.size_bytes - one.size_bytes
        if chosen[name] is one and cost <= left:
            chosen[name], left = two, left - cost
    while (best := _best_step(candidates, chosen, left)) is not None:
        name, two = best
        left -= two.size_bytes - chosen[name].size_bytes
        chosen[name] = two
    alternatives = [chosen, *_uniform(candidates, budget)]
    return min(alternatives, key=lambda choice: sum(one.loss for one in choice.values()))


def _hull(found: Sequence[Candidate]) -> list[Candidate]:
    """Keep the lower convex hull of bytes and loss, the smallest first."""
    hull: list[Candidate] = []
    for one in sorted(found, key=lambda candidate: (candidate.size_bytes, candidate.loss)):
        if hull and one.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _slope(hull[-2], one) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(one)
    return hull


def _slope(one: Candidate, two: Candidate) -> float:
    """Loss that a byte saves."""
    return (one.loss - two.loss) / max(two.size_bytes - one.size_bytes, 1)


def _best_step(
    candidates: Mapping[str, Sequence[Candidate]], chosen: Mapping[str, Candidate], left: int
) -> tuple[str, Candidate] | None:
    """Find the single change that lowers the loss most and fits."""
    best, most = None, 0.0
    for name, found in candidates.items():
        for one in found:
            gain = chosen[name].loss - one.loss
            if gain > most and one.size_bytes - chosen[name].size_bytes <= left:
                best, most = (name, one), gain
    return best


def _uniform(
    candidates: Mapping[str, Sequence[Candidate]], budget: int
) -> Iterator[dict[str, Candidate]]:
    """Yield the choices of the same bits everywhere that fit."""
    for bits in {one.bits for found in candidates.values() for one in found}:
        choice = {
            name: one
            for name, found in candidates.items()
            for one in found
            if one.bits == bits and one.rank is None
        }
        fits = sum(one.size_bytes for one in choice.values()) <= budget
        if len(choice) == len(candidates) and fits:
            yield choice
