"""What the documentation states in numbers is what the code says, and its examples run."""

import os
import re
import subprocess
import sys
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


BLOCK = re.compile(r"^```(?:\{code-block\} )?(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# pages whose blocks are fragments of a program that the reader has
FRAGMENTS = {"studies.md", "mixtures.md", "benchmarks.md", "polyadic.md"}
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if not {"_build", "generated"} & set(path.parts)
    and path.name not in FRAGMENTS
    and BLOCK.search(path.read_text(encoding="utf-8"))
]


def run_shell(command, folder):
    """A line of a shell block, with this environment's programs."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=os.environ | {"PATH": here},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_the_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (tmp_path / "docs").symlink_to(DOCS)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        language, code = match.groups()
        if language == "sh":
            run_shell(code, tmp_path)
            continue
        # keep the page's own line numbers in tracebacks
        line = text.count("\n", 0, match.start(2))
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
