"""MNIST-5k: how small a network of tensor trains becomes, and what it still gets right.

    python -m benchmarks.nn_mnist [--seeds N]

784-512-512-10, one setting for all seeds: 4,000 digits to learn from and 1,000 to test, by the
seed; AdamW, one cycle of the learning rate, batches of 50. All rows but the first have the same
augmentation: shifts of up to two pixels, turns of up to ten degrees, sizes within ten percent.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.nn_data import mnist
from tensoralg.nn import CoMERAPenalty, RankScheduler, TTLinear
from tensoralg.nn.training import accuracy, evaluate, fit

FIRST_SEED = 9000  # nothing was tuned on these
BATCH, EPOCHS, TARGET, RANK = 50, 40, 10_000, 30
RATES = {"dense": 1e-3, "trains": 5e-3, "bonds": 2e-2}
PIXELS, HIDDEN = (4, 7, 7, 4), (8, 8, 8)


class Digits:
    """Shuffled batches, augmented or not, drawn from torch's global generator."""

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return -(-len(self.labels) // BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.labels)).split(BATCH):
            images = self.images[rows]
            yield (moved(images) if self.augment else images), self.labels[rows]


def moved(images: Tensor) -> Tensor:
    """Every image shifted, turned and resized a little."""
    count = len(images)
    draws = torch.rand(count, 4) * 2 - 1
    angle, size = draws[:, 0] * math.radians(10), torch.exp(0.1 * draws[:, 1])
    cosine, sine = torch.cos(angle) * size, torch.sin(angle) * size
    shift = draws[:, 2:] * 2 / 14  # two pixels of 28, which reach from -1 to 1
    maps = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], 1).view(-1, 2, 3)
    square = images.view(count, 1, 28, 28)
    places = nn.functional.affine_grid(maps, list(square.shape), align_corners=False)
    return nn.functional.grid_sample(square, places, align_corners=False).view(count, 784)


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def trains() -> nn.Module:
    return nn.Sequential(
        TTLinear(784, 512, rank=RANK, in_shape=PIXELS, out_shape=HIDDEN),
        nn.ReLU(),
        TTLinear(512, 512, rank=RANK, in_shape=HIDDEN, out_shape=HIDDEN),
        nn.ReLU(),
        TTLinear(512, 10, rank=RANK, in_shape=HIDDEN, out_shape=(10,)),
    )


def optimizer_and_schedule(
    groups: list[dict[str, Any]], steps: int
) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW with one cycle of its rates."""
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    rates = [group["lr"] for group in groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, pct_start=0.1)
    return optimizer, cycle


def plain(model: nn.Module, data: Digits, rate: float, *, target: int | None = None) -> None:
    """Train; with a target, round after each of the first fifteen epochs."""
    group = {"params": list(model.parameters()), "lr": rate}
    optimizer, cycle = optimizer_and_schedule([group], EPOCHS * len(data))
    scheduler = None
    if target is not None:
        scheduler = RankScheduler(
            model, optimizer=optimizer, target_parameters=target, roundings=15
        )
    fit(model, data, optimizer, epochs=EPOCHS, schedule=cycle, rank_scheduler=scheduler)


class Pruning:
    """CoMERA's pruning in the place of a rank scheduler."""

    def __init__(self, penalty: CoMERAPenalty, optimizer: torch.optim.Optimizer) -> None:
        self.penalty, self.optimizer = penalty, optimizer

    def step(self) -> None:
        self.penalty.prune(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def comera(model: nn.Module, data: Digits) -> None:
    """Both stages with pruning after every epoch, then the pruned network alone."""
    penalty = CoMERAPenalty(model, gamma=0.3, beta=0.05, weights=(1.0, 4.0), threshold=0.05)
    bonds = penalty.bond_parameters()
    known = {id(bond) for bond in bonds}
    others = [p for p in model.parameters() if id(p) not in known]
    groups = [
        {"params": others, "lr": RATES["trains"]},
        {"params": bonds, "lr": RATES["bonds"], "weight_decay": 0.0},
    ]
    early, late, after = 5, 20, EPOCHS - 25
    optimizer, cycle = optimizer_and_schedule(groups, (early + late) * len(data))
    pruning = Pruning(penalty, optimizer)
    options = {"schedule": cycle, "rank_scheduler": pruning, "penalty": penalty}
    fit(model, data, optimizer, epochs=early, **options)
    penalty.aim(loss=0.2, size=0.1)
    fit(model, data, optimizer, epochs=late, **options)
    penalty.finish(optimizer)
    group = {"params": list(model.parameters()), "lr": RATES["trains"]}
    optimizer, cycle = optimizer_and_schedule([group], after * len(data))
    fit(model, data, optimizer, epochs=after, schedule=cycle)


Train = Callable[[nn.Module, Digits], None]
ROWS: dict[str, tuple[Callable[[], nn.Module], bool, Train]] = {
    "dense, not augmented": (dense, False, lambda m, d: plain(m, d, RATES["dense"])),
    "dense": (dense, True, lambda m, d: plain(m, d, RATES["dense"])),
    f"trains of rank {RANK}": (trains, True, lambda m, d: plain(m, d, RATES["trains"])),
    f"RankScheduler, {TARGET} parameters": (
        trains, True, lambda m, d: plain(m, d, RATES["trains"], target=TARGET)),
    "CoMERAPenalty, both stages": (trains, True, comera),
}  # fmt: skip


def weights(model: nn.Module) -> int:
    """Numbers in the weights or cores, biases left out."""
    return sum(p.numel() for n, p in model.named_parameters() if not n.endswith("bias"))


def race(name: str, seed: int) -> tuple[float, int, float]:
    """Test accuracy, numbers in the weights, CPU seconds."""
    make, augment, train = ROWS[name]
    images, labels, test_images, test_labels = mnist(seed)
    torch.manual_seed(seed)
    model = make()
    start = time.process_time()
    train(model, Digits(images, labels, augment=augment))
    seconds = time.process_time() - start
    share = evaluate(model, [(test_images, test_labels)], {"accuracy": accuracy})["accuracy"]
    return share, weights(model), seconds


def run(seeds: int = 3, names: tuple[str, ...] = ()) -> str:
    """Measure and return a Markdown table."""
    torch.set_num_threads(1)
    lines = [
        f"{seeds} seeds from {FIRST_SEED}; accuracy on 1,000 digits:",
        "",
        "| network | accuracy, median | all seeds | weights or cores | CPU s |",
        "|---|---|---|---|---|",
    ]
    for name in names or ROWS:
        runs = [race(name, FIRST_SEED + k) for k in range(seeds)]
        shares, counts, seconds = zip(*runs, strict=True)
        every = ", ".join(f"{share:.3f}" for share in shares)
        count = ", ".join(str(c) for c in dict.fromkeys(counts))
        lines.append(
            f"| {name} | {statistics.median(shares):.3f} | {every} | {count} "
            f"| {statistics.median(seconds):.0f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    print(run(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
