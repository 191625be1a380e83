"""No tracked file names a place that exists on one machine only."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(
    r"(?<![\w.~-])/(?:work|root|tmp)/\w|\.\.[/]shared\b|--(?:extra-)?index[-]url"
)

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


def tracked_texts():
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # binary


def test_no_tracked_text_names_a_machine_path():
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["open('/{}/main/x')", "cd /{}/out"])
@pytest.mark.parametrize("folder", ["work", "root", "tmp"])
def test_the_pattern_finds_machine_paths(text, folder):
    assert MACHINE_PATH.search(text.format(folder))  # put together: this file is searched, too


@pytest.mark.parametrize(
    "text", ["https://example.org/work/pages", "homework/tmp/a", "the /tmp folder", "a/root/b"]
)
def test_the_pattern_leaves_other_paths_alone(text):
    assert not MACHINE_PATH.search(text)
