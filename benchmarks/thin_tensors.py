"""Verdicts on thin tensors: on the boundary of the completely positive cone, or just outside.

``python -m benchmarks.thin_tensors [--seed 7000] [--count 5] [--sizes 4,3 6,3] [--families half]``.
The answer is known by construction. Inside: sums of powers of few nonnegative vectors, most of
them on the boundary. Outside: such a sum A with a form p, nonnegative on the orthant,
``<p, A> = 0``, minus a small multiple of the uniform tensor or of a power e_i^(x)d, on both of
which p is positive.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from benchmarks.random_tensors import pushed_off
from tensoralg import SymmetricTensor
from tensoralg.completely_positive import Verdict, detect
from tensoralg.core.indices import number_of_multi_indices, rank_multi_indices
from tensoralg.solvers.moment_matrices import rehomogenize
from tensoralg.solvers.simplex_measure import uniform_moments

Array = NDArray[np.float64]
Generator = np.random.Generator

SIZES = ((4, 3), (4, 4), (5, 3), (5, 4), (6, 3), (6, 4))
_LIMIT = 120.0  # CPU seconds


def _rank(n: int, d: int) -> int:
    """Number of atoms of a generic tensor."""
    return -(-number_of_multi_indices(n, d) // n)


def _on_supports(r: int, n: int, rng: Generator) -> Array:
    """Atoms on random supports of two or three indices each; every index is met."""
    points = np.zeros((r, n))
    for s in range(r):
        support = rng.choice(n, int(rng.integers(2, 4)), replace=False)
        support[0] = s if s < n else support[0]
        points[s, support] = rng.uniform(0.2, 1.0, len(support))
    return points


def _on_few_supports(r: int, n: int, rng: Generator) -> Array:
    """Atoms on three common supports."""
    supports = np.array([rng.permutation(n)[: n - 1] for _ in range(3)])
    points = np.zeros((r, n))
    for s in range(r):
        support = supports[s % 3]
        points[s, support] = rng.uniform(0.1, 1.0, len(support))
    return points


def _halved(r: int, n: int, rng: Generator) -> Array:
    """Atoms with about half of their coordinates zero."""
    points = rng.exponential(size=(r, n)) * (rng.random((r, n)) < 0.5)
    points[np.arange(r), rng.integers(n, size=r)] += 0.1
    return points


def _integers(r: int, n: int, rng: Generator) -> Array:
    points = rng.integers(0, 4, (r, n)).astype(float)
    points[:, 0] += ~points.any(axis=1)
    return points


def _nearly_equal(r: int, n: int, rng: Generator) -> Array:
    """Pairs of atoms whose directions differ by 1e-2, 1e-4 or not at all."""
    points = rng.random((r, n))
    distances = rng.choice([0.0, 1e-4, 1e-2], (r, 1))
    copies = points * np.exp(distances * rng.standard_normal((r, n)))
    return np.concatenate([points, 0.7 * copies])


INSIDE: dict[str, Callable[[int, int, Generator], Array]] = {
    "dense, n atoms": lambda n, d, rng: rng.random((n, n)),
    "dense, 2 n atoms": lambda n, d, rng: rng.random((2 * n, n)),
    "dense, generic rank": lambda n, d, rng: rng.random((_rank(n, d), n)),
    "sparse, 2 n atoms": lambda n, d, rng: _on_supports(2 * n, n, rng),
    "sparse, 4 n atoms": lambda n, d, rng: _on_supports(4 * n, n, rng),
    "half zeros, 2 n atoms": lambda n, d, rng: _halved(2 * n, n, rng),
    "half zeros, 4 n atoms": lambda n, d, rng: _halved(4 * n, n, rng),
    "three supports, n + 3 atoms": lambda n, d, rng: _on_few_supports(n + 3, n, rng),
    "integers up to 3, 2 n atoms": lambda n, d, rng: _integers(2 * n, n, rng),
    "n nearly equal pairs": lambda n, d, rng: _nearly_equal(n, n, rng),
}


def _sum(points: Array, d: int) -> SymmetricTensor:
    return SymmetricTensor.from_decomposition(np.ones(len(points)), points, d)


def _less_uniform(n: int, d: int, rng: Generator) -> SymmetricTensor:
    """Few atoms, on which the square of a form (times x_1) vanishes, minus a multiple of U."""
    r = n - 1 if d == 3 else 2 * n - 1
    A = _sum(rng.random((r, n)) + 0.1, d)
    mass = float(A.contract(np.ones(n)))
    U = rehomogenize(uniform_moments(n - 1, d), n, d)
    return SymmetricTensor(A.entries - 10.0 ** rng.uniform(-5, -2) * mass * U, d, n)


def _less_corner(n: int, d: int, rng: Generator) -> SymmetricTensor:
    """At most n - 1 sparse atoms have a common index i: a linear form q vanishes on them.

    ``<x_i^(d-2) q^2, A> = 0``, and it is positive on e_i.
    """
    while True:
        points = np.concatenate([np.ones((1, n)), _on_supports(2 * n, n, rng)])
        i = int((points > 0).sum(axis=0).argmin())
        points[np.flatnonzero(points[:, i])[n - 1 :], i] = 0.0
        form = scipy.linalg.null_space(points[points[:, i] > 0])
        if np.linalg.norm(form[i]) > 0.1:
            break
    A = _sum(points, d)
    entries = A.entries.copy()
    entries[rank_multi_indices([i] * d, n)] -= 10.0 ** rng.uniform(-5, -2) * entries.max()
    return SymmetricTensor(entries, d, n)


def _horn(x: Array) -> Array:
    """Values of the Horn form in the first five coordinates, times the sixth."""
    horn = scipy.linalg.circulant([1.0, -1.0, 1.0, 1.0, -1.0])
    return np.asarray(((x[:, :5] @ horn) * x[:, :5]).sum(axis=1) * x[:, 5])


def _means(x: Array) -> Array:
    """Arithmetic minus geometric mean of three cubic monomials."""
    a, b, c = x[:, :3].T
    return np.asarray(a**2 * b + b**2 * c + c**2 * a - 3 * a * b * c)


def _less_points(
    form: Callable[[Array], Array], points: Array, removed: Array, d: int, rng: Generator
) -> SymmetricTensor:
    """Zeros of a form, minus a small multiple of points where it is positive; rescaled."""
    assert abs(form(points)).max() < 1e-12 < form(removed).min()
    weights = np.r_[np.ones(len(points)), np.full(len(removed), -(10.0 ** rng.uniform(-4, -2)))]
    scale = rng.uniform(0.5, 2.0, points.shape[1])
    every = np.concatenate([points, removed]) * scale
    return SymmetricTensor.from_decomposition(weights, every, d)


def _less_on_horn(n: int, d: int, rng: Generator) -> SymmetricTensor:
    points = np.zeros((4 * n, n))
    for s, point in enumerate(points[: 3 * n]):
        a, b, point[5] = rng.uniform(0.2, 1.0, 3)
        point[[s % 5, (s + 1) % 5, (s + 2) % 5]] = a, a + b, b
    points[3 * n :, :5] = rng.random((n, 5))
    return _less_points(_horn, points, np.eye(n)[:5] + np.eye(n)[5], d, rng)


def _less_on_means(n: int, d: int, rng: Generator) -> SymmetricTensor:
    points = rng.uniform(0.2, 1.0, (3 * n, n))
    points[:, 1:3] = points[:, :1]
    points[2 * n :, :3] *= np.eye(3)[np.arange(n) % 3]
    removed = np.zeros((3, n))
    removed[:, :3] = 1 - np.eye(3)
    return _less_points(_means, points, removed, d, rng)


def _less_minor(n: int, d: int, rng: Generator) -> SymmetricTensor:
    share = 10.0 ** rng.uniform(-5, -2)
    return pushed_off(_sum(_on_supports(2 * n, n, rng), d), share, rng)


OUTSIDE: dict[str, Callable[[int, int, Generator], SymmetricTensor]] = {
    "few dense atoms minus 1e-5..1e-2 U": _less_uniform,
    "sparse minus 1e-5..1e-2 of a corner": _less_corner,
    "sparse, a 2x2 minor violated": _less_minor,
    "zeros of a difference of means, minus 1e-4..1e-2 of others": _less_on_means,
    "zeros of a Horn form, minus 1e-4..1e-2 of others": _less_on_horn,
}


def cases(
    sizes: Iterable[tuple[int, int]], families: Sequence[str], seeds: Sequence[int]
) -> Iterable[tuple[str, int, int, int, SymmetricTensor]]:
    """Yield family, n, d, seed and tensor."""
    for number, family in enumerate([*INSIDE, *OUTSIDE]):
        if families and not any(word in family for word in families):
            continue
        for n, d in sizes:
            if OUTSIDE.get(family) is _less_on_horn and n < 6:
                continue
            for seed in seeds:
                rng = np.random.default_rng([seed, n, d, number])
                inside = family in INSIDE
                A = _sum(INSIDE[family](n, d, rng), d) if inside else OUTSIDE[family](n, d, rng)
                yield family, n, d, seed, A


def run(
    seed: int = 7000,
    count: int = 5,
    sizes: Sequence[tuple[int, int]] = SIZES,
    families: Sequence[str] = (),
    verbose: bool = False,
) -> str:
    """Table of verdicts and CPU seconds by family and size; raises when a verdict is wrong."""
    cells: dict[tuple[str, int, int], list[tuple[bool, float]]] = {}
    for family, n, d, s, A in cases(sizes, families, range(seed, seed + count)):
        begin = time.process_time()
        found = detect(A)
        seconds = time.process_time() - begin
        inside = family in INSIDE
        wrong = Verdict.NOT_COMPLETELY_POSITIVE if inside else Verdict.COMPLETELY_POSITIVE
        proven = found.certificate is None or found.certificate.verify()
        if found.verdict is wrong or not proven:
            raise AssertionError(f"{family}, n={n}, d={d}, seed {s}: {found.verdict} is wrong")
        decided = found.verdict is not Verdict.UNDECIDED
        cells.setdefault((family, n, d), []).append((decided, seconds))
        if verbose and (not decided or seconds > 5):
            print(f"{family} n={n} d={d} seed {s}: {seconds:.1f} s: {found.message}\n", flush=True)
    late = sum(not ok or t > _LIMIT for cell in cells.values() for ok, t in cell)
    return "\n".join(
        [
            f"## Thin tensors, seeds {seed} .. {seed + count - 1}: none wrong, {late} undecided or "
            f"later than {_LIMIT:.0f} s",
            "",
            "Decided; median and largest CPU seconds.",
            "",
            "| family | " + " | ".join(f"n={n} d={d}" for n, d in sizes) + " |",
            "|---" * (1 + len(sizes)) + "|",
            *_rows(cells, sizes),
            "",
        ]
    )


def _rows(
    cells: dict[tuple[str, int, int], list[tuple[bool, float]]], sizes: Sequence[tuple[int, int]]
) -> list[str]:
    """One row for each family, one column for each size."""
    rows = []
    for family in dict.fromkeys(family for family, _, _ in cells):
        row = [family]
        for n, d in sizes:
            cell = cells.get((family, n, d), [])
            seconds = [t for _, t in cell]
            decided = f"{sum(ok for ok, _ in cell)}/{len(cell)}"
            row.append(f"{decided}; {np.median(seconds):.2f}, {max(seconds):.1f}" if cell else "-")
        rows.append(f"| {' | '.join(row)} |")
    return rows


def _size(text: str) -> tuple[int, int]:
    n, d = text.split(",")
    return int(n), int(d)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=7000)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--sizes", type=_size, nargs="*", default=SIZES, metavar="n,d")
    parser.add_argument("--families", nargs="*", default=(), help="words of their names")
    parser.add_argument("--verbose", action="store_true", help="print what is slow or undecided")
    chosen = parser.parse_args()
    print(run(chosen.seed, chosen.count, chosen.sizes, chosen.families, chosen.verbose))


if __name__ == "__main__":
    main()
