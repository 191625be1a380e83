"""Measurements against the peers and the limits of the machine: `python -m benchmarks`."""
