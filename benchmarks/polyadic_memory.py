"""Memory of polyadic decompositions: tensors in memory, and one that does not fit there.

    python -m benchmarks.polyadic_memory [--mapped-size N] [--directory DIR]

Every case runs in a process of its own, on low-rank data with noise, after a small decomposition
that compiles what is needed. Peaks are those of the resident memory, from the moment at which the
tensor is there. Pages of a memory-mapped file count while they are resident.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.moment_pass import own_peak
from benchmarks.polyadic_problems import fresh_peak

RANK, NOISE, SEED = 10, 0.1, 9000
SHAPE = (400, 400, 300)  # 192 MB in float32
SHAPE_4 = (120, 110, 70, 52)
WANTED = 1.5  # times the tensor
MAPPED_SIZE, MAPPED_LIMIT = 1000, 1.5  # entries along each mode, GB of resident memory
MARGIN = 2e9  # bytes of the disk that stay free

Fill = Callable[[Any], None]


def fill(out: Any) -> None:
    """Write a tensor of RANK terms and noise, slab by slab along the first mode."""
    rng = np.random.default_rng(SEED)
    factors = [rng.standard_normal((n, RANK)).astype(np.float32) for n in out.shape]
    columns = factors[-1]
    for factor in factors[-2:0:-1]:
        columns = (factor[:, None, :] * columns[None, :, :]).reshape(-1, RANK)
    noise = np.float32(NOISE * np.sqrt(RANK))
    step = max(1, 2**24 // len(columns))
    for start in range(0, out.shape[0], step):
        slab = factors[0][start : start + step] @ columns.T
        slab += noise * rng.standard_normal(slab.shape, dtype=np.float32)
        out[start : start + step] = slab.reshape(-1, *out.shape[1:])


def options_of(case: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Keywords of `decompose` in a case."""
    table: dict[str, dict[str, Any]] = {
        "default": {},
        "default, 3 starts": {"n_starts": 3},
        "default, columns first": {},
        "als": {"method": "als", "max_iter": 10},
        "als from singular vectors": {"method": "als", "init": "svd", "max_iter": 10},
        "als, columns first": {"method": "als", "max_iter": 10},
        "nonnegative": {"nonnegative": True, "max_iter": 10},
        "sgd": {"method": "sgd", "max_iter": 5},
        "bfloat16": {"precision": "bfloat16", "max_iter": 10},
        "int8": {"precision": "int8", "max_iter": 10},
        "large entries (1e30)": {},
        "mask, half observed": {"max_iter": 10},
        "mask, one in twenty": {"max_iter": 10},
    }
    return table[case]


CASES = (
    ("default", SHAPE),
    ("default, 3 starts", SHAPE),
    ("default, columns first", SHAPE),
    ("default", SHAPE_4),
    ("als", SHAPE),
    ("als", SHAPE_4),
    ("als, columns first", SHAPE),
    ("als from singular vectors", SHAPE),
    ("nonnegative", SHAPE),
    ("sgd", SHAPE),
    ("bfloat16", SHAPE),
    ("int8", SHAPE),
    ("large entries (1e30)", SHAPE),
    ("mask, half observed", SHAPE),
    ("mask, one in twenty", SHAPE),
)


def tensor_of(case: str, shape: tuple[int, ...]) -> tuple[Any, dict[str, Any]]:
    """The tensor of a case and the keywords of its decomposition, mask included."""
    options = dict(options_of(case, shape))
    X = np.empty(shape, dtype=np.float32, order="F" if "columns" in case else "C")
    fill(X)
    if "1e30" in case:
        X *= np.float32(1e30)
    if "mask" in case:
        share = 0.5 if "half" in case else 0.05
        mask = np.empty(shape, dtype=bool)
        rng = np.random.default_rng(SEED)
        for plane in mask:
            plane[...] = rng.random(plane.shape, dtype=np.float32) < share
        options["mask"] = mask
    return X, options


