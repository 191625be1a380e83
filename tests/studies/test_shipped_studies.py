from pathlib import Path

import pytest

from tensoralg.studies import load_specification

SHIPPED = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


def test_studies_are_shipped():
    assert {path.stem for path in SHIPPED} >= {"recovery", "recovery_large"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_study_is_valid(path):
    assert load_specification(path).cells()
