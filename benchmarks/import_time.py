"""How long `import tensoralg` takes, beside numpy and the interpreter alone.

Each import runs in fresh interpreters, in turn, and the median counts; the first round warms
the disk cache and is thrown away.

    python -m benchmarks.import_time
"""

import argparse
import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "python alone": "pass",
    "import numpy": "import numpy",
    "import tensoralg": "import tensoralg",
    "tensoralg.SymmetricTensor": "import tensoralg; tensoralg.SymmetricTensor",
    "tensoralg.mixtures": "import tensoralg; tensoralg.mixtures",
}


def seconds(statement: str) -> float:
    """Wall time of one fresh interpreter that runs `statement`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def measure(repeats: int) -> dict[str, list[float]]:
    """Times by label, sorted; the labels take turns so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {label: [] for label in STATEMENTS}
    for turn in range(repeats + 1):
        for label, statement in STATEMENTS.items():
            elapsed = seconds(statement)
            if turn > 0:
                times[label].append(elapsed)
    return {label: sorted(values) for label, values in times.items()}


def table(times: dict[str, list[float]]) -> str:
    """Markdown table: the whole process, and what the import adds to the interpreter."""
    alone = statistics.median(times["python alone"])
    lines = [
        "| statement | median, s | fastest, s | slowest, s | above the interpreter, s |",
        "|---|---|---|---|---|",
    ]
    for label, values in times.items():
        median = statistics.median(values)
        columns = (median, values[0], values[-1], median - alone)
        lines.append(f"| {label} | " + " | ".join(f"{value:.3f}" for value in columns) + " |")
    return "\n".join(lines)


def run(repeats: int = 9) -> str:
    """Measure and return the table with a heading."""
    return f"## Import time\n\n{table(measure(repeats))}\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="rounds after the warm-up")
    print(run(parser.parse_args().repeats))


if __name__ == "__main__":
    main()