def measure(case: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Extra memory, fit and CPU seconds of one case; in a process of its own."""
    from tensoralg.polyadic import decompose

    small, options = tensor_of(case, tuple(min(n, 40) for n in shape))
    decompose(small, RANK, rng=0, **(options | {"max_iter": 2, "tol": 0}))
    X, options = tensor_of(case, shape)
    before, begin = fresh_peak(), time.process_time()
    result = decompose(X, RANK, rng=0, **(options | {"tol": 1e-4}))
    seconds = time.process_time() - begin
    return {"extra": own_peak() - before, "fit": result.fit, "seconds": seconds}


def measure_mapped(path: str, method: str) -> dict[str, float]:
    """Peak memory, fit and seconds of a memory-mapped file; in a process of its own."""
    from tensoralg.polyadic import decompose

    small = np.empty((40, 40, 40), dtype=np.float32)
    fill(small)
    decompose(small, RANK, rng=0, method=method, max_iter=2, tol=0)
    X = np.load(path, mmap_mode="r")
    fresh_peak()
    begin, clock = time.process_time(), time.perf_counter()
    few = {} if method == "auto" else {"max_iter": 6}
    result = decompose(X, RANK, rng=0, method=method, tol=1e-4, **few)
    return {
        "peak": own_peak(),
        "fit": result.fit,
        "cpu": time.process_time() - begin,
        "seconds": time.perf_counter() - clock,
    }


def in_process(*words: str) -> dict[str, float]:
    """What another process of this module printed."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.polyadic_memory", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_lines() -> list[str]:
    """One line per case."""
    lines = [
        f"| decompose | shape | tensor, MB | extra peak, MB | times the tensor | ≤ {WANTED} | fit "
        "| CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, shape in CASES:
        found = in_process("--case", case, "--shape", *map(str, shape))
        size = 4e-6 * float(np.prod(shape))
        ratio = found["extra"] / size
        lines.append(
            f"| {case} | {' x '.join(map(str, shape))} | {size:.0f} | {found['extra']:.0f} "
            f"| {ratio:.2f} | {'yes' if ratio <= WANTED else 'NO'} | {found['fit']:.5f} "
            f"| {found['seconds']:.1f} |"
        )
    return lines


def mapped_lines(size: int, directory: str | None) -> list[str]:
    """Decompositions of a file of size^3 float32 entries."""
    needed = 4 * size**3
    place = Path(directory or tempfile.gettempdir())
    if shutil.disk_usage(place).free < needed + MARGIN:
        return [f"not measured: less than {1e-9 * (needed + MARGIN):.0f} GB are free in {place}"]
    lines = [
        f"| method | file, GB | peak resident, GB | ≤ {MAPPED_LIMIT} | fit | s | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "tensor.npy"
        X = np.lib.format.open_memmap(path, "w+", np.float32, (size, size, size))
        fill(X)
        X.flush()
        del X
        for method in ("auto", "als", "sgd"):
            found = in_process("--mapped", str(path), "--method", method)
            peak = 1e-3 * found["peak"]
            lines.append(
                f"| {method} | {1e-9 * needed:.1f} | {peak:.2f} "
                f"| {'yes' if peak <= MAPPED_LIMIT else 'NO'} | {found['fit']:.5f} "
                f"| {found['seconds']:.0f} | {found['cpu']:.0f} |"
            )
    return lines


def run(mapped_size: int = MAPPED_SIZE, directory: str | None = None) -> str:
    """Measure and return Markdown tables."""
    best = 1.0 - NOISE / np.sqrt(1.0 + NOISE**2)
    return "\n".join(
        [
            f"Tensors in memory; the true terms have a fit of about {best:.5f}:",
            "",
            *memory_lines(),
            "",
            "A memory-mapped tensor:",
            "",
            *mapped_lines(mapped_size, directory),
        ]
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mapped-size", type=int, default=MAPPED_SIZE)
    parser.add_argument("--directory", help="where the file goes; the default is the system's")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--mapped", help=argparse.SUPPRESS)
    parser.add_argument("--method", default="auto", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with threadpool_limits(1):
        if arguments.case:
            print(json.dumps(measure(arguments.case, tuple(arguments.shape))))
        elif arguments.mapped:
            print(json.dumps(measure_mapped(arguments.mapped, arguments.method)))
        else:
            print(run(arguments.mapped_size, arguments.directory))


if __name__ == "__main__":
    main()
