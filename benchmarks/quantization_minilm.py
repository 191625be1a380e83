"""MiniLM with 4, 3 and 2 bits per weight: how near its sentence vectors stay on other texts.

The 36 linear layers of the six blocks are quantized from 96 calibration sentences, with one step
(and zero) per output channel; embeddings and normalisations stay as they are. The figure is the
mean cosine between the sentence vectors (means of the hidden states) of the quantized model and of
the float32 one, over sentences of reviews and articles that no calibration sentence comes from.
Time is CPU time of calibration and quantization on one thread. Weights and sentences:
`benchmarks.nn_data`.

    python -m benchmarks.quantization_minilm [--seeds N] [--first-seed K]
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.nn_data import minilm, sentences, tokenized
from benchmarks.quantization_peers import quantize_by_peer
from tensoralg.nn import Calibrator, quantize

FIRST_SEED = 9000  # nothing was tuned on these
CALIBRATION, HELD_OUT, BATCH = 96, 256, 32
BITS = (4, 3, 2)
WANTED = {4: 0.97, 3: 0.92, 2: 0.70}
LAYERS = "blocks.*"

Batches = list[tuple[Tensor, Tensor]]
Quantizer = Callable[[nn.Module, Calibrator, int], object]


def _peer(method: str) -> Quantizer:
    """A peer with the calibrator's Gram matrices, one step and zero per channel."""

    def quantizer(model: nn.Module, calibrator: Calibrator, bits: int) -> object:
        return quantize_by_peer(model, calibrator, bits, method, symmetric=False)

    return quantizer


def _ours(model: nn.Module, calibrator: Calibrator, bits: int) -> object:
    """`quantize` as it comes."""
    return quantize(model, calibrator, bits, include=LAYERS)


METHODS: dict[str, Quantizer] = {
    "nearest": _peer("nearest"),
    "GPTQ, ranges of the weights": _peer("gptq"),
    "GPTQ, searched ranges": _peer("gptq-searched"),
    "ours": _ours,
}


@dataclass(frozen=True)
class Outcome:
    """Of one method, one number of bits and one seed."""

    cosine: float
    seconds: float


def batches(tokens: Tensor, lengths: Tensor) -> Batches:
    """Token ids with masks, sentences of like lengths together, no batch longer than needed."""
    made, order = [], lengths.argsort(stable=True)
    tokens, lengths = tokens[order], lengths[order]
    for ids, sizes in zip(tokens.split(BATCH), lengths.split(BATCH), strict=True):
        short = ids[:, : int(sizes.max())]
        made.append((short, short != 0))
    return made


def vectors(model: nn.Module, data: Batches) -> Tensor:
    """Sentence vectors (N, hidden)."""
    with torch.inference_mode():
        return torch.cat([model(*batch) for batch in data])


def encoder() -> nn.Module:
    """MiniLM whose output is the mean of a sentence's hidden states."""
    model = minilm(1)
    model.classifier = nn.Identity()  # type: ignore[assignment]
    return model.eval()


def split(texts: list[str], testing: np.ndarray, seed: int) -> tuple[Batches, Batches]:
    """Calibration and held-out batches, drawn by a seed."""
    draw = np.random.default_rng(seed)
    sides = []
    for side, count in ((~testing, CALIBRATION), (testing, HELD_OUT)):
        rows = draw.permutation(np.flatnonzero(side))[:count]
        sides.append(batches(*tokenized([texts[row] for row in rows])))
    return sides[0], sides[1]


def calibrated(model: nn.Module, data: Batches) -> Calibrator:
    """Gram matrices of the blocks' layers; padding does not count."""
    calibrator = Calibrator(model, mask=lambda batch: batch[1], include=LAYERS).run(data)
    calibrator.close()
    return calibrator


def quantized_copy(
    teacher: nn.Module, calibrator: Calibrator, method: Quantizer, bits: int
) -> tuple[nn.Module, float]:
    """Quantize a copy of a model; CPU seconds without those of the calibration."""
    model = copy.deepcopy(teacher)
    start = time.process_time()
    method(model, calibrator, bits)
    return model, time.process_time() - start


def compile_kernels() -> None:
    """Let the kernels be compiled (or read from disk) before anything is timed."""
    model = nn.Sequential(nn.Linear(8, 8))
    quantize(model, Calibrator(model).run([torch.eye(8)]), 4)


def table(results: dict[tuple[str, int], list[Outcome]], seeds: int) -> str:
    """Medians over seeds with their range."""
    lines = [
        "## MiniLM, sentence vectors",
        "",
        f"Mean cosine to float32 on {HELD_OUT} held-out sentences, {CALIBRATION} for calibration: "
        f"median over {seeds} seeds (lowest .. highest); CPU s of calibration and quantization.",
        "",
        "| method | " + " | ".join(f"{b} bits | CPU s" for b in BITS) + " |",
        "|---|" + "---|---|" * len(BITS),
    ]
    for name in METHODS:
        cells = []
        for bits in BITS:
            found = results[name, bits]
            cosines = [o.cosine for o in found]
            middle = statistics.median(cosines)
            cells.append(f"{middle:.3f} ({min(cosines):.3f} .. {max(cosines):.3f})")
            cells.append(f"{statistics.median(o.seconds for o in found):.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    reached = [
        f"{bits} bits {sum(o.cosine >= WANTED[bits] for o in results['ours', bits])} of {seeds}"
        for bits in BITS
    ]
    goals = " / ".join(f"{value:.2f}" for value in WANTED.values())
    return "\n".join([*lines, "", f"Ours at or above {goals}: " + ", ".join(reached) + "."])


def run(seeds: int = 3, first_seed: int = FIRST_SEED) -> str:
    """Measure and return a Markdown table."""
    torch.set_num_threads(1)
    compile_kernels()
    texts, _, testing = sentences()
    teacher = encoder()
    results: dict[tuple[str, int], list[Outcome]] = {}
    for seed in range(first_seed, first_seed + seeds):
        data, held_out = split(texts, testing, seed)
        goal = vectors(teacher, held_out)
        start = time.process_time()
        calibrator = calibrated(teacher, data)
        calibration = time.process_time() - start
        for bits in BITS:
            for name, method in METHODS.items():
                model, seconds = quantized_copy(teacher, calibrator, method, bits)
                cosines = functional.cosine_similarity(vectors(model, held_out), goal)
                found = Outcome(float(cosines.mean()), calibration + seconds)
                results.setdefault((name, bits), []).append(found)
                print(
                    f"# {seed} {bits} {name}: {found.cosine:.4f} {found.seconds:.1f} s", flush=True
                )
    return table(results, seeds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    print(run(arguments.seeds, arguments.first_seed))


if __name__ == "__main__":
    main()
