"""Run every benchmark, or the named ones: ``python -m benchmarks [NAME ...]``."""

import argparse
import importlib
import platform
from datetime import date
from pathlib import Path

import numpy as np
import scipy
import sklearn

from tensoralg import __version__

NAMES = ("import_time", "moment_pass", "expectation_step", "mixtures", "completely_positive")
RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """The processor's name, as far as the system tells."""
    listing = Path("/proc/cpuinfo")
    for line in listing.read_text().splitlines() if listing.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    """Print each table as it is finished and keep it under benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    RESULTS.mkdir(exist_ok=True)
    head = (
        f"{date.today()}, {processor()}, {platform.system()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, scipy {scipy.__version__}, scikit-learn {sklearn.__version__}, "
        f"tensoralg {__version__}"
    )
    print(head, flush=True)
    for name in names:
        table = importlib.import_module(f"benchmarks.{name}").run()
        (RESULTS / f"{name}.md").write_text(f"{head}\n\n{table}\n", encoding="utf-8")
        print(f"\n{table}", flush=True)


if __name__ == "__main__":
    main()
