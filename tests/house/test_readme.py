"""The README's commands are named and its Python examples run, in order."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
PYTHON_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_readme_names_the_two_commands():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_readme_examples_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    text = README.read_text(encoding="utf-8")
    namespace = {"__name__": "readme"}
    for match in PYTHON_BLOCK.finditer(text):
        # keep the README's own line numbers in tracebacks
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match.group(1), str(README), "exec"), namespace)
