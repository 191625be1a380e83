"""Tensors whose answer is known: each must be decided, with a proof that is checked here.

``python -m benchmarks.known_tensors``. One thread, CPU seconds. A decomposition must rebuild the
tensor to 1e-9 with points >= 0, a certificate must verify again after a way through JSON; both are
checked by this script. A wrong verdict ends the run.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.completely_positive import FIRST_SEED, cpu, draw
from tensoralg.completely_positive import (
    Certificate,
    Detection,
    cauchy,
    detect,
    hilbert,
    lehmer,
    minimum,
    pascal,
)
from tensoralg.core.indices import number_of_multi_indices, rank_multi_indices
from tensoralg.core.symmetric_tensor import SymmetricTensor

LITERATURE = Path(__file__).parents[1] / "tests" / "data" / "completely_positive_tensors.json"
YES, NO = "completely positive", "not completely positive"
REBUILT = 1e-9
# rows separated by ";", one-digit entries run together
MATRICES = (
    "11001;12100;01310;00141;10015",
    "32001;25600;0 6 14 4 0;00491;10012",
    "21001;12100;01210;00121;10013",
    "20011;02011;00211;11130;11103",
    "20010;02001;00411;10110;01101",
    "65512;56521;55922;12210;21201",
    "10 5 2 0 5;5 10 5 0 0;2 5 10 5 0;0 0 5 10 5;5 0 0 5 10",
    "41 43 80 56 50;43 62 89 78 51;80 89 162 120 93;56 78 120 104 62;50 51 93 62 65",
)
SIZES = ((3, 3), (4, 3), (3, 4), (4, 4), (6, 3))

Known = tuple[str, Any, str, float | None]  # name, tensor, verdict, CPU seconds that are allowed


def matrix(text: str) -> Any:
    """Integer matrix of a short text."""
    rows = [row.split() if " " in row else list(row) for row in text.split(";")]
    return np.array(rows, dtype=int)


def closed_path(last: int) -> Any:
    """A matrix without triangles, completely positive exactly for a last entry of 7 or more."""
    A = matrix("11001;12100;01210;00121;10010")
    A[4, 4] = last
    return A


def by_distinct(n: int, *values: float) -> SymmetricTensor:
    """Cubic tensor whose entries depend on the number of distinct indices."""
    return SymmetricTensor.from_function(lambda *i: values[len(set(i)) - 1], 3, n)


def literature() -> Iterator[tuple[str, SymmetricTensor, str]]:
    """Tensors of Fan and Zhou (2017) and of Qi, Xu and Xu (2014)."""
    for name, record in json.loads(LITERATURE.read_text(encoding="utf-8")).items():
        n, d = record["dimension"], record["order"]
        entries = np.zeros(number_of_multi_indices(n, d))
        entries[rank_multi_indices(record["indices"], n)] = record["values"]
        yield name, SymmetricTensor(entries, d, n), record["answer"]


def known_tensors() -> Iterator[Known]:
    """All tensors, easy ones first."""
    for k, text in enumerate(MATRICES):
        yield f"matrix {k + 1}", matrix(text), YES, None
    for last in (1, 3, 5, 6, 7, 8):
        yield f"closed path, last entry {last}", closed_path(last), YES if last >= 7 else NO, None
    circulant = np.array([np.roll([8, 5, 1, 1, 5], k) for k in range(5)])
    yield "circulant(8,5,1,1,5), on the boundary", circulant, YES, 5.0
    horn = np.array([np.roll([1, -1, 1, 1, -1], k) for k in range(5)])
    yield "the same less a fiftieth of Horn's matrix", circulant * 50 - horn, NO, None
    for build in (hilbert, cauchy, pascal, lehmer, minimum):
        for n, d in SIZES:
            yield f"{build.__name__}, n={n}, d={d}", build(n, d), YES, None
    for n in (3, 4, 5, 6):
        yield f"n={n}, d=3, entries (1, .3, .35)", by_distinct(n, 1.0, 0.3, 0.35), NO, None
    yield "n=3, d=3, diagonal 1 and a_123 = .2", by_distinct(3, 1.0, 0.0, 0.2), NO, None
    yield "n=2, d=3, (1, .5, .5, .3)", SymmetricTensor([1, 0.5, 0.5, 0.3], 3, 2), NO, None
    for name, tensor, answer in literature():
        yield name, tensor, answer, None
    for n, d in ((6, 3), (5, 4)):
        yield f"n={n}, d={d}, from atoms", draw(n, d, FIRST_SEED), YES, 120.0
        yield f"n={n}, d={d}, off the cone", draw(n, d, FIRST_SEED + 1), NO, 120.0


def proof_of(found: Detection, tensor: Any) -> str:
    """Check what the verdict rests on; say it in a few words."""
    if found.certificate is not None:
        again = Certificate.from_json(found.certificate.to_json())
        if not again.verify() or again.value >= 0 or again.value != found.certificate.value:
            raise AssertionError("a certificate does not verify")
        return f"{again.kind}, <p, A> = {float(again.value):.1e}"
    if found.decomposition is None:
        return "-"
    if not isinstance(tensor, SymmetricTensor):
        tensor = SymmetricTensor.from_dense(np.asarray(tensor, dtype=float))
    residual = found.decomposition.residual(tensor)
    if found.verdict == YES and (residual > REBUILT or (found.decomposition.points < 0).any()):
        raise AssertionError("a decomposition does not rebuild its tensor")
    return f"{found.decomposition.rank} atoms, {residual:.0e}"


def run() -> str:
    """One line for each tensor; raises where a verdict or a proof is wrong."""
    rows, decided, total, slow = [], 0, 0, 0
    with threadpool_limits(1):
        for name, tensor, expected, allowed in known_tensors():
            seconds, found = cpu(lambda tensor=tensor: detect(tensor))
            verdict = found.verdict.value
            if verdict not in (expected, "undecided"):
                raise AssertionError(f"{name}: {verdict} is wrong")
            late = allowed is not None and seconds > allowed
            decided, total, slow = decided + (verdict == expected), total + 1, slow + late
            note = f" (NOT {allowed:g})" if late else ""
            rows.append(f"| {name} | {verdict} | {proof_of(found, tensor)} | {seconds:.2f}{note} |")
    return "\n".join(
        [
            f"## Known tensors: {decided} of {total} decided, none wrong, {slow} too slow",
            "",
            "| tensor | verdict | proof | CPU s |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(run())
