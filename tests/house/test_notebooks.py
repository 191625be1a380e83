"""Each notebook is the same text as its script, and holds no outputs."""

from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))


def test_scripts_and_notebooks_come_in_pairs():
    assert SCRIPTS
    assert [path.stem for path in SCRIPTS] == [p.stem for p in sorted(NOTEBOOKS.glob("*.ipynb"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_matches_its_script_and_has_no_outputs(script):
    notebook = jupytext.read(script.with_suffix(".ipynb"))
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert cells == [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
