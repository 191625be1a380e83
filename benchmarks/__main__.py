"""Run every benchmark, or the named ones: ``python -m benchmarks [NAME ...]``."""

import argparse
import importlib
from pathlib import Path

from tensoralg.studies.machine import describe_machine, machine_in_words

NAMES = (
    "import_time",
    "moment_pass",
    "expectation_step",
    "mixtures",
    "dask_scaling",
    "coverage",
    "large_dimension",
    "rank_detection",
    "dirty_data",
    "product_components",
    "completely_positive",
    "known_tensors",
    "random_tensors",
    "polyadic",
    "polyadic_real",
    "polyadic_sparse",
    "polyadic_memory",
    "gpu_polyadic",
    "polyadic_precision",
    "thin_tensors",
    "nn",
    "nn_memory",
    "nn_masks",
    "nn_adapters",
    "nn_reading",
    "gpu_nn",
    "quantization",
)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Print each table as it is finished and keep it under benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    RESULTS.mkdir(exist_ok=True)
    here = describe_machine()
    head = f"{here['date']}, {machine_in_words(here)}"
    print(head, flush=True)
    for name in names:
        table = importlib.import_module(f"benchmarks.{name}").run()
        (RESULTS / f"{name}.md").write_text(f"{head}\n\n{table}\n", encoding="utf-8")
        print(f"\n{table}", flush=True)


if __name__ == "__main__":
    main()
