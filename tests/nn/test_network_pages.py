"""The pages on tensor trains and networks: their Python examples run, in order, word for word."""

import re
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["tensor_trains.md", "networks.md", "networks_training.md"])
def test_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": page}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) >= 2
    for match in blocks:
        line = text.count("\n", 0, match.start(2))  # the page's own line numbers in tracebacks
        code = "\n" * line + textwrap.dedent(match.group(2))
        exec(compile(code, str(DOCS / page), "exec"), namespace)
