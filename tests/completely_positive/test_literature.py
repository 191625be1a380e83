"""Tensors from the literature, of dimension up to 11, with their published answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import detect
from tensoralg.core.indices import number_of_multi_indices, rank_multi_indices

DATA = Path(__file__).parents[1] / "data" / "completely_positive_tensors.json"
TENSORS = json.loads(DATA.read_text(encoding="utf-8"))


def tensor_of(record):
    n, d = record["dimension"], record["order"]
    entries = np.zeros(number_of_multi_indices(n, d))
    entries[rank_multi_indices(record["indices"], n)] = record["values"]
    return SymmetricTensor(entries, d, n)


@pytest.mark.parametrize("name", TENSORS)
def test_the_published_answer_is_proved(name):
    A = tensor_of(TENSORS[name])
    found = detect(A)
    assert found.verdict == TENSORS[name]["answer"]
    if found.certificate is None:
        assert (found.decomposition.points >= 0).all()
        assert found.decomposition.residual(A) <= 1e-9
    else:
        assert found.certificate.verify()
        assert found.certificate.value < 0
