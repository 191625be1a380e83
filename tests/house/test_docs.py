"""What the documentation states in numbers is what the code says."""

import re
from pathlib import Path

import pytest

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"^\|((?:\s*\d+\s*\|){7})$", (DOCS / "limits.md").read_text(encoding="utf-8"), re.MULTILINE
)


def test_the_table_of_bounds_was_found():
    assert len(ROWS) >= 5


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_table_of_bounds_is_right(row):
    d, m, *stated = (int(cell) for cell in row.strip("|").split("|"))
    forms = ("homogeneous", "affine", "power")
    computed = [component_bound(d, m, form=form) for form in forms]
    assert stated == [*computed, counting_bound(d, m), variance_bound(d, m)]
