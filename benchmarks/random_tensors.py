"""Verdicts on random tensors whose answer is known by construction; none may be wrong.

``python -m benchmarks.random_tensors [--count 2000] [--seed 9000]``. Half of the tensors are sums
of powers of sparse nonnegative vectors: completely positive. The other half are such sums moved
off the cone: a diagonal entry is lowered until ``<(x_i - x_j)^2 x_i^(d-2), A>`` is negative by a
known share of the largest entry, so that no nonnegative vectors can rebuild them. Half of those of
dimension 5 and order 2 are sums of zeros of Horn's form with a diagonal entry lowered: Horn's form
is negative on them, while most are doubly nonnegative, so that it takes a relaxation to see it.
"""

import argparse
import time
from collections import Counter

import numpy as np

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import Verdict, detect
from tensoralg.core.indices import rank_multi_indices

SIZES = ((2, 2), (2, 3), (2, 4), (2, 5), (3, 2), (3, 3), (3, 4), (4, 2), (4, 3), (5, 2), (5, 3))


def sum_of_powers(dimension: int, order: int, rng: np.random.Generator) -> SymmetricTensor:
    """A completely positive tensor of up to 3 n sparse terms, never zero."""
    terms = int(rng.integers(1, 3 * dimension + 1))
    points = rng.random((terms, dimension)) * (rng.random((terms, dimension)) < 0.7)
    points[0, rng.integers(dimension)] += 0.1
    return SymmetricTensor.from_decomposition(np.ones(terms), points, order)


def pushed_off(tensor: SymmetricTensor, share: float, rng: np.random.Generator) -> SymmetricTensor:
    """The tensor with a diagonal entry lowered: a nonnegative form becomes negative on it."""
    d, n = tensor.order, tensor.dimension
    i, j = (int(k) for k in rng.choice(n, 2, replace=False))
    value = tensor[(i,) * d] - 2 * tensor[(i,) * (d - 1) + (j,)] + tensor[(i,) * (d - 2) + (j, j)]
    entries = tensor.entries.copy()
    entries[rank_multi_indices([i] * d, n)] -= value + share * np.abs(entries).max()
    return SymmetricTensor(entries, d, n)


def beyond_horn(share: float, rng: np.random.Generator) -> SymmetricTensor:
    """A matrix on which Horn's form is negative by a share of the largest entry."""
    points, where = np.zeros((12, 5)), rng.integers(5, size=12)
    part = rng.random(12)
    for k, values in enumerate((part, np.ones(12), 1 - part)):  # zeros of the form
        points[np.arange(12), (where + k) % 5] = values
    tensor = SymmetricTensor.from_decomposition(rng.uniform(0.1, 1.1, 12), points, 2)
    entries = tensor.entries.copy()
    i = int(rng.integers(5))
    entries[rank_multi_indices([i, i], 5)] -= share * entries.max()
    return SymmetricTensor(entries, 2, 5)


def run(count: int = 2000, seed: int = 9000) -> str:
    """Table of verdicts by construction and size; raises when one is wrong."""
    rng = np.random.default_rng(seed)
    verdicts: Counter[tuple[bool, str]] = Counter()
    seconds, relaxations = [], 0
    for trial in range(count):
        dimension, order = SIZES[trial % len(SIZES)]
        tensor, inside = sum_of_powers(dimension, order, rng), trial % 2 == 0
        if not inside:
            tensor = pushed_off(tensor, 10.0 ** rng.uniform(-6, 0), rng)
            if (dimension, order) == (5, 2) and rng.random() < 0.5:
                tensor = beyond_horn(10.0 ** rng.uniform(-5, -1), rng)
        begin = time.process_time()
        found = detect(tensor)
        seconds.append(time.process_time() - begin)
        verdicts[inside, found.verdict.value] += 1
        relaxations += found.relaxation_order is not None
        wrong = Verdict.NOT_COMPLETELY_POSITIVE if inside else Verdict.COMPLETELY_POSITIVE
        proven = found.certificate is None or found.certificate.verify()
        if found.verdict is wrong or not proven:
            raise AssertionError(f"trial {trial} of seed {seed}: {found.verdict} is wrong")
    rows = [
        f"| {'completely positive' if inside else 'moved off the cone'} | {verdict} | {number} |"
        for (inside, verdict), number in sorted(verdicts.items())
    ]
    return "\n".join(
        [
            f"## Verdicts on {count} random tensors, none of them wrong",
            "",
            "| built as | verdict | number |",
            "|---|---|---|",
            *rows,
            "",
            f"CPU seconds: median {np.median(seconds):.3f}, largest {max(seconds):.1f}. "
            f"{relaxations} of the tensors needed a relaxation.",
            "",
        ]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=9000)
    chosen = parser.parse_args()
    print(run(chosen.count, chosen.seed))


if __name__ == "__main__":
    main()
