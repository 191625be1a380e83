"""What rounding a tensor train refuses, by name: options of other types, values not finite."""

import math
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from tensoralg.core.tensor_train import TensorTrain
from tensoralg.core.tensor_train_rounding import bond_singular_values, round_cores


def random_cores(shape: tuple[int, ...], ranks: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    bonds = (1, *ranks, 1)
    return [rng.standard_normal((bonds[k], n, bonds[k + 1])) for k, n in enumerate(shape)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtol": "a"}, "rtol must be a number of at least 0; got 'a'"),
        ({"rtol": [0.1, 0.2]}, r"rtol must be a number of at least 0; got \[0.1, 0.2\]"),
        ({"rtol": np.array([0.1])}, "rtol must be a number of at least 0"),
        ({"rtol": 1j}, "rtol must be a number of at least 0; got 1j"),
        ({"max_parameters": 12.5}, "max_parameters must be an integer; got 12.5"),
        ({"max_parameters": "9"}, "max_parameters must be an integer; got '9'"),
    ],
)
def test_options_of_other_types_are_named(options: Any, message: str) -> None:
    cores = random_cores((4, 5), (3,))
    with pytest.raises(TypeError, match=message):
        round_cores(cores, **options)
    with pytest.raises(TypeError, match=message):
        TensorTrain(cores).round(**options)
    if "rtol" in options:
        with pytest.raises(TypeError, match=message):
            TensorTrain.from_dense(np.eye(3), **options)


def test_numbers_of_other_libraries_are_numbers() -> None:
    cores = random_cores((4, 5), (3,))
    expected = [core.shape for core in round_cores(cores, rtol=0.25)[0]]
    for rtol in (np.float32(0.25), np.array(0.25), torch.tensor(0.25)):
        assert [core.shape for core in round_cores(cores, rtol=rtol)[0]] == expected
    assert sum(c.size for c in round_cores(cores, max_parameters=np.int64(12))[0]) <= 12


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("library", [np, torch, array_api_strict])
def test_values_that_are_not_finite_are_named(value: float, library: Any) -> None:
    cores = random_cores((4, 5, 3), (3, 2))
    cores[1][0, 0, 0] = value
    own = [library.asarray(core) for core in cores]
    for call in (round_cores, bond_singular_values):
        with pytest.raises(ValueError, match=r"cores\[1\] must be finite"):
            call(own)
